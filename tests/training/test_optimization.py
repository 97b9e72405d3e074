"""Schedules, and what an optimizer does to gradients: it clips them, decays weights, and skips what
overflows.
"""

import mxnet as mx
import numpy as np
import pytest
from helpers.pruned import interrupted_at
from helpers.trained import Run, assert_same_bits
from mxnet import autograd, gluon

from gluon_optbert.pruning.penalty import ProximalPenalty
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.optimization import LossScale, Optimizer, Schedule, TrainingDiverged


@pytest.mark.parametrize(
    'schedule, wanted',
    [
        (Schedule(1.0, 10, 4), [0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]),
        (Schedule(0.5, 4, 2, decay=False), [0.25, 0.5, 0.5, 0.5]),
        (Schedule(1.0, 1, 0), [1]),
        (Schedule(1.0, 1, 1), [1]),
        (Schedule(1.0, 3, 3), [1 / 3, 2 / 3, 1]),
    ],
)
def test_schedule_rises_to_its_peak_and_falls_to_zero(schedule, wanted):
    assert [schedule(step) for step in range(len(wanted))] == pytest.approx(wanted)


def test_clipping_scales_all_gradients_to_the_norm(shards, tmp_path):
    """One step of plain gradient descent: with a clipped norm it is as long as the learning rate times that
    norm.
    """
    run = Run(shards, tmp_path, dropout=0.0, optimizer='sgd', clip_norm=0.01)
    before = run.values()
    run.fit(Phase(name='training', steps=1, batch_size=8, log_every=1), schedule=Schedule(2.0, 1))
    moved = np.sqrt(
        sum(np.square(value - before[name], dtype=np.float64).sum() for name, value in run.values().items())
    )
    assert run.records()[0]['gradient_norm'] > 1
    assert moved == pytest.approx(2.0 * 0.01, rel=1e-3)


def test_gradient_norm_is_exact_over_millions_of_elements():
    """Sums of float32, one after the other, are not."""
    parameter = gluon.Parameter('weight', shape=(4096, 1024))
    parameter.initialize()
    with autograd.record():
        loss = (parameter.data() * mx.nd.random.uniform(shape=parameter.shape)).sum()
    loss.backward()
    wanted = np.linalg.norm(parameter.grad().asnumpy().astype(np.float64))
    norm = Optimizer({'weight': parameter}, 'sgd', workers=Workers()).update(0.1, step=1)
    assert norm == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize('beta2', [None, 0.9])
def test_adamw_takes_the_steps_of_pytorchs(beta2):
    """By its formula, in float64; gradients as small as epsilon, so that epsilon counts."""
    random = np.random.RandomState(1)
    weight = random.standard_normal(5)
    parameter = gluon.Parameter('weight', shape=(5,))
    parameter.initialize()
    parameter.set_data(mx.nd.array(weight))
    settings = {'weight_decay': 0.1, 'decayed': ['weight'], 'beta2': beta2}
    optimizer = Optimizer({'weight': parameter}, 'adamw', **settings, workers=Workers())
    first, second, beta2 = np.zeros(5), np.zeros(5), beta2 or 0.999
    for step in range(1, 6):
        gradient = random.standard_normal(5) * 1e-6
        with autograd.record():
            loss = (parameter.data() * mx.nd.array(gradient)).sum()
        loss.backward()
        optimizer.update(0.01, step=step)
        first, second = 0.9 * first + 0.1 * gradient, beta2 * second + (1 - beta2) * gradient**2
        direction = first / (1 - 0.9**step) / (np.sqrt(second / (1 - beta2**step)) + 1e-6)
        weight = weight - 0.01 * (direction + 0.1 * weight)
    np.testing.assert_allclose(parameter.data().asnumpy(), weight, rtol=2e-6)  # of float32, over five steps


def overflowing(gate, step):
    """A loss scale whose gradient overflows in one step."""

    class Overflowing(LossScale):
        def after(self, overflow):
            super().after(overflow)
            if self.state()[1] == step:
                self.value = gate

    return Overflowing(2.0, patience=100)


def test_an_overflow_begins_the_count_of_sound_steps_anew():
    scale, states = LossScale(8.0, patience=3), []
    for overflow in (False, False, True, False, False, False):
        scale.after(overflow)
        states.append(scale.state())
    assert states == [[8, 1], [8, 2], [4, 0], [4, 1], [4, 2], [8, 0]]


def test_a_scaled_loss_takes_the_same_steps(shards, tmp_path):
    """A power of two, so bit for bit."""
    plain, scaled = (
        Run(shards, tmp_path / str(scale is None), scale=scale)
        for scale in (None, LossScale(2.0**10, patience=2))
    )
    plain.fit()
    scaled.fit()
    assert scaled.optimizer.scale.state() == [2.0**13, 0]
    assert_same_bits(scaled.values(), plain.values())
    assert scaled.records() == plain.records()


@pytest.mark.parametrize('optimizer', ['bertadam', 'lamb'])
def test_an_overflow_skips_its_step_and_halves_the_scale_and_resuming_knows(shards, tmp_path, optimizer):
    phase = Phase(name='training', steps=6, batch_size=8, seed=3, log_every=1, checkpoint_every=1)

    def run(name):
        return Run(shards, tmp_path / name, optimizer=optimizer, scale=overflowing(2.0**132, 2))

    whole = run('whole')
    whole.fit(phase)
    skipped = [record['step'] for record in whole.records() if record['gradient_norm'] is None]
    assert skipped[0] == 3 and whole.optimizer.scale.value == 2.0 ** (132 - len(skipped))
    assert whole.optimizer.counters()[0] == 6 - len(skipped)
    with interrupted_at(5):
        run('parts').fit(phase)
    again = run('parts')
    again.fit(phase)
    assert_same_bits(again.values(), whole.values())
    assert again.records() == whole.records()
    assert again.optimizer.scale.state() == whole.optimizer.scale.state()


def test_a_step_that_is_skipped_takes_no_proximal_step(shards, tmp_path):
    run = Run(shards, tmp_path, gated=True, optimizer='sgd', scale=LossScale(2.0**140))
    run.penalty = ProximalPenalty(1.0, run.penalty.weights)
    before = run.values()
    run.fit(Phase(name='gates', steps=1, batch_size=8, log_every=1))
    assert run.records()[0]['gradient_norm'] is None
    assert_same_bits(run.values(), before)


def test_a_gradient_that_overflows_at_every_scale_is_no_matter_of_the_scale(shards, tmp_path):
    run = Run(shards, tmp_path, scale=LossScale(4.0))
    for parameter in run.trained.values():
        parameter.data()[:] = np.nan
    with pytest.raises(TrainingDiverged, match='step 3'):
        run.fit()
    assert run.optimizer.scale.value == 0.5
