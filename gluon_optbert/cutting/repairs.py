"""Repairs of a cut network: rotations of its heads before the cut, and least squares after it. Pure functions
on arrays.

Both regressions are streamed. They keep sums of products, so their memory does not grow with the tokens. Both
are drawn towards the parameters that the cut left, a dense layer by as much as held-out tokens choose: with
few tokens these change little. Source: K-prune (Park et al., 2023, arXiv 2308.03449); Kwon et al. (2022,
arXiv 2204.09656), section 3.4."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.parameters import Parameters

JITTER = 1e-6  # added to the second moments, as a share of their mean: keeps them invertible


def _factor(moments: np.ndarray) -> np.ndarray:
    """A lower triangular L with LLᵀ = moments, up to the jitter; shape (units, units)."""
    moments = np.asarray(moments, dtype=np.float64)
    jitter = JITTER * np.trace(moments) / len(moments) or 1.0
    return np.linalg.cholesky(moments + jitter * np.eye(len(moments)))


def score_bases(queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The changes of basis for the queries and the keys of one head.

    With E[qqᵀ] = L_q L_qᵀ, E[kkᵀ] = L_k L_kᵀ and L_qᵀ L_k = U S Vᵀ they are A_q = L_q⁻ᵀ U S^½ and
    A_k = L_k⁻ᵀ V S^½. Then A_q A_kᵀ = 1, so every score stays, and both second moments become S.

    Parameters
    ----------
    queries, keys : np.ndarray, shape (k, k)
        Second moments over tokens.

    Returns
    -------
    pair of np.ndarray of float64, shape (k, k)
        The new queries are A_qᵀ q, the new keys A_kᵀ k.
    """
    query_factor, key_factor = _factor(queries), _factor(keys)
    left, strength, right = np.linalg.svd(query_factor.T @ key_factor)
    root = np.sqrt(strength)
    return (np.linalg.solve(query_factor.T, left) * root, np.linalg.solve(key_factor.T, right.T) * root)


def context_bases(contexts: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The new basis of the values of one head, and the new columns of P.

    With E[ccᵀ] = LLᵀ and P L = U S Wᵀ the values become WᵀL⁻¹v, and P becomes U S.

    Parameters
    ----------
    contexts : np.ndarray, shape (v, v)
        Second moments of the head's outputs over tokens.
    output : np.ndarray, shape (h, v)
        The head's columns of P.

    Returns
    -------
    values : np.ndarray of float64, shape (v, v)
        What the values are multiplied by, from the left.
    output : np.ndarray of float64, shape (h, v)
    """
    factor = _factor(contexts)
    written = np.asarray(output, dtype=np.float64) @ factor
    _, vectors = np.linalg.eigh(written.T @ written)  # W, the weakest direction first
    right = vectors[:, ::-1]
    return np.linalg.solve(factor.T, right).T, written @ right


def rotate_heads(
    parameters: Parameters, architecture: Architecture, moments: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The parameters of the same function in which the units of every head are ordered by strength.

    Parameters
    ----------
    moments : dict of str to np.ndarray, shape (a, width, width)
        For every layer i, ``queries{i}``, ``keys{i}`` and ``contexts{i}``: second moments over tokens.

    Returns
    -------
    dict of name to np.ndarray of float32
        All parameters; those of the heads are new.
    """
    rotated = dict(parameters)
    for i, dims in enumerate(architecture.layers):
        cell = f'encoder.transformer_cells.{i}.'
        output = rotated[cell + 'proj.weight'].astype(np.float64)
        h = len(output)
        output = output.reshape(h, dims.a, dims.v)
        columns, bases = np.empty_like(output), {'query': [], 'key': [], 'value': []}
        for head in range(dims.a):
            queries, keys = score_bases(moments[f'queries{i}'][head], moments[f'keys{i}'][head])
            values, columns[:, head] = context_bases(moments[f'contexts{i}'][head], output[:, head])
            for name, basis in (('query', queries.T), ('key', keys.T), ('value', values)):
                bases[name].append(basis)
        for name, of_heads in bases.items():
            for kind in ('weight', 'bias'):
                parameter = f'{cell}attention_cell.proj_{name}.{kind}'
                value = rotated[parameter]
                rows = value.astype(np.float64).reshape(dims.a, len(of_heads[0]), -1)
                rotated[parameter] = (np.stack(of_heads) @ rows).reshape(value.shape).astype(np.float32)
        rotated[cell + 'proj.weight'] = columns.reshape(h, -1).astype(np.float32)
    return balance_heads(rotated, architecture)


def balance_heads(parameters: Parameters, architecture: Architecture) -> dict[str, np.ndarray]:
    """The parameters of the same function in which the scale of every direction is split evenly between the
    matrices of its head.

    Unit j of a head stands in row j of V and in column j of P, and in row j of Q and of K. A factor on the
    one and its inverse on the other change nothing but the size of their gradients. Rotation and least
    squares leave most of the scale in P, so that recovery would first have to undo it.

    Returns
    -------
    dict of name to np.ndarray of float32
        All parameters; rows of V have the norms of columns of P, rows of Q those of rows of K.
    """
    balanced = dict(parameters)
    for i in range(len(architecture.layers)):
        cell = f'encoder.transformer_cells.{i}.'
        query, key, value = (f'{cell}attention_cell.proj_{name}' for name in ('query', 'key', 'value'))
        output = f'{cell}proj.weight'
        norms = {name: np.linalg.norm(balanced[f'{name}.weight'], axis=1) for name in (query, key, value)}
        scores = _even(norms[query], norms[key])
        contexts = _even(norms[value], np.linalg.norm(balanced[output], axis=0))
        for name, factor in ((query, scores), (key, 1 / scores), (value, contexts)):
            balanced[f'{name}.weight'] = balanced[f'{name}.weight'] * factor[:, np.newaxis]
            balanced[f'{name}.bias'] = balanced[f'{name}.bias'] * factor
        balanced[output] = balanced[output] / contexts
    return balanced


def _even(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The factors on norms, in float32, that make them as large as others divided by the same; 1 where either
    is zero.
    """
    used = (one > 0) & (other > 0)
    ratio = np.divide(other, one, out=np.ones_like(one, dtype=np.float64), where=used)
    return np.sqrt(ratio).astype(np.float32)


RIDGE = 0.01  # the penalty, as a share of the mean squared input, where no token is held out
RIDGES = np.geomspace(1e-3, 100, 11)  # of which held-out tokens choose
ROUNDING = 1e-10  # a variance below this share of the mean square is none: float64 sums are off by less
Total = Callable[[np.ndarray], np.ndarray]  # a sum over workers


class DenseRegression:
    """The weight and the bias of a dense layer that turn inputs into targets.

    Parameters
    ----------
    inputs, outputs : int
        Widths of the layer.
    """

    def __init__(self, inputs: int, outputs: int):
        # of the tokens that are not held out, and of those that are
        self._tokens = np.zeros(2)
        self._x, self._y = np.zeros((2, inputs)), np.zeros((2, outputs))
        self._xx, self._xy = np.zeros((2, inputs, inputs)), np.zeros((2, inputs, outputs))

    def add(self, inputs: np.ndarray, targets: np.ndarray, held_out: np.ndarray | bool = False) -> None:
        """Count tokens: inputs of shape (tokens, inputs), targets of shape (tokens, outputs), and which of
        them are held out, shape (tokens,).
        """
        held_out = np.broadcast_to(held_out, len(inputs))
        for part, chosen in enumerate((~held_out, held_out)):
            some, wanted = inputs[chosen], targets[chosen]
            self._tokens[part] += len(some)
            self._x[part] += some.sum(axis=0, dtype=np.float64)
            self._y[part] += wanted.sum(axis=0, dtype=np.float64)
            some = some.astype(np.float64)  # float32 would lose a variance far below the squared mean
            self._xx[part] += some.T @ some
            self._xy[part] += some.T @ wanted

    def through(self, weight: np.ndarray, bias: np.ndarray) -> DenseRegression:
        """The regression onto what a dense layer makes of the targets, from the same sums: of outputs
        W y + b, Σ x (W y + b)ᵀ = (Σ x yᵀ) Wᵀ + (Σ x) bᵀ.

        Parameters
        ----------
        weight : np.ndarray, shape (outputs of the layer, outputs)
        bias : np.ndarray, shape (outputs of the layer,)
        """
        further = copy.deepcopy(self)
        weight, bias = weight.astype(np.float64), bias.astype(np.float64)
        further._y = self._y @ weight.T + np.outer(self._tokens, bias)
        further._xy = self._xy @ weight.T + self._x[:, :, np.newaxis] * bias
        return further

    def solve(
        self, weight: np.ndarray, bias: np.ndarray, *, ridge: float = RIDGE, total: Total = np.asarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weight and the bias with the least squared error.

        With X and Y centred and n inputs: W' = (XᵀX + λI)⁻¹ (XᵀY + λWᵀ), transposed, and b' = ȳ - W'x̄. The
        tokens that are not held out are solved with every λ of `RIDGES` · tr(XᵀX) / n. The λ that has the
        least error on the others then solves all tokens: the best λ does not grow with them.

        Parameters
        ----------
        weight : np.ndarray, shape (outputs, inputs)
            What the solution is drawn towards.
        bias : np.ndarray, shape (outputs,)
            The result where no token was counted.
        ridge : float
            Where none or all are held out, λ is that · tr(XᵀX) / n.
        total : callable
            The sum of an array over the workers; by default there is one.

        Returns
        -------
        weight : np.ndarray of float32, shape (outputs, inputs)
        bias : np.ndarray of float32, shape (outputs,)
        """
        counts, *sums = (total(array) for array in (self._tokens, self._x, self._y, self._xx, self._xy))
        if not (tokens := counts.sum()):
            return weight, bias
        x, y = (array.sum(axis=0) / tokens for array in sums[:2])
        parts = [_centred(x, y, *part) for part in zip(counts, *sums)]
        xx, xy = (sum(arrays) for arrays in zip(*parts))
        if np.trace(xx) <= ROUNDING * np.trace(sums[2].sum(axis=0)):  # every token is the same
            return weight, (y - weight @ x).astype(np.float32)
        weight = weight.astype(np.float64)
        penalty = ridge * np.trace(xx) / len(x)
        if counts.all():
            learnt, held_out = parts
            penalties = RIDGES * counts[0] / tokens * np.trace(xx) / len(x)
            errors = [_error(_drawn(*learnt, weight, one), *held_out) for one in penalties]
            penalty = penalties[np.argmin(errors)]
        solved = _drawn(xx, xy, weight, penalty)
        return solved.astype(np.float32), (y - solved @ x).astype(np.float32)


def _centred(
    x: np.ndarray, y: np.ndarray, tokens: float, sum_x: np.ndarray, sum_y: np.ndarray, *products: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sums of products of some tokens about the means of all."""
    xx, xy = products
    off = sum_x - tokens * x
    return xx - np.outer(x, sum_x) - np.outer(off, x), xy - np.outer(x, sum_y) - np.outer(off, y)


def _drawn(xx: np.ndarray, xy: np.ndarray, weight: np.ndarray, penalty: float) -> np.ndarray:
    """The least squares solution that is drawn towards a weight; shape (outputs, inputs)."""
    return np.linalg.solve(xx + penalty * np.eye(len(xx)), xy + penalty * weight.T).T


def _error(weight: np.ndarray, xx: np.ndarray, xy: np.ndarray) -> float:
    """The squared error of a weight, but for the sum of squared targets."""
    return float(np.sum((weight @ xx - 2 * xy.T) * weight))


class ScaleRegression:
    """The gamma and the beta of a LayerNorm, one regression for each unit."""

    def __init__(self, units: int):
        self._tokens = np.zeros(1)
        self._sums = np.zeros((4, units))  # of x, y, x * x, x * y

    def add(self, normalized: np.ndarray, targets: np.ndarray) -> None:
        """Count tokens: both of shape (tokens, units), the first without gamma and beta."""
        self._tokens += len(normalized)
        normalized, targets = normalized.astype(np.float64), targets.astype(np.float64)
        for i, products in enumerate((normalized, targets, normalized**2, normalized * targets)):
            self._sums[i] += products.sum(axis=0)

    def solve(
        self, gamma: np.ndarray, beta: np.ndarray, *, ridge: float = RIDGE, total: Total = np.asarray
    ) -> tuple[np.ndarray, np.ndarray]:
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
