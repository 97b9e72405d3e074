"""Learning from a teacher: its scores at the masked places, and the states of its layers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import HybridBlock

from ..network.inputs import INPUTS, TOKEN_INPUTS
from ..network.model import OptBERTModel
from ..network.running import PRETRAINING_FIELDS, feed_of
from ..runs.progress import Progress
from ..text.batches import Batch, evaluation_batches
from ..text.shards import Shards
from .distributed import Workers
from .mlm_nsp import Pretraining
from .objective import Phase
from .teacher import Match, Teacher, TeacherStates


@dataclasses.dataclass(frozen=True)
class Weights:
    """What the parts of the loss are multiplied by.

    Parameters
    ----------
    labels : float
        Of MLM and of NSP.
    scores : float
        Of the divergence of the scores over the vocabulary.
    states : float
        Of the squared difference of the states.
    temperature : float
        What scores are divided by before the softmax.
    embeddings : float
        Of the squared difference between the similarities of sentences; see `similarity_difference`.
    cosines : float
        Of the cosine distance between the two embeddings of a sentence; see `cosine_distance`.
    """

    labels: float = 1.0
    scores: float = 1.0
    states: float = 1.0
    temperature: float = 2.0
    embeddings: float = 0.0
    cosines: float = 0.0

    @property
    def same_width(self) -> bool:
        """Whether hidden units are compared one by one, so that the teacher must have the student's."""
        return self.states > 0 or self.cosines > 0

    @property
    def need_heads(self) -> bool:
        """Whether the heads of pre-training are learnt from or trained."""
        return self.labels > 0 or self.scores > 0


class ScoreDivergence(HybridBlock):
    """T² times the Kullback-Leibler divergence of two predictions (Hinton et al., 2015, section 2).

    Parameters
    ----------
    temperature : float
        T: what the scores are divided by.

    Inputs:
        - **scores**, **wanted** : the student's and the teacher's, shape (batch, masked, vocab_size)
        - **weights** : shape (batch, masked)

    Outputs:
        - **divergence** : KL(teacher || student), summed, shape (1,)
    """

    def __init__(self, temperature: float, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._temperature = temperature

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


def similarity_difference(
    student: mx.nd.NDArray, teacher: mx.nd.NDArray, valid: mx.nd.NDArray, weights: mx.nd.NDArray
) -> mx.nd.NDArray:
    """How far two networks differ in which sentences they take for similar, summed over the sentences.

    The embedding of a sentence is the mean of its tokens' states. Of every sentence it is the mean, over the
    other sentences, of the squared difference between the student's cosine and the teacher's.

    Parameters
    ----------
    student, teacher : NDArray, shape (batch, length, h)
        The states of the last layer, zero at the padding; h may differ.
    valid : NDArray, shape (batch,)
        Tokens before the padding.
    weights : NDArray, shape (batch,)
        1, or 0 for an instance that fills a batch up.

    Returns
    -------
    NDArray, shape (1,)
    """

    def cosines(states: mx.nd.NDArray) -> mx.nd.NDArray:
        means = mx.nd.broadcast_div(states.sum(axis=1), valid.expand_dims(1))
        directions = mx.nd.L2Normalization(means, mode='instance')
        return mx.nd.dot(directions, directions, transpose_b=True)

    gap = mx.nd.square(cosines(student) - cosines(teacher))  # zero between a sentence and itself
    pairs = mx.nd.broadcast_mul(weights.expand_dims(0), weights.expand_dims(1))
    return mx.nd.sum(gap * pairs) / mx.nd.maximum(mx.nd.sum(weights) - 1, 1)


def cosine_distance(
    student: mx.nd.NDArray, teacher: mx.nd.NDArray, units: mx.nd.NDArray, weights: mx.nd.NDArray
) -> mx.nd.NDArray:
    """One minus the cosine between the embeddings of a sentence in both networks, summed over the sentences.

    Parameters
    ----------
    student, teacher : NDArray, shape (batch, length, h)
        As in `similarity_difference`.
    units : NDArray of int, shape (h of the student,)
        The teacher's hidden units that the student has.
    weights : NDArray, shape (batch,)

    Returns
    -------
    NDArray, shape (1,)
    """
    own, wanted = (
        mx.nd.L2Normalization(states.sum(axis=1), mode='instance')
        for states in (student, mx.nd.take(teacher, units, axis=-1))
    )
    return mx.nd.sum((1 - (own * wanted).sum(axis=1)) * weights)


def check_pairs(batch_size: int, accumulate: int, workers: int) -> None:
    """Refuse passes of one sentence, which has no other to be compared with.

    Parameters
    ----------
    batch_size : int
        Over all workers.
    accumulate : int
        Passes of a worker for its share.
    workers : int

    Raises
    ------
    ValueError
    """
    if batch_size // (accumulate * workers) < 2:
        raise ValueError(
            'similarities are compared between the sentences of one pass of one worker, and '
            f'{workers} workers with --accumulate {accumulate} and --batch-size {batch_size} have one '
            'sentence in a pass; take a larger batch, or --embedding-weight 0'
        )


class Taught(Pretraining):
    """What learning from a teacher has in common.

    Parameters
    ----------
    model : OptBERTModel
        The student; its settings have ``output_all_encodings``.
    workers : Workers
    shards : Shards
        To train on; their vocabulary is the teacher's.
    heldout : Shards, optional
        To measure on.
    teacher : Teacher
    match : Match
    weights : Weights
    phase : Phase
    """

    def __init__(
        self,
        model: OptBERTModel,
        workers: Workers,
        shards: Shards,
        heldout: Optional[Shards],
        *,
        teacher: Teacher,
        match: Match,
        weights: Weights,
        phase: Phase,
    ):
        super().__init__(model, workers, shards, heldout)
        self._teacher = teacher
        of_embeddings = {'embeddings': weights.embeddings, 'cosine_distance': weights.cosines}
        self._of_embeddings = {name: weight for name, weight in of_embeddings.items() if weight > 0}
        self._units = mx.nd.array(match.units, dtype='int32', ctx=workers.context())
        self._states: Optional[TeacherStates] = None
        if weights.states > 0:
            batches = self.batches(phase, phase.first_batch)
            self._states = TeacherStates(teacher, match, next(batches), workers, phase.accumulate)
            batches.close()

    def _embeddings(
        self, student: List[mx.nd.NDArray], teacher: List[mx.nd.NDArray], feed: Mapping[str, mx.nd.NDArray]
    ) -> Tuple[mx.nd.NDArray, ...]:
        """The parts about embeddings that have a weight."""
        last, weights = (student[-1], teacher[-1]), feed['instance_weights']
        parts = {
            'embeddings': lambda: similarity_difference(*last, feed['valid_length'], weights),
            'cosine_distance': lambda: cosine_distance(*last, self._units, weights),
        }
        return tuple(parts[name]() for name in self._of_embeddings)


class Distillation(Taught):
    """MLM plus NSP, the teacher's scores, and its states.

    The states' part is the mean squared difference at the units that the student has, over the variance of
    the teacher's states there, summed over the teacher's layers. The variances are measured on the first
    batch of the phase. A part whose weight is zero is not computed: without `scores` the teacher needs no
    heads, and without `states` it may have another width. `similarity_difference` and `cosine_distance` are
    further parts, if they have a weight. The parameters are those of `Taught`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args, weights=weights, **more)
        learnt = {'scores': weights.scores, 'states': weights.states}
        learnt = {name: weight for name, weight in learnt.items() if weight > 0}
        learnt.update(self._of_embeddings)
        self.losses = ('mlm', 'nsp', *learnt)
        self.weights = (weights.labels, weights.labels, *learnt.values())
        self._divergence: Optional[ScoreDivergence] = None
        if weights.scores > 0:
            self._divergence = ScoreDivergence(weights.temperature)
            self._divergence.hybridize(static_alloc=True)

    def loss_sums(self, batch: Batch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, PRETRAINING_FIELDS, rows=rows, ctx=self.workers.context())
        states, scores = self._teacher.outputs(batch, rows)
        outputs = self.model(*(feed[name] for name in INPUTS))
        labels = (feed[name] for name in PRETRAINING_FIELDS[len(INPUTS) :])
        parts = tuple(self._loss(outputs[-2], outputs[-1], *labels))
        if self._divergence is not None:
            parts += (self._divergence(outputs[-1], scores, feed['masked_weights']),)
        if self._states is not None:
            parts += (self._states.difference(outputs[0], states, feed['instance_weights']),)
        return parts + self._embeddings(outputs[0], states, feed)

    def totals(self, batch: Batch) -> Tuple[float, ...]:
        of = {'mlm': batch.masked_total, 'scores': batch.masked_total, 'states': batch.token_total}
        return tuple(of.get(name, batch.instance_total) for name in self.losses)


class StateMatching(Taught):
    """The states of a teacher alone, as in `Distillation`, and its embeddings; each if it has a weight.

    Neither network needs the heads of pre-training. Held-out data are measured by the same loss: the parts,
    each with its weight. The parameters are those of `Taught`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args, weights=weights, **more)
        learnt = {**({'states': weights.states} if weights.states > 0 else {}), **self._of_embeddings}
        self.losses, self.weights = tuple(learnt), tuple(learnt.values())

    @classmethod
    def for_gates(cls, *args: Any, **more: Any) -> StateMatching:
        """The states alone, unweighted, as gates are trained on them."""
        return cls(*args, None, weights=Weights(labels=0.0, scores=0.0), **more)

    def loss_sums(self, batch: Batch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        fields = (*TOKEN_INPUTS, 'instance_weights')
        feed = feed_of(batch, fields, rows=rows, ctx=self.workers.context())
        states, _ = self._teacher.outputs(batch, rows)
        student = self.model(*(feed[name] for name in TOKEN_INPUTS))[0]
        parts = self._embeddings(student, states, feed)
        if self._states is None:
            return parts
        return (self._states.difference(student, states, feed['instance_weights']), *parts)

    def totals(self, batch: Batch) -> Tuple[float, ...]:
        return tuple(batch.token_total if name == 'states' else batch.instance_total for name in self.losses)

    def evaluate(self, phase: Phase) -> Optional[Dict[str, float]]:
        if self._heldout is None:
            return None
        workers, count = self.workers, len(self.losses)
        sums = np.zeros(count + 2)  # of the parts, and how many tokens and instances they are of
        for batch in evaluation_batches(
            self._heldout,
            batch_size=phase.pass_size,
            rank=workers.rank,
            workers=workers.size,
            limit=phase.evaluation_limit,
        ):
            with autograd.predict_mode():
                sums[:count] += [float(part.asscalar()) for part in self.loss_sums(batch, slice(None))]
            real = batch.instance_weights
            sums[count:] += (batch.valid_length * real).sum(), real.sum()
        totals = workers.sum(sums, name='evaluation')
        tokens, instances = totals[count:]
        numbers = (tokens if name == 'states' else instances for name in self.losses)
        parts = zip(self.weights, totals, numbers)
        return {'state_difference': sum(weight * total / max(number, 1.0) for weight, total, number in parts)}

    def remember(self, progress: Progress, measured: Mapping[str, float], step: int) -> Progress:
        best, value = progress.best_state_difference, measured['state_difference']
        progress = progress.updated(state_difference=value)
        if value < (math.inf if best is None else best):
            progress = progress.updated(best_state_difference=value, best_step=step)
        return progress

    def loss_of(self, measured: Mapping[str, float]) -> float:
        return measured['state_difference']

    def best_of(self, progress: Progress) -> Optional[float]:
        return progress.best_state_difference
