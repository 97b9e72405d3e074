"""Reconstruction and rotation of networks: what they leave alone, and what they repair."""

import dataclasses

import numpy as np
import pytest
from helpers.networks import UNEVEN, random_batches
from helpers.tiny import network, random_alphas, random_parameters, random_selection

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.cutting.selection import Selection, keep_all
from gluon_optbert.cutting.shrink import cut, fold
from gluon_optbert.network.running import squared_errors
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.pruning.reconstruct import reconstruct, tokens_wanted
from gluon_optbert.pruning.rotate import rotated
from gluon_optbert.training.distributed import Workers

WORKERS = Workers()


def saved(architecture, seed=0):
    return SavedModel(architecture, random_parameters(architecture, seed), None)


def cut_by(whole, selection, parameters=None):
    smaller, architecture = cut(parameters or whole.parameters, whole.architecture, selection)
    return dataclasses.replace(whole, architecture=architecture, parameters=smaller)


def stream_error(whole, network, selection, batches):
    """The relative error of the last layer's output."""
    difference, size = squared_errors(whole, network, selection.kept['h'], batches)
    return np.sqrt(difference / size)


def errors(whole, before, after, selection):
    """Of the last layer's output on tokens that the reconstruction has not read."""
    fresh = random_batches(whole.architecture, 1, seed=9)
    return [stream_error(whole, network, selection, fresh) for network in (before, after)]


def test_nothing_changes_where_nothing_was_cut():
    whole = saved(network(), 1)
    selection = keep_all(whole.architecture, ParameterCost())
    repaired = reconstruct(whole, whole, selection, random_batches(whole.architecture), workers=WORKERS)
    assert errors(whole, whole, repaired, selection) == pytest.approx([0, 0], abs=1e-5)


def test_what_a_fold_shifted_comes_back():
    whole = saved(network(), 2)
    selection = keep_all(whole.architecture, ParameterCost())
    alphas = {key: np.abs(alpha) for key, alpha in random_alphas(whole.architecture, 3).items()}
    shifted = cut_by(whole, selection, fold(whole.parameters, whole.architecture, alphas))
    repaired = reconstruct(whole, shifted, selection, random_batches(whole.architecture, 6), workers=WORKERS)
    before, after = errors(whole, shifted, repaired, selection)
    assert after < before / 5


def test_filters_that_have_a_double_can_go():
    whole = saved(network((2, 4, 4, 8)), 4)
    cell = 'encoder.transformer_cells.0.ffn.ffn_1.'
    for name in (cell + 'weight', cell + 'bias'):
        whole.parameters[name][4:] = whole.parameters[name][:4]
    kept = dict(keep_all(whole.architecture, ParameterCost()).kept, f0=np.arange(4))
    selection = Selection(kept, 0, 0)
    halved = cut_by(whole, selection)
    repaired = reconstruct(whole, halved, selection, random_batches(whole.architecture, 6), workers=WORKERS)
    before, after = errors(whole, halved, repaired, selection)
    assert before > 0.1 and after < 0.02


@pytest.mark.parametrize(
    'architecture, letters',
    [(network(), 'f'), (network(), 'kv'), (network(), 'h'), (network(e=4), 'hakvf'), (UNEVEN, 'hakvf')],
    ids=['filters', 'keys and values', 'hidden', 'all, factorised embedding', 'all, uneven'],
)
def test_reconstruction_brings_the_cut_network_nearer(architecture, letters):
    whole = saved(architecture, 5)
    selection = random_selection(architecture, 6, letters=letters)
    smaller = cut_by(whole, selection)
    repaired = reconstruct(whole, smaller, selection, random_batches(architecture, 6), workers=WORKERS)
    before, after = errors(whole, smaller, repaired, selection)
    assert repaired.architecture == smaller.architecture
    assert after < 0.9 * before


def test_blocks_and_layers_can_be_missing():
    whole = saved(network(*((2, 4, 4, 16),) * 4), 7)
    kept = dict(keep_all(whole.architecture, ParameterCost()).kept, f0=np.arange(0), f2=np.arange(0))
    for selection in (
        Selection(kept, 0, 0),
        Selection(kept, 0, 0, layers=(0, 2)),
        Selection(kept, 0, 0, (1,)),
    ):
        smaller = cut_by(whole, selection)
        repaired = reconstruct(
            whole, smaller, selection, random_batches(whole.architecture, 6), workers=WORKERS
        )
        before, after = errors(whole, smaller, repaired, selection)
        assert after < 0.9 * before


def test_first_layers_can_be_missing():
    whole = saved(network(*((2, 4, 4, 16),) * 4), 7)
    kept = keep_all(whole.architecture, ParameterCost()).kept
    selection = Selection(kept, 0, 0, layers=(2, 3))
    smaller = cut_by(whole, selection)
    repaired = reconstruct(whole, smaller, selection, random_batches(whole.architecture, 6), workers=WORKERS)
    before, after = errors(whole, smaller, repaired, selection)
    assert after < 0.9 * before


def test_reconstruction_refuses_a_selection_of_another_network():
    whole = saved(network(), 1)
    with pytest.raises(ValueError, match='selection does not lead'):
        reconstruct(
            whole,
            whole,
            random_selection(whole.architecture, 1),
            random_batches(whole.architecture, 1),
            workers=WORKERS,
        )


def test_tokens_are_ten_for_every_input_of_the_widest_product():
    assert tokens_wanted(saved(network((2, 4, 4, 16), h=8))) == 160
    assert tokens_wanted(saved(network((2, 4, 20, 16), h=8))) == 400


@pytest.mark.parametrize('architecture', [network(), UNEVEN, network(e=4)])
def test_rotation_leaves_the_function_as_it_is(architecture):
    whole = saved(architecture, 8)
    turned = rotated(whole, random_batches(architecture, 2), WORKERS)
    selection = keep_all(architecture, ParameterCost())
    fresh = random_batches(architecture, 1, seed=9)
    assert stream_error(whole, turned, selection, fresh) < 1e-4
    name = 'encoder.transformer_cells.0.attention_cell.proj_value.weight'
    assert not np.allclose(whole.parameters[name], turned.parameters[name])


def test_first_units_of_rotated_heads_are_worth_more_than_the_last():
    whole = saved(network((2, 6, 6, 16)), 10)
    turned = rotated(whole, random_batches(whole.architecture, 3), WORKERS)
    everything = keep_all(whole.architecture, ParameterCost()).kept
    first, last = (
        Selection(dict(everything, k0=units, v0=units), 0, 0) for units in (np.arange(3), np.arange(3, 6))
    )
    fresh = random_batches(whole.architecture, 1, seed=9)
    of_first, of_last = (
        stream_error(turned, cut_by(turned, selection), selection, fresh) for selection in (first, last)
    )
    assert of_first < of_last / 2


def test_heads_of_a_stream_with_few_directions_are_rotated():
    """Second moments of low rank and a large mean: single precision would make them indefinite."""
    architecture = network((2, 32, 32, 7), (1, 32, 2, 0), h=8)
    whole = saved(architecture, 8)
    turned = rotated(whole, random_batches(architecture, 2), WORKERS)
    selection = keep_all(architecture, ParameterCost())
    assert stream_error(whole, turned, selection, random_batches(architecture, 1, seed=9)) < 1e-4
