"""The gate vectors alpha, and how a tensor is multiplied by one without a slow backward pass."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Union

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
            self.alpha = self.params.get(
                'alpha', shape=(units,), init=mx.init.Constant(self.OPEN), wd_mult=0.0
            )

    def hybrid_forward(self, F, vector: Tensor, alpha: Tensor) -> Tensor:  # pylint: disable=arguments-differ
        return vector * alpha

    @classmethod
    def value(cls, alpha: np.ndarray) -> np.ndarray:
        """What the weights are multiplied by once alpha is trained."""
        return alpha


class HardConcreteGate(Gate):
    """A gate whose alpha is drawn anew in every pass: Louizos et al. (2018), Learning Sparse Networks through
    l0.

    The parameter named alpha holds log-odds; a uniform draw u becomes the gate clip(sigmoid((log u - log(1 -
    u) + odds) / TEMPERATURE) (HIGH - LOW) + LOW, 0, 1). Temperature and stretch are the paper's."""

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
    """A vector for every token, times a number of that token's, by a matrix product, so that its gradients
    are some too.

    The gradients of ``broadcast_mul`` and ``broadcast_add`` towards the small side are scalar loops on a CPU
    and several times as slow.

    Parameters
    ----------
    vector : Tensor, shape (units,)
    column : Tensor, shape (length, batch, 1)
        The numbers; ones to repeat the vector as it is.
    units : int

    Returns
    -------
    Tensor, shape (length, batch, units)
    """
    return F.FullyConnected(
        column, F.expand_dims(vector, axis=1), no_bias=True, flatten=False, num_hidden=units
    )


def column_of_ones(F, data: Tensor) -> Tensor:
    """Ones for every token of `data`: shape (length, batch, 1) for (length, batch, units)."""
    return F.BlockGrad(F.ones_like(F.slice_axis(data, axis=-1, begin=0, end=1)))


def gated_by(F, data: Tensor, vector: Tensor, column: Optional[Tensor], units: int) -> Tensor:
    """Every token times a vector: with a fast gradient given `column`, and with the least to write to memory
    without.

    Parameters
    ----------
    data : Tensor, shape (length, batch, units)
    vector : Tensor, shape (units,)
    column : Tensor, shape (length, batch, 1), or None
        Ones, where there will be a backward pass.
    units : int
    """
    with mx.AttrScope(__part__='gates'):  # for tools/profile_training.py
        if column is None:
            return F.broadcast_mul(data, F.reshape(vector, shape=(1, 1, -1)))
        return data * spread(F, vector, column, units)


class StreamLayerNorm(nn.LayerNorm):
    """LayerNorm on the residual stream, whose units may be gated.

    Alpha scales what leaves it: gamma and beta times alpha, which costs nothing per token. A unit whose alpha
    is zero has left the stream, so the moments are those of the units that remain, as they will be once it is
    cut.

    MXNet's own operator has a slow gradient on a CPU; where there is something to train, the moments and what
    is multiplied and added are matrix products instead, and forward and backward together take 0.4 of its
    time.

    Parameters
    ----------
    units : int
    trainable : bool
        Whether there will be a backward pass; without, and without gates, it is MXNet's operator.

    Inputs:
        - **data** : shape (..., units)
        - **alpha** : shape (units,), or None.
    """

    def __init__(self, units: int, *, trainable: bool = True, prefix=None, params=None):
        super().__init__(in_channels=units, epsilon=LAYER_NORM_EPS, prefix=prefix, params=params)
        self._units, self._trainable = units, trainable

    def hybrid_forward(self, F, data, alpha=None, gamma=None, beta=None):  # pylint: disable=arguments-differ
        if alpha is None and not self._trainable:
            return F.LayerNorm(data, gamma=gamma, beta=beta, axis=-1, eps=self._epsilon)
        if alpha is None:
            share = F.full(shape=(self._units,), val=1 / self._units)
        else:
            gamma, beta = gamma * alpha, beta * alpha
            alive = F.BlockGrad(alpha != 0)
            share = F.broadcast_div(alive, F.sum(alive))  # gamma and beta are zero where this is

        def mean(values):
            return F.FullyConnected(
                values, F.expand_dims(share, axis=0), no_bias=True, flatten=False, num_hidden=1
            )

        if not self._trainable:
            centred = F.broadcast_sub(data, mean(data))
            scale = F.rsqrt(mean(F.square(centred)) + self._epsilon)
            gamma, beta = (F.reshape(vector, shape=(1, 1, -1)) for vector in (gamma, beta))
            return F.broadcast_add(F.broadcast_mul(F.broadcast_mul(centred, scale), gamma), beta)
        centred = data - spread(F, F.ones(shape=(self._units,)), mean(data), self._units)
        scale = F.rsqrt(mean(F.square(centred)) + self._epsilon)  # (..., 1)
        return centred * spread(F, gamma, scale, self._units) + spread(
            F, beta, column_of_ones(F, data), self._units
        )


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
        wrong = [
            key for key, parameter in self.parameters.items() if np.shape(alphas.get(key)) != parameter.shape
        ]
        wrong += [key for key in alphas if key not in self.parameters]
        if wrong:
            raise ValueError(f'gates: missing, unknown or of another length: {", ".join(wrong)}')
        for key, parameter in self.parameters.items():
            parameter.set_data(mx.nd.array(alphas[key], dtype='float32'))

    def trained(self) -> Dict[str, Parameter]:
        """The gates that get gradients, by width key."""
        return {key: parameter for key, parameter in self.parameters.items() if parameter.grad_req != 'null'}
