"""The time of exports whose widths are known, measured side by side."""

from __future__ import annotations

import warnings
from typing import Dict, Mapping, TypeVar

import mxnet as mx
import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING
from ..network.running import pass_times, random_feed
from .description import inputs_of
from .inference import inference_symbol, inference_table

KIND = 'encoder'
Key = TypeVar('Key')


def random_export(architecture: Architecture) -> mx.gluon.SymbolBlock:
    """The float32 export of an encoder, in memory, with random weights: time does not depend on them."""
    inputs = [mx.sym.var(name) for name in inputs_of(KIND)]
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Cannot decide type')  # of the inputs; they are float32
        block = mx.gluon.SymbolBlock(inference_symbol(architecture, KIND, PRETRAINING), inputs)
    shapes = {name: spec.shape for name, spec in inference_table(architecture, KIND, PRETRAINING).items()}
    for name, parameter in block.collect_params().items():
        parameter.shape = shapes[name]
        parameter.initialize(mx.init.Normal(0.02))
    block.hybridize(static_alloc=True, static_shape=True)
    return block


def time_exports(
    architectures: Mapping[Key, Architecture], *, batch: int = 1, length: int = 128, repeats: int = 15
) -> Dict[Key, np.ndarray]:
    """The milliseconds of every timed forward pass of every network's export, the networks taken in turn.

    Parameters
    ----------
    architectures : mapping of key to Architecture
    batch, length : int
        Sequences, and tokens of each.
    repeats : int
        Timed passes of each network.
    """
    blocks = {key: random_export(architecture) for key, architecture in architectures.items()}
    feeds = {
        key: random_feed(architecture, batch=batch, length=length)
        for key, architecture in architectures.items()
    }
    return pass_times(blocks, feeds, inputs_of(KIND), repeats=repeats)
