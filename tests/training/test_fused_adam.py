"""Adam's step on the CPU: it has the bits of MXNet's operator, on any number of threads."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from gluon_optbert.training import fused_adam as blocks, optimization
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.optimization import Optimizer

SHAPES = ((3,), (blocks.BLOCK // 64, 64), (2 * blocks.BLOCK + 7,))


def taken(optimizer, steps, *, shapes=SHAPES, zeros_after=None):
    """The weights that an optimizer leaves after some steps with gradients drawn from the same seed, and its
    moments."""
    random, parameters = np.random.RandomState(2), {}
    for i, shape in enumerate(shapes):
        parameters[f'p{i}'] = parameter = gluon.Parameter(f'p{i}', shape=shape)
        parameter.initialize()
        parameter.set_data(mx.nd.array(random.standard_normal(shape)))
    trained = Optimizer(
        parameters, optimizer, weight_decay=0.01, decayed=['p1'], clip_norm=1.0, workers=Workers()
    )
    for step in range(steps):
        gradients = [mx.nd.array(random.standard_normal(shape)) for shape in shapes]
        still = zeros_after is not None and step >= zeros_after
        with autograd.record():
            loss = sum(
                (parameter.data() * gradient * (0 if still else 1)).sum()
                for parameter, gradient in zip(parameters.values(), gradients)
            )
        loss.backward()
        if step == zeros_after:  # as many steps later
            for moment in trained.state().values():
                moment *= 1e-35
        trained.update(1e-3, step=step + 1)
    weights = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
    return weights, {name: array.asnumpy() for name, array in trained.state().items()}


def bits(weights_and_moments):
    return [{name: value.tobytes() for name, value in kind.items()} for kind in weights_and_moments]


@pytest.mark.parametrize('optimizer', ['bertadam', 'adamw'])
def test_optimizer_takes_the_same_steps_with_numpy_on_any_number_of_threads_and_with_mxnet(
    monkeypatch, optimizer
):
    monkeypatch.setattr(optimization, 'on_host', lambda arrays: False)
    wanted = bits(taken(optimizer, 5))
    monkeypatch.undo()
    for threads in (1, 3):
        monkeypatch.setattr(blocks, 'threads_here', lambda threads=threads: threads)
        assert bits(taken(optimizer, 5)) == wanted


def test_failure_in_a_thread_is_not_lost(monkeypatch):
    monkeypatch.setattr(blocks, 'threads_here', lambda: 3)

    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        blocks.in_blocks([(fail, (np.zeros(4 * blocks.BLOCK, np.float32),))])


def test_moments_that_have_vanished_are_zero_and_change_no_weight(monkeypatch):
    """Ten gradients, then none: at the end the first moments would be subnormal."""
    few = {'shapes': ((100,), (3, 2), (70,)), 'zeros_after': 10}
    tidied = taken('bertadam', 128, **few)
    monkeypatch.setattr(optimization.Optimizer, '_tidy', lambda self: None)
    untidied = taken('bertadam', 128, **few)
    means = np.concatenate([value.ravel() for name, value in untidied[1].items() if name.endswith('/0')])
    assert (np.abs(means) < np.finfo(np.float32).tiny).all() and means.any()
    assert not any(value.any() for name, value in tidied[1].items() if name.endswith('/0'))
    assert all(value.tobytes() == untidied[0][name].tobytes() for name, value in tidied[0].items())
