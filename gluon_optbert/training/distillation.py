"""Learning from a teacher: its scores at the masked places, and the states of its layers."""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import HybridBlock

from ..architecture.heads import PRETRAINING
from ..network.model import OptBERTModel, build
from ..network.running import INPUTS, PRETRAINING_FIELDS, feed_of
from ..network.saved_model import SavedModel
from ..network.settings import NetworkSettings
from ..text.batches import Batch
from ..text.shards import Shards
from ..text.vocabulary import vocabulary_hash
from .distributed import Workers
from .mlm_nsp import Pretraining
from .objective import Phase


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
    """

    labels: float = 1.0
    scores: float = 1.0
    states: float = 1.0
    temperature: float = 2.0


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
        student = F.log_softmax(scores, axis=-1, temperature=self._temperature)
        teacher = F.log_softmax(wanted, axis=-1, temperature=self._temperature)
        divergence = F.sum(F.exp(teacher) * (teacher - student), axis=-1)
        return F.sum(divergence * weights) * self._temperature**2


class Teacher:
    """A network that is learnt from; it is not trained, and has no dropout.

    Parameters
    ----------
    saved : SavedModel
        With the heads of pre-training and without gates.
    workers : Workers
    precision : str
        Of the encoder's matrix products.
    """

    def __init__(self, saved: SavedModel, workers: Workers, *, precision: str = 'float32'):
        self.architecture = saved.architecture
        settings = NetworkSettings(trainable=False, precision=precision, output_all_encodings=True)
        self._model = build(saved.architecture, saved.parameters, settings, ctx=workers.context())
        self._ctx = workers.context()

    def outputs(self, batch: Batch, rows: slice) -> Tuple[List[mx.nd.NDArray], mx.nd.NDArray]:
        """The states after every layer, shape (batch, length, h), and the scores at the masked places, shape
        (batch, masked, vocab_size).
        """
        feed = feed_of(batch, INPUTS, rows=rows, ctx=self._ctx)
        with autograd.pause(train_mode=False):
            outputs = self._model(*feed.values())
        return outputs[0], outputs[-1]


@dataclasses.dataclass(frozen=True)
class Match:
    """Which states of a student belong to which of its teacher.

    Parameters
    ----------
    units : np.ndarray of int, shape (h of the student,)
        The teacher's hidden units that the student has, in order.
    layers : tuple of int
        The student's layer for every layer of the teacher.
    """

    units: np.ndarray
    layers: Tuple[int, ...]

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


class Distillation(Pretraining):
    """MLM plus NSP, the teacher's scores, and its states.

    The states' part is the mean squared difference at the units that the student has, over the variance of
    the teacher's states there, summed over the teacher's layers. The variances are measured on the first
    batch of the phase. With a weight of zero the states are not compared, and may have another width.

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

    losses = ('mlm', 'nsp', 'scores', 'states')

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
        self._teacher, self._match = teacher, match
        self.weights = (weights.labels, weights.labels, weights.scores, weights.states)
        self._divergence = ScoreDivergence(weights.temperature)
        self._divergence.hybridize(static_alloc=True)
        self._compared = weights.states > 0
        self._units = mx.nd.array(match.units, dtype='int32', ctx=workers.context())
        self._variances = self._measure(phase) if self._compared else []

    def _measure(self, phase: Phase) -> List[float]:
        """The variance of the teacher's states at the student's units, by layer."""
        batches = self.batches(phase, phase.first_batch)
        batch = next(batches)
        batches.close()
        states, _ = self._teacher.outputs(batch, slice(None))
        sums = np.zeros((len(states), 2))
        for i, state in enumerate(states):
            values = state.take(self._units, axis=-1).asnumpy().astype(np.float64)
            sums[i] = values.sum(), (values**2).sum()  # padding is zero in both
        totals = np.array(self.workers.sum(sums.reshape(-1), name='variances')).reshape(-1, 2)
        means = totals / (batch.token_total * len(self._match.units))
        return [float(square - mean**2) for mean, square in means]

    def loss_sums(self, batch: Batch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, PRETRAINING_FIELDS, rows=rows, ctx=self.workers.context())
        states, scores = self._teacher.outputs(batch, rows)
        outputs = self.model(*(feed[name] for name in INPUTS))
        labels = (feed[name] for name in PRETRAINING_FIELDS[len(INPUTS) :])
        mlm, nsp = self._loss(outputs[-2], outputs[-1], *labels)
        divergence = self._divergence(outputs[-1], scores, feed['masked_weights'])
        return mlm, nsp, divergence, self._difference(outputs[0], states if self._compared else [])

    def _difference(self, student: List[mx.nd.NDArray], teacher: List[mx.nd.NDArray]) -> mx.nd.NDArray:
        """The states' part, summed over the tokens; shape (1,)."""
        difference = mx.nd.zeros((1,), ctx=self.workers.context())
        for layer, state, variance in zip(self._match.layers, teacher, self._variances):
            gap = student[layer] - state.take(self._units, axis=-1)
            difference = difference + mx.nd.sum(mx.nd.square(gap)) / (variance * len(self._match.units))
        return difference

    def totals(self, batch: Batch) -> Tuple[float, ...]:
        return batch.masked_total, batch.instance_total, batch.masked_total, batch.token_total


def check_teacher(teacher: SavedModel, student: SavedModel, *, states: bool, source: str) -> None:
    """Refuse a network that cannot teach another.

    Parameters
    ----------
    teacher, student : SavedModel
        The student before it is cut.
    states : bool
        Whether its states are learnt as well.
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
    if teacher.alphas:
        raise ValueError(f'{source}: the teacher still has gates; fold them with export_model.py first')
    if teacher.head != PRETRAINING:
        raise ValueError(f'{source}: the teacher lacks the heads of pre-training')
    sizes = [(saved.architecture.h, len(saved.architecture.layers)) for saved in (teacher, student)]
    if states and sizes[0] != sizes[1]:
        raise ValueError(
            f'{source}: the teacher has h = {sizes[0][0]} and {sizes[0][1]} layers, the network that it is '
            f'to teach h = {sizes[1][0]} and {sizes[1][1]}; their states cannot be compared, so give '
            '--teacher-state-weight 0'
        )
