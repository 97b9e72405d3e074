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
    """Reasons why the result of a run will hardly be of use, a sentence each; none of most runs.

    What is asked about is the target, by a uniform cut to it, the width of embeddings, how far gates can
    move, the network that comes in, and the number of held-out instances.
    """
    recipe, found = objective.recipe, []
    narrow, untaught = narrow_widths(objective), objective.untaught()
    if narrow:
        found.append(
            f'target {recipe.shares()[-1]:.4g} leaves very narrow layers, by a uniform cut '
            f'{", ".join(narrow)} or less in most of them; a larger --target, or --prune with more widths, '
            'keeps more'
        )
    if recipe.without_labels and 'h' in recipe.prune and METHODS[recipe.method].ranks_units:
        kept = recipe.prune.replace('h', '') or 'akvf'
        found.append(
            'h is pruned, so embeddings get narrower, and an index that was made with this network has to be '
            f'made anew; --prune {kept} makes a query encoder for it'
        )
    steps = objective.round_steps()[0]
    travel, adam = steps * recipe.alpha_learning_rate, recipe.alpha_optimizer == 'adam'
    if recipe.trains_gates and adam and recipe.penalty != 'l0' and travel < LEAST_TRAVEL:
        found.append(
            f'gates start at 1 and can move by about {travel:.2g} in {steps} steps of '
            f'{recipe.alpha_learning_rate:g}, so that hardly any comes near 0; raise --alpha-steps or '
            '--alpha-learning-rate'
        )
    if untaught is not None:
        found.append(untaught)
    count = objective.instances_held_out()
    if count < FEW_INSTANCES:
        found.append(
            f'there are {count} held-out instances, too few to tell networks apart; give more data, hold '
            'more of it out, or raise --evaluation-limit'
        )
    return found


def narrow_widths(objective: PruningObjective) -> list[str]:
    """The widths that a uniform cut to the target makes very narrow in most layers, as ``k 5``."""
    recipe, start = objective.recipe, objective.start.architecture
    if recipe.method in ('layers', 'blocks'):
        return []
    cost = recipe.cost()
    try:
        budget = recipe.shares()[-1] * cost.cost(objective.whole)
        cut = scale_uniformly(start, budget, cost=cost, letters=recipe.prune, budget=True).widths()
    except ValueError:  # only without f, which a uniform cut keeps
        return []
    few: dict[str, list[int]] = {letter: [] for letter in FEW_UNITS if letter in recipe.prune}
    for key, width in start.widths().items():
        if key[0] in few and cut[key] <= FEW_UNITS[key[0]] and cut[key] < width * FEW_OF_THE_OLD:
            few[key[0]].append(cut[key])
    return [
        f'{letter} {max(widths)}' for letter, widths in few.items() if 2 * len(widths) > len(start.layers)
    ]
