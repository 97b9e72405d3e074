"""The comparison of settings: every run is one of run_glue.py, none is made twice, and the sums are right."""

import json

import pytest
import yaml
from helpers.commands import call, module_at
from helpers.finetuned import recipe_for, values_for, write_glue
from helpers.tiny import contents

from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult

tool = module_at('tools/compare_settings.py')
SETTINGS = {'plain': {}, 'adamw random': {'optimizer': 'adamw', 'batching': 'random'}}


@pytest.fixture(scope='module')
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp('data') / 'glue')


def words_for(model, glue, place, settings=SETTINGS, **more):
    """The command's words; the settings are written beside the output."""
    (place / 'settings.yaml').write_text(yaml.safe_dump(settings, sort_keys=False), encoding='utf-8')
    values = {**values_for(model, glue, place), 'settings': place / 'settings.yaml', 'seeds': '1,2', **more}
    return [word for name, value in values.items() for word in (f'--{name.replace("_", "-")}', value)]


def compare(*words):
    return call('tools/compare_settings.py', *words)


@pytest.fixture(scope='module')
def compared(model_directory, glue, tmp_path_factory):
    """A finished comparison of two settings with two seeds: its place, and what the command said."""
    place = tmp_path_factory.mktemp('compared')
    return place, compare(*words_for(model_directory, glue, place))


def test_every_run_is_one_of_run_glue(compared, model_directory, glue, tmp_path):
    place, done = compared
    assert done.returncode == 0, done.stderr
    wanted = finetune_glue(
        recipe_for(model_directory, glue, tmp_path, seeds=[2], optimizer='adamw', batching='random')
    )
    result = FineTuningResult.read(place / 'run' / 'results' / 'adamw random' / 'seed-2.json')
    assert result.runs[0].epochs == wanted.runs[0].epochs and result.seeds == (2,)


def test_no_network_is_kept(compared):
    files = {path.name for path in (compared[0] / 'run').rglob('*') if path.is_file()}
    assert files == {'recipe.yaml', 'table.md', 'seed-1.json', 'seed-2.json'}


def test_table_is_printed_and_has_a_row_for_each_setting(compared):
    place, done = compared
    text = (place / 'run' / 'table.md').read_text(encoding='utf-8')
    assert done.stdout == text + f'wrote {place / "run" / "table.md"}\n'
    assert '| plain | as the recipe |' in text
    assert '| adamw random | optimizer adamw, batching random |' in text


def test_resume_makes_only_what_is_missing(compared, model_directory, glue, tmp_path, monkeypatch):
    """One seed of one setting, then two of two; a finished run is not made again."""
    words = words_for(model_directory, glue, tmp_path, {'plain': {}}, seeds='1')
    assert compare(*words).returncode == 0
    before = contents(tmp_path / 'run' / 'results')
    refused = compare(*words_for(model_directory, glue, tmp_path))
    assert refused.returncode == 2 and '--resume' in refused.stderr
    done = compare(*words_for(model_directory, glue, tmp_path), '--resume')
    assert done.returncode == 0, done.stderr
    after = contents(tmp_path / 'run' / 'results')
    assert set(before) < set(after) and len(after) == 4
    assert all(after[name] == content for name, content in before.items())
    recipe = yaml.safe_load((tmp_path / 'run' / 'recipe.yaml').read_text(encoding='utf-8'))
    assert recipe['seeds'] == [1, 2] and not recipe['resume']

    def scores(place):
        rows = (place / 'run' / 'table.md').read_text(encoding='utf-8').splitlines()
        return [row.rsplit('|', 2)[0] for row in rows]  # without the minutes

    assert scores(tmp_path) == scores(compared[0])


def test_resume_refuses_another_setting_under_an_old_name(model_directory, glue, tmp_path):
    assert compare(*words_for(model_directory, glue, tmp_path, {'plain': {}}, seeds='1')).returncode == 0
    other = {'plain': {'weight_decay': 0.5}}
    done = compare(*words_for(model_directory, glue, tmp_path, other, seeds='1'), '--resume')
    assert done.returncode == 2 and 'other values of weight_decay' in done.stderr


def test_resume_takes_a_setting_that_chooses_its_learning_rate(model_directory, glue, tmp_path):
    """The result has the rate that was chosen, the setting has all of them."""
    settings = {'rates': {'learning_rates': [0.01, 0.02], 'epochs': 1}}
    words = words_for(model_directory, glue, tmp_path, settings, seeds='1', learning_rate=0.5)
    assert compare(*words).returncode == 0
    before = contents(tmp_path / 'run')
    done = compare(*words, '--resume')
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / 'run') == before


@pytest.mark.parametrize(
    'settings, message',
    [
        ({}, 'there are no settings'),
        ({'one': {'seeds': [1]}}, 'one: seeds is the same for all settings'),
        ({'one': 3}, 'one must be a mapping'),
        ({'../one': {}}, 'cannot be the name of a directory'),
        ({'one': {'evaluation_limit': 3}}, 'evaluation_limit is the same for all settings'),
        ({'': {}}, "'' cannot be the name of a directory"),
        ({'one': {}, 'two': {'epochs': 0}}, 'settings.yaml: two: epochs must be '),
        ({'one': {'limit': 0}, 'two': {'epochs': 0}}, 'settings.yaml: one: limit must be '),
        ({'one': {}, 'two': {'batching': 'sorted'}}, 'batching must be one of lengths, random'),
        ({'one': {}, 'two': {'optimiser': 'adamw'}}, "unknown field 'optimiser', did you mean 'optimizer'"),
    ],
)
def test_bad_settings_are_refused_before_the_first_run(model_directory, glue, tmp_path, settings, message):
    done = compare(*words_for(model_directory, glue, tmp_path, settings))
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / 'run').exists()


def test_flag_that_is_out_of_range_is_not_blamed_on_a_setting(model_directory, glue, tmp_path):
    done = compare(*words_for(model_directory, glue, tmp_path, epochs=0))
    assert done.returncode == 2 and done.stderr.startswith('error: --epochs must be ')


def test_differences_are_paired_by_seed_and_transformers_have_a_row(compared, tmp_path):
    one = FineTuningResult.read(compared[0] / 'run' / 'results' / 'plain' / 'seed-1.json')

    def with_score(score, seconds=120.0, resumed_at=None):
        run = {
            **one.runs[0].to_dict(),
            'scores': {'dev/accuracy': score},
            'seconds': seconds,
            'resumed_at': resumed_at,
        }
        return FineTuningResult.from_dict({**one.to_dict(), 'runs': [run]}, source='here')

    results = {
        'a': {1: with_score(80.0), 2: with_score(82.0)},
        'b': {1: with_score(81.0), 2: with_score(85.0, 6.0, resumed_at=3)},
        'c': {},
        'd': {1: with_score(70.0, 6.0, resumed_at=3)},
    }
    peers = tmp_path / 'peers.json'
    runs = [
        {'side': 'peer', 'seed': 2, 'scores': {'dev/accuracy': 84.0}, 'seconds': {'total': 60.0}},
        {'side': 'here', 'seed': 2, 'scores': {'dev/accuracy': 0.0}, 'seconds': {'total': 60.0}},
    ]
    peers.write_text(json.dumps({'task': 'SST-2', 'runs': runs}), encoding='utf-8')
    settings = {'a': {}, 'b': {'dropout': 0.0}, 'c': {'dropout': 0.2}, 'd': {'dropout': 0.3}}
    lines = tool.table(results, settings, peers).splitlines()
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines if line.startswith('|')]
    assert rows[2] == ['a', 'as the recipe', '81.00 ± 1.41', '+0.00 ± 0.00', '80.00', '82.00', '2.0']
    assert rows[3] == ['b', 'dropout 0.0', '83.00 ± 2.83', '+2.00 ± 1.00', '81.00', '85.00', '2.0']
    assert rows[4] == ['c', 'dropout 0.2', 'not run', '–', '–', '–', '–']
    assert rows[5] == ['d', 'dropout 0.3', '70.00', '-10.00', '70.00', '–', '–']  # resumed
    assert rows[6] == ['Transformers', 'peers.json', '84.00', '+2.00', '–', '84.00', '1.0']
    peers.write_text(json.dumps({'task': 'RTE', 'runs': []}), encoding='utf-8')
    with pytest.raises(ValueError, match='is on RTE'):
        tool.table(results, settings, peers)
