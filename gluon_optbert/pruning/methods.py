"""The methods of pruning by name: what scores the units, and how the scores become a selection.

A new method is a new entry of `METHODS`; the recipe and the command line then take its name."""

from __future__ import annotations

import dataclasses
from typing import Callable, Dict, Optional

import numpy as np

from ..architecture.parameters import Alphas
from ..cutting.baselines import magnitude_scores, random_scores, select_blocks, select_layers, select_uniform
from ..cutting.selection import Selection
from .cut import Cut
from .fisher import fisher
from .head_importance import head_importance

UPPER_DECILE = 0.9


def _ranked(cut: Cut, scores: Alphas) -> Selection:
    return cut.select(relative(scores, cut.recipe.ranked_relatively))


def relative(scores: Alphas, letters: str) -> Alphas:
    """Scores of which those of some widths are divided by their own upper decile.

    LayerNorm takes a common factor of the stream back, and the gates of a head multiply those of its values:
    a common factor of such gates changes the network little, and the penalty shrinks them together. Their
    level then says nothing about them beside other widths; their differences do.

    Parameters
    ----------
    scores : Alphas
    letters : str
        Of those widths.
    """
    values = {key: np.abs(score) for key, score in scores.items()}
    levels = {
        key: float(np.quantile(value, UPPER_DECILE)) if key[0] in letters and len(value) else 1.0
        for key, value in values.items()
    }
    return {key: value / (levels[key] or 1.0) for key, value in values.items()}


def _uniform(cut: Cut, scores: Alphas) -> Selection:
    return select_uniform(scores, cut.model.architecture, cut.cost, cut.target, prune=cut.recipe.prune)


def _layers(cut: Cut, scores: Alphas) -> Selection:
    return select_layers(cut.model.architecture, cut.cost, cut.target, drop=cut.recipe.drop)


def _blocks(cut: Cut, scores: Alphas) -> Selection:
    return select_blocks(cut.model.architecture, cut.cost, cut.target)


def _random(cut: Cut) -> Alphas:
    return random_scores(cut.model.architecture, cut.recipe.seed + cut.number)


def _magnitude(cut: Cut) -> Alphas:
    return magnitude_scores(cut.model.parameters, cut.model.architecture, cut.model.head)


def _heads(cut: Cut) -> Alphas:
    return head_importance(cut.model, cut.goal, cut.phase)


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to choose the units that stay.

    Parameters
    ----------
    scores : function of Cut, or None
        Scores of all units by width key, each of shape (width,), finite, the same on every worker; the
        magnitude counts, and large ones stay. None stands for gates that are trained.
    select : function of Cut and scores
        The units that stay; unless given, those with the largest scores, as `select_units` takes them.
    ranks_units : bool
        Whether units of all widths are ranked together; the recipe's ``multiple_of`` and ``drop_blocks`` need
        that.
    only : str
        The value of the recipe's ``prune`` that the method goes with; empty if it takes any.
    of_target : bool
        Whether the scores hold for the target of the round alone, so that no other can take them.
    measured : bool
        Whether the scores are measured on batches, as many as gates would be trained on.
    """

    scores: Optional[Callable[[Cut], Alphas]]
    select: Callable[[Cut, Alphas], Selection] = _ranked
    ranks_units: bool = True
    only: str = ''
    of_target: bool = False
    measured: bool = False

    @property
    def trains_gates(self) -> bool:
        """Whether trained gates score the units."""
        return self.scores is None


METHODS: Dict[str, Method] = {
    'alpha': Method(None),
    'fisher': Method(fisher, of_target=True, measured=True),
    'random': Method(_random),
    'magnitude': Method(_magnitude),
    'uniform': Method(_magnitude, _uniform, ranks_units=False),
    'uniform-alpha': Method(None, _uniform, ranks_units=False),
    'layers': Method(_magnitude, _layers, ranks_units=False),
    'blocks': Method(_magnitude, _blocks, ranks_units=False, only='f'),
    'heads': Method(_heads, only='a', measured=True),
}
