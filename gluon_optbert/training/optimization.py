"""Learning-rate schedules, and optimizers whose state is saved as arrays."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from gluonnlp.optimizer import BERTAdam
from mxnet import gluon

from ..runs.failures import RunFailed
from .distributed import Workers
from .fused_adam import adam_step, forget_vanished, host_view, in_blocks, on_host

OF_WEIGHTS = ('bertadam', 'adamw', 'lamb')
_PIECE = 2**19  # elements whose squares one inner product adds up in float32
_TIDIED = 64  # steps between two times that vanished moments are set to zero


class TrainingDiverged(RunFailed):
    """The gradient is not a finite number; the step is named and the last checkpoint is untouched."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak` over `warmup_steps`, then linear decay to zero at `steps`; constant without
    decay.
    """

    peak: float
    steps: int
    warmup_steps: int = 0
    decay: bool = True

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if not self.decay:
            return self.peak
        return self.peak * max(0.0, (self.steps - step) / max(1, self.steps - self.warmup_steps))


class LossScale:
    """A factor of the loss, so that its gradients do not vanish in float16: halved when one
    overflows, else doubled after `patience` steps (Micikevicius et al., 2018, section 3.2).

    The rule of MXNet's `contrib.amp`, whose own keeps its count to itself, where no checkpoint finds it.
    """

    def __init__(self, start: float = 2.0**16, patience: int = 2000):
        self.value, self._patience, self._sound = start, patience, 0

    def after(self, overflow: bool) -> None:
        """Take note of a step."""
        self._sound = 0 if overflow else self._sound + 1
        if overflow:
            self.value /= 2
        elif self._sound == self._patience:
            self.value, self._sound = self.value * 2, 0

    def state(self) -> list[float]:
        """Numbers that `restore` takes."""
        return [self.value, self._sound]

    def restore(self, state: Sequence[float]) -> None:
        """The inverse of `state`."""
        self.value, self._sound = float(state[0]), int(state[1])


def sum_of_squares(arrays: Sequence[mx.nd.NDArray]) -> float:
    """The sum of the squares of all elements of some arrays.

    By inner products of pieces, whose results are added in float64: MXNet's ``multi_sum_sq`` is 1 % too small
    over ten million elements, and one inner product over all of them is off by 1e-4 on some processors.
    """
    products = []
    for array in arrays:
        flat = array.reshape((-1,))
        pieces = [flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE)]
        products += [mx.nd.dot(piece, piece) for piece in pieces]
    return float(mx.nd.concat(*products, dim=0).asnumpy().astype(np.float64).sum())


class BlockAdam(BERTAdam):
    """GluonNLP's BERTAdam, to the last bit; on the CPU it takes its steps with `adam_step`."""

    def _update_impl(
        self,
        indices: Sequence[int],
        weight: Sequence[mx.nd.NDArray],
        grad: Sequence[mx.nd.NDArray],
        state: Sequence[Sequence[mx.nd.NDArray]],
        multi_precision: bool = False,
    ) -> None:
        if multi_precision or not on_host([*weight, *grad]):
            super()._update_impl(indices, weight, grad, state, multi_precision)
            return
        self._update_count(indices)
        step = functools.partial(
            adam_step, rescale=self.rescale_grad, beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon
        )
        steps = [
            functools.partial(step, rate=rate, decay=decay)
            for rate, decay in zip(self._get_lrs(indices), self._get_wds(indices))
        ]
        mx.nd.waitall()
        in_blocks(
            [(one, tuple(map(host_view, arrays))) for one, *arrays in zip(steps, weight, grad, *zip(*state))]
        )


class AdamW(BlockAdam):
    """BERTAdam with the moments' bias corrected, as in PyTorch (Loshchilov and Hutter, 2019, algorithm 2).

    The correction of step t, sqrt(1 - beta2^t) / (1 - beta1^t), multiplies the learning rate. Weight decay is
    divided by it, so that it stays learning rate times decay. Epsilon is added to the corrected root: it is
    multiplied by sqrt(1 - beta2^t), for the root that the step takes is not corrected.
    """

    def _update_impl(self, indices: Sequence[int], *arrays: Any, **more: Any) -> None:
        before = self._index_update_count.get(indices[0], self.begin_num_update)  # the same of all parameters
        stated, self.epsilon = self.epsilon, self.epsilon * math.sqrt(1 - self.beta2 ** (before + 1))
        try:
            super()._update_impl(indices, *arrays, **more)
        finally:
            self.epsilon = stated

    def _correction(self, index: int) -> float:
        step = self._index_update_count[index]
        return math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)

    def _get_lrs(self, indices: Sequence[int]) -> list[float]:
        rates = super()._get_lrs(indices)
        return [rate * self._correction(index) for rate, index in zip(rates, indices)]

    def _get_wds(self, indices: Sequence[int]) -> list[float]:
        decays = super()._get_wds(indices)
        return [decay / self._correction(index) for decay, index in zip(decays, indices)]


_OWN = {'bertadam': BlockAdam, 'adamw': AdamW}  # the others are MXNet's


class Optimizer:
    """An MXNet optimizer over named parameters, whose state is arrays and numbers rather than a pickle.

    Parameters
    ----------
    name : str
        One of MXNet's, ``bertadam``, which is GluonNLP's, or ``adamw``, the same with the moments' bias
        corrected.
    beta2 : float, optional
        Decay of the average of squared gradients; the optimizer's own unless given.
    decayed : collection of str
        The names of the parameters that weight decay is for, as the parameter table says; none unless given.
    clip_norm : float, optional
        Largest 2-norm of all gradients together.
    workers : Workers
        Whose gradients are averaged.
    scale : LossScale, optional
        Of the loss, for float16: then a gradient that is not finite skips its step and halves the scale.
    compression : str
        Of the gradients on their way between workers, one of `COMPRESSIONS`.
    """

    def __init__(
        self,
        parameters: Mapping[str, gluon.Parameter],
        name: str,
        *,
        weight_decay: float = 0.0,
        beta2: float | None = None,
        decayed: Collection[str] = (),
        clip_norm: float | None = None,
        workers: Workers,
        scale: LossScale | None = None,
        compression: str = 'none',
    ):
        self.parameters = dict(parameters)
        for key, parameter in self.parameters.items():
            parameter.wd_mult = 1.0 if key in decayed else 0.0
        maker = _OWN.get(name) or functools.partial(mx.optimizer.create, name)
        made = maker(wd=weight_decay, **({} if beta2 is None else {'beta2': beta2}))
        trained = list(self.parameters.values())
        self._trainer = gluon.Trainer(trained, made, kvstore=None, update_on_kvstore=False)
        self._clip_norm, self._workers, self.scale = clip_norm, workers, scale
        self._compression = compression

    def update(self, learning_rate: float, *, step: int) -> float:
        """Average the gradients over the workers, clip them, and take one step; the 2-norm of the averaged
        gradient before clipping.

        TrainingDiverged if it is not finite, whatever the loss is scaled by; parameters are as they were.
        """
        gradients = [parameter.grad() for parameter in self.parameters.values()]
        self._workers.average(gradients, name='gradient', compression=self._compression)
        norm = math.sqrt(sum_of_squares(gradients))
        # to the last bit the same on any processor
        norm = self._workers.sum([norm], name='norm')[0] / self._workers.size
        finite = math.isfinite(norm)
        if self.scale is not None:
            self.scale.after(overflow=not finite)
            if not finite and self.scale.value >= 1:
                return norm
        if not finite:
            raise TrainingDiverged(
                f'step {step}: the gradient is {norm}; the last checkpoint is from before; begin '
                'again with a smaller learning rate, which --resume does not take'
            )
        self._trainer.set_learning_rate(learning_rate)
        excess = norm / self._clip_norm if self._clip_norm else 1.0
        self._trainer.update(max(1.0, excess))  # which divides the gradients by it as it reads them
        if self._trainer._optimizer.num_update % _TIDIED == 0:
            self._tidy()
        return norm

    def _tidy(self) -> None:
        """Set vanished moments to zero, on the CPU; a GPU multiplies subnormal numbers as fast as others."""
        moments = [array for array in self.state().values() if on_host([array])]
        mx.nd.waitall()
        in_blocks([(forget_vanished, (host_view(array),)) for array in moments])

    def check(self, step: int) -> None:
        """Raise TrainingDiverged if a parameter is not finite after a step, or so large that its square is
        not.
        """
        values = [parameter.data() for parameter in self.parameters.values()]
        if not math.isfinite(sum_of_squares(values)):
            raise TrainingDiverged(
                f'step {step}: the weights have grown beyond what float32 holds; the last checkpoint is from '
                'before; begin again with a smaller learning rate, which --resume does not take'
            )

    def state(self) -> dict[str, mx.nd.NDArray]:
        """The optimizer's arrays by parameter name and number."""
        states = self._trainer._updaters[0].states
        arrays = {}
        for i, name in enumerate(self.parameters):
            slots = states.get(i)
            slots = () if slots is None else slots if isinstance(slots, (list, tuple)) else (slots,)
            arrays.update({f'{name}/{j}': slot for j, slot in enumerate(slots)})
        return arrays

    def counters(self) -> list[float]:
        """Numbers that `restore` needs beside the arrays where steps may be skipped: steps taken, and the
        state of the loss's scale.
        """
        return [] if self.scale is None else [self._trainer._optimizer.num_update, *self.scale.state()]

    def restore(self, arrays: Mapping[str, np.ndarray], updates: int, counters: Sequence[float] = ()) -> None:
        """The inverse of `state` and `counters`; `updates` is the number of steps, the skipped ones included.
        ValueError if an array is missing or has another shape.
        """
        optimizer, updater = self._trainer._optimizer, self._trainer._updaters[0]
        if self.scale is not None and len(counters):
            updates = int(counters[0])
            self.scale.restore(counters[1:])
        optimizer.begin_num_update = optimizer.num_update = updates
        optimizer._index_update_count.clear()  # of steps after those
        for i, parameter in enumerate(self.parameters.values()):
            updater.states[i] = optimizer.create_state_multi_precision(i, parameter.data())
            updater.states_synced[i] = True
        for name, slot in self.state().items():
            if name not in arrays or arrays[name].shape != slot.shape:
                raise ValueError(f'training state: {name} is missing or of another shape')
            slot[:] = mx.nd.array(arrays[name], dtype=slot.dtype)
