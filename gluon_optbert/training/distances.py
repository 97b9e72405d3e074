"""Distances between two networks: their scores, their states, and their embeddings of sentences."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock

from ..architecture.embedding import Embedding
from ..network.embedding import pooled
from ..network.encoder import attention_masks, padding
from .distributed import Workers


class ScoreDivergence(HybridBlock):
    """T² times the Kullback-Leibler divergence of two predictions at the temperature T (Hinton et al., 2015,
    section 2).

    Inputs:
        - **scores**, **wanted** : the student's and the teacher's, shape (batch, masked, vocab_size)
        - **weights** : shape (batch, masked)

    Outputs:
        - **divergence** : KL(teacher || student), summed, shape (1,)
    """

    def __init__(self, temperature: float, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._temperature = temperature
        self.hybridize(static_alloc=True)

    def hybrid_forward(self, F, scores, wanted, weights):
        # MXNet's softmax is slow with a temperature of its own, and so are sums over the last axis.
        student = F.log_softmax(scores / self._temperature, axis=-1)
        wanted = wanted / self._temperature
        teacher, probabilities = F.log_softmax(wanted, axis=-1), F.softmax(wanted, axis=-1)
        gap = F.BlockGrad(teacher) - student
        flat = [F.reshape(values, shape=(-3, -2)) for values in (F.BlockGrad(probabilities), gap)]
        divergence = F.batch_dot(F.expand_dims(flat[0], axis=1), F.expand_dims(flat[1], axis=2))
        return F.sum(F.reshape(divergence, shape=(-1,)) * F.reshape(weights, shape=(-1,))) * (
            self._temperature**2
        )


class StateDifference(HybridBlock):
    """The squared difference of two states on the units that the student has.

    Inputs:
        - **student** : shape (batch, length, h of the student)
        - **teacher** : shape (batch, length, h of the teacher)
        - **units** : the teacher's units that the student has, shape (h of the student,)
        - **weights** : how often each instance counts, shape (batch,)

    Outputs:
        - **difference** : summed, shape (1,)
    """

    def hybrid_forward(self, F, student, teacher, units, weights):
        gap = F.reshape(student - F.take(teacher, units, axis=-1), shape=(0, 1, -1))
        squares = F.batch_dot(gap, gap, transpose_b=True)  # faster than a sum of squares
        return F.sum(F.reshape(squares, shape=(-1,)) * weights)


def directions_of(states: mx.nd.NDArray, valid_length: np.ndarray, embedding: Embedding) -> mx.nd.NDArray:
    """The embeddings of sentences, as they are pooled before any dense layer, of length 1, shape (batch, h);
    from the states of the last layer, (batch, length, h), and the tokens before the padding, (batch,).
    """
    vectors = pooled(states, valid_length, embedding.pooling, ops=mx.nd)
    return mx.nd.L2Normalization(vectors, mode='instance')


def similarity_difference(
    student: mx.nd.NDArray, teacher: mx.nd.NDArray, weights: mx.nd.NDArray, workers: Workers
) -> mx.nd.NDArray:
    """Difference of two networks in the sentences that they take for similar, summed over the sentences.

    Of every sentence of this worker it is the mean, over all other sentences in the pass of all workers, of
    the squared difference between the student's cosine and the teacher's; shape (1,).

    Parameters
    ----------
    student, teacher : NDArray, shape (batch, h)
        Embeddings of length 1; h may differ.
    weights : NDArray, shape (batch,)
        1, or 0 for an instance that fills a batch up.
    """
    all_weights = workers.gather(weights, name='weights')
    own, wanted = (
        mx.nd.dot(one, workers.gather(one, name=name), transpose_b=True)
        for one, name in ((student, 'student'), (teacher, 'teacher'))
    )
    gap = mx.nd.square(own - wanted)  # zero between a sentence and itself
    pairs = mx.nd.broadcast_mul(weights.expand_dims(1), all_weights.expand_dims(0))
    total = mx.nd.sum(gap * pairs) / mx.nd.maximum(mx.nd.sum(all_weights) - 1, 1)
    return 2 * total - mx.nd.BlockGrad(total)  # a pair counts twice, and has its gradient in either sentence


def cosine_distance(
    student: mx.nd.NDArray, teacher: mx.nd.NDArray, units: mx.nd.NDArray, weights: mx.nd.NDArray
) -> mx.nd.NDArray:
    """One minus the cosine between the embeddings of a sentence in both networks, summed over the sentences,
    shape (1,); units, (h of the student,), are those of the teacher that the student has, and all else is as
    in `similarity_difference`.
    """
    wanted = mx.nd.L2Normalization(mx.nd.take(teacher, units, axis=-1), mode='instance')
    return mx.nd.sum((1 - (student * wanted).sum(axis=1)) * weights)


class RelationDivergence:
    """Divergence of the relations between tokens (Wang et al., 2021, MiniLMv2, section 3).

    A relation is the softmax of the scaled inner products of queries with queries, of keys with keys, or of
    values with values. The units of all heads are one row, which is cut anew into as many relation heads as
    the teacher's last layer has heads; where they do not divide, zeros fill the row up. So any widths and
    numbers of heads compare.
    """

    def __init__(self, heads: int):
        self._heads, self._divergence = heads, ScoreDivergence(1.0)

    def __call__(
        self,
        student: Sequence[mx.nd.NDArray],
        teacher: Sequence[mx.nd.NDArray],
        valid: mx.nd.NDArray,
        weights: mx.nd.NDArray,
    ) -> mx.nd.NDArray:
        """KL(teacher || student), summed over the tokens, the mean over heads and the three relations; shape
        (1,).

        Parameters
        ----------
        student, teacher : sequence of NDArray, shape (batch, length, units)
            Queries, keys and values.
        valid, weights : NDArray, shape (batch,)
        """
        heads, (batch, length, _) = self._heads, student[0].shape
        steps = mx.nd.arange(length, ctx=valid.context)
        mask = attention_masks(mx.nd, steps, valid, [heads])[heads]  # (batch * heads, length, length)
        real = mx.nd.broadcast_mul(1 - padding(mx.nd, steps, valid), weights.expand_dims(1))
        real = mx.nd.repeat(real, heads, axis=0)  # (batch * heads, length)
        pairs = [[self._scores(one, batch, length) + mask for one in both] for both in zip(student, teacher)]
        total = sum(self._divergence(*scores, real) for scores in pairs)
        return total / (heads * len(pairs))

    def _scores(self, units: mx.nd.NDArray, batch: int, length: int) -> mx.nd.NDArray:
        """Scaled inner products of the tokens, shape (batch * heads, length, length)."""
        width = units.shape[-1]
        missing = -width % self._heads
        if missing:
            units = mx.nd.concat(units, mx.nd.zeros((batch, length, missing), ctx=units.context), dim=2)
        rows = units.reshape((batch, length, self._heads, -1)).transpose((0, 2, 1, 3)).reshape((-3, 0, 0))
        return mx.nd.batch_dot(rows, rows, transpose_b=True) * (width / self._heads) ** -0.5


def check_pairs(sentences: int, accumulate: int) -> None:
    """Refuse passes of one sentence of a batch of so many, over all workers, for it has no other to be
    compared with; ValueError.
    """
    if sentences // accumulate < 2:
        raise ValueError(
            'similarities are compared between the sentences of one pass, and with --accumulate '
            f'{accumulate} a batch of {sentences} has one sentence in a pass; take a larger batch, or '
            '--teacher-weights embeddings=0'
        )
