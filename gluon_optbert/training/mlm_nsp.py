"""Pre-training: weights by equation (1), gates by equation (2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import mxnet as mx

from ..network.losses import PretrainingLoss
from ..network.model import OptBERTModel
from ..network.running import pretraining_losses
from ..runs.progress import Progress
from ..text.batches import Batch, stream
from ..text.shards import Shards
from .distributed import Workers
from .held_out import evaluate
from .loop import Reporter, train
from .objective import Objective, Phase
from .optimization import Optimizer


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

    def __init__(self, model: OptBERTModel, workers: Workers, shards: Shards, heldout: Shards | None = None):
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

    def loss_sums(self, batch: Batch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        return pretraining_losses(self.model, self._loss, batch, rows=rows, ctx=self.workers.context())

    def totals(self, batch: Batch) -> tuple[int, int]:
        return batch.masked_total, batch.instance_total

    def evaluate(self, phase: Phase) -> dict[str, float] | None:
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

    def best_of(self, progress: Progress) -> float | None:
        return progress.best_mlm_loss


def fit(
    model: OptBERTModel,
    optimizer: Optimizer,
    schedule: Callable[[int], float],
    phase: Phase,
    *,
    shards: Shards,
    heldout: Shards | None,
    workers: Workers,
    reporter: Reporter,
    states: Path,
) -> Progress:
    """Pre-train what the optimizer holds; `train` says how, and what it returns: the step, and the last
    evaluation if there was one.
    """
    return train(
        Pretraining(model, workers, shards, heldout),
        optimizer,
        schedule,
        phase,
        reporter=reporter,
        states=states,
    )
