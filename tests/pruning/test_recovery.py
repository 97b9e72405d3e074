"""Recovery keeps the best network that was measured."""

import dataclasses

import numpy as np
import pytest
from helpers.pruned import recipe_for
from helpers.tiny import saved_model

from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs.progress import Progress
from gluon_optbert.training.pretrain import Pretraining

SHORT = {'targets': (0.8,), 'alpha_steps': 1, 'recovery_steps': 6, 'batch_size': 4, 'evaluate_every': 2}
SHORT.update(split_half=False, warmup=0.0)


def losses_in_order(monkeypatch, *losses):
    """Let the evaluations of recovery come to these losses."""
    real, left = Pretraining.evaluate, list(losses)

    def evaluate(self, phase):
        measured = real(self, phase)
        return measured and {**measured, 'mlm_loss': left.pop(0)}

    monkeypatch.setattr(Pretraining, 'evaluate', evaluate)


def test_the_best_measured_step_is_kept(model_directory, shards_directory, tmp_path, monkeypatch):
    arrays = []
    for keep_best, step, loss in ((True, 4, 0.5), (False, None, 2.0)):
        output = tmp_path / str(keep_best)
        with monkeypatch.context() as patched:
            losses_in_order(patched, 1.0, 0.5, 2.0)
            row = prune(recipe_for(shards_directory, model_directory, output, keep_best=keep_best, **SHORT))[
                1
            ]
        assert row.kept_step == step and row.recovered.mlm_loss == loss
        arrays.append(read_model(output / 'round-1' / 'model').parameters['word_embed.0.weight'])
        assert ('step 4 of recovery' in (output / 'pruning.md').read_text()) == keep_best
    assert not np.array_equal(*arrays)


@pytest.mark.parametrize('keep_best, learning_rate', [(True, 10.0), (False, 10.0), (True, 1e-30)])
def test_a_recovery_that_does_not_help_leaves_what_the_cut_left(pruned, tmp_path, keep_best, learning_rate):
    more = {**SHORT, 'keep_best': keep_best, 'learning_rate': learning_rate}
    row = pruned(**more)[1]
    cut, model = (read_model(tmp_path / 'run' / 'round-1' / name) for name in ('shrunk', 'model'))
    same = all(np.array_equal(value, model.parameters[name]) for name, value in cut.parameters.items())
    assert same == keep_best
    if keep_best:
        assert row.recovered == row.after_cut and row.kept_step == 0
        assert 'the network before recovery was kept' in (tmp_path / 'run' / 'pruning.md').read_text()
    else:
        assert row.recovered.mlm_loss > row.after_cut.mlm_loss


def test_steps_after_the_one_that_is_kept_do_not_count(shards_directory, tmp_path, monkeypatch):
    write_model(tmp_path / 'start', dataclasses.replace(saved_model(), progress=Progress(step=100)))
    losses_in_order(monkeypatch, 1.0, 0.5, 2.0)
    prune(recipe_for(shards_directory, tmp_path / 'start', tmp_path / 'run', **SHORT))
    assert read_model(tmp_path / 'run' / 'round-1' / 'model').progress.trained_steps == 104


def test_every_round_says_how_long_its_network_was_trained(shards_directory, tmp_path):
    start = dataclasses.replace(saved_model(), progress=Progress(step=30, earlier_steps=100, head_steps=5))
    write_model(tmp_path / 'start', start)
    more = {**SHORT, 'targets': (0.9, 0.8), 'rotate_heads': True, 'keep_best': False}
    prune(recipe_for(shards_directory, tmp_path / 'start', tmp_path / 'run', **more))
    came_out = [read_model(tmp_path / 'run' / f'round-{number}' / 'model').progress for number in range(3)]
    assert [progress.trained_steps for progress in came_out] == [130, 136, 142]
    assert [progress.next_batch for progress in came_out] == [135, 141, 147]  # those of the heads were read
