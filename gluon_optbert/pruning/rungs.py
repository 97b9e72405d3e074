"""One rung of a ladder of sizes: the rounds before it once, and then any number of runs from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

from ..network.saved_model import read_model
from ..training.distributed import Workers
from .algorithm import prune
from .pretraining_goal import PretrainingGoal
from .recipe import PruneRecipe, unreachable


def rung(recipe: PruneRecipe, number: int, *, ladder: Path, workers: Workers) -> Dict[str, Any]:
    """The fields of a recipe that prunes one rung of a ladder, in one round.

    The rounds before it are run first, with the recipe's own settings, as far as that is not done.

    Parameters
    ----------
    recipe : PruneRecipe
        The whole ladder, of which every round is a rung.
    number : int
        Of the rung, from 1.
    ladder : Path
        The directory for the rounds before it.
    workers : Workers

    Returns
    -------
    dict
        ``model``, ``target``, ``targets``, ``rounds`` and ``recovery_steps``; and ``trim``, since the rounds
        before it have trimmed the vocabulary. The target is a share of the cost of the network that the rung
        begins with.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError, TrainingDiverged, Interrupted
        From `prune`; or the target of the rung is out of reach, or no less than the rounds before it left.
    """
    base, shares, model = read_model(recipe.model), recipe.shares(), recipe.model
    if number > 1:
        asked = recipe.replace(targets=tuple(shares[:number]))
        start = PretrainingGoal.read(recipe)[0] if recipe.trim else base
        problem = unreachable(asked, start.architecture, base.architecture)
        if problem:
            raise ValueError(problem)
        own = {name: getattr(recipe, name) for name in PruneRecipe.model_fields}
        above = {'output': ladder, 'resume': ladder.exists(), 'targets': tuple(shares[: number - 1])}
        workers.barrier('ladder')  # all have looked before one writes
        prune(PruneRecipe(**{**own, **above}), workers=workers)
        model = ladder / f'round-{number - 1}' / 'model'
    cost = recipe.cost()
    whole, begun = (cost.cost(saved.architecture) for saved in (base, read_model(model)))
    if begun <= shares[number - 1] * whole:
        raise ValueError(
            f'rung {number} has nothing to cut: the rounds before it have left {begun / whole:.4g} of the '
            f'{recipe.objective}, and its target is {shares[number - 1]:.4g}; take a smaller multiple_of, '
            'targets further apart, or another rung'
        )
    return {
        'model': model,
        'target': shares[number - 1] * whole / begun,
        'targets': (),
        'rounds': 1,
        'recovery_steps': recipe.round_steps(base)[1],
        **({'trim': False} if number > 1 else {}),
    }
