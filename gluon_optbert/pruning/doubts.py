"""Doubts about a pruning run that can be done but will hardly tell anything."""

from __future__ import annotations

from ..architecture.named import scale_uniformly
from .methods import METHODS
from .objectives import PruningObjective

FEW_UNITS = {'a': 1, 'k': 7, 'v': 7, 'f': 7}  # by letter; in each layer
FEW_OF_THE_OLD = 1 / 3  # below this share, few units are not just those of a narrow network
FEW_INSTANCES = 100
LEAST_TRAVEL = 0.5  # from 1, where gates start


def doubts(objective: PruningObjective) -> list[str]:
    """Why the result of a run will hardly be of use, a sentence each; none of most runs.

    What is asked about is the target, by a uniform cut to it, the width of embeddings, how far gates can
    move, the network that comes in, and the number of held-out instances.
    """
    found = (
        *(_of_target(objective), _of_width(objective), _of_gates(objective)),
        *(objective.untaught(), _of_held_out(objective)),
    )
    return [doubt for doubt in found if doubt is not None]


def _of_target(objective: PruningObjective) -> str | None:
    recipe, start = objective.recipe, objective.start.architecture
    if recipe.method in ('layers', 'blocks'):
        return None
    cost, share = recipe.cost(), recipe.shares()[-1]
    try:
        budget = share * cost.cost(objective.whole)
        cut = scale_uniformly(start, budget, cost=cost, letters=recipe.prune, budget=True).widths()
    except ValueError:  # only without f, which a uniform cut keeps
        return None
    few = {letter: [] for letter in FEW_UNITS if letter in recipe.prune}
    for key, width in start.widths().items():
        if key[0] in few and cut[key] <= FEW_UNITS[key[0]] and cut[key] < width * FEW_OF_THE_OLD:
            few[key[0]].append(cut[key])
    most = [
        f'{letter} {max(widths)}' for letter, widths in few.items() if 2 * len(widths) > len(start.layers)
    ]
    if not most:
        return None
    return (
        f'target {share:.4g} leaves very narrow layers, by a uniform cut {", ".join(most)} or less in most '
        'of them; a larger --target, or --prune with more widths, keeps more'
    )


def _of_width(objective: PruningObjective) -> str | None:
    recipe = objective.recipe
    if not recipe.without_labels or 'h' not in recipe.prune or not METHODS[recipe.method].ranks_units:
        return None
    kept = recipe.prune.replace('h', '')
    return (
        'h is pruned, so embeddings get narrower, and an index that was made with this network has to be '
        f'made anew; --prune {kept or "akvf"} makes a query encoder for it'
    )


def _of_gates(objective: PruningObjective) -> str | None:
    recipe = objective.recipe
    if not recipe.trains_gates or recipe.alpha_optimizer != 'adam' or recipe.penalty == 'l0':
        return None
    steps = objective.round_steps()[0]
    travel = steps * recipe.alpha_learning_rate
    if travel >= LEAST_TRAVEL:
        return None
    return (
        f'gates start at 1 and can move by about {travel:.2g} in {steps} steps of '
        f'{recipe.alpha_learning_rate:g}, so that hardly any comes near 0; raise --alpha-steps or '
        '--alpha-learning-rate'
    )


def _of_held_out(objective: PruningObjective) -> str | None:
    count = objective.instances_held_out()
    if count is None or count >= FEW_INSTANCES:
        return None
    return (
        f'there are {count} held-out instances, too few to tell networks apart; give more data, hold more of '
        'it out, or raise --evaluation-limit'
    )
