"""The texts of predictions: lines, JSON lines, questions, and the files of a task."""

import dataclasses
import json
from pathlib import Path

import pytest
from helpers.questions import write, write_squad

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.instances import (
    Instance,
    check_texts,
    instance_of,
    instance_of_json,
    read_instances,
    stream_instances,
)
from gluon_optbert.tasks.squad import Question
from gluon_optbert.tasks.task import find_task

GLUE = Path(__file__).parents[3] / 'shared' / 'data' / 'glue'
GLUE_FILES = [path for path in sorted(GLUE.glob('*/*.tsv')) if path.stem != 'train']
SST2, MRPC = find_task('SST-2').head, find_task('MRPC').head
OWN = Head('classification', ('bad', 'good'), columns=('review', 'verdict'))
ASKS = Head('question_answering')
SEVERAL = Head('multi_label', ('news', 'rock|pop'), columns=('text', 'news,rock|pop'))


def texts(instances):
    return [(one.first, one.second, one.label) for one in instances]


def test_lines_are_instances():
    assert instance_of('a\tb\r\n') == Instance('a', 'b') and instance_of('') == Instance('')
    assert instance_of('a\tyes', labelled=True) == Instance('a', None, 'yes')
    assert instance_of('a\tb\tno\n', labelled=True) == Instance('a', 'b', 'no')


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = write(tmp_path / 'text', b'\xef\xbb\xbfa\rb\r\nc\xe2\x80\xa8d\x0be\n')
    for instances in (read_instances(path), list(stream_instances(path))):
        assert [one.first for one in instances] == ['a\rb', 'c\u2028d\x0be']


@pytest.mark.parametrize('name', ['SST-2', 'QNLI', 'STS-B'])
def test_labelled_file_of_a_task_is_read_by_its_columns(tmp_path, name):
    task = find_task(name)
    label = task.head.labels[1] if task.head.labels else '2.5'
    wanted = [f'text of {field}' for field in task.fields]
    cells = {'idx': '7', **dict(zip(task.fields, wanted)), task.label: label}
    lines = ['\t'.join(cells), '\t'.join(cells.values())]
    path = write(tmp_path / 'dev.tsv', '\ufeff' + '\n'.join(lines) + '\n')
    (one,) = read_instances(path, task.head, labelled=True)
    assert [one.first, one.second][: len(wanted)] == wanted and one.label == label
    (one,) = stream_instances(path, task.head)
    assert [one.first, one.second][: len(wanted)] == wanted and one.label is None


def test_labelled_texts_need_no_header(tmp_path):
    path = write(tmp_path / 'dev.tsv', 'gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n')
    instances = read_instances(path, find_task('CoLA').head, labelled=True)
    assert texts(instances) == [('One.', None, '1'), ('Two.', None, '0')]
    for first, second in (('1', '0'), ('positive', 'NEGATIVE')):  # as in a table
        path = write(tmp_path / 'text', f'a\t{first}\n\nb\t{second}\n')
        assert texts(read_instances(path, SST2, labelled=True)) == [('a', None, '1'), ('b', None, '0')]
    path = write(tmp_path / 'text.txt', 'sentence\n')  # no header, though a column has the name
    assert texts(stream_instances(path, SST2)) == [('sentence', None, None)]


def test_first_line_with_another_label_is_taken_for_a_header_and_said(tmp_path, caplog):
    head = Head('classification', ('bad', 'good'), 'Reviews')  # whose columns are not known
    path = write(tmp_path / 'dev.txt', 'text\tverdict\na\tgood\n')
    assert texts(read_instances(path, head, labelled=True)) == [('a', None, 'good')]
    assert 'dev.txt: line 1 is taken for a header' in caplog.text


@pytest.mark.parametrize(
    'head, name, content, wanted',
    [
        (OWN, 'dev.csv', 'verdict,review\ngood,"a, b"\n', [('a, b', None, 'good')]),
        (OWN, 'dev.tsv', 'verdict\treview\nGOOD\ta\n', [('a', None, 'good')]),
        (Head('regression'), 'dev.csv', 'id,text,label\n1,a,2\n', [('a', None, '2.0')]),
        (Head('regression'), 'dev.csv', 'text,stars\na,2\n', [('a', None, '2.0')]),
        (Head('regression'), 'dev.csv', 'sentence1,sentence2,label\na,b,1\n', [('a', 'b', '1.0')]),
    ],
)
def test_header_and_labels_of_a_table_are_never_predicted(tmp_path, head, name, content, wanted):
    path = write(tmp_path / name, content)
    assert texts(read_instances(path, head, labelled=True)) == wanted
    assert texts(stream_instances(path, head)) == [(*pair, None) for *pair, _ in wanted]


STARS = 'its header .title, stars. has no columns .* --text'
HALF = 'half of a character, a lone surrogate, in .*ud'


@pytest.mark.parametrize(
    'head, name, content, says',
    [
        (Head(), 'text', '\n \n', 'text: no text'),
        (Head(), 'text', b'a\t1\n' * 1000 + b'\xff', 'text: line 1001 is not UTF-8'),
        (SST2, 'dev.tsv', 'sentence\tlabel\na\tb\t1\n', 'dev.tsv: line 2 has 3 cells'),
        (SST2, 'dev.tsv', 'sentence\tlabel\nb\t2\n', "dev.tsv: line 2 has the label '2', wanted 0 or 1"),
        (SST2, 'dev.txt', 'a\tb\tc\t0\n', "dev.txt: line 1: 4 columns.* header has 'sentence' and 'label'"),
        (MRPC, 'dev.txt', 'a\tb\t1\nc\t0\n', 'dev.txt: line 2: one text, and MRPC is a task on pairs'),
        (SST2, 'dev.tsv', 'a\t1\n', "'a, 1' has no columns 'sentence' and 'label'.* ends with .txt"),
        (OWN, 'dev.csv', 'title,stars\na,1\n', STARS),
        (Head('regression'), 'dev.tsv', 'title\tstars\na\t1\n', STARS),
        (Head('regression'), 'dev.csv', 'stars,text\n7,5\n', "has no columns 'text' and 'label'"),
        (OWN, 'dev.csv', 'review;verdict\na;good\n', 'semicolons found, commas expected'),
        (ASKS, 'dev.csv', 'context,question,id\na,who?,a\n', "'question' and 'context' and 'answer'"),
        (SEVERAL, 'dev.csv', 'text,news,rock|pop\na,1,2\n', 'dev.csv: line 2 has .2. where 0 or 1'),
        (Head(), 'text.jsonl', '{"text": "a", "label": 1}\n[]\n', 'text.jsonl: line 2: wanted an object'),
        (Head(), 'text.jsonl', '{"text": 1}\n', 'text.jsonl: line 1: wanted an object'),
        (Head(), 'text.jsonl', '{"text": null, "pair": "a"}\n', 'text.jsonl: line 1: wanted an object'),
        (Head(), 'text.jsonl', '{"text": "a \\ud800", "label": 1}\n', f'text.jsonl: line 1: {HALF}'),
        (Head(), 'text.jsonl', '{"question": "a", "context": "\\udfff"}\n', f'jsonl: line 1: {HALF}'),
        (Head(), 'text.jsonl', '{"text": "a", "id": "\\ud800"}\n', f'text.jsonl: line 1: {HALF}'),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_line(tmp_path, head, name, content, says):
    with pytest.raises(ValueError, match=says):
        read_instances(write(tmp_path / name, content), head, labelled=True)


def test_an_empty_cell_is_a_text_and_what_may_be_one_is_refused(tmp_path):
    rows = 'review\na\n""\n\nb\n'
    assert texts(stream_instances(write(tmp_path / 'a.csv', rows), OWN)) == [
        ('a', None, None),
        ('', None, None),
        ('b', None, None),
    ]
    path = write(tmp_path / 'a.tsv', 'review\na\n\nb\n')
    with pytest.raises(ValueError, match='a.tsv: line 3 is blank, and may be an empty text'):
        list(stream_instances(path, OWN))
    assert len(list(stream_instances(write(path, '\nreview\na\nb\n\n'), OWN))) == 2


def test_what_is_wrong_is_named_where_it_is_streamed(tmp_path):
    path = write(tmp_path / 'text', b'a\n' * 1000 + b'\xff')
    with pytest.raises(ValueError, match='text: line 1001 is not UTF-8'):
        list(stream_instances(path))
    path = write(tmp_path / 'text.jsonl', '{"text": "a"}\n{"text": "a \\ud800"}\n')
    with pytest.raises(ValueError, match=f'text.jsonl: line 2: {HALF}'):
        list(stream_instances(path))
    path = write_squad(tmp_path / 'dev.json', [Question('q1', 'a', 'b \ud800', ())])
    with pytest.raises(ValueError, match='dev.json: question q1: half of a character'):
        list(stream_instances(path))
    with pytest.raises(ValueError, match=STARS):
        list(stream_instances(write(tmp_path / 'dev.csv', 'title,stars\na,1\n'), OWN))
    with pytest.raises(FileNotFoundError):
        read_instances(tmp_path / 'other')
    lines = stream_instances(write(tmp_path / 'dev.tsv', 'a\tb\n'), Head('regression'), format='lines')
    assert texts(lines) == [('a', 'b', None)]


@pytest.mark.skipif(not GLUE.is_dir(), reason='no GLUE data beside the project')
@pytest.mark.parametrize('path', GLUE_FILES, ids=['-'.join(path.parts[-2:]) for path in GLUE_FILES])
def test_every_file_of_glue_is_read(path):
    head = find_task(path.parent.name).head
    rows = len(path.read_text(encoding='utf-8').rstrip('\n').split('\n')) - 1
    assert len(list(stream_instances(path, head))) == rows
    if 'test' not in path.stem:
        labelled = read_instances(path, head, labelled=True)
        assert len(labelled) == rows and {one.label for one in labelled} == set(head.labels)


@pytest.mark.parametrize(
    'values, wanted',
    [
        ({'text': 'a', 'pair': 'b', 'id': 7}, Instance('a', 'b', id=7)),
        ({'question': 'a', 'context': 'b\tc', 'id': 'q', 'score': 1}, Instance('a', 'b\tc', id='q')),
        ({'sentence': 'a', 'label': 1}, Instance('a', label='1')),
        ({'text': 'a', 'pair': None, 'id': None}, Instance('a')),
        ({'sentence': None, 'text': 'a', 'pair': 'b'}, Instance('a', 'b')),
    ],
)
def test_json_lines_are_instances(values, wanted):
    assert instance_of_json(json.dumps(values), SST2) == wanted


def test_json_lines_have_the_columns_of_the_task():
    qnli, reviews = find_task('QNLI').head, Head('classification', ('0', '1'), columns=('text', 'verdict'))
    assert instance_of_json('{"question": "a", "sentence": "b"}', qnli) == Instance('a', 'b')
    with pytest.raises(ValueError, match='two texts'):
        check_texts(instance_of_json('{"text": "a", "pair": "b"}', reviews), reviews)
    for head in (Head(), Head('classification', ('0', '1'))):  # which say nothing of their texts
        check_texts(Instance('a'), head)
        check_texts(Instance('a', 'b'), head)


def test_squads_questions_keep_ids_contexts_and_answers(tmp_path):
    asked = [Question('q1', 'who?', 'one\ntwo', (('one', 0), ('two', 4))), Question('q2', 'why?', 'none', ())]
    instances = read_instances(write_squad(tmp_path / 'dev.json', asked), labelled=True)
    assert [(one.id, one.first, one.second, one.answers, one.label) for one in instances] == [
        ('q1', 'who?', 'one\ntwo', ('one', 'two'), 'one'),
        ('q2', 'why?', 'none', (), ''),
    ]


@pytest.mark.parametrize('ending, mark', [('csv', ','), ('tsv', '\t')])
def test_tables_of_sentences_to_tag_and_of_questions_are_read_by_their_header(tmp_path, ending, mark):
    tags = Head('token_classification', ('O', 'B-town'), columns=('words', 'tags'))
    for name, head in (('words', tags), ('body', dataclasses.replace(tags, columns=('body', 'tags')))):
        path = write(tmp_path / f'words.{ending}', f'id{mark}{name}\n7{mark}a b c\n8{mark}d\n')
        assert texts(stream_instances(path, head)) == [('a b c', None, None), ('d', None, None)]
    rows = ('context', 'question', 'answer'), ('a b', 'who?', 'a'), ('c', 'why?', '')
    path = write(tmp_path / f'asked.{ending}', ''.join(f'{mark.join(row)}\n' for row in rows))
    assert texts(stream_instances(path, ASKS)) == [('who?', 'a b', None), ('why?', 'c', None)]
    labelled = read_instances(path, ASKS, labelled=True)
    assert texts(labelled) == [('who?', 'a b', 'a'), ('why?', 'c', '')]


def test_a_column_for_each_label_is_read_and_a_column_of_text_is_none_of_labels(tmp_path):
    path = write(tmp_path / 'dev.csv', 'text,news,rock|pop\na,1,0\nb,1,1\nc,0,0\n')
    found = read_instances(path, SEVERAL, labelled=True)
    assert [one.answers for one in found] == [('news',), ('news', 'rock|pop'), ()]
    path = write(tmp_path / 'texts.csv', 'stars,text\n7,5\n')
    assert texts(stream_instances(path, Head('regression'))) == [('5', None, None)]


def test_labels_of_json_lines_are_those_of_a_table(tmp_path):
    """In any capitals; and in a list, a label may have a comma."""
    head = Head('multi_label', ('news', 'Paris, France'), columns=('text', 'label'))
    rows = [{'text': 'a', 'label': ['News', 'Paris, France']}, {'text': 'b', 'label': []}]
    path = write(tmp_path / 'dev.jsonl', ''.join(json.dumps(row) + '\n' for row in rows))
    found = read_instances(path, head, labelled=True)
    assert [one.answers for one in found] == [('news', 'Paris, France'), ()]
    keys = [{'text': 'a', 'news': 0, 'rock|pop': True}, {'text': 'b', 'news': '0', 'rock|pop': 0}]
    path = write(tmp_path / 'keys.jsonl', ''.join(json.dumps(row) + '\n' for row in keys))
    assert [one.answers for one in read_instances(path, SEVERAL, labelled=True)] == [('rock|pop',), ()]
    with pytest.raises(ValueError, match='line has 2 where 0 or 1 is wanted'):
        instance_of_json('{"text": "a", "news": 2, "rock|pop": 0}', SEVERAL, labelled=True)
    unread = instance_of_json('{"text": "a", "news": null, "rock|pop": 0.7}', SEVERAL)  # only predicted
    assert unread == Instance('a')
    tags = Head('token_classification', ('O', 'B-town'))
    path = write(tmp_path / 'tags.jsonl', json.dumps({'words': ['a', 'b'], 'tags': ['o', 'b-TOWN']}) + '\n')
    assert [one.answers for one in read_instances(path, tags, labelled=True)] == [('O', 'B-town')]
    assert instance_of_json('{"text": null, "words": ["a", "b"]}', tags) == Instance('a b', words=('a', 'b'))


def test_labels_are_looked_up_in_one_table_for_all_lines(tmp_path, monkeypatch):
    """Of thousands of labels, a table for each line would take minutes."""
    made, numbers = [], Head.numbers.fget
    monkeypatch.setattr(Head, 'numbers', property(lambda head: made.append(head) or numbers(head)))
    path = write(tmp_path / 'text', 'a\tBAD\n' * 9)
    assert texts(read_instances(path, OWN, labelled=True)) == [('a', None, 'bad')] * 9
    assert len(made) == 2  # one of them to tell a header


def test_columns_that_are_named_are_read_or_refused(tmp_path):
    rows = write(tmp_path / 'rows.csv', 'body,review\na,b\n')
    lines = write(tmp_path / 'rows.jsonl', '{"body": "a", "text": "b"}\n')
    for path in (rows, lines):
        assert texts(stream_instances(path, OWN, text=('body',))) == [('a', None, None)]
    text = write(tmp_path / 'rows.txt', 'body\na\n')
    for path, format in ((text, None), (rows, 'lines'), (None, None)):
        with pytest.raises(ValueError, match="read as lines, and has no column 'body'; --text goes with"):
            list(stream_instances(path, OWN, format=format, text=('body',)))
    with pytest.raises(ValueError, match="wanted an object with the texts 'title'"):
        list(stream_instances(lines, OWN, text=('title',)))
    tags = Head('token_classification', ('O', 'B-town'))
    line = '{"tokens": ["a", "b"], "body": "c d", "own": ["e", "f"]}'
    found = [instance_of_json(line, tags, text=(name,)).first for name in ('tokens', 'body', 'own')]
    assert found == ['a b', 'c d', 'e f']


def test_only_as_many_lines_are_read_as_are_wanted(tmp_path):
    path = write(tmp_path / 'text', b'a\n\nb\n' + b'c\n' * 100_000 + b'\xff\n')
    assert texts(read_instances(path, most=2)) == [('a', None, None), ('b', None, None)]
