"""Which units of every width survive a round, from the gates, the cost model and the target."""
from __future__ import annotations

import dataclasses
from typing import Dict, Mapping, Sequence, Tuple

import numpy as np

from .architecture import Architecture
from .cost import CostModel

Alphas = Mapping[str, np.ndarray]
LETTERS = 'hakvf'


@dataclasses.dataclass(frozen=True)
class Selection:
    """The indices that stay, by width key.

    Parameters
    ----------
    kept : dict of width key to np.ndarray of int, increasing
        For every width of the architecture that was selected from.
    cost : float
        What is left costs, in the cost model's unit.
    target : float
        What it was allowed to cost.
    """
    kept: Mapping[str, np.ndarray]
    cost: float
    target: float

    def architecture(self, of: Architecture) -> Architecture:
        """The architecture that is left of the one selected from."""
        return of.with_widths({key: len(indices) for key, indices in self.kept.items()})

    def to_dict(self) -> Dict[str, object]:
        """Plain JSON values; the inverse of `from_dict`."""
        return {'cost': self.cost, 'target': self.target,
                'kept': {key: [int(i) for i in indices] for key, indices in self.kept.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> 'Selection':
        """The inverse of `to_dict`."""
        return cls(kept={key: np.asarray(indices, dtype=np.int64) for key, indices in values['kept'].items()},
                   cost=float(values['cost']), target=float(values['target']))


def keep_all(architecture: Architecture, cost: CostModel) -> Selection:
    """The selection that takes nothing away."""
    whole = cost.cost(architecture)
    return Selection({key: np.arange(width) for key, width in architecture.widths().items()}, whole, whole)


def select_units(scores: Alphas, architecture: Architecture, cost: CostModel, target: float, *,
                 prune: str = LETTERS) -> Selection:
    """Take the units with the smallest scores away until what is left costs no more than the target.

    All widths are ranked together (Algorithm 1: "set the zeta smallest prunable parameters to zero"); equal scores go by
    the order of the widths and of their units. The best unit of every width stays, and units are taken one by one, so
    the cost ends at most one unit's price below the target.

    Parameters
    ----------
    scores : mapping of width key to np.ndarray, shape (width,)
        Alpha, or another measure of importance; its magnitude counts.
    architecture : Architecture
    cost : CostModel
    target : float
        In the cost model's unit.
    prune : str
        The letters of the widths that may lose units.

    Raises
    ------
    ValueError
        If scores do not fit the architecture, are not finite, or the target cannot be reached.
    """
    widths = architecture.widths()
    unknown = sorted(set(prune) - set(LETTERS))
    if unknown or not prune:
        raise ValueError(f'prune must be made of the letters {LETTERS}, found {prune!r}')
    wrong = [f'{key} has shape {np.shape(scores[key]) if key in scores else "none"}, wanted ({width},)'
             for key, width in widths.items()
             if key[0] in prune and np.shape(scores.get(key)) != (width,)]
    wrong += [f'{key} is not finite' for key in widths
              if key[0] in prune and key in scores and not np.all(np.isfinite(scores[key]))]
    if wrong:
        raise ValueError('scores: ' + '; '.join(wrong))

    pruned = [key for key in widths if key[0] in prune and widths[key] > 1]
    order, owners = _removal_order(scores, pruned)
    left = dict(widths)

    def cost_after(removed: int) -> float:
        gone = np.bincount(owners[:removed], minlength=len(pruned))
        left.update({key: widths[key] - int(n) for key, n in zip(pruned, gone)})
        return cost.cost(architecture.with_widths(left))

    if cost_after(len(order)) > target:
        raise ValueError(f'target {target:.6g} {cost.unit} cannot be reached by pruning {prune}: one unit of each width '
                         f'costs {cost_after(len(order)):.6g} of {cost_after(0):.6g}; ask for more, or prune more widths')
    low, high = 0, len(order)  # the least number of units to remove lies in [low, high]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cost_after(middle) <= target else (middle + 1, high)
    kept = {key: np.arange(width) for key, width in widths.items()}
    for j, key in enumerate(pruned):
        kept[key] = np.setdiff1d(kept[key], order[:low][owners[:low] == j])
    return Selection(kept, cost_after(low), float(target))


def _removal_order(scores: Alphas, keys: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
    """Units in the order in which they go (index within the width, number of the width); the best of each never goes."""
    indices, owners, values = [], [], []
    for j, key in enumerate(keys):
        magnitude = np.abs(np.asarray(scores[key], dtype=np.float64))
        may_go = np.delete(np.arange(len(magnitude)), int(np.argmax(magnitude)))
        indices.append(may_go)
        owners.append(np.full(len(may_go), j))
        values.append(magnitude[may_go])
    if not keys:
        return np.zeros(0, int), np.zeros(0, int)
    index, owner = np.concatenate(indices), np.concatenate(owners)
    order = np.argsort(np.concatenate(values), kind='stable')
    return index[order], owner[order]


def truncate(alphas: Alphas, selection: Selection) -> Dict[str, np.ndarray]:
    """Alpha with every unit that is not selected at exactly zero."""
    truncated = {}
    for key, alpha in alphas.items():
        alive = np.zeros(len(alpha), dtype=bool)
        alive[selection.kept[key]] = True
        truncated[key] = np.where(alive, alpha, np.zeros_like(alpha))
    return truncated


def random_scores(architecture: Architecture, seed: int) -> Dict[str, np.ndarray]:
    """Scores that rank all units by chance: the random baseline."""
    generator = np.random.RandomState(seed)
    return {key: generator.uniform(0.5, 1.5, size=width) for key, width in architecture.widths().items()}
