"""What pushes alpha to zero: the second term of equation (2)."""
from __future__ import annotations

from typing import Dict, Mapping

import mxnet as mx
import numpy as np

from .gates import Gates


class L1Penalty:
    """gamma times the sum over widths of beta times the l1 norm of alpha (optBERT, equation (2)).

    Parameters
    ----------
    gamma : float
        The regularisation coefficient.
    beta : mapping of width key to float
        The price of one unit of each width, as `gluon_optbert.cost.beta` derives it.
    """

    def __init__(self, gamma: float, beta: Mapping[str, float]):
        self._weights: Dict[str, float] = {key: gamma * weight for key, weight in beta.items()}

    def value(self, alphas: Mapping[str, np.ndarray]) -> float:
        """The penalty at alpha."""
        return float(sum(self._weights[key] * np.abs(alpha).sum(dtype=np.float64) for key, alpha in alphas.items()))

    def add_gradient(self, gates: Gates) -> None:
        """Add the penalty's gradient to what `backward` left in the gates."""
        for key, parameter in gates.parameters.items():
            if parameter.grad_req != 'null':
                gradient = parameter.grad()
                gradient += self._weights[key] * mx.nd.sign(parameter.data())
