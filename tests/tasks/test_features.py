"""Features and their batches: every instance once, of like lengths, the same for any number of ranks."""

import itertools

import numpy as np
import pytest
from helpers.examples import examples
from helpers.tiny import vocabulary
from hypothesis import given, strategies as st
from tokenizers import BertWordPieceTokenizer

from gluon_optbert.tasks.features import (
    BATCHINGS,
    PASS_COST,
    WIDTHS,
    Features,
    bucket_width,
    evaluation_batches,
    fewest_rows,
    length_buckets,
    make_reader,
    pair,
    steps_per_epoch,
    training_batches,
    windows_of,
)

CLS, SEP = 2, 3


def features(count=37, *, longest=30, seed=0):
    """Instances that begin with their number."""
    random = np.random.RandomState(seed)
    lengths = random.randint(1, longest, count)
    instances = [([i, *range(100, 100 + n)], 1 + random.randint(0, 2)) for i, n in enumerate(lengths)]
    return Features.of(instances, np.arange(count) % 3)


def features_of(lengths):
    """Instances of the lengths and one token more, with a second segment or none."""
    lengths = [1 + length for length in lengths]
    instances = [(range(i, i + length), max(1, length - i % 3)) for i, length in enumerate(lengths)]
    return Features.of(instances, np.arange(len(lengths)) % 5)


def take(batches, count):
    return list(itertools.islice(batches, count))


@examples(60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=2), st.integers(7, 20))
def test_windows_of_a_long_text_cover_it_evenly_and_fit(lengths, most):
    texts = [list(range(100 * number, 100 * number + length)) for number, length in enumerate(lengths)]
    windows = windows_of(texts, max_length=most)
    room = most - len(texts) - 1
    long = max(range(len(texts)), key=lambda i: lengths[i])
    if sum(lengths) <= room:
        assert windows == [texts]
        return
    assert all(sum(map(len, window)) == room for window in windows)
    assert {token for window in windows for token in window[long]} == {*texts[long]}
    others = [part for window in windows for i, part in enumerate(window) if i != long]
    assert all(part == texts[1 - long][: room // 2] for part in others)
    size = len(windows[0][long])
    assert (len(windows) - 1) * size < lengths[long] <= len(windows) * size


@pytest.mark.parametrize('rows', [[5, 0, 36, 5], []])
def test_some_instances_have_their_own_tokens_in_the_order_asked_for(rows):
    whole = features()
    some = whole.some(np.array(rows, int))
    wanted = [whole.ids[whole.starts[row] : whole.starts[row + 1]].tolist() for row in rows]
    assert [part.tolist() for part in np.split(some.ids, some.starts[1:-1])][: len(rows)] == wanted
    assert len(some) == len(rows) and some.seconds.tolist() == whole.seconds[rows].tolist()


def test_texts_that_are_cut_are_counted_and_the_scores_of_windows_averaged():
    texts = [(' '.join('abcdefghij'),), ('a b',), ('a b c d', 'e f g h i j')]
    cut, split = (make_reader(vocabulary(), max_length=8, split=split)(texts) for split in (False, True))
    assert cut.wholes.tolist() == [12, 4, 13] and cut.cut.tolist() == [True, False, True]
    assert cut.cut_note(512) == '2 of 3 texts were cut to 8 tokens; --max-length 13'
    assert cut.cut_note(8) == '2 of 3 texts were cut to 8 tokens'
    assert split.texts.tolist() == [0, 0, 1, 2, 2] and not split.cut.any() and split.cut_note(512) == ''
    scores = np.arange(10.0).reshape(5, 2)
    assert split.by_text(scores).tolist() == [[1, 2], [4, 5], [7, 8]]
    assert cut.by_text(scores) is scores


@given(st.integers(0, 12), st.none() | st.integers(0, 12), st.integers(1, 20))
def test_texts_have_their_special_tokens_and_the_longer_one_loses_its_end_first(first, second, max_length):
    words = [range(10, 10 + first), *([] if second is None else [range(30, 30 + second)])]
    least = 2 if second is None else 3
    if max_length < least:
        with pytest.raises(ValueError, match=f'max_length must be at least {least} for'):
            pair(words, cls_id=CLS, sep_id=SEP, max_length=max_length)
        return
    a, b = first, second or 0
    while a + b > max_length - least:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    wanted = [CLS, *range(10, 10 + a), SEP]
    wanted += [] if second is None else [*range(30, 30 + b), SEP]
    assert pair(words, cls_id=CLS, sep_id=SEP, max_length=max_length) == (wanted, a + 2)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(4, 20))
def test_fast_tokenizers_give_the_odd_token_of_two_cut_texts_to_the_longer_one(first, second, max_length):
    tokenizer = BertWordPieceTokenizer(dict(vocabulary().token_to_idx))
    tokenizer.enable_truncation(max_length, strategy='longest_first')
    types = tokenizer.encode('a ' * first, 'a ' * second).type_ids
    _, begins = pair([[5] * first, [5] * second], cls_id=CLS, sep_id=SEP, max_length=max_length)
    room = max_length - 3
    differs = first <= second and first > room // 2 and room % 2 == 1  # as docs/exports.md says
    assert begins - types.count(0) == differs


WAYS = [{'batch_size': 12, 'batching': batching} for batching in BATCHINGS]
WAYS += [{'tokens': tokens} for tokens in (24, 96, 384)]


def check_values(batch, instances):
    """Every row has its own tokens, types and label, and zeros behind them."""
    for i, row in enumerate(batch.rows):
        own = instances.ids[instances.starts[row] : instances.starts[row + 1]]
        types = np.arange(len(own)) >= instances.seconds[row]
        for values, wanted in ((batch.input_ids[i], own), (batch.token_types[i], types)):
            assert (values[: len(own)] == wanted).all() and not values[len(own) :].any()
        assert batch.valid_length[i] == len(own) and batch.labels[i] == instances.labels[row]


def rows_of_passes(batch, passes):
    """The rows of each pass, without those that only fill it."""
    parts = zip(np.split(batch.rows, passes), np.split(batch.instance_weights, passes))
    return [rows[weights > 0] for rows, weights in parts]


@examples(60)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=80),
    st.sampled_from(WAYS),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_every_instance_comes_once_an_epoch_with_its_own_values(lengths, way, workers, passes):
    """Several ranks share the rows of one, in the same passes, and batches go on anywhere."""
    instances = features_of(lengths)
    common, longest = {**way, 'seed': 1, 'passes': passes}, int(instances.lengths.max())
    count = steps_per_epoch(instances, way.get('batch_size', 1), way.get('tokens', 0))
    whole = take(training_batches(instances, **common), 2 * count)
    for start in {1, count, 2 * count - 1}:
        again = take(training_batches(instances, **common, start=start), 2 * count - start)
        assert all((one.rows == other.rows).all() for one, other in zip(whole[start:], again))
    for epoch in (whole[:count], whole[count:]):
        seen = np.concatenate([batch.rows[batch.instance_weights > 0] for batch in epoch])
        assert sorted(seen) == list(range(len(lengths)))
    parts = [
        take(training_batches(instances, **common, rank=rank, workers=workers), count)
        for rank in range(workers)
    ]
    for batch, *shares in zip(whole, *parts):
        width = batch.input_ids.shape[1]
        size = way.get('batch_size') or -(-max(1, way['tokens'] // width) // passes) * passes
        assert len(batch.rows) == size and batch.valid_length.max() <= width <= longest
        assert width in (*(WIDTHS if 'tokens' in way else range(8, 96, 8)), longest)
        for share in shares:
            check_values(share, instances)
            assert share.input_ids.shape == (len(shares[0].rows), width)
            assert (share.instance_total, share.token_total) == (batch.instance_total, batch.token_total)
        same = passes if size % (workers * passes) == 0 else 1  # else other rows fill the passes up
        for own, *split in zip(*(rows_of_passes(one, same) for one in (batch, *shares))):
            assert sorted(np.concatenate(split)) == sorted(own)
    if 'tokens' in way:
        full = [len(batch.rows) for batch in whole if batch.instance_weights.all()]
        assert min(full, default=way['tokens']) >= fewest_rows(instances, way['tokens'])


@pytest.mark.parametrize('way', WAYS)
def test_order_follows_from_the_seed_and_the_epoch(way):
    instances = features()
    count = steps_per_epoch(instances, way.get('batch_size', 1), way.get('tokens', 0))
    first, other = (take(training_batches(instances, **way, seed=seed), 2 * count) for seed in (1, 2))
    orders = (np.concatenate([batch.rows for batch in one]) for one in (first[:count], first[count:], other))
    assert len(set(map(tuple, orders))) == 3


def test_texts_that_are_left_of_a_width_fill_the_next():
    instances = Features.of([(range(length), length) for length in [5] * 9 + [12] * 5 + [30] * 3])
    batches = take(training_batches(instances, tokens=64, seed=1), steps_per_epoch(instances, 1, 64))
    shapes = sorted((batch.input_ids.shape, int(batch.instance_weights.sum())) for batch in batches)
    assert shapes == [((2, 30), 1), ((2, 30), 2), ((2, 30), 2), ((4, 16), 4), ((8, 8), 8)]


def test_batches_hold_like_lengths_or_any():
    """Random ones spread in their lengths as all instances do."""
    instances = features(800, longest=100)
    like = take(training_batches(instances, batch_size=16, seed=1), 50)
    assert sum(batch.input_ids.size for batch in like) < 1.2 * len(instances.ids)
    widths = {batch.input_ids.shape[1] for batch in like} - {instances.lengths.max()}
    assert {width % 8 for width in widths} == {0}
    batches = take(training_batches(instances, batch_size=16, seed=1, batching='random'), 50)
    spread = np.mean([np.std(batch.valid_length) for batch in batches])
    assert spread > 0.9 * np.std(instances.lengths)


@pytest.mark.parametrize('tokens, workers', [(1, 1), (64, 1), (64, 3), (10**6, 2)])
def test_evaluation_takes_every_instance_once_within_its_tokens(tokens, workers):
    instances = features()
    batches = [
        batch
        for rank in range(workers)
        for batch in evaluation_batches(instances, tokens=tokens, rank=rank, workers=workers)
    ]
    assert sorted(row for batch in batches for row in batch.rows) == list(range(37))
    assert all(batch.input_ids.size <= tokens or len(batch.rows) == 1 for batch in batches)


@examples(50)
@given(st.lists(st.integers(2, 128), max_size=80), st.integers(1, 40), st.sampled_from([128, 130, 512]))
def test_every_row_is_in_one_batch_that_it_fits(lengths, batch_size, most):
    lengths = np.array(lengths, np.int64)
    batches = length_buckets(lengths, batch_size, most)
    assert sorted(row for rows, _ in batches for row in rows) == list(range(len(lengths)))
    for rows, width in batches:
        assert len(rows) <= batch_size and (len(rows) == batch_size or len(rows) & (len(rows) - 1) == 0)
        assert lengths[rows].max() <= width <= most and width == bucket_width(int(lengths[rows].max()), most)


@examples(50)
@given(st.lists(st.integers(2, 64), min_size=1, max_size=9), st.sampled_from([1, 4, 8]))
def test_no_other_cut_of_the_sorted_rows_costs_less(lengths, batch_size):
    ordered = sorted(lengths)
    sizes = {1, 2, 4, 8, batch_size} & set(range(1, batch_size + 1))

    def least(rows):
        if not rows:
            return 0
        return min(
            least(rows[:-size]) + size * bucket_width(rows[-1], 512) + PASS_COST
            for size in sizes
            if size <= len(rows)
        )

    cut = length_buckets(np.array(lengths), batch_size, 512)
    assert sum(len(rows) * width + PASS_COST for rows, width in cut) == least(ordered)
