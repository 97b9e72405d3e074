"""The rows of a task's files: the official layout is read as it is, with its oddities."""

import contextlib
import csv
import dataclasses
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from helpers.questions import write
from hypothesis import given, strategies as st

from gluon_optbert.architecture.heads import Head
from gluon_optbert.tasks.examples import (
    check_submission,
    head_of_table,
    read_examples,
    submission,
    task_of_file,
)
from gluon_optbert.tasks.tables import Table
from gluon_optbert.tasks.task import find_task

GLUE = Path(__file__).parents[3] / 'shared' / 'data' / 'glue'
DEV_SETS = sorted(GLUE.glob('*/dev*.tsv'))
PAIRS = 'sentence1\tsentence2\tlabel\n'
SCORES = 'sentence1\tsentence2\tscore\n'
MRPC = (
    '\ufeff#2 String\tQuality\tx\t#1 String\tx\r\none\u2028line\t1\t7\tHe said " no .\t8\r\n'
    'b\t0\t7\t"quoted"\t8\r\n'
)
ROWS = [('a, b', 'good'), ('he said "no"\nand left', 'bad'), ('c\td', 'good')]


def quoted(rows):
    return '\r\n'.join(','.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)


@pytest.mark.parametrize(
    'name, text',
    [
        ('dev.csv', quoted([('text', 'label'), *ROWS])),
        ('dev.CSV', '\ufefflabel,id,text\n' + quoted((label, '1', text) for text, label in ROWS) + '\n\n'),
        ('dev.jsonl', ''.join(json.dumps({'label': label, 'text': text}) + '\n\n' for text, label in ROWS)),
    ],
)
def test_table_is_read_by_its_ending(tmp_path, name, text):
    path = write(tmp_path / name, text)
    task = task_of_file(path)
    assert (task.fields, task.label, task.head.labels) == (('text',), 'label', ('bad', 'good'))
    examples = read_examples(task, path)
    assert examples.texts == tuple((text,) for text, _ in ROWS) and examples.labels.tolist() == [1, 0, 1]


@examples(60)
@given(
    st.sampled_from(['csv', 'tsv']),
    st.lists(
        st.tuples(*[st.text('ab, "\u2028é;|', max_size=5)] * 2, st.sampled_from(['0', '1'])), min_size=1
    ),
)
def test_table_reads_what_a_table_says(tmp_path_factory, ending, rows):
    path = tmp_path_factory.mktemp('table') / f'dev.{ending}'
    if ending == 'csv':
        with open(path, 'w', newline='', encoding='utf-8') as file:
            csv.writer(file).writerows([('sentence1', 'sentence2', 'label'), *rows])
    else:
        write(path, PAIRS + ''.join('\t'.join(row) + '\n' for row in rows))
    examples = read_examples(find_task('WNLI'), path)
    assert examples.texts == tuple(row[:2] for row in rows)
    assert examples.labels.tolist() == [int(row[2]) for row in rows]


@pytest.mark.parametrize(
    'labels, kind, wanted',
    [
        (['10', '2', '1'], None, ('1', '2', '10')),
        ([1, True, 'x'], None, ('1', 'true', 'x')),
        (['1', '2.5'], None, ()),
        (['1', '2'], 'regression', ()),
        (['0.5', '2', 'NA'], None, "has numbers such as 0.5 and 'NA', which is none.* say --kind class"),
        (['0.5', '2', ''], None, "has numbers such as 0.5 and '', which is none"),
        (['0.5', '2', 'NA'], 'classification', ('0.5', '2', 'NA')),
        (['1', '2', 'NA'], None, ('1', '2', 'NA')),
        (['a', 'b', 'a;c'], None, "the label 'a;c', which may be several; say --kind multi_label"),
        (['a', 'b', 'a;c'], 'classification', ('a', 'a;c', 'b')),
        (['a', 'b', 'c, d'], None, ('a', 'b', 'c, d')),
        ([str(i) for i in range(25)], 'classification', tuple(map(str, range(25)))),
        ([str(i) for i in range(25)], None, 'say --kind regression or --kind classification'),
        ([f'word {i}' for i in range(25)], None, '25 different labels in 25 rows; say --label the column'),
        (['a', ''], None, 'a classification has two different labels or more'),
        (['a', ' '], None, 'a classification has two different labels or more'),
        (['bad', 'good', ' good'], None, "' good' and 'good', which may be the same"),
        (['bad', 'Bad', 'good'], None, "'Bad' and 'bad', which may be the same"),
        (['0', '1', '1.0'], None, "'1' and '1.0', which may be the same"),
        (['bad', 'Bad', 'good'], 'classification', ('Bad', 'bad', 'good')),
    ],
)
def test_labels_say_what_they_are_or_the_flag_that_does(labels, kind, wanted):
    table = Table(Path('x.csv'), ('text', 'label'), [(i, ('a', label)) for i, label in enumerate(labels, 2)])
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=f'x.csv: .*{wanted}'):
            head_of_table(table, ('text', 'label'), kind)
    else:
        head = head_of_table(table, ('text', 'label'), kind)
        assert head.labels == wanted and head.columns == ('text', 'label')
        assert head.kind == ('classification' if wanted else 'regression')


def test_columns_are_found_by_name_and_quotes_and_line_separators_are_what_they_are(tmp_path):
    examples = read_examples(find_task('MRPC'), write(tmp_path / 'dev.tsv', MRPC))
    assert examples.texts == (('He said " no .', 'one\u2028line'), ('"quoted"', 'b'))
    assert examples.labels.tolist() == [1, 0] and examples.indices == ('0', '1')


def test_cell_of_a_csv_may_be_as_long_as_a_book(tmp_path):
    path = write(tmp_path / 'dev.csv', f'text,label\n{"a" * 200_000},x\nb,y\n')
    assert len(read_examples(task_of_file(path), path).texts[0][0]) == 200_000


def test_the_share_that_is_held_out_is_drawn_from_the_whole_file(tmp_path):
    """Rows may be sorted by their labels; either part keeps their order, and is the same every time."""
    rows = 'sentence\tlabel\n' + ''.join(f'text {i:02d}\t{int(i > 19)}\n' for i in range(40))
    whole = read_examples(find_task('SST-2'), write(tmp_path / 'train.tsv', rows))
    (train, held), (again, _) = whole.split(0.25), whole.split(0.25)
    assert sorted((*train.texts, *held.texts)) == [*whole.texts] and train.texts == again.texts
    assert len(held) == 10 and len(whole.split(0.01)[1]) == 1
    for part in (train, held):
        assert [*part.texts] == sorted(part.texts) and len(set(part.labels.tolist())) == 2


def test_test_set_has_no_labels_and_its_own_numbers(tmp_path):
    path = write(tmp_path / 'test.tsv', 'index\tsentence\n7\tx\n\n9\ty\n')
    examples = read_examples(find_task('SST-2'), path, labelled=False)
    assert examples.labels is None and examples.indices == ('7', '9')


def test_file_without_a_header_is_read_where_the_task_says_so(tmp_path):
    rows = 'gj04\t1\t\tOne sentence.\ngj04\t0\t*\tOther one.\n'
    examples = read_examples(find_task('CoLA'), write(tmp_path / 'train.tsv', rows))
    assert examples.texts == (('One sentence.',), ('Other one.',)) and examples.labels.tolist() == [1, 0]


def test_rows_cut_short_are_left_out_only_where_they_are_known(tmp_path, caplog):
    text = 'id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n1\ta\n2\tc\td\t0\n'
    with caplog.at_level(logging.WARNING):
        assert len(read_examples(find_task('QQP'), write(tmp_path / 'train.tsv', text))) == 2
        assert len(read_examples(find_task('QQP'), tmp_path / 'train.tsv', labelled=False)) == 2
    assert caplog.text.count('1 rows are cut short') == 2
    with pytest.raises(ValueError, match='line 3 has 2 cells'):  # a test set is whole
        text = 'id\tquestion1\tquestion2\n0\ta\tb\n1\ta\n'
        read_examples(find_task('QQP'), write(tmp_path / 'test.tsv', text), labelled=False)


@pytest.mark.parametrize(
    'task, name, text, said',
    [
        ('SST-2', 'dev.tsv', 'sentence\tlabel\na\tb\t1\n', 'line 2 has 3 cells, and 2 are wanted'),
        ('SST-2', 'dev.csv', 'sentence,label\n"a\nb",1\nc,d,0\n', 'line 4 has 3 cells, and 2 are wanted'),
        ('SST-2', 'dev.csv', 'sentence,label\nc,0\n"a,1\n', 'line 3: .* stands in quotes'),
        ('SST-2', 'dev.csv', ',sentence,label\n0,a,1\n1,b\n', 'line 3 has 2 cells, and 3 are wanted'),
        ('SST-2', 'dev.tsv', 'sentence,label\na,1\n', 'commas found, tabs expected: call the file .csv'),
        ('SST-2', 'dev.csv', 'sentence;label\na;1\n', 'semicolons found, commas expected: save it with comm'),
        ('SST-2', 'dev.jsonl', '{"sentence": "a", "label": 1}\n{"sentence": "b"}', "line 2 has no 'label'"),
        ('SST-2', 'dev.jsonl', '{"sentence": 5, "label": 1}\n', "line 1 has 5 as 'sentence'"),
        ('SST-2', 'dev.jsonl', '["a", 1]\n', 'line 1: wanted a JSON object, found list'),
        ('RTE', 'dev.tsv', 'index\tsentence1\tlabel\n', "no column 'sentence2'; its header is index, sente"),
        ('RTE', 'dev.tsv', b'\xff\xfe', 'not UTF-8 at byte 0, in line 1'),
        ('RTE', 'dev.tsv', PAIRS, 'has no rows'),
        ('RTE', 'dev.tsv', f'{PAIRS}a\tb\tmaybe\n', "line 2 has the label 'maybe', wanted entailment"),
        ('SST-2', 'dev.tsv', 'sentence\tlabel\tlabel\na\t1\t0\n', "2 columns are called 'label'"),
        ('STS-B', 'dev.tsv', f'{SCORES}a\tb\tnan\n', "line 2 has the label 'nan', wanted a finite number"),
        ('STS-B', 'dev.tsv', f'{SCORES}a\tb\t1_5\n', "line 2 has the label '1_5', wanted a finite number"),
    ],
)
def test_file_that_is_not_as_it_should_be_is_refused_by_name(tmp_path, task, name, text, said):
    with pytest.raises(ValueError, match=f'{name}: .*{said}'):
        read_examples(find_task(task), write(tmp_path / name, text))


@pytest.mark.parametrize(
    'header, flags, fields, label',
    [
        ('sentence,label', {}, ('sentence',), 'label'),
        ('Quality,#1 ID,#2 ID,#1 String,#2 String', {}, ('#1 String', '#2 String'), 'Quality'),
        ('index,question,sentence,label', {}, ('question', 'sentence'), 'label'),  # QNLI, not SST-2
        ('text,verdict', {}, ('text',), 'verdict'),
        ('premise,hypothesis,verdict', {}, ('premise', 'hypothesis'), 'verdict'),
        ('subject,body,verdict', {'text': ['body']}, ('body',), 'verdict'),
        ('id,subject,body,verdict', {'text': ['subject', 'body']}, ('subject', 'body'), 'verdict'),
        ('verdict,body', {'text': ['body']}, ('body',), 'verdict'),
        ('verdict,body', {'label': 'verdict'}, ('body',), 'verdict'),
        ('verdict,subject,body', {'label': 'verdict'}, ('subject', 'body'), 'verdict'),
        ('id,text,verdict', {'label': 'verdict'}, ('text',), 'verdict'),
        ('body,label,more', {'text': ['body']}, ('body',), 'label'),
        ('comment,rude,loud', {'label': 'rude,loud'}, ('comment',), 'rude,loud'),
        ('label,body', {}, ('body',), 'label'),
        ('text,sentence,label', {'text': ['sentence']}, ('sentence',), 'label'),
        ('body,score,is_duplicate,label', {'text': ['body']}, ('body',), 'label'),
        ('id,verdict', {'text': ['id']}, ('id',), 'verdict'),
    ],
)
def test_file_with_a_header_is_read_by_its_columns_or_those_that_are_named(
    tmp_path, header, flags, fields, label
):
    names = list(enumerate(header.split(',')))
    cells = [['ab'[i % 2] if name in fields else str((i + j) % 2) for j, name in names] for i in range(4)]
    rows = map(','.join, cells)
    path = write(tmp_path / 'dev.csv', '\n'.join(['\ufeff' + header, *rows]))
    task = task_of_file(path, **flags)
    labels = ('rude', 'loud') if ',' in label else ('0', '1')
    assert (task.fields, task.label, task.head.labels) == (fields, label, labels)
    assert len(read_examples(task, path)) == 4


def test_flags_of_columns_decide_that_json_lines_with_words_are_a_table(tmp_path):
    path = tmp_path / 'dev.jsonl'
    path.write_text(
        '{"tokens": ["a", "b"], "ner_tags": ["O", "B"], "sentence": "a b", "label": "x"}\n'
        '{"tokens": ["c"], "ner_tags": ["O"], "sentence": "c", "label": "y"}\n'
    )
    assert task_of_file(path).head.kind == 'token_classification'
    assert task_of_file(path, text=['sentence']).fields == ('sentence',)
    columns = write(tmp_path / 'dev.conll', 'a O\nb B\n')
    assert task_of_file(columns, kind='token_classification').head.labels == ('O', 'B')
    with pytest.raises(ValueError, match='has no columns; leave --text, --kind out'):
        task_of_file(columns, text=['sentence'], kind='classification')


@pytest.mark.parametrize(
    'text, flags, said',
    [
        # of GLUE, to test on
        ('index,sentence1,sentence2\n0,a,b\n', {}, "its last column, 'sentence2', is of text.* dev.tsv"),
        ('a,b,c,d\n1,2,3,4\n', {}, 'its first line has the columns'),
        ('text,label\na,1\n', {}, 'no row has another label'),
        # which of two has labels?
        ('a,verdict,body\n0,0,0\n', {'text': ['body']}, '.* --text and --label name them'),
        ('a,b,c,verdict\n0,0,0,0\n', {'label': 'verdict'}, '.* --text and --label name them'),
        ('text,rude,loud\n0,0,0\n', {'label': 'rude,loud', 'kind': 'regression'}, '.*--kind says regression'),
        (',body,verdict\n0,a,0\n1,b,1\n', {}, "its column '' has numbers, .* --text and --label name"),
        ('Id,body,verdict\nx,a,0\ny,b,1\n', {}, "its column 'Id' has numbers, or names of rows"),
        ('body,rude,loud\na,0,0\nb,1,1\n', {}, "its column 'rude' has numbers"),
        ('review,body,verdict\nr1,a b,0\nr2,b,1\n', {}, "its column 'review' has numbers, or names of rows"),
        ('text,sentence,label\na,a,0\nb,b,1\n', {}, 'its columns may be sentence, label or text, label'),
    ],
)
def test_columns_that_say_too_little_are_refused_by_name(tmp_path, text, flags, said):
    with pytest.raises(ValueError, match=f'dev.csv: {said}'):
        task_of_file(write(tmp_path / 'dev.csv', text), **flags)


@pytest.mark.skipif(not GLUE.is_dir(), reason='no GLUE data beside the project')
@pytest.mark.parametrize('path', DEV_SETS, ids=['-'.join(path.parts[-2:]) for path in DEV_SETS])
def test_real_development_sets_need_no_task_to_be_read(path):
    by_name = read_examples(find_task(path.parent.name), path)
    by_columns = read_examples(task_of_file(path), path)
    assert by_columns.texts == by_name.texts and (by_columns.labels == by_name.labels).all()


def test_submission_has_the_labels_of_the_task():
    scores = np.array([[0.1, 3.0, 0.2], [5.0, 1.0, 2.0]])
    wanted = b'index\tprediction\n0\tentailment\n1\tcontradiction\n'
    assert submission(find_task('MNLI'), ('0', '1'), scores) == wanted
    assert submission(find_task('STS-B'), ('4',), np.array([[2.34567]])) == b'index\tprediction\n4\t2.346\n'


@pytest.mark.parametrize(
    'head, refused',
    [
        (Head('classification', ('a b', 'c, d')), False),
        (Head('classification', ('a', 'b\nc')), True),
        (Head('multi_label', ('a', 'b, c')), True),
        (Head('token_classification', ('O', 'a place')), True),
    ],
)
def test_submission_that_would_split_a_label_is_refused(head, refused):
    task = dataclasses.replace(find_task('SST-2'), head=head)
    said = pytest.raises(ValueError, match='a submission cannot hold the label .*test.tsv away')
    with said if refused else contextlib.nullcontext():
        check_submission(task)
