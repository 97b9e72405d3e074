"""The ONNX file: what it computes, as ONNX's reference implementation and ONNX Runtime run it."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.exported import ARCHITECTURES, CASES

from gluon_optbert.deployment import export as deploy
from gluon_optbert.deployment.description import inputs_of, outputs_of
from gluon_optbert.deployment.inference import inference_parameters
from gluon_optbert.deployment.onnx_export import onnx_model, run_onnx, write_onnx
from gluon_optbert.deployment.onnx_files import relative_difference
from gluon_optbert.deployment.onnx_names import NAMES, network_outputs, onnx_feed, onnx_inputs, onnx_outputs
from gluon_optbert.network import running
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build, read_parameters

RUNTIME = """
import sys
import numpy as np, onnxruntime
feed = np.load(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
outputs = session.run(None, {given.name: feed[given.name].astype('int64') for given in session.get_inputs()})
np.savez(sys.argv[3], *outputs)
"""


def written(path, widths, case, seed=0, names='transformers'):
    """A file and the network in memory that it should equal."""
    architecture, (kind, head) = ARCHITECTURES[widths], CASES[case]
    model = build(architecture, head=head, initial_std=0.3, trainable=False, seed=seed)
    arrays = inference_parameters(read_parameters(model), architecture, kind, head)
    write_onnx(path, onnx_model(architecture, kind, head, arrays, names))
    return model


def differences(outputs, model, case, feed):
    """How far outputs of an ONNX file are from those of a network, padding left out."""
    kind, head = CASES[case]
    wanted = running.run(model, feed, inputs_of(kind) if head.outputs else list(INPUTS))
    valid = np.arange(feed['input_ids'].shape[1]) < feed['valid_length'][:, np.newaxis]
    outputs = network_outputs(outputs, feed)
    for (name, shape), value in zip(outputs_of(kind, head).items(), wanted):
        tokens = valid if shape[1] == 'length' else slice(None)
        yield relative_difference(outputs[name][tokens], value[tokens])


@pytest.mark.parametrize('names', NAMES)
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('widths', ARCHITECTURES)
def test_onnx_equals_the_trained_network(tmp_path, widths, case, names):
    model = written(tmp_path / 'model.onnx', widths, case, names=names)
    kind, head = CASES[case]
    for batch, length in ((3, 9), (1, 2)):
        feed = running.random_feed(ARCHITECTURES[widths], batch=batch, length=length)
        outputs = run_onnx(tmp_path / 'model.onnx', onnx_feed(feed, onnx_inputs(kind, names)))
        assert list(outputs) == list(onnx_outputs(kind, head, names))
        assert max(differences(outputs, model, case, feed)) <= deploy.TOLERANCE


def test_names_are_those_of_transformers_unless_others_are_asked_for(tmp_path):
    wanted = {
        'encoder': ['last_hidden_state', 'pooler_output'],
        'pretraining': ['last_hidden_state', 'pooler_output', 'seq_relationship_logits', 'prediction_logits'],
        'classification': ['logits'],
        'regression': ['logits'],
        'question answering': ['start_logits', 'end_logits'],
    }
    for case, outputs in wanted.items():
        written(tmp_path / 'model.onnx', 'uneven', case)
        graph = onnx.load(str(tmp_path / 'model.onnx')).graph
        assert [value.name for value in graph.output] == outputs
        assert [value.name for value in graph.input] == ['input_ids', 'attention_mask', 'token_type_ids']
        for value in graph.input:
            assert value.type.tensor_type.elem_type == onnx.TensorProto.INT64
            assert [side.dim_param for side in value.type.tensor_type.shape.dim] == ['batch', 'length']


@pytest.mark.parametrize('widths', ARCHITECTURES)
def test_padding_may_be_anywhere(tmp_path, widths):
    """Tokens between, before or after padding are encoded as a network encodes them without padding, whose
    positions are theirs."""
    architecture, length = ARCHITECTURES[widths], 7
    model = written(tmp_path / 'model.onnx', widths, 'encoder')
    generator = np.random.RandomState(0)
    ids = generator.randint(0, architecture.vocab_size, (3, length))
    types = generator.randint(0, 2, (3, length))
    mask = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 0, 0, 0]])
    feed = {'input_ids': ids, 'token_type_ids': types, 'attention_mask': mask}
    encoded = run_onnx(tmp_path / 'model.onnx', feed)['last_hidden_state']
    parameters = read_parameters(model)
    for row, kept in enumerate(map(np.flatnonzero, mask)):
        positions = parameters['encoder.position_weight'].copy()
        positions[: len(kept)] = positions[kept]
        moved = build(architecture, {**parameters, 'encoder.position_weight': positions}, trainable=False)
        alone = {
            'input_ids': ids[row : row + 1, kept],
            'token_types': types[row : row + 1, kept],
            'valid_length': np.array([len(kept)]),
            'masked_positions': np.zeros((1, 1)),
        }
        wanted = running.run(moved, alone, list(INPUTS))[0]
        assert relative_difference(encoded[row : row + 1, kept], wanted) <= deploy.TOLERANCE


@pytest.mark.parametrize('names', NAMES)
def test_initializers_are_constants_and_shapes_are_free(tmp_path, names):
    written(tmp_path / 'model.onnx', 'uneven', 'pretraining', names=names)
    model = onnx.load(str(tmp_path / 'model.onnx'))
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == list(onnx_inputs('pretraining', names))
    shape = model.graph.input[0].type.tensor_type.shape
    assert [side.dim_param for side in shape.dim] == ['batch', 'length']
    used = {name for node in model.graph.node for name in node.input}
    assert {weight.name for weight in model.graph.initializer} <= used
    assert all(weight.HasField('raw_data') for weight in model.graph.initializer)


def test_same_network_gives_the_same_bytes(tmp_path):
    for name in ('one', 'two'):
        written(tmp_path / name, 'uneven', 'encoder')
    assert (tmp_path / 'one').read_bytes() == (tmp_path / 'two').read_bytes()


@pytest.mark.parametrize('case', CASES)
def test_onnx_runtime_gets_the_same_numbers(tmp_path, case):
    """ONNX Runtime needs a newer NumPy than MXNet, so it runs in an environment of its own:
    PEER_ONNXRUNTIME=its/bin/python.
    """
    python = os.environ.get('PEER_ONNXRUNTIME')
    if not python or not Path(python).exists():
        pytest.skip('PEER_ONNXRUNTIME does not name a Python with onnxruntime')
    model = written(tmp_path / 'model.onnx', 'uneven', case)
    kind, head = CASES[case]
    feed = running.random_feed(ARCHITECTURES['uneven'], batch=4, length=11, seed=3)
    np.savez(tmp_path / 'feed.npz', **onnx_feed(feed, onnx_inputs(kind)))
    words = [python, '-c', RUNTIME, tmp_path / 'model.onnx', tmp_path / 'feed.npz', tmp_path / 'out.npz']
    alone = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    subprocess.run(list(map(str, words)), check=True, timeout=120, env=alone)
    arrays = np.load(tmp_path / 'out.npz')
    outputs = {name: arrays[f'arr_{i}'] for i, name in enumerate(onnx_outputs(kind, head))}
    assert max(differences(outputs, model, case, feed)) <= deploy.TOLERANCE
