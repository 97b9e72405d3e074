"""Objectives of a fine-tuned network: its task, or, without labels, the embeddings of sentences."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from ..architecture.heads import PRETRAINING, Head
from ..cutting.shrink import without_gates
from ..finetuning.objective import Exercise, FineTuning, check_fits, in_labels_of, labels_remedy
from ..finetuning.recipe import OwnData
from ..finetuning.recipes import GlueRecipe, SquadRecipe, prepare_glue, prepare_squad
from ..network.encoder import MASKED_SCORE, padding
from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel
from ..network.running import feed_of
from ..network.saved_model import SavedModel, read_model
from ..runs.progress import Progress, TaskScores, difference_error
from ..runs.recipe import fill, to_dict
from ..tasks.features import (
    Features,
    TaskBatch,
    batch_of,
    fewest_rows,
    make_reader,
    steps_per_epoch,
    token_batches,
    training_batches,
)
from ..tasks.tables import read_lines
from ..text.trimming import TRIM
from ..training.distances import ScoreDivergence, check_pairs
from ..training.distillation import OF_LAST_STATE, Match, Outputs, Taught, Teacher, Weights, check_teacher
from ..training.distributed import Workers
from ..training.objective import Objective, Phase
from .algorithm import run_algorithm
from .objectives import (
    EMBEDDED,
    EmbeddingProbe,
    PruningObjective,
    embed,
    fitting_teacher,
    pair_similarity,
    trimmed_start,
    untrimmed,
)
from .recipe import BATCH_TOKENS, SENTENCES, TaskPruneRecipe
from .report import Round
from .trimming import record_of, trim_to_text

_SQUAD = re.compile(r'squad(?:v|-|_|\s)*([12])(?:\.[01])?$', re.IGNORECASE)
_READING = ('max_length', 'stride', 'max_question', 'max_answer', 'n_best', 'null_threshold')
_READING += ('evaluation_tokens',)
_FIELDS = (*TOKEN_INPUTS, 'labels', 'weights')
_HELD_OUT = 20  # one sentence of so many is held out
_FEWEST = 40  # sentences
_FEWEST_HELD_OUT = 10  # have 45 pairs
_SHORTEST = 3  # tokens of a sentence: [CLS], one of its own, [SEP]


def prune_task(recipe: TaskPruneRecipe, *, workers: Workers | None = None) -> list[Round]:
    """Prune a fine-tuned network, or an encoder of sentences, as `algorithm.prune` does one of pre-training:
    with the same results and errors.
    """
    kind = SentenceObjective if recipe.task == SENTENCES else TaskObjective
    return run_algorithm(kind, recipe, workers or Workers())


class Scored(Objective):
    """An objective of training whose measurements are scores in percent, of which one decides."""

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

    def best_of(self, progress: Progress) -> float | None:
        return None if progress.best_score is None else -progress.best_score


class TaskTraining(Scored, FineTuning):
    """Fine-tuning, measured as pruning reports it; the parameters are those of `FineTuning`."""

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        """The standard error is known of a share of right answers."""
        exercise = self._exercise
        first = next(iter(exercise.heldout))
        metric, instances = f'{first}/{exercise.metric}', exercise.samples[first]
        error = None
        if exercise.metric == 'accuracy':
            share = scores[metric] / 100
            error = 100 * math.sqrt(max(0.0, share * (1 - share)) / instances)
        return TaskScores(dict(scores), metric, instances, error)


class HeadDivergence:
    """Distance of the scores of a student from those of its teacher, summed over the instances.

    For a classification it is T² times the Kullback-Leibler divergence over the labels (Hinton et al., 2015,
    section 2); for question answering the mean of that over the tokens as the start and as the end of an
    answer; for several labels over the labels, each of which is there or not; for tags over the tokens of a
    sentence. For a regression it is the squared difference.

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
        student, teacher : NDArray, shape (batch, outputs), or (batch, length, outputs) where not pooled
        weights, valid_length : NDArray, shape (batch,)
        """
        if self._kind == 'regression':
            return mx.nd.sum(mx.nd.square(student - teacher)[:, 0] * weights)
        if self._kind == 'classification':
            return self._divergence(
                *(scores.expand_dims(1) for scores in (student, teacher)), weights.expand_dims(1)
            )
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


class TaskDistillation(Taught, TaskTraining):
    """The loss of the labels, the teacher's scores, and its states; without their weights the states alone.

    Parameters
    ----------
    *args
        As of `TaskTraining`; the model's settings have ``output_all_encodings``, and the `Weights.output`.
    weights : Weights
    **more
        ``teacher``, ``match`` and ``phase``, as of `Taught.learn`.
    """

    def __init__(self, *args: Any, weights: Weights, **more: Any):
        super().__init__(*args)
        self._divergence = HeadDivergence(self._exercise.head, weights.temperature)
        self.learn({'loss': weights.labels}, weights=weights, **more)

    def loss_sums(self, batch: TaskBatch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        feed = feed_of(batch, _FIELDS, rows=rows, ctx=self.workers.context())
        lengths = () if self.model.head.pooled else (feed['valid_length'],)
        outputs = Outputs.of(self.model(*(feed[name] for name in TOKEN_INPUTS)))
        scores = outputs.heads[-1]
        taught = self.taught(
            batch,
            rows,
            outputs,
            feed['weights'],
            lambda wanted: self._divergence(scores, wanted, feed['weights'], feed['valid_length']),
        )
        return (self._loss(scores, feed['labels'], feed['weights'], *lengths), *taught)


class SentenceMatching(Taught, Scored):
    """The states of a teacher and the embeddings of sentences; there are no labels.

    Parameters
    ----------
    model : OptBERTModel
        Built with `OF_LAST_STATE` and the `Weights.output`.
    workers : Workers
    train : Features
    measure : callable
        The embeddings' scores of a model, in percent.
    **more
        ``teacher``, ``match``, ``weights`` and ``phase``, as of `Taught.learn`.
    """

    def __init__(
        self,
        model: OptBERTModel,
        workers: Workers,
        train: Features,
        measure: Callable[[OptBERTModel], TaskScores],
        **more: Any,
    ):
        super().__init__(model, workers)
        self._train, self._measure = train, measure
        self.learn({}, **more)

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        return batches_from(self._train, phase, start, self.workers)

    def evaluate(self, phase: Phase) -> dict[str, float]:
        self._last = self._measure(self.model)
        return dict(self._last.scores)

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        return dataclasses.replace(self._last, scores=dict(scores))


def batches_from(
    features: Features, phase: Phase, start: int, workers: Workers
) -> Generator[TaskBatch, None, None]:
    """This worker's share of every batch from number `start` on."""
    return training_batches(
        features,
        batch_size=phase.batch_size,
        tokens=phase.batch_tokens,
        seed=phase.seed,
        start=start,
        rank=workers.rank,
        workers=workers.size,
        passes=phase.accumulate,
    )


class _OnFeatures(PruningObjective):
    """An objective whose data are features of instances in memory.

    Attributes
    ----------
    train, heldout : Features
        To train on, and the first set to measure on.
    """

    recipe: TaskPruneRecipe
    train: Features
    heldout: Features

    @staticmethod
    def _trimmed(saved: SavedModel, recipe: TaskPruneRecipe) -> tuple[SavedModel, dict[str, bytes]]:
        """The network as the run begins with it, and what is said of its vocabulary."""
        saved = untrimmed(saved)
        if not recipe.trim:
            return saved, {}
        trimmed = trim_to_text(saved, recipe.trim, count=recipe.trim_count)
        settings = {'model': str(recipe.model), 'text': list(map(str, recipe.trim))}
        record = record_of(trimmed, {**settings, 'count': recipe.trim_count}, recipe.model)
        return trimmed_start(saved, trimmed.model.vocabulary), {TRIM: record.to_bytes()}

    def _read_teacher(self, max_length: int, *, pairs: bool) -> SavedModel | None:
        """The network that is learnt from; ValueError if it cannot teach, or cannot read the data."""
        recipe, start = self.recipe, self.start
        if recipe.taught in (None, 'parent'):
            return start if recipe.taught else None
        teacher = fitting_teacher(read_model(Path(recipe.taught)), start)
        of_states = recipe.teaching().same_width
        check_teacher(teacher, start, states=of_states, heads=False, source=recipe.taught)
        check_fits(max_length, teacher, pairs=pairs, name=f'the teacher {recipe.taught}')
        if not teacher.head.fits(start.head):
            raise ValueError(
                f'{recipe.taught}: the teacher was trained for {teacher.head.described}, the network that it '
                f'is to teach for {start.head.described}'
            )
        return teacher

    def instances_held_out(self) -> int:
        return len(self.heldout)

    def _fixed(self, saved: SavedModel, **settings: Any) -> OptBERTModel:
        """A network that is measured."""
        return self.build(saved, trainable=False, **settings)

    def round_steps(self) -> tuple[int, int]:
        gates, steps, phase = self.recipe.gate_steps(), self.recipe.steps, self.recipe.phase('', 0)
        epoch = steps_per_epoch(self.train, phase.batch_size, phase.batch_tokens)
        return gates, epoch if steps is None else steps

    def batches(self, phase: Phase) -> Generator[TaskBatch, None, None]:
        return batches_from(self.train, phase, phase.first_batch, self.workers)

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        """In the order of the held-out features, of the first ones."""
        return self._embeddings(self._fixed(saved, **OF_LAST_STATE))

    def _embeddings(self, model: OptBERTModel) -> np.ndarray:
        return embed(model, token_batches(self.heldout, BATCH_TOKENS, most=EMBEDDED))

    def sample_inputs(self, count: int) -> dict[str, np.ndarray]:
        batch = batch_of(self.heldout, np.arange(min(count, len(self.heldout))))
        return {name: getattr(batch, name) for name in TOKEN_INPUTS}


class TaskObjective(_OnFeatures):
    """Pruning for the task that a network was fine-tuned for; parameters and errors as in
    `PruningObjective`.
    """

    def __init__(self, recipe: TaskPruneRecipe, start: SavedModel, workers: Workers):
        super().__init__(recipe, start, workers)
        self._reading = finetuning_recipe(recipe, start)
        prepare = prepare_squad if isinstance(self._reading, SquadRecipe) else prepare_glue
        self._exercise: Exercise = prepare(self._reading, start, workers=workers)
        head = self._exercise.head
        if head != start.head:
            kinds = f': its head is of {start.head.kind}, and the task wants one of {head.kind}'
            remedy = labels_remedy(start.head, head)
            raise ValueError(
                f'{recipe.model} was fine-tuned for {start.head.described}, and the task is {head.described}'
                + (kinds if head.kind != start.head.kind else '')
                + (f'; {remedy}fine-tune it first' if remedy else '')
            )
        self.train, self.heldout = self._exercise.train, next(iter(self._exercise.heldout.values()))
        pairs = bool((self.train.seconds < self.train.lengths).any())
        self._teaching = self._read_teacher(self._reading.max_length, pairs=pairs)
        # with the head of a task, states come only as those of all layers
        output = {**recipe.teaching().output, 'output_all_encodings': True} if self._teaching else {}
        self.gate_settings = self.recovery_settings = output

    @staticmethod
    def read(recipe: TaskPruneRecipe) -> tuple[SavedModel, dict[str, bytes]]:
        saved = without_gates(read_model(recipe.model))
        if saved.head == PRETRAINING:
            raise ValueError(
                f'{recipe.model} has no head of a task; fine-tune it first, or, to keep the embeddings of '
                f'sentences, give --task {SENTENCES}'
            )
        saved = in_labels_of(saved, finetuning_recipe(recipe, saved).head(saved))
        return TaskObjective._trimmed(saved, recipe)

    @property
    def recipe_of_models(self) -> dict[str, Any]:
        """With the task, and how its data are read, as fine-tuned models have it."""
        reading = to_dict(self._reading)
        names = [name for name in ('task', 'version', *_READING, *OwnData.OWN_DATA) if name in reading]
        return {**super().recipe_of_models, **{name: reading[name] for name in names}}

    def _teacher_of(self, saved: SavedModel) -> Teacher:
        more = {'precision': self.recipe.precision, 'output': self.recovery_settings}
        return Teacher(saved, self.workers, **more)

    @functools.cached_property
    def _teacher(self) -> Teacher:
        return self._teacher_of(self._teaching)

    @functools.cached_property
    def _gate_teacher(self) -> Teacher:
        return self._teacher if self._teaching is self.start else self._teacher_of(self.start)

    def labelled(self, model: OptBERTModel, phase: Phase) -> TaskTraining:
        return TaskTraining(model, self.workers, self._exercise, self._reading)

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> TaskTraining:
        weights = self.recipe.teaching().for_gates
        if not self.recipe.gate_teacher:
            return self._taught(model, phase, match, weights)
        weights = Weights(labels=0.0, scores=0.0, temperature=weights.temperature)
        return self._taught(model, phase, match, weights, self._gate_teacher)

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> TaskTraining:
        return self._taught(model, phase, match, self.recipe.teaching())

    def _taught(
        self,
        model: OptBERTModel,
        phase: Phase,
        match: Match,
        weights: Weights,
        teacher: Teacher | None = None,
    ) -> TaskTraining:
        if self._teaching is None:
            return self.labelled(model, phase)
        taught = {'teacher': teacher or self._teacher, 'match': match, 'weights': weights, 'phase': phase}
        return TaskDistillation(model, self.workers, self._exercise, self._reading, **taught)

    def evaluate(self, saved: SavedModel) -> TaskScores:
        phase = self.recipe.phase('evaluation', 0)
        training = self.labelled(self._fixed(saved), phase)
        return training.measured(training.evaluate(phase))

    def difference_error(self, one: SavedModel, other: SavedModel) -> float | None:
        """Of an accuracy, in percentage points; None for other scores, which are no means over instances."""
        if self._exercise.metric != 'accuracy':
            return None
        name, phase = next(iter(self._exercise.heldout)), self.recipe.phase('evaluation', 0)
        trainings = (self.labelled(self._fixed(saved), phase) for saved in (one, other))
        scores = [training.scores({name: self.heldout})[name] for training in trainings]
        return difference_error(*(self._exercise.right(name, own) for own in scores))


class SentenceObjective(_OnFeatures):
    """Pruning for the embeddings of sentences, without labels; parameters and errors as in
    `PruningObjective`.

    The embedding of a sentence is the mean of its tokens' states. What is measured is whether all pairs of
    held-out sentences keep their order: ``pair_similarity`` is the rank correlation of their cosines with
    those of the network before pruning, in percent.
    """

    labelled_settings = OF_LAST_STATE
    states_alone = reports_embeddings = True

    def __init__(self, recipe: TaskPruneRecipe, start: SavedModel, workers: Workers):
        super().__init__(recipe, start, workers)
        self.train, self.heldout = read_sentences(recipe, start)
        weights = recipe.teaching()
        self.recovery_settings = {**OF_LAST_STATE, **weights.output}
        self.gate_settings = {**OF_LAST_STATE, **weights.for_gates.output}
        if weights.embeddings > 0 and (recipe.trains_gates or recipe.recovers):
            check_pairs(fewest_rows(self.train, recipe.phase('', 0).batch_tokens), recipe.accumulate)
        self._teaching = self._read_teacher(_sentence_length(recipe, start), pairs=False)

    @staticmethod
    def read(recipe: TaskPruneRecipe) -> tuple[SavedModel, dict[str, bytes]]:
        saved = without_gates(read_model(recipe.model))
        if saved.head != PRETRAINING:
            raise ValueError(
                f'{recipe.model} has the head of {saved.head.task or saved.head.kind}; leave --task out'
            )
        return SentenceObjective._trimmed(saved, recipe)

    @functools.cached_property
    def _teacher(self) -> Teacher:
        more = {'precision': self.recipe.precision, 'output': self.recipe.teaching().output}
        return Teacher(self._teaching, self.workers, heads=False, **more)

    @functools.cached_property
    def _wanted(self) -> np.ndarray:
        return self.embeddings(self.start)

    def labelled(self, model: OptBERTModel, phase: Phase) -> Objective:
        """There are no labels; what counts is how the embeddings change."""
        return EmbeddingProbe(
            model, self.workers, lambda phase, start: batches_from(self.train, phase, start, self.workers)
        )

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> SentenceMatching:
        return self._matching(model, phase, match, self.recipe.teaching().for_gates)

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> SentenceMatching:
        return self._matching(model, phase, match, self.recipe.teaching())

    def _matching(
        self, model: OptBERTModel, phase: Phase, match: Match, weights: Weights
    ) -> SentenceMatching:
        taught = {'teacher': self._teacher, 'match': match, 'weights': weights, 'phase': phase}
        return SentenceMatching(model, self.workers, self.train, self._measure, **taught)

    def evaluate(self, saved: SavedModel) -> TaskScores:
        return self._measure(self._fixed(saved, **OF_LAST_STATE))

    def _measure(self, model: OptBERTModel) -> TaskScores:
        own = pair_similarity(self._wanted, self._embeddings(model))
        # Each worker computes it alone; where their processors round differently, they must still agree.
        score = self.workers.sum([100 * own], name='similarity')[0]
        name = 'heldout/pair_similarity'
        return TaskScores({name: score / self.workers.size}, name, len(self._wanted))


def finetuning_recipe(recipe: TaskPruneRecipe, saved: SavedModel) -> GlueRecipe | SquadRecipe:
    """Reading of the data of the model's task: as its fine-tuning read them, unless the recipe says more.

    Raises
    ------
    ValueError
        If neither the recipe nor the model names a task, or the name is that of none.
    """
    stated = {name for name in OwnData.OWN_DATA if not recipe.is_default(name)}
    own = recipe.task is None and bool(stated & {'text', 'label', 'kind'})
    task = None if own else recipe.task or saved.recipe.get('task') or saved.head.task
    own = own or not task and bool(saved.head.columns or recipe.data and recipe.data.is_file())
    if not task and not own:
        raise ValueError(
            f'{recipe.model} has a head of {saved.head.described}, and its task is not known; name it with '
            '--task, or give a table as --data'
        )
    squad = _SQUAD.match(str(task))
    kind = SquadRecipe if squad else GlueRecipe
    read = (*_READING, *OwnData.OWN_DATA) if own else _READING
    values: dict[str, Any] = {name: saved.recipe[name] for name in read if saved.recipe.get(name) is not None}
    values.update(
        {'version': f'{squad.group(1)}.{2 - int(squad.group(1))}'} if squad else {'task': task or None}
    )
    if own and saved.head.columns:
        values.update(text=saved.head.columns[:-1], label=saved.head.columns[-1])
    values.update({name: getattr(recipe, name) for name in stated})
    for name in ('model', 'output', 'data', 'limit', 'evaluation_limit', 'max_length', 'batch_size'):
        if getattr(recipe, name) is not None:
            values[name] = getattr(recipe, name)
    return fill(kind, {name: value for name, value in values.items() if name in kind.model_fields})


def _sentence_length(recipe: TaskPruneRecipe, saved: SavedModel) -> int:
    """The most tokens of a sentence."""
    return recipe.max_length or min(128, saved.architecture.max_length)


def read_sentences(recipe: TaskPruneRecipe, saved: SavedModel) -> tuple[Features, Features]:
    """The sentences to train on, and those held out: a 20th, drawn at random, but at least 10 and at most
    512.

    Raises
    ------
    ValueError, FileNotFoundError
        If there are none, or too few; or the recipe wants too few of them, or too few tokens of each.
    """
    length = _sentence_length(recipe, saved)
    most = EMBEDDED if recipe.evaluation_limit is None else recipe.evaluation_limit
    for name, value, least in (
        ('max_length', length, _SHORTEST),
        ('evaluation_limit', most, _FEWEST_HELD_OUT),
    ):
        if value < least:
            raise ValueError(f'{name} must be at least {least} for the task {SENTENCES}, found {value}')
    check_fits(length, saved, pairs=False)
    paths = sorted(recipe.data.rglob('*.txt')) if recipe.data.is_dir() else [recipe.data]
    lines = ['\t'.join(cells).strip() for path in paths for cells in read_lines(path)]
    whole = [line for line in lines if line]
    sentences = whole[: recipe.limit]
    if len(sentences) < _FEWEST:
        left = f' left by --limit {recipe.limit}' if len(sentences) < len(whole) else ''
        raise ValueError(
            f'{recipe.data}: {len(sentences)} sentences{left}, and at least {_FEWEST} are needed'
        )
    order = np.random.RandomState(0).permutation(len(sentences))
    held = order[: min(EMBEDDED, most, max(_FEWEST_HELD_OUT, len(order) // _HELD_OUT))]
    read = make_reader(saved.vocabulary, max_length=length)
    return tuple(
        read([(sentences[i],) for i in rows]) for rows in (np.sort(order[len(held) :]), np.sort(held))
    )
