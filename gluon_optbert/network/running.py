"""Networks as they are run: their inputs and outputs by name, random feeds, and how long a pass takes."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Sequence

import mxnet as mx
import numpy as np

INPUTS = {
    'input_ids': ('batch', 'length'),
    'token_types': ('batch', 'length'),
    'valid_length': ('batch',),
    'masked_positions': ('batch', 'masked'),
}
OUTPUTS = {
    'encoded': ('batch', 'length', 'h'),
    'pooled': ('batch', 'h'),
    'next_sentence_scores': ('batch', 2),
    'masked_scores': ('batch', 'masked', 'vocab_size'),
}


def random_feed(architecture: Any, *, batch: int, length: int, seed: int = 0) -> Dict[str, np.ndarray]:
    """Random inputs of a shape, with padding in every second row."""
    generator = np.random.RandomState(seed)
    valid = np.full(batch, length)
    valid[1::2] = np.maximum(2, length // 2)
    return {
        'input_ids': generator.randint(0, architecture.vocab_size, (batch, length)),
        'token_types': generator.randint(0, architecture.token_types, (batch, length)),
        'valid_length': valid,
        'masked_positions': generator.randint(0, 2, (batch, 3)),
    }


def run(block: Any, feed: Mapping[str, np.ndarray], names: Sequence[str]) -> List[np.ndarray]:
    """What a block makes of inputs given by name."""
    outputs = block(*(mx.nd.array(feed[name], dtype='float32') for name in names))
    return [output.asnumpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


def latency_ms(
    blocks: Mapping[str, Any],
    feeds: Mapping[str, Mapping[str, np.ndarray]],
    names: Sequence[str],
    *,
    repeats: int = 15,
) -> Dict[str, float]:
    """The median time of a forward pass of each block in milliseconds, the blocks taken in turn, each with
    warm caches.

    Parameters
    ----------
    blocks, feeds : mapping of the same keys
    names : sequence of str
        The inputs' names in their order.
    """
    feeds = {key: [mx.nd.array(feed[name], dtype='float32') for name in names] for key, feed in feeds.items()}
    times: Dict[str, List[float]] = {key: [] for key in blocks}

    def one_pass(key: str) -> None:
        outputs = blocks[key](*feeds[key])
        for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            output.wait_to_read()

    for attempt in range(repeats + 1):
        for key in blocks:
            one_pass(
                key
            )  # fills the caches, which hold the weights of the network before; the first builds the graph
            began = time.perf_counter()
            one_pass(key)
            times[key] += [time.perf_counter() - began] if attempt else []
    return {key: 1e3 * float(np.median(values)) for key, values in times.items()}
