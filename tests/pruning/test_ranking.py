"""A run that takes the ranking of another: the same network as if it had ranked the units itself."""

import json
import shutil

import numpy as np
import pytest
from helpers.finetuned import recipe_for as finetuning_recipe
from helpers.finetuned import sentences, write_glue
from helpers.tiny import contents, records

from gluon_optbert.deployment.verify import VerifyRecipe, verify
from gluon_optbert.finetuning.recipes import finetune_glue
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning import methods
from gluon_optbert.pruning import recipe as recipes
from gluon_optbert.pruning.recipe import PruneRecipe, TaskPruneRecipe
from gluon_optbert.pruning.task_objectives import prune_task
from gluon_optbert.runs.recipe import fill


@pytest.fixture(scope='module')
def place(tmp_path_factory, model_directory):
    """A directory with a network that was fine-tuned, its data, and a run that pruned it."""
    base = tmp_path_factory.mktemp('ranking')
    write_glue(base / 'glue')
    finetune_glue(
        finetuning_recipe(model_directory, base / 'glue', base, task='SST-2', output=str(base / 'tuned'))
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
        'steps': 3,
        'batch_size': 8,
        'timing': False,
    }
    return fill(TaskPruneRecipe, {**values, **more})


def of_round(place, output):
    """The files of a first round that do not tell one command from another."""
    names = ('alphas.npz', 'scores.npz', 'selection.json', 'shrunk/model.params', 'model/model.params')
    return {name: contents(place / output / 'round-1')[name] for name in names}


def test_the_network_is_the_one_of_a_run_that_ranks_anew(place):
    alphas, scores = (np.load(place / 'run' / 'round-1' / name) for name in ('alphas.npz', 'scores.npz'))
    closed = [(key, i) for key in scores.files for i in np.flatnonzero(scores[key] == 0)]
    assert closed and all(alphas[key][i] == 1 for key, i in closed)  # alphas.npz does not tell them
    prune_task(recipe_for(place, 'anew', target=0.4))
    rows = prune_task(recipe_for(place, 'taken', target=0.4, ranking=str(place / 'run')))
    assert of_round(place, 'taken') == of_round(place, 'anew') != of_round(place, 'run')
    anew, taken = ({record['phase'] for record in records(place / name)} for name in ('anew', 'taken'))
    assert anew - taken == {'gates'}
    assert rows[1].flops < json.loads((place / 'run' / 'rounds.json').read_text())[1]['flops']
    assert 'took its ranking of the units from' in (place / 'taken' / 'pruning.md').read_text()
    assert len(verify(VerifyRecipe(run=place / 'taken'))) == 1


def test_later_rounds_rank_anew(place):
    settings = {'targets': '0.7,0.4', 'steps': 0}
    prune_task(recipe_for(place, 'two', ranking=str(place / 'run'), **settings))
    prune_task(recipe_for(place, 'two-anew', **settings))
    assert of_round(place, 'two') == of_round(place, 'two-anew')
    seconds = [contents(place / name / 'round-2')['scores.npz'] for name in ('two', 'two-anew')]
    assert seconds[0] == seconds[1] != contents(place / 'two' / 'round-1')['scores.npz']


def test_uniform_widths_take_trained_gates(place):
    recipe = recipe_for(place, 'uniform', method='uniform-alpha', target=0.4, ranking=str(place / 'run'))
    layers = prune_task(recipe)[1].architecture.layers
    assert len({layer.f for layer in layers}) == 1


@pytest.mark.parametrize(
    'more, message',
    [
        ({'gamma': 0.1, 'seed': 4}, 'other settings of gamma, seed; use the same'),
        ({'rotate_heads': False}, 'other settings of rotate_heads'),
        ({'method': 'fisher'}, 'by the method alpha, which does not suit fisher'),
        ({'ranking': 'nowhere'}, 'nowhere is no pruning run that has ranked units'),
    ],
)
def test_a_ranking_that_does_not_suit_is_refused(place, more, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        prune_task(recipe_for(place, 'refused', **{'ranking': str(place / 'run'), **more}))
    assert not (place / 'refused').exists()


@pytest.mark.parametrize('task', ['SST-2', 'sentences'])
def test_held_out_instances_count_where_they_are_taken_from_the_training_data(
    place, model_directory, task, tmp_path
):
    if task == 'sentences':
        (tmp_path / 'text.txt').write_text('\n'.join(text for text, _ in sentences(300, 5)) + '\n')
        own = {'model': str(model_directory), 'data': str(tmp_path / 'text.txt'), 'batch_size': 32}
    else:
        own = {}
    own.update(task=task, method='magnitude', rotate_heads=False, steps=0)
    prune_task(recipe_for(place, tmp_path / 'run', **own))
    taken = recipe_for(place, tmp_path / 'taken', **own, ranking=str(tmp_path / 'run'), evaluation_limit=12)
    if task == 'sentences':
        with pytest.raises(ValueError, match='other settings of evaluation_limit; use the same'):
            prune_task(taken)
    else:
        assert len(prune_task(taken)) == 2


def test_the_ranking_of_another_network_is_refused(place):
    shutil.rmtree(place / 'other', ignore_errors=True)
    saved = read_model(place / 'tuned' / 'seed-1')
    name = next(name for name in saved.parameters if 'word_embed' in name)
    saved.parameters[name] = saved.parameters[name] * np.float32(1.01)
    write_model(place / 'other', saved)
    with pytest.raises(ValueError, match='pruned another network than'):
        prune_task(recipe_for(place, 'refused', model=str(place / 'other'), ranking=str(place / 'run')))
    assert not (place / 'refused').exists()


@pytest.mark.parametrize('more', [{'multiple_of': 2}, {'objective': 'parameters', 'prune': 'hakvf'}])
def test_one_pass_of_gradients_serves_any_size(place, monkeypatch, more):
    settings, base = {'method': 'fisher', 'steps': 0}, place / f'fisher-{len(more)}'
    prune_task(recipe_for(place, base / 'run', target=0.7, **settings))
    prune_task(recipe_for(place, base / 'anew', target=0.4, **settings, **more))
    monkeypatch.setattr(methods, '_gradients', None)
    taken = recipe_for(place, base / 'taken', target=0.4, ranking=str(base / 'run'), **settings, **more)
    prune_task(taken)
    assert of_round(place, base / 'taken') == of_round(place, base / 'anew') != of_round(place, base / 'run')
    (base / 'run' / 'round-1' / 'gradients.npz').unlink()
    with pytest.raises(FileNotFoundError, match='no round-1/gradients.npz'):
        prune_task(taken.replace(output=base / 'refused'))


def test_what_may_differ_are_settings_that_exist():
    fields = {*PruneRecipe.model_fields, *TaskPruneRecipe.model_fields}
    assert {*recipes._AFTER, *recipes._OF_COST, *PruneRecipe.OF_TEACHER} <= fields
