"""ONNX files whose encoder computes its products in eight bits.

Weights are int8, with a scale for every output unit. Inputs are uint8, with one scale and one zero point,
which the AVX-512 VNNI instructions of processors multiply with int8 weights. A static file has the ranges of
the inputs, measured on text; ONNX Runtime and OpenVINO turn its QuantizeLinear and DequantizeLinear into
integer products. Queries and keys are int8 too, for then OpenVINO computes the attention's scores in eight
bits, and no other reader is slower. A dynamic file measures the range of every input while it computes. All
else stays float32: embeddings, softmax, LayerNorm, the attention's products, the pooler and the heads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from onnx import TensorProto

from ..network.inputs import TOKEN_INPUTS
from ..network.running import feed_of, run
from ..network.saved_model import SavedModel
from ..runs.display import doing
from ..tasks.features import Features, sorted_batches
from .mxnet_network import inference_parameters, inference_symbol, inference_table
from .onnx_export import Graph, onnx_model

METHODS = ('naive', 'entropy')
_CALIBRATION_BATCH = 8  # instances
_LEVELS = 255  # steps between the ends of a uint8 range
_LARGEST = 127  # of int8 weights; -128 is not used, so that they are symmetric
_FLOOR = 1e-5  # of the largest: a unit or a weight that is nearly zero does not decide about factors
_SCORED = ('proj_query', 'proj_key')
_BINS = 8001  # of a histogram, odd, as MXNet's entropy calibration wants it


# Ranges


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Ranges of the values of a network, measured on text for an int8 file, by the name of the product."""

    # Of all in eight bits: the ends of the values that go in, once they are multiplied by the factors.
    inputs: Mapping[str, tuple[float, float]]
    outputs: Mapping[str, float]  # of queries and keys: the largest magnitude
    # What the units that go in are multiplied by, shape (units,), and the weight is divided by; only where
    # they come from a LayerNorm.
    factors: Mapping[str, np.ndarray]


def measured_ranges(saved: SavedModel, kind: str, features: Features, method: str = 'naive') -> Ranges:
    """Measure the inputs of a network's products on text.

    Some units behind a LayerNorm are far larger than the others, and one scale for all of them would round
    the others away. Their sizes are therefore evened out, as in SmoothQuant (Xiao et al., 2022, equation 4,
    with 1/2 for its alpha).

    The model is without gates. The method ``naive`` takes the smallest and the largest value, ``entropy`` a
    range inside it, with the least divergence of what eight bits make of the values' distribution. ValueError
    if there is no text, no product to quantise, or a value is not finite.
    """
    symbol = inference_symbol(saved.architecture, kind, saved.head, precision='plain')
    arrays = inference_parameters(saved, kind)
    sources, normed = _sources(symbol, inference_table(saved.architecture, kind, saved.head, 'plain'))
    if not sources:
        raise ValueError('int8: the network has no layer with a product to quantise')
    feeds = [feed_of(batch, TOKEN_INPUTS) for batch in sorted_batches(features, _CALIBRATION_BATCH)]
    if not feeds:
        raise ValueError('calibration: no text; give a file with a line or more')
    scored = {name: name + '_output' for name in sources if name.endswith(_SCORED)}
    watched = list(dict.fromkeys([*sources.values(), *scored.values()]))
    factors: dict[str, np.ndarray] = {}
    steps = len(feeds) if method == 'naive' else 2 * len(feeds) + len(watched)
    internals, inputs = symbol.get_internals(), [mx.sym.var(name, dtype='float32') for name in TOKEN_INPUTS]
    block = mx.gluon.SymbolBlock(mx.sym.Group([internals[name] for name in watched]), inputs)
    for name, parameter in block.collect_params().items():
        parameter._load_init(mx.nd.array(arrays[name]), mx.cpu())
    with doing('calibrating', steps) as display:

        def measured() -> Iterator[tuple[str, np.ndarray]]:
            for feed in feeds:
                for name, values in zip(watched, run(block, feed, TOKEN_INPUTS)):
                    yield name, values * factors[name] if name in factors else values
                display.advance()

        units = _unit_ranges(measured())
        for source in normed:
            weights = [arrays[name + '.weight'] for name, read in sources.items() if read == source]
            factors[source] = _factors(units[source], weights)
        ends = {}
        for name, (low, high) in units.items():
            factor = factors.get(name, np.float32(1))
            ends[name] = float((low * factor).min()), float((high * factor).max())
        if method == 'entropy':
            largest = {name: max(-low, high, 1e-8) for name, (low, high) in ends.items()}
            counts = {name: np.zeros(_BINS, dtype=np.int64) for name in largest}
            for name, values in measured():
                counts[name] += np.histogram(values, _BINS, (-largest[name], largest[name]))[0]
            for name, (low, high) in ends.items():
                threshold = _least_divergence(counts[name], largest[name])
                ends[name] = max(low, -threshold), min(high, threshold)
                display.advance()
    return Ranges(
        {name: ends[source] for name, source in sources.items()},
        {name: max(-ends[output][0], ends[output][1]) for name, output in scored.items()},
        {name: factors[source] for name, source in sources.items() if source in factors},
    )


def _sources(symbol: mx.sym.Symbol, table: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The internal output that every product in eight bits reads, and which of them are of a LayerNorm."""
    nodes = json.loads(symbol.tojson())['nodes']
    sources, normed = {}, {}
    for node in nodes:
        if node['op'] == 'FullyConnected' and table[nodes[node['inputs'][1][0]]['name']].low_precision:
            source = nodes[node['inputs'][0][0]]
            sources[node['name']] = source['name'] + '_output'
            if source['op'] == 'LayerNorm':
                normed[source['name'] + '_output'] = True
    return sources, list(normed)


def _unit_ranges(measured: Iterable[tuple[str, np.ndarray]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The smallest and largest value of every unit over all batches; ValueError if one is not finite."""
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, values in measured:
        values = values.reshape(-1, values.shape[-1])
        low, high = values.min(axis=0), values.max(axis=0)
        if name in ranges:
            low, high = np.minimum(ranges[name][0], low), np.maximum(ranges[name][1], high)
        ranges[name] = low, high
    wrong = [name for name, ends in ranges.items() if not np.isfinite(ends).all()]
    if wrong:
        raise ValueError(f'calibration: {", ".join(wrong)} not finite; the model is broken')
    return ranges


def _factors(ends: tuple[np.ndarray, np.ndarray], weights: Sequence[np.ndarray]) -> np.ndarray:
    """Factors, shape (units,), that even out units and the weights (outputs, units) that read them."""
    size = np.maximum(-ends[0], ends[1])
    weight = np.abs(np.concatenate(weights)).max(axis=0)
    size, weight = (np.maximum(one, max(_FLOOR * one.max(), 1e-30)) for one in (size, weight))
    return np.sqrt(weight / size).astype(np.float32)


def _least_divergence(counts: np.ndarray, largest: float) -> float:
    """The end of the range around 0 that loses least of a histogram over [-largest, largest] in 8 bits."""
    edges = np.linspace(-largest, largest, len(counts) + 1)
    threshold, _ = mx.nd.contrib.calibrate_entropy(
        mx.nd.array(counts), mx.nd.array(edges), num_quantized_bins=255
    )
    return float(threshold.asscalar())


# Files


def quantised_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight of shape (inputs, outputs) as int8, and the scale of every output, shape (outputs,)."""
    scales = np.maximum(np.abs(weight).max(axis=0) / _LARGEST, np.finfo(np.float32).tiny)
    scales = scales.astype(np.float32)
    return np.clip(np.rint(weight / scales), -_LARGEST, _LARGEST).astype(np.int8), scales


def scale_and_zero(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """The scale of uint8 values over a range, which is made to hold 0, and the integer that means 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / _LEVELS, 1e-12)
    return np.array(scale, np.float32), np.array(np.clip(round(-low / scale), 0, _LEVELS), np.uint8)


class _Int8Graph(Graph):
    """A graph in which the products that have `ranges` have int8 weights; a subclass's `int8_product` writes
    them.
    """

    def __init__(self, *described: Any, ranges: Ranges):
        super().__init__(*described)
        self.ranges = ranges
        self.rounded_inputs: dict[str, Any] = {}  # query, key and value share theirs

    def product(self, data: str, name: str) -> str:
        return self.int8_product(data, name) if name in self.ranges.inputs else super().product(data, name)

    def int8_weight(self, name: str, factors: np.ndarray | None = None) -> tuple[str, str, str]:
        """The weight of a product, its scales and its zero points, which are 0; `factors` of its inputs are
        taken out of it.
        """
        weight = self.arrays[name + '.weight'].T
        if factors is not None:
            weight = weight / factors[:, np.newaxis]
        weight, scales = quantised_weight(weight)
        return (
            self.stored(name + '.weight.int8', weight),
            self.stored(name + '.weight.scale', scales),
            self.stored(name + '.weight.zero', np.zeros(len(scales), np.int8)),
        )


class StaticGraph(_Int8Graph):
    """Products whose inputs have fixed ranges, from `measured_ranges`."""

    def int8_product(self, data: str, name: str) -> str:
        factors = self.ranges.factors.get(name)
        if data not in self.rounded_inputs:
            even = data
            if factors is not None:
                even = self.node('Mul', data, self.stored(name + '.input.factors', factors))
            form = scale_and_zero(*self.ranges.inputs[name])
            self.rounded_inputs[data] = self.rounded(even, name + '.input', *form)
        weight = self.node('DequantizeLinear', *self.int8_weight(name, factors), axis=1)
        return self.node('MatMul', self.rounded_inputs[data], weight)

    def projected(self, data: str, name: str) -> str:
        output, largest = super().projected(data, name), self.ranges.outputs.get(name)
        if largest is None:
            return output
        scale = np.array(max(largest / _LARGEST, 1e-12), np.float32)
        return self.rounded(output, name + '.output', scale, np.array(0, np.int8))

    def rounded(self, data: str, name: str, scale: np.ndarray, zero: np.ndarray) -> str:
        """Values that went through eight bits."""
        form = self.stored(name + '.scale', scale), self.stored(name + '.zero', zero)
        return self.node('DequantizeLinear', self.node('QuantizeLinear', data, *form), *form)


class DynamicGraph(_Int8Graph):
    """Products whose inputs have the range of each batch."""

    def int8_product(self, data: str, name: str) -> str:
        if data not in self.rounded_inputs:
            values = self.node('DynamicQuantizeLinear', data, more=('scale', 'zero'))
            self.rounded_inputs[data] = values, values + '_scale', values + '_zero'
        values, scale, zero = self.rounded_inputs[data]
        weight, scales, zeros = self.int8_weight(name)
        sums = self.node(
            'Cast', self.node('MatMulInteger', values, weight, zero, zeros), to=TensorProto.FLOAT
        )
        return self.node('Mul', sums, self.node('Mul', scale, scales))


def onnx_in(precision: str, saved: SavedModel, kind: str, names: str, ranges: Ranges | None = None) -> Any:
    """A network in ONNX: in ``float32``, or with ranges in ``int8`` or ``int8 dynamic``."""
    described = saved.architecture, inference_parameters(saved, kind), names
    if precision == 'float32':
        graph = Graph(*described)
    else:
        graph = {'int8': StaticGraph, 'int8 dynamic': DynamicGraph}[precision](*described, ranges=ranges)
    return onnx_model(graph, kind, saved.head)
