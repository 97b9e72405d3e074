"""Whether the workers of a job live: every rank says so to horovodrun, and ends itself when another one is
lost.

Horovod waits for a worker that is stopped, and a worker whose horovodrun is gone goes on without an owner. So
a thread on every rank puts a line about itself into the key-value store by which horovodrun brings workers
together (Gloo's rendezvous): who it is, how often it has spoken, and which collective operation it waits in.
Rank 0 reads all lines, the others rank 0's."""

from __future__ import annotations

import atexit
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
from typing import Any, Dict, Iterator, Mapping, Optional

PATIENCE = 'GLUON_OPTBERT_PATIENCE'  # the environment variable that replaces this:
PATIENCE_SECONDS = 30.0  # of silence, or of waiting in an operation that another worker does not come to
BARRIER_FACTOR = 60  # at a barrier, half an hour: rank 0 may be writing or measuring
START_FACTOR = 2  # before its first word, a worker may still be loading
GAP_FACTOR = 3  # a worker may be late by so many times the longest work of this one between two operations
PERIOD_SECONDS = 1.0
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

    @property
    def left(self) -> bool:
        """Whether it has said that it ends."""
        return bool(self.said.get('left'))

    def gone(self, host: str) -> bool:
        """Whether it was a process of this host and is no more, without having said that it ends."""
        process = self.said.get('process')
        return (
            self.said.get('host') == host
            and type(process) is int
            and not self.left
            and not os.path.exists(f'/proc/{process}')
        )


def patience() -> float:
    """Seconds without a sign of life after which a worker counts as lost.

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
        self._address, self._patience, self._parent = address, patience(), os.getppid()
        self._host = os.environ.get('HOROVOD_HOSTNAME') or socket.gethostname()
        self._beats, self._left, self._reached = 0, False, time.monotonic()
        self._operation, self._since, self._until, self._gap = '', time.monotonic(), time.monotonic(), 0.0
        self._peers: Dict[int, Peer] = {}

    def __str__(self) -> str:
        return f'rank {self.rank} (host {self._host}, process {os.getpid()})'

    def start(self) -> None:
        """Begin with a first word; when the program ends, the others are told that this was no accident."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._speak()
        threading.Thread(target=self._run, name='liveness', daemon=True).start()
        atexit.register(self._leave)

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

    def explain(self, seconds: float = 4.0) -> Optional[str]:
        """What has happened to the others, after an operation has failed; None if nothing is found in so many
        seconds.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            now, peers = time.monotonic(), [peer for _, peer in sorted(self._peers.items())]
            died = [
                str(peer)
                for peer in peers
                if peer.gone(self._host) or not peer.left and now - peer.at > 2 * PERIOD_SECONDS
            ]
            left = [str(peer) for peer in peers if peer.left]
            if died or left:
                return f'{", ".join(died)} has died' if died else f'{", ".join(left)} has ended'
            time.sleep(PERIOD_SECONDS / 4)
        return None

    def _leave(self) -> None:
        self._left = True
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._speak()

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            time.sleep(PERIOD_SECONDS)
            now = time.monotonic()
            if (
                now - looked > self._patience / 2
            ):  # this process itself was stopped, and what it remembers is old
                self._reached = self._since = now
                self._peers = {rank: Peer(rank, peer.said, now) for rank, peer in self._peers.items()}
            looked = now
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._speak()
                self._listen()
                self._reached = time.monotonic()
            lost = self._lost(time.monotonic())
            if lost:
                print(f'error: {lost}; the job ends, go on with --resume', file=sys.stderr, flush=True)
                os._exit(1)  # the main thread may be in an operation that never returns

    def _lost(self, now: float) -> Optional[str]:
        """What is wrong with the job, in a sentence; None if nothing is."""
        if os.getppid() != self._parent:
            return f'{self} has lost the process that started it'
        if now - self._reached > self._patience / 2:
            return (
                f'{self} cannot reach horovodrun at {self._address}: it has ended, or the network has failed'
            )
        for peer in self._peers.values():
            if peer.gone(self._host):
                return f'{peer} has died'
            if now - peer.at > self._patience * (1 if peer.said else START_FACTOR) and not peer.left:
                return f'{peer} has not been heard of for {now - peer.at:.0f} s: it is stopped, or cut off'
        return self._late(self._operation, now - self._since)

    def _late(self, operation: str, waited: float) -> Optional[str]:
        """Who does not come to the operation that this rank has waited in for so many seconds, if it is too
        long.
        """
        factor = BARRIER_FACTOR if operation.startswith('barrier') else 1
        if not operation or waited <= max(self._patience * factor, GAP_FACTOR * self._gap):
            return None
        missing = [
            str(peer) for _, peer in sorted(self._peers.items()) if peer.said.get('operation') != operation
        ]
        if not missing and self.rank:
            return None  # rank 0 waits as well, and knows for whom
        found = (
            f'{", ".join(missing)} did not come'
            if missing
            else 'though every worker is in it: the network may have failed'
        )
        return f'{self} has waited for {waited:.0f} s in the operation {operation}, {found}'

    def _speak(self) -> None:
        self._beats += 1
        line = json.dumps(
            {
                'host': self._host,
                'process': os.getpid(),
                'beats': self._beats,
                'operation': self._operation,
                'left': self._left,
            }
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
            if rank not in self._peers or said != self._peers[rank].said:
                self._peers[rank] = Peer(rank, said if isinstance(said, dict) else {}, time.monotonic())

    def _url(self, rank: int) -> str:
        return f'http://{self._address}/{SCOPE}/{rank}'

    @staticmethod
    def _open(request: urllib.request.Request):
        """Ask horovodrun, past any proxy that the environment names."""
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5)
