"""The settings of a network: what it has beside its widths, and how it computes."""

from __future__ import annotations

import dataclasses
import os

import mxnet as mx
from mxnet.gluon import nn

from ..architecture.heads import PRETRAINING, Head
from ..runs.machine import bfloat16_is_fast, cpu_flags, gpu_names
from ..runs.mxnet_arrays import BFLOAT16
from .gates import Gate, Tensor

TRAINING_PRECISIONS = ('float32', 'bfloat16', 'float16')
AUTO = 'auto'  # what `fast_precision` says
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

    def __init__(self, units: int, in_units: int, *, precision: str, prefix: str):
        super().__init__(units, in_units=in_units, flatten=False, prefix=prefix)
        self._precision = precision

    def hybrid_forward(self, F, x, weight, bias=None):
        return product(F, x, weight, bias, units=self._units, precision=self._precision)


def prepare_bfloat16() -> None:
    """Make ready for the first product in bfloat16.

    MXNet keeps the code and the memory of a product for every shape that it has seen. In bfloat16 that is
    much, and slow to obtain; so the number of shapes is bounded, unless the environment says otherwise.
    ValueError if this processor is known to lack AVX-512; oneDNN has no bfloat16 without it.
    """
    flags = cpu_flags()
    if flags and 'avx512bw' not in flags:
        raise ValueError(
            'bfloat16: this processor lacks AVX-512 (avx512bw), which MXNet needs for it; give --precision '
            'float32'
        )
    os.environ.setdefault(KEPT_SHAPES, '64')


def fast_precision() -> str:
    """bfloat16 where its products are the faster ones and no GPU is used, else float32."""
    return 'bfloat16' if bfloat16_is_fast() and not gpu_names() else 'float32'


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


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The choices that every part of a network is built with, beside the widths of the architecture.

    Parameters
    ----------
    dropout : float
        Of the embedding, the attention probabilities, the outputs of both blocks, and the pooled output that
        a task's head reads.
    gated : bool or type of Gate
        Whether gates multiply the widths (optBERT, Table 5; `cutting.shrink` says where each stands), and of
        which type; True for `Gate`.
    h_gate : str
        Where alpha_h stands, one of `H_GATES`.
    trainable : bool
        Whether there will be a backward pass; without one, LayerNorm is MXNet's operator.
    precision : str
        Of the encoder's matrix products with weights, one of `TRAINING_PRECISIONS`; all else is float32.
    head : Head
        What stands on the encoder: the heads of pre-training, or that of a task.
    use_pooler, use_classifier, use_decoder : bool
        Which heads of pre-training there are, as in GluonNLP; the head of a task decides by itself.
    output_attention, output_all_encodings : bool
        As in GluonNLP.
    output_relations : bool
        Whether the queries, keys and values of the last layer come after the states.
    """

    dropout: float = 0.0
    gated: bool | type[Gate] = False
    h_gate: str = 'stream'
    trainable: bool = True
    precision: str = 'float32'
    head: Head = PRETRAINING
    use_pooler: bool = True
    use_classifier: bool = True
    use_decoder: bool = True
    output_attention: bool = False
    output_all_encodings: bool = False
    output_relations: bool = False

    @property
    def gate(self) -> type[Gate] | None:
        """The type of the gates; None without gates."""
        return Gate if self.gated is True else self.gated or None

    def places(self, alpha_h: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The values of alpha_h, shape (h,), for the LayerNorms of the stream, and for what the blocks read
        and write; None where it does not stand.
        """
        return (alpha_h, None) if self.h_gate == 'stream' else (None, alpha_h)
