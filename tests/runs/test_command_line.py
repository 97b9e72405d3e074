"""A command that fails says so once, whatever started its workers."""

import subprocess
import sys

import pytest
from helpers.tiny import environment

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
