"""The gate vectors alpha, their products with tensors, and the LayerNorm of a gated stream."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock, Parameter, nn

Tensor = mx.nd.NDArray | mx.sym.Symbol


class Gate(HybridBlock):
    """One gate vector alpha, starting at one (optBERT, Table 4).

    Inputs:
        - **vector** : shape (units,)

    Outputs:
        - **gated** : the vector times alpha, shape (units,)
    """

    OPEN = 1.0  # the initial alpha
    FIXED = 1.0  # the alpha of a width that may not lose units

    def __init__(self, units: int, prefix=None, params=None):
        super().__init__(prefix=prefix, params=params)
        self._units = units
        with self.name_scope():
            self.alpha = self.params.get(
                'alpha', shape=(units,), init=mx.init.Constant(self.OPEN), wd_mult=0.0
            )

    def hybrid_forward(self, F, vector: Tensor, alpha: Tensor) -> Tensor:
        return vector * alpha

    def factors(self, F) -> Tensor:
        """Factors of the units in a pass, shape (units,)."""
        return self(F.ones(shape=(self._units,)))

    @classmethod
    def value(cls, alpha: np.ndarray) -> np.ndarray:
        """The factors of the weights, from a trained alpha."""
        return alpha


class HardConcreteGate(Gate):
    """A random gate, drawn in every pass (Louizos et al., 2018, Learning Sparse Networks through l0).

    The parameter alpha holds log-odds. A uniform draw u gives s = sigmoid((log u - log(1 - u) + odds) /
    TEMPERATURE), and the gate is clip(s (HIGH - LOW) + LOW, 0, 1). Temperature, HIGH and LOW are the paper's.
    """

    TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1
    SHIFT = TEMPERATURE * float(np.log(-LOW / HIGH))  # a gate is open with probability sigmoid(odds - SHIFT)
    OPEN = 3.0  # its gate without noise is one
    FIXED = 30.0  # its gate is one in every draw

    def hybrid_forward(self, F, vector: Tensor, alpha: Tensor) -> Tensor:
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
    """The outer product of a column and a vector: for every token, the vector times the token's number.

    It is computed as a matrix product, whose gradients are matrix products too. ``broadcast_mul`` would give
    the same, but its gradient towards the vector is a scalar loop on a CPU and several times as slow.

    Parameters
    ----------
    vector : Tensor, shape (units,)
    column : Tensor, shape (length, batch, 1)
        One number for each token; ones repeat the vector.

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


def gated_by(F, data: Tensor, vector: Tensor | None, column: Tensor | None, units: int) -> Tensor:
    """Every token times a vector, shape (length, batch, units); without a vector as it is.

    With `column` the gradient is fast; without it the forward pass writes less to memory.

    Parameters
    ----------
    data : Tensor, shape (length, batch, units)
    vector : Tensor, shape (units,), or None
    column : Tensor, shape (length, batch, 1), or None
        Ones if there will be a backward pass.
    """
    if vector is None:
        return data
    if column is None:
        return F.broadcast_mul(data, F.reshape(vector, shape=(1, 1, -1)))
    return data * spread(F, vector, column, units)


class StreamLayerNorm(nn.LayerNorm):
    """LayerNorm of the residual stream, whose units may have gates.

    Alpha multiplies gamma and beta and so scales the output, at no cost per token. A unit with an alpha of
    zero is out of the stream. The moments are those of the other units, as they will be after the cut.

    The gradient of MXNet's own operator is slow on a CPU. A trainable network therefore computes the moments,
    the scale and the shift as matrix products; forward and backward together take 0.4 of the operator's time.

    Parameters
    ----------
    eps : float
        What is added to the variance.
    trainable : bool
        Whether there will be a backward pass; without one, and without gates, MXNet's operator is used.

    Inputs:
        - **data** : shape (..., units)
        - **alpha** : shape (units,), or None
    """

    def __init__(self, units: int, eps: float, *, trainable: bool = True, prefix=None, params=None):
        super().__init__(in_channels=units, epsilon=eps, prefix=prefix, params=params)
        self._units, self._trainable = units, trainable

    def hybrid_forward(self, F, data, alpha=None, gamma=None, beta=None):
        if alpha is None and not self._trainable:
            return F.LayerNorm(data, gamma=gamma, beta=beta, axis=-1, eps=self._epsilon)
        if alpha is None:
            share = F.full(shape=(self._units,), val=1 / self._units)
        else:
            gamma, beta = gamma * alpha, beta * alpha
            alive = F.BlockGrad(alpha != 0)
            # zero for the units that gamma and beta zero out; a draw of random gates may leave no other
            share = F.broadcast_div(alive, F.clip(F.sum(alive), 1, self._units))

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
    """The gates of a network, by width key (``h``, ``a0``, ``k0`` …)."""

    def __init__(self, parameters: Mapping[str, Parameter]):
        self.parameters: dict[str, Parameter] = dict(parameters)

    def values(self) -> dict[str, np.ndarray]:
        """Alpha as float32 arrays."""
        return {key: parameter.data().asnumpy() for key, parameter in self.parameters.items()}

    def set(self, alphas: Mapping[str, np.ndarray]) -> None:
        """Set every alpha; raises ValueError if one is missing, unknown or of another length.

        A layer without filters has no gate, and may have an alpha of length zero.
        """
        wrong = [
            key for key, parameter in self.parameters.items() if np.shape(alphas.get(key)) != parameter.shape
        ]
        wrong += [key for key, alpha in alphas.items() if key not in self.parameters and len(alpha)]
        if wrong:
            raise ValueError(f'gates: missing, unknown or of another length: {", ".join(wrong)}')
        for key, parameter in self.parameters.items():
            parameter.set_data(mx.nd.array(alphas[key], dtype='float32'))

    def trained(self) -> dict[str, Parameter]:
        """The gates that get gradients, by width key."""
        return {key: parameter for key, parameter in self.parameters.items() if parameter.grad_req != 'null'}
