"""The workers of a job: what they compute together, what ends them when one is lost, and what stops them; the
only module that imports Horovod, and only where a job was started by it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import mxnet as mx
import numpy as np

from ..runs.failures import RunFailed
from ..runs.machine import of_launcher

COMPRESSIONS = ('none', 'fp16')
PATIENCE = 'GLUON_OPTBERT_PATIENCE'  # the environment variable that replaces this:
PATIENCE_SECONDS = 30.0  # that Gloo waits for a worker, and we for one that hangs
FAREWELL = 10  # seconds beyond it that Gloo waits for one, and a stopped one has when nobody waits any more
BARRIER_FACTOR = 60  # at a barrier, half an hour: rank 0 may be writing or measuring
GAP_FACTOR = 3  # a worker may be late by so many times the longest work of this one between two operations


def patience() -> float:
    """Seconds after which a worker that others wait for counts as lost; ValueError if GLUON_OPTBERT_PATIENCE
    is set to something else than at least 5.
    """
    text = os.environ.get(PATIENCE, str(PATIENCE_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 5 <= seconds < math.inf:
        raise ValueError(f'{PATIENCE} must be a number of seconds, at least 5, found {text!r}')
    return seconds


class Guard:
    """Ends this process when another worker keeps it waiting for too long in a collective operation.

    Where a worker has ended or is stopped, horovodrun and Gloo end the others. For one that hangs they would
    wait for ever, because its threads still answer, and the stall check of Horovod 0.28.1 does not fire. It
    waits for `patience` seconds at least.
    """

    def __init__(self, rank: int, size: int, patience: float):
        others = [other for other in range(size) if other != rank]
        self._others = f'rank {others[0]}' if size == 2 else f'one of the ranks {others}'
        self._rank, self._patience = rank, patience
        self._operation, self._since, self._until, self._gap = '', time.monotonic(), time.monotonic(), 0.0

    @contextlib.contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """While this worker waits for the others in a collective operation."""
        self.arrived()
        if not operation.startswith('barrier'):
            self._gap = max(self._gap, self._since - self._until)
        self._operation = operation
        try:
            yield
        finally:
            self._operation, self._until = '', time.monotonic()

    def arrived(self) -> None:
        """Begin to wait anew: a part of the operation is done, so the others are there."""
        self._since = time.monotonic()

    def late(self) -> bool:
        """Whether the others have been waited for for too long in the present operation."""
        factor = BARRIER_FACTOR if self._operation.startswith('barrier') else 1
        limit = max(self._patience * factor, GAP_FACTOR * self._gap)
        return bool(self._operation) and time.monotonic() - self._since > limit

    def lost(self, operation: str) -> str:
        """Message for the loss of another worker."""
        return (
            f'rank {self._rank} waited in the operation {operation} for {self._others}, which has ended, is '
            'stopped, hangs or is cut off; the job ends, go on with --resume'
        )

    def run(self) -> None:
        """Look every second, in a thread; end the process, for its main thread may never return."""
        looked = time.monotonic()
        while True:
            time.sleep(1)
            if time.monotonic() - looked > self._patience / 2:
                self.arrived()  # this process itself was stopped, and has not waited
            looked = time.monotonic()
            if self.late():
                print(f'error: {self.lost(self._operation)}', file=sys.stderr, flush=True)
                os._exit(1)


@functools.cache
def _guard(rank: int, size: int) -> Guard:
    """The guard of this process, at work."""
    guard = Guard(rank, size, patience())
    threading.Thread(target=guard.run, name='guard', daemon=True).start()
    return guard


class Workers:
    """This process among the workers of a job; a job of one needs no Horovod. `rank` is its number among all
    workers, `local_rank` that among those of its host.
    """

    def __init__(self):
        self._hvd, self.rank, self.size, self.local_rank = None, 0, 1, 0
        if int(os.environ.get('HOROVOD_SIZE', '1')) > 1 or 'OMPI_COMM_WORLD_SIZE' in os.environ:
            import horovod.mxnet as hvd

            # Gloo reads it here, and ends an operation in which another worker has not answered for so long.
            os.environ.setdefault('HOROVOD_GLOO_TIMEOUT_SECONDS', str(math.ceil(patience()) + FAREWELL))
            rank, size = (int(of_launcher(word, '')) for word in ('RANK', 'SIZE'))
            start_herald(rank)
            self._guard = _guard(rank, size)
            with self._guard.waiting('start'):
                hvd.init()
            self._hvd, self.rank, self.size, self.local_rank = hvd, hvd.rank(), hvd.size(), hvd.local_rank()

    @contextlib.contextmanager
    def _together(self, operation: str) -> Iterator[None]:
        """While this worker waits for the others in a collective operation; RunFailed if one is lost."""
        try:
            with self._guard.waiting(operation):
                yield
        except mx.MXNetError as error:
            if 'Horovod has been shut down' not in str(error):
                raise
            raise RunFailed(self._guard.lost(operation)) from error

    def _wait(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Wait for arrays that the workers exchange, for each as long as for a worker."""
        for array in arrays:
            array.wait_to_read()
            self._guard.arrived()

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one that writes and speaks."""
        return self.rank == 0

    def context(self) -> mx.Context:
        """The device of this worker: its GPU if MXNet sees one, else the CPU."""
        gpus = mx.context.num_gpus()
        return mx.gpu(self.local_rank % gpus) if gpus else mx.cpu()

    def average(self, arrays: Sequence[mx.nd.NDArray], *, name: str, compression: str = 'none') -> None:
        """Replace every array by its mean over the workers, in place; they have the same order and shapes on
        every worker.

        The name is unique among the collective operations that may be under way. The compression, one of
        `COMPRESSIONS`, says what goes over the network: the arrays as they are, or rounded to float16, half
        the bytes.
        """
        if self.size > 1:
            sent = [array.astype('float16') for array in arrays] if compression == 'fp16' else arrays
            with self._together(name):
                for i, array in enumerate(sent):
                    self._hvd.allreduce_(array, average=True, name=f'{name}.{i}', priority=-i)
                self._wait(sent)
            if compression == 'fp16':
                for array, mean in zip(arrays, sent):
                    array[:] = mean.astype(array.dtype)

    def sum(self, values: Iterable[float], *, name: str) -> list[float]:
        """Sums over the workers, in float64."""
        return self.total(np.asarray(list(values), dtype=np.float64), name=name).tolist()

    def total(self, array: np.ndarray, *, name: str) -> np.ndarray:
        """The sum of an array over the workers."""
        if self.size == 1:
            return array
        with self._together(name):
            return self._hvd.allreduce(
                mx.nd.array(array, dtype=array.dtype), average=False, name=name
            ).asnumpy()

    def gather(self, array: mx.nd.NDArray, *, name: str) -> mx.nd.NDArray:
        """The rows of every worker, in the order of the ranks; no gradient passes. The array, of shape (rows,
        ...), has the same shape on every worker.
        """
        if self.size == 1:
            return array.detach()
        with mx.autograd.pause(), self._together(name):
            rows = self._hvd.allgather(array.detach(), name=name)
            rows.wait_to_read()
            return rows

    def broadcast(self, arrays: Sequence[mx.nd.NDArray], *, name: str) -> None:
        """Replace every array by rank 0's, in place."""
        if self.size > 1:
            with self._together(name):
                for i, array in enumerate(arrays):
                    self._hvd.broadcast_(array, root_rank=0, name=f'{name}.{i}')
                self._wait(arrays)

    def barrier(self, name: str) -> None:
        """Wait until every worker is here."""
        self.total(np.ones(1), name='barrier.' + name)

    def agree(self, text: str, *, what: str) -> None:
        """Raise RunFailed unless a text, such as a decision written out, is the same on every worker; with
        different ones they would train different networks as one.
        """
        digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8).astype(np.float64)
        if (self.total(digest, name='agree.' + what) != self.size * digest).any():
            raise RunFailed(f'the workers do not agree on {what}')


_SAID = b'\nstopping after this step; Ctrl-C again stops at once and saves nothing\n'

# Passes SIGTERM on to its parent, ends it if it is stopped for too long, and ends when that has ended.
_HERALD = """
import os, select, signal, sys, time
parent, rank, patience = os.getppid(), sys.argv[1], float(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: os.getppid() == parent and os.kill(parent, signal.SIGTERM))
os.close(1)
since = looked = time.monotonic()
while not select.select([0], [], [], 1)[0]:
    now = time.monotonic()
    with open(f'/proc/{parent}/stat') as file:
        state = file.read().rpartition(')')[2].split()[0]
    if state != 'T' or now - looked > patience / 2:  # or this process was stopped as well
        since = now
    looked = now
    if now - since > patience:
        print(f'error: rank {rank} was stopped for {patience:.0f} seconds (SIGSTOP); the job ends, go on '
              'with --resume if it was not done', file=sys.stderr, flush=True)
        os.kill(parent, signal.SIGKILL)
        break
"""


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


@functools.cache
def start_herald(rank: int) -> subprocess.Popen:
    """Start a child that passes SIGTERM on to this worker, and ends it where it is stopped for too long.

    horovodrun 0.28.1 starts a worker as a shell command, ends it by SIGTERM to the children of the shell, and
    kills after five seconds what is left. A shell such as bash becomes the worker, and then horovodrun takes
    the worker for the shell: it stops it by SIGSTOP at once, and no state is saved. With a child, the worker
    has its five seconds.

    Where a worker is stopped when the others are done, nobody waits for it but horovodrun, and that for ever.
    """
    end, _ = os.pipe()  # the other end stays open until this process is gone, and not only about to end
    herald = subprocess.Popen(
        [sys.executable, '-S', '-E', '-c', _HERALD, str(rank), str(patience() + FAREWELL)],
        stdin=end,
        stdout=subprocess.PIPE,
    )
    os.close(end)
    herald.stdout.read()  # until it is ready
    return herald
