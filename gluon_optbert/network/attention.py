"""Multi-head self attention with heads of any width, and its mask."""

from __future__ import annotations

from typing import Dict, Iterable

from gluonnlp.model.bert import DotProductSelfAttentionCell
from mxnet.gluon import HybridBlock, nn

from ..architecture.architecture import LayerDims
from .gates import gated_by
from .precision import Tensor, lowered, product, raised
from .settings import NetworkSettings

MASKED_SCORE = -1e4  # added to the scores of padding: their softmax is exactly zero, and float16 holds it


def padding(F, steps: Tensor, valid_length: Tensor) -> Tensor:
    """Where a sequence is padding: 1 there and 0 elsewhere, shape (batch, length).

    Parameters
    ----------
    steps : Tensor, shape (length,)
        The positions 0, 1, ….
    valid_length : Tensor, shape (batch,)
    """
    return F.broadcast_greater_equal(F.reshape(steps, shape=(1, -1)), F.reshape(valid_length, shape=(-1, 1)))


def attention_masks(F, steps: Tensor, valid_length: Tensor, heads: Iterable[int]) -> Dict[int, Tensor]:
    """What is added to the scores of attention, shape (batch * a, length, length), by number of heads a.

    The mask has no gradient: neither the comparison nor the positions pass one on.

    Parameters
    ----------
    steps : Tensor, shape (length,)
        The positions 0, 1, ….
    valid_length : Tensor, shape (batch,)
    heads : iterable of int
        The numbers of heads that the layers have.
    """
    scores = F.reshape(padding(F, steps, valid_length) * MASKED_SCORE, shape=(0, 1, 1, -1))
    scores = F.broadcast_add(scores, F.reshape(F.zeros_like(steps), shape=(1, 1, -1, 1)))
    return {
        a: F.reshape(F.broadcast_axis(scores, axis=1, size=a), shape=(-3, 0, 0)) for a in sorted(set(heads))
    }


def split_heads(F, data: Tensor, a: int, width: int) -> Tensor:
    """(length, batch, a * width) to (batch * a, length, width)."""
    data = F.reshape(data, shape=(0, 0, a, width))
    return F.reshape(F.transpose(data, axes=(1, 2, 0, 3)), shape=(-3, 0, 0))


def join_heads(F, data: Tensor, a: int) -> Tensor:
    """(batch * a, length, width) to (length, batch, a * width)."""
    data = F.reshape(data, shape=(-4, -1, a, 0, 0))  # (batch, a, length, width)
    return F.reshape(F.transpose(data, axes=(2, 0, 1, 3)), shape=(0, 0, -3))


class OptSelfAttentionCell(DotProductSelfAttentionCell):
    """Multi-head self attention whose heads have keys of width k and values of width v (optBERT, section 4).

    A score is added at padding, and the softmax is a plain one. GluonNLP's softmax with lengths gives the
    same numbers, but MXNet computes it in a scalar loop.

    Parameters
    ----------
    dims : LayerDims
    h : int
        Width of the residual stream.
    settings : NetworkSettings

    Inputs:
        - **stream** : shape (length, batch, h)
        - **mask** : added to the scores, shape (batch * a, length, length), or None
        - **query_gate** : what queries are multiplied by, shape (a * k,), or None
        - **context_gate** : what head outputs are multiplied by, shape (a * v,), or None
        - **column** : ones, shape (length, batch, 1), where gates are trained

    Outputs:
        - **context** : shape (length, batch, a * v)
        - **attention** : probabilities, shape (batch, a, length, length)
    """

    def __init__(self, dims: LayerDims, h: int, settings: NetworkSettings, prefix=None, params=None):
        HybridBlock.__init__(self, prefix=prefix, params=params)  # GluonNLP's own makes square projections
        self._dims = dims
        self._precision = settings.precision
        self._dropout = settings.dropout
        with self.name_scope():
            for name, width in (('query', dims.k), ('key', dims.k), ('value', dims.v)):
                rows = dims.a * width
                weight = self.params.get(f'{name}_weight', shape=(rows, h))
                bias = self.params.get(f'{name}_bias', shape=(rows,), init='zeros')
                setattr(self, f'{name}_weight', weight)
                setattr(self, f'{name}_bias', bias)
            self.dropout_layer = nn.Dropout(settings.dropout)

    def hybrid_forward(
        self,
        F,
        stream,
        mask=None,
        query_gate=None,
        context_gate=None,
        column=None,
        query_weight=None,
        query_bias=None,
        key_weight=None,
        key_bias=None,
        value_weight=None,
        value_bias=None,
    ):
        dims, precision = self._dims, self._precision
        scale = dims.k**-0.5
        narrow = lowered(F, stream, precision)

        def project(weight, bias, width):
            projected = product(F, narrow, weight, bias, units=dims.a * width, precision=precision)
            return raised(F, projected, precision)

        query = project(query_weight, query_bias, dims.k)
        if query_gate is None:
            query = query * scale
        else:
            query = gated_by(F, query, query_gate * scale, column, dims.a * dims.k)
        query = split_heads(F, query, dims.a, dims.k)
        key = split_heads(F, project(key_weight, key_bias, dims.k), dims.a, dims.k)
        value = split_heads(F, project(value_weight, value_bias, dims.v), dims.a, dims.v)

        scores = F.batch_dot(query, key, transpose_b=True)  # (batch * a, length, length)
        if mask is not None:
            scores = scores + mask
        attention = F.softmax(scores, axis=-1)
        dropped = self.dropout_layer(attention) if self._dropout else attention
        context = join_heads(F, F.batch_dot(dropped, value), dims.a)
        if context_gate is not None:
            context = gated_by(F, context, context_gate, column, dims.a * dims.v)
        return context, F.reshape(attention, shape=(-4, -1, dims.a, 0, 0))
