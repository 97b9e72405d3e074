"""Batches of sequences with similar lengths, in few shapes.

A sequence is padded to the width of its bucket. Widths are a multiple of 4 up to 32, of 8 up to 64, of 16 up
to 128, and of 32 beyond. Rows of a batch are a power of two, or the batch size. Engines plan their work for
every new shape, so few shapes save time."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

PASS_COST = 32  # tokens whose products take as long as a pass takes to read the weights, roughly
_STEPS = ((32, 4), (64, 8), (128, 16), (1 << 30, 32))  # up to this length, multiples of that


def bucket_width(length: int, most: int) -> int:
    """The width that a sequence of `length` tokens is padded to, at most `most`."""
    step = next(step for end, step in _STEPS if length <= end)
    return min(-(-length // step) * step, most)


def length_buckets(lengths: np.ndarray, batch_size: int, most: int) -> List[Tuple[np.ndarray, int]]:
    """The rows of every batch and its width, the shortest rows first.

    Of all ways to cut the sorted rows into batches, the one with the fewest tokens, padding and `PASS_COST`
    for each batch included.

    Parameters
    ----------
    lengths : np.ndarray of int, shape (rows,)
    batch_size : int
        The most rows of a batch.
    most : int
        The largest width: the positions of the network.
    """
    order = np.argsort(lengths, kind='stable')
    widths = [bucket_width(int(length), most) for length in lengths[order]]
    sizes = [*(2**power for power in range(batch_size.bit_length()) if 2**power < batch_size), batch_size]
    best, last = [0], [0]  # of the first so many rows: the cost, and the size of the last batch
    for end, width in enumerate(widths, 1):
        cost, size = min(
            (best[end - size] + size * width + PASS_COST, -size) for size in sizes if size <= end
        )
        best.append(cost)
        last.append(-size)
    batches, end = [], len(order)
    while end:
        batches.append((order[end - last[end] : end], widths[end - 1]))
        end -= last[end]
    return batches[::-1]
