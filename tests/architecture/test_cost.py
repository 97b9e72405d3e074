"""The cost model against the arrays, the symbol graph and the published numbers."""

import json
import math

import mxnet as mx
import pytest
from helpers.examples import examples
from helpers.networks import ARCHITECTURES, UNEVEN
from helpers.tiny import network
from hypothesis import given
from hypothesis.strategies import sampled_from

from gluon_optbert.architecture.cost import (
    LATENCY_FEATURES,
    FlopsCost,
    LatencyCost,
    ParameterCost,
    beta,
    count_flops,
    count_parameters,
    shares_of_rounds,
)
from gluon_optbert.architecture.named import bert_base, resolve
from gluon_optbert.architecture.parameters import network_shapes
from gluon_optbert.network.encoder import OptBERTEncoder
from gluon_optbert.network.settings import NetworkSettings


@given(ARCHITECTURES)
@examples(10)
def test_parameters_are_counted_once_and_by_part(architecture):
    counts, shapes = count_parameters(architecture), network_shapes(architecture)
    assert sum(counts.values()) == sum(map(math.prod, shapes.values()))
    filters = sum(math.prod(shape) for name, shape in shapes.items() if '.ffn.' in name)
    assert counts['feed_forward'] == filters
    heads = sum(counts[part] for part in ('pooler', 'heads'))
    assert ParameterCost().cost(architecture) == ParameterCost().whole(architecture) - heads


def flops_of_graph(architecture, length):
    """Operations of all matrix products in the encoder's symbol graph, from the shapes that MXNet infers."""
    encoder = OptBERTEncoder(architecture, NetworkSettings(trainable=False))
    symbol = encoder(mx.sym.var('data'), None, mx.sym.var('valid_length'))[0]
    internals = symbol.get_internals()
    shapes = internals.infer_shape(data=(length, 1, architecture.embedding_width), valid_length=(1,))[1]
    shapes = dict(zip(internals.list_outputs(), shapes))
    nodes = json.loads(symbol.tojson())['nodes']

    def shape(i):
        return shapes[nodes[i]['name'] if nodes[i]['op'] == 'null' else nodes[i]['name'] + '_output']

    total = 0
    for i, node in enumerate(nodes):
        if node['op'] == 'FullyConnected':
            total += 2 * math.prod(shape(i)) * shape(node['inputs'][1][0])[1]
        elif node['op'] == 'batch_dot':
            total += 2 * math.prod(shape(i)) * shape(node['inputs'][0][0])[2]
        else:
            assert node['op'] not in ('dot', 'Convolution', '_linalg_gemm', '_linalg_gemm2')
    return total


@pytest.mark.parametrize('architecture', [network(), UNEVEN, network((1, 1, 1, 0), h=4, e=2)])
def test_flops_by_formula_equal_those_of_the_symbol_graph(architecture):
    assert sum(count_flops(architecture, 5).values()) == flops_of_graph(architecture, 5)


def test_beta_where_heads_cost_nothing_is_the_share_of_the_dearest_unit_if_there_is_one():
    free = dict.fromkeys(LATENCY_FEATURES, 0.0)
    weights = beta(resolve('l2_h8_a2'), LatencyCost({**free, 'h': 0.5, 'f': 2.0}, batch=1, length=8))
    assert (weights['h'], weights['f0'], weights['a0']) == (0.5, 1, 0)  # two layers count h twice
    with pytest.raises(ValueError, match='no unit of any width costs ms'):
        beta(bert_base(), LatencyCost({**free, 'network': 3.0}, batch=1, length=8))


def test_last_share_of_the_rounds_is_the_target_itself():
    assert shares_of_rounds(0.1, 3) == pytest.approx([0.7, 0.4, 0.1]) and shares_of_rounds(0.1, 3)[-1] == 0.1


@given(architecture=ARCHITECTURES, cost=sampled_from([ParameterCost(), FlopsCost(7)]))
@examples(25)
def test_price_is_what_the_next_unit_saves(cost, architecture):
    prices = cost.prices(architecture)
    assert set(prices) == set(architecture.widths())
    for key, width in architecture.widths().items():
        if width > 1:
            saved = cost.whole(architecture) - cost.whole(architecture.with_widths({key: width - 1}))
            assert prices[key] == saved
        else:
            assert prices[key] == (
                0 if width == 0 else cost.whole(architecture.with_widths({key: 2})) - cost.whole(architecture)
            )
