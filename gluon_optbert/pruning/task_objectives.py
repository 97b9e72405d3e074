"""The objective of a fine-tuned network: its task."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..architecture.heads import PRETRAINING
from ..architecture.rounds import Round
from ..cutting.shrink import without_gates
from ..finetuning.distillation import TaughtFineTuning, states_for
from ..finetuning.objective import Exercise, FineTuning, in_labels_of, labels_remedy
from ..finetuning.recipes import GlueRecipe, SquadRecipe, prepare_glue, prepare_squad
from ..network.model import OptBERTModel
from ..network.saved_model import SavedModel, read_model
from ..runs.progress import TaskScores, marked, paired_error
from ..runs.recipe import fill, to_dict
from ..runs.starting import flag
from ..tasks.features import token_batches
from ..tasks.own_data import OwnData
from ..tasks.scoring import squad_version
from ..tasks.squad import Reading
from ..training.distillation import OF_STATES, Match, Teacher, Weights
from ..training.distributed import Workers
from ..training.objective import Phase
from .algorithm import run_algorithm
from .features_objective import FeaturesObjective, Scored
from .objectives import EMBEDDED, Known, embed
from .recipe import BATCH_TOKENS, SENTENCES, TaskPruneRecipe
from .sentence_objective import SentenceObjective

_READING = (*Reading.model_fields, 'evaluation_tokens')


def prune_task(recipe: TaskPruneRecipe, *, workers: Workers | None = None) -> list[Round]:
    """Prune a fine-tuned network, or an encoder of sentences, as `algorithm.prune` does one of pre-training:
    with the same results and errors.
    """
    kind = SentenceObjective if recipe.task == SENTENCES else TaskObjective
    return run_algorithm(kind, recipe, workers or Workers())


class TaskTraining(Scored, FineTuning):
    """Fine-tuning, measured as pruning reports it; the parameters are those of `FineTuning`."""

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        """The standard error is known of a mean over instances."""
        exercise, name = self._exercise, next(iter(self._exercise.heldout))
        metric, instances, error, marks = exercise.decisive, exercise.samples[name], None, None
        if exercise.credits is not None:
            credits = exercise.credits(name, self.heldout_scores[name])
            error, marks = 100 * float(credits.std()) / math.sqrt(instances), marked(credits)
        return TaskScores(dict(scores), metric, instances, error, exercise.majority.get(metric), marks)


class TaskDistillation(TaskTraining, TaughtFineTuning):
    """Fine-tuning with a teacher, measured as pruning reports it; the parameters are those of
    `TaughtFineTuning`.
    """


class TaskObjective(FeaturesObjective):
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
        self._teaching = self._read_teacher(self._reading.max_length, pairs=self.train.has_pairs)
        output = states_for(recipe.teaching()) if self._teaching else {}
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

    @functools.cached_property
    def _teacher(self) -> Teacher:
        return self.teacher(self._teaching, heads=True, output=self.recovery_settings)

    @functools.cached_property
    def _gate_teacher(self) -> Teacher:
        if self._teaching is self.start:
            return self._teacher
        return self.teacher(self.start, heads=True, output=self.recovery_settings)

    def labelled(self, model: OptBERTModel) -> TaskTraining:
        return TaskTraining(model, self.workers, self._exercise, self._reading)

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> TaskTraining:
        if not self.recipe.gate_teacher:
            return super().gates(model, phase, match)
        weights = Weights(labels=0.0, scores=0.0, temperature=self.recipe.temperature)
        return self._taught(model, phase, match, weights, self._gate_teacher)

    def _taught(
        self,
        model: OptBERTModel,
        phase: Phase,
        match: Match,
        weights: Weights,
        teacher: Teacher | None = None,
    ) -> TaskTraining:
        if self._teaching is None:
            return self.labelled(model)
        taught = {'teacher': teacher or self._teacher, 'match': match, 'weights': weights, 'phase': phase}
        return TaskDistillation(model, self.workers, self._exercise, self._reading, **taught)

    def evaluate(self, saved: SavedModel) -> TaskScores:
        phase = self.recipe.phase('evaluation', 0)
        training = self.labelled(self._fixed(saved))
        return training.measured(training.evaluate(phase))

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        """In the order of the held-out features, of the first ones."""
        batches = token_batches(self.heldout, BATCH_TOKENS, most=EMBEDDED)
        # with the head of a task the last state alone is no output
        return embed(self._fixed(saved, **OF_STATES), batches)

    def difference_error(self, one: Known, other: Known) -> float | None:
        """In percentage points; None for scores that are no means over instances."""
        marks = ([measured.right or ''] if measured else [] for _, measured in (one, other))
        return paired_error((), *marks)


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
    version = squad_version(str(task))
    kind = SquadRecipe if version else GlueRecipe
    unread = sorted(stated - {*kind.model_fields})
    if unread:
        raise ValueError(f'{", ".join(map(flag, unread))}: about a table, and the task is SQuAD {version}')
    read = (*_READING, *OwnData.OWN_DATA) if own else _READING
    values: dict[str, Any] = {name: saved.recipe[name] for name in read if saved.recipe.get(name) is not None}
    values.update({'version': version} if version else {'task': task or None})
    if own and saved.head.columns:
        values.update(text=saved.head.columns[:-1], label=saved.head.columns[-1])
    values.update({name: getattr(recipe, name) for name in stated})
    for name in ('model', 'output', 'data', 'limit', 'evaluation_limit', 'max_length', 'batch_size'):
        if getattr(recipe, name) is not None:
            values[name] = getattr(recipe, name)
    return fill(kind, {name: value for name, value in values.items() if name in kind.model_fields})
