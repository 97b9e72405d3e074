"""A worker that hangs is noticed, and a run is asked to stop by SIGINT or SIGTERM."""

import multiprocessing
import os
import signal
import threading
import time

import mxnet as mx
import pytest
from helpers.jobs import needs_horovod
from helpers.stricken import forked, living, status_of

from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.files import running
from gluon_optbert.training import distributed
from gluon_optbert.training.distributed import PATIENCE, PATIENCE_SECONDS, Guard, Stop, Workers, patience


def test_job_of_one_changes_nothing():
    workers = Workers()
    assert (workers.rank, workers.size, workers.first) == (0, 1, True)
    array = mx.nd.array([1, 2])
    workers.average([array], name='a')
    workers.broadcast([array], name='b')
    workers.barrier('c')
    workers.agree('text', what='d')
    assert array.asnumpy().tolist() == [1, 2]
    assert workers.sum([1, 0.1], name='e') == [1.0, 0.1]


@pytest.mark.parametrize('operation, seconds', [('gradient', 30), ('barrier.written', 1800)])
def test_worker_that_is_late_is_named_and_not_before(operation, seconds):
    guard = Guard(0, 2, 30.0)
    with guard.waiting(operation):
        guard._since -= seconds - 1
        assert not guard.late()
        guard._since -= 2
        assert guard.late()
        guard.arrived()  # a part of it is done
        assert not guard.late()
        guard._since -= seconds + 1
    assert not guard.late()  # it waits no longer
    assert 'for rank 1, which' in guard.lost(operation)


def test_worker_may_be_late_by_three_times_the_longest_work_of_another():
    guard = Guard(2, 4, 30.0)
    guard._until -= 11  # this one has worked for so long
    with guard.waiting('gradient'):
        guard._since -= 31
        assert not guard.late()
        guard._since -= 3
        assert guard.late()
    assert 'for one of the ranks [0, 1, 3], which' in guard.lost('gradient')


def test_patience_is_half_a_minute_unless_a_number_of_at_least_five_is_given(monkeypatch):
    monkeypatch.delenv(PATIENCE, raising=False)
    assert patience() == PATIENCE_SECONDS == 30
    monkeypatch.setenv(PATIENCE, '7.5')
    assert patience() == 7.5
    for text in ('', 'long', '4', 'nan', 'inf'):
        monkeypatch.setenv(PATIENCE, text)
        with pytest.raises(ValueError, match=PATIENCE):
            patience()


def test_second_interruption_ends_the_process_at_once(heeded, capfd):
    def interrupted():
        with Stop(Workers()) as stop:
            signal.raise_signal(signal.SIGINT)
            print('asked' if stop.agreed() else 'deaf')
            signal.raise_signal(signal.SIGINT)

    warning = '\nstopping after this step; Ctrl-C again stops at once and saves nothing\n'
    assert status_of(forked(interrupted)) == -signal.SIGINT
    assert capfd.readouterr() == ('asked\n', warning)


@pytest.fixture
def ready():
    """Event that a forked process sets when it is ready."""
    return multiprocessing.get_context('fork').Event()


@needs_horovod
def test_worker_that_horovodrun_takes_for_a_shell_is_asked_to_stop(ready, capfd):
    from horovod.runner.common.util.safe_shell_exec import terminate_executor_shell_and_children

    def working():
        distributed.start_herald(0)
        with Stop(Workers()) as stop:
            ready.set()
            while not stop.agreed():
                time.sleep(0.02)
        return 7

    worker = forked(working)
    assert ready.wait(60)
    ending = threading.Thread(target=terminate_executor_shell_and_children, args=(worker.pid,))
    ending.start()
    assert status_of(worker) == 7 and capfd.readouterr() == ('', '')
    ending.join()


def test_interruptions_that_a_shell_ignores_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop(Workers()) as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.agreed()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_worker_that_is_stopped_for_too_long_is_ended_and_named_and_no_other_is(ready, monkeypatch, capfd):
    monkeypatch.setattr(distributed, 'FAREWELL', 0)
    monkeypatch.setattr(distributed, 'patience', lambda: 4)

    def forsaken():
        distributed.start_herald(3)
        ready.set()
        time.sleep(60)

    worker = forked(forsaken)
    assert ready.wait(60)
    time.sleep(6)
    assert living(worker.pid)
    os.kill(worker.pid, signal.SIGSTOP)
    assert status_of(worker) == -signal.SIGKILL
    assert capfd.readouterr().err.startswith('error: rank 3 was stopped for 4 seconds')


def test_sigterm_outside_of_the_loop_says_how_to_go_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv('HOROVOD_RANK', '1')
    monkeypatch.setattr(time, 'sleep', lambda seconds: None)  # for rank 0 to speak first

    def asked(argv):
        with running(tmp_path / 'run', Workers()):
            signal.raise_signal(signal.SIGTERM)

    said = '[rank 1] error: asked to stop; what is done is saved, go on with --resume\n'
    assert status_of(forked(command(asked))) == 1 and capfd.readouterr() == ('', said)
