"""Objectives of training: batches, losses, and measurements on held-out data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from ..network.model import OptBERTModel
from ..runs.progress import Progress
from .distributed import Workers


@dataclasses.dataclass(frozen=True)
class Phase:
    """The settings of one call of `train`."""

    name: str  # for metrics and messages, e.g. ``recovery``
    steps: int
    batch_size: int  # instances a step over all workers
    accumulate: int = 1  # passes that a worker's share is split into
    seed: int = 0  # of the data's order and of dropout
    first_batch: int = 0  # where in the stream of batches the phase starts
    log_every: int = 50  # steps; 0 for never, as with the next two
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2  # checkpoints, the best one aside
    evaluation_limit: int = 1024  # held-out instances to look at
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # for every record, such as the round
    place: str = ''  # where the phase stands in its run, for people: ``round 1/4``
    batch_tokens: int = 0  # a step over all workers, with padding, of batches counted in tokens; or 0

    @property
    def pass_size(self) -> int:
        """Instances that are in memory at once, over all workers."""
        return self.batch_size // self.accumulate


class Objective:
    """Batches, the losses that a phase makes small, and measurements on held-out data."""

    losses: tuple[str, ...] = ()  # the parts of the loss, as metrics call them
    weights: tuple[float, ...] = ()  # what each is multiplied by, though not in metrics; empty for one each
    # the measurement, the smaller the better, that decides which step is best, unless `remember` and the two
    # after it are others
    decides = ''
    returns_to_best = False  # whether the best step will be gone back to, and always has a checkpoint

    def __init__(self, model: OptBERTModel, workers: Workers):
        self.model, self.workers = model, workers

    def batches(self, phase: Phase, start: int) -> Generator[Any, None, None]:
        """This worker's share of every batch from number `start` on; each has ``input_ids`` and
        ``token_total``.
        """
        raise NotImplementedError

    def loss_sums(self, batch: Any, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        """The parts of the loss, summed over some rows of a share."""
        raise NotImplementedError

    def totals(self, batch: Any) -> Sequence[float]:
        """Divisors of those sums that give the mean over the global batch."""
        raise NotImplementedError

    def evaluate(self, phase: Phase) -> dict[str, float] | None:
        """Measurements on held-out data; None if there is none."""
        raise NotImplementedError

    def remember(self, progress: Progress, measured: Mapping[str, float], step: int) -> Progress:
        """The progress with what a measurement changes, such as ``best_step``."""
        best, value = self.best_of(progress), self.loss_of(measured)
        progress = progress.updated(**measured)
        if value < (math.inf if best is None else best):
            progress = progress.updated(**{f'best_{self.decides}': value}, best_step=step)
        return progress

    def loss_of(self, measured: Mapping[str, float]) -> float:
        """The one of what `evaluate` gives that decides which step is best; smaller is better."""
        return measured[self.decides]

    def best_of(self, progress: Progress) -> float | None:
        """The smallest `loss_of` that was remembered; None if there was none."""
        return getattr(progress, f'best_{self.decides}')

    def after_backward(self) -> None:
        """Change the gradients that a step has left, before the optimizer reads them."""

    def after_update(self, learning_rate: float) -> None:
        """Change the parameters that the optimizer has just updated."""

    def metrics(self) -> dict[str, float]:
        """Entries of a metrics record beside the losses."""
        return {}

    def finished(self) -> bool:
        """Whether the phase may end after the step that was just done; the same on every worker."""
        return False

    def memory(self) -> dict[str, np.ndarray]:
        """Arrays that a checkpoint keeps beside parameters and optimizer, by name; all workers ask."""
        return {}

    def recall(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on after a step from what `memory` gave then."""

    def over(self) -> bool:
        """Whether the phase had ended with the step that was recalled."""
        return False
