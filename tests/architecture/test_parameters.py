"""The parameter table: what its docstring says, and that it is the table of the network."""

import dataclasses

import pytest
from helpers.networks import ARCHITECTURES
from helpers.tiny import network
from hypothesis import given

from gluon_optbert.architecture import parameters as module
from gluon_optbert.architecture.embedding import Embedding
from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.parameters import H_GATES, parameter_table, parameters_left
from gluon_optbert.network.model import build, named_parameters

HEADS = [
    PRETRAINING,
    Head('classification', ('no', 'yes', 'maybe')),
    Head('regression'),
    Head('question_answering'),
]
NETWORKS = {
    'even': network(),
    'uneven': network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9), h=12),
    'factorised': network((2, 3, 5, 7), (1, 4, 2, 0), e=5),
}


def printed_rows(text):
    """The parameters of one table of the docstring by name: a tuple of the cells of its sides."""
    lines = [line.split() for line in text.splitlines() if line.startswith('    ') and not line.endswith(':')]
    rows = [[word for word in words if not word.startswith('(')] for words in lines if words]
    return {name: tuple(sides) for name, *sides in rows if name != 'parameter'}


def printed_tables():
    """The docstring's table without a factorised embedding and the whole one with it, for each h gate."""
    plain, factorised = module.__doc__.split('with an embedding width e')
    factorised, table5 = factorised.split('With the h gate ``table5``')
    plain, table5 = printed_rows(plain), printed_rows(table5)
    stream = plain, {**plain, **printed_rows(factorised)}
    return {'stream': stream, 'table5': tuple({**without_h_gates(table), **table5} for table in stream)}


def without_h_gates(table):
    """The rows of a table without the stars of h."""
    return {name: tuple('h' if side == 'h*' else side for side in sides) for name, sides in table.items()}


def cells(spec):
    """The sides of a parameter as the docstring prints them."""
    sides = []
    for axis, gate in zip(spec.axes, spec.gates):
        assert gate in ((), axis)
        widths = [key.rstrip('0123456789') for key in axis]
        sides.append('.'.join(widths) + ('*' if gate else ''))
    return tuple(sides)


@pytest.mark.parametrize('h_gate', H_GATES)
@pytest.mark.parametrize('widths', NETWORKS)
def test_docstring_has_the_sides_and_gates_of_every_parameter(widths, h_gate):
    architecture, seen = NETWORKS[widths], {}
    for head in (*HEADS, Head(embedding=Embedding(dense=((4, 'tanh'),)))):
        for name, spec in parameter_table(architecture, head, h_gate=h_gate).items():
            bare = name if spec.layer is None else name.split(f'encoder.transformer_cells.{spec.layer}.')[1]
            if name == 'task.weight' and not head.pooled:  # as the docstring says below its table
                assert cells(spec) == ('outputs', 'h')
                continue
            assert seen.setdefault(bare, cells(spec)) == cells(spec), name
    assert seen == printed_tables()[h_gate][architecture.e is not None]


@pytest.mark.parametrize('head', HEADS, ids=lambda head: head.kind)
@pytest.mark.parametrize('widths', NETWORKS)
def test_table_has_the_parameters_of_the_network_in_their_order(widths, head):
    model = build(NETWORKS[widths], head=head)
    result = {name: parameter.shape for name, parameter in named_parameters(model).items()}
    table = parameter_table(NETWORKS[widths], head)
    assert {name: spec.shape for name, spec in table.items()} == result
    assert all(spec.name == name for name, spec in table.items())


@given(ARCHITECTURES)
def test_layers_lie_together_in_their_order(architecture):
    layers = [spec.layer for spec in parameter_table(architecture).values() if spec.layer is not None]
    assert layers == sorted(layers) and set(layers) == set(range(len(architecture.layers)))


@given(ARCHITECTURES)
def test_every_prunable_width_has_a_gated_side_and_letters_of_a_layer_stay_in_it(architecture):
    gated = set()
    for spec in parameter_table(architecture).values():
        gated.update(key for gate in spec.gates for key in gate)
        own = {key for axis in spec.axes for key in axis if key[0] in 'akvf' and key[1:].isdigit()}
        assert own <= {f'{letter}{spec.layer}' for letter in 'akvf'}
    assert gated == {key for key, width in architecture.widths().items() if width}


@given(ARCHITECTURES)
def test_decay_and_normal_weights_are_for_matrices_and_precision_for_products(architecture):
    for spec in parameter_table(architecture).values():
        assert spec.decayed == (spec.initial == 'normal') == (len(spec.shape) == 2)
        assert not spec.attention_scale or spec.low_precision
        if spec.low_precision:
            assert spec.layer is not None or spec.part == 'embeddings'


@given(ARCHITECTURES)
def test_parameters_that_stay_with_some_layers_move_up(architecture):
    layers = range(0, len(architecture.layers), 2)
    smaller = dataclasses.replace(architecture, layers=architecture.layers[::2])
    staying, table = parameters_left(architecture, layers), parameter_table(smaller)
    assert list(staying) == list(table)
    for name, spec in staying.items():
        new = table[name]
        assert (spec.shape, spec.part, spec.name.split('.')[-2:]) == (
            new.shape,
            new.part,
            name.split('.')[-2:],
        )
        assert spec.layer == (None if new.layer is None else layers[new.layer])


def test_queries_and_nothing_else_take_the_scale_of_attention():
    table = parameter_table(NETWORKS['factorised'])
    assert [name for name, spec in table.items() if spec.attention_scale] == [
        f'encoder.transformer_cells.{i}.attention_cell.proj_query.{part}'
        for i in range(2)
        for part in ('weight', 'bias')
    ]
