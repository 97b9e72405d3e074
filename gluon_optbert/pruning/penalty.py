"""Penalties of alpha: the second term of equation (2) as l1, as l1 by proximal steps, and as l0.

A new penalty is a subclass of `L1Penalty` and a new entry of `PENALTIES`; the recipe and the command line
then take its name."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx
import numpy as np

from ..network.gates import Gate, Gates, HardConcreteGate
from ..training.optimization import TrainingDiverged


class L1Penalty:
    """gamma times the sum over widths of beta times the l1 norm of alpha (optBERT, equation (2)), by
    subgradients.

    Parameters
    ----------
    gamma : float
        The regularisation coefficient.
    beta : mapping of width key to float
        The price of one unit of each width, as `architecture.cost.beta` derives it.

    Attributes
    ----------
    weights : dict of width key to float
        gamma times beta.
    """

    gate: type[Gate] = Gate
    size = staticmethod(np.abs)  # of every alpha, which the price of its unit is multiplied with

    def __init__(self, gamma: float, beta: Mapping[str, float]):
        self.weights: dict[str, float] = {key: gamma * weight for key, weight in beta.items()}

    def value(self, alphas: Mapping[str, np.ndarray]) -> float:
        """The penalty at alpha."""
        return float(
            sum(self.weights[key] * self.size(alpha).sum(dtype=np.float64) for key, alpha in alphas.items())
        )

    def add_gradient(self, gates: Gates) -> None:
        """Add the penalty's gradient to what `backward` left in the gates."""
        for key, parameter in gates.trained().items():
            gradient = parameter.grad()
            gradient += self.weights[key] * mx.nd.sign(parameter.data())

    def after_step(self, gates: Gates, learning_rate: float) -> None:
        """Nothing to do once the optimizer has stepped."""

    @classmethod
    def scores(cls, trained: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Scores of the units from the trained parameters of the gates: the gates themselves."""
        return {key: cls.gate.value(parameter) for key, parameter in trained.items()}


class ProximalPenalty(L1Penalty):
    """The same penalty by proximal gradient descent: after each step alpha is thresholded softly, and reaches
    zero.

    Parikh and Boyd (2014), Proximal Algorithms, section 6.5.2: alpha becomes sign(alpha) max(|alpha| - lr
    gamma beta, 0). It is the proximal operator of plain gradient descent; behind an optimizer that scales
    gradients it is an approximation."""

    def add_gradient(self, gates: Gates) -> None:
        """Nothing: the threshold takes the gradient's place."""

    def after_step(self, gates: Gates, learning_rate: float) -> None:
        """Move every alpha towards zero by the learning rate times its weight.

        Raises
        ------
        TrainingDiverged
            If no hidden unit is left: the network computes nothing then, and no gate has a gradient.
        """
        for key, parameter in gates.trained().items():
            alpha, threshold = parameter.data(), learning_rate * self.weights[key]
            parameter.set_data(mx.nd.sign(alpha) * mx.nd.relu(mx.nd.abs(alpha) - threshold))
            if key == 'h' and not parameter.data().asnumpy().any():
                raise TrainingDiverged(
                    f'the penalty has closed all gates of h, by {threshold:.3g} in a step, and nothing is '
                    'learnt without hidden units: gamma is too large; begin again with a smaller one, which '
                    '--resume does not take'
                )


class L0Penalty(L1Penalty):
    """gamma times the sum of beta times the probability that a gate is open: hard-concrete gates, Louizos et
    al. (2018).

    What is trained is the gate's log-odds; a step's alpha is drawn from it, and the trained alpha is its
    deterministic value."""

    gate = HardConcreteGate
    size = staticmethod(HardConcreteGate.open_probability)  # at log-odds

    def add_gradient(self, gates: Gates) -> None:
        """Add the gradient of the open probabilities."""
        for key, parameter in gates.trained().items():
            probability = mx.nd.sigmoid(parameter.data() - HardConcreteGate.SHIFT)
            gradient = parameter.grad()
            gradient += self.weights[key] * probability * (1 - probability)

    @classmethod
    def scores(cls, trained: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The odds that a gate is open: many gates are exactly one, and their odds still differ."""
        return {key: np.exp(odds) for key, odds in trained.items()}


PENALTIES: dict[str, type[L1Penalty]] = {'l1': L1Penalty, 'proximal': ProximalPenalty, 'l0': L0Penalty}
