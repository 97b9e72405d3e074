"""A command that fails says so once, whatever started its workers, and what it says is harmless."""

import subprocess
import sys

import pytest
from helpers.tiny import environment
from hypothesis import given, strategies as st

from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import LONGEST_MESSAGE, NotInstalled, shown
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.text.make_shards import ShardRecipe

FAILS = """
import logging
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.failures import say

@command
def main(argv=None):
    say('note: \\x1b[2J\\nnext: rm' + 'a' * 900, 'dropped: none')
    logging.getLogger('gluon_optbert.tasks').warning('%s: damaged', '\\x1b[2J\\nerror: no' + 'a' * 900)
    raise ValueError('bad input')

raise SystemExit(main())
"""


@pytest.mark.parametrize(
    'launched, said',
    [
        ({'HOROVOD_RANK': '0'}, 'error: bad input'),
        ({'OMPI_COMM_WORLD_RANK': '1'}, '[rank 1] error: bad input'),
    ],
)
def test_what_a_command_says_is_shown_safely_and_under_the_rank_of_its_worker(launched, said):
    done = subprocess.run(
        [sys.executable, '-c', FAILS], env=environment(**launched), capture_output=True, text=True
    )
    (note, other), (warning, error) = done.stdout.splitlines(), done.stderr.splitlines()
    assert (done.returncode, error) == (2, said)
    assert note.startswith('note: \\x1b[2J\\nnext: rm') and other == 'dropped: none'
    assert warning.startswith('\\x1b[2J\\nerror: no') and len(note) == len(warning) == LONGEST_MESSAGE


@pytest.mark.parametrize(
    'word, said',
    [
        ('words.txt', 'words.txt is no recipe: which flag is it for'),
        ('.', '. is no recipe: which flag is it for'),
        ('', 'RECIPE must not be empty'),  # a variable of the shell that is not set
    ],
)
def test_what_is_no_recipe_where_one_may_stand_is_refused(tmp_path, monkeypatch, word, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'words.txt').write_text('a: b: c')
    with pytest.raises(RecipeError, match=said):
        parse(ShardRecipe, [word, '--output', 'shards'], description='.', example='.')


@given(st.text('a\n \x1b\u202e\r', max_size=200))
def test_words_of_a_file_neither_control_a_terminal_nor_fill_it(text):
    said = shown(text * 6)
    assert len(said) <= LONGEST_MESSAGE
    assert all(line.isprintable() for line in said.split('\n'))
    assert all(line.startswith('  ') for line in said.split('\n')[1:])


@pytest.mark.parametrize(
    'error, said',
    [
        (MemoryError('Unable to allocate 9 TiB'), 'not enough memory: Unable to allocate 9 TiB'),
        (RuntimeError('I/O: No space left on device (28)'), 'not enough disk: No space left on device'),
        (RuntimeError('failed:\n  Failed to allocate X\n  y'), 'not enough memory: Failed to allocate X y'),
        (NotInstalled('x is not installed: pip install x', name='x'), 'x is not installed: pip install x'),
    ],
)
def test_what_runs_out_or_is_missing_is_one_line_and_other_errors_are_not_hidden(capsys, error, said):
    def fail(argv):
        raise error

    assert command(fail)() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f'error: {said}')
    error = KeyError('a bug')
    with pytest.raises(KeyError):
        command(fail)()
