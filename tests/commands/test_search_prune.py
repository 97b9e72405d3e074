"""pretrain/search_prune.py: it searches, says what it found, and goes on with more trials."""

import csv
import shlex

import matplotlib
import pytest
from helpers.commands import refused, succeed

from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.command_line import parse

RANGES = '--gamma-range 0.001,0.1 --alpha-learning-rate-range 0.001,0.1 --alpha-steps-range 1,4'
SHORT = '--target 0.7 --rounds 1 --batch-size 8 --alpha-steps 2 --gamma 0.02 --recovery-steps 2 '
SHORT += '--evaluation-limit 8 --checkpoint-every 1'


def words(shards, model, output, *more):
    places = ('--model', model, '--shards', shards, '--output', output)
    return ['pretrain/search_prune.py', *places, *SHORT.split(), *RANGES.split(), *more]


def trials_of(output):
    with open(output / 'trials.csv', newline='') as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope='module')
def finished(tmp_path_factory, shards_directory, model_directory):
    output = tmp_path_factory.mktemp('search') / 'search'
    return output, succeed(*words(shards_directory, model_directory, output, '--trials', '2'))


def test_best_trial_comes_first_and_keeps_its_model(finished):
    output, said = finished
    rows = trials_of(output)
    losses = [float(row['loss']) for row in rows]
    both = [float(row['mlm_loss']) + float(row['nsp_loss']) for row in rows]
    assert losses == pytest.approx(both, rel=1e-12)
    assert len(rows) == 2 and losses == sorted(losses)
    assert f'best: trial {rows[0]["trial"]} ' in said
    following = said.splitlines()[-1]
    parse(PruneRecipe, shlex.split(following.partition('.py ')[2]), description='', example='')
    assert f'--output {output}-best' in following and '--trials' not in following
    kept = [(output / f'trial-{int(row["trial"]):04d}' / 'round-1' / 'model').is_dir() for row in rows]
    assert kept == [True, False]
    assert all((output / f'trial-{i:04d}' / 'round-1' / 'selection.json').is_file() for i in range(2))


def test_first_trial_has_the_values_of_the_recipe_and_table_and_plots_show_all(finished):
    first, *others = sorted(trials_of(finished[0]), key=lambda row: int(row['trial']))
    assert (float(first['gamma']), float(first['alpha_learning_rate'])) == (0.02, 0.01)
    assert int(first['alpha_steps']) == 2
    for row in others:
        assert 0.001 <= float(row['gamma']) <= 0.1 and 0.001 <= float(row['alpha_learning_rate']) <= 0.1
        assert 1 <= int(row['alpha_steps']) <= 4

    output = finished[0]
    assert '| trial | state | gamma |' in (output / 'trials.md').read_text()
    for name in ('optimization_history', 'slice', 'parallel_coordinate', 'param_importances'):
        assert (output / f'{name}.png').read_bytes().startswith(b'\x89PNG')
    assert matplotlib.rcParams['axes.facecolor'] == 'white'  # not as Optuna sets it


def test_finished_search_takes_more_trials_and_no_other_settings(finished, shards_directory, model_directory):
    output = finished[0]
    succeed(*words(shards_directory, model_directory, output, '--trials', '3', '--resume'))
    rows = trials_of(output)
    assert len(rows) == len({row['gamma'] for row in rows}) == 3
    for more, said in (((), 'exists'), (('--seed', '5', '--resume'), 'seed')):
        assert said in refused(*words(shards_directory, model_directory, output, *more))


@pytest.mark.parametrize(
    'change, named',
    [
        (['--method', 'random'], 'only methods with trained gates'),
        (['--alpha-steps-range', '9,3'], 'alpha_steps_range'),
        (['--rung', '2'], 'rung must be the number of one of 1 rounds, found 2'),
    ],
)
def test_contradictory_search_is_refused(tmp_path, shards_directory, model_directory, change, named):
    assert named in refused(*words(shards_directory, model_directory, tmp_path / 'search', *change))
    assert not (tmp_path / 'search').exists()
