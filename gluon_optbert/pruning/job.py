"""What the rounds of a pruning run share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple

from ..architecture.cost import CostModel
from ..cutting.selection import read_selection, survivors
from ..network.model import OptBERTModel, build
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.progress import HeldOut, Progress
from ..runs.recipe import to_dict
from ..text.batches import Batch
from ..text.shards import Shards
from ..training.distillation import Match, Teacher
from ..training.distributed import Workers
from ..training.mlm_nsp import evaluate
from ..training.objective import Phase
from ..training.reporter import Reporter
from .methods import Cut
from .recipe import PruneRecipe
from .reconstruct import sample


@dataclasses.dataclass
class Job:
    """What the rounds of a run share.

    Parameters
    ----------
    recipe : PruneRecipe
    workers : Workers
    shards : mapping of split to Shards
    cost : CostModel
    whole : float
        The cost of the network that came in.
    steps : pair of int
        Steps of a round's gate training and of its recovery.
    reporter : Reporter
    teacher : Teacher, optional
        What recovery learns from.
    gate_teacher : Teacher, optional
        The network that came in, whose states the gates are trained against.
    heads : bool
        Whether the heads of pre-training are trained, so that their losses say something.
    """

    recipe: PruneRecipe
    workers: Workers
    shards: Mapping[str, Shards]
    cost: CostModel
    whole: float
    steps: Tuple[int, int]
    reporter: Reporter
    teacher: Optional[Teacher] = None
    gate_teacher: Optional[Teacher] = None
    heads: bool = True

    def target(self, number: int) -> float:
        """What the network may cost after a round."""
        return self.whole * self.recipe.shares()[number - 1]

    def directory(self, number: int) -> Path:
        return self.recipe.output / f'round-{number}'

    def phase(self, name: str, number: int, **more: Any) -> Phase:
        """A phase of a round: recovery trains on the batches that follow those of the gates."""
        gates, recovery = self.steps
        first = (number - 1) * (gates + recovery)
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
            self.shards['train'],
            self.phase('importance', number),
            self.workers,
        )

    def text(self, tokens: int, number: int) -> List[Batch]:
        """What a round's rotation and reconstruction read: the batches of its gates, and those after them."""
        return sample(self.shards['train'], self.phase('text', number), tokens, self.workers)

    def write(self, directory: Path, model: SavedModel, progress: Progress, **more: Any) -> None:
        """Write a model directory of a round, with the recipe of the run."""
        recipe = to_dict(self.recipe)
        write_model(directory, dataclasses.replace(model, recipe=recipe, progress=progress), **more)

    def match(self, rounds: int) -> Match:
        """Which states of the network that came in are left after so many rounds."""
        start = read_model(self.directory(0) / 'model').architecture
        selections = [read_selection(self.directory(i + 1) / 'selection.json') for i in range(rounds)]
        return Match.after(*survivors(selections, start), len(start.layers))

    def evaluate(self, saved: SavedModel) -> Optional[HeldOut]:
        """The held-out losses of a network; None if its heads are not trained."""
        if not self.heads:
            return None
        return evaluate(
            self.build(saved),
            self.shards['heldout'],
            self.workers,
            batch_size=self.recipe.batch_size,
            limit=self.recipe.evaluation_limit,
        )

    def build(self, saved: SavedModel, **changes: Any) -> OptBERTModel:
        settings = self.recipe.network_settings()
        return build(saved.architecture, saved.parameters, settings, ctx=self.workers.context(), **changes)
