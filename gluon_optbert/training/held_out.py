"""MLM and NSP on held-out instances: how large losses and their differences are, and how certain."""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np
from mxnet import autograd

from ..network.losses import PretrainingLoss
from ..network.model import OptBERTModel
from ..network.running import pretraining_losses
from ..runs.progress import HeldOut
from ..text.batches import evaluation_batches
from ..text.shards import Shards
from .distributed import Workers


def evaluate(
    model: OptBERTModel, shards: Shards, workers: Workers, *, batch_size: int, limit: Optional[int] = None
) -> HeldOut:
    """Held-out losses and accuracies, over all workers' shares together.

    Parameters
    ----------
    model : OptBERTModel
    shards : Shards
        Of the held-out split.
    batch_size : int
        Instances at a time, over all workers.
    limit : int, optional
        The most instances to look at.
    """
    sums = np.zeros(9)
    for totals, losses, tokens in measured_batches(
        model, shards, workers, batch_size=batch_size, limit=limit
    ):
        sums += [*totals, losses @ losses, losses @ tokens, tokens @ tokens]
    return held_out_of(workers.sum(sums, name='evaluation'))


def measured_batches(
    model: OptBERTModel, shards: Shards, workers: Workers, *, batch_size: int, limit: Optional[int] = None
) -> Iterator[Tuple[List[float], np.ndarray, np.ndarray]]:
    """What this worker measures on its shares of the held-out batches; arguments as of `evaluate`.

    Yields
    ------
    totals : list of float
        Sums over the instances: MLM loss, NSP loss, tokens predicted right, instances predicted right, masked
        tokens, instances.
    losses, tokens : np.ndarray of float64, shape (b,)
        By instance, the sum of the MLM loss over its masked tokens, and their number. Both are 0 where the
        last batch is filled up.
    """
    loss = PretrainingLoss(accuracy=True)
    loss.hybridize(static_alloc=True)
    for batch in evaluation_batches(
        shards, batch_size=batch_size, rank=workers.rank, workers=workers.size, limit=limit
    ):
        with autograd.predict_mode():
            *totals, by_instance = pretraining_losses(model, loss, batch, ctx=workers.context())
        yield (
            [
                *(float(value.asscalar()) for value in totals),
                float(batch.masked_weights.sum()),
                float(batch.instance_weights.sum()),
            ],
            by_instance.asnumpy().astype(np.float64),
            batch.masked_weights.sum(axis=1, dtype=np.float64),
        )


def held_out_of(sums: Sequence[float]) -> HeldOut:
    """What sums over held-out instances come to.

    Parameters
    ----------
    sums : sequence of float
        The totals of `measured_batches`, then those of a loss squared, a loss times tokens, tokens squared.
    """
    mlm, nsp, mlm_right, nsp_right, masked, instances, *moments = sums
    masked, instances = max(masked, 1.0), max(instances, 1.0)
    return HeldOut(
        mlm_loss=mlm / masked,
        mlm_accuracy=mlm_right / masked,
        nsp_loss=nsp / instances,
        nsp_accuracy=nsp_right / instances,
        instances=int(instances),
        mlm_standard_error=ratio_error(mlm / masked, masked, instances, moments),
    )


def difference_error(
    one: OptBERTModel,
    other: OptBERTModel,
    shards: Shards,
    workers: Workers,
    *,
    batch_size: int,
    limit: Optional[int] = None,
) -> Optional[float]:
    """The standard error of the difference of two networks' MLM losses, over all workers' shares together.

    The difference is taken instance by instance: what makes an instance hard for both falls out. Arguments
    are those of `evaluate`; None for a single instance.
    """
    sums = np.zeros(6)
    measured = (
        measured_batches(model, shards, workers, batch_size=batch_size, limit=limit) for model in (one, other)
    )
    for (totals, losses, tokens), (_, others, _) in zip(*measured):
        apart = others - losses
        sums += [apart.sum(), tokens.sum(), totals[-1], apart @ apart, apart @ tokens, tokens @ tokens]
    apart, masked, instances, *moments = workers.sum(sums, name='difference')
    masked = max(masked, 1.0)
    return ratio_error(apart / masked, masked, instances, moments)


def ratio_error(loss: float, masked: float, instances: float, moments: Sequence[float]) -> Optional[float]:
    """The standard error of a mean loss per token, of instances that were drawn independently.

    The mean is a ratio of two sums, of losses and of tokens, and so this is the standard error of a ratio
    estimate (Cochran, 1977, Sampling Techniques).

    Parameters
    ----------
    loss : float
        The mean.
    masked, instances : float
        How many tokens and instances it was taken over.
    moments : sequence of float
        Sums over the instances: loss squared, loss times tokens, tokens squared.
    """
    if instances < 2:
        return None
    squares, products, tokens = moments
    scatter = max(squares - 2 * loss * products + loss**2 * tokens, 0.0)
    return math.sqrt(scatter * instances / (instances - 1)) / masked


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
