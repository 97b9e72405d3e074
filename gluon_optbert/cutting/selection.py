"""The units of every width that survive a round, from the gates, the cost model and the target."""

from __future__ import annotations

import bisect
import dataclasses
import io
import math
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import CostModel
from ..architecture.parameters import ALPHA_H, LETTERS, Alphas
from ..runs.files import read_json
from ..runs.limits import read_npz
from ..runs.mxnet_arrays import is_finite


def packed_alphas(alphas: Alphas, *, h_gate: str) -> bytes:
    """The bytes of an ``alphas.npz``; alpha_h stands at `h_gate`, one of `H_GATES`."""
    return packed_arrays({ALPHA_H[h_gate] if key == 'h' else key: alpha for key, alpha in alphas.items()})


def packed_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an npz file."""
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def read_alphas(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The gate vectors of an ``alphas.npz`` by width key, and where alpha_h stands; FileNotFoundError, or
    ValueError if it is no such file.
    """
    alphas = read_npz(path)
    for key, alpha in alphas.items():
        if alpha.ndim != 1 or alpha.dtype.kind not in 'fiu' or not is_finite(alpha):
            raise ValueError(f'{path}: {key} is no vector of finite numbers')
    h_gate = next((name for name, key in ALPHA_H.items() if key in alphas), 'stream')
    return {'h' if key == ALPHA_H[h_gate] else key: alpha for key, alpha in alphas.items()}, h_gate


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
    layers : tuple of int, optional
        The layers that stay, increasing; None for all. Widths of the others do not matter.
    """

    kept: Mapping[str, np.ndarray]
    cost: float
    target: float
    layers: tuple[int, ...] | None = None

    def architecture(self, of: Architecture) -> Architecture:
        """The architecture that is left of the one selected from."""
        smaller = of.with_widths({key: len(indices) for key, indices in self.kept.items()})
        if self.layers is None:
            return smaller
        return dataclasses.replace(smaller, layers=tuple(smaller.layers[i] for i in self.layers))

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; the inverse of `from_dict`."""
        return {
            'cost': self.cost,
            'target': self.target,
            'layers': None if self.layers is None else list(self.layers),
            'kept': {key: [int(i) for i in indices] for key, indices in self.kept.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Selection:
        """The inverse of `to_dict`."""
        return cls(
            kept={
                key: np.array([operator.index(i) for i in indices], dtype=np.int64)
                for key, indices in values['kept'].items()
            },
            cost=float(values['cost']),
            target=float(values['target']),
            layers=None if values['layers'] is None else tuple(operator.index(i) for i in values['layers']),
        )


def read_selection(path: Path) -> Selection:
    """The selection of a ``selection.json``; ValueError if it is none."""
    try:
        return Selection.from_dict(read_json(path))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f'{path}: not a selection ({error})') from error


def survivors(selections: Sequence[Selection], architecture: Architecture) -> tuple[np.ndarray, list[int]]:
    """The hidden units and the layers of a network that are left after one selection upon the other.

    Parameters
    ----------
    selections : sequence of Selection
        The first is one of `architecture`, each of the others of what the one before left.

    Returns
    -------
    units : np.ndarray of int, increasing
    layers : list of int, increasing
    """
    units, layers = np.arange(architecture.h), list(range(len(architecture.layers)))
    for selection in selections:
        units = units[selection.kept['h']]
        layers = layers if selection.layers is None else [layers[i] for i in selection.layers]
    return units, layers


def keep_all(architecture: Architecture, cost: CostModel) -> Selection:
    """The selection that takes nothing away."""
    whole = cost.cost(architecture)
    return Selection({key: np.arange(width) for key, width in architecture.widths().items()}, whole, whole)


def select_units(
    scores: Alphas,
    architecture: Architecture,
    cost: CostModel,
    target: float,
    *,
    prune: str = LETTERS,
    multiple_of: int = 1,
    drop_blocks: bool = False,
) -> Selection:
    """Remove the units with the smallest scores until the network costs no more than the target.

    All widths are ranked together (Algorithm 1: "set the zeta smallest prunable parameters to zero"). Ties
    are broken by the order of the widths and of their units. The best unit of every width stays. Units are
    removed one by one, so the final cost is at most one unit's price below the target.

    Parameters
    ----------
    scores : mapping of width key to np.ndarray, shape (width,)
        Alpha, or another measure of importance; its magnitude counts.
    target : float
        In the cost model's unit.
    prune : str
        The letters of the widths that may lose units.
    multiple_of : int
        Widths h, k, v and f that lose units end at multiples of this, or at one unit. Units are then removed
        in groups, ranked by their mean score, and the final cost is at most one group's price below the
        target.
    drop_blocks : bool
        Whether f may reach 0, which removes the whole intermediate block with its biases and LayerNorm.

    Raises
    ------
    ValueError
        If scores do not fit the architecture, are not finite, or the target cannot be reached.
    """
    widths = architecture.widths()
    _check_scores(scores, widths, prune)
    if math.isnan(target):
        raise ValueError(f'target must be a number of {cost.unit}, found {target}')
    least = {key: 0 if drop_blocks and key[0] == 'f' else 1 for key in widths}
    pruned = [key for key in widths if key[0] in prune and widths[key] > least[key]]
    groups = _removal_order(scores, pruned, least, multiple_of)
    owners = np.array([j for j, _ in groups], dtype=np.int64)
    sizes = np.array([len(units) for _, units in groups], dtype=np.int64)

    def cost_after(count: int) -> float:
        """The cost of what is left when the first groups are gone."""
        gone = np.bincount(owners[:count], weights=sizes[:count], minlength=len(pruned))
        left = {key: widths[key] - int(lost) for key, lost in zip(pruned, gone)}
        return cost.cost(architecture.with_widths(left))

    if cost_after(len(groups)) > target:
        raise ValueError(
            f'target {target:.6g} {cost.unit} cannot be reached by pruning {prune}: one unit of each width'
            f'{" but f" if drop_blocks else ""} costs {cost_after(len(groups)):.6g} of {cost_after(0):.6g}; '
            'ask for more, or prune more widths'
        )
    fewest = bisect.bisect_left(range(len(groups)), True, key=lambda count: cost_after(count) <= target)
    stays = {key: np.ones(width, dtype=bool) for key, width in widths.items()}
    for j, units in groups[:fewest]:
        stays[pruned[j]][units] = False
    kept = {key: np.flatnonzero(units) for key, units in stays.items()}
    return Selection(kept, cost_after(fewest), float(target))


def _check_scores(scores: Alphas, widths: Mapping[str, int], prune: str) -> None:
    """Raise ValueError unless the letters are widths, and every unit of these has a finite score."""
    if not prune or set(prune) - set(LETTERS):
        raise ValueError(f'prune must be made of the letters {LETTERS}, found {prune!r}')
    wanted = {key: width for key, width in widths.items() if key[0] in prune}
    wrong = [
        f'{key} has shape {np.shape(scores[key]) if key in scores else "none"}, wanted ({width},)'
        for key, width in wanted.items()
        if np.shape(scores.get(key, [] if width == 0 else None)) != (width,)
    ]
    wrong += [
        f'{key} is not finite' for key in wanted if key in scores and not np.all(np.isfinite(scores[key]))
    ]
    if wrong:
        raise ValueError('scores: ' + '; '.join(wrong))


def _removal_order(
    scores: Alphas, keys: Sequence[str], least: Mapping[str, int], multiple_of: int
) -> list[tuple[int, np.ndarray]]:
    """Groups of units (number of the width, indices) in the order in which they go; the least number of each
    never goes.
    """
    groups, ranks = [], []
    for j, key in enumerate(keys):
        magnitude = np.abs(np.asarray(scores[key], dtype=np.float64))
        width, step = len(magnitude), 1 if key.startswith('a') else multiple_of
        # of equal scores the first goes first, and the last is the best
        order = np.argsort(magnitude, kind='stable')
        order = np.concatenate([order[order != np.argmax(magnitude)], [np.argmax(magnitude)]]).astype(
            np.int64
        )
        starts = [0] + [width - left for left in range((width - 1) // step * step, 0, -step)]
        last = 0.0  # rounding must not let the mean of better units be the smaller one
        for start, end in zip(starts, starts[1:] + [width - least[key]]):
            if end > start:
                last = max(last, magnitude[order[start:end]].mean())
                groups.append((j, order[start:end]))
                ranks.append(last)
    return [groups[i] for i in np.argsort(np.asarray(ranks), kind='stable')]


def truncate(alphas: Alphas, selection: Selection) -> dict[str, np.ndarray]:
    """Alpha with every unit that is not selected at exactly zero."""
    truncated = {key: np.zeros_like(alpha) for key, alpha in alphas.items()}
    for key, alpha in alphas.items():
        truncated[key][selection.kept[key]] = alpha[selection.kept[key]]
    return truncated
