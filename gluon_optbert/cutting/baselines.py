"""Selections and scores to compare the trained gates with: chance, magnitude, whole layers or blocks, one
factor for all widths, and Fisher information."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import CostModel
from ..architecture.heads import PRETRAINING, Head
from ..architecture.named import scale_uniformly
from ..architecture.parameters import Parameters, parameter_table
from .selection import Selection, keep_all

DROPS = ('last', 'first', 'alternate')


def random_scores(architecture: Architecture, seed: int) -> dict[str, np.ndarray]:
    """Scores that rank all units by chance."""
    generator = np.random.RandomState(seed)
    return {key: generator.uniform(0.5, 1.5, size=width) for key, width in architecture.widths().items()}


def magnitude_scores(
    parameters: Parameters, architecture: Architecture, head: Head = PRETRAINING
) -> dict[str, np.ndarray]:
    """The root mean square of all weights that would leave with a unit, so that widths of different kinds
    compare.

    Returns
    -------
    dict of width key to np.ndarray, shape (width,)
    """
    widths, sizes = architecture.widths(), {**architecture.sizes(), **head.sizes()}
    squares = {key: np.zeros(width) for key, width in widths.items()}
    counts = dict.fromkeys(widths, 0)
    for name, spec in parameter_table(architecture, head).items():
        sides = [key for axis in spec.axes for key in axis]
        value = np.square(np.asarray(parameters[name], dtype=np.float64)).reshape(
            [sizes[key] for key in sides]
        )
        for side, key in enumerate(sides):
            if key in widths:
                squares[key] += value.sum(axis=tuple(i for i in range(value.ndim) if i != side))
                counts[key] += value.size // max(1, value.shape[side])
    return {key: np.sqrt(squares[key] / max(1, counts[key])) for key in widths}


def select_uniform(
    scores: Mapping[str, np.ndarray],
    architecture: Architecture,
    cost: CostModel,
    target: float,
    *,
    prune: str,
) -> Selection:
    """Shrink all widths by one factor, keeping the units of each with the largest scores ("BERT-all uniform",
    optBERT, section 6).

    How many stay is `scale_uniformly`'s, with the target as the budget; ValueError if one unit of each width
    costs more.
    """
    smaller = scale_uniformly(architecture, target, cost=cost, letters=prune, budget=True)
    kept = {
        key: np.sort(np.argsort(-np.abs(scores[key]), kind='stable')[:size]) if size else np.arange(0)
        for key, size in smaller.widths().items()  # a layer without filters may have no scores of them
    }
    return Selection(kept, cost.cost(smaller), float(target))


def layers_to_keep(layers: int, count: int, drop: str) -> list[int]:
    """The layers that stay when `count` of them do.

    ``last`` drops the last ones, ``first`` the first ones; ``alternate`` spreads those that stay evenly and
    keeps the first and the last. In a later round these are the layers that the earlier ones left, so the
    distances in the whole network are no longer even."""
    if drop == 'alternate' and count > 1:
        return [int(round(place)) for place in np.linspace(0, layers - 1, count)]
    return list(range(layers - count, layers)) if drop == 'first' else list(range(count))


def select_layers(architecture: Architecture, cost: CostModel, target: float, *, drop: str) -> Selection:
    """Keep as many whole layers as the target allows (BERT-l, optBERT, section 6); ValueError if it allows
    none.
    """
    whole, layers = keep_all(architecture, cost), len(architecture.layers)
    counts = range(layers, min(layers, 1) - 1, -1)
    some = (dataclasses.replace(whole, layers=tuple(layers_to_keep(layers, n, drop))) for n in counts)
    return _first_within(target, some, architecture, cost, 'dropping layers: the fewest leave')


def select_blocks(architecture: Architecture, cost: CostModel, target: float) -> Selection:
    """Keep as many whole intermediate blocks as the target allows, at even distances ("Undivided Attention").

    Of n layers that have a block every n/m-th one keeps it, the last one always. In a later round n
    counts the blocks that the earlier ones left, so the distances in the whole network are no longer even.
    ValueError if the network without any intermediate block costs more than the target.
    """
    whole = keep_all(architecture, cost)
    blocks = [i for i, dims in enumerate(architecture.layers) if dims.f]

    def with_blocks(count: int) -> Selection:
        stay = {blocks[(j + 1) * len(blocks) // count - 1] for j in range(count)}
        gone = {f'f{i}': np.arange(0) for i in blocks if i not in stay}
        return dataclasses.replace(whole, kept={**whole.kept, **gone})

    some = map(with_blocks, range(len(blocks), -1, -1))
    return _first_within(target, some, architecture, cost, 'dropping intermediate blocks: without any remain')


def _first_within(
    target: float, selections: Iterable[Selection], architecture: Architecture, cost: CostModel, how: str
) -> Selection:
    """The first selection that costs no more than the target; ValueError, which says how, if none does."""
    for selection in selections:
        spent = cost.cost(selection.architecture(architecture))
        if spent <= target:
            return dataclasses.replace(selection, cost=spent, target=float(target))
    raise ValueError(f'target {target:.6g} {cost.unit} cannot be reached by {how} {spent:.6g}')


def fisher_scores(gradients: Mapping[str, np.ndarray], prices: Mapping[str, float]) -> dict[str, np.ndarray]:
    """The diagonal of the Fisher information over the price of a unit: what a gate counts for what its unit
    saves, as a share of the largest of all. Units whose price is zero save nothing, and have the largest.

    The gates are ranked without training (Kwon et al., 2022, "A Fast Post-Training Pruning Framework for
    Transformers"). I is the Fisher information: the mean of g gᵀ over batches, of the gradients g of the loss
    towards the gates, which are all one. For plain masks, each of which multiplies the output of its unit
    once, the loss rises by about half of mᵀ I m close to a minimum, where m is one at the units that go.

    The gates here are no plain masks, so mᵀ I m ranks units, and is no estimate of the rise. Gates of a, k
    and v enter squared (optBERT, Table 5): the gradient towards those of k and v is twice that of a mask on
    the unit, and they count four times as much. Gates of a multiply the scores and the output of a head, and
    those of f stand before and behind GELU, so that two gradients add up; those of h stand in every
    LayerNorm of the stream.

    Parameters
    ----------
    gradients : mapping of width key to np.ndarray, shape (batches, width)
        Of the loss towards the gates.
    prices : mapping of width key to float

    Returns
    -------
    dict of width key to np.ndarray of float64, shape (width,)
    """
    scores = {
        key: np.square(values, dtype=np.float64).mean(axis=0) / prices[key]
        for key, values in gradients.items()
        if prices[key] > 0
    }
    largest = max((values.max() for values in scores.values() if len(values)), default=0.0)
    return {
        key: scores[key] / (largest or 1.0) if key in scores else np.ones(values.shape[1])
        for key, values in gradients.items()
    }


def rearranged(gradients: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The units to keep of one width, as many as before, where units count together.

    The diagonal takes every unit by itself. Here units that go are exchanged for units that stay as long as
    mᵀ I m falls, the best exchange first, where I is the block of the width (Kwon et al., section 4.2).

    Parameters
    ----------
    gradients : np.ndarray, shape (batches, width)
    kept : np.ndarray of int, increasing
        What is begun with; so is the result.
    """
    values = np.asarray(gradients, dtype=np.float64)
    information = values.T @ values
    diagonal = np.diag(information)
    stay = np.array(kept, dtype=np.intp)
    out = np.setdiff1d(np.arange(len(diagonal)), stay)
    if not len(out) or not len(stay):
        return np.sort(stay)
    cross = information[:, out].sum(axis=1)  # of every unit with all that go
    twice = 2 * information[np.ix_(out, stay)]
    while True:
        change = (diagonal - 2 * cross)[out, np.newaxis] + (diagonal + 2 * cross)[stay] - twice
        back, gone = np.unravel_index(np.argmin(change), change.shape)
        if change[back, gone] >= -1e-12 * diagonal.sum():
            return np.sort(stay)
        cross += information[stay[gone]] - information[out[back]]
        out[back], stay[gone] = stay[gone], out[back]
        twice[back], twice[:, gone] = 2 * information[out[back], stay], 2 * information[out, stay[gone]]


def rank_as(scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The same scores, shape (width,), given to other units: the largest to those that are to be kept. Within
    these and within the others the order stays.
    """
    stays = np.zeros(len(scores), dtype=bool)
    stays[kept] = True
    order = np.lexsort((scores, stays))
    changed = np.empty_like(scores)
    changed[order] = np.sort(scores)
    return changed
