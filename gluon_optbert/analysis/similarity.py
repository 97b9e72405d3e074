"""What networks make of the same text, layer by layer: the states of the residual stream, and linear CKA
between them.

"Undivided Attention" compares what self-attention blocks learn with and without intermediate blocks behind
them. Its abstract says no more than "self-attention representations"; here they are the stream behind the
attention block, its skip connection and LayerNorm included: what the next block reads, and in a layer with f
= 0 the output of the layer itself."""

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

    With X (n, p) and Y (n, q) of centred columns it is ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), Frobenius norms. The products
    and the column sums are sums over examples, so minibatches add up to the exact value, in float64, and what
    is kept has the size of the widths, whatever n is: (sum of p) × (sum of q) numbers, 0.8 GB for thirteen
    states of 768 units with thirteen. The mean over minibatches of the unbiased estimator (Nguyen et al.,
    2021) would need less, but it depends on how they are cut. Exact, it is that of the sample: too high where
    n is not much larger than the widths."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> None:
        """Count a minibatch in.

        Parameters
        ----------
        first, second : sequence of np.ndarray, shape (examples, width)
            The states of the two networks for the same examples; widths differ as they like.
        """
        states = [[np.asarray(state, dtype=np.float64) for state in one] for one in (first, second)]
        x, y = (np.concatenate(one, axis=1) for one in states)
        found = [
            x.sum(axis=0),
            y.sum(axis=0),
            x.T @ y,
            *(state.T @ state for state in itertools.chain(*states)),
        ]
        if not self.count:
            self._widths = [[state.shape[1] for state in one] for one in states]
            self._sums = found
        else:
            for held, value in zip(self._sums, found):
                held += value
        self.count += len(x)

    def value(self) -> np.ndarray:
        """The similarities, shape (states of the first, states of the second), from 0 to 1.

        A state that is the same for all examples is similar to nothing: not a number.
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
        Between the streams behind the attention blocks.
    layers : np.ndarray, shape (1 + layers of the first, 1 + layers of the second)
        Between the outputs of the layers; number 0 is the embedding, as it enters the first.
    tokens : int
        The examples.
    """

    attention: np.ndarray
    layers: np.ndarray
    tokens: int


def compare(first: OptBERTModel, second: OptBERTModel, sample: Sample, *, batch_size: int = 16) -> Similarity:
    """How alike the states of two networks are, over all tokens of a sample but the padding."""
    attention, layers = LinearCKA(), LinearCKA()
    for batch in sorted_batches(sample.features, batch_size):
        one, other = ([state[real(batch)] for state in stream(network, batch)] for network in (first, second))
        attention.add(one[1::2], other[1::2])
        layers.add(one[::2], other[::2])
    return Similarity(attention.value(), layers.value(), layers.count)
