"""Common part of objectives on features of instances: tasks, and the embeddings of sentences."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..finetuning.distillation import fitting_task
from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel
from ..network.saved_model import SavedModel, read_model
from ..runs.progress import Progress, TaskScores
from ..tasks.features import Features, TaskBatch, batch_of, steps_per_epoch, training_batches
from ..text.trimming import TRIM
from ..training.distillation import Match, Weights, check_teacher
from ..training.objective import Objective, Phase
from .objectives import PruningObjective, fitting_teacher, with_whole
from .recipe import TaskPruneRecipe
from .trimming import record_of, trim_to_text


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


class FeaturesObjective(PruningObjective):
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
        saved = with_whole(saved, None)
        if not recipe.trim:
            return saved, {}
        trimmed = trim_to_text(saved, recipe.trim, count=recipe.trim_count)
        settings = {'model': str(recipe.model), 'text': list(map(str, recipe.trim))}
        record = record_of(trimmed, {**settings, 'count': recipe.trim_count}, recipe.model)
        return with_whole(trimmed.model, len(saved.vocabulary)), {TRIM: record.to_bytes()}

    def _read_teacher(self, max_length: int, *, pairs: bool) -> SavedModel | None:
        """The network that is learnt from; ValueError if it cannot teach, or cannot read the data."""
        recipe, start = self.recipe, self.start
        if recipe.taught in (None, 'parent'):
            return start if recipe.taught else None
        teacher = fitting_teacher(read_model(Path(recipe.taught)), start)
        weights = recipe.teaching()
        needed = {'units': weights.same_width, 'layers': weights.same_layers, 'heads': False}
        check_teacher(teacher, start, **needed, source=recipe.taught)
        return fitting_task(teacher, start.head, source=recipe.taught, max_length=max_length, pairs=pairs)

    def instances(self) -> int:
        return len(self.train)

    def instances_held_out(self) -> int:
        return len(self.heldout)

    def _fixed(self, saved: SavedModel, **settings: Any) -> OptBERTModel:
        """A network that is measured."""
        return self.build(saved, trainable=False, **settings)

    def round_steps(self) -> tuple[int, int]:
        steps, phase = self.recipe.steps, self.recipe.phase('', 0)
        if steps is None:
            steps = steps_per_epoch(self.train, phase.batch_size, phase.batch_tokens)
        return self.recipe.gate_steps(), steps

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        return self._taught(model, phase, match, self.recipe.teaching().for_gates)

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        return self._taught(model, phase, match, self.recipe.teaching())

    def _taught(self, model: OptBERTModel, phase: Phase, match: Match, weights: Weights) -> Objective:
        """The losses of the teacher's parts, and perhaps of the labels."""
        raise NotImplementedError

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        return training_batches(
            self.train,
            batch_size=phase.batch_size,
            tokens=phase.batch_tokens,
            seed=phase.seed,
            start=start,
            rank=self.workers.rank,
            workers=self.workers.size,
            passes=phase.accumulate,
        )

    def sample_inputs(self, count: int) -> dict[str, np.ndarray]:
        batch = batch_of(self.heldout, np.arange(min(count, len(self.heldout))))
        return {name: getattr(batch, name) for name in TOKEN_INPUTS}
