"""What optBERT is compared with: the same budget, spent in other ways."""

import itertools

import numpy as np
import pytest
from helpers.tiny import network, random_parameters
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.cutting.baselines import (
    fisher_scores,
    layers_to_keep,
    magnitude_scores,
    random_scores,
    rank_as,
    rearranged,
    select_blocks,
    select_layers,
    select_uniform,
)
from gluon_optbert.cutting.selection import keep_all
from gluon_optbert.cutting.shrink import cut

COST = ParameterCost()


@given(share=st.floats(0.3, 0.99))
def test_uniform_widths_differ_from_one_factor_by_rounding_only(share):
    architecture = network((4, 8, 8, 64), (4, 8, 8, 64), h=32)
    target = share * COST.cost(architecture)
    selection = select_uniform(random_scores(architecture, 1), architecture, COST, target, prune='hakvf')
    assert selection.cost == COST.cost(selection.architecture(architecture)) <= target
    factors = [
        (len(selection.kept[key]) / width, (len(selection.kept[key]) + 1) / width)
        for key, width in architecture.widths().items()
    ]
    assert max(low for low, _ in factors) <= min(high for _, high in factors) + 1e-9


def test_uniform_keeps_the_best_units_of_each_width():
    scores = {key: np.arange(width, dtype=float) for key, width in network().widths().items()}
    selection = select_uniform(scores, network(), COST, 0.5 * COST.cost(network()), prune='hakvf')
    for key, kept in selection.kept.items():
        assert list(kept) == list(range(len(scores[key]) - len(kept), len(scores[key])))


def test_bert_base_to_66_million_keeps_six_layers():
    selection = select_layers(bert_base(), COST, 66.4e6, drop='last')
    assert selection.layers == (0, 1, 2, 3, 4, 5)
    assert selection.architecture(bert_base()) == bert_base(6)
    assert selection.cost == COST.cost(bert_base(6))


@pytest.mark.parametrize('drop, kept', [('last', [0, 1, 2]), ('first', [3, 4, 5]), ('alternate', [0, 2, 5])])
def test_which_layers_stay(drop, kept):
    assert layers_to_keep(6, 3, drop) == kept


@pytest.mark.parametrize('count', [1, 2, 3, 4, 6, 12])
def test_blocks_stay_where_the_named_architecture_has_them(count):
    wanted = resolve(f'undivided_every_{12 // count}')
    selection = select_blocks(bert_base(), COST, COST.cost(wanted))
    assert selection.architecture(bert_base()) == wanted and selection.cost == COST.cost(wanted)


def test_targets_out_of_reach_are_refused():
    with pytest.raises(ValueError, match='cannot be reached by pruning f uniformly'):
        select_uniform(random_scores(network(), 0), network(), COST, 1.0, prune='f')
    with pytest.raises(ValueError, match='by dropping layers: one layer leaves'):
        select_layers(network(), COST, 1.0, drop='first')
    with pytest.raises(ValueError, match='by dropping intermediate blocks: without any'):
        select_blocks(bert_base(), COST, 1.0)


def test_magnitude_is_the_root_mean_square_of_what_leaves_with_a_unit():
    architecture = network((2, 3, 5, 7), h=6)
    parameters = random_parameters(architecture)
    scores = magnitude_scores(parameters, architecture)

    def squares_and_count(tensors):
        return sum(np.square(value, dtype=np.float64).sum() for value in tensors), sum(map(np.size, tensors))

    whole = squares_and_count(parameters.values())
    for key in ('h', 'a0', 'k0', 'v0', 'f0'):
        selection = keep_all(architecture, COST)
        selection.kept[key] = np.delete(selection.kept[key], 1)
        left, _ = cut(parameters, architecture, selection)
        if key == 'k0':  # a cut of keys scales the queries that stay
            for kind in ('weight', 'bias'):
                left[f'encoder.transformer_cells.0.attention_cell.proj_query.{kind}'] *= np.sqrt(3 / 2)
        squares, count = np.subtract(whole, squares_and_count(left.values()))
        if key == 'h':  # a square matrix of hidden units counts where its row and its column meet twice
            for name in ('pooler.weight', 'decoder.0.weight'):
                squares, count = squares + parameters[name][1, 1] ** 2, count + 1
        assert scores[key][1] == pytest.approx(np.sqrt(squares / count), rel=1e-4), key


# Fisher information


def cost_of(gradients, kept):
    """mᵀ I m of the units that go."""
    gone = np.setdiff1d(np.arange(gradients.shape[1]), kept)
    return float((gradients[:, gone].sum(axis=1) ** 2).sum())


def test_scores_are_mean_squares_for_their_price():
    scores = fisher_scores(
        {'f0': np.array([[1.0, 2.0], [3.0, 0.0]]), 'h': np.array([[4.0]])}, {'f0': 2.0, 'h': 8.0}
    )
    assert scores['f0'].tolist() == [1.0, 0.4] and scores['h'].tolist() == [0.8]
    free = fisher_scores({'f0': np.array([[1.0, 2.0]]), 'k0': np.array([[3.0]])}, {'f0': 2.0, 'k0': 0.0})
    assert free['f0'].tolist() == [0.25, 1.0] and free['k0'].tolist() == [1.0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.data())
def test_exchanges_never_cost_more_and_leave_as_many(seed, width, data):
    gradients = np.random.RandomState(seed).normal(size=(5, width))
    count = data.draw(st.integers(1, width))
    start = np.sort(np.random.RandomState(seed + 1).permutation(width)[:count])
    kept = rearranged(gradients, start)
    assert len(kept) == count and np.all(np.diff(kept) > 0)
    assert cost_of(gradients, kept) <= cost_of(gradients, start) + 1e-9
    assert rearranged(gradients, kept).tolist() == kept.tolist()


def test_two_units_that_always_go_against_each_other_go_together():
    """By themselves both cost more than the third; together they cost nothing."""
    gradients = np.array([[3.0, -3.0, 1.0, 9.0], [-3.0, 3.0, 1.0, 9.0]])
    assert rearranged(gradients, np.array([1, 3])).tolist() == [2, 3]
    best = min(itertools.combinations(range(4), 2), key=lambda kept: cost_of(gradients, list(kept)))
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
