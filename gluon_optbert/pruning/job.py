"""What the rounds of a pruning run share."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, List, Tuple

from ..architecture.cost import CostModel
from ..cutting.selection import read_selection, survivors
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.progress import Progress
from ..training.distillation import Match
from ..training.distributed import Workers
from ..training.loop import Reporter
from ..training.objective import Phase
from .cut import Cut
from .goal import Goal
from .recipe import PruningRecipe

LEAST_TEXT = 32  # sequences


def text_batch(batch_size: int, workers: int) -> int:
    """The size of the batches that repairs read: the smallest part of a batch that has 32 sequences and can
    be shared by the workers, or the whole batch.
    """
    sizes = range(workers, batch_size, workers)
    return next((size for size in sizes if size >= LEAST_TEXT and batch_size % size == 0), batch_size)


@dataclasses.dataclass
class Job:
    """What the rounds of a run share.

    Parameters
    ----------
    recipe : PruningRecipe
    workers : Workers
    goal : Goal
        What the network is pruned for.
    cost : CostModel
    whole : float
        The cost of the network that came in.
    steps : pair of int
        Steps of a round's gate training and of its recovery.
    reporter : Reporter
    """

    recipe: PruningRecipe
    workers: Workers
    goal: Goal
    cost: CostModel
    whole: float
    steps: Tuple[int, int]
    reporter: Reporter

    def target(self, number: int) -> float:
        """What the network may cost after a round."""
        return self.whole * self.recipe.shares()[number - 1]

    def directory(self, number: int) -> Path:
        return self.recipe.output / f'round-{number}'

    def phase(self, name: str, number: int, **more: Any) -> Phase:
        """A phase of a round: recovery trains on the batches that follow those of the gates."""
        gates, recovery = self.steps
        first = self.goal.first_batch + (number - 1) * (gates + recovery)
        more = {'place': f'round {number}/{len(self.recipe.shares())}', **more}
        if name == 'recovery':
            return self.recipe.phase(name, recovery, first_batch=first + gates, **more)
        return self.recipe.phase(name, gates, first_batch=first, **more)

    def cut(self, current: SavedModel, number: int) -> Cut:
        """What the method of the recipe sees of a round."""
        return Cut(
            current,
            self.recipe,
            number,
            self.cost,
            self.target(number),
            self.goal,
            self.phase('importance', number),
        )

    def text(self, tokens: int, number: int) -> List[Any]:
        """What a round's rotation and reconstruction read: batches from where those of its gates begin.

        They are this worker's share, and have so many tokens together, over all workers and without padding.
        They are smaller than those of training, so that neither is much more read nor more memory taken than
        is needed.
        """
        phase = self.phase('text', number)
        size = text_batch(phase.batch_size, self.workers.size)
        first = phase.first_batch * phase.batch_size // size
        phase = dataclasses.replace(phase, batch_size=size, accumulate=1, first_batch=first)
        batches: List[Any] = []
        with contextlib.closing(self.goal.batches(phase)) as source:
            while sum(batch.token_total for batch in batches) < tokens:
                batches.append(next(source))
        return batches

    def write(self, directory: Path, model: SavedModel, progress: Progress, **more: Any) -> None:
        """Write a model directory of a round, with the recipe of the run."""
        recipe = self.goal.recipe_of_models
        write_model(directory, dataclasses.replace(model, recipe=recipe, progress=progress), **more)

    def match(self, rounds: int) -> Match:
        """Which states of the network that came in are left after so many rounds."""
        start = read_model(self.directory(0) / 'model').architecture
        selections = [read_selection(self.directory(i + 1) / 'selection.json') for i in range(rounds)]
        return Match.after(*survivors(selections, start), len(start.layers))
