"""What gate training is watched for: whether the selection has settled, and what its gates came to.

A selection is settled if it has hardly changed for a while. A ranking is certain if gates that were trained
on two halves of the data rank the units alike."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from scipy.stats import rankdata

from ..architecture.parameters import LETTERS, Alphas
from ..cutting.selection import Selection
from ..runs.progress import CLOSED, OPEN

CHECKS = 5  # selections compared over the window
_NEVER = 2**63  # steps; the inverse of a learning rate may be infinite


@dataclasses.dataclass(frozen=True)
class Settling:
    """When gate training may stop before its last step.

    Parameters
    ----------
    window : int
        Steps over which the selection must have stayed the same.
    overlap : float
        The smallest share of the kept units that two selections in the window have in common.
    earliest : int
        The first step after which training may stop.
    """

    window: int
    overlap: float
    earliest: int

    @classmethod
    def of(cls, window: int, overlap: float, learning_rate: float) -> Settling:
        """With the first step at which Adam can have moved a gate from one to zero."""
        return cls(window, overlap, max(window, math.ceil(min(1 / learning_rate, _NEVER))))

    @property
    def every(self) -> int:
        """Steps between two checks."""
        return max(1, self.window // CHECKS)

    @property
    def first(self) -> int:
        """The first check that may end the training: the window before it begins with a check."""
        return -(-max(self.earliest, self.window + self.every) // self.every) * self.every


class Watch:
    """Follows the gates of one round.

    Parameters
    ----------
    select : callable
        The scores of the units → the selection at the round's target.
    settling : Settling, optional
        When training stops; without it, after the steps that it was told.

    Attributes
    ----------
    settled : bool
        Whether that is why it stopped.
    """

    def __init__(self, select: Callable[[Alphas], Selection], settling: Optional[Settling] = None):
        self._select, self._settling = select, settling
        self._step = 0
        self._kept: List[Tuple[int, Mapping[str, np.ndarray]]] = []  # of the last checks
        self._overlaps: List[Tuple[int, float]] = []
        self.settled = False
        self._alphas: Alphas = {}

    def step(self, scores: Callable[[], Alphas]) -> bool:
        """Count a step; whether training may stop after it."""
        self._step += 1
        settling = self._settling
        if settling is None or self._step % settling.every:
            return False
        kept = self._select(scores()).kept
        since = self._step - settling.window
        whole = any(step <= since for step, _ in self._kept)
        self._kept = [pair for pair in self._kept if pair[0] >= since]
        overlap = min((overlap_of(kept, before) for _, before in self._kept), default=0.0)
        self._kept.append((self._step, kept))
        if whole:
            self._overlaps.append((self._step, overlap))
        if whole and self._step >= settling.earliest and overlap >= settling.overlap:
            self.settled = True
            return True
        return False

    def memory(self) -> Dict[str, np.ndarray]:
        """What a checkpoint has to keep."""
        arrays = {f'kept.{step}.{key}': kept[key] for step, kept in self._kept for key in kept}
        arrays['overlaps'] = np.array(self._overlaps, dtype=np.float64).reshape(-1, 2)
        arrays['settled'] = np.array([float(self.settled)])
        return arrays

    def recall(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on after a step from what `memory` gave."""
        self._step = step
        kept: Dict[int, Dict[str, np.ndarray]] = {}
        for name, values in arrays.items():
            kind, _, rest = name.partition('.')
            if kind == 'kept':
                number, _, key = rest.partition('.')
                kept.setdefault(int(number), {})[key] = values.astype(np.int64)
        self._kept = sorted(kept.items())
        self._overlaps = [(int(number), float(share)) for number, share in arrays.get('overlaps', ())]
        self.settled = bool(np.any(arrays.get('settled', False)))

    def finish(self, alphas: Alphas) -> None:
        """Take the trained gates, zeros included."""
        self._alphas = alphas

    @property
    def steps(self) -> int:
        """The steps that were done."""
        return self._step

    def record(
        self, selection: Selection, *, prune: str, halves: Optional[Tuple[Alphas, Alphas]] = None
    ) -> Dict[str, Any]:
        """What a round says of its gates, as JSON values.

        Parameters
        ----------
        selection : Selection
            What they decided.
        prune : str
            The letters of the widths that may lose units.
        halves : pair of Alphas, optional
            The scores of gates that were trained on either half of the data.

        Returns
        -------
        dict
            ``steps``; ``stopped``: ``settled`` or ``steps``; ``overlaps``: pairs of a step and the smallest
            overlap in the window before it. By letter ``closed`` and ``open``: gates below and above a share
            of their start; ``units``: gates in all; ``alpha_at_cut``: the largest gate that went;
            ``split_half``: the rank correlation within a width between the halves, None where it is not
            known; and ``split_half_error``, its standard error without any correlation.
        """
        letters, alphas = [letter for letter in LETTERS if letter in prune], self._alphas
        values: Dict[str, Any] = {
            'steps': self._step,
            'stopped': 'settled' if self.settled else 'steps',
            'overlaps': [list(pair) for pair in self._overlaps],
        }
        names = ('units', 'closed', 'open', 'alpha_at_cut', 'split_half', 'split_half_error')
        values.update({name: {} for name in names})
        for letter in letters:
            keys = [key for key in alphas if key[0] == letter and len(alphas[key])]
            magnitudes = np.concatenate([np.abs(alphas[key]) for key in keys] or [np.zeros(0)])
            gone = [
                float(np.abs(np.delete(alphas[key], selection.kept[key])).max())
                for key in keys
                if len(selection.kept[key]) < len(alphas[key])
            ]
            values['units'][letter] = len(magnitudes)
            values['closed'][letter] = int((magnitudes < CLOSED).sum())
            values['open'][letter] = int((magnitudes > OPEN).sum())
            values['alpha_at_cut'][letter] = max(gone, default=None)
            correlation, error = agreement_of(*halves, keys) if halves else (None, None)
            values['split_half'][letter], values['split_half_error'][letter] = correlation, error
        return values


def overlap_of(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The share of the kept units that two selections have in common, of the larger one's."""
    common = sum(len(np.intersect1d(units, other[key], assume_unique=True)) for key, units in one.items())
    return common / max(1, *(sum(map(len, kept.values())) for kept in (one, other)))


def agreement_of(one: Alphas, other: Alphas, keys: Sequence[str]) -> Tuple[Optional[float], Optional[float]]:
    """How far two scores rank the units of some widths alike.

    Returns
    -------
    correlation : float or None
        Spearman's, with the ranks of the magnitudes taken within each width; None if nothing can be ranked.
    error : float or None
        Its standard error without any correlation.
    """
    product, squares, chance = 0.0, np.zeros(2), 0.0
    for key in keys:
        if len(one[key]) < 2:
            continue
        first, second = (rankdata(np.abs(scores[key])) for scores in (one, other))
        first, second = first - first.mean(), second - second.mean()
        own = np.array([first @ first, second @ second])
        product, squares = product + first @ second, squares + own
        chance += own.prod() / (len(first) - 1)  # the variance of `first @ second` over all orders of one
    scale = math.sqrt(squares.prod())
    if not scale:
        return None, None
    return float(product) / scale, math.sqrt(chance) / scale
