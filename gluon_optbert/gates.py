"""The gate vectors alpha, and how a tensor is multiplied by one without a slow backward pass."""
from __future__ import annotations

from typing import Dict, Mapping, Union

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock, Parameter, nn

Tensor = Union[mx.nd.NDArray, mx.sym.Symbol]
LAYER_NORM_EPS = 1e-12  # BERT's


class Gate(HybridBlock):
    """One gate vector alpha, starting at one (optBERT, Table 4).

    Parameters
    ----------
    units : int
        Length of alpha, the width that it gates.

    Inputs:
        - **vector** : what is to be gated, shape (units,).

    Outputs:
        - **gated** : the vector times alpha, shape (units,).
    """

    OPEN = 1.0  # where alpha starts
    FIXED = 1.0  # where the alpha of a width that may not lose units stays

    def __init__(self, units: int, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._units = units
        with self.name_scope():
            self.alpha = self.params.get('alpha', shape=(units,), init=mx.init.Constant(self.OPEN), wd_mult=0.0)

    def hybrid_forward(self, F, vector: Tensor, alpha: Tensor) -> Tensor:  # pylint: disable=arguments-differ
        return vector * alpha

    @classmethod
    def value(cls, alpha: np.ndarray) -> np.ndarray:
        """What the weights are multiplied by once alpha is trained."""
        return alpha


class HardConcreteGate(Gate):
    """A gate whose alpha is drawn anew in every pass: Louizos et al. (2018), Learning Sparse Networks through l0.

    The parameter named alpha holds log-odds; a uniform draw u becomes the gate
    clip(sigmoid((log u - log(1 - u) + odds) / TEMPERATURE) (HIGH - LOW) + LOW, 0, 1). Temperature and stretch are the paper's.
    """

    TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1
    SHIFT = TEMPERATURE * float(np.log(-LOW / HIGH))  # a gate is open with probability sigmoid(odds - SHIFT)
    OPEN = 3.0  # whose deterministic value is one
    FIXED = 30.0  # whose every draw is one

    def hybrid_forward(self, F, vector: Tensor, alpha: Tensor) -> Tensor:  # pylint: disable=arguments-differ
        uniform = F.random.uniform(1e-6, 1 - 1e-6, shape=(self._units,))
        noise = F.log(uniform) - F.log(1 - uniform)
        drawn = F.sigmoid((noise + alpha) / self.TEMPERATURE) * (self.HIGH - self.LOW) + self.LOW
        return vector * F.clip(drawn, 0.0, 1.0)

    @classmethod
    def open_probability(cls, odds: np.ndarray) -> np.ndarray:
        """The probability that a gate is not zero."""
        return 1 / (1 + np.exp(cls.SHIFT - odds))

    @classmethod
    def value(cls, odds: np.ndarray) -> np.ndarray:
        """The gate without noise, in [0, 1]."""
        return np.clip((cls.HIGH - cls.LOW) / (1 + np.exp(-odds)) + cls.LOW, 0.0, 1.0).astype(np.float32)


def spread(F, vector: Tensor, column: Tensor, units: int) -> Tensor:
    """A vector repeated for every token, by a matrix product, so that its gradient is one too.

    The gradients of ``broadcast_mul`` and ``broadcast_add`` towards the small side, and of ``LayerNorm`` towards gamma and
    beta, are scalar loops on a CPU and several times as slow.

    Parameters
    ----------
    vector : Tensor, shape (units,)
    column : Tensor of ones, shape (length, batch, 1)
    units : int

    Returns
    -------
    Tensor, shape (length, batch, units)
    """
    return F.FullyConnected(column, F.expand_dims(vector, axis=1), no_bias=True, flatten=False, num_hidden=units)


def column_of_ones(F, data: Tensor) -> Tensor:
    """Ones for every token of `data`: shape (length, batch, 1) for (length, batch, units)."""
    return F.BlockGrad(F.ones_like(F.slice_axis(data, axis=-1, begin=0, end=1)))


class StreamLayerNorm(nn.LayerNorm):
    """LayerNorm on the residual stream, whose units may be gated.

    Alpha scales what leaves it: gamma and beta times alpha, which costs nothing per token. A unit whose alpha is zero has
    left the stream, so the moments are those of the units that remain, as they will be once it is cut.

    Parameters
    ----------
    units : int
    trainable : bool
        Whether gamma and beta will be trained, gates among them: their gradients are then matrix products.
    truncated : bool
        Whether alpha may hold zeros. Without, the moments run over all units, which is the same and faster.

    Inputs:
        - **data** : shape (..., units)
        - **alpha** : shape (units,), or None.
    """

    def __init__(self, units: int, *, trainable: bool = True, truncated: bool = False, prefix=None, params=None):
        super().__init__(in_channels=units, epsilon=LAYER_NORM_EPS, prefix=prefix, params=params)
        self._units, self._trainable, self._truncated = units, trainable, truncated

    def hybrid_forward(self, F, data, alpha=None, gamma=None, beta=None):  # pylint: disable=arguments-differ
        if alpha is not None:
            gamma, beta = gamma * alpha, beta * alpha
        if alpha is not None and self._truncated:
            normal = self._normal_over_alive(F, data, alpha != 0)
        elif self._trainable:
            ones, zeros = F.ones(shape=(self._units,)), F.zeros(shape=(self._units,))
            normal = F.LayerNorm(data, gamma=ones, beta=zeros, axis=-1, eps=self._epsilon)
        else:
            return F.LayerNorm(data, gamma=gamma, beta=beta, axis=-1, eps=self._epsilon)
        column = column_of_ones(F, data)
        return normal * spread(F, gamma, column, self._units) + spread(F, beta, column, self._units)

    def _normal_over_alive(self, F, data, alive):
        """The data with mean 0 and variance 1 over the units that are alive, and 0 at the others."""
        share = F.sum(alive)
        mean = F.broadcast_div(F.sum(F.broadcast_mul(data, alive), axis=-1, keepdims=True), share)
        centred = F.broadcast_mul(F.broadcast_sub(data, mean), alive)
        variance = F.broadcast_div(F.sum(F.square(centred), axis=-1, keepdims=True), share)
        return F.broadcast_mul(centred, F.rsqrt(variance + self._epsilon))


class Gates:
    """The gates of a network, by width key (``h``, ``a0``, ``k0`` …).

    Parameters
    ----------
    parameters : dict of width key to Parameter
    """

    def __init__(self, parameters: Mapping[str, Parameter]):
        self.parameters: Dict[str, Parameter] = dict(parameters)

    def values(self) -> Dict[str, np.ndarray]:
        """Alpha as float32 arrays."""
        return {key: parameter.data().asnumpy() for key, parameter in self.parameters.items()}

    def set(self, alphas: Mapping[str, np.ndarray]) -> None:
        """Set alpha; raises ValueError unless every gate gets a vector of its own length."""
        wrong = [key for key, parameter in self.parameters.items() if np.shape(alphas.get(key)) != parameter.shape]
        wrong += [key for key in alphas if key not in self.parameters]
        if wrong:
            raise ValueError(f'gates: missing, unknown or of another length: {", ".join(wrong)}')
        for key, parameter in self.parameters.items():
            parameter.set_data(mx.nd.array(alphas[key], dtype='float32'))

    def trained(self) -> Dict[str, Parameter]:
        """The gates that get gradients, by width key."""
        return {key: parameter for key, parameter in self.parameters.items() if parameter.grad_req != 'null'}
