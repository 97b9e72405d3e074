"""ONNX files whose encoder computes its products in eight bits.

Weights are int8, with a scale for every output unit. Inputs are uint8, with one scale and one zero point,
which the AVX-512 VNNI instructions of processors multiply with int8 weights. A static file has the ranges of
the inputs, measured on text; ONNX Runtime and OpenVINO turn its QuantizeLinear and DequantizeLinear into
integer products. Queries and keys are int8 too, for then OpenVINO computes the attention's scores in eight
bits, and no other reader is slower. A dynamic file measures the range of every input while it computes. All
else stays float32, as in the int8 network for MXNet."""

from __future__ import annotations

from typing import Collection, Dict, Mapping, Optional, Tuple

import numpy as np
from onnx import TensorProto

from ..architecture.architecture import Architecture
from .onnx_export import Graph
from .onnx_ranges import Ranges

_LEVELS = 255  # steps between the ends of a uint8 range
_LARGEST = 127  # of int8 weights; -128 is not used, so that they are symmetric


def quantised_weight(weight: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """A weight of shape (inputs, outputs) as int8, and the scale of every output, shape (outputs,)."""
    scales = np.maximum(np.abs(weight).max(axis=0) / _LARGEST, np.finfo(np.float32).tiny)
    scales = scales.astype(np.float32)
    return np.clip(np.rint(weight / scales), -_LARGEST, _LARGEST).astype(np.int8), scales


def scale_and_zero(low: float, high: float) -> Tuple[np.ndarray, np.ndarray]:
    """The scale of uint8 values over a range, which is made to hold 0, and the integer that means 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / _LEVELS, 1e-12)
    return np.array(scale, np.float32), np.array(np.clip(round(-low / scale), 0, _LEVELS), np.uint8)


class _Int8Graph(Graph):
    """A graph in which some products have int8 weights."""

    def __init__(
        self, architecture: Architecture, arrays: Mapping[str, np.ndarray], names: str, low: Collection[str]
    ):
        super().__init__(architecture, arrays, names)
        self._low = frozenset(low)

    def product(self, data: str, name: str) -> str:
        return self.int8_product(data, name) if name in self._low else super().product(data, name)

    def int8_product(self, data: str, name: str) -> str:
        """A product whose name is in `low`."""
        raise NotImplementedError

    def int8_weight(self, name: str, factors: Optional[np.ndarray] = None) -> Tuple[str, str, str]:
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
    """Products whose inputs have fixed ranges.

    Parameters
    ----------
    ranges : Ranges
        From `onnx_ranges.measured_ranges`.
    """

    def __init__(
        self, architecture: Architecture, arrays: Mapping[str, np.ndarray], names: str, *, ranges: Ranges
    ):
        super().__init__(architecture, arrays, names, ranges.inputs)
        self._ranges = ranges
        self._rounded: Dict[str, str] = {}

    def int8_product(self, data: str, name: str) -> str:
        factors = self._ranges.factors.get(name)
        if data not in self._rounded:  # query, key and value share their input
            even = data
            if factors is not None:
                even = self.node('Mul', data, self.stored(name + '.input.factors', factors))
            form = scale_and_zero(*self._ranges.inputs[name])
            self._rounded[data] = self.rounded(even, name + '.input', *form)
        weight = self.node('DequantizeLinear', *self.int8_weight(name, factors), axis=1)
        return self.node('MatMul', self._rounded[data], weight)

    def projected(self, data: str, name: str) -> str:
        output, largest = super().projected(data, name), self._ranges.outputs.get(name)
        if largest is None:
            return output
        scale = np.array(max(largest / _LARGEST, 1e-12), np.float32)
        return self.rounded(output, name + '.output', scale, np.array(0, np.int8))

    def rounded(self, data: str, name: str, scale: np.ndarray, zero: np.ndarray) -> str:
        """Values that went through eight bits."""
        form = self.stored(name + '.scale', scale), self.stored(name + '.zero', zero)
        return self.node('DequantizeLinear', self.node('QuantizeLinear', data, *form), *form)


class DynamicGraph(_Int8Graph):
    """Products whose inputs have the range of each batch.

    Parameters
    ----------
    products : collection of str
        The names of the products in eight bits.
    """

    def __init__(
        self,
        architecture: Architecture,
        arrays: Mapping[str, np.ndarray],
        names: str,
        *,
        products: Collection[str],
    ):
        super().__init__(architecture, arrays, names, products)
        self._rounded: Dict[str, Tuple[str, str, str]] = {}

    def int8_product(self, data: str, name: str) -> str:
        if data not in self._rounded:
            values = self.node('DynamicQuantizeLinear', data, more=('scale', 'zero'))
            self._rounded[data] = values, values + '_scale', values + '_zero'
        values, scale, zero = self._rounded[data]
        weight, scales, zeros = self.int8_weight(name)
        sums = self.node(
            'Cast', self.node('MatMulInteger', values, weight, zero, zeros), to=TensorProto.FLOAT
        )
        return self.node('Mul', sums, self.node('Mul', scale, scales))
