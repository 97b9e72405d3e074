"""Ranking units by the Fisher information of their gates, without training (Kwon et al., 2022, "A Fast
Post-Training Pruning Framework for Transformers").

I is the Fisher information: the mean of g gᵀ over batches, of the gradients g of the loss towards the gates,
which are all one. For plain masks, each of which multiplies the output of its unit once, the loss rises by
about half of mᵀ I m close to a minimum, where m is one at the units that go.

The gates here are no plain masks, so mᵀ I m ranks units, and is no estimate of the rise. Gates of a, k and v
enter squared (optBERT, Table 5): the gradient towards those of k and v is twice that of a mask on the unit,
and they count four times as much. Gates of a multiply the scores and the output of a head, and those of f
stand before and behind GELU, so that two gradients add up; those of h stand in every LayerNorm of the
stream."""

from __future__ import annotations

from typing import Dict, Mapping

import numpy as np


def fisher_scores(gradients: Mapping[str, np.ndarray], prices: Mapping[str, float]) -> Dict[str, np.ndarray]:
    """The diagonal of the Fisher information over the price of a unit: what a gate counts for what its unit
    saves, as a share of the largest of all. Units whose price is zero save nothing, and have the largest.

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
        What is begun with.

    Returns
    -------
    np.ndarray of int, increasing
    """
    values = np.asarray(gradients, dtype=np.float64)
    information = values.T @ values
    gone = np.ones(values.shape[1], dtype=bool)
    gone[kept] = False
    diagonal = np.diag(information)
    while gone.any() and not gone.all():
        out, stay = np.flatnonzero(gone), np.flatnonzero(~gone)
        cross = information[:, gone].sum(axis=1)  # of every unit with all that go
        change = (diagonal - 2 * cross)[out, np.newaxis] + (diagonal + 2 * cross)[stay]
        change -= 2 * information[np.ix_(out, stay)]
        best = np.unravel_index(np.argmin(change), change.shape)
        if change[best] >= -1e-12 * diagonal.sum():
            break
        gone[out[best[0]]], gone[stay[best[1]]] = False, True
    return np.flatnonzero(~gone)


def rank_as(scores: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The same scores, given to other units: the largest to those that are to be kept.

    Within the kept units and within the others the order stays.

    Parameters
    ----------
    scores : np.ndarray, shape (width,)
    kept : np.ndarray of int
    """
    stays = np.zeros(len(scores), dtype=bool)
    stays[kept] = True
    order = np.lexsort((scores, stays))
    changed = np.empty_like(scores)
    changed[order] = np.sort(scores)
    return changed
