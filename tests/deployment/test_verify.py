"""tools/verify.py: it passes what is equal, and fails loudly at what is not."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import yaml
from helpers.commands import call, refused
from helpers.pruned import recipe_for
from helpers.tiny import network, saved_model, write_saved_model

from gluon_optbert.architecture.parameters import LETTERS
from gluon_optbert.cutting.selection import read_alphas
from gluon_optbert.deployment import verify as verify_module
from gluon_optbert.deployment.export import TOLERANCE, NotEqual
from gluon_optbert.deployment.verify import VerifyRecipe, read_selection, table, verify
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.methods import METHODS


@pytest.fixture
def finished(pruned_run):
    """A run of two rounds; only read."""
    return pruned_run[0]


def recipe_of(output):
    return VerifyRecipe(run=output, batches=1, batch_size=4)


def test_every_round_and_every_width_is_within_the_tolerance(finished):
    rows = verify(recipe_of(finished))
    assert [row['round'] for row in rows] == [1, 2]
    assert all(set(row) == {'round', 'h', 'a', 'k', 'v', 'f', 'all', 'export'} for row in rows)
    assert all(0 <= row[name] <= TOLERANCE for row in rows for name in row if name != 'round')
    assert '| 2 |' in table(rows)


def test_runs_that_drop_layers_verify(pruned, tmp_path):
    pruned(method='layers', rounds=1, target=0.8, drop='first')
    (row,) = verify(recipe_of(tmp_path / 'run'))
    assert row['all'] <= TOLERANCE


def run_of(directory, start, shards_directory, method, **more):
    """A finished run of one method on the widths that go with it."""
    values = {'prune': METHODS[method].only or LETTERS, 'target': 0.92, **more}
    prune(recipe_for(shards_directory, start, directory, method=method, checkpoint_every=0, **values))
    return directory


@pytest.mark.parametrize(
    'method',
    [name if name in ('alpha', 'heads') else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_runs_of_every_method_from_a_network_without_some_blocks_verify(tmp_path, shards_directory, method):
    start = write_saved_model(tmp_path / 'start', architecture=network((2, 4, 4, 0), (2, 4, 4, 16)))
    output = run_of(tmp_path / 'run', start, shards_directory, method, rounds=1)
    assert read_model(output / 'round-1' / 'model').architecture.layers[0].f == 0
    assert [row['all'] <= TOLERANCE for row in verify(recipe_of(output))] == [True]


def test_rounds_behind_one_that_dropped_a_block_verify(tmp_path, shards_directory):
    weights = saved_model(network(*[(2, 4, 4, 16)] * 3))
    name = 'encoder.transformer_cells.1.ffn.ffn_'
    for parameter in (name + '1.weight', name + '1.bias', name + '2.weight'):
        weights.parameters[parameter] *= np.float32(0.01)  # so that the magnitudes drop its block first
    write_model(tmp_path / 'start', weights)
    more = {'prune': 'f', 'drop_blocks': True, 'target': 0.6}
    output = run_of(tmp_path / 'run', tmp_path / 'start', shards_directory, 'magnitude', **more)
    models = [read_model(output / f'round-{number}' / 'model').architecture for number in (0, 1, 2)]
    blocks = [sum(layer.f > 0 for layer in architecture.layers) for architecture in models]
    assert blocks[0] > blocks[1] >= blocks[2]
    assert [row['all'] <= TOLERANCE for row in verify(recipe_of(output))] == [True, True]


def scale(place, name, factor):
    """Multiply a parameter of a model directory."""
    saved = read_model(place)
    parameters = {**saved.parameters, name: saved.parameters[name] * np.float32(factor)}
    write_model(place, dataclasses.replace(saved, parameters=parameters), replace=True)


def first_round(finished, place):
    """A copy of a run, as it was after its first round."""
    return shutil.copytree(finished, place, ignore=shutil.ignore_patterns('round-2'))


def test_a_change_after_the_cut_is_found(finished, tmp_path):
    output = first_round(finished, tmp_path / 'weight')
    name = 'encoder.transformer_cells.1.attention_cell.proj_value.weight'
    scale(output / 'round-1' / 'shrunk', name, 1.001)
    with pytest.raises(NotEqual, match=r'\| 1 \|'):
        verify(recipe_of(output))
    output = first_round(finished, tmp_path / 'gate')
    alphas, _ = read_alphas(output / 'round-1' / 'alphas.npz')
    kept = read_selection(output / 'round-1' / 'selection.json').kept['f0'][0]
    alphas['f0'][kept] *= 1.1
    np.savez(output / 'round-1' / 'alphas.npz', **alphas)
    result = call('tools/verify.py', output, '--batches', 1)
    assert result.returncode == 1 and 'is above 1e-05' in result.stderr


def test_rounding_is_told_from_an_error(tmp_path, shards_directory, monkeypatch):
    weights = saved_model(network(h=24))
    # it rounds much: what enters its last LayerNorm is large beside what varies in it
    weights.parameters['encoder.transformer_cells.1.ffn.ffn_2.bias'][:] = 500
    write_model(tmp_path / 'start', weights)
    output = run_of(tmp_path / 'run', tmp_path / 'start', shards_directory, 'random', target=0.7, rounds=1)
    machine = {'threads': '2', 'workers_of_host': 2, 'cores': 2}
    (output / 'origin.json').write_text(json.dumps([{'machine': machine}]))
    words = ('tools/verify.py', output, '--batches', 1, '--output', tmp_path / 'verified.json')
    result = call(*words)
    written = json.loads((tmp_path / 'verified.json').read_text())
    assert [row['network'] for row in written['stages']] == ['before', 'cut', 'recovered']
    assert written['batches'] == 1 and written['commit']
    assert 'warning: 2 workers of a host had 2 threads each' in result.stderr
    assert '| 1 | recovered | ' in result.stdout
    (row,) = written['differences']
    found = {name: row[name] for name in row['rounding']}
    assert 'all' in found and all(TOLERANCE < value < 1e-3 for value in found.values())
    assert result.returncode == 0 and 'all within 1e-05 or rounding' in result.stdout, result.stderr
    assert 'verified: 1 round' in result.stdout and 'round 1: the difference of all, ' in result.stdout
    monkeypatch.setattr(verify_module, 'verify', None)  # nothing is computed before the output is free
    assert 'verified.json: exists' in refused(*words)
    scale(output / 'round-1' / 'shrunk', 'encoder.transformer_cells.1.layer_norm.gamma', 1.01)
    with pytest.raises(NotEqual, match='and more than rounding'):
        verify(recipe_of(output))


def test_a_spoilt_run_directory_is_one_clear_line(finished, tmp_path):
    output = first_round(finished, tmp_path / 'run')
    selection, alphas = output / 'round-1' / 'selection.json', output / 'round-1' / 'alphas.npz'
    for spoil in (
        lambda: selection.write_text(selection.read_text()[:-20]),
        lambda: alphas.write_bytes(b'PK\x03\x04 no npz'),
        alphas.unlink,
    ):
        spoil()
        result = call('tools/verify.py', output)
        assert result.returncode == 2
        assert result.stderr.count('error:') == 1 and 'Traceback' not in result.stderr
        assert 'round-1' in result.stderr


def test_text_that_is_not_where_the_run_says_is_refused_with_the_flag_that_helps(finished, tmp_path):
    output = first_round(finished, tmp_path / 'run')
    settings = yaml.safe_load((output / 'recipe.yaml').read_text())
    (output / 'recipe.yaml').write_text(yaml.safe_dump({**settings, 'shards': str(tmp_path / 'moved')}))
    with pytest.raises(FileNotFoundError, match='moved.*give --shards'):
        verify(recipe_of(output))
    del settings['shards']  # as of a run for a task, which has a file of inputs
    (output / 'recipe.yaml').write_text(yaml.safe_dump(settings))
    with pytest.raises(FileNotFoundError, match='inputs.npz: no such file.*give --shards'):
        verify(recipe_of(output))


def test_what_is_no_run_and_more_batches_than_it_has_instances_for_are_refused(finished, tmp_path):
    for path, message in (
        (tmp_path / 'nowhere', 'nowhere: no such directory'),
        (finished / 'round-1' / 'model', 'model is a model directory; give the run'),
        (tmp_path, 'no finished round to verify'),
        (finished, 'held-out instances, too few for --batches 1000 of --batch-size 4'),
    ):
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            verify(VerifyRecipe(run=path, batches=1000, batch_size=4))


def test_gates_of_table_5_are_compared_with_the_network_that_they_are_folded_into(pruned, tmp_path):
    pruned(h_gate='table5', alpha_learning_rate=0.2, rounds=1)
    rows = verify(recipe_of(tmp_path / 'run'))
    assert 0 < rows[0]['fold'] <= TOLERANCE and rows[0]['h'] <= TOLERANCE and '| fold |' in table(rows)
    with np.load(str(tmp_path / 'run' / 'round-1' / 'alphas.npz')) as stored:
        assert 'h_table5' in stored.files and 'h' not in stored.files
        alphas = {key: stored[key] for key in stored.files}
    alphas['h'] = alphas.pop('h_table5')
    np.savez(tmp_path / 'run' / 'round-1' / 'alphas.npz', **alphas)
    with pytest.raises(NotEqual):  # as gates of the stream they do not lead to what was cut
        verify(recipe_of(tmp_path / 'run'))
