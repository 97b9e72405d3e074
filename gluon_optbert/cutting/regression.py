"""Least squares for the parameters of a cut network: pure functions on arrays.

Both regressions are streamed. They keep sums of products, so their memory does not grow with the tokens. Both
are drawn towards the parameters that the cut left: with few tokens these change little. Source: K-prune (Park
et al., 2023, arXiv 2308.03449); Kwon et al. (2022, arXiv 2204.09656), section 3.4."""

from __future__ import annotations

from typing import Callable, Tuple

import numpy as np

RIDGE = 0.01  # the penalty, as a share of the mean squared input
ROUNDING = 1e-5  # a variance below this share of the mean square is none: float32 products are off by less
Total = Callable[[np.ndarray], np.ndarray]  # a sum over workers


class DenseRegression:
    """The weight and the bias of a dense layer that turn inputs into targets.

    Parameters
    ----------
    inputs, outputs : int
        Widths of the layer.
    """

    def __init__(self, inputs: int, outputs: int):
        self._tokens = np.zeros(1)
        self._x, self._y = np.zeros(inputs), np.zeros(outputs)
        self._xx, self._xy = np.zeros((inputs, inputs)), np.zeros((inputs, outputs))

    def add(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Count tokens: inputs of shape (tokens, inputs), targets of shape (tokens, outputs)."""
        self._tokens += len(inputs)
        self._x += inputs.sum(axis=0, dtype=np.float64)
        self._y += targets.sum(axis=0, dtype=np.float64)
        self._xx += inputs.T @ inputs
        self._xy += inputs.T @ targets

    def solve(
        self, weight: np.ndarray, bias: np.ndarray, *, ridge: float = RIDGE, total: Total = np.asarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """The weight and the bias with the least squared error.

        With X and Y centred and n inputs: W' = (XᵀX + λI)⁻¹ (XᵀY + λWᵀ), transposed, b' = ȳ - W'x̄, and
        λ = ridge · tr(XᵀX) / n.

        Parameters
        ----------
        weight : np.ndarray, shape (outputs, inputs)
            What the solution is drawn towards.
        bias : np.ndarray, shape (outputs,)
            The result where no token was counted.
        ridge : float
        total : callable
            The sum of an array over the workers; by default there is one.

        Returns
        -------
        weight : np.ndarray of float32, shape (outputs, inputs)
        bias : np.ndarray of float32, shape (outputs,)
        """
        tokens = float(total(self._tokens)[0])
        x, y, xx, xy = (total(array) for array in (self._x, self._y, self._xx, self._xy))
        if not tokens:
            return weight, bias
        x, y, square = x / tokens, y / tokens, np.trace(xx)
        xx = xx - tokens * np.outer(x, x)
        xy = xy - tokens * np.outer(x, y)
        if np.trace(xx) <= ROUNDING * square:  # every token is the same
            return weight, (y - weight @ x).astype(np.float32)
        drawn = ridge * np.trace(xx) / len(x)
        xx[np.diag_indices_from(xx)] += drawn
        solved = np.linalg.solve(xx, xy + drawn * weight.T.astype(np.float64)).T
        return solved.astype(np.float32), (y - solved @ x).astype(np.float32)


class ScaleRegression:
    """The gamma and the beta of a LayerNorm, one regression for each unit.

    Parameters
    ----------
    units : int
    """

    def __init__(self, units: int):
        self._tokens = np.zeros(1)
        self._sums = np.zeros((4, units))  # of x, y, x * x, x * y

    def add(self, normalized: np.ndarray, targets: np.ndarray) -> None:
        """Count tokens: both of shape (tokens, units), the first without gamma and beta."""
        self._tokens += len(normalized)
        for i, products in enumerate((normalized, targets, normalized**2, normalized * targets)):
            self._sums[i] += products.sum(axis=0, dtype=np.float64)

    def solve(
        self, gamma: np.ndarray, beta: np.ndarray, *, ridge: float = RIDGE, total: Total = np.asarray
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Gamma and beta of the least squared error; arguments as in `DenseRegression.solve`, both of shape
        (units,).
        """
        tokens, sums = float(total(self._tokens)[0]), total(self._sums)
        if not tokens:
            return gamma, beta
        x, y, xx, xy = sums / tokens
        variance, covariance = xx - x * x, xy - x * y
        if variance.mean() <= ROUNDING * xx.mean():  # every token is the same
            return gamma, (y - gamma * x).astype(np.float32)
        drawn = ridge * variance.mean()
        slope = (covariance + drawn * gamma) / (variance + drawn)
        return slope.astype(np.float32), (y - slope * x).astype(np.float32)
