"""A pruning run in one of its rounds: its directories, its place in the stream of batches, and its text."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from ..architecture.cost import CostModel
from ..finetuning.distillation import match_after
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.display import Display, doing
from ..runs.files import read_json
from ..runs.progress import RECOVERY, Progress
from ..training.distillation import Match
from ..training.distributed import Workers
from ..training.loop import Reporter
from ..training.objective import Phase
from .methods import Cut
from .objectives import PruningObjective
from .ranking import ROTATED
from .recipe import PruningRecipe

PLAN = 'plan.json'  # of a round
SHRUNK, FITTED, MODEL = 'shrunk', 'reconstructed', 'model'
STAGES = (ROTATED, SHRUNK, FITTED, MODEL)  # the networks of a round
STATES = '*-states*'  # the checkpoints of its phases
LEAST_TEXT = 32  # sequences


@dataclasses.dataclass(frozen=True)
class Run:
    """A run in one of its rounds.

    Parameters
    ----------
    number : int
        Of the round, from 1.
    steps : pair of int
        Steps of a round's gate training and of its recovery, where its minutes are not stated.
    """

    objective: PruningObjective
    number: int
    cost: CostModel
    steps: tuple[int, int]
    reporter: Reporter

    @property
    def recipe(self) -> PruningRecipe:
        return self.objective.recipe

    @property
    def workers(self) -> Workers:
        return self.objective.workers

    @property
    def directory(self) -> Path:
        """Of the round."""
        return self.recipe.output / f'round-{self.number}'

    @property
    def place(self) -> str:
        """Number of the round and of all rounds, for people."""
        return f'round {self.number}/{len(self.recipe.shares())}'

    @property
    def recovers(self) -> bool:
        """Whether the network is trained after the cut of the round."""
        return self._recovers(self.number)

    def _recovers(self, number: int) -> bool:
        last = number == len(self.recipe.shares())
        return self.recipe.recovers and (last or self.recipe.recover_after == 'every')

    def doing(self, what: str) -> Display:
        """Display of a part of the round that takes long."""
        return doing(f'{self.place} | {what}', quiet=not self.workers.first)

    def phase(self, name: str, **more: Any) -> Phase:
        """A phase of the round: recovery trains on the batches that follow those of the gates."""
        gates, recoveries = self.steps[0], [self._recovery_steps(n) for n in range(1, self.number + 1)]
        first = self.objective.first_batch + (self.number - 1) * gates + sum(recoveries[:-1])
        steps = gates
        if name == RECOVERY:
            first, steps = first + gates, recoveries[-1]
        return self.recipe.phase(name, steps, first_batch=first, place=self.place, **more)

    def _recovery_steps(self, number: int) -> int:
        """Of a round; with minutes those that were planned for it, and 0 before that."""
        if not self._recovers(number):
            return 0
        if self.recipe.minutes is None:
            return self.steps[1]
        path = self.directory.with_name(f'round-{number}') / PLAN
        return read_json(path)['steps'] if path.exists() else 0

    def cut(self, current: SavedModel) -> Cut:
        """Input of the recipe's method."""
        target = self.cost.cost(self.objective.whole) * self.recipe.shares()[self.number - 1]
        phase = smaller(self.phase('importance'))
        return Cut(current, self.recipe, self.number, self.cost, target, self.objective, phase)

    def match(self, rounds: int) -> Match:
        """States of the network that came in that are left after so many rounds."""
        return match_after(self.recipe.output, rounds, self.objective.start.architecture)

    def text(self, tokens: int) -> list[Any]:
        """Data of the repairs of the round: batches from where those of its gates begin.

        They are this worker's share, and have so many tokens together, over all workers and without padding,
        or as many instances as are learnt from: to read these again would say nothing new.
        They are the smallest part of a training batch that has 32 sequences and can be shared by the workers,
        so that neither is much more read nor more memory taken than is needed; or whole batches. Of batches
        that are counted in tokens they are `smaller` ones.
        """
        phase = smaller(self.phase('text'))
        parts = range(self.workers.size, phase.batch_size, self.workers.size)
        fitting = (part for part in parts if part >= LEAST_TEXT and phase.batch_size % part == 0)
        if not phase.batch_tokens and (size := next(fitting, 0)):
            first = phase.first_batch * phase.batch_size // size
            phase = dataclasses.replace(phase, batch_size=size, first_batch=first)
        phase = dataclasses.replace(phase, accumulate=1)
        batches: list[Any] = []
        source = self.objective.batches(phase, phase.first_batch)
        with contextlib.closing(source), self.doing('reading text'):
            left = self.objective.instances()
            while tokens > 0 and left > 0:
                batches.append(next(source))
                tokens, left = tokens - batches[-1].token_total, left - batches[-1].instance_total
        return batches

    def read(self, name: str) -> SavedModel | None:
        """A network of the round, if it is there already."""
        place = self.directory / name
        return read_model(place) if place.is_dir() else None

    def write(
        self, name: str, model: SavedModel, progress: Progress | None = None, **more: Any
    ) -> SavedModel:
        """Write a network of the round, with the recipe of the run; the first worker does, and all read it.

        Unless given, its progress says that it was made in the round, and which of its parts are random.
        """
        progress = progress or Progress(round=self.number, untrained=model.progress.untrained)
        if self.workers.first:
            model = dataclasses.replace(model, recipe=self.objective.recipe_of_models, progress=progress)
            write_model(self.directory / name, model, **more)
        self.workers.barrier(f'{name}.{self.number}')
        return read_model(self.directory / name)


def smaller(phase: Phase) -> Phase:
    """A phase with batches of a quarter of the tokens, where they are counted in tokens: as many of these
    have texts of more lengths among them.
    """
    if not phase.batch_tokens:
        return phase
    tokens, first = max(1, phase.batch_tokens // 4), 4 * phase.first_batch
    return dataclasses.replace(phase, batch_tokens=tokens, first_batch=first)
