"""Reduced precision in training: how near losses and gradients are to float32's, and where it is refused."""

import os
import types

import mxnet as mx
import numpy as np
import pytest
from helpers.processor import needs_bfloat16
from helpers.tiny import network, random_inputs, random_parameters
from mxnet import autograd

from gluon_optbert.network.losses import PretrainingLoss
from gluon_optbert.network.model import build, named_parameters
from gluon_optbert.network.settings import KEPT_SHAPES, check_precision
from gluon_optbert.runs.machine import bfloat16_is_fast
from gluon_optbert.training.recipe import WeightRecipe

NARROW = 2.0**-8  # half a unit in the last of bfloat16's eight bits is 2^-9; a product rounds either operand
NETWORKS = {
    'equal layers': network(),
    'uneven layers': network((2, 3, 5, 7), (1, 4, 2, 0)),
    'factorised': network(e=4),
    'wide': network((4, 16, 16, 128), (4, 16, 16, 128), h=64),
}


def weights_of(architecture):
    """Weights of the size that trained ones have: with larger ones softmax turns small differences large."""
    return {
        name: value if name.endswith('gamma') else value * np.float32(1.5 * architecture.h**-0.5)
        for name, value in random_parameters(architecture).items()
    }


def loss_and_gradients(architecture, precision, *, gated=False):
    """The loss of a batch, and the gradients of all weights, or of the gates with the weights frozen."""
    model = build(architecture, weights_of(architecture), precision=precision, gated=gated)
    trained = named_parameters(model)
    if gated:
        for parameter in trained.values():
            parameter.grad_req = 'null'
        trained = model.gates.parameters
    loss = PretrainingLoss()
    with autograd.record():
        *_, next_sentence, masked = model(*random_inputs(architecture, batch=4))
        mlm, nsp = loss(
            next_sentence,
            masked,
            mx.nd.array([[5, 6], [7, 8], [9, 10], [11, 12]]),
            mx.nd.ones((4, 2)),
            mx.nd.array([0, 1, 0, 1]),
            mx.nd.ones(4),
        )
        total = mlm / 8 + nsp / 4
    total.backward()
    assert {parameter.grad().dtype for parameter in trained.values()} == {np.float32}
    return total.asscalar(), {name: parameter.grad().asnumpy() for name, parameter in trained.items()}


@needs_bfloat16
@pytest.mark.parametrize('gated', [False, True], ids=['weights', 'gates'])
@pytest.mark.parametrize('architecture', NETWORKS.values(), ids=NETWORKS)
def test_bfloat16_losses_and_gradients_are_near_those_of_float32(architecture, gated):
    (loss, wanted), (low_loss, result) = (
        loss_and_gradients(architecture, name, gated=gated) for name in ('float32', 'bfloat16')
    )
    assert loss != low_loss  # it is another precision
    assert low_loss == pytest.approx(loss, rel=NARROW)
    whole = np.sqrt(sum(np.sum(np.square(value)) for value in wanted.values()))
    # six roundings in a row on the way down two layers; tiny gradients count as noise
    for name, value in wanted.items():
        assert np.linalg.norm(result[name] - value) <= 6 * NARROW * max(
            np.linalg.norm(value), 1e-3 * whole
        ), name


def test_precisions_are_refused_where_mxnet_does_not_multiply_in_them(monkeypatch):
    for precision, ctx, said in (
        ('float16', mx.cpu(), 'on a GPU only'),
        ('bfloat16', mx.gpu(), 'on a CPU only'),
    ):
        with pytest.raises(ValueError, match=said):
            check_precision(precision, ctx)
    for module in ('network.settings', 'runs.machine'):
        monkeypatch.setattr(f'gluon_optbert.{module}.cpu_flags', lambda: 'flags : fpu sse2 avx2\n')
    with pytest.raises(ValueError, match='AVX-512'):
        check_precision('bfloat16', mx.cpu())
    check_precision('float16', mx.gpu())
    check_precision('float32', mx.cpu())
    assert not bfloat16_is_fast()


@pytest.mark.parametrize('own, kept', [(None, '64'), ('-1', '-1')])
def test_bfloat16_bounds_the_shapes_that_mxnet_keeps_unless_told_otherwise(monkeypatch, own, kept):
    monkeypatch.setattr('gluon_optbert.network.settings.cpu_flags', lambda: 'flags : avx512bw\n')
    monkeypatch.setenv(KEPT_SHAPES, str(own))
    if own is None:
        monkeypatch.delenv(KEPT_SHAPES)
    check_precision('float32', mx.cpu())
    assert os.environ.get(KEPT_SHAPES) == own
    check_precision('bfloat16', mx.cpu())
    assert os.environ[KEPT_SHAPES] == kept


@pytest.mark.parametrize(
    'flags, answer, wanted',
    [
        ('avx2', 0, 'float32'),
        ('avx512bw', 0, 'float32'),  # emulated, and slower
        ('avx512bw avx512_bf16', -1, 'bfloat16'),
        ('avx512bw avx512_bf16 amx_bf16', 0, 'bfloat16'),
        ('avx512bw avx512_bf16 amx_bf16', -1, 'float32'),  # Linux refuses the tiles: slower
    ],
)
def test_a_recipe_takes_the_precision_that_is_fast_here_and_says_which(
    monkeypatch, tmp_path, flags, answer, wanted
):
    monkeypatch.setattr('gluon_optbert.runs.machine.cpu_flags', lambda: f'flags : {flags}\n')
    linux = types.SimpleNamespace(syscall=lambda *_: answer)
    monkeypatch.setattr('gluon_optbert.runs.machine.ctypes', types.SimpleNamespace(CDLL=lambda _: linux))
    recipe = WeightRecipe(output=tmp_path, precision='auto')
    assert recipe.precision == wanted
