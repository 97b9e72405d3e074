"""Pruning runs that rotate heads and reconstruct layers: their files, resume, and what verify says."""

import os

import numpy as np
import pytest
from helpers.pruned import recipe_for, results
from helpers.tiny import contents

from gluon_optbert.deployment.verification import VerifyRecipe, described_scales, stages, stages_table, verify
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning import job
from gluon_optbert.pruning.algorithm import prune

REPAIRS = {'rotate_heads': True, 'reconstruct': True}
FOLDERS = ('rotated', 'shrunk', 'reconstructed')


@pytest.fixture(scope='module')
def repaired_run(shards_directory, model_directory, tmp_path_factory):
    """An uninterrupted run of two rounds with both: its directory and what `prune` returned."""
    output = tmp_path_factory.mktemp('repaired') / 'run'
    return output, prune(recipe_for(shards_directory, model_directory, output, **REPAIRS))


def test_every_stage_of_a_round_is_a_model_directory(repaired_run):
    output, rounds = repaired_run
    for number in (1, 2):
        place = output / f'round-{number}'
        assert set(os.listdir(place)) == {
            *FOLDERS,
            'alphas.npz',
            'scores.npz',
            'gates.json',
            'selection.json',
            'model',
        }
        shrunk, repaired = (read_model(place / name) for name in ('shrunk', 'reconstructed'))
        assert shrunk.architecture == repaired.architecture == rounds[number].architecture
        for part in ('ffn.ffn_2.weight', 'attention_cell.proj_key.weight', 'layer_norm.gamma'):
            name = f'encoder.transformer_cells.1.{part}'
            assert not np.array_equal(shrunk.parameters[name], repaired.parameters[name])


def test_pruning_page_has_a_column_for_the_reconstruction(repaired_run, pruned_run):
    output, rounds = repaired_run
    page = (output / 'pruning.md').read_text()
    assert '| after the cut | reconstructed | recovered |' in page
    assert f'{rounds[1].after_reconstruction.mlm_loss:.3f}' in page
    assert 'reconstructed' not in (pruned_run[0] / 'pruning.md').read_text()


def test_verify_proves_the_rotation_and_shows_every_stage(repaired_run):
    recipe = VerifyRecipe(run=repaired_run[0])
    for row in verify(recipe):
        assert 0 < row['rotation'] < 1e-5
    rows = stages(recipe)
    assert [row['network'] for row in rows] == ['before', 'cut', 'reconstructed', 'recovered'] * 2
    for first in (0, 4):
        before, cut, repaired, _ = rows[first : first + 4]
        assert before['error'] == 0 < repaired['error'] < cut['error']
    lines = stages_table(rows).splitlines()
    assert lines[0] == '| round | network | error of the last layer | MLM loss |' and len(lines) == 10
    scales = rows[0]['layer_norm_scales']
    largest = max(scales, key=lambda name: abs(np.log(scales[name])))
    assert len(scales) == 1 + 2 * 2
    sentence = described_scales(rows)[0]
    assert sentence.startswith('round 1: ') and sentence.endswith(f'{scales[largest]:.2f} ({largest})')


@pytest.mark.parametrize('folder', FOLDERS)
def test_run_that_ended_behind_a_stage_resumes_to_the_same_bits(
    repaired_run, shards_directory, model_directory, tmp_path, monkeypatch, folder
):
    class Killed(Exception):
        """Stands for whatever ends a process."""

    write = job.write_model

    def dies_afterwards(directory, *args, **more):
        write(directory, *args, **more)
        if directory.name == folder:
            raise Killed

    monkeypatch.setattr(job, 'write_model', dies_afterwards)
    with pytest.raises(Killed):
        prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', **REPAIRS))
    monkeypatch.undo()
    before = contents(tmp_path / 'run' / 'round-1' / folder)
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', resume=True, **REPAIRS))
    assert contents(tmp_path / 'run' / 'round-1' / folder) == before
    assert results(tmp_path / 'run') == results(repaired_run[0])
