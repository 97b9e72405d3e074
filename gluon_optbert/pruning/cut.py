"""What a method may look at when it chooses the units of one round."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from ..architecture.cost import CostModel
from ..architecture.parameters import Alphas
from ..cutting.selection import Selection, select_units
from ..network.saved_model import SavedModel
from ..training.objective import Phase
from .goal import Goal


class Settings(Protocol):
    """What the methods read of a recipe; the fields are those of `PruneRecipe`."""

    @property
    def seed(self) -> int: ...

    @property
    def prune(self) -> str: ...

    @property
    def h_gate(self) -> str: ...

    @property
    def drop(self) -> str: ...

    @property
    def multiple_of(self) -> int: ...

    @property
    def drop_blocks(self) -> bool: ...

    @property
    def ranked_relatively(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Cut:
    """What a method may look at when it chooses the units of one round.

    Parameters
    ----------
    model : SavedModel
        The network that is cut, without gates.
    recipe : PruneRecipe
        As `Settings`: the recipe reads the registry of the methods, which get a cut.
    number : int
        Of the round, from 1.
    cost : CostModel
    target : float
        What the network may cost after the round, in the unit of `cost`.
    goal : Goal
        What the network is pruned for.
    phase : Phase
        The batches that other methods train gates on: ``alpha_steps`` of them, from the round's own place in
        the stream.
    """

    model: SavedModel
    recipe: Settings
    number: int
    cost: CostModel
    target: float
    goal: Goal
    phase: Phase

    def select(self, scores: Alphas) -> Selection:
        """`select_units` within the budget of the round."""
        recipe = self.recipe
        return select_units(
            scores,
            self.model.architecture,
            self.cost,
            self.target,
            prune=recipe.prune,
            multiple_of=recipe.multiple_of,
            drop_blocks=recipe.drop_blocks,
        )
