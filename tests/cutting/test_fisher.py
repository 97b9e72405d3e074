"""Ranking by Fisher information: what a set of gates costs together, and scores for what is kept."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.cutting.baselines import fisher_scores, rank_as, rearranged


def cost(gradients, kept):
    """mᵀ I m of the units that go."""
    gone = np.setdiff1d(np.arange(gradients.shape[1]), kept)
    return float((gradients[:, gone].sum(axis=1) ** 2).sum())


def test_scores_are_mean_squares_for_their_price():
    scores = fisher_scores(
        {'f0': np.array([[1.0, 2.0], [3.0, 0.0]]), 'h': np.array([[4.0]])}, {'f0': 2.0, 'h': 8.0}
    )
    assert scores['f0'].tolist() == [1.0, 0.4] and scores['h'].tolist() == [0.8]


def test_units_that_cost_nothing_are_worth_keeping():
    scores = fisher_scores({'f0': np.array([[1.0, 2.0]]), 'k0': np.array([[3.0]])}, {'f0': 2.0, 'k0': 0.0})
    assert scores['f0'].tolist() == [0.25, 1.0] and scores['k0'].tolist() == [1.0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.data())
def test_exchanges_never_cost_more_and_leave_as_many(seed, width, data):
    gradients = np.random.RandomState(seed).normal(size=(5, width))
    count = data.draw(st.integers(1, width))
    start = np.sort(np.random.RandomState(seed + 1).permutation(width)[:count])
    kept = rearranged(gradients, start)
    assert len(kept) == count and np.all(np.diff(kept) > 0)
    assert cost(gradients, kept) <= cost(gradients, start) + 1e-9


def test_two_units_that_always_go_against_each_other_go_together():
    """By themselves both cost more than the third; together they cost nothing."""
    gradients = np.array([[3.0, -3.0, 1.0, 9.0], [-3.0, 3.0, 1.0, 9.0]])
    assert rearranged(gradients, np.array([1, 3])).tolist() == [2, 3]
    best = min(itertools.combinations(range(4), 2), key=lambda kept: cost(gradients, list(kept)))
    assert best == (2, 3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.data())
def test_ranks_put_the_kept_first_and_change_no_score(values, data):
    scores = np.array(values)
    kept = data.draw(st.lists(st.integers(0, len(scores) - 1), unique=True, max_size=len(scores)))
    changed = rank_as(scores, np.array(kept, dtype=int))
    assert sorted(changed) == sorted(scores)
    gone = np.setdiff1d(np.arange(len(scores)), kept)
    if len(kept) and len(gone):
        assert changed[kept].min() >= changed[gone].max()


def test_ranks_keep_the_order_within_both_groups():
    assert rank_as(np.array([5.0, 1.0, 4.0, 2.0]), np.array([1, 3])) == pytest.approx([2.0, 4.0, 1.0, 5.0])


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_exchanges_go_on_until_none_is_worth_it(seed, count):
    gradients = np.random.RandomState(seed).normal(size=(5, 12))
    kept = rearranged(gradients, np.arange(count))
    assert rearranged(gradients, kept).tolist() == kept.tolist()
