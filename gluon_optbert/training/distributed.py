"""The workers of a job; the only module that imports Horovod, and only where a job was started by it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import mxnet as mx
import numpy as np
import psutil

from ..runs.failures import Interrupted, RunFailed

PATIENCE = 'GLUON_OPTBERT_PATIENCE'  # the environment variable that replaces this:
PATIENCE_SECONDS = 30.0  # that Gloo waits for a worker, and we for one that hangs; half for horovodrun
BARRIER_FACTOR = 60  # at a barrier, half an hour: rank 0 may be writing or measuring
GAP_FACTOR = 3  # a worker may be late by so many times the longest work of this one between two operations
PERIOD_SECONDS = 1.0
HEARING_SECONDS = 1.5  # within which a line that another worker has put is read
SILENCE_SECONDS = 4.0  # after a failed operation; a worker without a new line since HEARING_SECONDS is lost
SCOPE = 'gluon_optbert_liveness'
_MOST_BYTES = 4096  # of a line


@dataclasses.dataclass
class Peer:
    """Another worker's last line, and when it changed by this worker's clock."""

    rank: int
    said: Mapping[str, Any]
    at: float

    def __str__(self) -> str:
        host, process = (self.said.get(name, 'unknown') for name in ('host', 'process'))
        return f'rank {self.rank} (host {host}, process {process})'


def patience() -> float:
    """Seconds after which a worker that others wait for counts as lost.

    Raises
    ------
    ValueError
        If GLUON_OPTBERT_PATIENCE is set to something else than at least 5.
    """
    text = os.environ.get(PATIENCE, str(PATIENCE_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 5 <= seconds < math.inf:
        raise ValueError(f'{PATIENCE} must be a number of seconds, at least 5, found {text!r}')
    return seconds


class Watch:
    """The thread that speaks and listens for one rank.

    Parameters
    ----------
    rank, size : int
    address : str
        ``host:port`` of horovodrun's store.
    """

    def __init__(self, rank: int, size: int, address: str):
        self.rank = rank
        self._watched = range(1, size) if rank == 0 else (0,)
        self._address, self._patience = address, patience()
        self._host = os.environ.get('HOROVOD_HOSTNAME') or socket.gethostname()
        self._beats = 0
        self._unreached: float | None = None  # since when horovodrun has not answered
        self._operation, self._since, self._until, self._gap = '', time.monotonic(), time.monotonic(), 0.0
        self._peers: dict[int, Peer] = {}

    def __str__(self) -> str:
        return f'rank {self.rank} (host {self._host}, process {os.getpid()})'

    def start(self) -> None:
        """Begin with a first word."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._speak()
        threading.Thread(target=self._run, name='liveness', daemon=True).start()

    @contextlib.contextmanager
    def waiting(self, operation: str) -> Iterator[None]:
        """While this worker waits for the others in a collective operation."""
        self._since = time.monotonic()
        if not operation.startswith('barrier'):
            self._gap = max(self._gap, self._since - self._until)
        self._operation = operation
        try:
            yield
        finally:
            self._operation, self._until = '', time.monotonic()

    def explain(self) -> str | None:
        """Who of the others is lost, after an operation has failed; None if none is. It takes up to 6 s."""
        began = time.monotonic()
        seconds = SILENCE_SECONDS * (1 if self.rank == 0 else 1.5)  # rank 0 hears all, and speaks first
        while time.monotonic() < began + seconds:
            ended = self._troubles(-math.inf)
            if ended:
                return ended
            time.sleep(PERIOD_SECONDS / 4)
        return self._alone(0) or self._troubles(began + HEARING_SECONDS)

    @staticmethod
    def end(lost: str) -> NoReturn:
        """Say so, and end this process at once: the main thread may be in an operation that never returns."""
        print(f'error: {lost}; the job ends, go on with --resume', file=sys.stderr, flush=True)
        os._exit(1)

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            time.sleep(PERIOD_SECONDS)
            if time.monotonic() - looked > self._patience / 2:
                self._since = time.monotonic()  # this process itself was stopped, and has not waited
            try:
                self._speak()
                self._listen()
                self._unreached = None
            except (OSError, http.client.HTTPException):
                self._unreached = self._unreached or time.monotonic()
            looked = time.monotonic()
            lost = self._alone(self._patience / 2) or self._late()
            if lost:
                self.end(lost)

    def _alone(self, seconds: float) -> str | None:
        """That horovodrun has not answered for more than so many seconds; None if it has."""
        if self._unreached is None or time.monotonic() - self._unreached <= seconds:
            return None
        return f'{self} cannot reach horovodrun at {self._address}: it has ended, or the network has failed'

    def _late(self) -> str | None:
        """Who has not come for too long to the operation that this rank waits in; None if nobody.

        It says nothing while horovodrun does not answer, for then the lines of the others are old.
        """
        operation, now = self._operation, time.monotonic()
        factor = BARRIER_FACTOR if operation.startswith('barrier') else 1
        limit = max(self._patience * factor, GAP_FACTOR * self._gap)
        waited = now - self._since
        if not operation or waited <= limit or self._unreached is not None:
            return None
        troubles = self._troubles(now - self._patience / 2, operation)
        return troubles and f'{self} has waited for {waited:.0f} s in the operation {operation}: {troubles}'

    def _troubles(self, since: float, operation: str | None = None) -> str | None:
        """Which others have ended, have not spoken since then, or are not in the operation; None if none."""
        troubles = []
        for _, peer in sorted(self._peers.items()):
            process = peer.said.get('process')
            here = peer.said.get('host') == self._host and type(process) is int
            if here and not os.path.exists(f'/proc/{process}'):
                troubles.append(f'{peer} has ended')
            elif peer.at < since:
                troubles.append(f'{peer} is silent: it is stopped, hanging, cut off or dead')
            elif operation not in (None, peer.said.get('operation')):
                troubles.append(f'{peer} did not come')
        return ', '.join(troubles) or None

    def _speak(self) -> None:
        self._beats += 1
        line = json.dumps(
            {'host': self._host, 'process': os.getpid(), 'beats': self._beats, 'operation': self._operation}
        )
        with self._open(urllib.request.Request(self._url(self.rank), data=line.encode(), method='PUT')):
            pass

    def _listen(self) -> None:
        """Read the lines of the others; one that has not spoken yet has none."""
        for rank in self._watched:
            try:
                with self._open(urllib.request.Request(self._url(rank))) as answer:
                    said = json.loads(answer.read(_MOST_BYTES))
            except (urllib.error.HTTPError, ValueError, RecursionError):
                said = {}
            said = said if isinstance(said, dict) else {}
            if rank not in self._peers or said != self._peers[rank].said:
                self._peers[rank] = Peer(rank, said, time.monotonic())

    def _url(self, rank: int) -> str:
        return f'http://{self._address}/{SCOPE}/{rank}'

    @staticmethod
    def _open(request: urllib.request.Request):
        """Ask horovodrun, past any proxy that the environment names."""
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5)


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


@functools.cache
def start_herald() -> subprocess.Popen | None:
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


COMPRESSIONS = ('none', 'fp16')


class Disagreement(RunFailed):
    """The workers would go on with different things, which would train different networks as one."""


@functools.cache
def _watch(rank: int, size: int) -> Watch | None:
    """The watch over a job that horovodrun started with Gloo; mpirun has its own."""
    host, port = (os.environ.get(f'HOROVOD_GLOO_RENDEZVOUS_{name}') for name in ('ADDR', 'PORT'))
    if not (host and port):
        return None
    watch = Watch(rank, size, f'{host}:{port}')
    watch.start()
    return watch


class Workers:
    """This process among the workers of a job; a job of one needs no Horovod.

    Attributes
    ----------
    rank, size : int
        Its number among all workers.
    local_rank : int
        Its number among those of its host.
    """

    def __init__(self):
        self._hvd = None
        if int(os.environ.get('HOROVOD_SIZE', '1')) > 1 or 'OMPI_COMM_WORLD_SIZE' in os.environ:
            import horovod.mxnet as hvd

            # Gloo reads it here, and ends an operation in which another worker has not answered for so long.
            os.environ.setdefault('HOROVOD_GLOO_TIMEOUT_SECONDS', str(math.ceil(patience())))
            hvd.init()
            self._hvd = hvd
        self.rank = self._hvd.rank() if self._hvd else 0
        self.size = self._hvd.size() if self._hvd else 1
        self.local_rank = self._hvd.local_rank() if self._hvd else 0
        self._watch = _watch(self.rank, self.size) if self._hvd else None

    @contextlib.contextmanager
    def _together(self, operation: str) -> Iterator[None]:
        """While this worker waits for the others in a collective operation; it ends if one is lost."""
        try:
            with self._watch.waiting(operation) if self._watch else contextlib.nullcontext():
                yield
        except mx.MXNetError:
            lost = self._watch.explain() if self._watch else None
            if lost:
                self._watch.end(f'rank {self.rank} waited in the operation {operation}, but {lost}')
            raise

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one that writes and speaks."""
        return self.rank == 0

    def context(self) -> mx.Context:
        """Where this worker computes: its GPU if MXNet sees one, else the CPU."""
        gpus = mx.context.num_gpus()
        return mx.gpu(self.local_rank % gpus) if gpus else mx.cpu()

    def average(self, arrays: Sequence[mx.nd.NDArray], *, name: str, compression: str = 'none') -> None:
        """Replace every array by its mean over the workers, in place.

        Parameters
        ----------
        arrays : sequence of NDArray
            In the same order, and of the same shapes, on every worker.
        name : str
            Unique among the collective operations that may be under way.
        compression : str
            One of `COMPRESSIONS`, what goes over the network: the arrays as they are, or rounded to float16,
            half the bytes.
        """
        if self.size > 1:
            sent = [array.astype('float16') for array in arrays] if compression == 'fp16' else arrays
            with self._together(name):
                for i, array in enumerate(sent):
                    self._hvd.allreduce_(array, average=True, name=f'{name}.{i}', priority=-i)
                for array in sent:
                    array.wait_to_read()
            if compression == 'fp16':
                for array, mean in zip(arrays, sent):
                    array[:] = mean.astype(array.dtype)

    def sum(self, values: Iterable[float], *, name: str) -> list[float]:
        """Sums over the workers, in float64."""
        values = np.asarray(list(values), dtype=np.float64)
        if self.size > 1:
            with self._together(name):
                values = self._hvd.allreduce(
                    mx.nd.array(values, dtype='float64'), average=False, name=name
                ).asnumpy()
        return [float(value) for value in values]

    def total(self, array: np.ndarray, *, name: str) -> np.ndarray:
        """The sum of an array over the workers."""
        if self.size == 1:
            return array
        with self._together(name):
            return self._hvd.allreduce(
                mx.nd.array(array, dtype=array.dtype), average=False, name=name
            ).asnumpy()

    def broadcast(self, arrays: Sequence[mx.nd.NDArray], *, name: str) -> None:
        """Replace every array by rank 0's, in place."""
        if self.size > 1:
            with self._together(name):
                for i, array in enumerate(arrays):
                    self._hvd.broadcast_(array, root_rank=0, name=f'{name}.{i}')
                mx.nd.waitall()

    def barrier(self, name: str) -> None:
        """Wait until every worker is here."""
        if self.size > 1:
            with self._together('barrier.' + name):
                self._hvd.allreduce(mx.nd.ones((1,)), name='barrier.' + name).wait_to_read()

    def agree(self, text: str, *, what: str) -> None:
        """Make sure that a text, such as a decision written out, is the same on every worker.

        Raises
        ------
        Disagreement
            If it is not.
        """
        if self.size > 1:
            digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype=np.uint8).astype(np.float32)
            with self._together('agree.' + what):
                mean = self._hvd.allreduce(mx.nd.array(digest), average=True, name='agree.' + what).asnumpy()
            if np.abs(mean - digest).max() > 1e-3:
                raise Disagreement(f'the workers do not agree on {what}')
