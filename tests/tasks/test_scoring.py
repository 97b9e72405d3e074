"""Scores of files of predictions: both forms, and every file that does not fit."""

import json

import numpy as np
import pytest
from helpers.questions import write, write_squad

from gluon_optbert.tasks.examples import submission, task_of_file
from gluon_optbert.tasks.scoring import score_squad, score_task, squad_version
from gluon_optbert.tasks.squad import Question
from gluon_optbert.tasks.task import find_task

SST2, STSB = find_task('SST-2'), find_task('STS-B')
DEV = 'sentence\tlabel\na\t1\nb\t0\nc\t1\nd\t1\n'
LABELS = ['1', '1', '1', '0']


def as_lines(*records):
    return ''.join(json.dumps(record) + '\n' for record in records)


@pytest.fixture
def dev(tmp_path):
    return write(tmp_path / 'dev.tsv', DEV)


def test_submission_and_json_lines_have_one_score(tmp_path, dev):
    one = np.eye(2)[[int(label) for label in LABELS]]
    (tmp_path / 'SST-2.tsv').write_bytes(submission(SST2, ('0', '1', '2', '3'), one))
    records = [{'text': text, 'label': label, 'cut': text in 'ac'} for text, label in zip('abcd', LABELS)]
    write(tmp_path / 'out.jsonl', as_lines(*records))
    for name, noted in (('SST-2.tsv', []), ('out.jsonl', ['2 of 4 texts were cut'])):
        scores, examples, notes = score_task(SST2, dev, tmp_path / name)
        assert scores == {'accuracy': 50.0} and len(examples) == 4
        assert [note.partition(' when')[0] for note in notes] == noted


def test_submission_is_matched_by_the_index_of_the_data(tmp_path):
    dev = write(tmp_path / 'dev.tsv', 'index\tsentence\tlabel\n7\ta\t1\n9\tb\t0\n')
    path = write(tmp_path / 'out.tsv', 'index\tprediction\n9\t0\n7\t1\n')
    assert score_task(SST2, dev, path)[0] == {'accuracy': 100.0}


def test_submission_scores_a_file_with_rows_that_are_cut_short(tmp_path):
    """A row of QQP that lacks nothing but its label is left out of both."""
    rows = '0\ta\tb\t1\n1\tc\td\n2\te\tf\t0\n'
    dev = write(tmp_path / 'dev.tsv', f'id\tquestion1\tquestion2\tis_duplicate\n{rows}')
    path = write(tmp_path / 'out.tsv', 'index\tprediction\n0\t1\n2\t0\n')
    assert score_task(find_task('QQP'), dev, path)[0]['accuracy'] == 100.0


def test_tags_have_one_score_in_both_forms_and_are_as_many_as_the_words(tmp_path):
    data = write(tmp_path / 'dev.conll', 'a B-x\nb O\n\nc B-x\n')
    task = task_of_file(data)
    scores = [np.eye(2)[[task.head.labels.index(tag) for tag in tags]] for tags in (['B-x', 'O'], ['O'])]
    paths = [
        write(tmp_path / 'out.tsv', submission(task, ('0', '1'), scores)),
        write(tmp_path / 'out.jsonl', as_lines({'tags': ['B-x', 'O']}, {'text': 'c', 'tags': ['O']})),
    ]
    assert [score_task(task, data, path)[0]['entity_recall'] for path in paths] == [50.0, 50.0]
    with pytest.raises(ValueError, match='out.jsonl: line 1 has 1 tags for 2 words'):
        score_task(task, data, write(paths[1], as_lines({'tags': ['O']}, {'tags': ['O']})))


@pytest.mark.parametrize(
    'name, content, says',
    [
        ('out.tsv', 'index\tprediction\n0\t1\n', '1 predictions for 4 rows; the row with the index 1 has'),
        ('out.tsv', 'index\tprediction\n0\t1\n0\t1\n', 'line 3 has the index 0 again'),
        ('out.tsv', 'index\tprediction\n0\t0\n1\t2\n2\t0\n3\t0\n', "line 3 has the label '2', wanted 0 or 1"),
        ('out.jsonl', '{"label": "1"}\n', '1 predictions for 4 rows'),
        ('out.jsonl', as_lines(*({'value': 1},) * 4), "line 1 has no 'label'"),
    ],
)
def test_predictions_that_do_not_fit_are_refused_by_name(tmp_path, dev, name, content, says):
    with pytest.raises(ValueError, match=f'{name}: {says}'):
        score_task(SST2, dev, write(tmp_path / name, content))


def test_predictions_of_pairs_in_another_order_are_refused(tmp_path):
    """The first texts are equal."""
    dev = write(tmp_path / 'dev.tsv', 'sentence1\tsentence2\tscore\na\tb\t1\na\tc\t2\na\td\t4\n')
    records = [{'text': 'a', 'pair': pair, 'value': value} for pair, value in (('b', 1), ('c', 2), ('d', 4))]
    scores = score_task(STSB, dev, write(tmp_path / 'out.jsonl', as_lines(*records)))[0]
    assert scores['pearson'] == pytest.approx(100)
    with pytest.raises(ValueError, match="out.jsonl: line 1 is of 'd', and the data has 'b' there"):
        score_task(STSB, dev, write(tmp_path / 'out.jsonl', as_lines(*reversed(records))))


def test_a_row_without_a_correlation_is_refused_by_name(tmp_path):
    dev = write(tmp_path / 'dev.tsv', 'sentence1\tsentence2\tscore\na\tb\t1\n')
    with pytest.raises(ValueError, match='dev.tsv: a correlation needs at least two rows, found 1'):
        score_task(STSB, dev, write(tmp_path / 'out.jsonl', as_lines({'value': 1})))


@pytest.fixture
def questions(tmp_path):
    return write_squad(
        tmp_path / 'dev.json',
        [
            Question('q1', 'who?', 'the cat sat', (('the cat', 0), ('cat', 4))),
            Question('q2', 'why?', 'none', ()),
        ],
    )


def test_both_forms_of_answers_have_one_score(tmp_path, questions):
    for name, content in (
        ('predictions.json', json.dumps({'q1': 'Cat', 'q2': 'none'})),
        ('out.jsonl', as_lines({'id': 'q1', 'text': 'Cat'}, {'id': 'q2', 'text': 'none'})),
    ):
        scores, _, notes = score_squad('2.0', questions, write(tmp_path / name, content))
        assert (scores['exact'], scores['HasAns_f1'], scores['NoAns_f1'], notes) == (50.0, 100.0, 0.0, [])
    odds = write(tmp_path / 'null_odds.json', json.dumps({'q1': -3.0, 'q2': 2.0}))
    scores, majority, _ = score_squad('2.0', questions, tmp_path / 'predictions.json', odds)
    assert (scores['best_exact'], scores['best_exact_thresh'], scores['exact']) == (100.0, -3.0, 50.0)
    write(odds, '{"q1": -3, "q2": 1%s}' % ('0' * 400))  # more than a float holds
    assert score_squad('2.0', questions, tmp_path / 'predictions.json', odds)[0]['best_exact'] == 100.0
    for content, said in (
        ('{"q1": 1}', '1 of 2 questions have no odds, the first is q2'),
        ('{"q1": NaN, "q2": 2.0}', 'wanted a JSON object of finite numbers'),
    ):
        with pytest.raises(ValueError, match=f'null_odds.json: {said}'):
            score_squad('2.0', questions, tmp_path / 'predictions.json', write(odds, content))


def test_one_prediction_in_a_line_of_json_is_no_mapping(tmp_path):
    path = write_squad(tmp_path / 'dev.json', [Question('q1', 'who?', 'cat', (('cat', 0),))])
    for name, content in (('a.jsonl', as_lines({'id': 'q1', 'text': 'cat'})), ('b.json', '{"q1": "cat"}')):
        scores, _, notes = score_squad('1.1', path, write(tmp_path / name, content))
        assert scores == {'exact_match': 100.0, 'f1': 100.0} and notes == []
    *_, notes = score_squad('1.1', path, write(tmp_path / 'none.json', '{}'))
    assert notes == ['1 of 1 questions have no prediction; they count as wrong']


@pytest.mark.parametrize(
    'version, content, says',
    [
        ('1.1', '{}', 'dev.json: 1 questions have no answer, the first is q2; .*SQuAD2.0'),
        ('2.0', '{"q1": "cat"}', 'out: 1 of 2 questions have no prediction, the first is q2'),
        ('2.0', '{"q1": 1}', 'out: the answer to q1 is no text'),
        ('2.0', '{"id": "q1"}', "out: line 1 has no 'id' and 'text'"),
        ('2.0', as_lines({'id': 'q1', 'text': 'a'}, {'id': 'q1', 'text': 'b'}), 'line 2 has the id q1 again'),
    ],
)
def test_answers_that_do_not_fit_are_refused_by_name(tmp_path, questions, version, content, says):
    with pytest.raises(ValueError, match=says):
        score_squad(version, questions, write(tmp_path / 'out', content))


def test_versions_of_squad_have_names():
    names = {'SQuAD2.0': '2.0', 'squad v1.1': '1.1', 'SQuAD-1.1': '1.1', 'SST-2': None, 'squad': None}
    assert {name: squad_version(name) for name in names} == names
