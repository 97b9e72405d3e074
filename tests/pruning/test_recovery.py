"""Recovery keeps the best network that was measured."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.tiny import write_saved_model

from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.recovery import fit_is_worse
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.pretrain import Pretraining

SHORT = {'targets': (0.8,), 'alpha_steps': 1, 'recovery_steps': 6, 'batch_size': 4, 'evaluate_every': 2}
SHORT.update(warmup=0.0)


def losses_in_order(monkeypatch, *losses):
    """Let the evaluations of recovery come to these losses."""
    real, left = Pretraining.evaluate, list(losses)

    def evaluate(self, phase):
        measured = real(self, phase)
        return measured and {**measured, 'mlm_loss': left.pop(0)}

    monkeypatch.setattr(Pretraining, 'evaluate', evaluate)


@pytest.mark.parametrize('keep_best, step, loss', [(True, 4, 0.5), (False, None, 2.0)])
def test_the_best_measured_step_is_kept(pruned, tmp_path, monkeypatch, keep_best, step, loss):
    """Steps after it do not count."""
    losses_in_order(monkeypatch, 1.0, 0.5, 2.0)
    row = pruned(keep_best=keep_best, **SHORT)[1]
    assert row.kept_step == step and row.recovered.mlm_loss == loss
    saved = read_model(tmp_path / 'run' / 'round-1' / 'model')
    assert saved.progress.trained_steps == 1000 + (step or 6)
    assert ('step 4 of recovery' in (tmp_path / 'run' / 'pruning.md').read_text()) == keep_best


@pytest.mark.parametrize('after, worse', [(1.0, False), (1.1, True), (float('nan'), True), (None, False)])
def test_a_fit_without_a_finite_loss_is_worse_and_one_that_was_not_measured_is_not(after, worse):
    recipe, objective = SimpleNamespace(keep_best=True), SimpleNamespace(states_alone=False)
    run = SimpleNamespace(recipe=recipe, objective=objective, recovers=True, number=1, workers=Workers())
    measured = [None] * 2 if after is None else [SimpleNamespace(loss=loss) for loss in (1.0, after)]
    assert fit_is_worse(run, (None, None), measured) == worse


@pytest.mark.parametrize('keep_best', [True, False])
def test_a_recovery_that_harms_leaves_what_the_cut_left(pruned, tmp_path, keep_best):
    row = pruned(**SHORT, keep_best=keep_best, learning_rate=10.0)[1]
    cut, model = (read_model(tmp_path / 'run' / 'round-1' / name) for name in ('shrunk', 'model'))
    same = all(np.array_equal(value, model.parameters[name]) for name, value in cut.parameters.items())
    assert same == keep_best
    if keep_best:
        assert row.recovered == row.after_cut and row.kept_step == 0
        assert 'the network before recovery was kept' in (tmp_path / 'run' / 'pruning.md').read_text()
    else:
        assert row.recovered.mlm_loss > row.after_cut.mlm_loss


def test_every_round_says_how_long_its_network_was_trained(pruned, tmp_path):
    progress = {'step': 30, 'earlier_steps': 100, 'head_steps': 5}
    start = write_saved_model(tmp_path / 'start', progress=progress)
    more = {**SHORT, 'targets': (0.9, 0.8), 'recovery_steps': 2, 'rotate_heads': True, 'keep_best': False}
    pruned(model=start, **more)
    came_out = [read_model(tmp_path / 'run' / f'round-{number}' / 'model').progress for number in range(3)]
    assert [progress.trained_steps for progress in came_out] == [130, 132, 134]
    assert [progress.next_batch for progress in came_out] == [135, 137, 139]  # those of the heads were read


def test_recovery_may_follow_the_last_round_alone(pruned, tmp_path):
    more = {**SHORT, 'targets': (0.9, 0.8), 'recovery_steps': 2, 'recover_after': 'last', 'keep_best': False}
    pruned(model=write_saved_model(tmp_path / 'start', progress={'step': 30}), **more)
    places = [tmp_path / 'run' / f'round-{number}' for number in (1, 2)]
    for place, trained in zip(places, (0, 2)):
        cut, model = (read_model(place / name) for name in ('shrunk', 'model'))
        same = all(np.array_equal(value, model.parameters[name]) for name, value in cut.parameters.items())
        assert same == (not trained) and model.progress.trained_steps == 30 + trained
    first, last = (read_model(place / 'model').progress for place in places)
    assert first.measured == first.after_cut and last.next_batch == 30 + 2
