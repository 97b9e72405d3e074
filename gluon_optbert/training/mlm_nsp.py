"""Pre-training: weights by equation (1), gates by equation (2)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Callable, Dict, Generator, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..network.losses import PretrainingLoss
from ..network.model import OptBERTModel
from ..network.running import pretraining_losses
from ..runs.progress import HeldOut, Progress
from ..text.batches import Batch, evaluation_batches, stream
from ..text.shards import Shards
from .distributed import Workers
from .loop import descend
from .objective import Objective, Phase
from .optimization import Optimizer
from .reporter import Reporter


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


class Pretraining(Objective):
    """MLM plus NSP: the mean over the masked tokens of the global batch plus the mean over its instances.

    Parameters
    ----------
    model : OptBERTModel
    workers : Workers
    shards : Shards
        To train on.
    heldout : Shards, optional
        To measure on.
    """

    losses = ('mlm', 'nsp')

    def __init__(
        self, model: OptBERTModel, workers: Workers, shards: Shards, heldout: Optional[Shards] = None
    ):
        super().__init__(model, workers)
        self._shards, self._heldout = shards, heldout
        self._loss = PretrainingLoss()
        self._loss.hybridize(static_alloc=True)

    def batches(self, phase: Phase, start: int) -> Generator[Batch, None, None]:
        return stream(
            self._shards,
            batch_size=phase.batch_size,
            seed=phase.seed,
            start=start,
            rank=self.workers.rank,
            workers=self.workers.size,
        )

    def loss_sums(self, batch: Batch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        return pretraining_losses(self.model, self._loss, batch, rows=rows, ctx=self.workers.context())

    def totals(self, batch: Batch) -> Tuple[int, int]:
        return batch.masked_total, batch.instance_total

    def evaluate(self, phase: Phase) -> Optional[Dict[str, float]]:
        if self._heldout is None:
            return None
        return evaluate(
            self.model, self._heldout, self.workers, batch_size=phase.pass_size, limit=phase.evaluation_limit
        ).to_dict()

    def remember(self, progress: Progress, measured: Mapping[str, float], step: int) -> Progress:
        progress, best = progress.updated(**measured), progress.best_mlm_loss
        if measured['mlm_loss'] < (math.inf if best is None else best):
            progress = progress.updated(best_mlm_loss=measured['mlm_loss'], best_step=step)
        return progress

    def loss_of(self, measured: Mapping[str, float]) -> float:
        return measured['mlm_loss']

    def best_of(self, progress: Progress) -> Optional[float]:
        return progress.best_mlm_loss


def fit(
    model: OptBERTModel,
    optimizer: Optimizer,
    schedule: Callable[[int], float],
    phase: Phase,
    *,
    shards: Shards,
    heldout: Optional[Shards],
    workers: Workers,
    reporter: Reporter,
    states: Path,
) -> Progress:
    """Pre-train what the optimizer holds; `descend` says how, and what it returns: the step, and the last
    evaluation if there was one.
    """
    return descend(
        Pretraining(model, workers, shards, heldout),
        optimizer,
        schedule,
        phase,
        reporter=reporter,
        states=states,
    )
