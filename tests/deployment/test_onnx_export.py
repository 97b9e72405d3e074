"""The ONNX file: what it computes, as ONNX's reference implementation and ONNX Runtime run it."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.exported import ARCHITECTURES, CASES

from gluon_optbert.deployment import export as deploy
from gluon_optbert.deployment.inference import inference_parameters, inputs_of, outputs_of
from gluon_optbert.deployment.onnx_export import onnx_model, run_onnx, write_onnx
from gluon_optbert.network import running
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import INPUTS

RUNTIME = """
import sys
import numpy as np, onnxruntime
feed = np.load(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
outputs = session.run(None, {given.name: feed[given.name].astype('int64') for given in session.get_inputs()})
np.savez(sys.argv[3], *outputs)
"""


def written(path, widths, case, seed=0):
    """A file and the network in memory that it should equal."""
    architecture, (kind, head) = ARCHITECTURES[widths], CASES[case]
    model = build(architecture, head=head, initial_std=0.3, trainable=False, seed=seed)
    arrays = inference_parameters(read_parameters(model), architecture, kind, head)
    write_onnx(path, onnx_model(architecture, kind, head, arrays))
    return model


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('widths', ARCHITECTURES)
def test_onnx_equals_the_trained_network(tmp_path, widths, case):
    model = written(tmp_path / 'model.onnx', widths, case)
    kind, head = CASES[case]
    for batch, length in ((3, 9), (1, 2)):
        feed = running.random_feed(ARCHITECTURES[widths], batch=batch, length=length)
        outputs = run_onnx(tmp_path / 'model.onnx', feed)
        wanted = running.run(model, feed, inputs_of(kind) if head.outputs else list(INPUTS))
        assert list(outputs) == list(outputs_of(kind, head))
        assert all(
            deploy.relative_difference(*pair) <= deploy.TOLERANCE for pair in zip(outputs.values(), wanted)
        )


def test_initializers_are_constants_and_shapes_are_free(tmp_path):
    written(tmp_path / 'model.onnx', 'uneven', 'pretraining')
    model = onnx.load(str(tmp_path / 'model.onnx'))
    onnx.checker.check_model(model, full_check=True)
    assert [given.name for given in model.graph.input] == list(INPUTS)
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
    np.savez(tmp_path / 'feed.npz', **feed)
    words = [python, '-c', RUNTIME, tmp_path / 'model.onnx', tmp_path / 'feed.npz', tmp_path / 'out.npz']
    alone = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    subprocess.run(list(map(str, words)), check=True, timeout=120, env=alone)
    outputs = np.load(tmp_path / 'out.npz')
    wanted = running.run(model, feed, inputs_of(kind) if head.outputs else list(INPUTS))
    for i in range(len(outputs_of(kind, head))):
        assert deploy.relative_difference(outputs[f'arr_{i}'], wanted[i]) <= deploy.TOLERANCE
