"""The networks of an export, for MXNet and in ONNX, compute what the trained network computes."""

import collections
import json

import onnx
import pytest
from helpers.exported import EVERY, UNEVEN, differences, load_deployment, saved_with
from helpers.tiny import network

from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.deployment.description import ONNX, inputs_of, onnx_inputs, onnx_outputs, outputs_of
from gluon_optbert.deployment.engines import onnx_feed
from gluon_optbert.deployment.export import TOLERANCE, export, relative_difference
from gluon_optbert.deployment.mxnet_network import inference_symbol, inference_table, time_exports
from gluon_optbert.deployment.onnx_export import run_onnx, write_onnx
from gluon_optbert.deployment.onnx_int8 import onnx_in
from gluon_optbert.network import running
from gluon_optbert.network.inputs import INPUTS


@pytest.mark.parametrize('widths, case', EVERY)
def test_an_exported_network_equals_the_trained_one(tmp_path, widths, case):
    saved, model, kind = saved_with(widths, case)
    export(saved, tmp_path / 'deploy', head=kind, onnx=True)
    block, _ = load_deployment(tmp_path / 'deploy')
    files = {'transformers': tmp_path / 'deploy' / ONNX, 'gluon': tmp_path / ONNX}
    write_onnx(files['gluon'], onnx_in('float32', saved, kind, 'gluon'))
    for batch, length in ((3, 9), (1, 2)):
        feed = running.random_feed(saved.architecture, batch=batch, length=length)
        outputs = running.run(block, feed, inputs_of(kind))
        wanted = running.run(model, feed, inputs_of(kind) if saved.head.outputs else list(INPUTS))
        assert len(outputs) == len(outputs_of(kind, saved.head))
        assert all(relative_difference(*pair) <= TOLERANCE for pair in zip(outputs, wanted))
        for names, path in files.items():
            outputs = run_onnx(path, onnx_feed(feed, onnx_inputs(kind, names)))
            assert list(outputs) == list(onnx_outputs(kind, saved.head, names))
            assert max(differences(outputs, model, case, feed)) <= TOLERANCE
    for names, path in files.items():
        graph = onnx.load(str(path)).graph
        shapes = [[side.dim_param for side in one.type.tensor_type.shape.dim] for one in graph.input]
        assert shapes == list(map(list, onnx_inputs(kind, names).values()))
        assert {one.type.tensor_type.elem_type for one in graph.input} == {onnx.TensorProto.INT64}
        used = {name for node in graph.node for name in node.input}
        assert {weight.name for weight in graph.initializer} <= used
        assert all(weight.HasField('raw_data') for weight in graph.initializer)


def test_a_layer_has_no_operator_that_does_nothing():
    counts = []
    for layers in (1, 2):
        symbol = inference_symbol(network(*[(2, 4, 4, 16)] * layers), 'encoder', PRETRAINING)
        counts.append(collections.Counter(node['op'] for node in json.loads(symbol.tojson())['nodes']))
        del counts[-1]['null']  # the variables
    assert counts[1] - counts[0] == {
        'FullyConnected': 6,
        'Reshape': 8,
        'transpose': 4,
        'batch_dot': 2,
        'elemwise_add': 3,
        'softmax': 1,
        'LayerNorm': 2,
        'LeakyReLU': 1,
    }


def test_low_precision_is_for_the_encoders_products_alone():
    table = inference_table(UNEVEN, 'pretraining', PRETRAINING)
    low = [name for name, spec in table.items() if spec.low_precision]
    # weights and biases of Q, K, V and P, and of D and G where there are some
    assert len(low) == 2 * (3 * 4 + 2 * 2)
    assert all(name.startswith('encoder.transformer_cells.') for name in low)


def test_a_network_of_more_work_takes_longer():
    small = network((2, 4, 4, 8), h=8, max_length=64)
    large = network(*[(8, 64, 64, 2048)] * 4, h=256, max_length=64)
    times = time_exports({'small': small, 'large': large}, length=64, repeats=5)
    assert all(len(values) == 5 for values in times.values())
    assert 0 < times['small'].min() < times['large'].min()
