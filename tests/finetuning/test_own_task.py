"""A task of the user's own: what is refused before the first step, and what is said of its data."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.finetuned import recipe_for, sentences, values_for
from helpers.tiny import ROOT

from gluon_optbert.architecture.heads import Head
from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue, prepare_glue
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.recipe import TaskPruneRecipe
from gluon_optbert.pruning.task_objectives import prune_task
from gluon_optbert.runs.machine import ORIGIN
from gluon_optbert.runs.recipe import fill
from gluon_optbert.text.tokenizer import SETTINGS
from gluon_optbert.text.trimming import TRIM
from gluon_optbert.training.distributed import Workers

SST2 = json.loads((ROOT / 'gluon_optbert' / 'tasks' / 'descriptions' / 'sst-2.json').read_text())


def own_task(directory, **change):
    """The file of a task like SST-2, with some keys changed."""
    path = directory / 'own.json'
    path.write_text(json.dumps({**SST2, 'name': 'Own', **change}))
    return str(path)


def prepared(recipe):
    return prepare_glue(recipe, read_model(recipe.model), workers=Workers())


def test_submissions_have_the_names_of_the_task_but_none_of_a_model_directory(
    finished, model_directory, glue, tmp_path
):
    def exercise(*names):
        task = own_task(tmp_path, test=dict.fromkeys(names, 'SST-2/test.tsv'))
        return prepared(recipe_for(model_directory, glue, tmp_path, task=task))

    names = {file.name for file in (finished[0] / 'run' / 'seed-1').iterdir()} - {'SST-2.tsv'}
    for name in sorted(names | {ORIGIN, TRIM, SETTINGS, 'README.md'}):
        with pytest.raises(ValueError, match=f'Own: a submission cannot be called {name}, as a file of a'):
            exercise('fine.tsv', name)
    several = exercise('own.tsv', 'Own.tsv')
    files = several.files({name: np.eye(7, 2) for name in several.test})
    assert set(files) == {'own.tsv', 'Own.tsv'} and len(set(files.values())) == 1
    assert several.head.task == 'Own'


def test_training_set_of_one_label_is_remarked(model_directory, glue, tmp_path, caplog):
    (tmp_path / 'train.tsv').write_text('sentence\tlabel\na\t1\nb\t1\nc\t0\n')
    task = own_task(tmp_path, train=str(tmp_path / 'train.tsv'))
    for limit, remarks in ((None, 0), (2, 1)):
        prepared(recipe_for(model_directory, glue, tmp_path, task=task, limit=limit))
        assert sum('nothing to tell apart' in line for line in caplog.messages) == remarks


def tables(directory, names=('text', 'label')):
    """A CSV file of letters whose labels are words, and the same as a directory of JSON lines and TSV."""
    rows = [(text, ('bad', 'good')[label]) for text, label in sentences(60, 0)]
    (directory / 'split').mkdir(parents=True)
    with open(directory / 'reviews.csv', 'w', newline='', encoding='utf-8') as file:
        csv.writer(file).writerows([('id', *names), *((i, *row) for i, row in enumerate(rows))])
    lines = [json.dumps(dict(zip(names, row))) for row in rows]
    (directory / 'split' / 'train.jsonl').write_text('\n'.join(lines[:41]))
    for name in ('validation.tsv', 'test.tsv'):
        (directory / 'split' / name).write_text('\n'.join('\t'.join(row) for row in (names, *rows[41:])))
    return directory


def own_recipe(model, data, base, **more):
    values = {**values_for(model, data, base), 'epochs': 6, **more}
    return fill(GlueRecipe, {name: value for name, value in values.items() if name != 'task'})


@pytest.mark.parametrize(
    'file, names, stated',
    [
        ('reviews.csv', ('text', 'label'), {}),
        ('reviews.csv', ('body', 'stars'), {'text': 'body', 'label': 'stars'}),
        ('reviews.csv', ('label', 'text'), {'text': 'label', 'label': 'text', 'kind': 'classification'}),
        ('split', ('body', 'verdict'), {'text': 'body'}),
    ],
)
def test_table_of_texts_and_labels_is_a_task(model_directory, tmp_path, file, names, stated):
    tables(tmp_path / 'data', names)
    exercise = prepared(own_recipe(model_directory, tmp_path / 'data' / file, tmp_path, **stated))
    assert (exercise.head, exercise.head.columns) == (Head('classification', ('bad', 'good')), names)
    counts = {'train': 41, 'dev': 19, 'predictions.tsv': 19} if file == 'split' else {'train': 54, 'dev': 6}
    assert exercise.samples == counts and exercise.name == Path(file).stem


def test_task_file_needs_what_cannot_be_guessed(model_directory, tmp_path):
    path = tmp_path / 'own.json'
    path.write_text(json.dumps({'fields': ['text'], 'label': 'label', 'train': 'reviews.csv'}))
    exercise = prepared(recipe_for(model_directory, tables(tmp_path / 'data'), tmp_path, task=str(path)))
    assert exercise.head == Head('classification', ('bad', 'good'), 'own')
    assert exercise.samples == {'train': 54, 'dev': 6}


def test_own_labels_are_learnt_go_on_in_pruning_and_have_names(model_directory, tmp_path):
    data = tables(tmp_path / 'data') / 'reviews.csv'
    named = {'labels': 'negative=bad,positive=good'}
    result = finetune_glue(own_recipe(model_directory, data, tmp_path, **named))
    assert result.mean['dev/accuracy'] > result.majority['dev/accuracy']
    tuned = tmp_path / 'run' / 'seed-1'
    settings = {'model': tuned, 'steps': 1, 'alpha_steps': 1, 'batch_size': 8, 'target': 0.8}
    prune_task(TaskPruneRecipe(data=data, output=tmp_path / 'pruned', **settings))
    head = read_model(tmp_path / 'pruned' / 'round-1' / 'model').head
    assert head.labels == ('bad', 'good') and head.names == ('negative', 'positive')
    assert head.columns == ('text', 'label')
    with pytest.raises(ValueError, match="dev.csv: line 3 has the label 'fair', wanted bad or good"):
        (tmp_path / 'dev.csv').write_text('text,label\na b,bad\na,fair\nb,good\n')
        prune_task(TaskPruneRecipe(data=tmp_path / 'dev.csv', output=tmp_path / 'x', **settings))


def test_held_out_is_said_to_be_unread_where_a_development_set_is_there(model_directory, tmp_path, caplog):
    for name in ('train', 'dev'):
        (tmp_path / f'{name}.csv').write_text('text,label\na,1\nb,0\n')
    prepared(own_recipe(model_directory, tmp_path, tmp_path))
    assert not caplog.messages
    prepared(own_recipe(model_directory, tmp_path, tmp_path, held_out=0.5))
    assert [one for one in caplog.messages if 'dev.csv is there, so held_out is not read' in one]


@pytest.mark.parametrize(
    'content, more, says',
    [
        ('a b,bad\nb c,good\na,bad\n', {}, 'so it is a row and no header'),
        ('text,label\na,1\nb,0\n', {'text': 'body'}, "no column 'body'; its header is text, label"),
        ('text,label\na,1\nb,0\n', {'labels': 'no=0'}, '--labels is name=label for each of the labels 0, 1'),
        ('text,label\na,1\nb,0\n', {'text': 'a,b,c'}, 'must be one column or two'),
        ('text,label\na,1\nb,0\n', {'held_out': 0.9}, 'none of its rows is left to train on'),
        ('text,label\na,1.5\nb,0\nc,2\n', {}, 'csv: a correlation .* found 1 to measure on; .*--held-out'),
    ],
)
def test_table_that_says_too_little_is_refused(model_directory, tmp_path, content, more, says):
    (tmp_path / 'own.csv').write_text(content)
    with pytest.raises(ValueError, match=says):
        prepared(own_recipe(model_directory, tmp_path / 'own.csv', tmp_path, **more))
    with pytest.raises(ValueError, match='wanted one file train.csv, .tsv or .jsonl, found none'):
        prepared(own_recipe(model_directory, tmp_path, tmp_path))
