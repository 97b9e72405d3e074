"""When a selection has settled, and how certain a ranking is."""

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.pruned import recipe_for
from helpers.tiny import contents, network

from gluon_optbert.architecture.rounds import Round
from gluon_optbert.cutting.selection import Selection
from gluon_optbert.pruning.gate_training import GateTraining, Settling, TrainedGates, overlap_of
from gluon_optbert.pruning.recipe import TaskPruneRecipe
from gluon_optbert.pruning.report import agreement_of, gates_record, readable
from gluon_optbert.runs.failures import Terminated
from gluon_optbert.runs.recipe import RecipeError, fill

SETTLING = Settling(window=10, overlap=1.0, earliest=1)


def half(scores):
    """The better half of the filters."""
    return Selection({'f0': np.sort(np.argsort(scores['f0'], kind='stable')[4:])}, 1.0, 1.0)


def training_with(settling, scores_at, select=half):
    """The training of gates whose scores of filters follow from the step."""
    model = SimpleNamespace(gates=SimpleNamespace(values=dict))
    inner = dict.fromkeys(('workers', 'losses', 'weights', 'batches', 'loss_sums', 'totals'))
    penalty = SimpleNamespace(scores=lambda _: {'f0': scores_at(training.step)})
    training = GateTraining(SimpleNamespace(model=model, **inner), penalty, settling, select)
    return training


def last_step(training, most=200):
    """The step after which training stops; None if it does not."""
    return next((training.step for _ in range(most) if training.finished()), None)


@pytest.mark.parametrize(
    'earliest, scores, stop',
    [
        (1, lambda step: np.arange(8.0), 12),  # the first check is at step 2
        (1, lambda step: np.roll(np.arange(8.0), step // 2), None),
        (60, lambda step: np.arange(8.0)[:: 1 if step > 40 else -1], 60),  # a change long ago is forgotten
    ],
    ids=['the same', 'changing', 'changed long ago'],
)
def test_a_selection_settles_when_it_has_stayed_the_same_over_a_window(earliest, scores, stop):
    assert last_step(training_with(Settling(10, 1.0, earliest), scores)) == stop


def test_an_overlap_is_the_share_of_the_larger_selection():
    one, other = ({'f0': np.arange(units), 'h': np.arange(3)} for units in (2, 5))
    assert overlap_of(one, other) == overlap_of(other, one) == 5 / 8 and overlap_of(one, one) == 1


def test_resumed_training_stops_at_the_same_step_with_the_same_record():
    def scores(step):
        return np.arange(8.0) if step > 20 else np.roll(np.arange(8.0), step // 2)

    whole, first, resumed = (training_with(SETTLING, scores) for _ in range(3))
    assert last_step(first, 25) is None
    resumed.recall(25, first.memory())
    assert last_step(whole) == last_step(resumed) == 32
    records = [
        gates_record(
            TrainedGates({'f0': np.linspace(0, 1, 8)}, {}, training), 1, half({'f0': np.arange(8.0)}), 'f'
        )
        for training in (whole, resumed)
    ]
    assert records[0] == records[1] and records[0].stopped == 'settled'


@pytest.mark.parametrize('window, learning_rate', [(5, 0.1), (7, 0.03), (50, 0.01), (3, 1.0), (1, 2.0)])
def test_the_first_check_that_may_end_training_ends_it(window, learning_rate):
    """With selections that never change; so what is refused is what could never stop early."""
    settling = Settling.of(window, 1.0, learning_rate)
    assert last_step(training_with(settling, lambda step: np.arange(8.0)), 1000) == settling.first


def ranking(signal):
    """The record of gates whose halves are a signal in noise of size one."""
    random = np.random.RandomState(0)
    kept = Selection({'f0': np.arange(50, 100)}, 1.0, 1.0)
    halves = [{'f0': 50 + signal * np.arange(100.0) + random.normal(size=100)} for _ in range(2)]
    training = training_with(None, None)
    trained = TrainedGates({'f0': np.linspace(0, 1.2, 100)}, {}, training)
    return gates_record(trained, 1, kept, 'f', halves)


def test_a_ranking_from_noise_is_said_to_be_noise_and_one_from_data_is_not():
    pure, clear = ranking(0.0), ranking(0.5)
    assert pure.noise() == ['f'] and abs(pure.split_half['f']) < 0.2
    assert clear.noise() == [] and clear.split_half['f'] > 0.9
    recipe, row = recipe_for('s', 'm', 'o'), Round(1, 1000, 1000, network())
    pages = [readable([row], recipe, gates=[record]) for record in (pure, clear)]
    assert 'Round 1: the ranking of f is noise' in pages[0] and 'is noise' not in pages[1]
    alphas = np.linspace(0, 1.2, 100)
    assert pure.units == {'f': 100} and pure.alpha_at_cut['f'] == alphas[49]
    assert (pure.closed['f'], pure.open['f']) == ((alphas < 0.05).sum(), (alphas > 0.95).sum())


def test_the_sign_of_a_gate_does_not_rank_it():
    alphas = {'f0': np.arange(1.0, 9.0)}
    signs = np.array([1, -1] * 4)
    correlation, _ = agreement_of(alphas, {'f0': signs * alphas['f0']}, ['f0'])
    assert correlation == pytest.approx(1) and agreement_of(alphas, alphas, []) == (None, None)


@pytest.mark.parametrize('widths', [(12, 12, 12), (40, 10, 10, 10, 10, 10, 10)])
def test_standard_error_is_the_deviation_of_rankings_by_chance(widths):
    """Of layers of any widths; the deviation of 500 draws is known to 3 %."""
    random, correlations = np.random.RandomState(0), []
    for _ in range(500):
        one, other = ({f'f{i}': random.rand(width) for i, width in enumerate(widths)} for _ in range(2))
        correlation, error = agreement_of(one, other, list(one))
        correlations.append(correlation)
    assert error == pytest.approx(np.std(correlations), rel=0.1)
    if len(set(widths)) == 1:
        assert error == pytest.approx((sum(widths) - len(widths)) ** -0.5)


def test_pruning_for_a_task_trains_gates_until_they_settle_unless_it_says_otherwise():
    values = {'model': 'm', 'output': 'o', 'alpha_limit': 90}
    with pytest.raises(RecipeError, match='can stop after step 100 at the earliest'):
        fill(TaskPruneRecipe, values)
    for more in ({'alpha_limit': 100}, {'alpha_steps': 90}, {'method': 'fisher'}):
        fill(TaskPruneRecipe, {**values, **more})


# settles before its last step
AUTO = {'targets': (0.8,), 'alpha_steps': 'auto', 'alpha_limit': 90, 'alpha_window': 5, 'alpha_overlap': 0.9}
AUTO.update(alpha_learning_rate=0.1, gamma=0.3, recovery_steps=1, batch_size=4)


def test_a_run_with_auto_stops_when_the_selection_has_settled(pruned, tmp_path, monkeypatch):
    """One that is stopped at that step trains no gates afterwards."""
    finished = GateTraining.finished

    def stops(training):
        if finished(training):
            os.kill(os.getpid(), signal.SIGTERM)
        return training.settled

    pruned('whole', **AUTO)
    monkeypatch.setattr(GateTraining, 'finished', stops)
    with pytest.raises(Terminated, match='gates: asked to stop at step'):
        pruned('parts', **AUTO)
    monkeypatch.undo()
    pruned('parts', **AUTO, resume=True)
    whole, parts = (contents(tmp_path / name / 'round-1') for name in ('whole', 'parts'))
    for name in ('gates.json', 'alphas.npz', 'model/model.params'):
        assert whole[name] == parts[name]
    record = json.loads((tmp_path / 'whole' / 'round-1' / 'gates.json').read_text())
    assert record['stopped'] == 'settled' and 10 <= record['steps'] < 90
    assert record['overlaps'][-1][0] == record['steps'] and record['overlaps'][-1][1] >= 0.9
    assert 'the selection had settled after' in (tmp_path / 'whole' / 'pruning.md').read_text()


def test_halves_that_see_other_batches_are_trained_and_leave_nothing_else(pruned, pruned_run, tmp_path):
    pruned(targets=[0.8], split_half=True)
    one, other = (output / 'round-1' for output in (tmp_path / 'run', pruned_run[0]))
    record, without = (json.loads((directory / 'gates.json').read_text()) for directory in (one, other))
    correlations = record['split_half']
    assert all(-1 <= correlations[letter] <= 1 for letter in 'hkvf') and correlations['f'] != 1
    empty = {'split_half': correlations, 'split_half_error': record['split_half_error']}
    assert {**without, **empty} == record and without['split_half'] == dict.fromkeys('hakvf')
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
    for name in ('alphas.npz', 'model/model.params'):
        assert (one / name).read_bytes() == (other / name).read_bytes()
