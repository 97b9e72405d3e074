"""Tokenised instances of a task, and their batches: of like lengths, in an order that any number of ranks
share.

An epoch is a permutation of the instances, cut into pools of some batches; a pool is sorted by length and cut
into batches, and the batches are shuffled. So a batch holds instances of like lengths and little padding, and
rank r of N takes every N-th row."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Generator, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from gluonnlp.vocab import BERTVocab

from ..text.vocabulary import is_cased, make_tokenizer

LENGTH_MULTIPLE = 8  # lengths are rounded up to it, so that few shapes occur
_POOL = 64  # batches that are sorted by length together


@dataclasses.dataclass(frozen=True)
class Features:
    """Instances in a row: instance i is ids[starts[i]:starts[i + 1]], and its second segment begins at its
    token seconds[i].

    Parameters
    ----------
    ids : np.ndarray of int32, shape (tokens,)
    starts : np.ndarray of int64, shape (instances + 1,)
    seconds : np.ndarray of int64, shape (instances,)
        The length of an instance that has no second segment.
    labels : np.ndarray, shape (instances,) or (instances, 2), optional
        Numbers of classes, values, or the positions of the first and the last token of an answer.
    """

    ids: np.ndarray
    starts: np.ndarray
    seconds: np.ndarray
    labels: Optional[np.ndarray] = None

    def __len__(self) -> int:
        return len(self.seconds)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The tokens of every instance, shape (instances,)."""
        return np.diff(self.starts)

    def width(self, rows: np.ndarray) -> int:
        """Tokens that the longest of some instances takes in a batch: rounded up, yet never more than the
        longest of all.
        """
        longest = int(self.lengths[rows].max())
        return min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, self._longest)

    @functools.cached_property
    def _longest(self) -> int:
        return int(self.lengths.max())

    @classmethod
    def of(
        cls, instances: Iterable[Tuple[Sequence[int], int]], labels: Optional[np.ndarray] = None
    ) -> Features:
        """From the ids of each instance and the place of its second segment."""
        ids, starts, seconds = [], [0], []
        for tokens, second in instances:
            ids.extend(tokens)
            starts.append(len(ids))
            seconds.append(second)
        return cls(np.array(ids, np.int32), np.array(starts, np.int64), np.array(seconds, np.int64), labels)


@dataclasses.dataclass(frozen=True)
class TaskBatch:
    """One rank's part of a global batch: b instances of length L, which fits the longest of the global batch.

    Rows that fill a batch up repeat another one with the weight zero.
    """

    input_ids: np.ndarray  # (b, L) int32
    token_types: np.ndarray  # (b, L) int32
    valid_length: np.ndarray  # (b,) float32
    labels: np.ndarray  # (b,) or (b, 2) float32
    weights: np.ndarray  # (b,) float32
    rows: np.ndarray  # (b,) int64; numbers of the instances
    instance_total: int  # instances of weight one in the global batch
    token_total: int  # tokens in those, padding not counted


def pair(
    first: Sequence[int], second: Optional[Sequence[int]], *, cls_id: int, sep_id: int, max_length: int
) -> Tuple[List[int], int]:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP], and where B begins; what is too long loses tokens at the end
    of its longer text.

    At a tie the second text loses one, as in BERT's program.
    """
    if second is None:
        tokens = [cls_id, *first[: max_length - 2], sep_id]
        return tokens, len(tokens)
    room = max_length - 3
    a = (
        len(first)
        if len(first) + len(second) <= room
        else max(room - len(second), min(len(first), room - room // 2))
    )
    tokens = [cls_id, *first[:a], sep_id, *second[: room - a], sep_id]
    return tokens, a + 2


def make_reader(vocabulary: BERTVocab, *, max_length: int) -> Callable[..., Features]:
    """A function (sentences or pairs, labels if there are) → what a network with this vocabulary reads."""
    tokenize = make_tokenizer(vocabulary, cased=is_cased(vocabulary))
    cls_id, sep_id = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]

    def read(texts: Iterable[Sequence[str]], labels: Optional[np.ndarray] = None) -> Features:
        return Features.of(
            (
                pair(
                    tokenize(first),
                    tokenize(second[0]) if second else None,
                    cls_id=cls_id,
                    sep_id=sep_id,
                    max_length=max_length,
                )
                for first, *second in texts
            ),
            labels,
        )

    return read


def steps_per_epoch(features: Features, batch_size: int) -> int:
    """Batches that hold every instance once."""
    return -(-len(features) // batch_size)


def training_batches(
    features: Features, *, batch_size: int, seed: int, start: int = 0, rank: int = 0, workers: int = 1
) -> Generator[TaskBatch, None, None]:
    """One rank's part of every batch, without end; every instance comes once per epoch, whatever `workers`
    is.

    Parameters
    ----------
    features : Features
    batch_size : int
        Of the global batch, a multiple of `workers`.
    seed : int
        The order of an epoch follows from it and the epoch's number alone.
    start : int
        Global batches already consumed.
    rank, workers : int
    """
    epoch, skip = divmod(start, steps_per_epoch(features, batch_size))
    while True:
        for rows in _epoch(features.lengths, batch_size, np.random.RandomState([seed, epoch]))[skip:]:
            padded = np.concatenate([rows, np.full(batch_size - len(rows), rows[0])])
            weights = (np.arange(batch_size) < len(rows)).astype(np.float32)
            yield _batch(features, padded[rank::workers], weights[rank::workers], rows)
        epoch, skip = epoch + 1, 0


def _epoch(lengths: np.ndarray, batch_size: int, random: np.random.RandomState) -> List[np.ndarray]:
    """The instances of every batch of an epoch."""
    order = random.permutation(len(lengths))
    batches = []
    for first in range(0, len(order), _POOL * batch_size):
        pool = order[first : first + _POOL * batch_size]
        pool = pool[np.argsort(lengths[pool], kind='stable')]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def evaluation_batches(
    features: Features, *, tokens: int, rank: int = 0, workers: int = 1
) -> Generator[TaskBatch, None, None]:
    """One rank's batches that hold every instance once, the longest first, of as many as fit `tokens` tokens,
    padding counted.
    """
    lengths = features.lengths
    order = np.argsort(-lengths, kind='stable')
    number = first = 0
    while first < len(order):
        rows = order[first : first + max(1, tokens // features.width(order[first : first + 1]))]
        if number % workers == rank:
            yield _batch(features, rows, np.ones(len(rows), np.float32), rows)
        number, first = number + 1, first + len(rows)


def sorted_batches(features: Features, batch_size: int) -> Iterator[TaskBatch]:
    """Batches of so many instances that hold every instance once, the shortest first."""
    order = np.argsort(features.lengths, kind='stable')
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        yield _batch(features, rows, np.ones(len(rows), np.float32), rows)


def _batch(features: Features, rows: np.ndarray, weights: np.ndarray, everyone: np.ndarray) -> TaskBatch:
    """A batch of some rows, as long as the longest of `everyone`'s."""
    valid, starts = features.lengths[rows], features.starts
    width = features.width(everyone)
    ids = np.zeros((len(rows), width), np.int32)
    for target, row in zip(ids, rows):
        target[: starts[row + 1] - starts[row]] = features.ids[starts[row] : starts[row + 1]]
    columns = np.arange(width)
    types = (columns >= features.seconds[rows][:, np.newaxis]) & (columns < valid[:, np.newaxis])
    labels = (
        np.zeros(len(rows), np.float32)
        if features.labels is None
        else features.labels[rows].astype(np.float32)
    )
    return TaskBatch(
        ids,
        types.astype(np.int32),
        valid.astype(np.float32),
        labels,
        weights,
        rows,
        len(everyone),
        int(features.lengths[everyone].sum()),
    )
