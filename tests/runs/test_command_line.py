"""A command that fails says so once, whatever started its workers."""

import subprocess
import sys

import pytest
from helpers.tiny import environment
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import LONGEST_MESSAGE, shown
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.text.make_shards import ShardRecipe

FAILS = """
from gluon_optbert.runs.command_line import command

@command
def main(argv=None):
    raise ValueError('bad input')

raise SystemExit(main())
"""


@pytest.mark.parametrize('launcher', ['HOROVOD_RANK', 'OMPI_COMM_WORLD_RANK'])
def test_workers_but_the_first_speak_under_their_rank(launcher):
    done = [
        subprocess.run(
            [sys.executable, '-c', FAILS], env=environment(**{launcher: rank}), capture_output=True, text=True
        )
        for rank in '01'
    ]
    assert [one.returncode for one in done] == [2, 2]
    assert [one.stderr for one in done] == ['error: bad input\n', '[rank 1] error: bad input\n']


@pytest.mark.parametrize('content', ['A sentence.', 'a: b: c', '\t1\n', None])
def test_what_is_no_recipe_where_one_may_stand_is_asked_for_its_flag(tmp_path, content):
    path = tmp_path / 'words.txt'
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(RecipeError, match='words.txt is no recipe: which flag is it for'):
        parse(ShardRecipe, [str(path), '--output', 'shards'], description='.', example='.')


@given(st.text(st.characters()) | st.text('\n \x1b\u202e\r', max_size=400))
def test_words_of_a_file_neither_control_a_terminal_nor_fill_it(text):
    said = shown(text * 3)
    assert len(said) <= LONGEST_MESSAGE
    assert all(line.isprintable() for line in said.split('\n'))
    assert all(line.startswith('  ') for line in said.split('\n')[1:])


def test_notes_and_warnings_are_shown_as_errors_are():
    program = """
import logging
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.failures import say

@command
def main(argv=None):
    say('note: \\x1b[2J\\nnext: rm' + 'a' * 900, 'dropped: none')
    logging.getLogger('gluon_optbert.tasks').warning('%s: damaged', '\\x1b[2J\\nerror: no' + 'a' * 900)

raise SystemExit(main())
"""
    done = subprocess.run([sys.executable, '-c', program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0
    (note, other), (warning,) = done.stdout.splitlines(), done.stderr.splitlines()
    assert note.startswith('note: \\x1b[2J\\nnext: rm') and other == 'dropped: none'
    assert warning.startswith('\\x1b[2J\\nerror: no')
    assert len(note) == len(warning) == LONGEST_MESSAGE


def allocate():
    raise MemoryError('Unable to allocate 9.1 TiB')


def write_to_a_full_disk():
    raise SafetensorError('Error while serializing: I/O error: No space left on device (os error 28)')


def run_out_in_a_library():
    raise RuntimeError('Check failed:\n  Failed to allocate CPU Memory\nStack trace:\n  [bt] (0)')


@pytest.mark.parametrize(
    'fail, said',
    [
        (allocate, 'error: not enough memory: Unable to allocate 9.1 TiB'),
        (write_to_a_full_disk, 'error: not enough disk: No space left on device'),
        (run_out_in_a_library, 'error: not enough memory: Failed to allocate CPU Memory Stack trace'),
    ],
)
def test_what_uses_up_memory_or_disk_is_one_line(capsys, fail, said):
    assert command(lambda argv: fail())() == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(said)


def test_other_errors_are_not_hidden():
    def broken(argv):
        raise KeyError('a bug')

    with pytest.raises(KeyError):
        command(broken)()
