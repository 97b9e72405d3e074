"""Folding and cutting: gated = folded, and gated with zeros = shrunk, for any network and any widths."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from helpers.examples import examples
from helpers.networks import HEADS, NETWORKS, SEEDS, TOLERANCE, UNEVEN
from helpers.tiny import (
    network,
    outputs_of,
    random_alphas,
    random_inputs,
    random_parameters,
    random_selection,
    relative_difference,
)
from hypothesis import given, strategies as st

from gluon_optbert.architecture.parameters import H_GATES, check_parameters, network_shapes
from gluon_optbert.cutting.selection import Selection, truncate
from gluon_optbert.cutting.shrink import fold, shrink, take_units, without_gates
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel

LETTERS = st.sets(st.sampled_from('hakvf'), min_size=1).map(lambda letters: ''.join(sorted(letters)))


def gated_outputs(architecture, parameters, alphas, inputs, selection, *, hybrid=True, **settings):
    # a layer without filters has no block, and no LayerNorm of one
    emptied = {key: 0 for key, kept in selection.kept.items() if key[0] == 'f' and not len(kept)}
    architecture = architecture.with_widths(emptied)
    left = {name: parameters[name] for name in network_shapes(architecture)}
    model = build(architecture, left, gated=True, **settings)
    model.hybridize(hybrid)
    model.gates.set({key: alphas[key] for key in model.gates.parameters})
    return outputs_of(model, inputs)


def without(outputs, selection):
    """Outputs of a network that still has the units that went, without them."""
    return {
        name: value[..., selection.kept['h']] if name in ('encoded', 'pooled') else value
        for name, value in outputs.items()
    }


@given(
    architecture=NETWORKS,
    gated=LETTERS,
    cut=LETTERS | st.just(''),
    h_gate=st.sampled_from(H_GATES),
    seed=SEEDS,
    emptied=st.booleans(),
    trainable=st.booleans(),
    hybrid=st.booleans(),
)
@examples(40)
def test_gated_network_with_zeros_equals_shrunk_network(
    architecture, gated, cut, h_gate, seed, emptied, trainable, hybrid
):
    """Where nothing is cut, it equals the folded one; the h gate of Table 5 takes no units away. The first
    layer may lose its block.
    """
    parameters, inputs = random_parameters(architecture, seed), random_inputs(architecture, seed=seed)
    alphas = random_alphas(architecture, seed + 1, letters=gated)
    letters = cut if h_gate == 'stream' else cut.replace('h', '')
    selection = random_selection(architecture, seed + 2, letters=letters)
    if emptied:
        selection.kept['f0'] = np.zeros(0, dtype=int)
    settings = {'h_gate': h_gate, 'trainable': trainable, 'hybrid': hybrid}
    wanted = gated_outputs(
        architecture, parameters, truncate(alphas, selection), inputs, selection, **settings
    )
    smaller, left = shrink(parameters, architecture, alphas, selection, h_gate=h_gate)
    assert {name: value.shape for name, value in smaller.items()} == network_shapes(left)
    found = outputs_of(build(left, smaller), inputs)
    assert relative_difference(found, without(wanted, selection)) <= TOLERANCE


def test_folding_as_in_table_5_scales_columns_and_rows_of_the_blocks_and_nothing_else():
    architecture = network((2, 3, 4, 8), (1, 2, 2, 0))
    parameters = random_parameters(architecture)
    alphas = {key: np.ones(width) for key, width in architecture.widths().items()}
    alphas['h'] = np.linspace(0.5, 2, architecture.h)
    folded = fold(parameters, architecture, alphas, h_gate='table5')
    ratios = {name: folded[name] / parameters[name] for name in folded}
    changed = {name for name, ratio in ratios.items() if not np.allclose(ratio, 1)}
    blocks = ['attention_cell.proj_query.weight', 'attention_cell.proj_key.weight']
    blocks += ['attention_cell.proj_value.weight', 'proj.weight', 'proj.bias']
    wanted = {f'encoder.transformer_cells.{i}.{name}' for i in (0, 1) for name in blocks}
    feed = [f'encoder.transformer_cells.0.ffn.ffn_{part}' for part in ('1.weight', '2.weight', '2.bias')]
    assert changed == wanted | set(feed)
    for name in changed:
        column = 'attention_cell' in name or 'ffn_1' in name
        gate = alphas['h'] if column or name.endswith('bias') else alphas['h'][:, None]
        assert np.allclose(ratios[name], np.broadcast_to(gate, ratios[name].shape), rtol=1e-5)


@given(NETWORKS, SEEDS)
@examples(3)
def test_hidden_units_in_another_order_compute_the_same(architecture, seed):
    parameters, inputs = random_parameters(architecture, seed), random_inputs(architecture)
    order = np.random.RandomState(seed).permutation(architecture.h)
    moved = take_units(parameters, architecture, {'h': order})
    one, other = (outputs_of(build(architecture, values), inputs) for values in (parameters, moved))
    kept = Selection({'h': order}, 0, 0)
    assert relative_difference(other, without(one, kept)) <= TOLERANCE


def test_layers_that_stay_move_up_with_their_parameters():
    parameters = random_parameters(UNEVEN)
    left, architecture = shrink(parameters, UNEVEN, None, Selection({}, 0, 0, layers=(0, 2)))
    assert architecture.layers == (UNEVEN.layers[0], UNEVEN.layers[2])
    assert left.keys() == network_shapes(architecture).keys()
    for name, value in left.items():
        assert np.array_equal(value, parameters[name.replace('cells.1.', 'cells.2.')]), name


def test_cutting_copies_and_leaves_its_input_alone():
    parameters = random_parameters(UNEVEN)
    before = {name: value.copy() for name, value in parameters.items()}
    left, _ = shrink(parameters, UNEVEN, random_alphas(UNEVEN), random_selection(UNEVEN))
    for value in left.values():
        assert value.flags['C_CONTIGUOUS'] and value.dtype == np.float32
        value[...] = 7
    assert all(np.array_equal(value, before[name]) for name, value in parameters.items())


def test_shrinking_holds_no_second_set_of_the_parameters():
    """Memory above its result is a few copies of the largest tensor, not a folded copy of all."""
    architecture = network(*[(4, 16, 16, 256)] * 12, h=64)
    parameters, alphas = random_parameters(architecture), random_alphas(architecture)
    kept = {key: np.arange(60 if key == 'h' else width) for key, width in architecture.widths().items()}
    tracemalloc.start()
    smaller, _ = shrink(parameters, architecture, alphas, Selection(kept, 0.0, 0.0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < sum(value.nbytes for value in smaller.values()) + 5 * max(
        value.nbytes for value in parameters.values()
    )


@pytest.mark.parametrize('h_gate', H_GATES)
def test_gates_that_a_model_is_given_are_folded_where_they_stand(h_gate):
    architecture, parameters = network(), random_parameters(network())
    alphas = random_alphas(architecture)
    model = without_gates(SavedModel(architecture, parameters, None), alphas, h_gate=h_gate)
    folded = fold(parameters, architecture, alphas, h_gate=h_gate)
    assert model.alphas is None and model.architecture == architecture
    assert all(np.array_equal(model.parameters[name], value) for name, value in folded.items())


def test_units_whose_gate_is_at_zero_are_cut_and_a_width_of_none_but_these_is_refused():
    parameters, selection = random_parameters(UNEVEN), random_selection(UNEVEN)
    alphas = truncate(random_alphas(UNEVEN), selection)
    del alphas['f1']  # a layer without filters needs no gate for them
    model = without_gates(SavedModel(UNEVEN, parameters, None, alphas=alphas))
    left, architecture = shrink(parameters, UNEVEN, alphas, selection)
    assert model.architecture == architecture and model.alphas is None
    assert all(np.array_equal(model.parameters[name], value) for name, value in left.items())
    alphas['k0'][:] = 0
    with pytest.raises(ValueError, match='^gates: every unit of k0 is at zero'):
        without_gates(SavedModel(UNEVEN, parameters, None), alphas)


def test_open_gates_and_whole_widths_change_no_bit():
    ones = {key: np.ones(width, np.float32) for key, width in UNEVEN.widths().items()}
    del ones['f1']  # a layer without filters needs no gate for them
    parameters = random_parameters(UNEVEN)
    everything = Selection({key: np.arange(width) for key, width in UNEVEN.widths().items()}, 0, 0)
    left, architecture = shrink(fold(parameters, UNEVEN, ones), UNEVEN, None, everything)
    assert architecture == UNEVEN and left.keys() == parameters.keys()
    assert all(np.array_equal(value, parameters[name]) for name, value in left.items())


def test_all_that_does_not_fit_is_named():
    parameters, alphas = random_parameters(network()), random_alphas(network())
    with pytest.raises(ValueError, match='unknown nothing'):
        without_gates(SavedModel(network(), parameters, None), {'nothing': np.ones(3, np.float32)})
    alphas['f1'] = alphas['f1'][:-1]
    del alphas['h']
    with pytest.raises(ValueError, match=r'h \(\), .*f1 \(15,\), wanted \(16,\)'):
        fold(parameters, network(), alphas)
    del parameters['pooler.bias']
    parameters['pooler.gate'], parameters['decoder.3.bias'] = np.ones(3), np.ones(5)
    with pytest.raises(ValueError) as error:
        check_parameters(parameters, network())
    for named in ('missing pooler.bias (8,)', "unknown 'pooler.gate' (3,)", 'has shape (5,), wanted'):
        assert named in str(error.value)


@pytest.mark.parametrize(
    'kept, layers',
    [({'h': kept}, None) for kept in ([], [1, 0], [0, 0], [8], [-1, 2])]
    + [({}, layers) for layers in ((1, 0), (0, 0), (0, 2), (-1, 0))]
    + [({'q3': [0, 1]}, None)],
)
def test_selections_that_do_not_fit_are_named(kept, layers):
    indices = {key: np.array(units, dtype=int) for key, units in kept.items()}
    with pytest.raises(ValueError, match=f'selection .*: {next(iter(kept), "layers ")}'):
        shrink(random_parameters(network()), network(), None, Selection(indices, 0, 0, layers))


# Tokens


@given(NETWORKS, SEEDS, st.sampled_from(HEADS), st.data())
@examples(30)
def test_rows_of_tokens_that_stay_are_kept_and_all_else_is_as_it_was(architecture, seed, head, data):
    kept = np.array(data.draw(st.lists(st.integers(0, architecture.vocab_size - 1), min_size=1, unique=True)))
    parameters = random_parameters(architecture, seed, head)
    left = take_units(parameters, architecture, {'vocab_size': kept}, head=head)
    check_parameters(left, dataclasses.replace(architecture, vocab_size=len(kept)), head)
    with_tokens = {'word_embed.0.weight', *([] if head.outputs else ['decoder.3.bias'])}
    for name, value in parameters.items():
        wanted = value[kept] if name in with_tokens else value
        assert np.array_equal(left[name], wanted), name
