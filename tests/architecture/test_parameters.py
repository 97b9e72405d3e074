"""The parameter table is that of the network, and has its widths, gates and treatment."""

import pytest
from helpers.examples import examples
from helpers.networks import ARCHITECTURES, HEADS
from helpers.tiny import network
from hypothesis import given

from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.network.model import build, named_parameters

NETWORKS = {
    'even': network(),
    'uneven': network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9), h=12),
    'factorised': network((2, 3, 5, 7), (1, 4, 2, 0), e=5),
}


@pytest.mark.parametrize('head', HEADS, ids=lambda head: head.kind)
@pytest.mark.parametrize('widths', NETWORKS)
def test_table_has_the_parameters_of_the_network_in_their_order(widths, head):
    model = build(NETWORKS[widths], head=head)
    result = {name: parameter.shape for name, parameter in named_parameters(model).items()}
    table = parameter_table(NETWORKS[widths], head)
    assert {name: spec.shape for name, spec in table.items()} == result
    assert all(spec.name == name for name, spec in table.items())


@examples(30)
@given(ARCHITECTURES)
def test_layers_lie_in_their_order_every_width_has_a_gate_and_treatment_goes_by_kind(architecture):
    gated, layers = set(), []
    for spec in parameter_table(architecture).values():
        layers += [] if spec.layer is None else [spec.layer]
        gated.update(key for gate in spec.gates for key in gate)
        own = {key for axis in spec.axes for key in axis if key[0] in 'akvf' and key[1:].isdigit()}
        assert own <= {f'{letter}{spec.layer}' for letter in 'akvf'}
        assert spec.decayed == (spec.initial == 'normal') == (len(spec.shape) == 2)
        assert spec.attention_scale == ('.proj_query.' in spec.name) <= spec.low_precision
        assert not spec.low_precision or spec.layer is not None or spec.part == 'embeddings'
    assert layers == sorted(layers) and set(layers) == set(range(len(architecture.layers)))
    assert gated == {key for key, width in architecture.widths().items() if width}
