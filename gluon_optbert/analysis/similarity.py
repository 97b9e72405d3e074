"""Linear CKA between the states of two networks for the same text, layer by layer.

"Undivided Attention" compares self-attention blocks with and without intermediate blocks after them. Its
abstract says only "self-attention representations". Here they are the residual stream after the attention
block, its skip connection and its LayerNorm: the next block's input, and the layer's output if f = 0."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from ..network.model import OptBERTModel
from ..tasks.features import sorted_batches
from .sample import BEHIND, Sample, residuals


class LinearCKA:
    """Linear CKA between every state of one network and every state of another (Kornblith et al., 2019,
    section 3).

    For X (n, p) and Y (n, q) with centred columns it is ‖XᵀY‖² / (‖XᵀX‖ ‖YᵀY‖), with Frobenius norms. The
    products and column sums are sums over examples. Summed over minibatches in float64, they give the exact
    value. The memory does not depend on n: it is (sum of p) × (sum of q) + sum of p² + sum of q² numbers,
    0.9 GB for thirteen states of 768 units with thirteen, and one product p × q more while a minibatch is
    added. The mean of the unbiased estimator over minibatches (Nguyen et al., 2021) would need less, but
    depends on the minibatches. The exact value is biased: too high unless n is much larger than the
    widths."""

    def __init__(self) -> None:
        self.count = 0
        self._states = (0, 0)
        self._sums: list[np.ndarray] = []

    def add(self, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> None:
        """Add a minibatch: the states of the two networks for the same examples, each of shape (examples,
        width).
        """
        states = [np.asarray(state, dtype=np.float64) for state in (*first, *second)]
        crossed = itertools.product(states[: len(first)], states[len(first) :])
        values = itertools.chain(
            (state.sum(axis=0) for state in states),
            (x.T @ y for x, y in itertools.chain(zip(states, states), crossed)),
        )
        if not self.count:
            self._states, self._sums = (len(first), len(second)), list(values)
        else:
            for total, value in zip(self._sums, values):  # one at a time, for all of them are large
                total += value
        self.count += len(first[0])

    def value(self) -> np.ndarray:
        """The similarities, shape (states of the first, states of the second), from 0 to 1.

        It is not a number for a state that is the same for all examples, and ValueError if none was added.
        """
        if not self.count:
            raise ValueError('no example was added, so no similarity is defined; add a minibatch first')
        count, both = self._states[0], sum(self._states)
        sums, own, crossed = self._sums[:both], self._sums[both : 2 * both], self._sums[2 * both :]
        spread = []
        for total, moment in zip(sums, own):
            norm = self._norm(moment, total, total)
            spread.append(norm if norm > 1e-9 * np.linalg.norm(moment) else np.nan)
        pairs = itertools.product(sums[:count], sums[count:])
        shared = [self._norm(moment, *pair) ** 2 for moment, pair in zip(crossed, pairs)]
        return np.reshape(shared, self._states) / np.outer(spread[:count], spread[count:])

    def _norm(self, moment: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
        """The Frobenius norm of the product of two states with centred columns, from that of the states as
        they are and their column sums.
        """
        return float(np.linalg.norm(moment - np.outer(first, second) / self.count))


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
    """The similarity of two networks over all tokens of a sample, without padding.

    The sums behind attention and behind layers are kept at the same time: 1.7 GB for two networks of twelve
    layers of 768 units.
    """
    attention, layers = LinearCKA(), LinearCKA()
    for batch in sorted_batches(sample.features, batch_size):
        real = np.arange(batch.input_ids.shape[1]) < batch.valid_length[:, np.newaxis]  # no padding
        one, other = ([state[real] for state in residuals(network, batch)] for network in (first, second))
        for kind, states in ((attention, BEHIND['attention']), (layers, BEHIND['layer'])):
            kind.add(one[states], other[states])
    return Similarity(attention.value(), layers.value(), layers.count)
