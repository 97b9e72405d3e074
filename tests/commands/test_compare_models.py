"""tools/compare_models.py: its pictures, numbers and page say what was measured."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from helpers.commands import refused, succeed
from helpers.pages import check_page
from helpers.tiny import network, write_saved_model

from gluon_optbert.runs.files import sha256

UNDIVIDED = network((2, 4, 4, 16), (1, 2, 6, 0), (2, 4, 4, 5), h=6)


def named(directory):
    """Name on the pages."""
    return f'{directory.parent.name}/{directory.name}'


@pytest.fixture(scope='module')
def task(tmp_path_factory):
    """Sentences with capitals, and whether they hold a z."""
    generator, path = np.random.RandomState(0), tmp_path_factory.mktemp('data') / 'task.tsv'
    lines = [
        f'{first.upper()} {" ".join(generator.choice(list("abcdef"), 5))} {end * 2}\t{end == "z"}'
        for first, end in zip(generator.choice(list('abcd'), 80), generator.choice(list('yz'), 80))
    ]
    path.write_text(
        'sentence\tlabel\n' + '\n'.join(lines).replace('yy', 'y y').replace('zz', 'z z') + '\n',
        encoding='utf-8',
    )
    return path


@pytest.fixture(scope='module')
def compared(tmp_path_factory, model_directory, task):
    """A comparison of a network with one of other widths."""
    directory = tmp_path_factory.mktemp('models')
    other = write_saved_model(directory / 'undivided', architecture=UNDIVIDED, seed=1)
    words = [model_directory, other, '--data', task, '--words', 100, '--output', directory / 'comparison']
    succeed('tools/compare_models.py', *words)
    return directory / 'comparison'


def test_numbers_are_of_every_layer_and_network(compared, model_directory):
    result = json.loads((compared / 'comparison.json').read_text())
    assert set(result['cka']) == {'undivided', 'undivided, random weights'}
    for kinds in result['cka'].values():
        assert np.shape(kinds['attention']) == (2, 3) and np.shape(kinds['layers']) == (3, 4)
    assert result['tokens'] > 500 and result['sequences'] == 80 and result['recipe']['words'] == 100
    assert {row['network'] for row in result['probes']} == {
        f'{name}{what}' for name in (named(model_directory), 'undivided') for what in ('', ', random weights')
    }
    assert len(result['probes']) == 3 * (5 + 5 + 7 + 7)
    places = {
        (row['behind'], row['layer']) for row in result['probes'] if row['network'] == named(model_directory)
    }
    assert places == {('layer', 0), ('attention', 1), ('layer', 1), ('attention', 2), ('layer', 2)}
    assert result['tasks']['label']['classes'] == ['False', 'True']
    assert result['model_sha256'][0] == sha256(model_directory / 'model.params') != result['model_sha256'][1]


def test_tables_are_the_numbers(compared):
    result = json.loads((compared / 'comparison.json').read_text())
    with open(compared / 'cka_attention.csv', newline='') as file:
        for row in csv.DictReader(file):
            i, j = int(row['layer_of_first']) - 1, int(row['layer_of_second']) - 1
            assert float(row['cka']) == result['cka'][row['second']]['attention'][i][j]
    with open(compared / 'probes.csv', newline='') as file:
        rows = [
            (row['network'], row['behind'], row['layer'], row['accuracy']) for row in csv.DictReader(file)
        ]
    names = ('network', 'behind', 'layer', 'accuracy')
    assert rows == [tuple(str(row[name]) for name in names) for row in result['probes']]


def test_layer_without_intermediate_block_has_the_same_probes_behind_both_places(compared):
    found = {}
    for row in json.loads((compared / 'comparison.json').read_text())['probes']:
        place = found.setdefault((row['task'], row['network'], row['layer']), {})
        place[row['behind']] = row['accuracy'], row['control_accuracy']
    for (_, name, layer), places in found.items():
        assert set(places) == ({'layer', 'attention'} if layer else {'layer'})
        if name == 'undivided' and layer == 2:
            assert places['attention'] == places['layer']
    assert any(places['attention'] != places['layer'] for key, places in found.items() if key[2] == 1)


def test_pictures_and_the_page_are_there(compared):
    names = ['cka_attention', 'cka_layers', 'probe_casing', 'probe_frequency_band', 'probe_label']
    assert all(
        (compared / f'{name}.{kind}').stat().st_size > 1000 for name in names for kind in ('png', 'svg')
    )
    read = check_page((compared / 'report.html').read_text(encoding='utf-8'))
    assert sum(name == 'img' for name in read.tags) == len(names) and 'Probes: casing' in read.text
    tasks = json.loads((compared / 'comparison.json').read_text())['tasks']
    assert all(f'{100 * task["majority"]:.1f}' in read.text for task in tasks.values())
    assert read.text.count('majority class') == len(tasks)


def on(tmp_path, models, data, *words):
    """The words of a comparison without probes."""
    places = ('--data', data, '--output', tmp_path / 'comparison')
    return ['tools/compare_models.py', *models, *places, *words, '--probes', 'false']


def test_network_is_like_itself_and_less_like_random_weights(tmp_path, model_directory, shards_directory):
    said = succeed(*on(tmp_path, [model_directory] * 2, shards_directory))
    assert not (tmp_path / 'comparison' / 'probes.csv').exists()
    result = json.loads((tmp_path / 'comparison' / 'comparison.json').read_text())['cka']
    name = named(model_directory)
    for kind in ('attention', 'layers'):
        assert np.diag(result[f'{name} again'][kind]) == pytest.approx(1)
        assert np.diag(result[f'{name} again, random weights'][kind]).max() < 0.9
    assert f'CKA of {name} with {name} again: 1.000' in said


def test_networks_and_words_that_do_not_fit_are_refused(tmp_path, model_directory, shards_directory, task):
    one = write_saved_model(
        tmp_path / 'one', architecture=dataclasses.replace(network(max_length=10), token_types=1)
    )
    empty = write_saved_model(tmp_path / 'empty', architecture=dataclasses.replace(network(), layers=()))
    short = write_saved_model(tmp_path / 'short', architecture=network(max_length=2))
    (tmp_path / 'text.txt').write_text('a b c d e f g h i j k\nd e f\n', encoding='utf-8')
    segments = f'{shards_directory} has sequences of two segments, and {one} has one token type'
    for models, data, words, says in (
        ([], task, [], 'wanted two models, found 1'),
        ([model_directory], 'nowhere', [], 'no such file'),
        ([model_directory], task, ['--length', '2'], 'length must be '),
        ([one], shards_directory, [], segments),
        ([empty], task, [], f'{empty}: a network without layers'),
        ([short], task, [], f'{short}: 2 positions are too few'),
    ):
        assert says in refused(*on(tmp_path, [*models, model_directory], data, *words))
    assert not (tmp_path / 'comparison').exists()
    succeed(*on(tmp_path, [model_directory, one], tmp_path / 'text.txt'))
    tokens = json.loads((tmp_path / 'comparison' / 'comparison.json').read_text())['tokens']
    assert tokens == 10 + 5  # the first line is cut to the positions
