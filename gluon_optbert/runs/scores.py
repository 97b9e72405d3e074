"""Scores in percent, as tables and messages show them."""

from __future__ import annotations

from typing import Optional

import numpy as np

MARK = '*'  # behind a score that is no better than the majority class's
NOTE = f'{MARK} no better than the majority class, which needs no network'
OPTIMISTIC = 'the learning rate was chosen on the set that is scored, so the scores are optimistic'
_ROUNDING = 1e-6  # percent; means over seeds of equal scores differ by less


def exceeds(score: float, majority: Optional[float]) -> bool:
    """Whether a score is better than the majority class's; true where that is not known."""
    return majority is None or score > majority + _ROUNDING


def difference_error(one: np.ndarray, other: np.ndarray) -> Optional[float]:
    """The standard error of the difference of two accuracies, in percentage points, taken instance by
    instance; None for a single instance.

    Parameters
    ----------
    one, other : np.ndarray, shape (instances,)
        Of each instance whether it was answered right, or the share of the networks that did.
    """
    if len(one) < 2:
        return None
    apart = np.asarray(other, dtype=float) - np.asarray(one, dtype=float)
    return 100 * float(apart.std(ddof=1)) / len(apart) ** 0.5


def score_text(
    mean: float, std: Optional[float] = None, *, majority: Optional[float] = None, digits: int = 1
) -> str:
    """A score for people, such as ``81.7 ± 0.4``; `MARK` stands behind one that is no better than `majority`.

    Parameters
    ----------
    mean, std : float
        In percent. A single run has no deviation.
    majority : float, optional
        The score of always giving the majority class, in percent.
    digits : int
        Behind the point.
    """
    spread = '' if std is None else f' ± {std:.{digits}f}'
    return f'{mean:.{digits}f}{spread}' + ('' if exceeds(mean, majority) else f' {MARK}')
