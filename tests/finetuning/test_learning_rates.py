"""Choosing the learning rate of fine-tuning on the development set."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import call
from helpers.finetuned import LEFT, Interrupted, recipe_for, stop_at, values_for, without_times
from helpers.jobs import horovodrun, needs_horovod
from helpers.tiny import ROOT, contents

from gluon_optbert.finetuning import finetune
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult, RateRuns, SeedRun, best_rate, summary
from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.recipe import fill

RATES = (0.0001, 0.01, 0.001)


@pytest.fixture(scope='module')
def chosen(model_directory, glue, tmp_path_factory):
    """A run of three learning rates and two seeds."""
    base = tmp_path_factory.mktemp('chosen')
    values = values_for(model_directory, glue, base, task='STS-B', seeds=[1, 2], learning_rates=list(RATES))
    del values['learning_rate']
    return base, values, finetune_glue(fill(GlueRecipe, values))


def test_learning_rate_with_the_best_mean_is_kept(chosen, model_directory, glue, tmp_path):
    base, _, result = chosen
    assert tuple(one.learning_rate for one in result.tried) == RATES
    means = {
        one.learning_rate: np.mean([run.scores['dev/spearman'] for run in one.runs]) for one in result.tried
    }
    best = max(means, key=means.get)
    assert best != RATES[0]  # which would be kept among equals
    assert result.recipe['learning_rate'] == best and result.mean['dev/spearman'] == means[best]
    alone = finetune_glue(
        recipe_for(model_directory, glue, tmp_path, task='STS-B', seeds=[1, 2], learning_rate=best)
    )
    assert without_times(alone).runs == without_times(result).runs
    assert sorted(os.listdir(base / 'run')) == LEFT
    for seed in ('seed-1', 'seed-2'):
        one, other = (contents(place / 'run' / seed)['model.params'] for place in (base, tmp_path))
        assert one == other


def test_result_says_that_the_learning_rate_was_chosen_on_the_scored_set(chosen):
    base, _, result = chosen
    content = (base / 'run' / 'result.json').read_bytes()
    assert FineTuningResult.read(base / 'run' / 'result.json') == result and content == result.to_json()
    said = json.loads(content)['learning_rates']
    assert said['chosen'] == result.recipe['learning_rate'] and said['chosen_on'] == 'dev/spearman'
    assert 'optimistic' in said['note'] and 'optimistic' in summary(result)
    assert all(f'{one.learning_rate:g} ' in summary(result).splitlines()[1] for one in result.tried)
    assert result.seconds == sum(run.seconds for one in result.tried for run in one.runs)


def test_score_that_is_no_number_is_never_the_best():
    def tried(rate, score):
        return RateRuns(rate, (SeedRun(1, (), 1, {'dev/pearson': score}, 1.0),))

    for order in ([tried(1.0, float('nan')), tried(2.0, -3.0)], [tried(2.0, -3.0), tried(1.0, float('nan'))]):
        assert best_rate(order, 'dev/pearson').learning_rate == 2.0
    assert best_rate([tried(3.0, 5.0), tried(1.0, 5.0)], 'dev/pearson').learning_rate == 3.0


@pytest.mark.parametrize('calls', [12 + 5, 4 * 12 + 10], ids=['second seed', 'last rate'])
def test_run_that_chooses_its_learning_rate_resumes(chosen, tmp_path, monkeypatch, calls):
    """It ends in a step; `chosen` is the uninterrupted run."""
    base, values, result = chosen
    values = {**values, 'output': str(tmp_path / 'run')}
    stop_at(monkeypatch, calls)
    with pytest.raises(Interrupted):
        finetune_glue(fill(GlueRecipe, values))
    monkeypatch.undo()
    values['resume'] = True
    with pytest.raises(ValueError, match='other settings of learning_rates'):
        finetune_glue(fill(GlueRecipe, {**values, 'learning_rates': [0.001]}))
    again = finetune_glue(fill(GlueRecipe, values))
    assert without_times(again).runs == without_times(result).runs
    assert [one.learning_rate for one in again.tried] == list(RATES)
    for seed in ('seed-1', 'seed-2'):
        one, other = (contents(place / 'run' / seed)['model.params'] for place in (base, tmp_path))
        assert one == other
    assert sorted(os.listdir(tmp_path)) == ['run']


@pytest.mark.parametrize('moved', range(3))
def test_run_that_is_killed_while_it_keeps_the_chosen_networks_goes_on(chosen, tmp_path, monkeypatch, moved):
    """Killed before the first renaming, after one network, and after both."""
    base, values, result = chosen
    values = {**values, 'output': str(tmp_path / 'run')}
    rename, renamed = os.rename, []

    def stopping(source, target):
        if 'seed' in Path(source).name or Path(source).name == 'run.training':
            if len(renamed) == moved:
                raise Interrupted
            renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(finetune.os, 'rename', stopping)
    with pytest.raises(Interrupted):
        finetune_glue(fill(GlueRecipe, values))
    monkeypatch.undo()
    assert not (tmp_path / 'run').exists()
    again = finetune_glue(fill(GlueRecipe, {**values, 'resume': True}))
    assert without_times(again).runs == without_times(result).runs
    assert sorted(os.listdir(tmp_path / 'run')) == LEFT
    assert sorted(os.listdir(tmp_path)) == ['run']


def test_learning_rates_and_one_learning_rate_exclude_each_other(tmp_path):
    words = ['--task', 'RTE', '--model', tmp_path / 'none', '--output', tmp_path / 'run']
    rates = ['--learning-rates', '2e-5,3e-5']
    done = call('finetune/run_glue.py', *words, *rates, '--learning-rate', '2e-5')
    assert done.returncode == 2 and '--learning-rates and --learning-rate exclude each other' in done.stderr
    (tmp_path / 'both.yaml').write_text('learning_rate: 2.0e-5\nlearning_rates: [2.0e-5, 3.0e-5]\n')
    done = call('finetune/run_glue.py', tmp_path / 'both.yaml', *words)
    assert done.returncode == 2 and 'exclude each other' in done.stderr


def test_flag_for_the_learning_rate_replaces_the_choice_of_the_recipe_file(tmp_path):
    (tmp_path / 'rates.yaml').write_text('learning_rates: [2.0e-5, 3.0e-5]\n')
    words = ['--task', 'RTE', '--model', 'model', '--output', 'run']
    stated = parse(
        GlueRecipe,
        [str(tmp_path / 'rates.yaml'), *words, '--learning-rate', '1e-5'],
        description='',
        example='',
    )
    assert stated.learning_rates == () and stated.learning_rate == 1e-5
    several = parse(
        GlueRecipe,
        [str(ROOT / 'finetune/recipes/glue.yaml'), *words, '--learning-rates', '1e-5,2e-5'],
        description='',
        example='',
    )
    assert [one.learning_rate for one in several.with_rates()] == [1e-5, 2e-5]


@pytest.mark.slow
@needs_horovod
def test_two_workers_choose_the_learning_rate_as_one(chosen, tmp_path):
    """Kept whole: both see the same files at every turn."""
    values = {**chosen[1], 'output': str(tmp_path / 'run'), 'seeds': '1', 'learning_rates': '0.001,0.01'}
    flags = [part for name, value in values.items() for part in ('--' + name.replace('_', '-'), str(value))]
    done = horovodrun(ROOT / 'finetune' / 'run_glue.py', *flags)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / 'run')) == LEFT[:-1]
    assert len(FineTuningResult.read(tmp_path / 'run' / 'result.json').tried) == 2
