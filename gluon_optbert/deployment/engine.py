"""What an engine is: a library that runs the network of an export. It takes token arrays by the names of
`inputs_of` and gives outputs by the names of `outputs_of`."""

from __future__ import annotations

import abc
from typing import Dict, Mapping

import numpy as np

from ..runs.machine import ThreadChoice


class Engine(abc.ABC):
    """A network that is ready to run.

    Attributes
    ----------
    name : str
        One of `ENGINES`.
    version : str
        Of the library.
    precision : str
        What it computes in.
    choice : ThreadChoice
        How many threads it has, and why.
    """

    name: str
    version: str
    precision: str
    choice: ThreadChoice

    def __str__(self) -> str:
        return f'{self.name} {self.version} in {self.precision}'

    @abc.abstractmethod
    def outputs(self, feed: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """The outputs by name, float32, of inputs by name; shapes are those of `network.inputs`."""
