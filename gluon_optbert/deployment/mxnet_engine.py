"""The engine that is MXNet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence

import numpy as np

from ..runs.machine import ThreadChoice, threads_here, threads_to_predict
from .description import Deployment
from .engine import Engine

_THREADS = 'OMP_NUM_THREADS'


class MXNet(Engine):
    """A block of MXNet.

    Parameters
    ----------
    block : callable
        From inputs, in their order, to one output or to several.
    inputs, outputs : sequence of str
        Their names.
    precision : str
    """

    name = 'mxnet'

    def __init__(self, block: Any, inputs: Sequence[str], outputs: Sequence[str], precision: str = 'float32'):
        import mxnet

        self._block, self._inputs, self._outputs = block, list(inputs), list(outputs)
        self.version, self.precision = mxnet.__version__, precision
        self.choice = threads_to_predict(threads_here())  # which MXNet has, whatever the choice would be now

    def outputs(self, feed: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        from ..network.running import run

        return dict(zip(self._outputs, run(self._block, feed, self._inputs)))


def load_mxnet(directory: Path, deployment: Deployment, choice: ThreadChoice, *, stated: bool) -> MXNet:
    """The network of a deployment directory in MXNet, which takes its threads while it is loaded.

    Raises
    ------
    ValueError
        If a number of threads is stated, and MXNet is loaded already with another one; and as
        `load_network`.
    """
    if stated and 'mxnet' in sys.modules and threads_here() != choice.threads:
        raise ValueError(
            f'threads={choice.threads}: MXNet is loaded already, with {threads_here()}; set {_THREADS} '
            'before the program starts'
        )
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = str(choice.threads)
    try:
        from .directory import load_network
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
    block = load_network(directory, deployment)
    block.hybridize(static_alloc=True)  # not static_shape: lengths vary
    return MXNet(block, deployment.inputs, deployment.outputs, deployment.precision)
