"""Time the end of a pruning round, and what it takes in memory: select units, fold the gates, cut the
tensors, write the model. With --repairs, also rotate the heads before it and fit the layers after the cut.

The weights, the gates and the tokens that the repairs read are random ones; the times hardly depend on their
values. Memory is that of the parameters and the most that Python and NumPy held beside them, over that of the
parameters; it is taken in a round that is not timed and has no repairs. That of the whole program is what the
system counts, with all that MXNet holds."""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measured import Measured, parsed, random_batch, write
from pydantic import PositiveInt

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import LETTERS
from gluon_optbert.cutting.selection import select_units
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.network.running import random_model
from gluon_optbert.network.saved_model import SavedModel, write_model
from gluon_optbert.pruning.recipe import FIT_TOKENS
from gluon_optbert.pruning.repairs import TOKENS_TO_ROTATE, reconstruct, rotated, tokens_wanted
from gluon_optbert.pruning.run import LEAST_TEXT
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import Share, option
from gluon_optbert.text.make_shards import peak_memory
from gluon_optbert.training.distributed import Workers

LENGTH = 128  # tokens of a sequence


class CutRecipe(Measured):
    """The cut to time."""

    architecture: str = option('its name, or a file, or JSON', 'bert_base')
    target: Share = option('share of the parameters that is left', 0.6)
    repeats: PositiveInt = option('rounds that are timed; the median counts', 3)
    repairs: bool = option('also time rotating the heads and fitting the layers, on one worker', False)


def text_of(architecture: Architecture, tokens: int) -> list[Any]:
    """Batches of random tokens without padding, as many as a run takes to have so many tokens."""
    length = min(LENGTH, architecture.max_length)
    return [
        random_batch([length] * LEAST_TEXT, length, architecture.vocab_size, seed)
        for seed in range(-(-tokens // (LEAST_TEXT * length)))
    ]


def end_of_round(
    whole: SavedModel, alphas: dict[str, np.ndarray], target: float, directory: Path, *, repairs: bool = False
) -> dict[str, float]:
    """Do it all; the seconds of every part."""
    cost, seconds = ParameterCost(), {}
    architecture, workers = whole.architecture, Workers()

    def timed(name: str, action: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = action()
        seconds[name] = time.perf_counter() - began
        return result

    if repairs:
        text = text_of(architecture, TOKENS_TO_ROTATE * architecture.h)
        timed('rotate', lambda: rotated(whole, text, workers))
    selection = timed(
        'select',
        lambda: select_units(alphas, architecture, cost, target * cost.cost(architecture), prune=LETTERS),
    )
    smaller, narrower = timed(
        'fold and cut', lambda: shrink(whole.parameters, architecture, alphas, selection)
    )
    cut = SavedModel(narrower, smaller, whole.vocabulary, {}, Progress(step=1))
    if repairs:
        text = text_of(narrower, tokens_wanted(cut, FIT_TOKENS))
        cut = timed('reconstruct', lambda: reconstruct(whole, cut, selection, text, workers=workers))
    timed('write', lambda: write_model(directory, cut, replace=True))
    return {**seconds, 'all': sum(seconds.values())}


@command
def main(argv=None):
    """Time the rounds and print the table."""
    recipe = parsed(
        CutRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python benchmarks/cut.py bert_base --target 0.9',
    )
    whole, random = random_model(resolve(recipe.architecture)), np.random.RandomState(0)
    widths = whole.architecture.widths()
    alphas = {key: random.uniform(0.1, 1.0, width).astype(np.float32) for key, width in widths.items()}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / 'model'
        tracemalloc.start()
        end_of_round(whole, alphas, recipe.target, directory)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rounds = [
            end_of_round(whole, alphas, recipe.target, directory, repairs=recipe.repairs)
            for _ in range(recipe.repeats)
        ]
    resident, own = peak_memory(), sum(value.nbytes for value in whole.parameters.values())
    memory = (own + peak) / own
    rows = []
    for name in rounds[0]:
        values = [seconds[name] for seconds in rounds]
        rows.append((name, *(f'{of(values):.2f} s' for of in (np.median, min, max))))
    print(markdown_table(['part', 'median', 'minimum', 'maximum'], rows))
    print(f'\nat most {memory:.2f} times the memory of the parameters')
    print(f'the whole program at most {resident / 1e9:.2f} GB')
    parameters = int(ParameterCost().cost(whole.architecture))
    write(recipe, parameters=parameters, seconds=rounds, memory=memory, resident_bytes=resident)


if __name__ == '__main__':
    sys.exit(main())
