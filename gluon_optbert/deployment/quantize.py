"""An export's matrix products in eight bits: value ranges from the user's text, and MXNet's quantised
operators.

The encoder's matrix products take int8 inputs and weights, one scale to a tensor, and add up in int32;
embeddings, softmax, LayerNorm, the attention's products, the pooler and the heads stay float32. Between two
products with a GELU, values stay in eight bits. The passes over the graph are those of
``mxnet.contrib.quantization``."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.contrib import quantization

from ..architecture.parameters import ParameterSpec
from ..network.running import run
from ..runs.display import counting

METHODS = ('naive', 'entropy')
BACKEND = 'MKLDNN_QUANTIZE'
_PRODUCT = '_sg_mkldnn_fully_connected'
# Stays in float32: its output goes to a sum and to products, where MXNet crashes over an int8 graph.
_WHOLE = 'encoder.embed_proj.weight'
_STAY = ['Embedding', 'elemwise_add', 'elemwise_mul']  # MXNet would quantise them too
_BINS = 8001  # of a histogram, odd, as MXNet's entropy calibration wants it
Thresholds = Mapping[str, Tuple[float, float]]


def _graph(
    symbol: mx.sym.Symbol, table: Mapping[str, ParameterSpec]
) -> Tuple[mx.sym.Symbol, mx.sym.Symbol, List[str]]:
    """The graph with its products fused, the same quantised but not calibrated, and the outputs that need
    thresholds.
    """
    fused = symbol.get_backend_symbol(BACKEND)
    nodes = json.loads(fused.tojson())['nodes']
    weights = {node['name']: nodes[node['inputs'][1][0]]['name'] for node in nodes if node['op'] == _PRODUCT}
    others = [name for name, weight in weights.items() if weight == _WHOLE or not table[weight].low_precision]
    if len(others) == len(weights):
        raise ValueError('int8: the network has no layer with a product to quantise')
    quantised, outputs = quantization._quantize_symbol(
        fused,
        mx.cpu(),
        excluded_symbols=others,
        excluded_operators=_STAY,
        offline_params=list(table),
        quantized_dtype='int8',
        quantize_mode='full',
        quantize_granularity='tensor-wise',
    )
    return fused, quantised, outputs


def calibrate(
    symbol: mx.sym.Symbol,
    arrays: Mapping[str, np.ndarray],
    table: Mapping[str, ParameterSpec],
    feeds: Sequence[Mapping[str, np.ndarray]],
    method: str = 'naive',
) -> Dict[str, Tuple[float, float]]:
    """The range of every tensor that is to be quantised, over batches of the user's text.

    Parameters
    ----------
    symbol : mx.sym.Symbol
        `inference_symbol` with ``precision='int8'``.
    arrays : mapping of name to np.ndarray
    table : mapping of name to ParameterSpec
        `inference_table` with ``precision='int8'``: it says which products go into eight bits.
    feeds : sequence of mapping of input name to np.ndarray
        One batch each.
    method : str
        ``naive``: the smallest and largest value. ``entropy``: a symmetric range inside it, with the least
        divergence of what eight bits make of the values' distribution.

    Returns
    -------
    dict of output name to (float, float)

    Raises
    ------
    ValueError
        If there is no batch, or a value is not finite.
    """
    fused, _, outputs = _graph(symbol, table)
    with watching(fused, outputs, arrays, feeds, method) as (batches, count):
        ranges = _ranges(outputs, batches())
        if method == 'naive':
            return ranges
        largest = {name: max(-low, high, 1e-8) for name, (low, high) in ranges.items()}
        counts = histograms(largest, batches())
        for name in outputs:
            ranges[name] = least_divergence(counts[name], largest[name])
            count()
    return ranges


@contextlib.contextmanager
def watching(
    symbol: mx.sym.Symbol,
    outputs: Sequence[str],
    arrays: Mapping[str, np.ndarray],
    feeds: Sequence[Mapping[str, np.ndarray]],
    method: str,
) -> Iterator[Tuple[Callable[[], Iterator[Iterable[Tuple[str, np.ndarray]]]], Callable[[], None]]]:
    """Internal outputs of a network, watched while it reads text, with the progress of a method of `METHODS`.

    Gives a function that iterates over batches of (name, values), to be used once for ``naive`` and twice for
    ``entropy``, and one to call for every output whose range is chosen. The other arguments and the errors
    are those of `calibrate`.
    """
    if not feeds:
        raise ValueError('calibration: no text; give a file with a line or more')
    internals = symbol.get_internals()
    watched = mx.sym.Group([internals[name] for name in outputs])
    inputs = [name for name in watched.list_inputs() if name in feeds[0]]
    block = mx.gluon.SymbolBlock(watched, [mx.sym.var(name, dtype='float32') for name in inputs])
    for name, parameter in block.collect_params().items():
        parameter._load_init(mx.nd.array(arrays[name]), mx.cpu())

    steps = len(feeds) if method == 'naive' else 2 * len(feeds) + len(outputs)
    with counting('calibrating', steps) as count:

        def batches() -> Iterator[Iterable[Tuple[str, np.ndarray]]]:
            for feed in feeds:
                yield zip(outputs, run(block, feed, inputs))
                count()

        yield batches, count


def _ranges(
    outputs: Sequence[str], batches: Iterable[Iterable[Tuple[str, np.ndarray]]]
) -> Dict[str, Tuple[float, float]]:
    """The smallest and largest value of every output over all batches; ValueError if one is not finite."""
    ranges = dict.fromkeys(outputs, (math.inf, -math.inf))
    for batch in batches:
        for name, values in batch:
            low, high = ranges[name]
            ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
    check_finite(ranges)
    return ranges


def check_finite(ranges: Mapping[str, Any]) -> None:
    """Raise ValueError, with the names, if an end of a range is not finite."""
    wrong = [name for name, ends in ranges.items() if not np.isfinite(ends).all()]
    if wrong:
        raise ValueError(f'calibration: {", ".join(wrong)} not finite; the model is broken')


def histograms(
    largest: Mapping[str, float], batches: Iterable[Iterable[Tuple[str, np.ndarray]]]
) -> Dict[str, np.ndarray]:
    """How many values of every output fall into each bin between minus and plus its largest one."""
    counts = {name: np.zeros(_BINS, dtype=np.int64) for name in largest}
    for batch in batches:
        for name, values in batch:
            counts[name] += np.histogram(values, bins=_BINS, range=(-largest[name], largest[name]))[0]
    return counts


def least_divergence(counts: np.ndarray, largest: float) -> Tuple[float, float]:
    """The symmetric range that loses least of a histogram over [-largest, largest] in eight bits."""
    edges = np.linspace(-largest, largest, len(counts) + 1)
    threshold, _ = mx.nd.contrib.calibrate_entropy(
        mx.nd.array(counts), mx.nd.array(edges), num_quantized_bins=255
    )
    threshold = float(threshold.asscalar())
    return -threshold, threshold


def int8_symbol(
    symbol: mx.sym.Symbol, table: Mapping[str, ParameterSpec], thresholds: Thresholds
) -> mx.sym.Symbol:
    """The network in eight bits.

    Parameters
    ----------
    symbol : mx.sym.Symbol
        `inference_symbol` with ``precision='int8'``.
    table : mapping of name to ParameterSpec
        Its parameters, as for `calibrate`.
    thresholds : mapping of output name to (float, float)
        The ranges from `calibrate`.

    Raises
    ------
    ValueError
        If they are those of another network.
    """
    _, quantised, outputs = _graph(symbol, table)
    if set(thresholds) != set(outputs):
        raise ValueError('calibration: the thresholds are those of another network')
    return quantization._calibrate_quantized_sym(quantised, dict(thresholds)).get_backend_symbol(BACKEND)


def int8_parameters(
    symbol: mx.sym.Symbol, arrays: Mapping[str, np.ndarray], thresholds: Thresholds
) -> Dict[str, mx.nd.NDArray]:
    """The arrays that the network in eight bits reads, with the ranges of its weights."""
    stored = quantization._quantize_params(
        symbol, {name: mx.nd.array(value) for name, value in arrays.items()}, dict(thresholds)
    )
    return {name: stored[name] for name in symbol.list_inputs() if name in stored}
