"""Pruning runs whose recovery learns from a teacher."""

import json

import numpy as np
import pytest
from helpers.pruned import recipe_for, results
from helpers.tiny import contents, network, write_saved_model

from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.task_pruning.recipe import TaskPruneRecipe
from gluon_optbert.training import loop


def recoveries(directory):
    lines = map(json.loads, (directory / 'metrics.jsonl').read_text().splitlines())
    return [record for record in lines if record['phase'] == 'recovery' and 'mlm' in record]


@pytest.fixture(scope='module')
def taught_run(shards_directory, model_directory, tmp_path_factory):
    """An uninterrupted run of two rounds that the network that went in teaches."""
    output = tmp_path_factory.mktemp('taught') / 'run'
    prune(recipe_for(shards_directory, model_directory, output, teacher='parent'))
    return output


def test_recovery_reports_what_it_learns_from_the_teacher(taught_run, pruned_run):
    for record in recoveries(taught_run):
        assert record['scores'] > 0 and record['states'] > 0
    assert all('states' not in record for record in recoveries(pruned_run[0]))
    assert results(taught_run) != results(pruned_run[0])


def test_a_ranking_serves_a_recovery_with_a_teacher(pruned_run, shards_directory, model_directory, tmp_path):
    more = {'ranking': str(pruned_run[0]), 'teacher': 'parent', 'teacher_weights': 'states=2'}
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', **more))
    one, other = (contents(run / 'round-1')['selection.json'] for run in (tmp_path / 'run', pruned_run[0]))
    assert one == other


def test_teacher_without_weight_changes_no_more_than_rounding(
    pruned_run, shards_directory, model_directory, tmp_path
):
    silent = {'teacher': 'parent', 'teacher_weights': 'scores=0,states=0'}
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', **silent))
    for number in (1, 2):
        silent_run, plain = (
            read_model(place / f'round-{number}' / 'model') for place in (tmp_path / 'run', pruned_run[0])
        )
        for name, value in plain.parameters.items():  # sums run in another order; Adam divides small ones
            np.testing.assert_allclose(silent_run.parameters[name], value, atol=1e-4, err_msg=name)


def test_taught_run_resumes_to_the_same_bits(
    taught_run, shards_directory, model_directory, tmp_path, monkeypatch
):
    class Killed(Exception):
        """Stands for whatever ends a process."""

    step, moments = loop._step, []

    def dies(*args):
        moments.append(args[4].name)
        if moments.count('recovery') == 4:  # behind the checkpoint in the first recovery
            raise Killed
        return step(*args)

    monkeypatch.setattr(loop, '_step', dies)
    with pytest.raises(Killed):
        prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', teacher='parent'))
    monkeypatch.undo()
    assert list((tmp_path / 'run' / 'round-1' / 'recovery-states').iterdir())
    prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', teacher='parent', resume=True))
    assert results(tmp_path / 'run') == results(taught_run)


def test_directory_may_teach(shards_directory, model_directory, tmp_path):
    write_saved_model(tmp_path / 'teacher', seed=7)
    recipe = recipe_for(
        shards_directory, model_directory, tmp_path / 'run', teacher=str(tmp_path / 'teacher'), rounds=1
    )
    prune(recipe)
    assert recoveries(tmp_path / 'run')[0]['states'] > 0


def test_teacher_with_untrained_heads_teaches_its_states(shards_directory, model_directory, tmp_path):
    teacher = write_saved_model(tmp_path / 'teacher', seed=3, progress={'untrained': ['mlm', 'nsp']})
    recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', teacher=str(teacher))
    with pytest.raises(ValueError, match='lacks trained heads .* --teacher-weights scores=0'):
        prune(recipe)
    assert not recipe.output.exists()
    prune(recipe.replace(teacher_weights='scores=0'))
    for record in recoveries(recipe.output):
        assert record['states'] > 0 and 'scores' not in record


def test_teacher_that_cannot_teach_is_refused_and_nothing_is_written(
    shards_directory, model_directory, tmp_path
):
    write_saved_model(tmp_path / 'wide', architecture=network(h=12))
    for teacher, problem in (('wide', 'teacher has h = 12'), ('none', 'none')):
        recipe = recipe_for(
            shards_directory, model_directory, tmp_path / 'run', teacher=str(tmp_path / teacher)
        )
        with pytest.raises((ValueError, FileNotFoundError), match=problem):
            prune(recipe)
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
    'values, problem',
    [
        ({'temperature': 0.0}, 'temperature must be '),
        ({'teacher_weights': 'labels=-1'}, 'teacher_weights must be '),
    ],
)
def test_weights_out_of_range_are_refused(shards_directory, model_directory, tmp_path, values, problem):
    with pytest.raises(ValueError, match=problem):
        prune(recipe_for(shards_directory, model_directory, tmp_path / 'run', teacher='parent', **values))


@pytest.mark.parametrize('kind, without', [(PruneRecipe, {}), (TaskPruneRecipe, {'teacher': 'none'})])
@pytest.mark.parametrize('name, value', [('teacher_weights', {'labels': 0.5}), ('temperature', 7.0)])
def test_what_only_a_teacher_would_read_is_refused_without_one(kind, without, name, value):
    values = {'model': 'm', 'output': 'o', name: value}
    values.update({'shards': 's'} if kind is PruneRecipe else {})
    with pytest.raises(RecipeError, match=f'^{name} goes with --teacher$'):
        fill(kind, {**values, **without})
    assert not fill(kind, {**values, 'teacher': 'parent'}).is_default(name)
    fill(kind, {**values, **without, name: kind.model_fields[name].default})
