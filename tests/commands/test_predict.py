"""tools/predict.py: what it says of an input without texts."""

import types

import pytest

from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.commands import predicting
from gluon_optbert.deployment.description import SYMBOL


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    """A directory like an export, and a predictor that only counts."""
    predictor = types.SimpleNamespace(
        engine='none',
        choice='none',
        head=PRETRAINING,
        predict=lambda texts, **_: [None for _ in texts],
        cut_note='',
    )
    monkeypatch.setattr(predicting, 'Predictor', lambda *_, **__: predictor)
    (tmp_path / 'deploy').mkdir()
    (tmp_path / 'deploy' / SYMBOL).write_text('{}')
    return tmp_path / 'deploy'


def test_directory_as_input_is_refused(deployment, capsys):
    assert predicting.predict([str(deployment), '--input', str(deployment)]) == 2
    assert capsys.readouterr().err == f'error: {deployment} is a directory; give a file of lines\n'


@pytest.mark.parametrize('name', ['empty', '/dev/null'])
def test_input_without_lines_is_said_to_have_none(deployment, name, capsys):
    path = deployment / name
    if name == 'empty':
        path.write_text('')
    assert predicting.predict([str(deployment), '--input', str(path)]) == 0
    said = capsys.readouterr()
    assert said.out == ''
    assert said.err.splitlines()[-1] == f'{path}: has no lines, so there are no predictions'


@pytest.mark.parametrize(
    'words, says',
    [
        (['--text', 'a,b,c'], '--text must be one column or two'),
        (['--pooling', 'cls'], '--pooling goes with --embed'),
        (['--normalise'], '--normalise goes with --embed'),
    ],
)
def test_flags_that_nothing_reads_are_refused(deployment, words, says, capsys):
    (deployment / 'text.txt').write_text('review\na fine film\n')
    assert predicting.predict([str(deployment), '--input', str(deployment / 'text.txt'), *words]) == 2
    assert says in capsys.readouterr().err
