"""Linear CKA between the states of two networks for the same text, layer by layer.

"Undivided Attention" compares self-attention blocks with and without intermediate blocks after them. Its
abstract says only "self-attention representations". Here they are the residual stream after the attention
block, its skip connection and its LayerNorm: the next block's input, and the layer's output if f = 0."""

from __future__ import annotations

import dataclasses
import itertools
from typing import List, Sequence, Tuple

import numpy as np

from ..network.model import OptBERTModel
from ..tasks.features import sorted_batches
from .sample import Sample, real, stream


class LinearCKA:
    """Linear CKA between every state of one network and every state of another (Kornblith et al., 2019,
    section 3).

    For X (n, p) and Y (n, q) with centred columns it is ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), with Frobenius norms. The
    products and column sums are sums over examples. Summed over minibatches in float64, they give the exact
    value. The memory does not depend on n: it is (sum of p) × (sum of q) numbers, 0.8 GB for thirteen states
    of 768 units with thirteen. The mean of the unbiased estimator over minibatches (Nguyen et al., 2021)
    would need less, but depends on the minibatches. The exact value is biased: too high unless n is much
    larger than the widths."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> None:
        """Add a minibatch.

        Parameters
        ----------
        first, second : sequence of np.ndarray, shape (examples, width)
            The states of the two networks for the same examples; the widths may differ.
        """
        states = [[np.asarray(state, dtype=np.float64) for state in one] for one in (first, second)]
        x, y = (np.concatenate(one, axis=1) for one in states)
        sums = [
            x.sum(axis=0),
            y.sum(axis=0),
            x.T @ y,
            *(state.T @ state for state in itertools.chain(*states)),
        ]
        if not self.count:
            self._widths = [[state.shape[1] for state in one] for one in states]
            self._sums = sums
        else:
            for total, value in zip(self._sums, sums):
                total += value
        self.count += len(x)

    def value(self) -> np.ndarray:
        """The similarities, shape (states of the first, states of the second), from 0 to 1.

        It is not a number for a state that is the same for all examples.
        """
        sums, crossed, own = self._sums[:2], self._sums[2], iter(self._sums[3:])
        borders = [np.cumsum([0, *widths]) for widths in self._widths]
        spread: Tuple[List[float], List[float]] = ([], [])
        for side in range(2):
            for start, end in zip(borders[side], borders[side][1:]):
                part, moment = sums[side][start:end], next(own)
                norm = np.linalg.norm(moment - np.outer(part, part) / self.count)
                spread[side].append(norm if norm > 1e-9 * np.linalg.norm(moment) else np.nan)
        shared = [
            np.square(crossed[start:end] - np.outer(sums[0][start:end], sums[1]) / self.count).sum(axis=0)
            for start, end in zip(borders[0], borders[0][1:])
        ]
        return np.add.reduceat(np.array(shared), borders[1][:-1], axis=1) / np.outer(*spread)


@dataclasses.dataclass(frozen=True)
class Similarity:
    """Linear CKA between two networks.

    Parameters
    ----------
    attention : np.ndarray, shape (layers of the first, layers of the second)
        Between the streams after the attention blocks.
    layers : np.ndarray, shape (1 + layers of the first, 1 + layers of the second)
        Between the outputs of the layers; number 0 is the input of the first layer.
    tokens : int
        How many were compared.
    """

    attention: np.ndarray
    layers: np.ndarray
    tokens: int


def compare(first: OptBERTModel, second: OptBERTModel, sample: Sample, *, batch_size: int = 16) -> Similarity:
    """The similarity of two networks over all tokens of a sample, without padding."""
    attention, layers = LinearCKA(), LinearCKA()
    for batch in sorted_batches(sample.features, batch_size):
        one, other = ([state[real(batch)] for state in stream(network, batch)] for network in (first, second))
        attention.add(one[1::2], other[1::2])
        layers.add(one[::2], other[::2])
    return Similarity(attention.value(), layers.value(), layers.count)
