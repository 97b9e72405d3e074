"""What optBERT is compared with: the same budget, spent in other ways."""

import numpy as np
import pytest
from helpers.tiny import network, random_inputs, random_parameters
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.cutting.baselines import (
    layers_to_keep,
    magnitude_scores,
    random_scores,
    select_blocks,
    select_layers,
    select_uniform,
)
from gluon_optbert.cutting.selection import Selection, keep_all, select_units
from gluon_optbert.cutting.shrink import cut
from gluon_optbert.network.model import build

COST = ParameterCost()
UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9), h=12)


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


def test_uniform_target_below_one_unit_each_is_refused():
    with pytest.raises(ValueError, match='cannot be reached by pruning f uniformly'):
        select_uniform(random_scores(network(), 0), network(), COST, 1.0, prune='f')


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


def test_blocks_that_leave_more_than_the_target_are_refused():
    with pytest.raises(ValueError, match='by dropping intermediate blocks: without any'):
        select_blocks(bert_base(), COST, 1.0)


def test_dropping_layers_is_leaving_them_out():
    architecture = network((2, 3, 5, 7), (1, 4, 2, 3), (3, 1, 4, 9))
    parameters = random_parameters(architecture)
    kept = keep_all(architecture, COST).kept
    left, smaller = cut(parameters, architecture, Selection(kept, 0.0, 0.0, (0, 2)))
    assert smaller.layers == (architecture.layers[0], architecture.layers[2])
    ids, types, *_ = random_inputs(architecture)
    whole = build(architecture, parameters, output_stream=True, use_decoder=False)
    first = whole(ids, types)[0][2]  # what layer 0 gives, (batch, length, h)
    last, *_ = whole.encoder.transformer_cells[2](first.transpose((1, 0, 2)))
    encoded = build(smaller, left, use_decoder=False)(ids, types)[0]
    wanted = last.transpose((1, 0, 2)).asnumpy()
    assert np.allclose(encoded.asnumpy(), wanted, atol=1e-6)  # float32, sums in one order
    assert all(np.array_equal(left[name], parameters[name]) for name in left if 'cells' not in name)


def test_layers_that_are_not_there_are_refused():
    architecture = network()
    kept = keep_all(architecture, COST).kept
    for layers in ((1, 0), (0, 0), (0, 2), (-1,)):
        with pytest.raises(ValueError, match='layers'):
            cut(random_parameters(architecture), architecture, Selection(kept, 0.0, 0.0, layers))


@pytest.mark.parametrize('architecture', [UNEVEN, network(e=5)], ids=['uneven', 'factorised'])
def test_magnitude_is_the_root_mean_square_of_what_leaves_with_a_unit(architecture):
    parameters = random_parameters(architecture)
    scores, table = magnitude_scores(parameters, architecture), parameter_table(architecture)
    everything = keep_all(architecture, COST)
    for key, width in architecture.widths().items():
        assert scores[key].shape == (width,)
        if width > 1:
            without = dict(everything.kept, **{key: np.delete(np.arange(width), 1)})
            parts = {
                name: value
                for name, value in parameters.items()
                if any(key in axis for axis in table[name].axes)
            }
            ones = {
                name: np.square(value) if name in parts else np.zeros_like(value)
                for name, value in parameters.items()
            }
            left, _ = cut(dict(ones), architecture, Selection(without, 0.0, 0.0))
            scale = {
                name: width / (width - 1) if key.startswith('k') and '.proj_query.' in name else 1
                for name in left
            }
            gone = sum(
                ones[name].sum(dtype=np.float64) - left[name].sum(dtype=np.float64) * scale[name] ** 0.5
                for name in parts
            )
            count = sum(value.size // width for name, value in parts.items() if name != 'pooler.weight')
            if key != 'h':  # it stands on both sides of the pooler and the MLM transform
                assert scores[key][1] == pytest.approx(np.sqrt(gone / count), rel=1e-4)


def test_magnitude_of_a_hidden_unit_counts_what_it_has_on_both_sides(architecture=network(h=3)):
    parameters, table = random_parameters(architecture), parameter_table(architecture)
    scores = magnitude_scores(parameters, architecture)['h']
    for unit in range(3):
        squares, count = 0.0, 0
        for name, value in parameters.items():
            for axis, keys in enumerate(table[name].axes):
                if keys == ('h',):
                    part = np.take(value, unit, axis=axis)
                    squares, count = squares + np.square(part, dtype=np.float64).sum(), count + part.size
        assert scores[unit] == pytest.approx(np.sqrt(squares / count), rel=1e-4)


@pytest.mark.parametrize('multiple', [1, 3, 4])
@pytest.mark.parametrize('share', [0.45, 0.6, 0.9])
def test_widths_that_lose_units_end_at_multiples(multiple, share):
    architecture = network((3, 8, 10, 33), (3, 8, 10, 33), h=22)
    target = share * COST.cost(architecture)
    selection = select_units(random_scores(architecture, 3), architecture, COST, target, multiple_of=multiple)
    assert selection.cost <= target
    for key, width in architecture.widths().items():
        left = len(selection.kept[key])
        assert left == width or left == 1 or key.startswith('a') or left % multiple == 0
