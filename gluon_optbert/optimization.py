"""Learning-rate schedules, and optimizers whose state is saved as arrays."""
from __future__ import annotations

import dataclasses
import math
from typing import Dict, List, Mapping, Optional

import mxnet as mx
import numpy as np
from gluonnlp.optimizer import BERTAdam  # noqa: F401  registers 'bertadam'
from mxnet import gluon

from .distributed import Workers
from .recipe import RunFailed

OPTIMIZERS = ('bertadam', 'lamb', 'adam', 'sgd')


class TrainingDiverged(RunFailed):
    """The gradient is not a finite number; the step is named and the last checkpoint is untouched."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak` over `warmup_steps`, then linear decay to zero at `steps`; constant without decay."""
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


class Optimizer:
    """An MXNet optimizer over named parameters, whose state is arrays and numbers rather than a pickle.

    Parameters
    ----------
    parameters : mapping of name to Parameter
        What is trained. LayerNorms, biases and gates are not decayed.
    name : str
        One of `OPTIMIZERS`; ``bertadam`` is GluonNLP's.
    weight_decay : float
    clip_norm : float, optional
        Largest 2-norm of all gradients together.
    workers : Workers
        Whose gradients are averaged.
    """

    def __init__(self, parameters: Mapping[str, gluon.Parameter], name: str, *, weight_decay: float = 0.0,
                 clip_norm: Optional[float] = None, workers: Workers):
        self.parameters = dict(parameters)
        for key, parameter in self.parameters.items():
            if key.endswith(('bias', 'beta', 'gamma', 'alpha')):
                parameter.wd_mult = 0.0
        self._trainer = gluon.Trainer(list(self.parameters.values()), name, {'wd': weight_decay}, kvstore=None,
                                      update_on_kvstore=False)
        self._clip_norm, self._workers = clip_norm, workers

    def gradients(self) -> List[mx.nd.NDArray]:
        """The gradients, in the order of the parameters."""
        return [parameter.grad() for parameter in self.parameters.values()]

    def update(self, learning_rate: float, *, step: int) -> float:
        """Average the gradients over the workers, clip them, and take one step.

        Returns
        -------
        float
            The 2-norm of the averaged gradient before clipping.

        Raises
        ------
        TrainingDiverged
            If it is not finite; parameters are as they were.
        """
        gradients = self.gradients()
        self._workers.average(gradients, name='gradient')
        norm = math.sqrt(sum(float(value) for value in mx.nd.multi_sum_sq(
            *gradients, num_arrays=len(gradients)).asnumpy()))
        if not math.isfinite(norm):
            raise TrainingDiverged(f'step {step}: the gradient is {norm}; the last checkpoint is from before; begin '
                                   'again with a smaller learning rate, which --resume does not take')
        if self._clip_norm and norm > self._clip_norm:
            for gradient in gradients:
                gradient *= self._clip_norm / norm
        self._trainer.set_learning_rate(learning_rate)
        self._trainer.update(1)
        return norm

    def check(self, step: int) -> None:
        """Raise TrainingDiverged if a parameter is not finite after a step, or so large that its square is not."""
        values = [parameter.data() for parameter in self.parameters.values()]
        norm = sum(float(value) for value in mx.nd.multi_sum_sq(*values, num_arrays=len(values)).asnumpy())
        if not math.isfinite(norm):
            raise TrainingDiverged(f'step {step}: the weights have grown beyond what float32 holds; the last checkpoint is from '
                                   'before; begin again with a smaller learning rate, which --resume does not take')

    def state(self) -> Dict[str, mx.nd.NDArray]:
        """The optimizer's arrays by parameter name and number."""
        states = self._trainer._updaters[0].states
        arrays = {}
        for i, name in enumerate(self.parameters):
            slots = states.get(i)
            slots = () if slots is None else slots if isinstance(slots, (list, tuple)) else (slots,)
            arrays.update({f'{name}/{j}': slot for j, slot in enumerate(slots)})
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray], updates: int) -> None:
        """The inverse of `state`; `updates` is the number of steps taken.

        Raises
        ------
        ValueError
            If an array is missing or has another shape.
        """
        optimizer, updater = self._trainer._optimizer, self._trainer._updaters[0]
        optimizer.begin_num_update = optimizer.num_update = updates
        for i, (name, parameter) in enumerate(self.parameters.items()):
            updater.states[i] = optimizer.create_state_multi_precision(i, parameter.data())
            updater.states_synced[i] = True
        for name, slot in self.state().items():
            if name not in arrays or arrays[name].shape != slot.shape:
                raise ValueError(f'training state: {name} is missing or of another shape')
            slot[:] = mx.nd.array(arrays[name], dtype=slot.dtype)
