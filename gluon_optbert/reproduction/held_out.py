"""MLM losses of a study's networks on every held-out instance, by which a difference of two is paired."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pydantic
from pydantic.dataclasses import dataclass

from ..network.model import build
from ..network.saved_model import WEIGHTS, read_model
from ..runs.files import read_json, sha256, write_json
from ..runs.machine import origin_here
from ..runs.progress import HeldOut, Number, Record
from ..training.distributed import Workers
from ..training.held_out import Losses, losses_of
from ..training.recipe import open_shards
from .plan import Network, Plan

LOSSES = 'held_out.json'  # beside the cells of a network


@dataclass(frozen=True)
class KeptLosses(Record):
    """What `LOSSES` holds beside its origin."""

    model_sha256: str  # of the parameters
    measured: HeldOut
    sums: tuple[Number, ...]  # by instance; the loss, added up over its masked tokens, in nats
    tokens: tuple[Number, ...]  # by instance; the number of these tokens

    @pydantic.model_validator(mode='after')
    def _one_of_each(self) -> KeptLosses:
        if len(self.sums) != len(self.tokens):
            raise ValueError(f'{len(self.sums)} sums of losses, and tokens of {len(self.tokens)} instances')
        return self


def measure(plan: Plan, network: Network, workers: Workers) -> None:
    """Keep the losses of a network that is there, unless they are known; all networks of a study are measured
    on the same instances.
    """
    path, weights = plan.recipe.output / network.place / LOSSES, plan.model(network) / WEIGHTS
    wanted = weights.is_file() and not path.exists()
    workers.barrier(f'losses {network.place}')  # all have looked before one writes
    if not wanted:
        return
    recipe, saved = plan.pruning, read_model(plan.model(network))
    model = build(saved.architecture, saved.parameters, recipe.network_settings(), ctx=workers.context())
    size = recipe.batch_size // recipe.accumulate
    heldout = open_shards(recipe.shards)['heldout']
    losses = losses_of(model, heldout, workers, batch_size=size, limit=recipe.evaluation_limit)
    losses = losses.gathered(workers, batch_size=size)
    if workers.first:
        sums, tokens = np.round(losses.sums, 4).tolist(), losses.tokens.astype(int).tolist()
        kept = KeptLosses(sha256(weights), losses.measured, tuple(sums), tuple(tokens))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**kept.to_dict(), **origin_here()})


def read_losses(place: Path) -> Losses | None:
    """The losses beside the cells of a network; None if they were not kept, ValueError if damaged."""
    with contextlib.suppress(FileNotFoundError):
        kept = KeptLosses.from_dict(read_json(place / LOSSES), source=str(place / LOSSES))
        return Losses(kept.measured, np.array(kept.sums, float), np.array(kept.tokens, float))
    return None
