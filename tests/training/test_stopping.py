"""A run is asked to stop by SIGINT or SIGTERM; a second SIGINT ends it at once, and horovodrun reaches it."""

import signal
import subprocess
import sys

import pytest
from helpers.jobs import needs_horovod
from helpers.tiny import environment

from gluon_optbert.training.distributed import Stop, Workers, start_herald

INTERRUPTED = """
import os, signal
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.distributed import Stop
with Stop(Workers()) as stop:
    os.kill(os.getpid(), signal.SIGINT)
    print('asked' if stop.agreed() else 'deaf', flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print('alive', flush=True)
"""

# What horovodrun does with a worker that it takes for a shell.
HOROVODRUN = """
import subprocess, sys, threading
from horovod.runner.common.util.safe_shell_exec import terminate_executor_shell_and_children
worker = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', sys.argv[2]], stdout=subprocess.PIPE)
worker.stdout.readline()
threading.Thread(target=terminate_executor_shell_and_children, args=(worker.pid,)).start()
sys.exit(worker.wait() % 256)
"""

WORKER = """
import os, sys, time
os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR'] = 'localhost'
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.distributed import Stop
with Stop(Workers()) as stop:
    print('ready', flush=True)
    while not stop.agreed():
        time.sleep(0.02)
sys.exit(7)
"""


def python(*words):
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_second_interruption_ends_the_process_at_once(heeded):
    done = python(INTERRUPTED)
    assert done.stdout == 'asked\n' and done.returncode == -signal.SIGINT
    assert done.stderr == '\nstopping after this step; Ctrl-C again stops at once and saves nothing\n'


@needs_horovod
def test_worker_that_horovodrun_takes_for_a_shell_is_asked_to_stop():
    done = python(HOROVODRUN, '--multiprocessing-fork', WORKER)
    assert done.returncode == 7, done.stderr


def test_interruptions_that_a_shell_ignores_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop(Workers()) as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.agreed()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize('address', [None, 'localhost'])
def test_process_of_its_own_needs_no_herald(monkeypatch, address):
    if address is not None:
        monkeypatch.setenv('HOROVOD_GLOO_RENDEZVOUS_ADDR', address)
    start_herald.cache_clear()
    assert start_herald() is None
