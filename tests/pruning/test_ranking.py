"""A run that takes the ranking of another: the same network as if it had ranked the units itself."""

import json
import shutil

import numpy as np
import pytest
from helpers.finetuned import recipe_for as finetuning_recipe, write_glue
from helpers.tiny import contents, records

from gluon_optbert.deployment.verify import VerifyRecipe, verify
from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning import methods, ranking
from gluon_optbert.pruning.algorithm import forget
from gluon_optbert.pruning.ranking import check_ranking
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe
from gluon_optbert.pruning.task_objectives import prune_task
from gluon_optbert.runs.recipe import fill


@pytest.fixture(scope='module')
def place(tmp_path_factory, model_directory):
    """A directory with a network that was fine-tuned, its data, and a run that pruned it."""
    base = tmp_path_factory.mktemp('ranking')
    write_glue(base / 'glue')
    finetune_glue(
        finetuning_recipe(model_directory, base / 'glue', base, epochs=1, output=str(base / 'tuned'))
    )
    prune_task(recipe_for(base, 'run', target=0.7))
    return base


def recipe_for(place, output, **more):
    values = {
        'model': str(place / 'tuned' / 'seed-1'),
        'data': str(place / 'glue'),
        'output': str(place / output),
        'alpha_steps': 6,
        'alpha_learning_rate': 0.1,
        'penalty': 'proximal',
        'gamma': 3.0,
        'rotate_heads': True,
        'steps': 1,
        'batch_size': 8,
        'timing': False,
    }
    return fill(TaskPruneRecipe, {**values, **more})


def of_round(place, output):
    """The files of a first round that do not tell one command from another."""
    names = ('alphas.npz', 'scores.npz', 'selection.json', 'shrunk/model.params', 'model/model.params')
    return {name: contents(place / output / 'round-1')[name] for name in names}


def test_the_network_is_the_one_of_a_run_that_ranks_anew(place):
    """Later rounds rank their units anew."""
    alphas, scores = (np.load(place / 'run' / 'round-1' / name) for name in ('alphas.npz', 'scores.npz'))
    closed = [(key, i) for key in scores.files for i in np.flatnonzero(scores[key] == 0)]
    assert closed and all(alphas[key][i] == 1 for key, i in closed)  # alphas.npz does not tell them
    prune_task(recipe_for(place, 'anew', targets='0.5'))
    rows = prune_task(recipe_for(place, 'taken', targets='0.5,0.4', ranking=str(place / 'run')))
    assert of_round(place, 'taken') == of_round(place, 'anew') != of_round(place, 'run')
    phases = [(record['round'], record['phase']) for record in records(place / 'taken')]
    assert {*phases} == {(1, 'recovery'), (2, 'gates'), (2, 'recovery')}
    assert rows[1].flops < json.loads((place / 'run' / 'rounds.json').read_text())[1]['flops']
    assert 'took its ranking of the units from' in (place / 'taken' / 'pruning.md').read_text()
    assert len(verify(VerifyRecipe(run=place / 'taken'))) == 2


@pytest.mark.parametrize(
    'more', [{'method': 'uniform-alpha', 'target': 0.4}, {'evaluation_limit': 12}, {'steps': 0}]
)
def test_what_follows_the_ranking_may_differ(place, more):
    recipe = recipe_for(place, 'other', ranking=str(place / 'run'), **more)
    check_ranking(recipe, read_model(recipe.model))


@pytest.mark.parametrize(
    'more, message',
    [
        ({'gamma': 0.1, 'seed': 4}, 'other settings of gamma, seed; use the same'),
        ({'teacher': 'none'}, 'other settings of teacher'),  # from which gates learn, too
        ({'task': 'sentences', 'batch_size': 32, 'evaluation_limit': 12}, 'settings of .*evaluation_limit'),
        ({'method': 'fisher'}, 'by the method alpha, which does not suit fisher'),
        ({'ranking': 'nowhere'}, 'nowhere is no pruning run that has ranked units'),
    ],
)
def test_a_ranking_that_does_not_suit_is_refused(place, more, message):
    recipe = recipe_for(place, 'refused', **{'ranking': str(place / 'run'), **more})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        check_ranking(recipe, read_model(recipe.model))


def test_the_ranking_of_another_network_is_refused(place):
    recipe = recipe_for(place, 'refused', ranking=str(place / 'run'))
    saved = read_model(recipe.model)
    saved.parameters['word_embed.0.weight'] = saved.parameters['word_embed.0.weight'] * np.float32(1.01)
    with pytest.raises(ValueError, match='pruned another network than'):
        check_ranking(recipe, saved)


def test_a_ranking_whose_network_was_removed_is_refused(place, tmp_path):
    shutil.copytree(place / 'run', tmp_path / 'run')
    forget(tmp_path / 'run', [1])
    recipe = recipe_for(place, 'refused', ranking=str(tmp_path / 'run'))
    with pytest.raises(FileNotFoundError, match='run has no round-1/rotated any more; leave ranking out'):
        check_ranking(recipe, read_model(recipe.model))


def test_one_pass_of_gradients_serves_any_size(place, monkeypatch):
    settings = {'method': 'fisher', 'steps': 0, 'rotate_heads': False}
    more = {'target': 0.4, 'multiple_of': 2, 'objective': 'parameters', 'teacher': 'none'}
    prune_task(recipe_for(place, 'fisher', target=0.7, **settings))
    prune_task(recipe_for(place, 'fisher-anew', **{**settings, **more}))
    monkeypatch.setattr(methods, '_gradients', None)
    taken = recipe_for(place, 'fisher-taken', ranking=str(place / 'fisher'), **settings, **more)
    prune_task(taken)
    assert of_round(place, 'fisher-taken') == of_round(place, 'fisher-anew') != of_round(place, 'fisher')
    (place / 'fisher' / 'round-1' / 'gradients.npz').unlink()
    with pytest.raises(FileNotFoundError, match='no round-1/gradients.npz'):
        prune_task(taken.replace(output=place / 'refused'))
    assert not (place / 'refused').exists()


def test_what_may_differ_are_settings_that_exist():
    fields = {*PruneRecipe.model_fields, *TaskPruneRecipe.model_fields}
    assert {*ranking._AFTER, *ranking._OF_COST, *PruneRecipe.OF_TEACHER} <= fields
