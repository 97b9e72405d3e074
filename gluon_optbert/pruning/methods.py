"""The methods of pruning by name: how units are scored, and how the scores become a selection.

A new method is a new entry of `METHODS`; the recipe and the command line then take its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from mxnet import gluon

from ..architecture.architecture import Architecture
from ..architecture.cost import CostModel
from ..architecture.parameters import Alphas, parameter_table
from ..cutting.baselines import (
    fisher_scores,
    magnitude_scores,
    random_scores,
    rank_as,
    rearranged,
    select_blocks,
    select_layers,
    select_uniform,
)
from ..cutting.selection import Selection, select_units
from ..network.model import OptBERTModel, named_parameters
from ..network.saved_model import SavedModel
from ..training.loop import gradients
from ..training.objective import Phase

if TYPE_CHECKING:  # the recipe lists the methods
    from .objectives import PruningObjective
    from .recipe import PruningRecipe

UPPER_DECILE = 0.9


@dataclasses.dataclass(frozen=True)
class Cut:
    """Input of a method that chooses the units of one round.

    Parameters
    ----------
    model : SavedModel
        The network that is cut, without gates.
    number : int
        Of the round, from 1.
    target : float
        What the network may cost after the round, in the unit of `cost`.
    objective : PruningObjective
        What the network is pruned for.
    phase : Phase
        The batches that other methods train gates on: ``alpha_steps`` of them, from the round's own place in
        the stream.
    """

    model: SavedModel
    recipe: PruningRecipe
    number: int
    cost: CostModel
    target: float
    objective: PruningObjective
    phase: Phase

    def select(self, scores: Alphas, *, multiple_of: int | None = None) -> Selection:
        """The units with the largest scores within the budget of the round, by `select_units`; with the
        recipe's own ``multiple_of``, or another.
        """
        recipe = self.recipe
        return select_units(
            scores,
            self.model.architecture,
            self.cost,
            self.target,
            prune=recipe.prune,
            multiple_of=multiple_of or recipe.multiple_of,
            drop_blocks=recipe.drop_blocks,
        )


def relative(scores: Alphas, letters: str) -> Alphas:
    """Scores of which those of some widths are divided by their own upper decile.

    LayerNorm takes a common factor of the stream back, and the gates of a head multiply those of its values:
    a common factor of such gates changes the network little, and the penalty shrinks them together. Their
    level then says nothing about them beside other widths; their differences do.
    """
    values = {key: np.abs(score) for key, score in scores.items()}
    for key, value in values.items():
        if key[0] in letters and len(value):
            values[key] = value / (float(np.quantile(value, UPPER_DECILE)) or 1.0)
    return values


def _gradients(
    cut: Cut, chosen: Callable[[OptBERTModel], Mapping[str, gluon.Parameter]], **settings: Any
) -> Iterator[Mapping[str, gluon.Parameter]]:
    """Some parameters of a cut's network with the gradients of the labels' loss in them, without dropout, of
    one batch of the cut's phase after the other.
    """
    objective = cut.objective
    settings = {**objective.labelled_settings, 'precision': 'float32', 'dropout': 0.0, **settings}
    model = objective.build(cut.model, **settings)
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    parameters = chosen(model)
    for _ in gradients(objective.labelled(model), parameters, cut.phase):
        yield parameters


def gate_gradients(cut: Cut) -> dict[str, np.ndarray]:
    """The gradients of the labels' loss towards the gates, of one batch of the cut's phase after the other,
    by width key, each of shape (batches, width).
    """

    def gates(model: OptBERTModel) -> Mapping[str, gluon.Parameter]:
        return {key: gate for key, gate in model.gates.parameters.items() if key[0] in cut.recipe.prune}

    rows = [
        {key: gate.grad().asnumpy() for key, gate in read.items()}
        for read in _gradients(cut, gates, gated=True, h_gate=cut.recipe.h_gate)
    ]
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def fisher(cut: Cut, measured: Mapping[str, np.ndarray]) -> Alphas:
    """Scores of the units by squared gradients towards the gates: `fisher_scores`, given to the units that
    `rearranged` keeps at the target of the round; `measured` are the `gate_gradients`. Widths that are not
    pruned have ones.
    """
    architecture = cut.model.architecture
    scores = {key: np.ones(width) for key, width in architecture.widths().items()}
    scores.update(fisher_scores(measured, cut.cost.prices(architecture)))
    selection = cut.select(scores)
    for key, values in measured.items():
        scores[key] = rank_as(scores[key], rearranged(values, selection.kept[key]))
    return scores


def head_importance(cut: Cut) -> Alphas:
    """Scores of the heads by Michel et al. (2019), "Are Sixteen Heads Really Better than One?", equation (2).

    The expected magnitude of the loss's derivative towards a head's output gate, over the batches of a phase,
    normalised within each layer as there. A head's output is linear in its values, so the derivative is the
    inner product of the value weights with their gradients. Widths other than those of heads have ones.
    """
    architecture = cut.model.architecture
    projections = value_projections(architecture)

    def values_of(model: OptBERTModel) -> Mapping[str, gluon.Parameter]:
        parameters = named_parameters(model)
        return {name: parameters[name] for names in projections for name in names}

    scores = {
        key: np.zeros(width) if key[0] == 'a' else np.ones(width)
        for key, width in architecture.widths().items()
    }
    for values in _gradients(cut, values_of):
        for i, layer in enumerate(architecture.layers):
            slope = sum(
                (values[name].data() * values[name].grad()).asnumpy().reshape(layer.a, -1).sum(1)
                for name in projections[i]
            )
            scores[f'a{i}'] += np.abs(slope)
    for key, score in scores.items():
        if key[0] == 'a':
            scores[key] = score / max(float(np.linalg.norm(score)), 1e-30)
    return scores


def value_projections(architecture: Architecture) -> list[list[str]]:
    """The names of the weight and the bias that compute the values, layer by layer."""
    table = parameter_table(architecture)
    return [
        [name for name, spec in table.items() if spec.axes[0] == (f'a{i}', f'v{i}')]
        for i in range(len(architecture.layers))
    ]


def _ranked(cut: Cut, scores: Alphas) -> Selection:
    return cut.select(relative(scores, cut.recipe.ranked_relatively))


def _uniform(cut: Cut, scores: Alphas) -> Selection:
    return select_uniform(scores, cut.model.architecture, cut.cost, cut.target, prune=cut.recipe.prune)


def _layers(cut: Cut, scores: Alphas) -> Selection:
    return select_layers(cut.model.architecture, cut.cost, cut.target, drop=cut.recipe.drop)


def _blocks(cut: Cut, scores: Alphas) -> Selection:
    return select_blocks(cut.model.architecture, cut.cost, cut.target)


def _magnitude(cut: Cut) -> Alphas:
    return magnitude_scores(cut.model.parameters, cut.model.architecture, cut.model.head)


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
    measured : bool
        Whether the scores are measured on batches, as many as gates would be trained on.
    measure : function of Cut, optional
        Arrays by name, the same on every worker, that `scores` takes as well. They are measured on batches
        whatever the target and the cost are, so that one measurement serves several sizes.
    """

    scores: Callable[..., Alphas] | None
    select: Callable[[Cut, Alphas], Selection] = _ranked
    ranks_units: bool = True
    only: str = ''
    measured: bool = False
    measure: Callable[[Cut], Mapping[str, np.ndarray]] | None = None

    @property
    def trains_gates(self) -> bool:
        """Whether trained gates score the units."""
        return self.scores is None


METHODS: dict[str, Method] = {
    'alpha': Method(None),
    'fisher': Method(fisher, measured=True, measure=gate_gradients),
    'random': Method(lambda cut: random_scores(cut.model.architecture, cut.recipe.seed + cut.number)),
    'magnitude': Method(_magnitude),
    'uniform': Method(_magnitude, _uniform, ranks_units=False),
    'uniform-alpha': Method(None, _uniform, ranks_units=False),
    'layers': Method(_magnitude, _layers, ranks_units=False),
    'blocks': Method(_magnitude, _blocks, ranks_units=False, only='f'),
    'heads': Method(head_importance, only='a', measured=True),
}
