"""Choosing the learning rate of fine-tuning on the development set."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.finetuned import LEFT, recipe_for, values_for, without_times
from helpers.pruned import interrupted_at
from helpers.tiny import Interrupted, contents

from gluon_optbert.finetuning import finetune
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult, RateRuns, SeedRun, best_rate, summary
from gluon_optbert.runs.recipe import fill

RATES = (0.0001, 0.01)
SETTINGS = {'task': 'STS-B', 'seeds': [1, 2], 'limit': 24}


@pytest.fixture(scope='module')
def chosen(model_directory, glue, tmp_path_factory):
    """A run of two learning rates and two seeds."""
    base = tmp_path_factory.mktemp('chosen')
    values = values_for(model_directory, glue, base, **SETTINGS, learning_rates=list(RATES))
    del values['learning_rate']
    return base, values, finetune_glue(fill(GlueRecipe, values))


def weights_of(base):
    """The content of the weights of both seeds."""
    return [contents(base / 'run' / seed)['model.params'] for seed in ('seed-1', 'seed-2')]


def test_learning_rate_with_the_best_mean_is_kept(chosen, model_directory, glue, tmp_path):
    base, _, result = chosen
    tried = {one.learning_rate: [run.scores['dev/spearman'] for run in one.runs] for one in result.tried}
    assert tuple(tried) == RATES
    best = max(tried, key=lambda rate: np.mean(tried[rate]))
    assert best != RATES[0]  # which would be kept among equals
    assert result.recipe['learning_rate'] == best and result.mean['dev/spearman'] == np.mean(tried[best])
    alone = recipe_for(model_directory, glue, tmp_path, **SETTINGS, learning_rate=best)
    assert without_times(finetune_glue(alone)).runs == without_times(result).runs
    assert sorted(os.listdir(base / 'run')) == LEFT and weights_of(tmp_path) == weights_of(base)


def test_result_of_a_regression_says_that_the_learning_rate_was_chosen_on_the_scored_set(chosen):
    base, _, result = chosen
    assert set(result.mean) == {'dev/spearman', 'dev/pearson'} and result.metric == 'dev/spearman'
    lines = (base / 'run' / 'seed-1' / 'STS-B.tsv').read_text().splitlines()
    assert len(lines) == 8 and re.fullmatch(r'6\t-?\d+\.\d{3}', lines[-1])
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


def test_run_that_chooses_its_learning_rate_resumes(chosen, tmp_path, monkeypatch):
    """It ends in a step of the last rate, and again after it has kept the first of two networks."""
    base, values, result = chosen
    values = {**values, 'output': str(tmp_path / 'run')}
    rename, renamed = os.rename, []

    def stopping(source, target):
        if 'seed' in Path(source).name or Path(source).name == 'run.training':
            if renamed:
                raise Interrupted
            renamed.append(target)
        rename(source, target)

    with interrupted_at(2 * 6 + 5):
        finetune_glue(fill(GlueRecipe, values))
    values['resume'] = True
    with pytest.raises(ValueError, match='other settings of learning_rates'):
        finetune_glue(fill(GlueRecipe, {**values, 'learning_rates': [0.001]}))
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(finetune.os, 'rename', stopping)
        finetune_glue(fill(GlueRecipe, values))
    assert not (tmp_path / 'run').exists()
    again = finetune_glue(fill(GlueRecipe, values))
    assert without_times(again).runs == without_times(result).runs
    assert [one.learning_rate for one in again.tried] == list(RATES)
    assert sorted(os.listdir(tmp_path / 'run')) == LEFT and sorted(os.listdir(tmp_path)) == ['run']
    assert weights_of(tmp_path) == weights_of(base)
