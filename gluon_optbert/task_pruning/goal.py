"""What a fine-tuned network is pruned for: its task, or the embeddings of sentences."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, Dict, Generator, Mapping, Optional, Tuple, Type, Union

import numpy as np
from mxnet import gluon
from scipy.stats import spearmanr

from ..architecture.heads import PRETRAINING
from ..cutting.shrink import without_gates
from ..finetuning.objective import Exercise, check_fits
from ..finetuning.recipes import GlueRecipe, SquadRecipe, prepare_glue, prepare_squad
from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel
from ..network.saved_model import SavedModel, read_model
from ..pruning.embeddings import INSTANCES, embed
from ..pruning.goal import Goal, below_heads, fitting_teacher, trimmed_start, untrimmed
from ..pruning.trimming import record_of, trim_to_text
from ..runs.progress import TaskScores, difference_error
from ..runs.recipe import fill, to_dict
from ..tasks.examples import read_lines
from ..tasks.features import Features, TaskBatch, batch_of, make_reader, steps_per_epoch
from ..text.trimming import TRIM
from ..training.distillation import OF_STATES, Match, Teacher, Weights, check_pairs, check_teacher
from ..training.distributed import Workers
from ..training.objective import Objective, Phase
from .objective import EmbeddingProbe, SentenceMatching, TaskDistillation, TaskTraining, stream
from .recipe import SENTENCES, TaskPruneRecipe

_SQUAD = re.compile(r'squad(?:v|-|_|\s)*([12])(?:\.[01])?$', re.IGNORECASE)
_READING = (
    'max_length',
    'stride',
    'max_question',
    'max_answer',
    'n_best',
    'null_threshold',
    'evaluation_tokens',
)
_HELD_OUT = 20  # one sentence of so many is held out
_FEWEST = 40  # sentences
_FEWEST_HELD_OUT = 10  # have 45 pairs
_SHORTEST = 3  # tokens of a sentence: [CLS], one of its own, [SEP]


def finetuning_recipe(recipe: TaskPruneRecipe, saved: SavedModel) -> Union[GlueRecipe, SquadRecipe]:
    """How the data of the model's task are read: as its fine-tuning read them, unless the recipe says more.

    Raises
    ------
    ValueError
        If neither the recipe nor the model names a task, or the name is that of none.
    """
    task = recipe.task or saved.recipe.get('task') or saved.head.task
    if not task:
        raise ValueError(
            f'{recipe.model} has a head of {saved.head.described}, and its task is not known; name it with '
            '--task'
        )
    squad = _SQUAD.match(str(task))
    kind = SquadRecipe if squad else GlueRecipe
    values: Dict[str, Any] = {
        name: saved.recipe[name] for name in _READING if saved.recipe.get(name) is not None
    }
    values.update({'version': f'{squad.group(1)}.{2 - int(squad.group(1))}'} if squad else {'task': task})
    for name in ('model', 'output', 'data', 'limit', 'evaluation_limit', 'max_length', 'batch_size'):
        if getattr(recipe, name) is not None:
            values[name] = getattr(recipe, name)
    return fill(kind, {name: value for name, value in values.items() if name in kind.model_fields})


class TaskGoal(Goal):
    """Pruning for the task that a network was fine-tuned for; parameters and errors as in `Goal`."""

    recipe: TaskPruneRecipe

    def __init__(self, recipe: TaskPruneRecipe, start: SavedModel, workers: Workers):
        super().__init__(recipe, start, workers)
        self._reading = finetuning_recipe(recipe, start)
        self._exercise = self._prepared()
        head = self._exercise.head
        if head != start.head:
            kinds = f': its head is of {start.head.kind}, and the task wants one of {head.kind}'
            raise ValueError(
                f'{recipe.model} was fine-tuned for {start.head.described}, and the task is {head.described}'
                + (kinds if head.kind != start.head.kind else '')
            )
        train = self._exercise.train
        pairs = bool((train.seconds < train.lengths).any())
        self._teaching = _read_teacher(recipe, start, self._reading.max_length, pairs=pairs)

    @staticmethod
    def read(recipe: TaskPruneRecipe) -> Tuple[SavedModel, Dict[str, bytes]]:
        saved = without_gates(read_model(recipe.model))
        if saved.head == PRETRAINING:
            raise ValueError(
                f'{recipe.model} has no head of a task; fine-tune it first, or, to keep the embeddings of '
                f'sentences, give --task {SENTENCES}'
            )
        head = finetuning_recipe(recipe, saved).head()
        if saved.head != head and saved.head.fits(head):
            saved = dataclasses.replace(saved, head=head)
        return _trimmed(saved, recipe)

    def _prepared(self) -> Exercise:
        if isinstance(self._reading, SquadRecipe):
            return prepare_squad(self._reading, self.start, workers=self.workers)
        return prepare_glue(self._reading, self.start, workers=self.workers)

    @property
    def recipe_of_models(self) -> Dict[str, Any]:
        """With the task, and how its data are read, as fine-tuned models have it."""
        reading = to_dict(self._reading)
        names = [name for name in ('task', 'version', *_READING) if name in reading]
        return {**super().recipe_of_models, **{name: reading[name] for name in names}}

    def round_steps(self) -> Tuple[int, int]:
        gates, steps = self.recipe.gate_steps(), self.recipe.steps
        whole = steps_per_epoch(self._exercise.train, self.recipe.batch_size)
        return gates, whole if steps is None else steps

    @property
    def recovery_settings(self) -> Mapping[str, Any]:
        return {'output_all_encodings': self._teaching is not None}

    @property
    def gate_settings(self) -> Mapping[str, Any]:
        return self.recovery_settings

    @functools.cached_property
    def _teacher(self) -> Optional[Teacher]:
        if self._teaching is None:
            return None
        return Teacher(self._teaching, self.workers, precision=self.recipe.precision)

    @functools.cached_property
    def _gate_teacher(self) -> Teacher:
        if self._teaching is self.start:
            return self._teacher
        return Teacher(self.start, self.workers, precision=self.recipe.precision)

    def batches(self, phase: Phase) -> Generator[TaskBatch, None, None]:
        return stream(self._exercise.train, phase, phase.first_batch, self.workers)

    def labelled(self, model: OptBERTModel, phase: Phase) -> TaskTraining:
        return TaskTraining(model, self.workers, self._exercise, self._reading)

    def _trained(
        self, model: OptBERTModel, phase: Phase, match: Match, weights: Weights, teacher: Optional[Teacher]
    ) -> TaskTraining:
        if teacher is None:
            return self.labelled(model, phase)
        taught = {'teacher': teacher, 'match': match, 'weights': weights, 'phase': phase}
        return TaskDistillation(model, self.workers, self._exercise, self._reading, **taught)

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> TaskTraining:
        weights = self.recipe.teaching()
        if self.recipe.gate_teacher:
            weights = dataclasses.replace(weights, labels=0.0, scores=0.0, states=1.0)
            return self._trained(model, phase, match, weights, self._gate_teacher)
        return self._trained(model, phase, match, weights, self._teacher)

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> TaskTraining:
        return self._trained(model, phase, match, self.recipe.teaching(), self._teacher)

    def evaluate(self, saved: SavedModel) -> TaskScores:
        objective = self.labelled(self.build(saved, trainable=False), self.recipe.phase('evaluation', 0))
        return objective.measured(objective.evaluate(self.recipe.phase('evaluation', 0)))

    def difference_error(self, one: SavedModel, other: SavedModel) -> Optional[float]:
        """Of an accuracy, in percentage points; None for other scores, which are no means over instances."""
        if self._exercise.metric != 'accuracy':
            return None
        name, features = next(iter(self._exercise.heldout.items()))
        networks = (self.build(saved, trainable=False) for saved in (one, other))
        phase = self.recipe.phase('evaluation', 0)
        scores = [self.labelled(network, phase).scores({name: features})[name] for network in networks]
        return difference_error(*(self._exercise.right(name, own) for own in scores))

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        features = next(iter(self._exercise.heldout.values()))
        return _embeddings(self.build(saved, trainable=False, **OF_STATES), features)

    def sample_inputs(self, count: int) -> Dict[str, np.ndarray]:
        return _first_inputs(next(iter(self._exercise.heldout.values())), count)


class SentenceGoal(Goal):
    """Pruning for the embeddings of sentences, without labels; parameters and errors as in `Goal`.

    The embedding of a sentence is the mean of its tokens' states. What is measured is whether all pairs of
    held-out sentences keep their order: ``pair_similarity`` is the rank correlation of their cosines with
    those of the network before pruning, in percent.
    """

    recipe: TaskPruneRecipe
    labelled_settings = gate_settings = recovery_settings = OF_STATES

    def __init__(self, recipe: TaskPruneRecipe, start: SavedModel, workers: Workers):
        super().__init__(recipe, start, workers)
        if recipe.teacher_weights['embeddings'] > 0 and (recipe.trains_gates or recipe.steps != 0):
            check_pairs(recipe.batch_size, recipe.accumulate, workers.size)
        self._train, self._heldout = read_sentences(recipe, start)
        self._teaching = _read_teacher(recipe, start, _sentence_length(recipe, start), pairs=False)

    @staticmethod
    def read(recipe: TaskPruneRecipe) -> Tuple[SavedModel, Dict[str, bytes]]:
        saved = without_gates(read_model(recipe.model))
        if saved.head != PRETRAINING:
            raise ValueError(
                f'{recipe.model} has the head of {saved.head.task or saved.head.kind}; leave --task out'
            )
        return _trimmed(saved, recipe)

    def round_steps(self) -> Tuple[int, int]:
        gates, steps = self.recipe.gate_steps(), self.recipe.steps
        return gates, steps_per_epoch(self._train, self.recipe.batch_size) if steps is None else steps

    @functools.cached_property
    def _teacher(self) -> Teacher:
        return Teacher(self._teaching, self.workers, precision=self.recipe.precision, heads=False)

    @functools.cached_property
    def _wanted(self) -> np.ndarray:
        return _embeddings(self.build(self.start, trainable=False, **OF_STATES), self._heldout)

    def batches(self, phase: Phase) -> Generator[TaskBatch, None, None]:
        return stream(self._train, phase, phase.first_batch, self.workers)

    def labelled(self, model: OptBERTModel, phase: Phase) -> Objective:
        """There are no labels; what counts is how the embeddings change."""
        return EmbeddingProbe(model, self.workers, self._train)

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> SentenceMatching:
        return self.recovery(model, phase, match)

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> SentenceMatching:
        return SentenceMatching(
            model,
            self.workers,
            self._train,
            self._measure,
            teacher=self._teacher,
            match=match,
            weights=self.recipe.teaching(),
            phase=phase,
        )

    def recovered_parameters(self, model: OptBERTModel) -> Optional[Dict[str, gluon.Parameter]]:
        return below_heads(model)

    def evaluate(self, saved: SavedModel) -> TaskScores:
        return self._measure(self.build(saved, trainable=False, **OF_STATES))

    def _measure(self, model: OptBERTModel) -> TaskScores:
        one, other = (
            (values @ values.T)[np.triu_indices(len(values), 1)]
            for values in (self._wanted, _embeddings(model, self._heldout))
        )
        # Each worker computes it alone; where their processors round differently, they must still agree.
        score = self.workers.sum([100 * float(spearmanr(one, other)[0])], name='similarity')[0]
        name = 'heldout/pair_similarity'
        return TaskScores({name: score / self.workers.size}, name, len(self._wanted))

    @property
    def reports_embeddings(self) -> bool:
        return True

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        return _embeddings(self.build(saved, trainable=False, **OF_STATES), self._heldout)

    def sample_inputs(self, count: int) -> Dict[str, np.ndarray]:
        return _first_inputs(self._heldout, count)


def goal_of(recipe: TaskPruneRecipe) -> Type[Goal]:
    """The goal that a recipe names."""
    return SentenceGoal if recipe.task == SENTENCES else TaskGoal


def _trimmed(saved: SavedModel, recipe: TaskPruneRecipe) -> Tuple[SavedModel, Dict[str, bytes]]:
    """The network as the run begins with it, and what is said of its vocabulary."""
    saved = untrimmed(saved)
    if not recipe.trim:
        return saved, {}
    trimmed = trim_to_text(saved, recipe.trim, count=recipe.trim_count)
    settings = {'model': str(recipe.model), 'text': list(map(str, recipe.trim)), 'count': recipe.trim_count}
    record = record_of(trimmed, settings, recipe.model)
    return trimmed_start(saved, trimmed.model.vocabulary), {TRIM: record.to_bytes()}


def _read_teacher(
    recipe: TaskPruneRecipe, start: SavedModel, max_length: int, *, pairs: bool
) -> Optional[SavedModel]:
    """The network that is learnt from; ValueError if it cannot teach, or cannot read the data."""
    if recipe.taught in (None, 'parent'):
        return start if recipe.taught else None
    teacher = fitting_teacher(read_model(Path(recipe.taught)), start)
    weights = recipe.teaching()
    check_teacher(teacher, start, states=weights.same_width, heads=False, source=recipe.taught)
    check_fits(max_length, teacher, pairs=pairs, name=f'the teacher {recipe.taught}')
    if not teacher.head.fits(start.head):
        raise ValueError(
            f'{recipe.taught}: the teacher was trained for {teacher.head.described}, the network that it is '
            f'to teach for {start.head.described}'
        )
    return teacher


def _sentence_length(recipe: TaskPruneRecipe, saved: SavedModel) -> int:
    """The most tokens of a sentence."""
    return recipe.max_length or min(128, saved.architecture.max_length)


def read_sentences(recipe: TaskPruneRecipe, saved: SavedModel) -> Tuple[Features, Features]:
    """The sentences to train on, and those held out: a 20th, drawn at random, but at least 10 and at most
    512.

    Raises
    ------
    ValueError, FileNotFoundError
        If there are none, or too few; or the recipe wants too few of them, or too few tokens of each.
    """
    length = _sentence_length(recipe, saved)
    if length < _SHORTEST:
        raise ValueError(f'max_length must be at least {_SHORTEST}, found {length}')
    check_fits(length, saved, pairs=False)
    most = INSTANCES if recipe.evaluation_limit is None else recipe.evaluation_limit
    if most < _FEWEST_HELD_OUT:
        raise ValueError(
            f'evaluation_limit must be at least {_FEWEST_HELD_OUT} for the task {SENTENCES}, found {most}'
        )
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
    held = order[: min(INSTANCES, most, max(_FEWEST_HELD_OUT, len(order) // _HELD_OUT))]
    read = make_reader(saved.vocabulary, max_length=length)
    return tuple(
        read([(sentences[i],) for i in rows]) for rows in (np.sort(order[len(held) :]), np.sort(held))
    )


def _embeddings(model: OptBERTModel, features: Features) -> np.ndarray:
    """As `Goal.embeddings`, in the order of the features, of the first ones."""
    rows = np.arange(min(INSTANCES, len(features)))
    return embed(model, (batch_of(features, part) for part in np.array_split(rows, -(-len(rows) // 64))))


def _first_inputs(features: Features, count: int) -> Dict[str, np.ndarray]:
    batch = batch_of(features, np.arange(min(count, len(features))))
    return {name: getattr(batch, name) for name in TOKEN_INPUTS}
