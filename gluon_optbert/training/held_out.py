"""MLM and NSP on held-out instances: how large losses and their differences are, and how certain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from mxnet import autograd

from ..network.losses import PretrainingLoss
from ..network.model import OptBERTModel
from ..network.running import pretraining_losses
from ..runs.display import tracked
from ..runs.progress import HeldOut
from ..text.batches import Batch, evaluation_batches
from ..text.shards import Shards
from .distributed import Workers


@dataclasses.dataclass(frozen=True)
class Losses:
    """The MLM losses of a network, instance by instance.

    Sums and tokens are those of this worker's share, and 0 where a batch is filled up.
    """

    measured: HeldOut  # over all workers' shares together
    sums: np.ndarray  # (n,) float64; the loss of an instance, added up over its masked tokens, in nats
    tokens: np.ndarray  # (n,) float64; the number of these tokens

    def gathered(self, workers: Workers, *, batch_size: int) -> Losses:
        """Those of all workers' shares, in the order of the instances, without what fills a batch up; with so
        many instances at a time over all workers, as they were measured.
        """
        share = batch_size // workers.size
        own = np.stack([self.sums, self.tokens]).reshape(2, -1, 1, share)
        parts = np.zeros((2, own.shape[1], workers.size, share))
        parts[:, :, [workers.rank]] = own
        sums, tokens = workers.total(parts, name='losses').reshape(2, -1)
        return Losses(self.measured, sums[tokens > 0], tokens[tokens > 0])


def held_out_batches(
    shards: Shards, workers: Workers, title: str, *, batch_size: int, limit: int | None = None
) -> Iterator[Batch]:
    """This worker's share of held-out instances, while the title and how many batches are done are shown;
    arguments as of `losses_of`.
    """
    batches = evaluation_batches(
        shards, batch_size=batch_size, rank=workers.rank, workers=workers.size, limit=limit
    )
    count = -(-min(limit or shards.instances, shards.instances) // batch_size)
    return tracked(batches, title, count, quiet=not workers.first)


def losses_of(
    model: OptBERTModel, shards: Shards, workers: Workers, *, batch_size: int, limit: int | None = None
) -> Losses:
    """Losses and accuracies on the held-out split, with so many instances at a time over all workers, on at
    most `limit`.
    """
    loss = PretrainingLoss(accuracy=True)
    loss.hybridize(static_alloc=True)
    totals = np.zeros(6)
    losses: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    for batch in held_out_batches(shards, workers, 'held-out loss', batch_size=batch_size, limit=limit):
        with autograd.predict_mode():
            *measured, by_instance = pretraining_losses(model, loss, batch, ctx=workers.context())
        losses.append(by_instance.asnumpy().astype(np.float64))
        tokens.append(batch.masked_weights.sum(axis=1, dtype=np.float64))
        totals += [
            *(float(value.asscalar()) for value in measured),
            batch.masked_weights.sum(),
            batch.instance_weights.sum(),
        ]
    shares = np.concatenate(losses), np.concatenate(tokens)
    sums = workers.sum([*totals, *_moments(*shares)], name='evaluation')
    mlm, nsp, mlm_right, nsp_right, masked, instances, *moments = sums
    masked, instances = max(masked, 1.0), max(instances, 1.0)
    held_out = HeldOut(
        mlm_loss=mlm / masked,
        mlm_accuracy=mlm_right / masked,
        nsp_loss=nsp / instances if shards.next_sentence else None,
        nsp_accuracy=nsp_right / instances if shards.next_sentence else None,
        instances=int(instances),
        mlm_standard_error=_ratio_error(mlm / masked, masked, instances, moments),
    )
    return Losses(held_out, *shares)


def difference(one: Losses, other: Losses, workers: Workers | None = None) -> tuple[float, float | None]:
    """By how much the MLM loss of another network is larger, and the standard error of that, over all
    workers' shares together, or without `workers` of losses that were gathered; of a single instance the
    error is None.

    The difference is taken instance by instance. What makes an instance hard for both networks falls out, so
    its standard error is far below those of the two losses. ValueError if they are of other instances.
    """
    if not np.array_equal(one.tokens, other.tokens):
        raise ValueError('these losses were measured on different instances')
    apart = other.sums - one.sums
    share = [apart.sum(), one.tokens.sum(), *_moments(apart, one.tokens)]
    total, masked, *moments = share if workers is None else workers.sum(share, name='difference')
    masked = max(masked, 1.0)
    return total / masked, _ratio_error(total / masked, masked, one.measured.instances, moments)


def _moments(losses: np.ndarray, tokens: np.ndarray) -> tuple[float, float, float]:
    """Sums over the instances: loss squared, loss times tokens, tokens squared."""
    return float(losses @ losses), float(losses @ tokens), float(tokens @ tokens)


def _ratio_error(loss: float, masked: float, instances: float, moments: Sequence[float]) -> float | None:
    """The standard error of a mean loss per token, of instances that were drawn independently.

    The mean is a ratio of two sums, of losses and of tokens, and so this is the standard error of a ratio
    estimate (Cochran, 1977, Sampling Techniques). It was taken over `masked` tokens of `instances`.
    """
    if instances < 2:
        return None
    squares, products, tokens = moments
    scatter = max(squares - 2 * loss * products + loss**2 * tokens, 0.0)
    return math.sqrt(scatter * instances / (instances - 1)) / masked
