"""Fine-tuning with a teacher: what is learnt, from whom, and by how many workers."""

import dataclasses
import json
import os

import numpy as np
import pytest
from helpers.finetuned import flags_of, recipe_for, squad_recipe, values_for, write_questions
from helpers.jobs import EXACT, horovodrun, needs_horovod
from helpers.pruned import with_more_tokens
from helpers.tiny import random_parameters

from gluon_optbert.finetuning.distillation import match_of
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue, finetune_squad
from gluon_optbert.finetuning.result import FineTuningResult
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.runs.recipe import RecipeError, fill


@pytest.fixture(scope='module')
def teacher(finished):
    """The unpruned network, fine-tuned on the same task."""
    return finished[0] / 'run' / 'seed-1'


@pytest.fixture(scope='module')
def pruned(pruned_run):
    """Of two rounds, which cut all widths."""
    return pruned_run[0] / 'round-2' / 'model'


def losses_of(output):
    lines = map(json.loads, (output / 'seed-1' / 'metrics.jsonl').read_text().splitlines())
    return [line for line in lines if 'learning_rate' in line]


def taught(*args, **more):
    """The losses of a short run with a teacher."""
    recipe = recipe_for(*args, **{'epochs': 1, 'log_every': 1, 'limit': 16, **more})
    finetune_glue(recipe)
    return losses_of(recipe.output)


@pytest.mark.parametrize(
    'weights, parts',
    [
        ('states=0', {'loss', 'scores'}),
        ('labels=0,scores=0,states=0,last=1', {'loss', 'last'}),
        ('embeddings=1,cosines=1,relations=1', {'loss', 'scores', 'states', 'embeddings'}),
    ],
)
def test_the_parts_of_the_loss_are_those_with_a_weight(teacher, pruned, glue, tmp_path, weights, parts):
    lines = taught(pruned, glue, tmp_path, teacher=str(teacher), teacher_weights=weights)
    assert lines and all(parts <= {*line} for line in lines)
    assert all(('states' in line) == ('states' in parts) for line in lines)


def test_a_network_that_learns_from_itself_has_nothing_to_learn(teacher, glue, tmp_path):
    first, *_ = taught(teacher, glue, tmp_path, teacher=str(teacher), dropout=0.0)
    assert first['step'] == 1 and first['states'] < 1e-6 and abs(first['scores']) < 1e-4


def test_states_are_compared_at_the_units_that_a_pruning_run_left(pruned_run, pruned, teacher):
    student, whole = read_model(pruned).architecture, read_model(teacher).architecture
    match = match_of(pruned, student, whole, source='teacher')
    kept = np.arange(whole.h)
    for number in (1, 2):
        path = pruned_run[0] / f'round-{number}' / 'selection.json'
        kept = kept[json.loads(path.read_text())['kept']['h']]
    assert match.units.tolist() == kept.tolist() and len(kept) == student.h < whole.h
    with pytest.raises(ValueError, match='no pruning run around it says which of them stayed'):
        match_of(pruned.parent / 'elsewhere' / 'model', student, whole, source='teacher')


def test_a_teacher_that_cannot_teach_is_refused_before_the_first_step(
    teacher, pruned, model_directory, glue, tmp_path
):
    def refused(message, name=teacher, error=ValueError, model=pruned, **more):
        with pytest.raises(error, match=message):
            finetune_glue(recipe_for(model, glue, tmp_path, **{'teacher': str(name), **more}))
        assert not (tmp_path / 'run').exists()

    saved = read_model(teacher)
    labels = dataclasses.replace(saved.head, labels=('bad', 'good'), names=())
    widths = dataclasses.replace(saved.architecture, h=saved.architecture.h + 2)
    wide = {'architecture': widths, 'parameters': random_parameters(widths, 3, head=saved.head)}
    write_model(tmp_path / 'words', with_more_tokens(saved, ['zz']))
    write_model(tmp_path / 'labels', dataclasses.replace(saved, head=labels))
    write_model(tmp_path / 'wide', dataclasses.replace(saved, **wide))
    refused('differ in their vocabularies', tmp_path / 'words')
    refused('the teacher was trained for SST-2 with the labels bad, good', tmp_path / 'labels')
    refused('nowhere', tmp_path / 'nowhere', FileNotFoundError)
    refused('give --teacher-weights states=0,last=0,cosines=0', tmp_path / 'wide', model=model_directory)
    refused('goes with --teacher', error=RecipeError, teacher=None, teacher_weights='states=0')


def test_questions_are_learnt_from_a_teacher(model_directory, tmp_path):
    write_questions(tmp_path / 'squad')
    short = {'epochs': 1, 'log_every': 1, 'limit': 8, 'evaluation_limit': 4}
    finetune_squad(squad_recipe(model_directory, tmp_path, **short))
    (tmp_path / 'run').rename(tmp_path / 'teacher')
    more = {**short, 'teacher': str(tmp_path / 'teacher' / 'seed-1')}
    finetune_squad(squad_recipe(model_directory, tmp_path, **more))
    assert all({'loss', 'scores', 'states'} <= {*line} for line in losses_of(tmp_path / 'run'))
    (tmp_path / 'run').rename(tmp_path / 'taught')
    with pytest.raises(ValueError, match='the teacher was trained for SQuAD v1.1'):
        finetune_squad(squad_recipe(model_directory, tmp_path, **more, version='2.0'))


@needs_horovod
@pytest.mark.slow
def test_two_workers_choose_a_learning_rate_with_a_teacher_as_one_does(teacher, pruned, glue, tmp_path):
    """Both see the same files at every turn, though the first one moves them."""
    more = {'teacher': str(teacher), 'epochs': 1, 'limit': 24, 'learning_rates': '0.001,0.0001', **EXACT}
    values = [values_for(pruned, glue, tmp_path / name, **more) for name in ('one', 'two')]
    for one in values:
        del one['learning_rate']
    one = finetune_glue(fill(GlueRecipe, {**values[0], 'learning_rates': [1e-3, 1e-4]}))
    done = horovodrun('finetune/run_glue.py', *flags_of(values[1]))
    assert done.returncode == 0, done.stderr
    two = FineTuningResult.read(tmp_path / 'two' / 'run' / 'result.json')
    assert two.origin['workers'] == 2 and len(two.tried) == 2 and two.mean == pytest.approx(one.mean)
    found, wanted = (tmp_path / name / 'run' for name in ('two', 'one'))
    assert {*os.listdir(found)} == {*os.listdir(wanted)}
    found, wanted = (read_model(place / 'seed-1').parameters for place in (found, wanted))
    assert max(np.abs(found[name] - wanted[name]).max() for name in wanted) < 1e-4
