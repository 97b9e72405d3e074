"""Eight bits: what is quantised, from which ranges, and how near it stays."""

import json

import mxnet as mx
import numpy as np
import pytest
from helpers.exported import of_arrays
from helpers.tiny import network

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.deployment.description import check_thresholds, inputs_of
from gluon_optbert.deployment.inference import inference_parameters, inference_symbol, inference_table
from gluon_optbert.deployment.quantize import calibrate, int8_parameters, int8_symbol, least_divergence
from gluon_optbert.network import running
from gluon_optbert.network.model import build, read_parameters

UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9))
NAMES = inputs_of('encoder')
TABLE = inference_table(UNEVEN, 'encoder', PRETRAINING, 'int8')


@pytest.fixture(scope='module', params=['naive', pytest.param('entropy', marks=pytest.mark.slow)])
def quantised(request):
    """The network, its arrays, batches of text, its ranges, and the network in eight bits."""
    model = build(UNEVEN, initial_std=0.3, trainable=False)
    arrays = inference_parameters(read_parameters(model), UNEVEN, 'encoder', PRETRAINING)
    symbol = inference_symbol(UNEVEN, 'encoder', PRETRAINING, precision='int8')
    feeds = [
        {name: running.random_feed(UNEVEN, batch=4, length=12, seed=seed)[name] for name in NAMES}
        for seed in range(3)
    ]
    ranges = calibrate(symbol, arrays, TABLE, feeds, request.param)
    return symbol, arrays, feeds, ranges, int8_symbol(symbol, TABLE, ranges)


def test_int8_stays_near_float32_at_any_shape(quantised, tmp_path):
    symbol, arrays, feeds, ranges, low = quantised
    low.save(str(tmp_path / 'low.json'))
    mx.nd.save(
        str(tmp_path / 'low.params'),
        {'arg:' + name: value for name, value in int8_parameters(low, arrays, ranges).items()},
    )
    block = mx.gluon.SymbolBlock.imports(str(tmp_path / 'low.json'), NAMES, str(tmp_path / 'low.params'))
    block.hybridize(static_alloc=True)
    whole = of_arrays(symbol, arrays, NAMES)
    for feed in (
        *feeds,
        running.random_feed(UNEVEN, batch=2, length=7),
        running.random_feed(UNEVEN, batch=1, length=16),
    ):
        output, wanted = (running.run(network, feed, NAMES)[0] for network in (block, whole))
        rms = np.sqrt(np.mean((output - wanted) ** 2) / np.mean(wanted**2))
        assert 1e-6 < rms < 0.1  # eight bits a tensor, three layers; not zero, or nothing was quantised


def test_every_product_of_the_encoder_is_quantised_and_no_other(quantised):
    nodes = json.loads(quantised[4].tojson())['nodes']
    products = [node for node in nodes if node['op'] == '_sg_mkldnn_fully_connected']
    low = [node for node in products if node.get('attrs', {}).get('quantized') == 'True']
    assert len(low) == 3 * 4 + 2 * 2 and len(products) == len(low) + 1  # the pooler
    assert not any(
        node['op'] in ('_contrib_dequantize', '_contrib_requantize', 'FullyConnected') for node in nodes
    )


def test_weights_are_bytes(quantised):
    symbol, arrays, _, ranges, low = quantised
    stored = int8_parameters(low, arrays, ranges)
    name = 'encoder.transformer_cells.0.proj.weight_quantize'
    assert stored[name].dtype == np.int8
    scale = np.abs(arrays[name[: -len('_quantize')]]).max() / 127
    # rounded
    np.testing.assert_allclose(
        stored[name].asnumpy() * scale, arrays[name[: -len('_quantize')]], atol=scale * 0.51
    )


def test_ranges_of_another_network_are_refused(quantised):
    symbol, arrays, _, ranges, _ = quantised
    with pytest.raises(ValueError, match='another network'):
        int8_symbol(symbol, TABLE, dict(list(ranges.items())[1:]))


def test_entropy_cuts_a_lonely_outlier_off():
    values = np.append(np.random.RandomState(0).standard_normal(99999) * 10, 100)
    low, high = least_divergence(np.histogram(values, bins=8001, range=(-100, 100))[0], 100.0)
    assert low == -high and 30 < high < 60


def test_no_text_and_broken_models_are_refused():
    symbol = inference_symbol(UNEVEN, 'encoder', PRETRAINING, precision='int8')
    arrays = inference_parameters(read_parameters(build(UNEVEN)), UNEVEN, 'encoder', PRETRAINING)
    with pytest.raises(ValueError, match='no text'):
        calibrate(symbol, arrays, TABLE, [])
    arrays['encoder.transformer_cells.0.proj.bias'][0] = np.nan
    feed = running.random_feed(UNEVEN, batch=1, length=4)
    with pytest.raises(ValueError, match='not finite'):
        calibrate(symbol, arrays, TABLE, [{name: feed[name] for name in NAMES}])


@pytest.mark.parametrize(
    'values', [None, [], {}, {'a': 1}, {'a': [1]}, {'a': [2, 1]}, {'a': [0, float('nan')]}, {'a': ['x', 1]}]
)
def test_what_are_no_ranges_is_refused(values):
    with pytest.raises(ValueError, match='manifest'):
        check_thresholds(values, source='manifest')


def test_a_factorised_embedding_stays_in_float32():
    """MXNet crashes if the product behind the embedding is quantised too."""
    architecture = network((2, 3, 5, 7), (1, 4, 2, 0), e=5)
    model = build(architecture, initial_std=0.3, trainable=False)
    arrays = inference_parameters(read_parameters(model), architecture, 'encoder', PRETRAINING)
    table = inference_table(architecture, 'encoder', PRETRAINING, 'int8')
    symbol = inference_symbol(architecture, 'encoder', PRETRAINING, precision='int8')
    feed = {name: running.random_feed(architecture, batch=4, length=12)[name] for name in NAMES}
    ranges = calibrate(symbol, arrays, table, [feed])
    low = int8_symbol(symbol, table, ranges)
    assert 'encoder.embed_proj.weight' in low.list_inputs()
    assert not any('embed_proj' in name and 'quantize' in name for name in low.list_inputs())


def test_a_network_without_products_cannot_be_quantised():
    architecture = Architecture(h=8, layers=(), vocab_size=32, max_length=16)
    table = inference_table(architecture, 'encoder', PRETRAINING, 'int8')
    symbol = inference_symbol(architecture, 'encoder', PRETRAINING, precision='int8')
    with pytest.raises(ValueError, match='no layer with a product to quantise'):
        int8_symbol(symbol, table, {})
