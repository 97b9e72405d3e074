"""ONNX files: padding, and what they compute in eight bits, as ONNX's reference runs them."""

import collections
import dataclasses

import numpy as np
import onnx
import pytest
from helpers.exported import differences, saved_with
from helpers.tiny import network, saved_model
from onnx import numpy_helper

from gluon_optbert.deployment.description import DYNAMIC, onnx_inputs
from gluon_optbert.deployment.engines import onnx_feed
from gluon_optbert.deployment.export import ONNX_FILES, TOLERANCE, relative_difference
from gluon_optbert.deployment.onnx_export import run_onnx, write_onnx
from gluon_optbert.deployment.onnx_int8 import measured_ranges, onnx_in, quantised_weight, scale_and_zero
from gluon_optbert.network import running
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.tasks.features import Features, batch_of

LENGTHS = (9, 4, 9, 6)  # of the calibration text


def text_of(saved):
    """Random text to measure ranges on, and the feed of a network with it."""
    generator, most = np.random.RandomState(0), saved.architecture.vocab_size
    features = Features.of([(generator.randint(0, most, length), length // 2) for length in LENGTHS])
    batch = batch_of(features, np.arange(len(LENGTHS)))
    return features, {**vars(batch), 'masked_positions': np.zeros((len(LENGTHS), 2))}


def test_padding_may_be_anywhere(tmp_path):
    """Tokens between, before or after padding are encoded as a network encodes them without padding, whose
    positions are theirs."""
    saved, _, kind = saved_with('uneven', 'encoder')
    architecture, length = saved.architecture, 7
    write_onnx(tmp_path / 'model.onnx', onnx_in('float32', saved, kind, 'transformers'))
    generator = np.random.RandomState(0)
    ids = generator.randint(0, architecture.vocab_size, (3, length))
    types = generator.randint(0, 2, (3, length))
    mask = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 0, 0, 0]])
    feed = {'input_ids': ids, 'token_type_ids': types, 'attention_mask': mask}
    encoded = run_onnx(tmp_path / 'model.onnx', feed)['last_hidden_state']
    for row, kept in enumerate(map(np.flatnonzero, mask)):
        positions = saved.parameters['encoder.position_weight'].copy()
        positions[: len(kept)] = positions[kept]
        moved = {**saved.parameters, 'encoder.position_weight': positions}
        alone = {
            'input_ids': ids[row : row + 1, kept],
            'token_types': types[row : row + 1, kept],
            'valid_length': np.array([len(kept)]),
            'masked_positions': np.zeros((1, 1)),
        }
        wanted = running.run(build(architecture, moved, trainable=False), alone, list(INPUTS))[0]
        assert relative_difference(encoded[row, kept], wanted[0]) <= TOLERANCE


# In eight bits


@pytest.mark.parametrize(
    'widths, case, method',
    [
        ('even', 'pretraining', 'naive'),
        ('uneven', 'question answering', 'naive'),
        ('factorised', 'encoder', 'entropy'),
    ],
)
def test_int8_files_are_near_the_network(tmp_path, widths, case, method):
    saved, model, kind = saved_with(widths, case)
    features, feed = text_of(saved)
    ranges = measured_ranges(saved, kind, features, method)
    for name, precision in ONNX_FILES['int8'].items():
        write_onnx(tmp_path / name, onnx_in(precision, saved, kind, 'transformers', ranges))
        outputs = run_onnx(tmp_path / name, onnx_feed(feed, onnx_inputs(kind)))
        most = 0.05 if method == 'naive' or name == DYNAMIC else 0.5  # entropy cuts the largest values off
        assert 1e-5 < differences(outputs, model, case, feed)[0] < most, name


def test_ranges_need_layers_text_and_finite_values():
    bare, saved = saved_model(dataclasses.replace(network(), layers=())), saved_model()
    with pytest.raises(ValueError, match='no layer with a product to quantise'):
        measured_ranges(bare, 'encoder', text_of(bare)[0])
    with pytest.raises(ValueError, match='no text'):
        measured_ranges(saved, 'encoder', Features.of([]))
    saved.parameters['encoder.layer_norm.beta'][0] = np.nan
    with pytest.raises(ValueError, match='not finite'):
        measured_ranges(saved, 'encoder', text_of(saved)[0])


def test_every_product_of_the_encoder_is_in_eight_bits_and_no_other():
    saved, _, kind = saved_with('uneven', 'classification')
    ranges = measured_ranges(saved, kind, text_of(saved)[0])
    layers, filters = len(saved.architecture.layers), sum(1 for dims in saved.architecture.layers if dims.f)
    products = 4 * layers + 2 * filters
    for precision in ONNX_FILES['int8'].values():
        model = onnx_in(precision, saved, kind, 'transformers', ranges)
        int8 = [w for w in model.graph.initializer if w.data_type == onnx.TensorProto.INT8 and w.dims]
        weights = [weight.name for weight in int8 if weight.name.endswith('.int8')]
        assert len(weights) == products and all('transformer_cells' in weight for weight in weights)
        zeros = [numpy_helper.to_array(w) for w in int8 if w.name.endswith('weight.zero')]
        assert len(zeros) == products and not any(zero.any() for zero in zeros)
        kinds = collections.Counter(node.op_type for node in model.graph.node)
        if precision == 'int8 dynamic':
            assert kinds['MatMulInteger'] == products
        else:  # Q, K and V share their input; Q and K are rounded, too
            assert kinds['QuantizeLinear'] == 2 * layers + 2 * filters + 2 * layers


def test_large_units_behind_a_layer_norm_do_not_cost_the_others_their_digits():
    """As in trained BERTs, where a few units are ten times as large as the others."""
    saved, _, kind = saved_with('even', 'encoder')
    parameters = {name: value.copy() for name, value in saved.parameters.items()}
    for name in parameters:
        if name.endswith('layer_norm.gamma'):
            parameters[name][3] *= 100
        elif name.endswith(('ffn_1.weight', 'query.weight', 'key.weight', 'value.weight')):
            parameters[name][:, 3] /= 100
    saved = dataclasses.replace(saved, parameters=parameters)
    ranges = measured_ranges(saved, kind, text_of(saved)[0])
    name = 'encoder.transformer_cells.0.ffn.ffn_1'
    factors, (low, high) = ranges.factors[name], ranges.inputs[name]
    assert factors[3] < 0.2 * np.median(factors)
    assert max(-low, high) < 10 * np.median(factors)  # 100 times that without factors


def test_weights_are_rounded_by_output_unit():
    weight = np.array([[1.0, 100.0, 0.0], [-0.5, 30.0, 0.0]], np.float32)
    rounded, scales = quantised_weight(weight)
    assert rounded.dtype == np.int8 and scales.shape == (3,)
    np.testing.assert_allclose(rounded * scales, weight, atol=0.5 * scales.max())
    np.testing.assert_array_equal(rounded[0], [127, 127, 0])


@pytest.mark.parametrize('low, high', [(-1.0, 3.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0), (-1e-30, 1e-30)])
def test_ranges_hold_zero_exactly(low, high):
    scale, zero = scale_and_zero(low, high)
    assert scale > 0 and 0 <= zero <= 255 and scale.dtype == np.float32 and zero.dtype == np.uint8
    values = (np.array([0, 255]) - float(zero)) * scale
    assert values[0] <= min(low, 0) + scale and values[1] >= max(high, 0) - scale


def test_onnx_runtime_computes_what_an_int8_file_says(tmp_path):
    """Fused products, and those of the dynamic file, saturate on processors without VNNI: not compared."""
    runtime = pytest.importorskip('onnxruntime')
    saved, _, kind = saved_with('uneven', 'encoder')
    features, feed = text_of(saved)
    ranges, path = measured_ranges(saved, kind, features), tmp_path / 'model.onnx'
    write_onnx(path, onnx_in('int8', saved, kind, 'transformers', ranges))
    feed = onnx_feed(feed, onnx_inputs(kind))
    tokens = feed['attention_mask'].astype(bool)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    (output,) = session.run(['last_hidden_state'], feed)
    wanted = run_onnx(path, feed)['last_hidden_state']
    # a value between two integers may be rounded either way, by a sum in another order
    assert relative_difference(output[tokens], wanted[tokens]) < 0.05
