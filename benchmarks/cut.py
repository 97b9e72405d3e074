"""Time the end of a pruning round, and what it takes in memory: select units, fold the gates, cut the
tensors, write the model. With --repairs, also rotate the heads before it and fit the layers after the cut.

The weights, the gates and the tokens that the repairs read are random ones; the times hardly depend on their
values. Memory is that of the parameters and the most that Python and NumPy held beside them, over that of the
parameters; it is taken in a round that is not timed and has no repairs. That of the whole program is what the
system counts, with all that MXNet holds."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import LETTERS, network_shapes
from gluon_optbert.cutting.selection import select_units
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.network.saved_model import SavedModel, write_model
from gluon_optbert.pruning.job import LEAST_TEXT
from gluon_optbert.pruning.reconstruct import TOKENS_PER_INPUT, reconstruct, tokens_wanted
from gluon_optbert.pruning.rotate import rotated
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import Recipe, option, to_dict
from gluon_optbert.text.batches import Batch
from gluon_optbert.text.make_shards import peak_memory
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, Vocabulary, vocabulary_of
from gluon_optbert.training.distributed import Workers

LENGTH = 128  # tokens of a sequence


class CutRecipe(Recipe):
    """What is timed."""

    architecture: str = option('its name, or a file, or JSON', 'bert_base')
    target: float = option('share of the parameters that is left', 0.6)
    repeats: int = option('rounds that are timed; the median counts', 3)
    repairs: bool = option('also time rotating the heads and fitting the layers, on one worker', False)
    place: Path | None = option(
        'directory to write the models in; by default where temporary files are', None
    )
    output: Path | None = option('JSON file to write', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        problems = [] if self.repeats > 0 else [f'repeats must be at least 1, found {self.repeats}']
        return problems + (
            [] if 0 < self.target < 1 else [f'target must lie between 0 and 1, found {self.target}']
        )


@dataclasses.dataclass(frozen=True)
class Material:
    """What a round ends with before anything is cut."""

    architecture: Architecture
    parameters: Dict[str, np.ndarray]
    alphas: Dict[str, np.ndarray]
    vocabulary: Vocabulary

    @classmethod
    def random(cls, architecture: Architecture) -> Material:
        """Of the shapes of an architecture; about as large as those of a new network, whose activations are
        finite.
        """
        random = np.random.RandomState(0)
        parameters = {
            name: (name.endswith('gamma') + 0.02 * random.standard_normal(shape)).astype(np.float32)
            for name, shape in network_shapes(architecture, PRETRAINING).items()
        }
        alphas = {
            key: random.uniform(0.1, 1.0, width).astype(np.float32)
            for key, width in architecture.widths().items()
        }
        words = (f'w{i}' for i in range(architecture.vocab_size - len(SPECIAL_TOKENS)))
        return cls(architecture, parameters, alphas, vocabulary_of([*SPECIAL_TOKENS, *words]))


def text_of(architecture: Architecture, tokens: int) -> List[Batch]:
    """Batches of random tokens without padding, as many as a run takes to have so many tokens."""
    size, length = LEAST_TEXT, min(LENGTH, architecture.max_length)
    random = np.random.RandomState(0)
    nothing = np.zeros((size, 1), np.float32)
    return [
        Batch(
            input_ids=random.randint(0, architecture.vocab_size, (size, length)),
            token_types=random.randint(0, 2, (size, length)),
            valid_length=np.full(size, length, np.float32),
            masked_positions=nothing,
            masked_ids=nothing,
            masked_weights=nothing,
            next_sentence_labels=nothing[:, 0],
            instance_weights=np.ones(size, np.float32),
            masked_total=0,
            instance_total=size,
            token_total=size * length,
            index=index,
        )
        for index in range(-(-tokens // (size * length)))
    ]


def end_of_round(
    material: Material, target: float, directory: Path, *, repairs: bool = False
) -> Dict[str, float]:
    """Do it all; the seconds of every part, with or without repairs."""
    cost, seconds = ParameterCost(), {}
    architecture, workers = material.architecture, Workers()
    whole = SavedModel(architecture, material.parameters, material.vocabulary)

    def timed(name: str, action: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = action()
        seconds[name] = time.perf_counter() - began
        return result

    if repairs:
        text = text_of(architecture, TOKENS_PER_INPUT * architecture.h)
        timed('rotate', lambda: rotated(whole, text, workers))
    selection = timed(
        'select',
        lambda: select_units(
            material.alphas, architecture, cost, target * cost.cost(architecture), prune=LETTERS
        ),
    )
    smaller, narrower = timed(
        'fold and cut', lambda: shrink(material.parameters, architecture, material.alphas, selection)
    )
    cut = SavedModel(narrower, smaller, material.vocabulary, {}, Progress(step=1))
    if repairs:
        text = text_of(narrower, tokens_wanted(cut))
        cut = timed('reconstruct', lambda: reconstruct(whole, cut, selection, text, workers=workers))
    timed('write', lambda: write_model(directory, cut, replace=True))
    return {**seconds, 'all': sum(seconds.values())}


def memory_of(material: Material, target: float, directory: Path) -> float:
    """The parameters' memory and the most that is taken beside it, over the parameters'."""
    whole = sum(value.nbytes for value in material.parameters.values())
    tracemalloc.start()
    end_of_round(material, target, directory)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (whole + peak) / whole


@command
def main(argv=None):
    """Time the rounds and print the table."""
    recipe = parse(
        CutRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python benchmarks/cut.py bert_base --target 0.9',
    )
    if recipe.output:
        refuse_existing(recipe.output)
    architecture = resolve(recipe.architecture)
    material = Material.random(architecture)
    with tempfile.TemporaryDirectory(dir=recipe.place) as place:
        memory = memory_of(material, recipe.target, Path(place) / 'model')
        rounds = [
            end_of_round(material, recipe.target, Path(place) / 'model', repairs=recipe.repairs)
            for _ in range(recipe.repeats)
        ]
    resident = peak_memory()
    rows = []
    for name in rounds[0]:
        values = [seconds[name] for seconds in rounds]
        rows.append((name, *(f'{of(values):.2f} s' for of in (np.median, min, max))))
    print(markdown_table(['part', 'median', 'minimum', 'maximum'], rows))
    print(f'\nat most {memory:.2f} times the memory of the parameters')
    print(f'the whole program at most {resident / 1e9:.2f} GB')
    if recipe.output:
        write_file(
            recipe.output,
            (
                json.dumps(
                    {
                        'recipe': to_dict(recipe),
                        'parameters': int(ParameterCost().cost(architecture)),
                        'seconds': rounds,
                        'memory': memory,
                        'resident_bytes': resident,
                        **origin_here(),
                    },
                    indent=1,
                )
                + '\n'
            ).encode(),
        )
        print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
