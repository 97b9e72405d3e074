"""The training loop: passes, checkpoints, interruptions, and what ends a run."""

import concurrent.futures
import dataclasses
import itertools
import json
import os
import re
import signal
import types
import warnings

import mxnet as mx
import numpy as np
import pytest
from helpers.processor import needs_bfloat16
from helpers.pruned import before_step, interrupted_at
from helpers.trained import PHASE, Run, assert_same_bits

from gluon_optbert.runs.failures import Terminated
from gluon_optbert.runs.progress import Progress
from gluon_optbert.training import held_out, loop, pretrain as pretraining
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import losses_of
from gluon_optbert.training.loop import Reporter, backward, steps_within
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.optimization import Optimizer, Schedule, TrainingDiverged
from gluon_optbert.training.states import States


@pytest.mark.parametrize(
    'precision', ['float32', pytest.param('bfloat16', marks=[pytest.mark.slow, needs_bfloat16])]
)
def test_training_learns(shards, tmp_path, precision):
    """By heart: 64 instances are too few for more."""
    run = Run(shards, tmp_path, dropout=0.0, precision=precision)
    before = losses_of(run.model, shards['train'], run.workers, batch_size=32).measured
    phase = Phase(name='training', steps=100, batch_size=16, seed=1)
    run.fit(phase, schedule=Schedule(0.005, phase.steps, 10))
    after = losses_of(run.model, shards['train'], run.workers, batch_size=32).measured
    assert after.mlm_loss < before.mlm_loss - 0.5
    assert after.mlm_accuracy > before.mlm_accuracy + 0.2


def test_four_passes_equal_one(shards, tmp_path):
    """Plain gradient descent, whose steps are as close as the gradients; sums are taken in another order."""
    one, four = (
        Run(shards, tmp_path / str(accumulate), dropout=0.0, optimizer='sgd') for accumulate in (1, 4)
    )
    one.fit(dataclasses.replace(PHASE, steps=4))
    four.fit(dataclasses.replace(PHASE, steps=4, accumulate=4))
    for name in ('mlm', 'nsp', 'gradient_norm'):
        wanted = [record[name] for record in one.records()]
        np.testing.assert_allclose([record[name] for record in four.records()], wanted, rtol=1e-5)
    for name, value in four.values().items():
        np.testing.assert_allclose(value, one.values()[name], rtol=1e-5, atol=1e-6)


@needs_bfloat16
def test_four_passes_in_bfloat16_leave_the_sum_of_their_gradients(shards, tmp_path):
    """Apart from its own rounding, which is 2^-8: a lost pass would leave half of a gradient."""
    gradients = []
    for accumulate in (1, 4):
        run = Run(shards, tmp_path / str(accumulate), dropout=0.0, optimizer='sgd', precision='bfloat16')
        run.fit(
            Phase(name='training', steps=1, batch_size=8, accumulate=accumulate, seed=3),
            schedule=Schedule(0.0, 1),
        )
        gradients.append({name: parameter.grad().asnumpy() for name, parameter in run.trained.items()})
    whole = np.sqrt(sum(np.sum(np.square(value)) for value in gradients[0].values()))
    for name, value in gradients[0].items():
        assert np.linalg.norm(gradients[1][name] - value) <= 0.05 * max(
            np.linalg.norm(value), 1e-2 * whole
        ), name


@pytest.fixture(scope='module')
def whole(shards, tmp_path_factory):
    """An uninterrupted run with a record of every step, and what it measured at its end."""
    run = Run(shards, tmp_path_factory.mktemp('whole'))
    return run, run.fit(heldout=True)


def test_reported_losses_are_means_over_the_logged_steps(shards, tmp_path, whole):
    every, third = whole[0], Run(shards, tmp_path)
    third.fit(dataclasses.replace(PHASE, log_every=3))
    for name in ('mlm', 'nsp'):
        singles = [record[name] for record in every.records() if name in record]
        assert [record[name] for record in third.records()] == pytest.approx(
            [np.mean(singles[:3]), np.mean(singles[3:])]
        )
    assert [record['step'] for record in third.records()] == [3, 6]
    assert_same_bits(every.values(), third.values())


RESUMED = [('float32', False, optimizer) for optimizer in ('bertadam', 'adamw', 'lamb', 'sgd')]
RESUMED += [('float32', True, 'adam'), pytest.param('bfloat16', True, 'adam', marks=needs_bfloat16)]


@pytest.mark.parametrize('precision, gated, optimizer', RESUMED)
def test_resumed_equals_uninterrupted_bit_for_bit(shards, tmp_path, optimizer, gated, precision):
    """With dropout, an evaluation, and records that run over the checkpoint."""
    every = {'log_every': 3, 'checkpoint_every': 2, 'evaluate_every': 3}
    phase = dataclasses.replace(PHASE, steps=5, accumulate=1 if gated else 2, **every)
    schedule = Schedule(0.01, 5, 2)
    options = dict(gated=gated, optimizer=optimizer, precision=precision)
    whole = Run(shards, tmp_path / 'whole', **options)
    start = whole.values()
    measured = whole.fit(phase, schedule=schedule, heldout=True)
    with interrupted_at(5):
        Run(shards, tmp_path / 'parts', **options).fit(phase, schedule=schedule, heldout=True)
    # other weights: what counts is in the checkpoint, which has the gates alone
    again = Run(shards, tmp_path / 'parts', seed=0 if gated else 9, **options)
    assert States(tmp_path / 'parts' / 'states', 2).steps() == [2, 4]
    assert again.fit(phase, schedule=schedule, heldout=True) == measured
    assert_same_bits(again.values(), whole.values())
    assert again.records() == whole.records()
    assert {array.dtype for array in again.optimizer.state().values()} <= {np.float32}
    assert all(
        np.abs(value - start[name]).max() > 0 for name, value in whole.values().items() if 'key' not in name
    )


@pytest.mark.parametrize('optimizer', ['adamw', 'lamb'])
def test_optimizer_that_went_further_than_its_checkpoint_goes_on_as_a_fresh_one(
    shards, tmp_path, caplog, optimizer
):
    """In one process, such as that of a notebook; the third step is taken twice, and nothing is said."""
    phase = dataclasses.replace(PHASE, checkpoint_every=2)
    whole, run = (Run(shards, tmp_path / name, optimizer=optimizer) for name in ('whole', 'parts'))
    whole.fit(phase)
    with interrupted_at(4):
        run.fit(phase)
    run.fit(phase)
    assert_same_bits(run.values(), whole.values())
    assert not caplog.messages


def test_checkpoint_of_another_network_is_refused(shards, tmp_path):
    phase = Phase(name='training', steps=3, batch_size=8, checkpoint_every=1)
    Run(shards, tmp_path).fit(phase)
    other = Run(shards, tmp_path, optimizer='sgd', gated=True)
    other.optimizer = Optimizer(other.trained, 'adam', workers=other.workers)
    with pytest.raises(ValueError, match='missing or of another shape'):
        other.fit(phase)


def test_no_more_checkpoints_are_kept_than_asked_for_but_the_best_is(shards, tmp_path):
    phase = Phase(name='training', steps=6, batch_size=8, checkpoint_every=1, keep=2)
    Run(shards, tmp_path / 'plain').fit(phase)
    assert States(tmp_path / 'plain' / 'states', 2).steps() == [4, 5]
    run = Run(shards, tmp_path / 'best')
    states = States(tmp_path / 'best' / 'states', 1)
    run.fit(Phase(name='training', steps=1, batch_size=8))
    for step in (1, 2, 3):
        states.save(step, run.optimizer, Progress(best_step=1))
    assert states.steps() == [1, 3]


def test_damaged_checkpoints_give_way_to_an_older_one_and_go(shards, tmp_path, caplog):
    """Once there is another good one."""
    phase = Phase(name='training', steps=7, batch_size=8, seed=3, log_every=1, checkpoint_every=2, keep=2)
    whole = Run(shards, tmp_path / 'whole')
    whole.fit(phase)
    run = Run(shards, tmp_path / 'parts')
    states = States(tmp_path / 'parts' / 'states', 3)
    with interrupted_at(7):
        run.fit(dataclasses.replace(phase, keep=3))
    for step in (4, 6):
        (states.directory / f'step-{step:08d}' / 'state.params').write_bytes(b'rot')
    asked = before_step(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with asked, pytest.raises(Terminated, match='at step 3'):  # the first behind the checkpoint of two
        Run(shards, tmp_path / 'parts').fit(phase)
    assert 'step-00000006' in caplog.text and 'trying an older checkpoint' in caplog.text
    assert states.steps() == [2, 3]
    again = Run(shards, tmp_path / 'parts')
    again.fit(phase)
    assert_same_bits(again.values(), whole.values())


def test_gradient_that_is_not_finite_ends_the_run_and_names_the_step(shards, tmp_path):
    run = Run(shards, tmp_path)
    weight = run.trained['encoder.transformer_cells.0.proj.weight']

    def spoil():
        values = weight.data().asnumpy()
        values[0, 0] = np.inf
        weight.set_data(mx.nd.array(values))

    phase = Phase(name='training', steps=6, batch_size=8, log_every=1, checkpoint_every=2)
    with before_step(4, spoil), pytest.raises(TrainingDiverged, match='step 4: the gradient is nan'):
        run.fit(phase)
    sound = Run(shards, tmp_path)
    assert States(tmp_path / 'states', 2).resume(sound.optimizer, sound.workers, what='').step == 2
    assert all(np.isfinite(array).all() for array in sound.values().values())


@pytest.mark.parametrize(
    'step, how', [(6, signal.SIGTERM), (3, signal.SIGINT)], ids=['at the last step', 'by Ctrl-C']
)
def test_asked_to_stop_it_saves_its_state_and_can_be_resumed(shards, tmp_path, whole, heeded, step, how):
    before, said = signal.getsignal(how), f'training: asked to stop at step {step}; .* --resume'
    with before_step(step, lambda: os.kill(os.getpid(), how)), pytest.raises(Terminated, match=said):
        Run(shards, tmp_path).fit(heldout=True)
    assert signal.getsignal(how) is before
    assert States(tmp_path / 'states', 2).steps() == [step]
    again, (uninterrupted, measured) = Run(shards, tmp_path), whole
    assert again.fit(heldout=True) == measured
    assert_same_bits(again.values(), uninterrupted.values())
    assert again.records() == uninterrupted.records()


def test_records_of_other_phases_survive_a_rewind_and_broken_lines_do_not(tmp_path):
    path = tmp_path / 'metrics.jsonl'
    lines = [
        {'phase': 'gates', 'round': 1, 'step': 9},
        {'phase': 'training', 'round': 1, 'step': 9},
        {'phase': 'training', 'round': 2, 'step': 1},
        {'phase': 'training', 'round': 2, 'step': 2},
    ]
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines) + '{"phase": "train')
    Reporter(path, Workers()).rewind(Phase(name='training', steps=5, batch_size=1, notes={'round': 2}), 1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines[:3]


def test_lines_say_the_step_of_how_many_the_place_and_the_time_left(shards, tmp_path, capsys):
    phase = dataclasses.replace(PHASE, place='round 1/4', log_every=3)
    with interrupted_at(5):
        Run(shards, tmp_path).fit(dataclasses.replace(phase, checkpoint_every=2))
    first, line = capsys.readouterr().err.splitlines()
    assert first == 'training | round 1/4 | 6 steps | 8 sequences a step'
    assert re.match(r'training \| step 3/6 \| round 1/4 \| \d+ s left \| mlm \d', line)
    Run(shards, tmp_path).fit(phase)
    first, last = capsys.readouterr().err.splitlines()
    assert first == 'training | round 1/4 | step 4/6 to go on from | 8 sequences a step'
    assert re.match(r'training \| step 6/6 \| round 1/4 \| mlm \d', last)


def test_dropout_of_seeds_workers_and_steps_is_drawn_by_generators_of_their_own(
    shards, tmp_path, monkeypatch
):
    """MXNet has 1,024 generators on a CPU; neighbouring seeds share all but one of them."""
    seeds, draw = [], mx.random.seed
    monkeypatch.setattr(mx.random, 'seed', lambda seed: (seeds.append(seed), draw(seed)))
    run = Run(shards, tmp_path)
    objective = pretraining.Pretraining(run.model, run.workers, shards['train'])
    batch = next(objective.batches(PHASE, 0))
    for seed, run.workers.rank, first, step in itertools.product((3, 4), (0, 1), (0, 3), range(3)):
        phase = dataclasses.replace(PHASE, seed=seed, first_batch=first)  # of one phase after another
        backward(objective, run.trained, batch, phase, step)
    assert len(seeds) == 24 and np.diff(sorted(seeds)).min() > 1024


@pytest.mark.parametrize('every, steps', [(0, 60), (20, 40)])
def test_steps_that_fit_into_a_time_leave_room_for_their_evaluations(monkeypatch, every, steps):
    """A step takes a second, the first one and an evaluation ten. Five steps and an evaluation are timed, and
    the last evaluation is kept free.
    """
    clock, taken = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now), []

    def step(*args):
        taken.append(args)
        clock.now += 10.0 if len(taken) == 1 else 1.0

    def evaluate(phase):
        clock.now += 10.0

    monkeypatch.setattr(loop, 'time', clock)
    monkeypatch.setattr(loop, '_step', step)
    batch = types.SimpleNamespace(input_ids=np.zeros((2, 8)))
    batches = {'batches': lambda phase, start: (batch for _ in itertools.count())}
    objective = types.SimpleNamespace(workers=Workers(), evaluate=evaluate, **batches)
    phase = dataclasses.replace(PHASE, evaluate_every=every)
    assert steps_within(10 + 4 + 10 + 60 + 10.5, objective, None, phase) == (steps, 1.0)


def test_held_out_data_take_no_more_memory_than_a_pass(shards, tmp_path, monkeypatch):
    run, sizes, losses = Run(shards, tmp_path), [], pretraining.pretraining_losses
    for module in (pretraining, held_out):
        monkeypatch.setattr(
            module,
            'pretraining_losses',
            lambda model, loss, batch, **more: (
                sizes.append(len(batch.input_ids[more.get('rows', slice(None))])),
                losses(model, loss, batch, **more),
            )[1],
        )
    run.fit(dataclasses.replace(PHASE, steps=1, accumulate=4, evaluate_every=1), heldout=True)
    assert sizes == [2] * (4 + 16 // 2)


def test_step_without_anything_to_predict_trains_on_the_rest(shards, tmp_path, monkeypatch):
    """With whole words, an instance may have no word that is short enough."""
    real = pretraining.Pretraining.batches

    def batches(self, phase, start):
        for batch in real(self, phase, start):
            nothing = np.zeros_like(batch.masked_weights)
            yield dataclasses.replace(batch, masked_weights=nothing, masked_total=0)

    monkeypatch.setattr(pretraining.Pretraining, 'batches', batches)
    run = Run(shards, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter('error', RuntimeWarning)  # NumPy's of a division by nothing
        run.fit(dataclasses.replace(PHASE, steps=1))
    assert all(np.isfinite(value).all() for value in run.values().values())
    (record,) = run.records()
    assert record['mlm'] == 0 and record['nsp'] > 0


def test_training_in_a_thread_is_training(shards, tmp_path):
    one, other = (Run(shards, tmp_path / name, dropout=0.0) for name in ('one', 'other'))
    phase = dataclasses.replace(PHASE, steps=2)
    one.fit(phase)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(other.fit, phase).result()
    assert_same_bits(one.values(), other.values())
