"""tools/score.py: what it prints, and what it refuses in one line."""

import json

import pytest
from helpers.commands import call
from helpers.questions import write_squad

from gluon_optbert.tasks.squad import Question


def test_score_stands_above_that_of_the_majority_class(tmp_path):
    (tmp_path / 'dev.tsv').write_text('sentence\tlabel\na\t1\nb\t0\nc\t1\nd\t1\n')
    (tmp_path / 'out.jsonl').write_text('{"label": "1"}\n{"label": "0"}\n{"label": "1"}\n{"label": "1"}\n')
    words = ['--task', 'sst2', '--predictions', tmp_path / 'out.jsonl', '--data', tmp_path / 'dev.tsv']
    result = call('tools/score.py', *words)
    assert result.returncode == 0, result.stderr
    assert result.stdout == 'SST-2, 4 rows: accuracy 100.00\nalways the majority class: accuracy 75.00\n'


def test_answers_are_scored_as_the_version_of_squad_has_it(tmp_path):
    path = write_squad(tmp_path / 'dev.json', [Question('q1', 'who?', 'cat', (('cat', 0),))])
    (tmp_path / 'out.json').write_text(json.dumps({'q1': 'the cat'}))
    for name, says in (
        ('SQuAD1.1', 'SQuAD 1.1: exact_match 100.00 | f1 100.00\n'),
        ('SQuAD2.0', 'SQuAD 2.0: exact 100.00 | total 1 |'),
    ):
        words = ['--task', name, '--predictions', tmp_path / 'out.json', '--data', path]
        result = call('tools/score.py', *words)
        assert result.returncode == 0 and result.stdout.startswith(says), result.stderr


@pytest.mark.parametrize(
    'words, says',
    [
        (['--task', 'IMDb'], 'is no task'),
        (['--task', 'SST-2', '--null-odds', 'x'], '--null-odds goes with'),
        (['--task', 'SQuAD'], 'needs its version: SQuAD1.1 or SQuAD2.0'),
        ([], '--task is missing'),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, says):
    result = call('tools/score.py', '--predictions', tmp_path / 'no', '--data', tmp_path / 'no', *words)
    assert result.returncode == 2 and says in result.stderr and result.stderr.count('\n') == 1
