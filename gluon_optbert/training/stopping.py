"""How a run is asked to stop: by SIGINT, which is Ctrl-C, or by SIGTERM, to any of its workers."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from typing import Optional

import psutil

from ..runs.failures import Interrupted
from .distributed import Workers

_SAID = b'\nstopping after this step; Ctrl-C again stops at once and saves nothing\n'

# Passes SIGTERM on to its parent, and ends when that has ended.
_HERALD = """
import os, signal
parent = os.getppid()
signal.signal(signal.SIGTERM, lambda *_: os.getppid() == parent and os.kill(parent, signal.SIGTERM))
os.close(1)
os.read(0, 1)
"""


class Terminated(Interrupted):
    """The run was asked to stop, has saved its state, and can be resumed."""


class Stop:
    """Turns SIGINT and SIGTERM into a flag that all workers see at the same step.

    A second SIGINT ends this process at once. SIGINT stays ignored where a shell has it ignored, as in
    background jobs. Python lets only the main thread handle signals; training in another one stops at none.
    """

    def __init__(self, workers: Workers):
        self._asked, self._workers = False, workers
        heeded = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        numbers = (signal.SIGINT, signal.SIGTERM) if heeded else (signal.SIGTERM,)
        if threading.current_thread() is not threading.main_thread():
            numbers = ()
        self._before = {number: signal.signal(number, self._ask) for number in numbers}
        start_herald()

    def _ask(self, number: int, _: object) -> None:
        self._asked = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if self._workers.first:
                os.write(2, _SAID)  # print may be what was interrupted

    def agreed(self) -> bool:
        """Whether any of the workers was asked to stop."""
        return self._workers.sum([self._asked], name='stop')[0] > 0

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@functools.lru_cache(maxsize=None)
def start_herald() -> Optional[subprocess.Popen]:
    """Start a child that passes SIGTERM on to this worker, where horovodrun needs one to reach it.

    horovodrun 0.28.1 starts a worker as a shell command, ends it by SIGTERM to the children of the shell, and
    kills after five seconds what is left. A shell such as bash becomes the worker, and then horovodrun takes
    the worker for the shell: it stops it by SIGSTOP at once, and no state is saved. With a child, the worker
    has its five seconds.

    Returns
    -------
    subprocess.Popen or None
        None where horovodrun reaches this worker itself, or did not start it.
    """
    if 'HOROVOD_GLOO_RENDEZVOUS_ADDR' not in os.environ:
        return None
    try:
        started_by = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):  # the parent has ended, or is another user's
        return None
    if '--multiprocessing-fork' not in started_by:
        return None
    end, _ = os.pipe()  # the other end stays open until this process is gone, and not only about to end
    herald = subprocess.Popen(
        [sys.executable, '-S', '-E', '-c', _HERALD],
        stdin=end,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    os.close(end)
    herald.stdout.read()  # until it is ready
    return herald
