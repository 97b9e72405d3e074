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
    """The settings of one call of `train`.

    Parameters
    ----------
    name : str
        For metrics and messages, e.g. ``recovery``.
    batch_size : int
        Instances a step over all workers.
    batch_tokens : int
        Tokens a step over all workers, padding included, for batches that are counted in tokens; or 0.
    accumulate : int
        Passes that a worker's share is split into.
    seed : int
        Of the data's order and of dropout.
    first_batch : int
        Where in the stream of batches the phase starts.
    log_every, evaluate_every, checkpoint_every : int
        In steps; 0 for never.
    keep : int
        Checkpoints to keep, the best one aside.
    evaluation_limit : int
        Held-out instances to look at.
    notes : mapping
        Fixed values for every metrics record, such as the round.
    place : str
        Where the phase stands in its run, for people: ``round 1/4``.
    """

    name: str
    steps: int
    batch_size: int
    accumulate: int = 1
    seed: int = 0
    first_batch: int = 0
    log_every: int = 50
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    evaluation_limit: int = 1024
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    place: str = ''
    batch_tokens: int = 0

    @property
    def pass_size(self) -> int:
        """Instances that are in memory at once, over all workers."""
        return self.batch_size // self.accumulate


class Objective:
    """Batches, the losses that a phase makes small, and measurements on held-out data.

    Attributes
    ----------
    losses : tuple of str
        The parts of the loss, as metrics call them.
    weights : tuple of float
        What each part is multiplied by; empty for one each. Metrics have the parts without their weights.
    decides : str
        The measurement, the smaller the better, that decides which step is best; unless `remember` and
        the two after it are others.
    returns_to_best : bool
        Whether the best step will be gone back to; then it has a checkpoint, whatever the phase says.
    """

    losses: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    decides = ''
    returns_to_best = False

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
