"""Pruning a network for the task that it was fine-tuned for: Algorithm 1 with another goal."""

from __future__ import annotations

from typing import List, Optional

from ..pruning.algorithm import prune_for
from ..pruning.report import Round
from ..training.distributed import Workers
from .goal import goal_of
from .recipe import TaskPruneRecipe


def prune_task(recipe: TaskPruneRecipe, *, workers: Optional[Workers] = None) -> List[Round]:
    """Prune a fine-tuned network, going on where an interrupted run stopped.

    Parameters
    ----------
    recipe : TaskPruneRecipe
    workers : Workers, optional
        The workers of this job; by default those that the environment names.

    Returns
    -------
    list of Round
        The network that went in, and every round.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step; or another process is writing the output.
    TrainingDiverged, Interrupted
        From `train`.
    """
    return prune_for(goal_of(recipe), recipe, workers or Workers())
