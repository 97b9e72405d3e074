"""What Horovod and horovodrun do not do about lost workers: name them, and end those that hang.

Gloo ends the operations that wait for a stopped, dead or cut-off worker after HOROVOD_GLOO_TIMEOUT_SECONDS.
horovodrun then ends the other workers. Neither names rank and host of a stopped or cut-off worker. Both wait
without end for a worker that hangs in Python: under Gloo the stall check of Horovod 0.28.1 looks at no rank.
On another host such a worker outlives its job, for the signal that ends ssh does not reach it.

So a thread on every rank puts a line about itself into the key-value store by which horovodrun brings
workers together: who it is, how often it has spoken, and which collective operation it waits in. Rank 0 reads
all lines, the others rank 0's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import math
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Iterator, Mapping, NoReturn, Optional

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
        self._unreached: Optional[float] = None  # since when horovodrun has not answered
        self._operation, self._since, self._until, self._gap = '', time.monotonic(), time.monotonic(), 0.0
        self._peers: Dict[int, Peer] = {}

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

    def explain(self) -> Optional[str]:
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

    def _alone(self, seconds: float) -> Optional[str]:
        """That horovodrun has not answered for more than so many seconds; None if it has."""
        if self._unreached is None or time.monotonic() - self._unreached <= seconds:
            return None
        return f'{self} cannot reach horovodrun at {self._address}: it has ended, or the network has failed'

    def _late(self) -> Optional[str]:
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

    def _troubles(self, since: float, operation: Optional[str] = None) -> Optional[str]:
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
