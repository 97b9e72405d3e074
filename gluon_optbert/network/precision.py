"""Reduced precision in training: the matrix products that have it, and the processors that can compute them.

The operands of the encoder's matrix products have the reduced type, in the forward and in the backward pass.
MXNet's AMP operators cast them within the graph. Weights, gradients, LayerNorm, softmax, the heads, losses,
alpha and the optimizer's state stay float32."""

from __future__ import annotations

import os
from typing import Union

import mxnet as mx
from mxnet.gluon import nn

from ..runs.arrays import BFLOAT16
from ..runs.processors import cpu_flags

Tensor = Union[mx.nd.NDArray, mx.sym.Symbol]
TRAINING_PRECISIONS = ('float32', 'bfloat16', 'float16')
KEPT_SHAPES = 'MXNET_MKLDNN_CACHE_NUM'  # MXNet reads it at its first product
_CASTS = {'bfloat16': BFLOAT16, 'float16': 'float16'}


def lowered(F, data: Tensor, precision: str) -> Tensor:
    """A float32 tensor, cast to the precision of the products."""
    return F.amp_cast(data, dtype=_CASTS[precision]) if precision in _CASTS else data


def raised(F, data: Tensor, precision: str) -> Tensor:
    """The result of a product, cast to float32."""
    return F.amp_cast(data, dtype='float32') if precision in _CASTS else data


def product(F, data: Tensor, weight: Tensor, bias: Tensor, *, units: int, precision: str) -> Tensor:
    """A matrix product over the last axis plus a bias.

    Data and result have the precision of the products (see `lowered`); weight and bias are float32.
    """
    return F.FullyConnected(
        data, lowered(F, weight, precision), lowered(F, bias, precision), num_hidden=units, flatten=False
    )


class Product(nn.Dense):
    """A Dense layer over the last axis, with a precision for its product.

    Inputs:
        - **data** : shape (..., in_units), in that precision (see `lowered`)

    Outputs:
        - **outputs** : shape (..., units), in that precision (see `raised`)
    """

    def __init__(self, units: int, in_units: int, *, precision: str = 'float32', prefix=None, params=None):
        super().__init__(units, in_units=in_units, flatten=False, prefix=prefix, params=params)
        self._precision = precision

    def _alias(self):
        return 'dense'  # in the names of exported parameters

    def hybrid_forward(self, F, x, weight, bias=None):
        return product(F, x, weight, bias, units=self._units, precision=self._precision)


def prepare_bfloat16() -> None:
    """What has to be true before the first product in bfloat16.

    MXNet keeps the code and the memory of a product for every shape that it has seen. In bfloat16 that is
    much, and slow to obtain; so the number of shapes is bounded, unless the environment says otherwise.

    Raises
    ------
    ValueError
        If this processor is known to lack AVX-512; oneDNN has no bfloat16 without it.
    """
    flags = cpu_flags()
    if flags and 'avx512bw' not in flags:
        raise ValueError(
            'bfloat16: this processor lacks AVX-512 (avx512bw), which MXNet needs for it; take another '
            'precision'
        )
    os.environ.setdefault(KEPT_SHAPES, '64')


def check_precision(precision: str, ctx: mx.Context) -> None:
    """Raise ValueError unless a network can be trained on a device in a precision."""
    if precision == 'float16' and ctx.device_type != 'gpu':
        raise ValueError(
            'precision float16: MXNet multiplies it on a GPU only, and none is seen here; take bfloat16 or '
            'float32'
        )
    if precision == 'bfloat16':
        if ctx.device_type == 'gpu':
            raise ValueError('precision bfloat16: MXNet multiplies it on a CPU only; take float16 or float32')
        prepare_bfloat16()
