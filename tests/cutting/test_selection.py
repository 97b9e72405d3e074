"""Which units go: the target, the limits, the order."""

import json

import numpy as np
import pytest
from helpers.networks import ARCHITECTURES
from helpers.tiny import network
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.architecture.cost import FlopsCost, ParameterCost
from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import LETTERS
from gluon_optbert.cutting.baselines import random_scores
from gluon_optbert.cutting.selection import Selection, read_selection, select_units, survivors

COSTS = st.sampled_from([ParameterCost(), FlopsCost(3)])
PRUNED = st.sets(st.sampled_from(LETTERS), min_size=1).map(lambda letters: ''.join(sorted(letters)))


def reachable_range(architecture, cost, prune):
    """The least and the whole cost."""
    least = {key: 1 for key, width in architecture.widths().items() if key[0] in prune and width}
    return cost.cost(architecture.with_widths(least)), cost.cost(architecture)


@given(ARCHITECTURES, COSTS, PRUNED, st.integers(0, 2**31), st.floats(0, 1.1))
def test_the_smallest_scores_of_all_widths_go_until_the_target_is_met(architecture, cost, prune, seed, share):
    """The best unit of every width stays, and so do widths that are not pruned."""
    least, whole = reachable_range(architecture, cost, prune)
    target = least + share * (whole - least)
    scores = random_scores(architecture, seed)
    selection = select_units(scores, architecture, cost, target, prune=prune)
    left = selection.architecture(architecture)
    assert selection.cost == cost.cost(left) <= target and selection.target == target
    gone, spared = [], []
    for key, width in architecture.widths().items():
        kept = selection.kept[key]
        assert np.all(np.diff(kept) > 0) and (len(kept) == width or key[0] in prune)
        assert not width or np.argmax(scores[key]) in kept
        gone += [(scores[key][i], key) for i in np.setdiff1d(np.arange(width), kept)]
        spared += [scores[key][i] for i in kept if key[0] in prune and i != np.argmax(scores[key])]
    if gone:
        score, key = max(gone)  # went last: with it the target would be missed
        assert score <= min(spared, default=score)
        assert cost.cost(left.with_widths({key: left.widths()[key] + 1})) > target


@given(ARCHITECTURES, st.integers(0, 2**31), st.integers(1, 4))
def test_only_f_is_emptied_and_only_where_asked(architecture, seed, multiple_of):
    scores = random_scores(architecture, seed)
    emptied = architecture.with_widths(
        {key: int(key[0] != 'f') for key, width in architecture.widths().items() if width}
    )
    selection = select_units(
        scores,
        architecture,
        ParameterCost(),
        ParameterCost().cost(emptied),
        multiple_of=multiple_of,
        drop_blocks=True,
    )
    assert selection.architecture(architecture) == emptied
    if any(layer.f for layer in architecture.layers):
        with pytest.raises(ValueError, match='cannot be reached'):
            select_units(
                scores, architecture, ParameterCost(), ParameterCost().cost(emptied), multiple_of=multiple_of
            )


@given(ARCHITECTURES, st.integers(1, 4), st.floats(0, 1))
def test_widths_that_lose_units_end_at_multiples(architecture, multiple_of, share):
    least, whole = reachable_range(architecture, ParameterCost(), LETTERS)
    scores = random_scores(architecture, 1)
    selection = select_units(
        scores, architecture, ParameterCost(), least + share * (whole - least), multiple_of=multiple_of
    )
    assert selection.cost <= selection.target
    for key, width in architecture.widths().items():
        left = len(selection.kept[key])
        assert left in (1, width) or left % (1 if key[0] == 'a' else multiple_of) == 0
        gone = np.setdiff1d(np.arange(width), selection.kept[key])
        assert not len(gone) or scores[key][gone].max() <= scores[key][selection.kept[key]].min()


def test_equal_scores_go_by_the_order_of_widths_and_units():
    architecture = network()
    ones = {key: np.ones(width) for key, width in architecture.widths().items()}
    selection = select_units(ones, architecture, ParameterCost(), ParameterCost().cost(architecture) - 1)
    assert list(selection.kept['h']) == [0, *range(2, 8)]  # the best unit, of equals the first, stays
    assert all(
        len(selection.kept[key]) == width for key, width in architecture.widths().items() if key != 'h'
    )


def test_survivors_are_counted_in_the_network_that_was_there_first():
    architecture = resolve('l4_h6_a2')
    first = Selection({'h': np.array([0, 2, 3, 5])}, 0.0, 0.0, layers=(0, 2, 3))
    second = Selection({'h': np.array([1, 3])}, 0.0, 0.0, layers=(1, 2))
    third = Selection({'h': np.array([0, 1])}, 0.0, 0.0)
    units, layers = survivors([first, second, third], architecture)
    assert (list(units), layers) == ([2, 5], [2, 3])


def test_selection_survives_its_file(tmp_path):
    selection = Selection({'h': np.arange(3), 'f0': np.arange(0)}, 7.5, 8.0, layers=(0, 2))
    (tmp_path / 'selection.json').write_text(json.dumps(selection.to_dict()))
    assert read_selection(tmp_path / 'selection.json').to_dict() == selection.to_dict()


@pytest.mark.parametrize(
    'content', [b'[]', b'{"kept": [1], "cost": 1, "target": 1, "layers": null}', b'\xff']
)
def test_file_that_is_no_selection_is_refused_by_name(tmp_path, content):
    path = tmp_path / 'selection.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'selection\.json: not a selection'):
        read_selection(path)


def test_what_cannot_be_selected_by_is_named():
    architecture, cost, scores = network(), ParameterCost(), random_scores(network(), 1)
    least = reachable_range(architecture, cost, 'f')[0]
    assert select_units(scores, architecture, cost, least, prune='f').cost == least
    for target in (least - 1, -1.0, float('-inf'), float('nan')):
        with pytest.raises(ValueError, match='^target '):
            select_units(scores, architecture, cost, target, prune='f')
    with pytest.raises(ValueError, match='letters hakvf'):
        select_units(scores, architecture, cost, 1e9, prune='hax')
    scores['f0'] = scores['f0'][:-1]
    scores['h'][2], scores['v0'][0] = np.nan, np.inf
    del scores['k1']
    with pytest.raises(ValueError) as error:
        select_units(scores, architecture, cost, 1e9)
    for named in ('f0 has shape (15,), wanted (16,)', 'k1 has shape none', 'h is not', 'v0 is not finite'):
        assert named in str(error.value)
