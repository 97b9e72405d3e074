"""Learning from a teacher: its scores, the states of its layers, and its embeddings of sentences."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING
from ..network.inputs import INPUTS, TOKEN_INPUTS
from ..network.model import build
from ..network.running import PRETRAINING_FIELDS, feed_of
from ..network.saved_model import SavedModel, check_folded
from ..network.settings import NetworkSettings
from ..text.batches import Batch
from ..text.tokenizer import vocabulary_hash
from .distances import (
    RelationDivergence,
    ScoreDivergence,
    StateDifference,
    cosine_distance,
    directions_of,
    similarity_difference,
)
from .distributed import Workers
from .held_out import held_out_batches
from .objective import Objective, Phase
from .pretrain import Pretraining

# Settings of a network whose states alone are learnt: those after the last layer, or after every layer.
OF_LAST_STATE = {'use_decoder': False, 'use_classifier': False}
OF_STATES = {**OF_LAST_STATE, 'output_all_encodings': True}
WITH_LABELS = {'labels': 1.0, 'scores': 1.0, 'states': 1.0}  # weights of the parts of the loss
STATES_ALONE = {'last': 0.5, 'embeddings': 20.0, 'cosines': 1.0}


class Outputs(NamedTuple):
    """Outputs of a network, a student's or a teacher's.

    The scores at the masked places, shape (batch, masked, vocab_size), or those of a task, are the last of
    those of the heads. Without heads these mean nothing.
    """

    states: list[mx.nd.NDArray]  # (batch, length, h) after every layer or the last; zero at the padding
    relations: list[mx.nd.NDArray]  # (batch, length, a * k or a * v): Q, K, V of the last layer, or empty
    heads: Sequence[mx.nd.NDArray]

    @classmethod
    def of(cls, outputs: Sequence[Any]) -> Outputs:
        """Those of a pass."""
        states, *heads = outputs
        relations = heads.pop(0) if heads and isinstance(heads[0], (list, tuple)) else []
        return cls(list(states) if isinstance(states, (list, tuple)) else [states], relations, heads)


class Teacher:
    """A network that is learnt from, without gates; it is not trained, and has no dropout.

    With `heads`, those of pre-training or that of a task, it computes scores; states alone need none. The
    output has fields of `NetworkSettings` that say what is learnt beside the last state.
    """

    def __init__(
        self,
        saved: SavedModel,
        workers: Workers,
        *,
        precision: str = 'float32',
        heads: bool = True,
        output: Mapping[str, bool],
    ):
        self.architecture = saved.architecture
        settings = NetworkSettings(
            trainable=False,
            precision=precision,
            use_decoder=heads,
            use_classifier=heads,
            head=saved.head,
            **output,
        )
        self._inputs = INPUTS if heads and saved.head == PRETRAINING else TOKEN_INPUTS
        self._ctx = workers.context()
        self._model = build(saved.architecture, saved.parameters, settings, ctx=self._ctx)

    def outputs(self, batch: Batch, rows: slice) -> Outputs:
        """Outputs of the teacher for some rows of a batch, without gradients."""
        feed = feed_of(batch, self._inputs, rows=rows, ctx=self._ctx)
        with autograd.pause(train_mode=False):
            return Outputs.of(self._model(*feed.values()))


def check_teacher(
    teacher: SavedModel, student: SavedModel, *, units: bool, layers: bool, heads: bool = True, source: str
) -> None:
    """Refuse a network that cannot teach another, which is not cut yet.

    ValueError if it has another vocabulary, or gates. If states or embeddings are learnt unit by unit, also
    if it has another hidden size; if those of all layers are, another number of layers; if its scores are,
    without heads of pre-training.
    """
    if vocabulary_hash(teacher.vocabulary) != vocabulary_hash(student.vocabulary):
        raise ValueError(
            f'{source}: the teacher and the network that it is to teach differ in their vocabularies'
        )
    check_folded(teacher, f'the teacher {source}')
    if heads and (teacher.head != PRETRAINING or 'mlm' in (teacher.progress.untrained or ())):
        raise ValueError(
            f'{source}: the teacher lacks a trained MLM head; learn from its states alone, with '
            '--teacher-weights scores=0'
        )
    sizes = [(saved.architecture.h, len(saved.architecture.layers)) for saved in (teacher, student)]
    wider = units and sizes[0][0] != sizes[1][0]
    if wider or layers and sizes[0][1] != sizes[1][1]:
        raise ValueError(
            f'{source}: the teacher has h = {sizes[0][0]} and {sizes[0][1]} layers, the network that it is '
            f'to teach h = {sizes[1][0]} and {sizes[1][1]}; their states cannot be compared, so give '
            f'--teacher-weights states=0{",last=0,cosines=0" * wider}'
        )


@dataclasses.dataclass(frozen=True)
class Match:
    """The states of a student beside those of its teacher."""

    units: np.ndarray  # (h of the student,) int; the teacher's hidden units that it has, in order
    layers: tuple[int, ...]  # the student's layer for every layer of the teacher

    @classmethod
    def whole(cls, architecture: Architecture) -> Match:
        """The match of a network that has all units and layers of the teacher."""
        return cls(np.arange(architecture.h), tuple(range(len(architecture.layers))))

    @classmethod
    def after(cls, units: np.ndarray, stayed: Sequence[int], teacher_layers: int) -> Match:
        """The match of a network that was cut from the teacher, of the hidden units and the layers that
        stayed; a layer that was dropped belongs to the nearest that stayed, of two the earlier.
        """
        nearest = [int(np.argmin(np.abs(np.asarray(stayed) - i))) for i in range(teacher_layers)]
        return cls(np.asarray(units), tuple(nearest))


@dataclasses.dataclass(frozen=True)
class Weights:
    """Factors of the parts of the loss, which `Taught` explains."""

    labels: float = 1.0  # of MLM and NSP, or of the loss of a task
    scores: float = 1.0
    states: float = 1.0
    last: float = 0.0
    embeddings: float = 0.0
    cosines: float = 0.0
    relations: float = 0.0
    temperature: float = 2.0  # what scores are divided by before the softmax

    @property
    def same_width(self) -> bool:
        """Whether hidden units are compared one by one, so that the teacher must have the student's."""
        return max(self.states, self.last, self.cosines) > 0

    @property
    def same_layers(self) -> bool:
        """Whether the states of all layers are compared, so that the teacher must have as many."""
        return self.states > 0

    @property
    def need_heads(self) -> bool:
        """Whether the heads of pre-training are learnt from or trained."""
        return self.labels > 0 or self.scores > 0

    @property
    def output(self) -> dict[str, bool]:
        """Fields of `NetworkSettings`: what student and teacher give beside the state of the last layer."""
        return {'output_all_encodings': self.states > 0, 'output_relations': self.relations > 0}

    @property
    def for_gates(self) -> Weights:
        """Those that gates are trained with, which stand behind the relations."""
        return dataclasses.replace(self, relations=0.0)


OF_TOKENS = ('states', 'last', 'relations')  # parts that are a mean over tokens, as others over instances
PARTS_OF_LOSS = tuple(field.name for field in dataclasses.fields(Weights) if field.name != 'temperature')


class Taught(Objective):
    """The parts of a loss that come from a teacher, for an objective that has batches of its own; unless it
    has a loss of its own too, they are all.

    In this order, each if it has a weight, for else it is not computed:

    - ``scores``: the divergence of the student's scores from the teacher's, over the vocabulary or over the
      answers of a task;
    - ``states``: the mean squared difference at the units that the student has, over the variance of the
      teacher's states there, summed over the teacher's layers; the variances are measured on the first batch
      of the phase;
    - ``last``: the same of the last layer alone;
    - ``embeddings`` and ``cosine_distance``: `similarity_difference` and `cosine_distance` of the embeddings;
    - ``relations``: `RelationDivergence`.

    Without ``scores`` the teacher needs no heads; without ``states``, ``last`` and ``cosine_distance`` it may
    have another width. What the two networks have to give, `Weights.output` says.
    """

    def learn(
        self, own: Mapping[str, float], *, teacher: Teacher, match: Match, weights: Weights, phase: Phase
    ) -> None:
        """Take a teacher, once there are batches; `own` are the objective's own parts of the loss, which come
        first, and their weights.
        """
        parts = {
            'scores': weights.scores,
            'states': weights.states,
            'last': weights.last,
            'embeddings': weights.embeddings,
            'cosine_distance': weights.cosines,
            'relations': weights.relations,
        }
        parts = {**own, **{name: weight for name, weight in parts.items() if weight > 0}}
        self.losses, self.weights = tuple(parts), tuple(parts.values())
        self.teacher, self._layers = teacher, match.layers
        self._relations = RelationDivergence(teacher.architecture.layers[-1].a)
        self._squares = StateDifference()
        self._squares.hybridize(static_alloc=True)
        self._units = mx.nd.array(match.units, dtype='int32', ctx=self.workers.context())
        if 'states' in parts or 'last' in parts:
            with contextlib.closing(self.batches(phase, phase.first_batch)) as batches:
                self._variances = self.variances(next(batches), phase.accumulate)

    def variances(self, batch: Any, passes: int) -> list[float]:
        """The variance of each state of the teacher over the tokens of a batch, whose share is split into so
        many passes.
        """
        share, sums = len(batch.input_ids) // passes, 0.0
        for start in range(0, len(batch.input_ids), share):
            rows = slice(start, start + share)
            real = batch.instance_weights[rows] > 0
            states = self.teacher.outputs(batch, rows).states
            values = (state.take(self._units, axis=-1).asnumpy().astype(np.float64)[real] for state in states)
            sums += np.array([(one.sum(), (one**2).sum()) for one in values])  # padding is zero in both
        totals = np.array(self.workers.sum(sums.reshape(-1), name='variances')).reshape(-1, 2)
        means = totals / (batch.token_total * self._units.size)
        return [float(square - mean**2) for mean, square in means]

    def difference(
        self, student: Sequence[mx.nd.NDArray], teacher: Sequence[mx.nd.NDArray], weights: mx.nd.NDArray
    ) -> mx.nd.NDArray:
        """The squared difference of states over the teacher's variance, summed over tokens and layers, shape
        (1,); each instance counts as often as `weights`, shape (batch,), says.
        """
        difference = mx.nd.zeros((1,), ctx=weights.context)
        for own, wanted, variance in zip(student, teacher, self._variances[-len(teacher) :]):
            squares = self._squares(own, wanted, self._units, weights)
            difference = difference + squares / (variance * self._units.size)
        return difference

    def taught(
        self,
        batch: Any,
        rows: slice,
        outputs: Outputs,
        weights: mx.nd.NDArray,
        divergence: Callable[[mx.nd.NDArray], mx.nd.NDArray] | None = None,
    ) -> tuple[mx.nd.NDArray, ...]:
        """The teacher's parts of the loss, summed over some rows of a share.

        Outputs are the student's; weights, (batch,), are 1, or 0 for an instance that fills a batch up; and
        `divergence` says how far the student's scores are from the teacher's, summed.
        """
        wanted = self.teacher.outputs(batch, rows)
        own = outputs.states
        valid = mx.nd.array(batch.valid_length[rows], ctx=weights.context, dtype='float32')
        directions: list[mx.nd.NDArray] = []
        if {'embeddings', 'cosine_distance'} & {*self.losses}:
            embedding, lengths = self.model.head.embedding, batch.valid_length[rows]
            directions = [directions_of(one[-1], lengths, embedding) for one in (own, wanted.states)]
        parts = {
            'scores': lambda: divergence(wanted.heads[-1]),
            'states': lambda: self.difference([own[layer] for layer in self._layers], wanted.states, weights),
            'last': lambda: self.difference(own[-1:], wanted.states[-1:], weights),
            'embeddings': lambda: similarity_difference(*directions, weights, self.workers),
            'cosine_distance': lambda: cosine_distance(*directions, self._units, weights),
            'relations': lambda: self._relations(outputs.relations, wanted.relations, valid, weights),
        }
        return tuple(part() for name, part in parts.items() if name in self.losses)

    def loss_sums(self, batch: Any, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        fields = (*TOKEN_INPUTS, 'instance_weights')
        *inputs, weights = feed_of(batch, fields, rows=rows, ctx=self.workers.context()).values()
        return self.taught(batch, rows, Outputs.of(self.model(*inputs)), weights)

    def totals(self, batch: Any) -> tuple[float, ...]:
        return tuple(batch.token_total if name in OF_TOKENS else batch.instance_total for name in self.losses)


class Distillation(Taught, Pretraining):
    """MLM plus NSP, and the parts of a teacher.

    Arguments are those of `Pretraining`, with the `Weights.output` in the model's settings and shards of the
    teacher's vocabulary, and those of `Taught.learn`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args)
        self._divergence = ScoreDivergence(weights.temperature)
        self.learn(dict.fromkeys(self.labels, weights.labels), weights=weights, **more)

    def loss_sums(self, batch: Batch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, PRETRAINING_FIELDS, rows=rows, ctx=self.workers.context())
        outputs = Outputs.of(self.model(*(feed[name] for name in INPUTS)))
        labels = (feed[name] for name in PRETRAINING_FIELDS[len(INPUTS) :])
        taught = self.taught(
            batch,
            rows,
            outputs,
            feed['instance_weights'],
            lambda scores: self._divergence(outputs.heads[-1], scores, feed['masked_weights']),
        )
        return (*self._loss(*outputs.heads[-2:], *labels)[: len(self.labels)], *taught)

    def totals(self, batch: Batch) -> tuple[float, ...]:
        of = dict.fromkeys(('mlm', 'scores'), batch.masked_total)
        return tuple(of.get(name, total) for name, total in zip(self.losses, super().totals(batch)))


class StateMatching(Taught, Pretraining):
    """States and embeddings of a teacher alone; neither network needs the heads of pre-training.

    Held-out data are measured by the same loss: the parts, each with its weight. The parameters are those of
    `Distillation`.
    """

    decides = 'state_difference'

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args)
        self.learn({}, weights=dataclasses.replace(weights, scores=0.0), **more)

    def evaluate(self, phase: Phase) -> dict[str, float] | None:
        if self._heldout is None:
            return None
        workers, count = self.workers, len(self.losses)
        sums = np.zeros(count + 2)  # of the parts, and how many tokens and instances they are of
        size, limit = phase.pass_size, phase.evaluation_limit
        for batch in held_out_batches(
            self._heldout, workers, 'held-out states', batch_size=size, limit=limit
        ):
            with autograd.predict_mode():
                sums[:count] += [float(part.asscalar()) for part in self.loss_sums(batch, slice(None))]
            real = batch.instance_weights
            sums[count:] += (batch.valid_length * real).sum(), real.sum()
        totals = workers.sum(sums, name='evaluation')
        tokens, instances = totals[count:]
        numbers = (tokens if name in OF_TOKENS else instances for name in self.losses)
        parts = zip(self.weights, totals, numbers)
        return {'state_difference': sum(weight * total / max(number, 1.0) for weight, total, number in parts)}
