"""Learning from a teacher: its scores, the states of its layers, and its embeddings of sentences."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import HybridBlock

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING
from ..network.inputs import INPUTS, TOKEN_INPUTS
from ..network.model import build
from ..network.running import PRETRAINING_FIELDS, feed_of
from ..network.saved_model import SavedModel, check_folded
from ..network.settings import NetworkSettings
from ..runs.progress import Progress
from ..text.batches import Batch, evaluation_batches
from ..text.tokenizer import vocabulary_hash
from .distributed import Workers
from .objective import Objective, Phase
from .pretrain import Pretraining

# Settings of a network whose states alone are learnt.
OF_STATES = {'output_all_encodings': True, 'use_decoder': False, 'use_classifier': False}


class Teacher:
    """A network that is learnt from; it is not trained, and has no dropout.

    Parameters
    ----------
    saved : SavedModel
        With the heads of pre-training or that of a task, and without gates.
    workers : Workers
    precision : str
        Of the encoder's matrix products.
    heads : bool
        Whether it computes scores; states alone need no heads.
    """

    def __init__(
        self, saved: SavedModel, workers: Workers, *, precision: str = 'float32', heads: bool = True
    ):
        self.architecture = saved.architecture
        settings = NetworkSettings(
            trainable=False,
            precision=precision,
            output_all_encodings=True,
            use_decoder=heads,
            use_classifier=heads,
            head=saved.head,
        )
        self._inputs = INPUTS if heads and saved.head == PRETRAINING else TOKEN_INPUTS
        self._model = build(saved.architecture, saved.parameters, settings, ctx=workers.context())
        self._ctx = workers.context()

    def outputs(self, batch: Batch, rows: slice) -> tuple[list[mx.nd.NDArray], mx.nd.NDArray]:
        """The states after every layer, shape (batch, length, h), and the scores: at the masked places, shape
        (batch, masked, vocab_size), or those of a task. Without heads the latter mean nothing.
        """
        feed = feed_of(batch, self._inputs, rows=rows, ctx=self._ctx)
        with autograd.pause(train_mode=False):
            outputs = self._model(*feed.values())
        return outputs[0], outputs[-1]


def check_teacher(
    teacher: SavedModel, student: SavedModel, *, states: bool, heads: bool = True, source: str
) -> None:
    """Refuse a network that cannot teach another.

    Parameters
    ----------
    teacher, student : SavedModel
        The student before it is cut.
    states : bool
        Whether its states are learnt as well, or its embeddings unit by unit.
    heads : bool
        Whether its scores are learnt as well, which need its heads of pre-training.
    source : str
        Where the teacher was read.

    Raises
    ------
    ValueError
        If it has another vocabulary, or gates; or if states are learnt, another hidden size or number of
        layers.
    """
    if vocabulary_hash(teacher.vocabulary) != vocabulary_hash(student.vocabulary):
        raise ValueError(
            f'{source}: the teacher and the network that it is to teach differ in their vocabularies'
        )
    check_folded(teacher, f'the teacher {source}')
    if heads and (teacher.head != PRETRAINING or teacher.progress.untrained):
        raise ValueError(
            f'{source}: the teacher lacks trained heads of pre-training; learn from its states alone, with '
            '--teacher-weights scores=0'
        )
    sizes = [(saved.architecture.h, len(saved.architecture.layers)) for saved in (teacher, student)]
    if states and sizes[0] != sizes[1]:
        raise ValueError(
            f'{source}: the teacher has h = {sizes[0][0]} and {sizes[0][1]} layers, the network that it is '
            f'to teach h = {sizes[1][0]} and {sizes[1][1]}; their states cannot be compared, so give '
            '--teacher-weights states=0,cosines=0'
        )


@dataclasses.dataclass(frozen=True)
class Match:
    """The states of a student beside those of its teacher.

    Parameters
    ----------
    units : np.ndarray of int, shape (h of the student,)
        The teacher's hidden units that the student has, in order.
    layers : tuple of int
        The student's layer for every layer of the teacher.
    """

    units: np.ndarray
    layers: tuple[int, ...]

    @classmethod
    def whole(cls, architecture: Architecture) -> Match:
        """The match of a network that has all units and layers of the teacher."""
        return cls(np.arange(architecture.h), tuple(range(len(architecture.layers))))

    @classmethod
    def after(cls, units: np.ndarray, stayed: Sequence[int], teacher_layers: int) -> Match:
        """The match of a network that was cut from the teacher; a layer that was dropped belongs to the
        nearest that stayed, of two the earlier.

        Parameters
        ----------
        units : np.ndarray of int
            The hidden units that stayed.
        stayed : sequence of int
            The layers that stayed.
        teacher_layers : int
        """
        nearest = [int(np.argmin(np.abs(np.asarray(stayed) - i))) for i in range(teacher_layers)]
        return cls(np.asarray(units), tuple(nearest))


@dataclasses.dataclass(frozen=True)
class Weights:
    """Factors of the parts of the loss.

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


class TeacherStates:
    """The states of a teacher and what of them a student has.

    Parameters
    ----------
    teacher : Teacher
    match : Match
    batch : Batch
        This worker's share of the batch on which the variances of the teacher's states are measured.
    workers : Workers
    passes : int
        That the share is split into.
    """

    def __init__(self, teacher: Teacher, match: Match, batch: Batch, workers: Workers, passes: int = 1):
        self._match, self._ctx = match, workers.context()
        self._units = mx.nd.array(match.units, dtype='int32', ctx=self._ctx)
        self._squares = StateDifference()
        self._squares.hybridize(static_alloc=True)
        share, sums = len(batch.input_ids) // passes, 0.0
        for start in range(0, len(batch.input_ids), share):
            rows = slice(start, start + share)
            sums += self._sums(teacher.outputs(batch, rows)[0], batch.instance_weights[rows] > 0)
        totals = np.array(workers.sum(sums.reshape(-1), name='variances')).reshape(-1, 2)
        means = totals / (batch.token_total * len(match.units))
        self._variances = [float(square - mean**2) for mean, square in means]

    def _sums(self, states: list[mx.nd.NDArray], real: np.ndarray) -> np.ndarray:
        """The sum and the sum of squares of each layer's states of real instances, shape (layers, 2)."""
        sums = np.zeros((len(states), 2))
        for i, state in enumerate(states):
            values = state.take(self._units, axis=-1).asnumpy().astype(np.float64)[real]
            sums[i] = values.sum(), (values**2).sum()  # padding is zero in both
        return sums

    def difference(
        self, student: list[mx.nd.NDArray], teacher: list[mx.nd.NDArray], weights: mx.nd.NDArray
    ) -> mx.nd.NDArray:
        """The squared difference over the variance, summed over tokens and layers; shape (1,).

        Each instance counts as often as `weights`, shape (batch,), says.
        """
        difference = mx.nd.zeros((1,), ctx=self._ctx)
        for layer, state, variance in zip(self._match.layers, teacher, self._variances):
            squares = self._squares(student[layer], state, self._units, weights)
            difference = difference + squares / (variance * len(self._match.units))
        return difference


def similarity_difference(
    student: mx.nd.NDArray, teacher: mx.nd.NDArray, valid: mx.nd.NDArray, weights: mx.nd.NDArray
) -> mx.nd.NDArray:
    """Difference of two networks in the sentences that they take for similar, summed over the sentences.

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
            'sentence in a pass; take a larger batch, or --teacher-weights embeddings=0'
        )


class Taught(Objective):
    """The parts of a loss that come from a teacher, for an objective that has batches of its own.

    In this order, each if it has a weight, for else it is not computed:

    - ``scores``: the divergence of the student's scores from the teacher's;
    - ``states``: the mean squared difference at the units that the student has, over the variance of the
      teacher's states there, summed over the teacher's layers; the variances are measured on the first batch
      of the phase;
    - ``embeddings`` and ``cosine_distance``: `similarity_difference` and `cosine_distance` of the states of
      the last layer.

    Without ``scores`` the teacher needs no heads; without ``states`` and ``cosine_distance`` it may have
    another width.
    """

    def learn(
        self, own: Mapping[str, float], *, teacher: Teacher, match: Match, weights: Weights, phase: Phase
    ) -> None:
        """Take a teacher, once there are batches.

        Parameters
        ----------
        own : mapping of str to float
            The objective's own parts of the loss, which come first, and their weights.
        teacher : Teacher
        match : Match
        weights : Weights
        phase : Phase
        """
        if weights.embeddings > 0:
            check_pairs(phase.batch_size, phase.accumulate, self.workers.size)
        parts = {
            'scores': weights.scores,
            'states': weights.states,
            'embeddings': weights.embeddings,
            'cosine_distance': weights.cosines,
        }
        parts = {**own, **{name: weight for name, weight in parts.items() if weight > 0}}
        self.losses, self.weights = tuple(parts), tuple(parts.values())
        self.teacher, self._states = teacher, None
        self._units = mx.nd.array(match.units, dtype='int32', ctx=self.workers.context())
        if 'states' in parts:
            with contextlib.closing(self.batches(phase, phase.first_batch)) as batches:
                self._states = TeacherStates(teacher, match, next(batches), self.workers, phase.accumulate)

    def taught(
        self,
        batch: Any,
        rows: slice,
        states: list[mx.nd.NDArray],
        weights: mx.nd.NDArray,
        divergence: Callable[[mx.nd.NDArray], mx.nd.NDArray] | None = None,
    ) -> tuple[mx.nd.NDArray, ...]:
        """The teacher's parts of the loss, summed over some rows of a share.

        Parameters
        ----------
        states : list of NDArray, shape (batch, length, h)
            The student's, after every layer.
        weights : NDArray, shape (batch,)
            1, or 0 for an instance that fills a batch up.
        divergence : callable, optional
            The teacher's scores → how far the student's are from them, summed.
        """
        wanted, scores = self.teacher.outputs(batch, rows)
        last = states[-1], wanted[-1]
        valid = mx.nd.array(batch.valid_length[rows], ctx=weights.context, dtype='float32')
        parts = {
            'scores': lambda: divergence(scores),
            'states': lambda: self._states.difference(states, wanted, weights),
            'embeddings': lambda: similarity_difference(*last, valid, weights),
            'cosine_distance': lambda: cosine_distance(*last, self._units, weights),
        }
        return tuple(part() for name, part in parts.items() if name in self.losses)

    def totals(self, batch: Any) -> tuple[float, ...]:
        return tuple(batch.token_total if name == 'states' else batch.instance_total for name in self.losses)


class Distillation(Taught, Pretraining):
    """MLM plus NSP, and the parts of a teacher.

    Parameters
    ----------
    *args
        As of `Pretraining`; the model's settings have ``output_all_encodings``, and the shards have the
        teacher's vocabulary.
    weights : Weights
    **more
        ``teacher``, ``match`` and ``phase``, as of `Taught.learn`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args)
        self._divergence = ScoreDivergence(weights.temperature)
        self._divergence.hybridize(static_alloc=True)
        self.learn({'mlm': weights.labels, 'nsp': weights.labels}, weights=weights, **more)

    def loss_sums(self, batch: Batch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, PRETRAINING_FIELDS, rows=rows, ctx=self.workers.context())
        outputs = self.model(*(feed[name] for name in INPUTS))
        labels = (feed[name] for name in PRETRAINING_FIELDS[len(INPUTS) :])
        taught = self.taught(
            batch,
            rows,
            outputs[0],
            feed['instance_weights'],
            lambda scores: self._divergence(outputs[-1], scores, feed['masked_weights']),
        )
        return (*self._loss(outputs[-2], outputs[-1], *labels), *taught)

    def totals(self, batch: Batch) -> tuple[float, ...]:
        of = {'mlm': batch.masked_total, 'scores': batch.masked_total, 'states': batch.token_total}
        return tuple(of.get(name, batch.instance_total) for name in self.losses)


class StateMatching(Taught, Pretraining):
    """States and embeddings of a teacher alone; neither network needs the heads of pre-training.

    Held-out data are measured by the same loss: the parts, each with its weight. The parameters are those of
    `Distillation`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args)
        self.learn({}, weights=dataclasses.replace(weights, scores=0.0), **more)

    @classmethod
    def for_gates(cls, *args: Any, **more: Any) -> StateMatching:
        """The states alone, unweighted, as gates are trained on them."""
        return cls(*args, weights=Weights(labels=0.0, scores=0.0), **more)

    def loss_sums(self, batch: Batch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        fields = (*TOKEN_INPUTS, 'instance_weights')
        *inputs, weights = feed_of(batch, fields, rows=rows, ctx=self.workers.context()).values()
        return self.taught(batch, rows, self.model(*inputs)[0], weights)

    def evaluate(self, phase: Phase) -> dict[str, float] | None:
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

    def best_of(self, progress: Progress) -> float | None:
        return progress.best_state_difference
