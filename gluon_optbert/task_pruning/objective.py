"""What the gates and the weights of a fine-tuned network descend: the task's loss and a teacher's outputs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, Generator, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np

from ..architecture.heads import Head
from ..finetuning.objective import Exercise, FineTuning
from ..network.encoder import MASKED_SCORE, padding
from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel
from ..network.running import feed_of
from ..runs.progress import Progress, TaskScores
from ..tasks.features import Features, TaskBatch, training_batches
from ..training.distillation import (
    Match,
    ScoreDivergence,
    Teacher,
    TeacherStates,
    Weights,
    check_pairs,
    cosine_distance,
    similarity_difference,
)
from ..training.distributed import Workers
from ..training.objective import Objective, Phase

FIELDS = (*TOKEN_INPUTS, 'labels', 'weights')


class Scored(Objective):
    """An objective whose measurements are scores in percent, of which one decides."""

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        """Scores of the held-out sets with what decides."""
        raise NotImplementedError

    def remember(self, progress: Progress, measured: Mapping[str, float], step: int) -> Progress:
        scores, best = self.measured(measured), progress.best_score
        progress = progress.updated(task_scores=scores)
        if best is None or scores.value > best:
            progress = progress.updated(best_score=scores.value, best_step=step)
        return progress

    def loss_of(self, measured: Mapping[str, float]) -> float:
        return self.measured(measured).loss

    def best_of(self, progress: Progress) -> Optional[float]:
        return None if progress.best_score is None else -progress.best_score


class TaskTraining(Scored, FineTuning):
    """Fine-tuning, measured as pruning reports it; the parameters are those of `FineTuning`."""

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        return scores_of(self._exercise, scores)


def scores_of(exercise: Exercise, scores: Mapping[str, float]) -> TaskScores:
    """The scores of a data set's held-out sets; the standard error is known of a share of right answers."""
    first = next(iter(exercise.heldout))
    metric, instances = f'{first}/{exercise.metric}', exercise.samples[first]
    error = None
    if exercise.metric == 'accuracy':
        share = scores[metric] / 100
        error = 100 * math.sqrt(max(0.0, share * (1 - share)) / instances)
    return TaskScores(dict(scores), metric, instances, error)


class HeadDivergence:
    """How far the scores of a student are from those of its teacher, summed over the instances.

    For a classification it is T² times the Kullback-Leibler divergence over the labels (Hinton et al., 2015,
    section 2); for question answering the mean of that over the tokens as the start and as the end of an
    answer; for a regression the squared difference.

    Parameters
    ----------
    head : Head
    temperature : float
        T: what scores are divided by.
    """

    def __init__(self, head: Head, temperature: float):
        self._kind = head.kind
        self._divergence = ScoreDivergence(temperature)
        self._divergence.hybridize(static_alloc=True)

    def __call__(
        self,
        student: mx.nd.NDArray,
        teacher: mx.nd.NDArray,
        weights: mx.nd.NDArray,
        valid_length: mx.nd.NDArray,
    ) -> mx.nd.NDArray:
        """Shape (1,).

        Parameters
        ----------
        student, teacher : NDArray, shape (batch, outputs), or (batch, length, 2) for question answering
        weights, valid_length : NDArray, shape (batch,)
        """
        if self._kind == 'regression':
            return mx.nd.sum(mx.nd.square(student - teacher)[:, 0] * weights)
        if self._kind == 'classification':
            return self._divergence(
                *(scores.expand_dims(1) for scores in (student, teacher)), weights.expand_dims(1)
            )
        steps = mx.nd.arange(student.shape[1], ctx=student.context)
        outside = mx.nd.expand_dims(padding(mx.nd, steps, valid_length) * MASKED_SCORE, axis=1)
        places = [mx.nd.broadcast_add(scores.transpose((0, 2, 1)), outside) for scores in (student, teacher)]
        return self._divergence(*places, mx.nd.stack(weights, weights, axis=1) / 2)


class TaskDistillation(TaskTraining):
    """The loss of the labels, the teacher's scores, and its states.

    The states' part is that of `training.distillation.Distillation`. Scores and states are parts only if they
    have a weight. With weights of zero for labels and scores the states are learnt alone.

    Parameters
    ----------
    *args
        As of `TaskTraining`; the model's settings have ``output_all_encodings``.
    teacher : Teacher
    match : Match
    weights : Weights
    phase : Phase
    """

    def __init__(self, *args: Any, teacher: Teacher, match: Match, weights: Weights, phase: Phase):
        super().__init__(*args)
        self._teacher = teacher
        learnt = {'scores': weights.scores, 'states': weights.states}
        learnt = {name: weight for name, weight in learnt.items() if weight > 0}
        self.losses = ('loss', *learnt)
        self.weights = (weights.labels, *learnt.values())
        self._divergence = HeadDivergence(self._exercise.head, weights.temperature)
        self._states = _states_of(self, teacher, match, phase) if weights.states > 0 else None

    def loss_sums(self, batch: TaskBatch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, FIELDS, rows=rows, ctx=self.workers.context())
        lengths = () if self.model.head.pooled else (feed['valid_length'],)
        wanted_states, wanted = self._teacher.outputs(batch, rows)
        states, scores = self.model(*(feed[name] for name in TOKEN_INPUTS))
        parts = [self._loss(scores, feed['labels'], feed['weights'], *lengths)]
        if 'scores' in self.losses:
            parts.append(self._divergence(scores, wanted, feed['weights'], feed['valid_length']))
        if self._states is not None:
            parts.append(self._states.difference(states, wanted_states, feed['weights']))
        return tuple(parts)

    def totals(self, batch: TaskBatch) -> Tuple[float, ...]:
        return tuple(batch.token_total if name == 'states' else batch.instance_total for name in self.losses)


class SentenceMatching(Scored):
    """The states of a teacher and the similarities of sentences; there are no labels.

    Parameters
    ----------
    model : OptBERTModel
        Built with `OF_STATES`.
    workers : Workers
    train : Features
        Sentences.
    measure : callable
        The embeddings' scores of a model, in percent.
    teacher : Teacher
    match : Match
    weights : Weights
        Of states and embeddings. The states and the cosine distance are parts only if they have a weight;
        without that of the states the teacher may have another width.
    phase : Phase
    """

    def __init__(
        self,
        model: OptBERTModel,
        workers: Workers,
        train: Features,
        measure: Callable[[OptBERTModel], TaskScores],
        *,
        teacher: Teacher,
        match: Match,
        weights: Weights,
        phase: Phase,
    ):
        super().__init__(model, workers)
        if weights.embeddings > 0:
            check_pairs(phase.batch_size, phase.accumulate, workers.size)
        self._train, self._measure, self._teacher = train, measure, teacher
        learnt = {'states': weights.states, 'embeddings': weights.embeddings}
        learnt['cosine_distance'] = weights.cosines
        learnt = {name: weight for name, weight in learnt.items() if weight > 0 or name == 'embeddings'}
        self.losses, self.weights = tuple(learnt), tuple(learnt.values())
        self._units = mx.nd.array(match.units, dtype='int32', ctx=workers.context())
        self._states = _states_of(self, teacher, match, phase) if weights.states > 0 else None

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        return stream(self._train, phase, start, self.workers)

    def loss_sums(self, batch: TaskBatch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, (*TOKEN_INPUTS, 'weights'), rows=rows, ctx=self.workers.context())
        wanted, _ = self._teacher.outputs(batch, rows)
        states = self.model(*(feed[name] for name in TOKEN_INPUTS))[0]
        last = states[-1], wanted[-1]
        parts = [similarity_difference(*last, feed['valid_length'], feed['weights'])]
        if self._states is not None:
            parts.insert(0, self._states.difference(states, wanted, feed['weights']))
        if 'cosine_distance' in self.losses:
            parts.append(cosine_distance(*last, self._units, feed['weights']))
        return tuple(parts)

    def totals(self, batch: TaskBatch) -> Tuple[float, ...]:
        return tuple(batch.token_total if name == 'states' else batch.instance_total for name in self.losses)

    def evaluate(self, phase: Phase) -> Dict[str, float]:
        self._last = self._measure(self.model)
        return dict(self._last.scores)

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        return dataclasses.replace(self._last, scores=dict(scores))


class EmbeddingProbe(Objective):
    """The embeddings of sentences along random directions, by whose gradients units are ranked.

    The loss of a network that is its own teacher is zero, and so are its gradients. The mean of the squared
    gradients of random projections is the curvature of the squared difference of the embeddings. Every
    sentence has a direction of its own.

    Parameters
    ----------
    model : OptBERTModel
        Built with `OF_STATES`.
    workers : Workers
    train : Features
    """

    losses = ('projection',)

    def __init__(self, model: OptBERTModel, workers: Workers, train: Features):
        super().__init__(model, workers)
        self._train = train

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        return stream(self._train, phase, start, self.workers)

    def loss_sums(self, batch: TaskBatch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, (*TOKEN_INPUTS, 'weights'), rows=rows, ctx=self.workers.context())
        states = self.model(*(feed[name] for name in TOKEN_INPUTS))[0][-1]
        embeddings = mx.nd.L2Normalization(states.sum(axis=1), mode='instance')
        width = embeddings.shape[1]
        drawn = [np.random.RandomState(int(row)).normal(size=width) for row in batch.rows[rows]]
        projected = (embeddings * mx.nd.array(np.stack(drawn), ctx=self.workers.context())).sum(axis=1)
        return (mx.nd.sum(projected * feed['weights']),)

    def totals(self, batch: TaskBatch) -> Tuple[float, ...]:
        return (batch.instance_total,)


def stream(
    features: Features, phase: Phase, start: int, workers: Workers
) -> Generator[TaskBatch, None, None]:
    """This worker's share of every batch from number `start` on."""
    return training_batches(
        features,
        batch_size=phase.batch_size,
        seed=phase.seed,
        start=start,
        rank=workers.rank,
        workers=workers.size,
    )


def _states_of(objective: Objective, teacher: Teacher, match: Match, phase: Phase) -> TeacherStates:
    """The teacher's states, whose variances are measured on the first batch of a phase."""
    batches = objective.batches(phase, phase.first_batch)
    try:
        return TeacherStates(teacher, match, next(batches), objective.workers, phase.accumulate)
    finally:
        batches.close()
