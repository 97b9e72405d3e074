"""Tokenised instances of a task, and their batches.

An epoch permutes the instances. Random batches are cut from that. For batches of similar lengths, which have
little padding, the instances are cut into pools, each pool is sorted by length and cut into batches, and the
batches are shuffled. Batches of so many tokens have instances that are padded to one of `WIDTHS`: there are
few shapes, all products have the same number of rows, and MXNet keeps little memory for them. The order does
not depend on the number of ranks: rank r of N takes every N-th row of a batch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np

from ..text.tokenizer import Vocabulary, make_tokenizer

PASS_COST = 32  # tokens whose products take as long as a pass takes to read the weights, roughly
_STEPS = ((32, 4), (64, 8), (128, 16), (1 << 30, 32))  # up to this length, multiples of that
LENGTH_MULTIPLE = 8  # lengths are rounded up to a multiple of it, so that there are few shapes
LONG = ('cut', 'split')  # what is done with a text that is too long
BATCHINGS = ('lengths', 'random')
WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # of batches of so many tokens
NO_TAG = -1
_POOL = 64  # batches of a pool


@dataclasses.dataclass(frozen=True)
class Features:
    """The tokens of all instances, one after the other: instance i is ids[starts[i]:starts[i + 1]].

    Labels are class indices, values, the first and the last token of an answer, or zeros and ones."""

    ids: np.ndarray  # (tokens,) int32
    starts: np.ndarray  # (instances + 1,) int64
    seconds: np.ndarray  # (instances,) int64; the token that its second segment begins at, else its length
    labels: np.ndarray | None = None  # (instances,) or (instances, numbers)
    tags: np.ndarray | None = None  # (tokens,) int, in place of labels: class indices, or `NO_TAG`
    wholes: np.ndarray | None = None  # (instances,) int; the tokens of an instance if it were not cut
    texts: np.ndarray | None = None  # (instances,) int, increasing; those of windows, where texts are split
    words: Sequence[np.ndarray] | None = None  # of each instance, the first tokens of its words, to tag them

    def __len__(self) -> int:
        return len(self.seconds)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The tokens of every instance, shape (instances,)."""
        return np.diff(self.starts)

    def width(self, rows: np.ndarray) -> int:
        """The length of a batch: its longest row, rounded up, at most the longest instance of all."""
        longest = int(self.lengths[rows].max())
        return min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, self._longest)

    @property
    def has_pairs(self) -> bool:
        """Whether an instance has a second segment."""
        return bool((self.seconds < self.lengths).any())

    @functools.cached_property
    def _longest(self) -> int:
        return int(self.lengths.max())

    @property
    def cut(self) -> np.ndarray:
        """Mask of the instances that were cut, shape (instances,)."""
        return (0 if self.wholes is None else self.wholes) > self.lengths

    def cut_note(self, positions: int) -> str:
        """Number of texts that were cut, in words, and what would help in a network with so many positions;
        empty if none.
        """
        count = int(self.cut.sum())
        if not count:
            return ''
        remedy = f'; --max-length {min(int(self.wholes.max()), positions)}' * (self._longest < positions)
        return cut_note(count, len(self), self._longest) + remedy

    def some(self, rows: np.ndarray) -> Features:
        """Some of the instances, without labels."""
        lengths = self.lengths[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths)
        wholes = None if self.wholes is None else self.wholes[rows]
        return Features(self.ids[tokens], starts, self.seconds[rows], wholes=wholes)

    def by_text(self, scores: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """The mean of the scores of the windows of each text, shape (texts, …); of words that are tagged,
        their own scores in each text, shape (words, labels).
        """
        if self.texts is None:
            return scores
        if self.words is not None:
            parts: list[list[np.ndarray]] = [[] for _ in range(int(self.texts[-1]) + 1)]
            for text, own, words in zip(self.texts, scores, self.words):
                parts[text].append(own[words])
            return [np.concatenate(part) for part in parts]
        counts = np.bincount(self.texts).reshape(-1, *[1] * (scores.ndim - 1))
        return np.add.reduceat(scores, np.unique(self.texts, return_index=True)[1]) / counts

    @classmethod
    def of(cls, instances: Iterable[tuple[Sequence[int], int]], labels: np.ndarray | None = None) -> Features:
        """Features from the ids of each instance and the position of its second segment."""
        ids, starts, seconds = [], [0], []
        for tokens, second in instances:
            ids.extend(tokens)
            starts.append(len(ids))
            seconds.append(second)
        return cls(np.array(ids, np.int32), np.array(starts, np.int64), np.array(seconds, np.int64), labels)


def cut_note(count: int, texts: int, length: int | None = None) -> str:
    """Number of texts that were cut, in words, and to how many tokens if that is known."""
    return f'{count:,} of {texts:,} texts were cut' + (f' to {length} tokens' if length else '')


@dataclasses.dataclass(frozen=True)
class TaskBatch:
    """One rank's part of a global batch: b instances, padded to the length L of the whole global batch.

    A row that only fills the batch repeats another one and has the weight zero.
    """

    input_ids: np.ndarray  # (b, L) int32
    token_types: np.ndarray  # (b, L) int32
    valid_length: np.ndarray  # (b,) float32
    labels: np.ndarray  # (b,), (b, numbers) or (b, L) float32
    instance_weights: np.ndarray  # (b,) float32
    rows: np.ndarray  # (b,) int64; indices of the instances
    instance_total: int  # instances of weight one in the global batch
    token_total: int  # tokens of those, without padding


def pair(
    texts: Sequence[Sequence[int]], *, cls_id: int, sep_id: int, max_length: int
) -> tuple[list[int], int]:
    """[CLS] A [SEP] of one text, or [CLS] A [SEP] B [SEP] of two, and the position where B begins.

    A sequence that is too long loses tokens at the end of its longer text, at a tie of the second one, as in
    BERT's program. ValueError if `max_length` is too small for [CLS] and the [SEP] of each text.
    """
    first, *second = texts
    least = 1 + len(texts)
    if max_length < least:
        what = 'a pair of texts' if second else 'one text'
        raise ValueError(
            f'max_length must be at least {least} for {what}, [CLS] and every [SEP], found {max_length}'
        )
    room, a, b = max_length - least, len(first), sum(map(len, second))
    if a + b > room:
        a = max(room - b, min(a, room - room // 2))
    tokens = [cls_id, *first[:a], sep_id]
    for text in second:
        tokens += [*text[: room - a], sep_id]
    return tokens, a + 2


def windows_of(texts: Sequence[Sequence[int]], *, max_length: int) -> list[list[Sequence[int]]]:
    """A text or a pair of texts as it is if it fits into `max_length` tokens with the special ones; else with
    parts of its longer text, all as long as they can be and spread evenly, beside the other one, which gets
    half of the room at most.
    """
    room = max_length - len(texts) - 1
    if sum(map(len, texts)) <= room:
        return [list(texts)]
    number = max(range(len(texts)), key=lambda i: len(texts[i]))
    parts = [text[: room // 2] for text in texts]
    size = room - sum(len(part) for i, part in enumerate(parts) if i != number)
    last = len(texts[number]) - size
    firsts = np.linspace(0, last, 1 - (-last // size)).astype(int)
    return [
        [texts[i][first : first + size] if i == number else part for i, part in enumerate(parts)]
        for first in firsts
    ]


def make_reader(vocabulary: Vocabulary, *, max_length: int, split: bool = False) -> Callable[..., Features]:
    """A function from sentences or pairs, and optional labels, to `Features`; long texts are cut or split."""
    tokenize = make_tokenizer(vocabulary)
    cls_id, sep_id = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]

    def read(texts: Iterable[Sequence[str]], labels: np.ndarray | None = None) -> Features:
        wholes, numbers = [], []

        def instances() -> Iterator[tuple[list[int], int]]:
            for number, sentences in enumerate(texts):
                pieces = [tokenize(text) for text in sentences]
                for parts in windows_of(pieces, max_length=max_length) if split else [pieces]:
                    wholes.append(sum(map(len, pieces)) + len(pieces) + 1)
                    numbers.append(number)
                    yield pair(parts, cls_id=cls_id, sep_id=sep_id, max_length=max_length)

        features = Features.of(instances(), labels)
        if split:
            return dataclasses.replace(features, texts=np.array(numbers, np.int64))
        return dataclasses.replace(features, wholes=np.array(wholes, np.int64))

    return read


def steps_per_epoch(features: Features, batch_size: int, tokens: int = 0) -> int:
    """The number of batches of an epoch; see `training_batches`."""
    if tokens:
        return len(_plan(features.lengths, tokens, np.arange(len(features))))
    return -(-len(features) // batch_size)


def training_batches(
    features: Features,
    *,
    batch_size: int = 1,
    tokens: int = 0,
    seed: int,
    start: int = 0,
    rank: int = 0,
    workers: int = 1,
    passes: int = 1,
    batching: str = 'lengths',
) -> Generator[TaskBatch, None, None]:
    """One rank's part of every batch, without end. Every instance comes once an epoch, whatever `workers` is.

    Parameters
    ----------
    batch_size : int
        Of the global batch, a multiple of `workers` and of `passes`.
    tokens : int
        Of the global batch, padding included; 0 for batches of `batch_size` instances.
    seed : int
        The order of an epoch depends only on it and the epoch's number.
    start : int
        Global batches already consumed.
    passes : int
        That a part is split into.
    batching : str
        What the instances of a batch have in common, one of `BATCHINGS`: similar lengths, or nothing.
    """
    epoch, skip = divmod(start, steps_per_epoch(features, batch_size, tokens))
    while True:
        random = np.random.RandomState([seed, epoch])
        if tokens:
            plan = _plan(features.lengths, tokens, random.permutation(len(features)))
            plan = [plan[i] for i in random.permutation(len(plan))]
        else:
            order = _order(features.lengths, batch_size, random, batching)
            plan = [(rows, None, batch_size) for rows in order]
        for rows, width, size in plan[skip:]:
            size = -(-size // (workers * passes)) * workers * passes
            padded = np.concatenate([rows, np.full(size - len(rows), rows[0])])
            weights = (np.arange(size) < len(rows)).astype(np.float32)
            yield batch_of(features, padded[rank::workers], weights[rank::workers], rows, width)
        epoch, skip = epoch + 1, 0


def token_batches(features: Features, tokens: int, *, most: int) -> Iterator[TaskBatch]:
    """Batches of so many tokens, padding included, that hold each of the first `most` instances once."""
    lengths = features.lengths[:most]
    for rows, width, _ in _plan(lengths, tokens, np.arange(len(lengths))):
        yield batch_of(features, rows, width=width)


def fewest_rows(features: Features, tokens: int) -> int:
    """The smallest number of instances in a full batch of so many tokens."""
    return min(size for _, _, size in _plan(features.lengths, tokens, np.arange(len(features))))


def _plan(lengths: np.ndarray, tokens: int, order: np.ndarray) -> list[tuple[np.ndarray, int, int]]:
    """The instances of batches of so many tokens, the width they are padded to, and how many have room.

    Instances that are left of a width join those of the next; so one batch alone may have fewer than others
    of its width.
    """
    longest = int(lengths.max())
    widths = [*(width for width in WIDTHS if width < longest), longest]
    places = np.searchsorted(widths, lengths[order])
    batches: list[tuple[np.ndarray, int, int]] = []
    left = order[:0]
    for place in np.unique(places):
        width = widths[place]
        size = max(1, tokens // width)
        rows = np.concatenate([left, order[places == place]])
        whole = len(rows) // size * size
        batches += [(part, width, size) for part in _parts(rows[:whole], size)]
        left = rows[whole:]
    return [*batches, (left, width, size)] if len(left) else batches


def _order(
    lengths: np.ndarray, batch_size: int, random: np.random.RandomState, batching: str
) -> list[np.ndarray]:
    """The instances of every batch of an epoch."""
    order = random.permutation(len(lengths))
    if batching == 'random':
        return _parts(order, batch_size)
    batches = []
    for pool in _parts(order, _POOL * batch_size):
        batches += _parts(pool[np.argsort(lengths[pool], kind='stable')], batch_size)
    return [batches[i] for i in random.permutation(len(batches))]


def _parts(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def evaluation_batches(
    features: Features, *, tokens: int, rank: int = 0, workers: int = 1
) -> Generator[TaskBatch, None, None]:
    """One rank's part of batches that hold every instance once, the longest first.

    A batch has as many instances as fit into `tokens` tokens, with padding.
    """
    lengths = features.lengths
    order = np.argsort(-lengths, kind='stable')
    number = first = 0
    while first < len(order):
        rows = order[first : first + max(1, tokens // features.width(order[first : first + 1]))]
        if number % workers == rank:
            yield batch_of(features, rows)
        number, first = number + 1, first + len(rows)


def sorted_batches(features: Features, batch_size: int) -> Iterator[TaskBatch]:
    """Batches that hold every instance once, the shortest first."""
    for rows in _parts(np.argsort(features.lengths, kind='stable'), batch_size):
        yield batch_of(features, rows)


def bucket_width(length: int, most: int) -> int:
    """The width that a sequence of `length` tokens is padded to, at most `most`."""
    step = next(step for end, step in _STEPS if length <= end)
    return min(-(-length // step) * step, most)


def length_buckets(lengths: np.ndarray, batch_size: int, most: int) -> list[tuple[np.ndarray, int]]:
    """The rows of every batch and its width, the shortest rows first.

    Of all ways to cut the sorted rows into batches, the one with the fewest tokens, padding and `PASS_COST`
    for each batch included. The largest width is `most`: the positions of the network.
    """
    order = np.argsort(lengths, kind='stable')
    widths = [bucket_width(int(length), most) for length in lengths[order]]
    sizes = [*(2**power for power in range(batch_size.bit_length()) if 2**power < batch_size), batch_size]
    best, last = [0], [0]  # of the first so many rows: the cost, and the size of the last batch
    for end, width in enumerate(widths, 1):
        cost, size = min(
            (best[end - size] + size * width + PASS_COST, -size) for size in sizes if size <= end
        )
        best.append(cost)
        last.append(-size)
    batches, end = [], len(order)
    while end:
        batches.append((order[end - last[end] : end], widths[end - 1]))
        end -= last[end]
    return batches[::-1]


def bucketed_batches(features: Features, batch_size: int, most: int) -> Iterator[TaskBatch]:
    """The batches of `length_buckets`, the shortest instances first; `most` is the largest width."""
    for rows, width in length_buckets(features.lengths, batch_size, most):
        yield batch_of(features, rows, width=width)


def batch_of(
    features: Features,
    rows: np.ndarray,
    weights: np.ndarray | None = None,
    all_rows: np.ndarray | None = None,
    width: int | None = None,
) -> TaskBatch:
    """A batch of the instances `rows`, shape (b,), whose weights (b,) are one unless given.

    They are those of one rank where the global batch has more, `all_rows`. They are padded to `width`, or to
    that of the global batch.
    """
    all_rows = rows if all_rows is None else all_rows
    width = width or features.width(all_rows)
    valid, starts = features.lengths[rows], features.starts

    def padded(values: np.ndarray, filling: int) -> np.ndarray:
        table = np.full((len(rows), width), filling, np.int32)
        for target, row in zip(table, rows):
            target[: starts[row + 1] - starts[row]] = values[starts[row] : starts[row + 1]]
        return table

    ids = padded(features.ids, 0)
    columns = np.arange(width)
    types = (columns >= features.seconds[rows][:, np.newaxis]) & (columns < valid[:, np.newaxis])
    labels = np.zeros(len(rows)) if features.labels is None else features.labels[rows]
    if features.tags is not None:
        labels = padded(features.tags, NO_TAG)
    return TaskBatch(
        ids,
        types.astype(np.int32),
        valid.astype(np.float32),
        labels.astype(np.float32),
        np.ones(len(rows), np.float32) if weights is None else weights,
        rows,
        len(all_rows),
        int(features.lengths[all_rows].sum()),
    )
