"""The workers of a job; the only module that imports Horovod, and only where a job was started by it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
from typing import Iterable, Iterator, List, Optional, Sequence

import mxnet as mx
import numpy as np

from ..runs.failures import RunFailed
from .liveness import Watch, patience

COMPRESSIONS = ('none', 'fp16')


class Disagreement(RunFailed):
    """The workers would go on with different things, which would train different networks as one."""


@functools.lru_cache(maxsize=None)
def _watch(rank: int, size: int) -> Optional[Watch]:
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

    def sum(self, values: Iterable[float], *, name: str) -> List[float]:
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
