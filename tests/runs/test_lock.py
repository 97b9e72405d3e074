"""Locks: one process at a time writes an output, who else asks is told who, and a dead holder holds none."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from helpers.tiny import environment

from gluon_optbert.runs.failures import Interrupted
from gluon_optbert.runs.files import InUse, lock_file, locked, new_output, running

HOLDER = """
import os, sys, time
from gluon_optbert.runs.files import locked
with locked(sys.argv[1]):
    if sys.argv[2] == 'alone' or not os.fork():
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def start_holder(output, how='alone'):
    """A process that holds the lock of an output; its process id, or that of the child that it forks."""
    holder = subprocess.Popen(
        [sys.executable, '-c', HOLDER, str(output), how],
        env=environment(),
        stdout=subprocess.PIPE,
        universal_newlines=True,
    )
    return holder, int(holder.stdout.readline())


@pytest.fixture
def holder(tmp_path):
    """A living process that holds the lock of ``run``."""
    process, _ = start_holder(tmp_path / 'run')
    yield process
    process.kill()
    process.wait()


class Ranks:
    """The first of two workers, or the other one, whose sum is what both would give."""

    def __init__(self, first, total=0.0):
        self.first, self._total = first, total

    def barrier(self, name):
        raise AssertionError('not needed')

    def sum(self, values, *, name):
        return [max(self._total, *map(float, values))]


def test_output_of_another_process_is_refused_by_any_name_until_that_is_killed(holder, tmp_path):
    (tmp_path / 'link').symlink_to(tmp_path)
    said = re.escape(f'run: process {holder.pid} on host {socket.gethostname()}')
    for output in (tmp_path / 'run', tmp_path / 'link' / 'run'):
        with pytest.raises(InUse, match=rf'{said} \(since 2\d\d\d-.*\) is writing it; wait'), locked(output):
            raise AssertionError('two processes hold the lock')
    with locked(tmp_path / 'run2'):
        pass
    with pytest.raises(InUse, match=f'process {holder.pid}'), locked(tmp_path / 'run', Ranks(first=True)):
        raise AssertionError('went on')
    with pytest.raises(InUse, match='rank 0'), locked(tmp_path / 'run', Ranks(first=False, total=1.0)):
        raise AssertionError('went on')
    (tmp_path / 'run').mkdir()  # the process is killed behind its last write
    holder.kill()
    holder.wait()
    assert lock_file(tmp_path / 'run').exists()
    with (
        pytest.raises(FileExistsError, match='nothing is overwritten; give another'),
        new_output(tmp_path / 'run'),
    ):
        raise AssertionError('went on')
    assert {path.name for path in tmp_path.iterdir()} == {'run', 'link'}


def test_child_of_a_killed_process_holds_nothing(tmp_path):
    process, child = start_holder(tmp_path / 'run', 'forks')
    try:
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        with locked(tmp_path / 'run'):
            assert json.loads(lock_file(tmp_path / 'run').read_text())['process'] == os.getpid()
    finally:
        os.kill(child, signal.SIGKILL)


def test_lock_leaves_nothing_behind_where_nothing_was_written(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / 'run'):
        raise ZeroDivisionError
    with locked(tmp_path / 'a' / 'b' / 'run'):
        assert lock_file(tmp_path / 'a' / 'b' / 'run').exists()
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / 'a' / 'run'):
        (tmp_path / 'a' / 'run').mkdir()
    assert [path.name for path in tmp_path.rglob('*')] == ['a', 'run']


def test_file_that_its_holder_removes_while_another_opens_it_is_not_held(tmp_path, monkeypatch):
    """The lock of a file without a name would exclude nobody."""
    flock, removed = fcntl.flock, []

    def slow(descriptor, how):
        if not removed and how & fcntl.LOCK_EX:
            removed.append(lock_file(tmp_path / 'run').unlink())
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, 'flock', slow)
    with locked(tmp_path / 'run'):
        assert removed and lock_file(tmp_path / 'run').exists()


def test_lock_that_cannot_be_signed_is_not_held(tmp_path, monkeypatch):
    def full(self, text):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(type(tmp_path), 'write_text', full)
    with pytest.raises(OSError, match='No space left'), locked(tmp_path / 'run'):
        pass
    monkeypatch.undo()
    with locked(tmp_path / 'run'):
        pass


def test_output_where_no_file_can_be_made_is_refused(tmp_path):
    lock_file(tmp_path / 'run').symlink_to(tmp_path / 'nowhere' / 'file')
    for output, said in ((tmp_path / 'run', 'run'), ('/proc/run', '/proc/run'), ('/', '^/ is the root of')):
        with pytest.raises((OSError, ValueError), match=said), locked(output):
            raise AssertionError('went on')


def test_only_the_first_worker_takes_the_lock(tmp_path):
    with locked(tmp_path / 'run', Ranks(first=True)), locked(tmp_path / 'run', Ranks(first=False)):
        assert lock_file(tmp_path / 'run').exists()
    with locked(tmp_path / 'run', Ranks(first=False)):
        assert not lock_file(tmp_path / 'run').exists()


def test_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', refuse)
    with locked(tmp_path / 'run'):
        pass
    assert 'run: cannot be locked (No locks available); let no other process write it' in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_interrupted_run_says_how_to_go_on(tmp_path):
    said = pytest.raises(Interrupted, match='asked to stop; what is done is saved, go on with --resume')
    with said, running(tmp_path / 'run', Ranks(first=True)):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
