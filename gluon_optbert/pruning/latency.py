"""A latency model: networks of random widths are measured on this machine, and a linear model is fitted to
their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt
from scipy.optimize import nnls

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import LATENCY_FEATURES, LatencyCost, latency_features
from ..network.inputs import TOKEN_INPUTS
from ..network.model import build
from ..network.running import pass_times, random_feed
from ..runs.files import new_output, write_json
from ..runs.machine import machine
from ..runs.recipe import Recipe, option

TIMED_BATCHES = (1, 8)  # sequences


class LatencyRecipe(Recipe):
    """Shapes that are measured."""

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
        a = int(generator.randint(1, heads + 1))
        k, v = (int(generator.randint(4, width + 1)) for _ in 'kv')
        layers.append(LayerDims(a, k, v, f))
    return Architecture(h=h, layers=tuple(layers), vocab_size=100, max_length=max(length, 8))


def measure(architectures: Sequence[Architecture], batch: int, length: int, *, repeats: int) -> np.ndarray:
    """The median milliseconds of a forward pass through the encoder and pooler of random networks, taken in
    turn; shape (networks,).
    """
    heads = {'use_classifier': False, 'use_decoder': False}
    blocks = {i: build(one, trainable=False, **heads) for i, one in enumerate(architectures)}
    feeds = {i: random_feed(one, batch=batch, length=length) for i, one in enumerate(architectures)}
    times = pass_times(blocks, feeds, TOKEN_INPUTS, repeats=repeats)
    return np.array([np.median(times[i]) for i in blocks])


def time_rounds(
    architectures: Sequence[Architecture], length: int, cost: LatencyCost | None = None
) -> dict[str, Any]:
    """Times of the networks of a run on this machine, over so many tokens a sequence: ``threads``, and
    ``milliseconds`` by shape (``8x128``), one for each network. The shape of the cost is timed as well.
    """
    length = min([length, *(architecture.max_length for architecture in architectures)])
    shapes = dict.fromkeys((batch, length) for batch in TIMED_BATCHES)
    shapes.update({} if cost is None else {(cost.batch, cost.length): None})
    times = {
        f'{batch}x{tokens}': measure(architectures, batch, tokens, repeats=9).tolist()
        for batch, tokens in shapes
    }
    return {'threads': machine()['threads'], 'milliseconds': times}


def check_predictions(
    cost: LatencyCost, architectures: Sequence[Architecture], times: Mapping[str, Any] | None = None
) -> dict[str, dict[str, float]]:
    """Times of the first and the last network of a run, ``predicted_ms`` by the model and ``measured_ms`` on
    this machine, at the model's batch and length; `times` are those of `time_rounds`, or it is measured here.
    """
    ends = architectures[0], architectures[-1]
    if times is None:
        measured = measure(ends, cost.batch, cost.length, repeats=15)
    else:
        measured = np.array(times['milliseconds'][f'{cost.batch}x{cost.length}'])[[0, -1]]
    return {
        name: {'predicted_ms': cost.cost(architecture), 'measured_ms': float(taken)}
        for name, architecture, taken in zip(('before', 'finished'), ends, measured)
    }


def fit_coefficients(architectures: Sequence[Architecture], times: np.ndarray) -> dict[str, float]:
    """Non-negative least squares on relative errors; the times are milliseconds, shape (networks,)."""
    rows = np.array([[latency_features(a)[name] for name in LATENCY_FEATURES] for a in architectures])
    scale = np.maximum(rows.max(axis=0), 1e-30)
    solution, _ = nnls(rows / scale / times[:, np.newaxis], np.ones(len(times)))
    return dict(zip(LATENCY_FEATURES, (float(value) for value in solution / scale)))


def fit_latency(recipe: LatencyRecipe) -> dict[str, Any]:
    """Measure, fit, and write the model.

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
    with new_output(recipe.output):
        generator, shape = np.random.RandomState(recipe.seed), (recipe.batch, recipe.length)
        architectures = [
            random_architecture(generator, recipe.largest_h, recipe.length) for _ in range(recipe.networks)
        ]
        times = measure(architectures, *shape, repeats=recipe.repeats)
        half = LatencyCost(fit_coefficients(architectures[::2], times[::2]), *shape)
        held_out = zip(architectures[1::2], times[1::2])
        errors = np.array([abs(half.cost(architecture) - time) / time for architecture, time in held_out])
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
                {'architecture': architecture.to_dict(), 'milliseconds': float(time)}
                for architecture, time in zip(architectures, times)
            ],
        }
        write_json(recipe.output, result)
    return result
