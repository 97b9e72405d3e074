"""tools/compare_losses.py: networks on the same held-out instances, or one line of what is wrong."""

import json

import compare_losses as tool
import pytest
from helpers.commands import call
from helpers.tiny import (
    network,
    random_alphas,
    random_parameters,
    vocabulary,
    write_saved_model,
    write_shards,
)

from gluon_optbert.architecture.heads import Head
from gluon_optbert.network.saved_model import SavedModel, write_model
from gluon_optbert.runs.files import sha256
from gluon_optbert.runs.progress import Progress


@pytest.fixture(scope='module')
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp('text') / 'shards')


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp('models')
    one = write_saved_model(place / 'one')
    gated = write_saved_model(place / 'gated', alphas=random_alphas(network()))
    other = write_saved_model(place / 'other', seed=1, progress={'step': 1, 'untrained': ['mlm', 'nsp']})
    return one, gated, other


def test_every_network_is_compared_with_the_first(shards, models, tmp_path):
    done = call('tools/compare_losses.py', *models, '--shards', shards, '--output', tmp_path / 'out.json')
    assert done.returncode == 0, done.stderr
    assert '| models' not in done.stdout and done.stdout.count('% |\n') == 3
    assert f'{models[2]}: its heads of pre-training were never trained\n16 held-out instances' in done.stdout
    values = json.loads((tmp_path / 'out.json').read_text())
    first, gated, other = values['networks']
    assert values['model_sha256'] == [sha256(model / 'model.params') for model in models] and values['commit']
    assert first['difference'] is None and first['instances'] == 16
    for row in (gated, other):
        of_totals = row['mlm_loss'] - first['mlm_loss']  # which are float32
        assert row['difference'] == pytest.approx(of_totals, abs=1e-6)
        assert row['standard_error_of_difference'] > 0
    assert f'| {gated["difference"]:+.3f} |' in done.stdout


def test_limit_and_batches_change_no_loss(shards, models, tmp_path):
    for size in ('3', '8'):
        words = [str(models[0]), '--shards', str(shards), '--limit', '7', '--batch-size', size]
        assert tool.main([*words, '--output', str(tmp_path / f'{size}.json')]) == 0
    (one,), (other,) = (json.loads((tmp_path / f'{size}.json').read_text())['networks'] for size in '38')
    assert one['instances'] == 7 and one['mlm_loss'] == pytest.approx(other['mlm_loss'], rel=1e-6)


def test_bad_command_lines_are_refused(shards, models, tmp_path, capsys):
    head = Head('classification', ('no', 'yes'))
    one = SavedModel(
        network(), random_parameters(network(), head=head), vocabulary(), {}, Progress(), head=head
    )
    write_model(tmp_path / 'task', one)
    (tmp_path / 'there.json').write_text('mine')
    for words, says in (
        ([str(models[0])], 'shards is missing'),
        (['--shards', str(shards)], 'MODELS is missing'),
        ([str(models[0]), '--shards', str(shards), '--limit', '0'], 'limit must be at least 1, found 0'),
        ([str(tmp_path / 'task'), '--shards', str(shards)], 'has the head of a task'),
        ([str(models[0]), '--shards', str(tmp_path)], 'pretrain/make_shards.py'),
        ([str(models[0]), '--shards', str(shards), '--output', str(tmp_path / 'there.json')], 'exists'),
    ):
        assert tool.main(words) == 2 and says in capsys.readouterr().err
    assert (tmp_path / 'there.json').read_text() == 'mine'
