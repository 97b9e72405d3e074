"""The search as a function: its recipe is checked, and without a trial that ended there is no best one."""

import optuna
import pytest

from gluon_optbert.pruning import search as search_module
from gluon_optbert.pruning.search import SearchRecipe, search
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.training.optimization import TrainingDiverged


def test_recipe_made_by_hand_is_checked_before_anything_is_written(tmp_path):
    with pytest.raises(RecipeError) as error:
        search(SearchRecipe(output=str(tmp_path / 'search'), model='m', trials=0, gamma_range=[1.0]))
    assert len(error.value.problems) == 3 and '--shards is missing' in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_trials_that_diverge_have_failed_and_the_search_goes_on(
    shards_directory, model_directory, tmp_path, monkeypatch, caplog
):
    def diverge(recipe, **_):
        recipe.output.mkdir()
        raise TrainingDiverged('step 1: the gradient is nan')

    monkeypatch.setattr(search_module, 'prune', diverge)
    result = search(
        SearchRecipe(
            output=str(tmp_path / 'search'), model=model_directory, shards=shards_directory, trials=2
        )
    )
    assert result.best is None and result.table.count('| fail |') == 2
    assert caplog.messages == [f'trial {i}: step 1: the gradient is nan' for i in (0, 1)]
    study = optuna.load_study(study_name='prune', storage=f'sqlite:///{tmp_path}/search/study.db')
    assert [trial.state.name for trial in study.get_trials()] == ['FAIL', 'FAIL']
