"""A latency model: networks of random widths are measured on this machine, and a linear model is fitted to
their times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
from pydantic import Field, PositiveInt
from scipy.optimize import nnls

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import LATENCY_FEATURES, LatencyCost, latency_features
from ..network.inputs import TOKEN_INPUTS
from ..network.model import build
from ..network.running import latency_ms, random_feed
from ..runs.display import markdown_table
from ..runs.files import refuse_existing, write_file
from ..runs.machine import machine
from ..runs.recipe import Recipe, option


class LatencyRecipe(Recipe):
    """What is measured."""

    output: Path = option('JSON file to write')
    batch: PositiveInt = option('sequences', 1)
    length: PositiveInt = option('tokens of a sequence', 128)
    networks: Annotated[int, Field(ge=2 * len(LATENCY_FEATURES))] = option(
        'networks of random widths to measure', 60
    )
    repeats: PositiveInt = option('timed passes of each, the networks taken in turn', 10)
    largest_h: Annotated[int, Field(ge=16)] = option(
        'widths are drawn up to those of a BERT with this hidden size', 768
    )
    seed: int = option('of the widths', 1)


def random_architecture(generator: np.random.RandomState, largest_h: int, length: int) -> Architecture:
    """One to three layers of widths between a few units and those of a BERT of the largest hidden size."""
    h = int(generator.randint(largest_h // 8, largest_h + 1))
    heads, width = max(1, largest_h // 64), min(64, largest_h)
    layers = []
    for _ in range(generator.randint(1, 4)):
        f = int(generator.randint(1, 4 * largest_h + 1)) if generator.uniform() < 0.85 else 0
        layers.append(
            LayerDims(
                a=int(generator.randint(1, heads + 1)),
                k=int(generator.randint(4, width + 1)),
                v=int(generator.randint(4, width + 1)),
                f=f,
            )
        )
    return Architecture(h=h, layers=tuple(layers), vocab_size=100, max_length=max(length, 8))


def measure(
    architectures: Mapping[Any, Architecture], batch: int, length: int, *, repeats: int = 15
) -> Dict[Any, float]:
    """The median milliseconds of a forward pass through the encoder and pooler of random networks, taken in
    turn.
    """
    blocks = {
        key: build(architecture, trainable=False, use_classifier=False, use_decoder=False)
        for key, architecture in architectures.items()
    }
    feeds = {
        key: random_feed(architecture, batch=batch, length=length)
        for key, architecture in architectures.items()
    }
    return latency_ms(blocks, feeds, TOKEN_INPUTS, repeats=repeats)


TIMED_BATCHES = (1, 8)  # sequences
_TIMED_REPEATS = 9


def time_rounds(
    architectures: Sequence[Architecture], length: int, cost: Optional[LatencyCost] = None
) -> Dict[str, Any]:
    """What the networks of a run take on this machine, each round with its number.

    Parameters
    ----------
    architectures : sequence of Architecture
        The first is the network that was pruned.
    length : int
        Tokens of a sequence.
    cost : LatencyCost, optional
        Its batch and length are timed as well.

    Returns
    -------
    dict
        ``threads``, and ``milliseconds`` by shape (``8x128``): a list, one for each network.
    """
    length = min([length, *(architecture.max_length for architecture in architectures)])
    shapes = [(batch, length) for batch in TIMED_BATCHES]
    shapes += [] if cost is None or (cost.batch, cost.length) in shapes else [(cost.batch, cost.length)]
    times = {
        f'{batch}x{length}': measure(dict(enumerate(architectures)), batch, length, repeats=_TIMED_REPEATS)
        for batch, length in shapes
    }
    return {
        'threads': machine()['threads'],
        'milliseconds': {
            shape: [by_round[i] for i in range(len(architectures))] for shape, by_round in times.items()
        },
    }


def times_section(times: Mapping[str, Any]) -> List[str]:
    """What `time_rounds` gives, as paragraphs of Markdown."""
    shapes = times['milliseconds']
    cells = [
        [
            i,
            *(
                f'{values[i]:.2f} ms ({values[0] / values[i]:.2f} times as fast)'
                for values in shapes.values()
            ),
        ]
        for i in range(len(next(iter(shapes.values()))))
    ]
    return [
        '## Time',
        markdown_table(['round', *(shape.replace('x', ' × ') for shape in shapes)], cells),
        'Median time of a float32 forward pass over so many sequences of so many tokens. The networks took '
        f'turns on this machine, with {times["threads"]} thread{"s" * (str(times["threads"]) != "1")}.',
    ]


def check_predictions(
    cost: LatencyCost, architectures: Sequence[Architecture], times: Optional[Mapping[str, Any]] = None
) -> Dict[str, Dict[str, float]]:
    """What the model says of the first and the last network of a run beside what this machine takes for them.

    Parameters
    ----------
    cost : LatencyCost
    architectures : sequence of Architecture
        Of all rounds.
    times : mapping, optional
        What `time_rounds` gave of them with this cost; measured here unless given.

    Returns
    -------
    dict of name to dict
        ``predicted_ms`` and ``measured_ms`` of each, at the model's batch and length.
    """
    ends = {'before': architectures[0], 'finished': architectures[-1]}
    if times is None:
        measured = measure(ends, cost.batch, cost.length)
    else:
        taken = times['milliseconds'][f'{cost.batch}x{cost.length}']
        measured = {'before': taken[0], 'finished': taken[-1]}
    return {
        name: {'predicted_ms': cost.cost(architecture), 'measured_ms': measured[name]}
        for name, architecture in ends.items()
    }


def fit_coefficients(architectures: List[Architecture], times: np.ndarray) -> Dict[str, float]:
    """Non-negative least squares on relative errors.

    Parameters
    ----------
    architectures : list of Architecture
    times : np.ndarray, shape (networks,), milliseconds
    """
    rows = np.array([[latency_features(a)[name] for name in LATENCY_FEATURES] for a in architectures])
    scale = np.maximum(rows.max(axis=0), 1e-30)
    solution, _ = nnls(rows / scale / times[:, np.newaxis], np.ones(len(times)))
    return dict(zip(LATENCY_FEATURES, (float(value) for value in solution / scale)))


def fit_latency(recipe: LatencyRecipe, *, times: Optional[np.ndarray] = None) -> Dict[str, Any]:
    """Measure, fit, and write the model.

    Parameters
    ----------
    recipe : LatencyRecipe
    times : np.ndarray, optional
        Milliseconds of the recipe's networks, if they are known; measured otherwise.

    Returns
    -------
    dict
        What was written: ``coefficients`` of a fit to all networks; ``relative_error`` (median and largest)
        of a fit to every other network on the rest; the measurements.

    Raises
    ------
    FileExistsError
        If there is something at the output.
    """
    refuse_existing(recipe.output)
    generator = np.random.RandomState(recipe.seed)
    architectures = [
        random_architecture(generator, recipe.largest_h, recipe.length) for _ in range(recipe.networks)
    ]
    if times is None:
        milliseconds = measure(
            dict(enumerate(architectures)), recipe.batch, recipe.length, repeats=recipe.repeats
        )
        times = np.array([milliseconds[i] for i in range(recipe.networks)])
    half = LatencyCost(fit_coefficients(architectures[::2], times[::2]), recipe.batch, recipe.length)
    errors = np.array([abs(half.cost(a) - time) / time for a, time in zip(architectures[1::2], times[1::2])])
    result = {
        'batch': recipe.batch,
        'length': recipe.length,
        'coefficients': fit_coefficients(architectures, times),
        'relative_error': {
            'median': float(np.median(errors)),
            'largest': float(errors.max()),
            'networks': len(errors),
        },
        'measured': [
            {'architecture': a.to_dict(), 'milliseconds': float(time)}
            for a, time in zip(architectures, times)
        ],
    }
    write_file(recipe.output, (json.dumps(result, indent=1) + '\n').encode())
    return result
