"""Rotating the heads of a network by what it computes on text; `cutting.rotation` has the change of basis."""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterable

import mxnet as mx
import numpy as np

from ..cutting.repairs import rotate_heads
from ..network.running import build_open, embedded, flat, masks_of, reading, real_tokens
from ..network.saved_model import SavedModel
from ..text.batches import Batch
from ..training.distributed import Workers


def head_moments(model: SavedModel, batches: Iterable[Batch], workers: Workers) -> Dict[str, np.ndarray]:
    """Second moments of queries, keys and head outputs, as `rotate_heads` wants them.

    Parameters
    ----------
    model : SavedModel
        Without gates.
    batches : iterable of Batch
        This worker's share of the text.
    workers : Workers
    """
    network = build_open(model, workers.context())
    sums: Dict[str, np.ndarray] = {}
    for batch in batches:
        masks, real = masks_of(batch, network), real_tokens(batch)
        stream = embedded(network, batch)
        for i, (dims, cell) in enumerate(zip(model.architecture.layers, network.encoder.transformer_cells)):
            attention = cell.attention_cell
            with reading({'attention': attention}) as read:
                after = cell(stream, masks.get(dims.a))[0]
            for name, weight, bias, width in (
                ('queries', attention.query_weight, attention.query_bias, dims.k),
                ('keys', attention.key_weight, attention.key_bias, dims.k),
            ):
                projected = mx.nd.FullyConnected(
                    stream, weight.data(), bias.data(), num_hidden=dims.a * width, flatten=False
                )
                _count(sums, f'{name}{i}', flat(projected)[real], dims.a)
            _count(sums, f'contexts{i}', flat(read['attention.output'])[real], dims.a)
            stream = after
    return {name: workers.total(value, name=f'moments.{name}') for name, value in sums.items()}


def _count(sums: Dict[str, np.ndarray], name: str, values: np.ndarray, heads: int) -> None:
    """Add the second moments of some tokens, shape (tokens, heads * width), to those of every head."""
    by_head = values.astype(np.float64).reshape(len(values), heads, -1).transpose(1, 0, 2)
    sums[name] = sums.get(name, 0) + by_head.transpose(0, 2, 1) @ by_head


def rotated(model: SavedModel, batches: Iterable[Batch], workers: Workers) -> SavedModel:
    """The same function with the units of every head ordered by strength; arguments as in `head_moments`."""
    moments = head_moments(model, batches, workers)
    return dataclasses.replace(model, parameters=rotate_heads(model.parameters, model.architecture, moments))
