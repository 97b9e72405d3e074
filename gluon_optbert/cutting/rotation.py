"""An exact change of basis within every attention head: unit j becomes the j-th strongest direction.

The network computes what it did before. A gate that all heads of a layer share can then cut the weakest
directions of all of them, where it had to cut the same arbitrary units. The residual stream cannot be
rotated in this way: it passes through LayerNorm, whose gamma does not commute with a rotation."""

from __future__ import annotations

from typing import Dict, Tuple

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.parameters import Parameters

JITTER = 1e-6  # added to the second moments, as a share of their mean: keeps them invertible


def _factor(moments: np.ndarray) -> np.ndarray:
    """A lower triangular L with LLᵀ = moments, up to the jitter; shape (units, units)."""
    moments = np.asarray(moments, dtype=np.float64)
    jitter = JITTER * np.trace(moments) / len(moments) or 1.0
    return np.linalg.cholesky(moments + jitter * np.eye(len(moments)))


def score_bases(queries: np.ndarray, keys: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
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


def context_bases(contexts: np.ndarray, output: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
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
    parameters: Parameters, architecture: Architecture, moments: Dict[str, np.ndarray]
) -> Dict[str, np.ndarray]:
    """The parameters of the same function in which the units of every head are ordered by strength.

    Parameters
    ----------
    parameters : mapping of name to np.ndarray
    architecture : Architecture
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
                rotated[parameter] = _per_head(np.stack(of_heads), rotated[parameter])
        rotated[cell + 'proj.weight'] = columns.reshape(h, -1).astype(np.float32)
    return rotated


def _per_head(bases: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Every head's rows of a projection times the head's basis, shape (a, width, width), from the left."""
    heads, width, _ = bases.shape
    rows = value.astype(np.float64).reshape(heads, width, -1)
    return (bases @ rows).reshape(value.shape).astype(np.float32)
