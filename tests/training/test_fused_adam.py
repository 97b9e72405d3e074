"""Adam's step on the CPU: it has the bits of MXNet's operator, on any number of threads."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.ndarray.contrib import multi_adamw_update

from gluon_optbert.training import fused_adam as blocks
from gluon_optbert.training import optimization
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.optimization import Optimizer

SHAPES = ((3,), (blocks.BLOCK // 64, 64), (2 * blocks.BLOCK + 7,))


def random_arrays(random, shape):
    """A weight, a gradient and two moments."""
    values = [random.standard_normal(shape) * scale for scale in (0.05, 1e-3, 1e-4)]
    values.append(random.random_sample(shape) * 1e-7)
    return [mx.nd.array(value) for value in values]


@pytest.mark.parametrize('shape', SHAPES)
def test_step_in_blocks_has_the_bits_of_mxnets_operator(shape):
    random = np.random.RandomState(1)
    for _ in range(20):
        arrays = random_arrays(random, shape)
        copies = [array.copy() for array in arrays]
        rate, decay, rescale = random.random_sample(3) * (1e-3, 0.1, 1.0)
        factors = {'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-6}
        weight, gradient, mean, variance = ([array] for array in copies)
        multi_adamw_update(
            weight,
            gradient,
            mean,
            variance,
            out=weight,
            size=1,
            lrs=[1.0],
            wds=[decay],
            etas=[rate],
            rescale_grad=mx.nd.full((1,), rescale),
            **factors,
        )
        mx.nd.waitall()

        def step(*parts, rate=rate, decay=decay, rescale=rescale, factors=factors):
            blocks.adam_step(*parts, rescale=rescale, decay=decay, rate=rate, **factors)

        blocks.in_blocks([(step, tuple(map(blocks.host_view, arrays)))])
        for ours, wanted in zip(arrays, copies):
            assert ours.asnumpy().tobytes() == wanted.asnumpy().tobytes()


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
        trained.update(1e-3, step=step + 1)
    weights = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
    return weights, {name: array.asnumpy() for name, array in trained.state().items()}


@pytest.mark.parametrize('optimizer', ['bertadam', 'adamw'])
def test_optimizer_takes_the_same_steps_with_numpy_and_with_mxnet(monkeypatch, optimizer):
    ours = taken(optimizer, 3)
    monkeypatch.setattr(optimization, 'on_host', lambda arrays: False)
    wanted = taken(optimizer, 3)
    for kind, kind_wanted in zip(ours, wanted):
        assert {name: value.tobytes() for name, value in kind.items()} == {
            name: value.tobytes() for name, value in kind_wanted.items()
        }


def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(blocks, 'threads_here', lambda: 1)
    one = taken('adamw', 2)
    monkeypatch.setattr(blocks, 'threads_here', lambda: 3)
    three = taken('adamw', 2)
    for kind, kind_of_three in zip(one, three):
        assert {name: value.tobytes() for name, value in kind.items()} == {
            name: value.tobytes() for name, value in kind_of_three.items()
        }


def test_failure_in_a_thread_is_not_lost(monkeypatch):
    monkeypatch.setattr(blocks, 'threads_here', lambda: 3)

    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        blocks.in_blocks([(fail, (np.zeros(4 * blocks.BLOCK, np.float32),))])


def test_moments_that_have_vanished_are_zero_and_change_no_weight(monkeypatch):
    """Ten gradients, then none: after 960 steps the first moments would be subnormal."""
    few = {'shapes': ((100,), (3, 2), (70,)), 'zeros_after': 10}
    tidied = taken('bertadam', 960, **few)
    monkeypatch.setattr(optimization.Optimizer, '_tidy', lambda self: None)
    untidied = taken('bertadam', 960, **few)
    means = np.concatenate([value.ravel() for name, value in untidied[1].items() if name.endswith('/0')])
    assert (np.abs(means) < np.finfo(np.float32).tiny).all() and means.any()
    assert not any(value.any() for name, value in tidied[1].items() if name.endswith('/0'))
    assert all(value.tobytes() == untidied[0][name].tobytes() for name, value in tidied[0].items())
