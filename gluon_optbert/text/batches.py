"""Batches of shards, streamed: each rank's part of every global batch, prepared by a thread.

The order follows from the seed and the number of the epoch alone, so a stream goes on anywhere, and every
instance comes once an epoch for any number of ranks."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..runs.limits import memory_of_machine
from .shards import Shards

_READ_AHEAD = 2  # batches that a thread prepares in advance
_LENGTH_MULTIPLE = 8  # lengths are rounded up to a multiple of it, so that few shapes occur
_MOST = 2**20  # masked tokens that are counted, of either split
_UNSEEN = 0.1  # how often a token counts as seen before anything is counted


@dataclasses.dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch: b instances of length L, the longest of the global batch, with M
    predictions each.

    What is padded has the weight zero: predictions in `masked_weights`, whole instances also in
    `instance_weights`."""

    input_ids: np.ndarray  # (b, L) int32
    token_types: np.ndarray  # (b, L) int32
    valid_length: np.ndarray  # (b,) float32
    masked_positions: np.ndarray  # (b, M) int32
    masked_ids: np.ndarray  # (b, M) int32
    masked_weights: np.ndarray  # (b, M) float32
    next_sentence_labels: np.ndarray  # (b,) int32; 1 where the second segment is a random one
    instance_weights: np.ndarray  # (b,) float32
    rows: np.ndarray  # (b,) int64; places of the instances in the stream
    masked_total: int  # predictions of weight one in the global batch, all ranks
    instance_total: int  # instances of weight one in the global batch
    token_total: int  # tokens in those, padding not counted
    index: int  # of the global batch; resuming with start=index + 1 goes on after it


def stream(
    shards: Shards, *, batch_size: int, seed: int, start: int = 0, rank: int = 0, workers: int = 1
) -> Iterator[Batch]:
    """The training batches of one rank, without end; every instance comes once per epoch, whatever `workers`
    is.

    A thread prepares some batches in advance. It ends when the consumer stops, and its errors surface there.

    Parameters
    ----------
    batch_size : int
        Of the global batch, a multiple of `workers`.
    seed : int
        The order of an epoch follows from it and the epoch's number alone.
    start : int
        Global batches already consumed; what they held is skipped without reading it.

    Raises
    ------
    ValueError
        If the workers cannot share a batch, or memory cannot hold one; while iterating, if a shard is corrupt
        (`Shards.read`).
    """
    _check(shards, batch_size, workers)
    pieces = _training_order(shards, seed=seed, start=start * batch_size)
    return _prepared(pieces, size=batch_size, start=start, rank=rank, workers=workers)


def evaluation_batches(
    shards: Shards, *, batch_size: int, rank: int = 0, workers: int = 1, limit: int | None = None
) -> Iterator[Batch]:
    """The first `limit` instances (all, without it), each once, in the order of the files; the last batch is
    filled up with instances of weight zero. Arguments and errors are those of `stream`."""
    _check(shards, batch_size, workers)
    pieces = _file_order(shards, shards.instances if limit is None else limit)
    return _prepared(pieces, size=batch_size, rank=rank, workers=workers)


def _check(shards: Shards, batch_size: int, workers: int) -> None:
    """ValueError if this machine cannot hold a global batch, or the workers cannot share it."""
    if batch_size < 1 or batch_size % workers:
        raise ValueError(
            f'a global batch of {batch_size} does not divide by {workers} workers; '
            f'take {max(batch_size // workers, 1) * workers} or {(batch_size // workers + 1) * workers}'
        )
    check_memory(shards, batch_size)


def check_memory(shards: Shards, batch_size: int) -> None:
    """ValueError if this machine cannot hold a global batch; every rank puts it together from parts."""
    needed = 2 * shards.manifest.dtype.itemsize * batch_size  # the parts, and what is made of them
    memory = memory_of_machine()
    if needed > memory:
        raise ValueError(
            f'a global batch of {batch_size:,} instances takes at least {needed / 1e9:,.0f} GB and this '
            f'machine has {memory / 1e9:,.0f} GB; the {shards.split} shards have {shards.instances:,} '
            'instances in all, so take a smaller --batch-size'
        )


def _training_order(shards: Shards, *, seed: int, start: int) -> Iterator[np.ndarray]:
    """Whole permuted shards from instance `start` of the sequence on (of the first, what is left)."""
    first, skip = divmod(start, shards.instances)
    for epoch in itertools.count(first):
        for number in np.random.RandomState([seed, epoch]).permutation(len(shards.files)):
            count = shards.files[number].instances
            if skip >= count:
                skip -= count
                continue
            order = np.random.RandomState([seed, epoch, number]).permutation(count)[skip:]
            skip = 0
            yield shards.read(number)[order]


def _file_order(shards: Shards, limit: int) -> Iterator[np.ndarray]:
    for number, file in enumerate(shards.files):
        if limit <= 0:
            return
        yield shards.read(number)[:limit]
        limit -= file.instances


def _cut(pieces: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same records in groups of `size`, the last may be smaller; holds a piece and less than a group."""
    held: list[np.ndarray] = []
    wanted = size
    for piece in pieces:
        at = 0
        while at < len(piece):
            part = piece[at : at + wanted].copy()
            held.append(part)
            at, wanted = at + len(part), wanted - len(part)
            if not wanted:
                yield np.concatenate(held)
                held, wanted = [], size
    if held:
        yield np.concatenate(held)


def _batch(records: np.ndarray, *, size: int, rank: int, workers: int, index: int) -> Batch:
    """The part of `rank` in a global batch; rows that it lacks to `size` have the weight zero."""
    real = len(records)
    width = records['input_ids'].shape[1]
    longest = int(records['valid_lengths'].max())
    length = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, width)
    share = size // workers
    rows = np.arange(rank * share, (rank + 1) * share)
    weights = (rows < real).astype(np.float32)
    own = records[np.where(rows < real, rows, 0)]
    return Batch(
        input_ids=own['input_ids'][:, :length].astype(np.int32),
        token_types=own['segment_ids'][:, :length].astype(np.int32),
        valid_length=own['valid_lengths'].astype(np.float32),
        masked_positions=own['masked_lm_positions'].astype(np.int32),
        masked_ids=own['masked_lm_ids'].astype(np.int32),
        masked_weights=own['masked_lm_weights'].astype(np.float32) * weights[:, np.newaxis],
        next_sentence_labels=own['next_sentence_labels'].astype(np.int32),
        instance_weights=weights,
        rows=index * size + rows,
        masked_total=int(records['masked_lm_weights'].sum(dtype=np.int64)),
        instance_total=real,
        token_total=int(records['valid_lengths'].sum(dtype=np.int64)),
        index=index,
    )


def _prepared(
    pieces: Iterator[np.ndarray], *, size: int, rank: int, workers: int, start: int = 0
) -> Iterator[Batch]:
    """Batches, some of them made in advance by a thread that lives as long as this generator."""
    batches = (
        _batch(records, size=size, rank=rank, workers=workers, index=index)
        for index, records in enumerate(_cut(pieces, size), start)
    )
    thread = ThreadPoolExecutor(1, 'read-ahead')
    try:
        ready = deque(thread.submit(next, batches, None) for _ in range(_READ_AHEAD))
        while (batch := ready.popleft().result()) is not None:
            ready.append(thread.submit(next, batches, None))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)


def frequency_loss(train: Shards, heldout: Shards) -> float:
    """The MLM loss, in nats per masked token, of guessing by how frequent each token is.

    The frequencies are those of masked tokens to train on, the guesses those of held-out ones. A network
    whose held-out loss is not below it has learnt nothing from the tokens around a mask. Both splits have one
    vocabulary; the first million masked tokens of each are counted. Errors are those of reading shards.
    """
    frequencies = _counts(train) + _UNSEEN
    wanted = _counts(heldout)
    losses = np.log(frequencies.sum()) - np.log(frequencies)
    return float(losses @ wanted / max(1, wanted.sum()))


def _counts(shards: Shards) -> np.ndarray:
    """Counts of masked positions by token, shape (vocabulary,)."""
    counts = np.zeros(shards.manifest.vocabulary.size, dtype=np.int64)
    for number in range(len(shards.files)):
        if counts.sum() >= _MOST:
            break
        records = shards.read(number)
        tokens = records['masked_lm_ids'][records['masked_lm_weights'] > 0]
        counts += np.bincount(tokens.astype(np.int64), minlength=len(counts))
    return counts
