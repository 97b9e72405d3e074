"""Time the recovery of a pruned network by states alone, the teacher's pass included, beside the same written
plainly in PyTorch.

Both take the same batches in turn: one of every length, each of as many tokens, with a little padding. The
peer is benchmarks/peers/torch_recovery.py. Weights are random. Nothing else should run meanwhile."""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured import Measured, in_turn, parsed, random_batch, timed, write
from pydantic import PositiveInt
from workers import SCRIPTS, Worker, peer_python

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import WORDS
from gluon_optbert.network.model import build, named_parameters
from gluon_optbert.network.running import random_model
from gluon_optbert.network.settings import TRAINING_PRECISIONS, check_precision
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.machine import threads_here
from gluon_optbert.runs.recipe import option
from gluon_optbert.training.distillation import (
    OF_LAST_STATE,
    PARTS_OF_LOSS,
    STATES_ALONE,
    Match,
    Taught,
    Teacher,
    Weights,
)
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import backward
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.optimization import Optimizer

OURS, PEER = 'this package', 'PyTorch'
PADDING = 8  # a sequence lacks up to a part of so many of the length of its batch


class RecoveryRecipe(Measured):
    """The recovery to time."""

    student: str = option('architecture of the pruned network: a name, a file or JSON')
    teacher: str = option('architecture of the teacher, with the same h', 'l6_h384_a12')
    tokens: PositiveInt = option('tokens of a batch, padding included', 3072)
    lengths: tuple[PositiveInt, ...] = option('lengths of the batches of a turn', (16, 24, 32, 128, 192, 256))
    precision: str = option('of the matrix products', 'bfloat16', choices=TRAINING_PRECISIONS)
    repeats: PositiveInt = option('timed turns', 7)
    peers: Path | None = option("directory of the peers' environments; without it PyTorch is not timed", None)


def lengths_of(recipe: RecoveryRecipe) -> list[list[int]]:
    """The tokens of the sequences of every batch, padding not counted."""
    random = np.random.RandomState(0)
    return [
        (length - random.randint(0, max(1, length // PADDING), max(2, recipe.tokens // length))).tolist()
        for length in recipe.lengths
    ]


class Recovery(Taught):
    """Recovery on given batches."""

    def __init__(self, model: Any, workers: Workers, given: Sequence[Any], **more: Any):
        super().__init__(model, workers)
        self._given = given
        self.learn({}, match=Match.whole(model.architecture), **more)

    def batches(self, phase: Phase, start: int) -> Generator[Any, None, None]:
        yield from itertools.cycle(self._given)


def own_turn(recipe: RecoveryRecipe, networks: Sequence[Architecture]) -> Callable[[], None]:
    """A step for every batch, in this process."""
    workers, vocab_size = Workers(), networks[0].vocab_size
    check_precision(recipe.precision, workers.context())
    given = [
        random_batch(lengths, width, vocab_size) for lengths, width in zip(lengths_of(recipe), recipe.lengths)
    ]
    weights = Weights(**{**dict.fromkeys(PARTS_OF_LOSS, 0.0), **STATES_ALONE})
    whole = random_model(networks[0])
    teacher = Teacher(whole, workers, precision=recipe.precision, heads=False, output=weights.output)
    model = build(networks[1], precision=recipe.precision, **OF_LAST_STATE, **weights.output)
    phase = Phase('recovery', 1, recipe.tokens)
    objective = Recovery(model, workers, given, teacher=teacher, weights=weights, phase=phase)
    trained = {}
    for name, one in named_parameters(model).items():
        if name == WORDS or name.startswith('pooler'):
            one.grad_req = 'null'
        else:
            trained[name] = one
    optimizer = Optimizer(
        trained, 'adamw', weight_decay=0.01, decayed=set(trained), beta2=0.98, clip_norm=10.0, workers=workers
    )
    steps = itertools.count()

    def turn() -> None:
        for batch, step in zip(given, steps):
            backward(objective, optimizer.parameters, batch, phase, step)
            optimizer.update(1e-5, step=step + 1)

    return turn


def start_peer(recipe: RecoveryRecipe, networks: Sequence[Architecture]) -> Worker:
    """The process of PyTorch."""
    told = {'h': networks[0].h, 'vocab_size': networks[0].vocab_size, 'max_length': networks[0].max_length}
    for name, network in zip(('teacher', 'student'), networks):
        told[name] = [[dims.a, dims.k, dims.v, dims.f] for dims in network.layers]
    words = [peer_python(recipe.peers, 'torch'), SCRIPTS / 'torch_recovery.py', threads_here()]
    return Worker(PEER, [*words, json.dumps(told), recipe.precision], threads=threads_here())


@command
def main(argv=None):
    """Print tokens a second and their ratio."""
    recipe = parsed(
        RecoveryRecipe,
        argv,
        description=__doc__,
        positional='student',
        example='python benchmarks/recovery.py runs/half/round-1/model/architecture.json --peers peers',
    )
    student = resolve(recipe.student)
    networks = resolve(recipe.teacher, vocab_size=student.vocab_size), student
    lengths, load = lengths_of(recipe), os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        turns, versions = {OURS: timed(own_turn(recipe, networks))}, {}
        if recipe.peers is not None:
            worker = start_peer(recipe, networks)
            stack.callback(worker.close)
            versions = worker.versions
            turns[PEER] = worker.timed(lengths=lengths, widths=list(recipe.lengths))
        values = in_turn(turns, recipe.repeats)
    tokens = sum(map(sum, lengths))
    medians = {name: float(np.median(some)) for name, some in values.items()}
    rows = [
        (name, f'{median:.0f} ms', f'{1e3 * tokens / median:.0f}', f'{max(medians.values()) / median:.2f}')
        for name, median in medians.items()
    ]
    table = markdown_table([None, 'median of a turn', 'tokens/s', 'of the slower'], rows)
    print(table)
    print(f'\n{tokens} tokens a turn without padding, {recipe.precision}, load before it {load:.1f}')
    speeds = {name: 1e3 * tokens / median for name, median in medians.items()}
    more = {'tokens_per_second': speeds, 'threads': threads_here(), 'peers': versions}
    write(recipe, table, milliseconds=values, **more)


if __name__ == '__main__':
    sys.exit(main())
