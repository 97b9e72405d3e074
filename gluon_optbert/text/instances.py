"""Tokenised documents → instances for masked language modelling, and for next-sentence prediction unless
that is left out.

The procedure is BERT's (Devlin et al. 2018, section 3.1 and appendix A.2), with the packing of its released
program: sentences are gathered up to the wanted length and cut in two; the second part stays, or is replaced
by a segment of another document."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np

from .shards import record_dtype

SPECIALS = 3  # [CLS] A [SEP] B [SEP], of a pair


@dataclasses.dataclass(frozen=True)
class InstanceSpec:
    """Lengths of instances in tokens, shares between 0 and 1, and what the vocabulary says."""

    max_seq_length: int
    max_predictions: int
    masked_share: float
    short_share: float
    whole_words: bool
    next_sentence: bool
    cls_id: int
    sep_id: int
    mask_id: int
    continues: np.ndarray  # (vocabulary size,) bool: which tokens continue a word


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokenised documents in a row: sentence s is ids[sentences[s]:sentences[s+1]], document d has the
    sentences documents[d] to documents[d+1]. No sentence and no document is empty."""

    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    @classmethod
    def of(cls, documents: Sequence[Sequence[Sequence[int]]]) -> Tokens:
        """From lists; sentences and documents without tokens are left out."""
        kept = [[sentence for sentence in document if len(sentence)] for document in documents]
        kept = [document for document in kept if document]
        lengths = [len(sentence) for document in kept for sentence in document]
        flat = itertools.chain.from_iterable(itertools.chain.from_iterable(kept))
        ids = np.fromiter(flat, np.int32, sum(lengths))
        return cls(ids, np.cumsum([0, *lengths]), np.cumsum([0, *map(len, kept)]))

    def __len__(self) -> int:
        return len(self.documents) - 1


Pair = tuple[int, int, int, int, bool]  # ids[a0:a1], ids[b0:b1], whether the second segment is a random one


def segment_pairs(tokens: Tokens, *, room: int, short_share: float, seed: int) -> Iterator[Pair]:
    """The segment pairs of every document, together at most `room` tokens each.

    A pair whose first segment is all that was gathered gets a random second segment, as in the released
    program, so a little more than half of the pairs are random ones. With a single document none can be, and
    such a segment is left out."""
    generator = random.Random(seed)
    starts, borders = tokens.sentences.tolist(), tokens.documents.tolist()
    for number in range(len(tokens)):
        first, last = borders[number], borders[number + 1]
        while first < last:
            target = generator.randint(2, room) if generator.random() < short_share else room
            # the gathered sentences are first to end - 1
            end = bisect.bisect_left(starts, starts[first] + target, first + 1, last)
            split = generator.randint(first + 1, end - 1) if end - first > 1 else end
            is_random = len(tokens) > 1 and (split == end or generator.random() < 0.5)
            if is_random:
                length = target - (starts[split] - starts[first])
                b0, b1 = _elsewhere(starts, borders, number, length, generator)
                end = split  # what the random segment replaced comes again
            elif split == end:  # one document only, and a sentence that has no other beside it
                first = end
                continue
            else:
                b0, b1 = starts[split], starts[end]
            yield (*_trimmed(starts[first], starts[split], b0, b1, room, generator), is_random)
            first = end


def single_segments(tokens: Tokens, *, room: int, short_share: float, seed: int) -> Iterator[Pair]:
    """Segments without a second one: every token of a document once, at most `room` at a time, in whole
    sentences where they fit. These are RoBERTa's DOC-SENTENCES (Liu et al. 2019, section 4.2)."""
    generator = random.Random(seed)
    starts = tokens.sentences.tolist()
    for first, last in itertools.pairwise(tokens.sentences[tokens.documents].tolist()):
        while first < last:
            target = generator.randint(2, room) if generator.random() < short_share else room
            end = min(starts[bisect.bisect_right(starts, first + target) - 1], last)
            end = end if end > first else min(first + target, last)  # a part of a sentence that is longer
            yield first, end, end, end, False
            first = end


def _elsewhere(
    starts: list[int], borders: list[int], number: int, length: int, generator: random.Random
) -> tuple[int, int]:
    """A segment of another document than `number`, from a random sentence on, of about `length` tokens."""
    other = generator.randrange(len(borders) - 2)
    other += other >= number
    first = generator.randrange(borders[other], borders[other + 1])
    end = bisect.bisect_left(starts, starts[first] + length, first + 1, borders[other + 1])
    return starts[first], starts[end]


def _trimmed(
    a0: int, a1: int, b0: int, b1: int, room: int, generator: random.Random
) -> tuple[int, int, int, int]:
    """Both segments cut to `room` tokens, each off the longer one (a tie: the second), at a random end."""
    a, b = a1 - a0, b1 - b0
    excess = max(a + b - room, 0)
    uneven = min(excess, abs(a - b))
    from_a = (uneven if a > b else 0) + (excess - uneven) // 2
    from_b = excess - from_a
    front_a, front_b = (generator.getrandbits(cut).bit_count() for cut in (from_a, from_b))
    return a0 + front_a, a1 - (from_a - front_a), b0 + front_b, b1 - (from_b - front_b)


def make_instances(tokens: Tokens, spec: InstanceSpec, generator: np.random.RandomState) -> np.ndarray:
    """The instances of one pass over `tokens`, of `record_dtype`: fresh pairs, fresh masks."""
    seed = int.from_bytes(generator.bytes(16), 'little')
    segments, specials = (segment_pairs, SPECIALS) if spec.next_sentence else (single_segments, SPECIALS - 1)
    room = spec.max_seq_length - specials
    pairs = list(segments(tokens, room=room, short_share=spec.short_share, seed=seed))
    dtype = record_dtype(spec.max_seq_length, spec.max_predictions, len(spec.continues))
    records = np.zeros(len(pairs), dtype)
    for ids, types, (a0, a1, b0, b1, _) in zip(records['input_ids'], records['segment_ids'], pairs):
        a, end = a1 - a0 + 1, a1 - a0 + b1 - b0 + 2
        ids[0], ids[a] = spec.cls_id, spec.sep_id
        ids[1:a] = tokens.ids[a0:a1]
        if spec.next_sentence:
            ids[a + 1 : end], ids[end] = tokens.ids[b0:b1], spec.sep_id
            types[a + 1 : end + 1] = 1
    bounds = np.array(pairs, dtype=np.int64).reshape(-1, 5)
    first_lengths = bounds[:, 1] - bounds[:, 0]
    records['valid_lengths'] = first_lengths + bounds[:, 3] - bounds[:, 2] + specials
    records['next_sentence_labels'] = bounds[:, 4]
    _mask(records, first_lengths, spec, generator)
    return records


def _mask(
    records: np.ndarray, first_lengths: np.ndarray, spec: InstanceSpec, generator: np.random.RandomState
) -> None:
    """Choose and hide the predictions of every record: 80 % become [MASK], 10 % a random token, 10 % stay."""
    ids = records['input_ids']
    count, length = ids.shape
    place = np.arange(length)
    valid = records['valid_lengths'].astype(np.int64)[:, np.newaxis]
    eligible = (place > 0) & (place < valid - 1) & (place != first_lengths[:, np.newaxis] + 1)
    wanted = np.clip(np.rint(valid[:, 0] * spec.masked_share).astype(np.int64), 1, spec.max_predictions)
    wanted = np.minimum(wanted, eligible.sum(axis=1))
    keys = np.where(eligible, generator.random_sample((count, length)), 2.0)
    if spec.whole_words:
        chosen = _whole_words(ids, eligible, wanted, keys, spec.continues)
    else:
        rank = np.argsort(np.argsort(keys, axis=1, kind='stable'), axis=1, kind='stable')
        chosen = rank < wanted[:, np.newaxis]
    rows, places = np.nonzero(chosen)
    slots = np.cumsum(chosen, axis=1)[chosen] - 1
    records['masked_lm_positions'][rows, slots] = places
    records['masked_lm_ids'][rows, slots] = ids[rows, places]
    records['masked_lm_weights'][rows, slots] = 1
    chance = generator.random_sample(len(rows))
    others = generator.randint(len(spec.continues), size=len(rows))
    ids[rows, places] = np.where(
        chance < 0.8, spec.mask_id, np.where(chance < 0.9, others, ids[rows, places])
    )


def _whole_words(
    ids: np.ndarray, eligible: np.ndarray, wanted: np.ndarray, keys: np.ndarray, continues: np.ndarray
) -> np.ndarray:
    """Words in random order, each taken with all its pieces if they still fit into what is wanted."""
    joins = np.zeros_like(eligible)
    joins[:, 1:] = continues[ids[:, 1:]] & eligible[:, 1:] & eligible[:, :-1]
    word = np.cumsum(~joins, axis=1) - 1  # the number of each token's word in its row
    chosen = np.zeros_like(eligible)
    for row in range(len(ids)):
        heads = np.flatnonzero(eligible[row] & ~joins[row])
        sizes = np.bincount(word[row][eligible[row]], minlength=word.shape[1])
        left, taken = int(wanted[row]), []
        for head in heads[np.argsort(keys[row, heads], kind='stable')].tolist():
            size = sizes[word[row, head]]
            if size <= left:
                taken.append(word[row, head])
                left -= size
            if not left:
                break
        chosen[row] = eligible[row] & np.isin(word[row], taken)
    return chosen
