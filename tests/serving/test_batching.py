"""Texts of several requests are computed together, in bounded numbers, and each gets its own result."""

import concurrent.futures
import threading

import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from gluon_optbert.serving.batching import Batcher, Closed, QueueFull

SOON = 20  # seconds; nothing here takes as long unless it hangs


class Doubling:
    """Doubles numbers, and notes its batches; the first one waits for `let_go`."""

    def __init__(self, *, held=False, failing=()):
        self.batches, self.failing = [], failing
        self.began, self.let_go = threading.Event(), threading.Event()
        if not held:
            self.let_go.set()

    def __call__(self, numbers):
        self.batches.append(list(numbers))
        self.began.set()
        assert self.let_go.wait(SOON)
        if set(numbers) & set(self.failing):
            raise ValueError('no such number')
        return [2 * number for number in numbers]


def batcher_of(compute, *, batch_size=4, wait_ms=0.0, queue=16):
    return Batcher(compute, batch_size=batch_size, wait_ms=wait_ms, queue=queue)


def held(compute, **options):
    """A batcher whose thread computes the number 0 until it is let go, and its future."""
    batcher = batcher_of(compute, **options)
    first = batcher.submit([0])
    assert compute.began.wait(SOON)
    return batcher, first


def test_the_first_text_waits_for_others_only_as_long_as_told():
    compute = Doubling()
    batcher = batcher_of(compute, batch_size=2, wait_ms=60_000)
    first = batcher.submit([1])
    assert batcher.submit([2]).result(SOON) == [4] and first.result(SOON) == [2]
    assert compute.batches == [[1, 2]]  # the batch was full, so nobody waited for the minute
    batcher.close(SOON)
    compute = Doubling()
    batcher = batcher_of(compute, batch_size=2, wait_ms=1)
    assert batcher.submit([1]).result(SOON) == [2]
    batcher.close(SOON)


def test_what_finds_no_place_is_refused_whole():
    compute = Doubling(held=True)
    batcher, _ = held(compute, queue=3)
    waiting = batcher.submit([1, 2])
    with pytest.raises(QueueFull, match='2 texts wait'):
        batcher.submit([3, 4])
    last = batcher.submit([5])
    compute.let_go.set()
    assert waiting.result(SOON) == [2, 4] and last.result(SOON) == [10]
    assert sorted(sum(compute.batches, [])) == [0, 1, 2, 5]
    batcher.close(SOON)


def test_what_was_cancelled_is_not_computed_and_leaves_its_place():
    compute = Doubling(held=True)
    batcher, _ = held(compute, queue=2)
    late = batcher.submit([1, 2])
    assert late.cancel()
    new = batcher.submit([3, 4])
    compute.let_go.set()
    assert new.result(SOON) == [6, 8] and compute.batches == [[0], [3, 4]]
    batcher.close(SOON)


def test_a_request_that_fails_takes_no_other_with_it(caplog):
    compute = Doubling(held=True, failing=[2])
    batcher, _ = held(compute)
    futures = [batcher.submit([number]) for number in (1, 2, 3)]
    compute.let_go.set()
    assert futures[0].result(SOON) == [2] and futures[2].result(SOON) == [6]
    with pytest.raises(ValueError, match='no such number'):
        futures[1].result(SOON)
    assert [len(batch) for batch in compute.batches] == [1, 3, 1, 1, 1]
    assert 'no such number' in caplog.text and batcher.alive
    batcher.close(SOON)
    batcher = batcher_of(lambda numbers: numbers[1:])
    with pytest.raises(RuntimeError, match='0 results of 1 texts'):
        batcher.submit([1]).result(SOON)
    batcher.close(SOON)


def test_what_was_taken_is_computed_before_the_end_and_nothing_after_it():
    compute = Doubling(held=True)
    batcher, first = held(compute)
    last = batcher.submit([1])
    ending = threading.Thread(target=batcher.close, args=(SOON,))
    ending.start()
    compute.let_go.set()
    assert first.result(SOON) == [0] and last.result(SOON) == [2]
    ending.join(SOON)
    assert not batcher.alive
    with pytest.raises(Closed):
        batcher.submit([2])
    batcher = batcher_of(Doubling(), wait_ms=60_000)
    future = batcher.submit([1])
    batcher.close(SOON)  # which waits for no other texts
    assert future.result(0) == [2]


@examples(40)
@given(st.lists(st.lists(st.integers(), max_size=5), max_size=12), st.integers(1, 6))
def test_every_request_gets_its_own_results_in_order(requests, size):
    batcher = batcher_of(Doubling(), batch_size=size, queue=60)
    with concurrent.futures.ThreadPoolExecutor(4) as clients:
        results = list(clients.map(lambda numbers: batcher.submit(numbers).result(SOON), requests))
    batcher.close(SOON)
    assert results == [[2 * number for number in numbers] for numbers in requests]
