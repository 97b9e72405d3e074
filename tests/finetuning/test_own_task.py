"""A task of the user's own: what is refused before the first step, and what is said of its data."""

import dataclasses
import json
import logging

import pytest
from helpers.finetuned import recipe_for
from helpers.tiny import ROOT

from gluon_optbert.architecture.heads import Head
from gluon_optbert.finetuning.recipes import finetune_glue, prepare_glue
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning.recipe import TaskPruneRecipe
from gluon_optbert.pruning.task_objectives import prune_task
from gluon_optbert.runs.machine import ORIGIN
from gluon_optbert.text.trimming import TRIM
from gluon_optbert.training.distributed import Workers

SST2 = json.loads((ROOT / 'gluon_optbert' / 'tasks' / 'descriptions' / 'sst-2.json').read_text())
REGRESSION = {'head': 'regression', 'labels': [], 'names': [], 'metrics': ['pearson']}


def own_task(directory, **change):
    """The file of a task like SST-2, with some keys changed."""
    path = directory / 'own.json'
    path.write_text(json.dumps({**SST2, 'name': 'Own', **change}))
    return str(path)


def test_no_submission_may_be_called_as_a_file_of_the_model_directory(
    finished, model_directory, glue, tmp_path
):
    names = {file.name for file in (finished[0] / 'run' / 'seed-1').iterdir()} - {'SST-2.tsv'}
    for name in sorted(names | {ORIGIN, TRIM, 'README.md'}):
        task = own_task(tmp_path, test={'fine.tsv': 'SST-2/test.tsv', name: 'SST-2/test.tsv'})
        with pytest.raises(ValueError, match=f'Own: a submission cannot be called {name}, as a file of a'):
            finetune_glue(recipe_for(model_directory, glue, tmp_path, task=task))
    assert [path.name for path in tmp_path.iterdir()] == ['own.json']


def test_submissions_of_several_names_are_left_beside_the_model(model_directory, glue, tmp_path):
    task = own_task(tmp_path, test={'own.tsv': 'SST-2/test.tsv', 'Own.tsv': 'SST-2/test.tsv'})
    finetune_glue(recipe_for(model_directory, glue, tmp_path, task=task, epochs=1))
    one, other = ((tmp_path / 'run' / 'seed-1' / name).read_bytes() for name in ('own.tsv', 'Own.tsv'))
    assert one == other and read_model(tmp_path / 'run' / 'seed-1').head.task == 'Own'


@pytest.mark.parametrize(
    'change, rows, label',
    [({}, ['a\t1', 'b\t1', 'c\t0'], '1'), (REGRESSION, ['a\t2.5', 'b\t2.5', 'c\t0'], '2.5')],
)
def test_training_set_of_one_label_is_remarked(model_directory, glue, tmp_path, caplog, change, rows, label):
    (tmp_path / 'train.tsv').write_text('\n'.join(['sentence\tlabel', *rows]) + '\n')
    task = own_task(tmp_path, train=str(tmp_path / 'train.tsv'), **change)

    def said(**more):
        caplog.clear()
        recipe = recipe_for(model_directory, glue, tmp_path, task=task, **more)
        with caplog.at_level(logging.WARNING):
            prepare_glue(recipe, read_model(model_directory), workers=Workers())
        return caplog.messages

    assert said() == []
    (line,) = said(limit=2)
    assert line == (
        f'{tmp_path / "train.tsv"}: all 2 rows that are trained on have the label {label}, so there is '
        f'nothing to tell apart'
    )


def test_network_with_a_head_of_another_kind_is_not_pruned_for_a_task_of_the_same_name(
    finished, glue, tmp_path
):
    saved = read_model(finished[0] / 'run' / 'seed-1')
    head = Head('regression', (), 'Own')
    parameters = {
        name: value[:1] if name.startswith('task.') else value for name, value in saved.parameters.items()
    }
    write_model(tmp_path / 'model', dataclasses.replace(saved, head=head, parameters=parameters))
    recipe = TaskPruneRecipe(
        model=tmp_path / 'model', data=glue, output=tmp_path / 'pruned', task=own_task(tmp_path)
    )
    with pytest.raises(
        ValueError,
        match='was fine-tuned for Own, and the task is Own with the labels 0, 1: its head is of regression, '
        'and the task wants one of classification$',
    ):
        prune_task(recipe)
    assert not (tmp_path / 'pruned').exists()
