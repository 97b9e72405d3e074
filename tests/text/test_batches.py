"""Batches: their order, their division among ranks, and what a consumer may do."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest
from helpers.examples import examples
from helpers.tiny import TOKENS, random_records, write_records
from hypothesis import given, strategies as st

from gluon_optbert.text.batches import evaluation_batches, stream
from gluon_optbert.text.shards import Shards
from gluon_optbert.text.tokenizer import vocabulary_of

VOCAB = vocabulary_of([*TOKENS, *map(str, range(60))])


def make_shards_directory(directory, sizes):
    """Shards in which the second token of an instance is its number."""
    records = random_records(sum(sizes))
    records['input_ids'][:, 1] = np.arange(len(records))
    write_records(directory, {'train': np.split(records, np.cumsum(sizes)[:-1])}, VOCAB)
    return records


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp('data') / 'shards'
    make_shards_directory(path, (11, 1, 20, 5))
    return path


@pytest.fixture
def shards(directory):
    return Shards.open(directory)


def numbers(batches):
    """The instances of weight one, in their order."""
    return [
        int(number)
        for batch in batches
        for number, weight in zip(batch.input_ids[:, 1], batch.instance_weights)
        if weight
    ]


@pytest.mark.parametrize('workers, batch_size', [(1, 7), (3, 9), (4, 4), (4, 40)])
def test_every_instance_once_per_epoch_for_any_worker_count(shards, workers, batch_size):
    def taken(**share):  # as many epochs as there are instances in a batch
        return list(itertools.islice(stream(shards, batch_size=batch_size, seed=5, **share), 37))

    ranks, whole = [taken(rank=rank, workers=workers) for rank in range(workers)], taken()
    order = np.reshape(numbers(whole), (batch_size, 37))
    assert (np.sort(order, axis=1) == np.arange(37)).all()
    for parts, batch in zip(zip(*ranks), whole):
        for name, value in vars(batch).items():  # those of a rank are a part of each array, and all totals
            own = [vars(part)[name] for part in parts]
            found = np.concatenate(own) if isinstance(value, np.ndarray) else own
            np.testing.assert_array_equal(found, value)


@examples(10)
@given(batch_size=st.integers(1, 30), start=st.integers(0, 12), seed=st.integers(0, 2**32 - 1))
def test_resumed_stream_equals_uninterrupted(directory, batch_size, start, seed):
    shards = Shards.open(directory)
    taken = list(itertools.islice(stream(shards, batch_size=batch_size, seed=seed), start + 4))
    resumed = list(itertools.islice(stream(shards, batch_size=batch_size, seed=seed, start=start), 4))
    assert [batch.index for batch in resumed] == list(range(start, start + 4))
    for one, other in zip(taken[start:], resumed, strict=True):
        for name, values in vars(one).items():
            np.testing.assert_array_equal(values, vars(other)[name])
            assert np.asarray(values).dtype == np.asarray(vars(other)[name]).dtype


def test_epochs_and_seeds_differ_in_order_and_not_in_content(shards):
    def epochs(seed):
        taken = numbers(itertools.islice(stream(shards, batch_size=74, seed=seed), 2))  # of two epochs each
        return [taken[at : at + 37] for at in range(0, 111, 37)]

    orders = [*epochs(1), *epochs(2)]
    assert all(sorted(order) == list(range(37)) for order in orders)
    assert len(set(map(tuple, orders))) == 6
    assert epochs(1) == orders[:3]


def test_a_batch_is_what_the_shards_hold(tmp_path):
    records = make_shards_directory(tmp_path / 's', (6, 6))
    for batch in itertools.islice(stream(Shards.open(tmp_path / 's'), batch_size=4, seed=3), 3):
        rows = records[batch.input_ids[:, 1]]
        length = -(-int(rows['valid_lengths'].max()) // 8) * 8
        for found, wanted in (
            (batch.input_ids, rows['input_ids'][:, :length]),
            (batch.token_types, rows['segment_ids'][:, :length]),
            (batch.valid_length, rows['valid_lengths']),
            (batch.masked_positions, rows['masked_lm_positions']),
            (batch.masked_ids, rows['masked_lm_ids']),
            (batch.masked_weights, rows['masked_lm_weights']),
            (batch.next_sentence_labels, rows['next_sentence_labels']),
        ):
            np.testing.assert_array_equal(found, wanted)
        totals = (batch.masked_total, batch.instance_total, batch.token_total)
        assert totals == (rows['masked_lm_weights'].sum(), 4, rows['valid_lengths'].sum())


@pytest.mark.parametrize('workers, limit', [(1, None), (1, 13), (2, 0), (2, 1000), (4, 5), (4, 13)])
def test_evaluation_sees_each_instance_once_in_order(shards, workers, limit):
    wanted = list(range(37))[:limit]
    ranks = [
        list(evaluation_batches(shards, batch_size=8, rank=rank, workers=workers, limit=limit))
        for rank in range(workers)
    ]
    assert sorted(number for batches in ranks for number in numbers(batches)) == wanted
    assert numbers(itertools.chain.from_iterable(zip(*ranks))) == wanted
    for batch in itertools.chain(*ranks):
        assert len(batch.input_ids) == 8 // workers  # shapes hold in the last batch too
        padded = batch.instance_weights == 0
        assert not batch.masked_weights[padded].any() and (batch.valid_length[padded] >= 5).all()
    assert sum(batch.instance_total for batch in ranks[0]) == len(wanted)
    assert sum(batch.masked_weights.sum() for batches in ranks for batch in batches) == sum(
        b.masked_total for b in ranks[0]
    )


@pytest.mark.parametrize(
    'arguments, said',
    [
        (dict(batch_size=6, workers=4), 'take 4 or 8'),
        (dict(batch_size=0), 'does not divide'),
        (dict(batch_size=2**50), r'906,842,624 instances takes at least [\d,]+ GB and .* have 37 inst'),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_once(shards, arguments, said):
    with pytest.raises(ValueError, match=said):
        stream(shards, **{'seed': 0, **arguments})


def test_a_shard_that_vanishes_is_an_error_at_the_consumer(tmp_path):
    make_shards_directory(tmp_path / 's', (5, 5, 5))
    shards = Shards.open(tmp_path / 's')
    (tmp_path / 's' / 'train-00002.npz').unlink()
    with pytest.raises(FileNotFoundError, match='train-00002.npz'):
        list(itertools.islice(stream(shards, batch_size=5, seed=0), 3))


def test_the_reading_thread_ends_with_its_consumer(shards):
    def reading():
        return sum(thread.name.startswith('read-ahead') for thread in threading.enumerate())

    batches = stream(shards, batch_size=4, seed=0)
    assert not reading()  # nothing starts before the first batch is wanted
    next(batches)
    assert reading() == 1
    batches.close()
    assert not reading()


def test_at_most_two_shards_are_in_memory_and_none_that_was_consumed_is_read(shards, monkeypatch):
    read = []
    monkeypatch.setattr(
        Shards, 'read', lambda self, number, honest=Shards.read: read.append(number) or honest(self, number)
    )
    batches = stream(shards, batch_size=1, seed=0, start=37 * 1000 + 36)
    next(batches)
    batches.close()
    assert len(read) <= 2  # the last shard of the epoch, and the first of the next
    read.clear()
    for consumed, _ in enumerate(itertools.islice(stream(shards, batch_size=1, seed=1), 37), 1):
        time.sleep(0.001)
        # what was read, but for the last shard, holds no more than was consumed, is ready, or is just being
        # handed over
        assert sum(shards.files[number].instances for number in read[:-1]) <= consumed + 2 + 1
