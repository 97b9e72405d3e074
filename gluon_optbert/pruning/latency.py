"""A latency model: networks of random widths are measured on this machine, and a linear model is fitted to
their times.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt
from scipy.optimize import nnls

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import LATENCY_FEATURES, LatencyCost, latency_features
from ..architecture.parameters import LETTERS
from ..deployment.description import read_description
from ..deployment.engines import Engine, chosen_engine, make_engine
from ..deployment.export import export
from ..network.inputs import TOKEN_INPUTS
from ..network.model import build
from ..network.running import pass_times, random_feed, random_model, times_in_turn
from ..network.saved_model import read_model
from ..runs.display import tracked
from ..runs.files import new_output, write_json
from ..runs.machine import machine, origin_here, threads_here
from ..runs.recipe import Recipe, Seed, option

TIMED_BATCHES = (1, 8)  # sequences


class LatencyRecipe(Recipe):
    """Shapes that are measured."""

    output: Path = option('JSON file to write')
    batch: PositiveInt = option('sequences', 1)
    length: PositiveInt = option('tokens of a sequence', 128)
    engine: Literal['mxnet', 'onnxruntime'] = option(
        'what computes the networks: MXNet, or ONNX Runtime from their ONNX exports', 'mxnet'
    )
    networks: Annotated[int, Field(ge=2 * len(LATENCY_FEATURES))] = option(
        'networks of random widths to measure', 60
    )
    repeats: PositiveInt = option('timed passes of each, the networks taken in turn', 10)
    model: Path | None = option(
        'model directory that is to be pruned: widths are drawn up to its own, in place of --largest-h', None
    )
    largest_h: Annotated[int, Field(ge=16)] = option(
        'widths are drawn up to those of a BERT with this hidden size', 768
    )
    prune: str = option('widths that will be pruned, as letters; the others are the largest ones', LETTERS)
    seed: Seed = option('of the widths', 1)

    def problems(self) -> list[str]:
        """Letters that are no widths."""
        right = self.prune and set(self.prune) <= set(LETTERS)
        return [] if right else [f'prune must be made of letters of {LETTERS}, found {self.prune!r}']

    @property
    def widest(self) -> tuple[int, LayerDims]:
        """The largest h that is drawn, and the largest widths of a layer."""
        if self.model is None:
            h, width = self.largest_h, min(64, self.largest_h)
            return h, LayerDims(max(1, h // 64), width, width, 4 * h)
        found = read_model(self.model).architecture
        if not found.layers:
            raise ValueError(f'{self.model}: has no layers')
        return found.h, LayerDims(
            *(max(getattr(layer, letter) for layer in found.layers) for letter in 'akvf')
        )


def random_architecture(
    generator: np.random.RandomState, h: int, most: LayerDims, length: int, prune: str = LETTERS
) -> Architecture:
    """One to three layers of widths between a few units and the largest ones, `h` and `most`; those that are
    not pruned are the largest ones.
    """
    width = int(generator.randint(max(1, h // 8), h + 1))
    layers = []
    for _ in range(generator.randint(1, 4)):
        f = int(generator.randint(1, most.f + 1)) if most.f and generator.uniform() < 0.85 else 0
        a = int(generator.randint(1, most.a + 1))
        k, v = (int(generator.randint(min(4, largest), largest + 1)) for largest in (most.k, most.v))
        drawn = dict(zip('akvf', (a, k, v, f)))
        layers.append(
            dataclasses.replace(most, **{letter: drawn[letter] for letter in drawn if letter in prune})
        )
    width = width if 'h' in prune else h
    return Architecture(h=width, layers=tuple(layers), vocab_size=100, max_length=max(length, 8))


def measure(
    architectures: Sequence[Architecture], batch: int, length: int, *, repeats: int, engine: str = 'mxnet'
) -> np.ndarray:
    """The median milliseconds of a forward pass through the encoder and pooler of random networks, taken in
    turn; shape (networks,). The engine is one of `LatencyRecipe`. Networks with too few positions for the
    length get more, which take no time.
    """
    architectures = [
        dataclasses.replace(one, max_length=max(one.max_length, length)) for one in architectures
    ]
    feeds = {i: random_feed(one, batch=batch, length=length) for i, one in enumerate(architectures)}
    if engine == 'mxnet':
        heads = {'use_classifier': False, 'use_decoder': False}
        blocks = {i: build(one, trainable=False, **heads) for i, one in enumerate(architectures)}
        times = pass_times(blocks, feeds, TOKEN_INPUTS, repeats=repeats)
    else:
        exported = tracked(architectures, 'exporting', len(architectures), unit='network')
        loaded = [_exported(architecture, engine) for architecture in exported]
        passes = {i: functools.partial(one.outputs, feeds[i]) for i, one in enumerate(loaded)}
        times = times_in_turn(passes, repeats=repeats)
    return np.array([np.median(times[i]) for i in range(len(architectures))])


def _exported(architecture: Architecture, engine: str) -> Engine:
    """The encoder of a random network in an engine that reads ONNX."""
    with tempfile.TemporaryDirectory() as place:
        exported = Path(place) / 'export'
        export(random_model(architecture), exported, head='encoder', onnx=True)
        deployment, name = read_description(exported), chosen_engine(exported, engine)
        return make_engine(exported, deployment, name, threads=threads_here())


def time_rounds(
    architectures: Sequence[Architecture], length: int, cost: LatencyCost | None = None
) -> dict[str, Any]:
    """Times of the networks of a run in MXNet on this machine, over so many tokens a sequence: ``threads``,
    and ``milliseconds`` by shape (``8x128``), one for each network. The shape of a cost in MXNet is timed as
    well.
    """
    length = min([length, *(architecture.max_length for architecture in architectures)])
    shapes = dict.fromkeys((batch, length) for batch in TIMED_BATCHES)
    shapes.update({(cost.batch, cost.length): None} if cost is not None and cost.engine == 'mxnet' else {})
    times = {
        f'{batch}x{tokens}': measure(architectures, batch, tokens, repeats=9).tolist()
        for batch, tokens in shapes
    }
    return {'threads': machine()['threads'], 'milliseconds': times}


def check_predictions(
    cost: LatencyCost, architectures: Sequence[Architecture], times: Mapping[str, Any] | None = None
) -> dict[str, dict[str, float]]:
    """Times of the first and the last network of a run, ``predicted_ms`` by the model and ``measured_ms`` on
    this machine, in the model's engine, batch and length; `times` are those of `time_rounds`, or it is
    measured here.
    """
    ends = architectures[0], architectures[-1]
    if times is None or cost.engine != 'mxnet':
        measured = measure(ends, cost.batch, cost.length, repeats=15, engine=cost.engine)
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
        of a fit to every other network on the rest; the measurements; ``origin``, with the threads.

    Raises
    ------
    FileExistsError
        If there is something at the output.
    """
    with new_output(recipe.output):
        generator, shape = np.random.RandomState(recipe.seed), (recipe.batch, recipe.length)
        h, most = recipe.widest
        architectures = [
            random_architecture(generator, h, most, recipe.length, recipe.prune)
            for _ in range(recipe.networks)
        ]
        times = measure(architectures, *shape, repeats=recipe.repeats, engine=recipe.engine)
        half = LatencyCost(fit_coefficients(architectures[::2], times[::2]), *shape)
        held_out = zip(architectures[1::2], times[1::2])
        errors = np.array([abs(half.cost(architecture) - time) / time for architecture, time in held_out])
        result = {
            'batch': recipe.batch,
            'length': recipe.length,
            'engine': recipe.engine,
            'origin': origin_here(),
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
