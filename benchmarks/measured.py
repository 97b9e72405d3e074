"""Common parts of all measurements: a file for the result, and turns that are fair."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from peers.protocol import padded_inputs

from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.files import refuse_existing, write_file, write_json
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict

ROOT = Path(__file__).resolve().parents[1]
R = TypeVar('R', bound='Measured')


class Measured(Recipe):
    """A measurement, and the file of its result."""

    output: Path | None = option(
        'JSON file to write; of a measurement with a table, that as .md beside it', None
    )


def parsed(cls: type[R], argv: Sequence[str] | None, **about: str) -> R:
    """The recipe of a command line; FileExistsError if its result is there already."""
    recipe = parse(cls, argv, **about)
    if recipe.output:
        refuse_existing(recipe.output)
    return recipe


def write(recipe: Measured, table: str | None = None, **content: Any) -> None:
    """Write what was measured with its recipe, the versions and the machine; nothing without --output."""
    if recipe.output is None:
        return
    result = {'recipe': to_dict(recipe), **content, **origin_here()}
    if table is not None:
        write_file(recipe.output.with_suffix('.md'), f'{table}\n'.encode())
    write_json(recipe.output, result)
    print(f'wrote {recipe.output}')


def random_batch(lengths: Sequence[int], width: int, vocab_size: int, seed: int = 0) -> SimpleNamespace:
    """A batch of sequences with these lengths as this package computes it; `padded_inputs` has the tokens."""
    count = len(lengths)
    return SimpleNamespace(
        **padded_inputs(lengths, width, vocab_size, seed),
        instance_weights=np.ones(count),
        rows=np.arange(count),
        instance_total=count,
        token_total=sum(lengths),
    )


def timed(action: Callable[[], Any]) -> Callable[[], float]:
    """A call for `in_turn` that does a thing of this process and gives its milliseconds."""

    def run() -> float:
        began = time.perf_counter()
        action()
        return 1e3 * (time.perf_counter() - began)

    return run


def in_turn(actions: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Values of every action, taken in turn, so that a machine whose speed drifts is fair to all; those of
    two turns before do not count.
    """
    turns = [{name: action() for name, action in actions.items()} for _ in range(2 + repeats)]
    return {name: [turn[name] for turn in turns[2:]] for name in actions}
