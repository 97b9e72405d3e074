"""Running a network: batches as its inputs, and the time of a pass."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np

from .inputs import INPUTS


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


def feed_of(
    batch: Any, names: Iterable[str], *, rows: slice = slice(None), ctx: Optional[mx.Context] = None
) -> Dict[str, mx.nd.NDArray]:
    """Some rows of a batch as float32 arrays on a device, by name.

    Parameters
    ----------
    batch : dataclass or mapping of name to np.ndarray
        A `text.batches.Batch`, a `tasks.features.TaskBatch`, or what `random_feed` gives.
    names : iterable of str
        Which of its arrays, in the order of the result.
    rows : slice
        All unless given.
    ctx : mx.Context, optional
        The CPU unless given.
    """
    arrays = batch if isinstance(batch, Mapping) else vars(batch)
    return {name: mx.nd.array(arrays[name][rows], ctx=ctx, dtype='float32') for name in names}


def run(block: Any, batch: Any, names: Iterable[str]) -> List[np.ndarray]:
    """The outputs of a block for a batch; `batch` and `names` as in `feed_of`, in the block's order."""
    outputs = block(*feed_of(batch, names).values())
    return [output.asnumpy() for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


# what a network of pre-training and its loss read of a batch
PRETRAINING_FIELDS = (*INPUTS, 'masked_ids', 'masked_weights', 'next_sentence_labels', 'instance_weights')


def pretraining_losses(
    model: Any, loss: Any, batch: Any, *, rows: slice = slice(None), ctx: Optional[mx.Context] = None
) -> Sequence[mx.nd.NDArray]:
    """What a loss of pre-training makes of a network's outputs for some rows of a batch.

    Parameters
    ----------
    model : OptBERTModel
        With the heads of pre-training.
    loss : PretrainingLoss
    batch, rows, ctx
        As in `feed_of`.
    """
    feed = feed_of(batch, PRETRAINING_FIELDS, rows=rows, ctx=ctx)
    outputs = model(*(feed[name] for name in INPUTS))
    labels = (feed[name] for name in PRETRAINING_FIELDS[len(INPUTS) :])
    return loss(outputs[-2], outputs[-1], *labels)


def latency_ms(
    blocks: Mapping[str, Any],
    feeds: Mapping[str, Mapping[str, np.ndarray]],
    names: Sequence[str],
    *,
    repeats: int = 15,
) -> Dict[str, float]:
    """The median time of a forward pass of each block, in milliseconds; `pass_times` says how it is taken."""
    times = pass_times(blocks, feeds, names, repeats=repeats)
    return {key: float(np.median(values)) for key, values in times.items()}


def pass_times(
    blocks: Mapping[str, Any],
    feeds: Mapping[str, Mapping[str, np.ndarray]],
    names: Sequence[str],
    *,
    repeats: int = 15,
) -> Dict[str, np.ndarray]:
    """The milliseconds of every timed forward pass of each block.

    The blocks are timed in turn. A pass that does not count comes before each timed one and fills the caches,
    which hold the weights of the block before; the first one builds the graph.

    Parameters
    ----------
    blocks, feeds : mapping of the same keys
    names : sequence of str
        The inputs' names in their order.
    """
    inputs = {key: list(feed_of(feed, names).values()) for key, feed in feeds.items()}
    times: Dict[str, List[float]] = {key: [] for key in blocks}

    def one_pass(key: str) -> None:
        outputs = blocks[key](*inputs[key])
        for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            output.wait_to_read()

    for attempt in range(repeats + 1):
        for key in blocks:
            one_pass(key)
            began = time.perf_counter()
            one_pass(key)
            times[key] += [time.perf_counter() - began] if attempt else []
    return {key: 1e3 * np.array(values) for key, values in times.items()}
