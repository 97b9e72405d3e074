"""Baselines of optBERT: the same budget, spent in other ways."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers.examples import examples
from helpers.tiny import network, random_parameters
from hypothesis import given, strategies as st

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.architecture.parameters import parameter_table
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
from gluon_optbert.cutting.shrink import kept_along

COST = ParameterCost()
LAYER = network((2, 3, 5, 7), h=3)


@given(share=st.floats(0.3, 0.99))
@examples(30)
def test_uniform_widths_keep_their_best_units_and_differ_from_one_factor_by_rounding_only(share):
    architecture = network((4, 8, 8, 64), (4, 8, 8, 64), h=32)
    target, scores = share * COST.cost(architecture), random_scores(architecture, 1)
    selection = select_uniform(scores, architecture, COST, target, prune='hakvf')
    assert selection.cost == COST.cost(selection.architecture(architecture)) <= target
    factors = []
    for key, width in architecture.widths().items():
        kept = selection.kept[key]
        assert list(kept) == sorted(np.argsort(-scores[key])[: len(kept)])
        factors.append((len(kept) / width, (len(kept) + 1) / width))
    assert max(low for low, _ in factors) <= min(high for _, high in factors) + 1e-9


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


def test_later_rounds_spread_over_what_the_earlier_ones_left():
    """Half of twelve, in one round and by way of ten: the first is even, the second is not."""
    ten = layers_to_keep(12, 10, 'alternate')
    twice = [ten[i] for i in layers_to_keep(10, 6, 'alternate')]
    assert layers_to_keep(12, 6, 'alternate') == [0, 2, 4, 7, 9, 11] != twice == [0, 2, 5, 6, 9, 11]
    wanted = bert_base().with_widths({'f4': 0, 'f10': 0})
    begun = select_blocks(bert_base(), COST, COST.cost(wanted)).architecture(bert_base())
    assert begun == wanted
    wanted = wanted.with_widths({'f1': 0, 'f3': 0, 'f7': 0, 'f9': 0})
    assert select_blocks(begun, COST, COST.cost(wanted)).architecture(begun) == wanted
    assert wanted != resolve('undivided_every_2')


def test_targets_out_of_reach_are_refused():
    with pytest.raises(ValueError, match='cannot be reached by pruning f uniformly'):
        select_uniform(random_scores(network(), 0), network(), COST, 1.0, prune='f')
    with pytest.raises(ValueError, match='by dropping layers: the fewest leave'):
        select_layers(network(), COST, 1.0, drop='first')
    with pytest.raises(ValueError, match='by dropping layers: the fewest leave'):
        select_layers(dataclasses.replace(network(), layers=()), COST, 1.0, drop='first')
    with pytest.raises(ValueError, match='by dropping intermediate blocks: without any'):
        select_blocks(bert_base(), COST, 1.0)


@pytest.mark.parametrize('key', LAYER.widths())
def test_magnitude_is_the_root_mean_square_of_all_that_leaves_with_a_unit(key):
    """On either side of every tensor, which the pooler counts twice for hidden units."""
    parameters, table = random_parameters(LAYER), parameter_table(LAYER)
    scores = magnitude_scores(parameters, LAYER)[key]
    assert len(scores) == LAYER.widths()[key]
    for unit, found in enumerate(scores):
        leave = [
            np.take(parameters[name], kept_along(axis, LAYER, {key: np.array([unit])}), axis=side)
            for name, spec in table.items()
            for side, axis in enumerate(spec.axes)
            if key in axis
        ]
        values = np.concatenate([part.reshape(-1) for part in leave]).astype(np.float64)
        assert found == pytest.approx(np.sqrt(np.square(values).mean()), rel=1e-6)


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
@examples(50)
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
@examples(50)
def test_ranks_put_the_kept_first_and_change_no_score(values, data):
    scores = np.array(values)
    kept = data.draw(st.lists(st.integers(0, len(scores) - 1), unique=True, max_size=len(scores)))
    kept = np.sort(np.array(kept, dtype=int))
    changed = rank_as(scores, kept)
    assert sorted(changed) == sorted(scores)
    gone = np.setdiff1d(np.arange(len(scores)), kept)
    for units in (kept, gone):  # whose order stays
        assert np.all(np.diff(changed[units[np.argsort(scores[units], kind='stable')]]) >= 0)
    if len(kept) and len(gone):
        assert changed[kept].min() >= changed[gone].max()
