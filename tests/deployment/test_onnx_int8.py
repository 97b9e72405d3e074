"""ONNX files in eight bits: near the network, and of the products and operators that are meant."""

import collections
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.exported import ARCHITECTURES, CASES
from helpers.tiny import network, saved_model, vocabulary
from onnx import numpy_helper

from gluon_optbert.deployment.description import inputs_of
from gluon_optbert.deployment.export import ONNX_FILES, export
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.onnx_check import check_onnx
from gluon_optbert.deployment.onnx_export import run_onnx
from gluon_optbert.deployment.onnx_files import onnx_in, onnx_ranges, relative_difference, write_onnx_files
from gluon_optbert.deployment.onnx_int8 import quantised_weight, scale_and_zero
from gluon_optbert.deployment.onnx_names import (
    DYNAMIC,
    ONNX,
    network_outputs,
    onnx_feed,
    onnx_inputs,
    onnx_outputs,
)
from gluon_optbert.network import running
from gluon_optbert.network.inputs import INPUTS, TOKEN_INPUTS
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.saved_model import SavedModel

TEXT = [Instance('a b c d'), Instance('hi j', 'x y.'), Instance('z')]


ENGINES = """
import json, sys
import numpy as np, onnxruntime, openvino
feed = {name: value.astype('int64') for name, value in np.load(sys.argv[1]).items()}
for path in sys.argv[2:]:
    session = onnxruntime.InferenceSession(path, providers=['CPUExecutionProvider'])
    names = [value.name for value in session.get_outputs()]
    np.savez(path + '.onnxruntime.npz', **dict(zip(names, session.run(None, feed))))
    network = openvino.Core().compile_model(path, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})
    answer = {output.any_name: np.array(value) for output, value in network(feed).items()}
    np.savez(path + '.openvino.npz', **answer)
"""


def saved_with(widths, case, std=0.3):
    """A model in memory and the network of its export."""
    architecture, (kind, head) = ARCHITECTURES[widths], CASES[case]
    model = build(architecture, head=head, initial_std=std, trainable=False)
    return SavedModel(architecture, read_parameters(model), vocabulary(), head=head), model, kind


def feeds_of(architecture):
    return [running.feed_of(running.random_feed(architecture, batch=4, length=9), TOKEN_INPUTS)]


@pytest.mark.parametrize('method', ['naive', 'entropy'])
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('widths', ARCHITECTURES)
def test_int8_files_are_near_the_network_and_pass_the_check(tmp_path, widths, case, method):
    saved, model, kind = saved_with(widths, case)
    ranges = onnx_ranges(saved, kind, feeds_of(saved.architecture), method)
    feed = running.random_feed(saved.architecture, batch=4, length=9)
    wanted = running.run(model, feed, inputs_of(kind) if saved.head.outputs else list(INPUTS))[0]
    valid = np.arange(9) < feed['valid_length'][:, np.newaxis]
    inputs, outputs = list(onnx_inputs(kind)), list(onnx_outputs(kind, saved.head))
    for name, precision in ONNX_FILES['int8'].items():
        path = tmp_path / name
        write_onnx_files(tmp_path, {name: precision}, saved, kind, 'transformers', ranges)
        check_onnx(path, inputs=inputs, outputs=outputs)
        output = next(iter(network_outputs(run_onnx(path, onnx_feed(feed, inputs)), feed).values()))
        tokens = valid if wanted.shape[:2] == valid.shape else slice(None)
        difference = relative_difference(output[tokens], wanted[tokens])
        most = 0.05 if method == 'naive' or name == DYNAMIC else 0.5  # entropy cuts the largest values off
        assert 1e-5 < difference < most, name


def test_a_network_without_layers_has_nothing_in_eight_bits():
    saved = saved_model(dataclasses.replace(network(), layers=()))
    with pytest.raises(ValueError, match='no layer with a product to quantise'):
        onnx_ranges(saved, 'encoder', feeds_of(saved.architecture), 'naive')


def test_every_product_of_the_encoder_is_in_eight_bits_and_no_other():
    saved, _, kind = saved_with('uneven', 'classification')
    ranges = onnx_ranges(saved, kind, feeds_of(saved.architecture), 'naive')
    filters = sum(1 for dims in saved.architecture.layers if dims.f)
    products = 4 * len(saved.architecture.layers) + 2 * filters
    for precision in ONNX_FILES['int8'].values():
        model = onnx_in(precision, saved, kind, 'transformers', ranges)
        int8 = [w.name for w in model.graph.initializer if w.data_type == onnx.TensorProto.INT8 and w.dims]
        weights = [weight for weight in int8 if weight.endswith('.int8')]
        assert len(weights) == products and all('transformer_cells' in weight for weight in weights)
        kinds = collections.Counter(node.op_type for node in model.graph.node)
        if precision == 'int8 dynamic':
            assert kinds['MatMulInteger'] == products
        else:
            queries_and_keys, shared = 2 * len(saved.architecture.layers), 2 * len(saved.architecture.layers)
            assert kinds['QuantizeLinear'] == shared + 2 * filters + queries_and_keys


def test_large_units_behind_a_layer_norm_do_not_cost_the_others_their_digits(tmp_path):
    """As in trained BERTs, where a few units are ten times as large as the others."""
    saved, _, kind = saved_with('even', 'encoder')
    parameters = {name: value.copy() for name, value in saved.parameters.items()}
    for name in parameters:
        if name.endswith('layer_norm.gamma'):
            parameters[name][3] *= 100
        elif name.endswith(('ffn_1.weight', 'query.weight', 'key.weight', 'value.weight')):
            parameters[name][:, 3] /= 100
    saved = SavedModel(saved.architecture, parameters, saved.vocabulary, head=saved.head)
    ranges = onnx_ranges(saved, kind, feeds_of(saved.architecture), 'naive')
    name = 'encoder.transformer_cells.0.ffn.ffn_1'
    factors, (low, high) = ranges.factors[name], ranges.inputs[name]
    assert factors[3] < 0.2 * np.median(factors)
    assert max(-low, high) < 10 * np.median(factors)  # 100 times that without factors


def test_weights_are_rounded_by_output_unit():
    weight = np.array([[1.0, 100.0, 0.0], [-0.5, 30.0, 0.0]], np.float32)
    rounded, scales = quantised_weight(weight)
    assert rounded.dtype == np.int8 and scales.shape == (3,)
    np.testing.assert_allclose(rounded * scales, weight, atol=0.5 * scales.max())
    np.testing.assert_array_equal(rounded[0], [127, 127, 0])


@pytest.mark.parametrize('low, high', [(-1.0, 3.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0), (-1e-30, 1e-30)])
def test_ranges_hold_zero_exactly(low, high):
    scale, zero = scale_and_zero(low, high)
    assert scale > 0 and 0 <= zero <= 255 and scale.dtype == np.float32 and zero.dtype == np.uint8
    values = (np.array([0, 255]) - float(zero)) * scale
    assert values[0] <= min(low, 0) + scale and values[1] >= max(high, 0) - scale


def test_an_int8_export_has_a_static_and_a_dynamic_onnx_file(tmp_path):
    measured = export(
        saved_model(ARCHITECTURES['uneven']),
        tmp_path / 'deploy',
        precision='int8',
        calibration=TEXT,
        onnx=True,
    )
    manifest = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())
    assert {ONNX, DYNAMIC} <= set(manifest['files'])
    assert {name: entry['precision'] for name, entry in manifest['onnx'].items()} == {
        ONNX: 'int8',
        DYNAMIC: 'int8 dynamic',
    }
    for key in ('onnx_relative_difference', 'onnx_dynamic_relative_difference'):
        assert all(0 < difference < 0.5 for difference in measured[key].values())


def test_zero_points_of_weights_are_zero():
    saved, _, kind = saved_with('even', 'encoder')
    ranges = onnx_ranges(saved, kind, feeds_of(saved.architecture), 'naive')
    for precision in ONNX_FILES['int8'].values():
        model = onnx_in(precision, saved, kind, 'gluon', ranges)
        zeros = [w for w in model.graph.initializer if w.name.endswith('weight.zero')]
        assert zeros and not any(numpy_helper.to_array(zero).any() for zero in zeros)


@pytest.mark.slow
def test_onnx_runtime_and_openvino_compute_what_the_files_say(tmp_path):
    """They need an environment of their own: PEER_ONNXRUNTIME=its/bin/python, with both."""
    python = os.environ.get('PEER_ONNXRUNTIME')
    if not python or not Path(python).exists():
        pytest.skip('PEER_ONNXRUNTIME does not name a Python with onnxruntime and openvino')
    paths = []
    inputs = list(onnx_inputs('encoder'))
    for widths in ('even', 'uneven'):
        saved, _, kind = saved_with(widths, 'encoder')
        ranges = onnx_ranges(saved, kind, feeds_of(saved.architecture), 'naive')
        (tmp_path / widths).mkdir()
        write_onnx_files(tmp_path / widths, ONNX_FILES['int8'], saved, kind, 'transformers', ranges)
        paths += [tmp_path / widths / name for name in ONNX_FILES['int8']]
    feed = onnx_feed(running.random_feed(ARCHITECTURES['even'], batch=4, length=9), inputs)
    np.savez(tmp_path / 'feed.npz', **feed)
    alone = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    words = [python, '-c', ENGINES, tmp_path / 'feed.npz', *paths]
    subprocess.run(list(map(str, words)), check=True, timeout=300, env=alone)
    tokens = feed['attention_mask'].astype(bool)
    for path in paths:
        wanted = run_onnx(path, feed)['last_hidden_state'][tokens]
        for engine in ('onnxruntime', 'openvino'):
            with np.load(f'{path}.{engine}.npz') as outputs:
                output = outputs['last_hidden_state'][tokens]
            # a value between two integers may be rounded either way, by a sum in another order
            assert relative_difference(output, wanted) < 0.05, (path, engine)
