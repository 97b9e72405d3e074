"""Texts of several requests, gathered into batches that one thread computes."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import logging
import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

LOG = logging.getLogger(__name__)
# the future of a request that ran out of time was cancelled, and takes no result
_LATE = contextlib.suppress(concurrent.futures.InvalidStateError)


class QueueFull(RuntimeError):
    """As many texts wait as may."""


class Closed(RuntimeError):
    """The batcher takes no more texts."""


@dataclasses.dataclass(eq=False)
class _Job:
    """The texts of one request: how many, and the results so far, for they are computed in their order."""

    texts: int
    arrived: float  # by time.monotonic
    future: concurrent.futures.Future = dataclasses.field(default_factory=concurrent.futures.Future)
    results: list[Any] = dataclasses.field(default_factory=list)


_Waiting = tuple[_Job, Any]  # a job and one of its texts


class Batcher:
    """One thread that computes what requests submit, in batches.

    The first text of a batch waits `wait_ms` for others, and no longer than the batch before it takes. If a
    batch fails, each of its requests is computed on its own, so that no request fails because of another. As
    many as `queue` texts may wait, without the batch that is computed.
    """

    def __init__(
        self, compute: Callable[[list[Any]], Sequence[Any]], *, batch_size: int, wait_ms: float, queue: int
    ):
        self._compute, self._batch_size, self._wait, self._queue = compute, batch_size, wait_ms / 1000, queue
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = self.texts = 0  # that were computed, without those that failed
        self._thread = threading.Thread(target=self._run, name='model', daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of waiting texts."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether the thread runs and takes texts."""
        return self._thread.is_alive() and not self._closed

    def submit(self, texts: Sequence[Any]) -> concurrent.futures.Future:
        """The future results of texts, in their order; cancelling it takes back those that still wait.

        QueueFull if there is no place for all of them, Closed after `close`.
        """
        job = _Job(len(texts), time.monotonic())
        if not texts:
            job.future.set_result([])
            return job.future
        with self._changed:
            if self._closed:
                raise Closed('the service is stopping')
            if len(self._waiting) + len(texts) > self._queue:
                self._waiting = collections.deque(
                    waiting for waiting in self._waiting if not waiting[0].future.done()
                )
            if len(self._waiting) + len(texts) > self._queue:
                raise QueueFull(f'{len(self._waiting)} texts wait already; try again later')
            self._waiting.extend((job, text) for text in texts)
            self._changed.notify()
        return job.future

    def close(self, timeout: float) -> bool:
        """Take no more texts, and wait so many seconds until those that were taken are computed; whether they
        are.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for batch in iter(self._gather, []):
            self._settle([waiting for waiting in batch if not waiting[0].future.done()])

    def _gather(self) -> list[_Waiting]:
        """The texts of the next batch; none after the last one."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            while self._waiting and len(self._waiting) < self._batch_size and not self._closed:
                remaining = self._waiting[0][0].arrived + self._wait - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            size = min(len(self._waiting), self._batch_size)
            return [self._waiting.popleft() for _ in range(size)]

    def _settle(self, batch: list[_Waiting]) -> None:
        """Compute a batch, and give its jobs their results or the error."""
        if not batch:
            return
        try:
            results = list(self._compute([text for _, text in batch]))
            if len(results) != len(batch):
                raise RuntimeError(f'{len(results)} results of {len(batch)} texts')
        except Exception as error:
            by_job = [list(own) for _, own in itertools.groupby(batch, operator.itemgetter(0))]
            if len(by_job) > 1:
                for own in by_job:
                    self._settle(own)
                return
            LOG.exception('a batch of %d texts failed', len(batch))
            with _LATE:
                batch[0][0].future.set_exception(error)
            return
        self.batches, self.texts = self.batches + 1, self.texts + len(batch)
        for (job, _), result in zip(batch, results):
            job.results.append(result)
            if len(job.results) == job.texts:
                with _LATE:
                    job.future.set_result(job.results)
