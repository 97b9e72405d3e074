"""Losses of networks on the same held-out instances: how large their differences are, and how certain."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

import numpy as np

from ..network.model import OptBERTModel
from ..runs.progress import HeldOut
from ..text.shards import Shards
from ..training.distributed import Workers
from ..training.mlm_nsp import held_out_of, measured_batches, ratio_error


@dataclasses.dataclass(frozen=True)
class Losses:
    """The MLM losses of a network, instance by instance.

    Parameters
    ----------
    measured : HeldOut
        Over all instances.
    sums : np.ndarray of float64, shape (n,)
        The loss of an instance, added up over its masked tokens, in nats.
    tokens : np.ndarray of float64, shape (n,)
        Its masked tokens.
    """

    measured: HeldOut
    sums: np.ndarray
    tokens: np.ndarray


def losses_of(
    network: OptBERTModel,
    shards: Shards,
    *,
    batch_size: int = 32,
    limit: Optional[int] = None,
    workers: Optional[Workers] = None,
) -> Losses:
    """The losses of a network on held-out instances, of this process alone.

    Parameters
    ----------
    network : OptBERTModel
        With the heads of pre-training.
    shards : Shards
        Of the held-out split.
    batch_size : int
        Instances at a time.
    limit : int, optional
        The most instances to look at.
    workers : Workers, optional
        Whose device is taken.
    """
    parts = list(measured_batches(network, shards, workers or Workers(), batch_size=batch_size, limit=limit))
    totals = np.sum([part[0] for part in parts], axis=0)
    count = int(totals[-1])
    sums, tokens = (np.concatenate([part[i] for part in parts])[:count] for i in (1, 2))
    return Losses(held_out_of([*totals, *_moments(sums, tokens)]), sums, tokens)


def difference(one: Losses, other: Losses) -> Tuple[float, Optional[float]]:
    """By how much the MLM loss of another network is larger, and the standard error of that.

    The difference is taken instance by instance. What makes an instance hard for both networks falls out, so
    its standard error is far below those of the two losses.

    Raises
    ------
    ValueError
        If they are losses on other instances.
    """
    if not np.array_equal(one.tokens, other.tokens):
        raise ValueError('these losses were measured on different instances')
    apart, masked = other.sums - one.sums, max(float(one.tokens.sum()), 1.0)
    mean = float(apart.sum()) / masked
    return mean, ratio_error(mean, masked, len(apart), _moments(apart, one.tokens))


def _moments(sums: np.ndarray, tokens: np.ndarray) -> Tuple[float, float, float]:
    return float(sums @ sums), float(sums @ tokens), float(tokens @ tokens)
