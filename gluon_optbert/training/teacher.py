"""A network that is learnt from: its outputs, and which of its states a student has."""

from __future__ import annotations

import dataclasses
from typing import List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import HybridBlock

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING
from ..network.inputs import INPUTS, TOKEN_INPUTS
from ..network.model import build
from ..network.running import feed_of
from ..network.saved_model import SavedModel, check_folded
from ..network.settings import NetworkSettings
from ..text.batches import Batch
from ..text.vocabulary import vocabulary_hash
from .distributed import Workers

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

    def outputs(self, batch: Batch, rows: slice) -> Tuple[List[mx.nd.NDArray], mx.nd.NDArray]:
        """The states after every layer, shape (batch, length, h), and the scores: at the masked places, shape
        (batch, masked, vocab_size), or those of a task. Without heads the latter mean nothing.
        """
        feed = feed_of(batch, self._inputs, rows=rows, ctx=self._ctx)
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

    def _sums(self, states: List[mx.nd.NDArray], real: np.ndarray) -> np.ndarray:
        """The sum and the sum of squares of each layer's states of real instances, shape (layers, 2)."""
        sums = np.zeros((len(states), 2))
        for i, state in enumerate(states):
            values = state.take(self._units, axis=-1).asnumpy().astype(np.float64)[real]
            sums[i] = values.sum(), (values**2).sum()  # padding is zero in both
        return sums

    def difference(
        self, student: List[mx.nd.NDArray], teacher: List[mx.nd.NDArray], weights: mx.nd.NDArray
    ) -> mx.nd.NDArray:
        """The squared difference over the variance, summed over tokens and layers; shape (1,).

        Each instance counts as often as `weights`, shape (batch,), says.
        """
        difference = mx.nd.zeros((1,), ctx=self._ctx)
        for layer, state, variance in zip(self._match.layers, teacher, self._variances):
            squares = self._squares(student[layer], state, self._units, weights)
            difference = difference + squares / (variance * len(self._match.units))
        return difference


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
            '--teacher-score-weight 0'
        )
    sizes = [(saved.architecture.h, len(saved.architecture.layers)) for saved in (teacher, student)]
    if states and sizes[0] != sizes[1]:
        raise ValueError(
            f'{source}: the teacher has h = {sizes[0][0]} and {sizes[0][1]} layers, the network that it is '
            f'to teach h = {sizes[1][0]} and {sizes[1][1]}; their states cannot be compared, so give '
            '--teacher-state-weight 0, and no --cosine-weight'
        )
