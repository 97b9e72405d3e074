"""Which units go: the target, the limits, the order."""

import json

import numpy as np
import pytest
from helpers.examples import examples
from helpers.networks import ARCHITECTURES, SEEDS
from helpers.tiny import network
from hypothesis import given, strategies as st

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


@given(ARCHITECTURES, COSTS, PRUNED, SEEDS, st.floats(0, 1.1), st.integers(1, 4))
@examples(60)
def test_selection_takes_the_smallest_units_down_to_the_target_and_no_further(
    tmp_path_factory, architecture, cost, prune, seed, share, multiple_of
):
    least, whole = reachable_range(architecture, cost, prune)
    target, widths = least + share * (whole - least), architecture.widths()
    scores = random_scores(architecture, seed)
    selection = select_units(scores, architecture, cost, target, prune=prune, multiple_of=multiple_of)
    left = selection.architecture(architecture)
    assert selection.cost == cost.cost(left) <= target and selection.target == target
    gone = {key: np.setdiff1d(np.arange(width), selection.kept[key]) for key, width in widths.items()}
    for key, kept in selection.kept.items():
        if key[0] not in prune or widths[key] <= 1:
            assert not len(gone[key])
            continue
        assert len(kept) in (1, widths[key]) or len(kept) % (1 if key[0] == 'a' else multiple_of) == 0
        assert np.all(np.diff(kept) > 0) and np.argmax(scores[key]) in kept
        assert not len(gone[key]) or scores[key][gone[key]].max() <= scores[key][kept].min()
    if multiple_of == 1 and left != architecture:
        # but for the best unit of each width, every unit that stays is better than all that went
        last, of = max((scores[key][i], key) for key, indices in gone.items() for i in indices)
        prunable = [scores[key][kept] for key, kept in selection.kept.items() if key[0] in prune]
        assert all((np.sort(stay)[:-1] >= last).all() for stay in prunable)
        # with the one that went last the target would be missed
        assert cost.cost(left.with_widths({of: left.widths()[of] + 1})) > target

    path = tmp_path_factory.getbasetemp() / 'selection.json'
    path.write_text(json.dumps(selection.to_dict()))
    again = read_selection(path)
    assert again.to_dict() == selection.to_dict() and again.architecture(architecture) == left


@given(ARCHITECTURES, SEEDS, st.integers(1, 4))
@examples(30)
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


def test_equal_scores_go_by_the_order_of_widths_and_units():
    architecture = network()
    ones = {key: np.ones(width) for key, width in architecture.widths().items()}
    selection = select_units(ones, architecture, ParameterCost(), ParameterCost().cost(architecture) - 1)
    assert list(selection.kept['h']) == [0, *range(2, 8)]  # the best unit, of equals the first, stays
    assert all(
        len(selection.kept[key]) == width for key, width in architecture.widths().items() if key != 'h'
    )


def test_rounding_of_a_mean_does_not_change_the_order_of_groups():
    """The mean of three tenths is larger than a tenth."""
    architecture, cost = network(), ParameterCost()
    tenths = {key: np.full(width, 0.1) for key, width in architecture.widths().items()}
    wanted = architecture.with_widths({'f0': 12, 'f1': 15})
    selection = select_units(tenths, architecture, cost, cost.cost(wanted), prune='f', multiple_of=3)
    assert selection.architecture(architecture) == wanted


def test_survivors_are_counted_in_the_network_that_was_there_first():
    architecture = resolve('l4_h6_a2')
    first = Selection({'h': np.array([0, 2, 3, 5])}, 0.0, 0.0, layers=(0, 2, 3))
    second = Selection({'h': np.array([1, 3])}, 0.0, 0.0, layers=(1, 2))
    third = Selection({'h': np.array([0, 1])}, 0.0, 0.0)
    units, layers = survivors([first, second, third], architecture)
    assert (list(units), layers) == ([2, 5], [2, 3])


@pytest.mark.parametrize(
    'content',
    [
        b'[]',
        b'{"kept": [1], "cost": 1, "target": 1, "layers": null}',
        b'{"kept": {"h": [1.7, 2]}, "cost": 1, "target": 1, "layers": null}',
        b'\xff',
    ],
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
    with pytest.raises(ValueError, match=f'target {least - 1:.6g} parameters cannot be reached by pruning f'):
        select_units(scores, architecture, cost, least - 1, prune='f')
    with pytest.raises(ValueError, match=r'one unit of each width but f costs \d+ of \d+'):
        select_units(scores, architecture, cost, 1.0, drop_blocks=True)
    for target in (float('nan'), -1.0, 0.0, float('-inf')):
        with pytest.raises(ValueError, match='target'):
            select_units(scores, architecture, cost, target)
    for prune in ('', 'hax'):
        with pytest.raises(ValueError, match='letters hakvf'):
            select_units(scores, architecture, cost, 1e9, prune=prune)
    scores['f0'] = scores['f0'][:-1]
    scores['h'][2], scores['v0'][0] = np.nan, np.inf
    del scores['k1']
    with pytest.raises(ValueError) as error:
        select_units(scores, architecture, cost, 1e9)
    for named in ('f0 has shape (15,), wanted (16,)', 'k1 has shape none', 'h is not', 'v0 is not finite'):
        assert named in str(error.value)
