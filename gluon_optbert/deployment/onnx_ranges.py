"""What an int8 ONNX file must know of the values of its network, measured on text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..architecture.parameters import ParameterSpec
from .quantize import check_finite, histograms, least_divergence, watching

_FLOOR = 1e-5  # of the largest: a unit or a weight that is nearly zero does not decide about factors
_SCORED = ('proj_query', 'proj_key')
Ends = Tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Ranges:
    """What was measured.

    Parameters
    ----------
    inputs : mapping of product name to (float, float)
        Of every product in eight bits: the ends of its input's values, once they are multiplied by `factors`.
    outputs : mapping of product name to float
        Of queries and keys: the largest magnitude.
    factors : mapping of product name to np.ndarray, shape (units,)
        What the units of a product's input are multiplied by; its weight is divided by it. Only for products
        that read the output of a LayerNorm.
    """

    inputs: Mapping[str, Ends]
    outputs: Mapping[str, float]
    factors: Mapping[str, np.ndarray]


def measured_ranges(
    symbol: mx.sym.Symbol,
    arrays: Mapping[str, np.ndarray],
    table: Mapping[str, ParameterSpec],
    feeds: Sequence[Mapping[str, np.ndarray]],
    method: str = 'naive',
) -> Ranges:
    """Measure the inputs of a network's products on batches of text.

    Some units behind a LayerNorm are far larger than the others, and one scale for all of them would round
    the others away. Their sizes are therefore evened out, as in SmoothQuant (Xiao et al., 2022, equation 4,
    with 1/2 for its alpha).

    Arguments and errors are those of `quantize.calibrate`. Ranges from ``entropy`` end where the values do.
    """
    sources, normed = _sources(symbol, table)
    if not sources:
        raise ValueError('int8: the network has no layer with a product to quantise')
    scored = {name: name + '_output' for name in sources if name.endswith(_SCORED)}
    watched = list(dict.fromkeys([*sources.values(), *scored.values()]))
    with watching(symbol, watched, arrays, feeds, method) as (batches, count):
        units = _unit_ranges(batches())
        factors = {
            source: _factors(units[source], [arrays[name + '.weight'] for name in _readers(sources, source)])
            for source in normed
        }
        ends = {name: _scaled(pair, factors.get(name)) for name, pair in units.items()}
        if method != 'naive':
            largest = {name: max(-low, high, 1e-8) for name, (low, high) in ends.items()}
            counts = histograms(largest, _multiplied(batches(), factors))
            for name, (low, high) in ends.items():
                least, most = least_divergence(counts[name], largest[name])
                ends[name] = max(low, least), min(high, most)
                count()
    return Ranges(
        {name: ends[source] for name, source in sources.items()},
        {name: max(-ends[output][0], ends[output][1]) for name, output in scored.items()},
        {name: factors[source] for name, source in sources.items() if source in factors},
    )


def _sources(symbol: mx.sym.Symbol, table: Mapping[str, ParameterSpec]) -> Tuple[Dict[str, str], List[str]]:
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


def _readers(sources: Mapping[str, str], source: str) -> List[str]:
    return [name for name, read in sources.items() if read == source]


def _unit_ranges(
    batches: Iterable[Iterable[Tuple[str, np.ndarray]]],
) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
    """The smallest and largest value of every unit over all batches; ValueError if one is not finite."""
    ranges: Dict[str, Tuple[np.ndarray, np.ndarray]] = {}
    for batch in batches:
        for name, values in batch:
            values = values.reshape(-1, values.shape[-1])
            low, high = values.min(axis=0), values.max(axis=0)
            if name in ranges:
                low, high = np.minimum(ranges[name][0], low), np.maximum(ranges[name][1], high)
            ranges[name] = low, high
    check_finite(ranges)
    return ranges


def _factors(ends: Tuple[np.ndarray, np.ndarray], weights: Sequence[np.ndarray]) -> np.ndarray:
    """What evens out the sizes of units and of the weights, shape (units, of each weight), that read them."""
    size = np.maximum(-ends[0], ends[1])
    weight = np.abs(np.concatenate(weights)).max(axis=0)
    size, weight = (np.maximum(one, max(_FLOOR * one.max(), 1e-30)) for one in (size, weight))
    return np.sqrt(weight / size).astype(np.float32)


def _scaled(ends: Tuple[np.ndarray, np.ndarray], factors: Any) -> Ends:
    """The ends of all units together."""
    low, high = ends if factors is None else (end * factors for end in ends)
    return float(low.min()), float(high.max())


def _multiplied(
    batches: Iterable[Iterable[Tuple[str, np.ndarray]]], factors: Mapping[str, np.ndarray]
) -> Iterator[Iterable[Tuple[str, np.ndarray]]]:
    for batch in batches:
        yield ((name, values * factors[name] if name in factors else values) for name, values in batch)
