"""tools/score.py: what it prints, and what it refuses in one line."""

import json

import pytest
from helpers.commands import refused, succeed
from helpers.questions import write_squad

from gluon_optbert.architecture.heads import Head
from gluon_optbert.tasks.squad import Question


def test_score_stands_above_that_of_the_majority_class(tmp_path):
    (tmp_path / 'dev.tsv').write_text('sentence\tlabel\na\t1\nb\t0\nc\t1\nd\t1\n')
    (tmp_path / 'out.jsonl').write_text('{"label": "1"}\n{"label": "0"}\n{"label": "1"}\n{"label": "1"}\n')
    words = ['--task', 'sst2', '--predictions', tmp_path / 'out.jsonl', '--data', tmp_path / 'dev.tsv']
    said = succeed('tools/score.py', *words)
    assert said == 'SST-2, 4 rows: accuracy 100.00\nalways the majority class: accuracy 75.00\n'
    (tmp_path / 'out.jsonl').write_text('{"label": "1"}\n' * 4)
    first, _, last = succeed('tools/score.py', *words).splitlines()
    assert first == 'SST-2, 4 rows: accuracy 75.00 *' and last.startswith('* no better than always the maj')


def test_task_is_that_of_the_network_or_of_the_columns(tmp_path):
    """A network may have labels that the data lack; its directory may be that of the predictions."""
    (tmp_path / 'dev.csv').write_text('body,mood\na,good\nb,bad\nc,good\n')
    (tmp_path / 'run').mkdir()
    for name in ('out.jsonl', 'run/out.jsonl'):
        (tmp_path / name).write_text('{"label": "good"}\n{"label": "bad"}\n{"label": "so-so"}\n')
    head = Head('classification', ('bad', 'good', 'so-so'), '', (), ('body', 'mood'))
    (tmp_path / 'run' / 'head.json').write_text(json.dumps(head.to_dict()))
    words = ['tools/score.py', '--data', tmp_path / 'dev.csv', '--predictions']
    for more in ([tmp_path / 'run' / 'out.jsonl'], [tmp_path / 'out.jsonl', '--model', tmp_path / 'run']):
        assert 'accuracy 66.67 *' in succeed(*words, *more)
    assert "the label 'so-so', wanted bad or good" in refused(*words, tmp_path / 'out.jsonl')
    (tmp_path / 'out.jsonl').write_text('{"label": "good"}\n{"label": "bad"}\n{"label": "bad"}\n')
    said = succeed(*words, tmp_path / 'out.jsonl', '--text', 'body', '--label', 'mood')
    assert said.startswith('dev, 3 rows: accuracy 66.67 *')


def test_answers_are_scored_as_the_version_of_squad_has_it(tmp_path):
    path = write_squad(tmp_path / 'dev.json', [Question('q1', 'who?', 'cat', (('cat', 0),))])
    (tmp_path / 'out.json').write_text(json.dumps({'q1': 'the cat'}))
    for name, says in (
        ('SQuAD1.1', 'SQuAD 1.1: exact_match 100.00 | f1 100.00\n'),
        ('SQuAD2.0', 'SQuAD 2.0: exact 100.00 | total 1 |'),
    ):
        words = ['--predictions', tmp_path / 'out.json', '--data', path]
        assert succeed('tools/score.py', '--task', name, *words).startswith(says)
    for flag in ('--text', '--label', '--labels'):
        assert f'{flag} goes with a table' in refused('tools/score.py', *words, flag, 'x')


@pytest.mark.parametrize(
    'words, says',
    [
        (['--task', 'SST-2', '--null-odds', 'x'], '--null-odds goes with'),
        (['--model', 'docs'], 'docs names no task'),
        (['--task', 'SQuAD'], 'needs its version: SQuAD1.1 or SQuAD2.0'),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, says):
    files = ('--predictions', tmp_path / 'no', '--data', tmp_path / 'no')
    assert says in refused('tools/score.py', *files, *words)
