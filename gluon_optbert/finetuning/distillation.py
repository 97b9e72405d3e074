"""Fine-tuning with a teacher: a network that was fine-tuned on the same task gives its scores and states."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import mxnet as mx

from ..architecture.architecture import Architecture
from ..architecture.heads import Head
from ..cutting.selection import read_selection, survivors
from ..cutting.shrink import without_gates
from ..network.encoder import MASKED_SCORE, padding
from ..network.inputs import TOKEN_INPUTS
from ..network.running import feed_of
from ..network.saved_model import SavedModel, read_model
from ..tasks.features import TaskBatch
from ..training.distances import ScoreDivergence, check_pairs
from ..training.distillation import Match, Outputs, Taught, Teacher, Weights, check_teacher
from ..training.distributed import Workers
from .objective import Exercise, FineTuning, check_fits, in_labels_of
from .recipe import FineTuneRecipe

SELECTION = 'selection.json'  # of a round of pruning
_FIELDS = (*TOKEN_INPUTS, 'labels', 'instance_weights')


class HeadDivergence:
    """Distance of the scores of a student from those of its teacher, summed over the instances.

    For a classification it is T² times the Kullback-Leibler divergence over the labels (Hinton et al., 2015,
    section 2); for question answering the mean of that over the tokens as the start and as the end of an
    answer; for several labels over the labels, each of which is there or not; for tags over the tokens of a
    sentence. For a regression it is the squared difference. T is the temperature: what scores are divided by.
    """

    def __init__(self, head: Head, temperature: float):
        self._kind, self._divergence = head.kind, ScoreDivergence(temperature)

    def __call__(
        self,
        student: mx.nd.NDArray,
        teacher: mx.nd.NDArray,
        weights: mx.nd.NDArray,
        valid_length: mx.nd.NDArray,
    ) -> mx.nd.NDArray:
        """Shape (1,), of scores of the shape (batch, outputs), or (batch, length, outputs) where not pooled;
        weights and lengths have shape (batch,).
        """
        if self._kind == 'regression':
            return mx.nd.sum(mx.nd.square(student - teacher)[:, 0] * weights)
        if self._kind == 'classification':
            return self._divergence(*(values.expand_dims(1) for values in (student, teacher, weights)))
        if self._kind == 'multi_label':  # a sigmoid is a softmax beside a zero
            both = [mx.nd.stack(scores, mx.nd.zeros_like(scores), axis=2) for scores in (student, teacher)]
            count = student.shape[1]
            return self._divergence(*both, mx.nd.tile(weights.expand_dims(1) / count, (1, count)))
        steps = mx.nd.arange(student.shape[1], ctx=student.context)
        if self._kind == 'token_classification':
            inside = 1 - padding(mx.nd, steps, valid_length)
            return self._divergence(student, teacher, inside * (weights / valid_length).expand_dims(1))
        outside = mx.nd.expand_dims(padding(mx.nd, steps, valid_length) * MASKED_SCORE, axis=1)
        places = [mx.nd.broadcast_add(scores.transpose((0, 2, 1)), outside) for scores in (student, teacher)]
        return self._divergence(*places, mx.nd.stack(weights, weights, axis=1) / 2)


def states_for(weights: Weights) -> dict[str, bool]:
    """Fields of `NetworkSettings` of student and teacher: with the head of a task, states come only as those
    of all layers.
    """
    return {**weights.output, 'output_all_encodings': True}


class TaughtFineTuning(Taught, FineTuning):
    """The loss of the labels, the teacher's scores, and its states; without their weights the states alone.

    Arguments are those of `FineTuning`, whose model was built with `states_for`, and those of `Taught.learn`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args)
        self._divergence = HeadDivergence(self._exercise.head, weights.temperature)
        self.learn({'loss': weights.labels}, weights=weights, **more)

    def loss_sums(self, batch: TaskBatch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, _FIELDS, rows=rows, ctx=self.workers.context())
        lengths = (feed['valid_length'],) if self.model.head.kind == 'question_answering' else ()
        outputs = Outputs.of(self.model(*(feed[name] for name in TOKEN_INPUTS)))
        scores, weights = outputs.heads[-1], feed['instance_weights']
        taught = self.taught(
            batch,
            rows,
            outputs,
            weights,
            lambda wanted: self._divergence(scores, wanted, weights, feed['valid_length']),
        )
        return (self._loss(scores, feed['labels'], weights, *lengths), *taught)


def fitting_task(teacher: SavedModel, head: Head, *, source: str, max_length: int, pairs: bool) -> SavedModel:
    """A teacher, which was read from `source`, with its scores in the order of the head of the network that
    it is to teach; ValueError if it was trained for another task or other labels, or cannot read instances of
    so many tokens, or pairs of texts.
    """
    check_fits(max_length, teacher, pairs=pairs, name=f'the teacher {source}')
    teacher = in_labels_of(teacher, head)
    if not teacher.head.fits(head):
        raise ValueError(
            f'{source}: the teacher was trained for {teacher.head.described}, the network that it is to '
            f'teach for {head.described}'
        )
    return teacher


def match_after(run: Path, rounds: int, start: Architecture) -> Match:
    """The states of a network, of the widths of `start`, that so many rounds of a pruning run have left."""
    selections = [read_selection(run / f'round-{number}' / SELECTION) for number in range(1, rounds + 1)]
    return Match.after(*survivors(selections, start), len(start.layers))


def match_of(directory: Path, student: Architecture, teacher: Architecture, *, source: str) -> Match:
    """The states of a teacher beside those of a network, which may have been pruned from the same one: then
    its run, ``RUN/round-N/model``, says which of them are left.

    The directory is that of the network, the source that of the teacher. Raises ValueError if they have not
    the same hidden units and layers, and no run says which.
    """
    sizes = [(one.h, len(one.layers)) for one in (student, teacher)]
    if sizes[0] == sizes[1]:
        return Match.whole(teacher)
    place = directory.absolute().parent
    word, _, number = place.name.partition('-')
    if word == 'round' and number.isdigit():
        # there may be no such run, or one of another network
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            left = match_after(place.parent, int(number), teacher)
            if (len(left.units), len(set(left.layers))) == sizes[0]:
                return left
    raise ValueError(
        f'{source}: the teacher has h = {sizes[1][0]} and {sizes[1][1]} layers, {directory} h = '
        f'{sizes[0][0]} and {sizes[0][1]}, and no pruning run around it says which of them stayed; their '
        'states cannot be compared, so give --teacher-weights states=0,last=0,cosines=0'
    )


def read_teacher(
    recipe: FineTuneRecipe, saved: SavedModel, exercise: Exercise, workers: Workers
) -> dict[str, Any]:
    """Arguments of `TaughtFineTuning` beside the phase: the teacher of a recipe, its states beside those of
    the network, and the weights. ValueError or FileNotFoundError if it is not there, or cannot teach the
    network this task.
    """
    source, weights = recipe.teacher, recipe.teaching()
    teacher = without_gates(read_model(Path(source)))
    check_teacher(teacher, saved, units=False, layers=False, heads=False, source=source)
    reads = {'max_length': recipe.max_length, 'pairs': exercise.train.has_pairs}
    teacher = fitting_task(teacher, exercise.head, source=source, **reads)
    if weights.embeddings:
        check_pairs(recipe.batch_size, recipe.accumulate)
    if weights.same_width:
        match = match_of(recipe.model, saved.architecture, teacher.architecture, source=source)
    else:
        match = Match.whole(saved.architecture)  # which nothing compares
    network = Teacher(teacher, workers, precision=recipe.precision, output=states_for(weights))
    return {'teacher': network, 'match': match, 'weights': weights}
