"""Embeddings of texts from the states of their tokens: one definition for NumPy and for MXNet, which is not
imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..architecture.embedding import Embedding

LEAST_LENGTH = 1e-12  # that a vector is divided by
_ACTIVATIONS = {
    'identity': lambda ops, values: values,
    'tanh': lambda ops, values: ops.tanh(values),
    'relu': lambda ops, values: ops.maximum(values, 0),
    'sigmoid': lambda ops, values: 1 / (1 + ops.exp(-values)),
}


def pooled(states: Any, valid_length: np.ndarray, pooling: str, *, ops: Any = np) -> Any:
    """One vector of the states of each text; MXNet differentiates it.

    Parameters
    ----------
    states : np.ndarray or NDArray, shape (batch, length, h)
        Finite at the padding.
    valid_length : np.ndarray, shape (batch,)
        Tokens before the padding.
    pooling : str
        One of `POOLINGS`.
    ops : module
        ``numpy``, or ``mxnet.nd`` for its arrays.

    Returns
    -------
    np.ndarray or NDArray, shape (batch, h)
    """
    if pooling == 'cls':
        return states[:, 0]
    lengths = np.asarray(valid_length, np.float32)[:, np.newaxis]
    valid = (np.arange(states.shape[1]) < lengths).astype(np.float32)

    def column(values: np.ndarray) -> Any:
        values = values[:, :, np.newaxis]
        return values if ops is np else ops.array(values, ctx=states.context)

    if pooling == 'max':
        return (states * column(valid) + column(-1e30 * (1 - valid))).max(axis=1)
    return (states * column(valid / (lengths if pooling == 'mean' else np.sqrt(lengths)))).sum(axis=1)


def dense_arrays(parameters: Mapping[str, Any], embedding: Embedding) -> list[tuple[Any, Any]]:
    """The weight, shape (units, width before), and the bias of every dense layer of an embedding."""
    names = range(len(embedding.dense))
    return [(parameters[f'dense.{i}.weight'], parameters[f'dense.{i}.bias']) for i in names]


def embedded(
    states: Any,
    valid_length: np.ndarray,
    embedding: Embedding,
    dense: Sequence[tuple[Any, Any]] = (),
    *,
    ops: Any = np,
) -> Any:
    """The embeddings of some texts.

    Parameters
    ----------
    states, valid_length, ops
        As of `pooled`.
    dense : sequence of (weight, bias)
        As `dense_arrays` gives them; arrays of the kind of `states`.

    Returns
    -------
    np.ndarray or NDArray, shape (batch, width of the embedding)
    """
    values = pooled(states, valid_length, embedding.pooling, ops=ops)
    for (_, activation), (weight, bias) in zip(embedding.dense, dense):
        values = _ACTIVATIONS[activation](ops, ops.dot(values, weight.T) + bias.reshape((1, -1)))
    return of_unit_length(values, ops=ops) if embedding.normalise else values


def of_unit_length(values: Any, *, ops: Any = np) -> Any:
    """Vectors divided by their lengths, shape (batch, width)."""
    return values / ops.maximum(ops.sqrt((values**2).sum(axis=1, keepdims=True)), LEAST_LENGTH)
