"""Pruning for pre-training: MLM and NSP on shards, and perhaps a teacher."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Dict, Generator, Mapping, Optional, Tuple

import numpy as np
from mxnet import gluon

from ..network.model import OptBERTModel
from ..network.saved_model import SavedModel, read_model
from ..runs.progress import HeldOut
from ..text.batches import Batch, check_memory, evaluation_batches, stream
from ..text.shards import Shards
from ..training.distillation import (
    OF_STATES,
    Distillation,
    Match,
    StateMatching,
    Teacher,
    check_pairs,
    check_teacher,
)
from ..training.distributed import Workers
from ..training.held_out import Losses, difference, losses_of
from ..training.objective import Phase
from ..training.pretrain import Pretraining
from ..training.recipe import check_shards_fit, open_shards
from .embeddings import INSTANCES, embed
from .goal import Goal, below_heads, fitting_teacher, trimmed_start, untrimmed
from .recipe import PruneRecipe, read_start


class PretrainingGoal(Goal):
    """Pruning for pre-training; parameters and errors as in `Goal`."""

    recipe: PruneRecipe

    def __init__(self, recipe: PruneRecipe, start: SavedModel, workers: Workers):
        super().__init__(recipe, start, workers)
        self._shards = open_shards(recipe.shards, start.vocabulary)
        check_shards_fit(self._shards, start.architecture, 'the network')
        check_memory(self._shards['train'], recipe.batch_size)
        self._heads = start.progress.untrained is None
        if recipe.teacher_weights['embeddings']:
            check_pairs(recipe.batch_size, recipe.accumulate, workers.size)
        self._teaching = start if recipe.teacher == 'parent' else None
        if recipe.teacher not in (None, 'parent'):
            self._teaching = fitting_teacher(read_model(Path(recipe.teacher)), start)
            check_shards_fit(self._shards, self._teaching.architecture, 'the teacher')
            weights = recipe.teaching()
            check_teacher(
                self._teaching,
                start,
                states=weights.same_width,
                heads=weights.scores > 0,
                source=recipe.teacher,
            )

    @staticmethod
    def read(recipe: PruneRecipe) -> Tuple[SavedModel, Dict[str, bytes]]:
        start = untrimmed(read_start(recipe.model, heads=recipe.need_heads))
        if recipe.trim:
            vocabulary = Shards.open(recipe.shards, split='train').vocabulary()
            if vocabulary == start.vocabulary:
                raise ValueError(
                    f'trim: {recipe.shards} has the whole vocabulary of {recipe.model}, and nothing is left '
                    'to trim; make shards with a smaller vocabulary, or leave trim out'
                )
            start = trimmed_start(start, vocabulary)
        return start, {}

    def round_steps(self) -> Tuple[int, int]:
        return self.recipe.round_steps(self.start)

    @property
    def first_batch(self) -> int:
        return self.start.progress.next_batch

    @property
    def _states_alone(self) -> bool:
        """Whether recovery learns states and nothing that needs the heads."""
        return self.recipe.teacher is not None and not self.recipe.teaching().need_heads

    @property
    def gate_settings(self) -> Mapping[str, Any]:
        return OF_STATES if self.recipe.gate_teacher else {}

    @property
    def recovery_settings(self) -> Mapping[str, Any]:
        if self._states_alone:
            return OF_STATES
        return {'output_all_encodings': self.recipe.teacher is not None}

    @functools.cached_property
    def _teacher(self) -> Teacher:
        heads = self.recipe.teaching().scores > 0
        return Teacher(self._teaching, self.workers, precision=self.recipe.precision, heads=heads)

    @functools.cached_property
    def _gate_teacher(self) -> Teacher:
        return Teacher(self.start, self.workers, precision=self.recipe.precision, heads=False)

    def batches(self, phase: Phase) -> Generator[Batch, None, None]:
        return stream(
            self._shards['train'],
            batch_size=phase.batch_size,
            seed=phase.seed,
            start=phase.first_batch,
            rank=self.workers.rank,
            workers=self.workers.size,
        )

    def labelled(self, model: OptBERTModel, phase: Phase) -> Pretraining:
        return Pretraining(model, self.workers, self._shards['train'])

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> Pretraining:
        if not self.recipe.gate_teacher:
            return self.labelled(model, phase)
        return StateMatching.for_gates(
            model, self.workers, self._shards['train'], teacher=self._gate_teacher, match=match, phase=phase
        )

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> Pretraining:
        shards = self._shards['train'], self._shards['heldout']
        if self.recipe.teacher is None:
            return Pretraining(model, self.workers, *shards)
        kind = StateMatching if self._states_alone else Distillation
        taught = {'teacher': self._teacher, 'match': match, 'weights': self.recipe.teaching(), 'phase': phase}
        return kind(model, self.workers, *shards, **taught)

    def recovered_parameters(self, model: OptBERTModel) -> Optional[Dict[str, gluon.Parameter]]:
        return below_heads(model) if self._states_alone else None

    def evaluate(self, saved: SavedModel) -> Optional[HeldOut]:
        return self._losses(saved).measured if self._heads else None

    def difference_error(self, one: SavedModel, other: SavedModel) -> Optional[float]:
        return difference(self._losses(one), self._losses(other), self.workers)[1]

    def _losses(self, saved: SavedModel) -> Losses:
        return losses_of(
            self.build(saved),
            self._shards['heldout'],
            self.workers,
            batch_size=self.recipe.batch_size // self.recipe.accumulate,
            limit=self.recipe.evaluation_limit,
        )

    @property
    def reports_embeddings(self) -> bool:
        return not self._heads

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        size = self.recipe.batch_size // self.recipe.accumulate
        batches = evaluation_batches(self._shards['heldout'], batch_size=size, limit=INSTANCES)
        return embed(self.build(saved, **OF_STATES), batches)
