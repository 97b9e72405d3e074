"""Recovery keeps the best network that was measured."""

import dataclasses

import numpy as np
import pytest
from helpers.tiny import saved_model

from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.progress import Progress
from gluon_optbert.training.pretrain import Pretraining


def recipe_of(model_directory, shards_directory, output, **changes):
    values = {'targets': (0.8,), 'alpha_steps': 1, 'recovery_steps': 6, 'batch_size': 4, 'evaluate_every': 2}
    recipe = PruneRecipe(model=model_directory, shards=shards_directory, output=output)
    return recipe.replace(**{**values, **changes})


def losses_in_order(monkeypatch, *losses):
    """Let the evaluations of recovery come to these losses."""
    real, left = Pretraining.evaluate, list(losses)

    def evaluate(self, phase):
        measured = real(self, phase)
        return measured and {**measured, 'mlm_loss': left.pop(0)}

    monkeypatch.setattr(Pretraining, 'evaluate', evaluate)


def test_the_best_measured_step_is_kept(model_directory, shards_directory, tmp_path, monkeypatch):
    short = recipe_of(
        model_directory, shards_directory, tmp_path / 'short', learning_rate=1e-3, warmup=0.0, keep_best=False
    )
    losses_in_order(monkeypatch, 1.0, 0.5, 2.0)
    kept = prune(dataclasses.replace(short, output=tmp_path / 'kept', keep_best=True))[1]
    assert kept.kept_step == 4 and kept.recovered.mlm_loss == 0.5
    monkeypatch.undo()
    losses_in_order(monkeypatch, 1.0, 0.5, 2.0)
    last = prune(dataclasses.replace(short, output=tmp_path / 'last'))[1]
    assert last.kept_step is None and last.recovered.mlm_loss == 2.0
    arrays = [
        read_model(tmp_path / name / 'round-1' / 'model').parameters['word_embed.0.weight']
        for name in ('kept', 'last')
    ]
    assert not np.array_equal(*arrays)
    assert 'step 4 of recovery' in (tmp_path / 'kept' / 'pruning.md').read_text()


@pytest.mark.parametrize('keep_best', [True, False])
def test_a_recovery_that_harms_leaves_what_the_cut_left(
    model_directory, shards_directory, tmp_path, keep_best
):
    recipe = recipe_of(
        model_directory,
        shards_directory,
        tmp_path / 'run',
        learning_rate=10.0,
        warmup=0.0,
        keep_best=keep_best,
    )
    row = prune(recipe)[1]
    cut, model = (read_model(tmp_path / 'run' / 'round-1' / name) for name in ('shrunk', 'model'))
    same = all(np.array_equal(value, model.parameters[name]) for name, value in cut.parameters.items())
    assert same == keep_best
    if keep_best:
        assert row.recovered == row.after_cut and row.kept_step == 0
        assert 'the network before recovery was kept' in (tmp_path / 'run' / 'pruning.md').read_text()
    else:
        assert row.recovered.mlm_loss > row.after_cut.mlm_loss


def test_a_recovery_that_changes_nothing_leaves_what_the_cut_left(
    model_directory, shards_directory, tmp_path
):
    row = prune(recipe_of(model_directory, shards_directory, tmp_path / 'run', learning_rate=1e-30))[1]
    assert row.recovered == row.after_cut and row.kept_step == 0


def test_steps_after_the_one_that_is_kept_do_not_count(shards_directory, tmp_path, monkeypatch):
    write_model(tmp_path / 'start', dataclasses.replace(saved_model(), progress=Progress(step=100)))
    losses_in_order(monkeypatch, 1.0, 0.5, 2.0)
    prune(recipe_of(tmp_path / 'start', shards_directory, tmp_path / 'run'))
    assert read_model(tmp_path / 'run' / 'round-1' / 'model').progress.trained_steps == 104


def test_every_round_says_how_long_its_network_was_trained(shards_directory, tmp_path):
    start = dataclasses.replace(saved_model(), progress=Progress(step=30, earlier_steps=100))
    write_model(tmp_path / 'start', start)
    recipe = recipe_of(tmp_path / 'start', shards_directory, tmp_path / 'run', targets=(0.9, 0.8))
    prune(recipe.replace(rotate_heads=True))
    steps = [
        read_model(tmp_path / 'run' / f'round-{number}' / 'model').progress.trained_steps
        for number in range(3)
    ]
    assert steps == [130, 136, 142]
