"""The one training loop: whatever is trained, on whatever batches, with checkpoints that resume bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Generator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from tqdm import tqdm

from .distributed import Workers
from .network.model import OptBERTModel
from .optimization import Optimizer
from .penalty import Penalty
from .runs.failures import RunFailed
from .runs.staging import write_file
from .states import States


class Terminated(RunFailed):
    """The run was asked to stop (SIGTERM), has saved its state, and can be resumed."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """What one call of `descend` is to do.

    Parameters
    ----------
    name : str
        For metrics and messages, e.g. ``recovery``.
    steps : int
    batch_size : int
        Instances a step over all workers.
    accumulate : int
        Passes that a worker's share is split into.
    seed : int
        Of the data's order and of dropout.
    first_batch : int
        Where in the stream of batches the phase starts.
    log_every, evaluate_every, checkpoint_every : int
        In steps; 0 for never.
    keep : int
        Checkpoints to keep, the best one aside.
    evaluation_limit : int
        Held-out instances to look at.
    notes : mapping
        Fixed values for every metrics record, such as the round.
    """

    name: str
    steps: int
    batch_size: int
    accumulate: int = 1
    seed: int = 0
    first_batch: int = 0
    log_every: int = 50
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    evaluation_limit: int = 1024
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Objective:
    """What a phase descends: batches, their losses, and what is measured on held-out data.

    Parameters
    ----------
    model : OptBERTModel
    workers : Workers

    Attributes
    ----------
    losses : tuple of str
        The parts of the loss, as metrics call them.
    returns_to_best : bool
        Whether the best step will be gone back to; then it has a checkpoint, whatever the phase says.
    """

    losses: Tuple[str, ...] = ()
    returns_to_best = False

    def __init__(self, model: OptBERTModel, workers: Workers):
        self.model, self.workers = model, workers

    def batches(self, phase: Phase, start: int) -> Generator[Any, None, None]:
        """This worker's share of every batch from number `start` on; each has ``input_ids`` and
        ``token_total``.
        """
        raise NotImplementedError

    def loss_sums(self, batch: Any, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        """The parts of the loss, summed over some rows of a share."""
        raise NotImplementedError

    def totals(self, batch: Any) -> Sequence[float]:
        """What each of those sums is divided by to give the mean over the global batch."""
        raise NotImplementedError

    def evaluate(self, phase: Phase) -> Optional[Dict[str, float]]:
        """What is measured on held-out data; None if there is none."""
        raise NotImplementedError

    def remember(self, progress: Dict[str, Any], measured: Mapping[str, float], step: int) -> None:
        """Note in the progress what a measurement changes, such as ``best_step``."""
        raise NotImplementedError


class Reporter:
    """Metrics of a run: one record a line in ``metrics.jsonl``, and on the terminal of rank 0."""

    def __init__(self, path: Path, workers: Workers):
        self._path, self._workers, self._bar = Path(path), workers, None

    def rewind(self, phase: Phase, step: int) -> None:
        """Drop the records of a phase beyond a step: they will be written again."""
        if not self._workers.first or not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding='utf-8').splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the last line of a killed run
            same = record.get('phase') == phase.name and all(
                record.get(k) == v for k, v in phase.notes.items()
            )
            if not same or record['step'] <= step:
                kept.append(line)
        write_file(self._path, ''.join(line + '\n' for line in kept).encode())

    def start(self, phase: Phase, step: int) -> None:
        """Begin the progress bar of a phase."""
        if self._workers.first and sys.stderr.isatty():
            self._bar = tqdm(
                total=phase.steps, initial=step, desc=phase.name, unit='step', dynamic_ncols=True
            )

    def tick(self) -> None:
        """One step is done."""
        if self._bar is not None:
            self._bar.update()

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record, and show it."""
        if not self._workers.first:
            return
        with open(self._path, 'a', encoding='utf-8') as file:
            file.write(json.dumps(record) + '\n')
        text = self._line(record)
        if self._bar is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._bar.write(text)

    def close(self) -> None:
        """End the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @staticmethod
    def _line(record: Mapping[str, Any]) -> str:
        names = {
            'loss': 'loss',
            'mlm': 'mlm',
            'nsp': 'nsp',
            'penalty': 'penalty',
            'mlm_loss': 'held-out mlm',
            'mlm_accuracy': 'mlm accuracy',
            'nsp_accuracy': 'nsp accuracy',
        }
        parts = [f'{record["phase"]} step {record["step"]}'] + (
            [f'round {record["round"]}'] if 'round' in record else []
        )
        parts += [f'seed {record["seed"]}'] if 'seed' in record else []
        parts += [f'{shown} {record[name]:.3f}' for name, shown in names.items() if name in record]
        parts += [
            f'{name} {value:.2f}' for name, value in record.items() if '/' in name
        ]  # held-out set/metric
        if 'parameters' in record:
            parts.append(f'params {record["parameters"] / 1e6:.1f}M')
        if 'tokens_per_second' in record:
            parts.append(f'{record["tokens_per_second"] / 1e3:.1f}k tok/s')
        return ' | '.join(parts)


class _Stop:
    """Turns SIGTERM into a flag that all workers see at the same step."""

    def __init__(self, workers: Workers):
        self._asked, self._workers = False, workers
        self._before = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_):
        self._asked = True

    def agreed(self) -> bool:
        return self._workers.sum([self._asked], name='stop')[0] > 0

    def restore(self) -> None:
        signal.signal(signal.SIGTERM, self._before)


def collect_gradients(model: OptBERTModel, parameters: Mapping[str, gluon.Parameter], phase: Phase) -> None:
    """Say how the passes of a step leave their gradients; see `backward`."""
    for parameter in parameters.values():
        parameter.grad_req = 'add' if phase.accumulate > 1 and model.precision == 'float32' else 'write'


def backward(
    objective: Objective,
    parameters: Mapping[str, gluon.Parameter],
    batch: Any,
    phase: Phase,
    step: int,
    scale: float = 1.0,
) -> np.ndarray:
    """Leave the gradients of this worker's share in the parameters; its share of the parts of the loss.

    Parameters
    ----------
    objective : Objective
    parameters : mapping of name to Parameter
        As `collect_gradients` left them.
    scale : float
        What the loss is multiplied by on the way; a power of two, so that it changes nothing but what
        vanishes.
    """
    workers, totals = objective.workers, objective.totals(batch)
    mx.random.seed((phase.seed + workers.rank + 1000003 * (phase.first_batch + step)) % (2**31))
    in_place = (
        objective.model.precision == 'float32'
    )  # else MXNet's cast forgets a gradient that is to be added
    if phase.accumulate > 1 and in_place:
        for parameter in parameters.values():
            parameter.zero_grad()
    share = len(batch.input_ids) // phase.accumulate
    found: List[Any] = []
    held: List[mx.nd.NDArray] = []
    for i in range(phase.accumulate):
        with autograd.record():
            parts = objective.loss_sums(batch, slice(i * share, (i + 1) * share))
            loss = functools.reduce(
                operator.add, (part * (scale * workers.size / total) for part, total in zip(parts, totals))
            )
        loss.backward()
        found.append(parts)
        if phase.accumulate > 1 and not in_place:
            gradients = [parameter.grad() for parameter in parameters.values()]
            for gradient, before in zip(gradients, held):
                gradient += before
            held = [gradient.copy() for gradient in gradients] if i + 1 < phase.accumulate else []
    if scale != 1:
        for parameter in parameters.values():
            gradient = parameter.grad()
            gradient /= scale
    sums = np.array([[float(value.asscalar()) for value in parts] for parts in found]).sum(axis=0)
    return sums / totals


def descend(
    objective: Objective,
    optimizer: Optimizer,
    schedule: Callable[[int], float],
    phase: Phase,
    *,
    reporter: Reporter,
    states: Path,
    penalty: Optional[Penalty] = None,
) -> Dict[str, Any]:
    """Train what the optimizer holds for the steps of a phase, going on from the newest checkpoint if there
    is one.

    The loss is the mean over the global batch, whatever the number of workers and of passes; every step's
    dropout follows from the seed, the rank and the step.

    Returns
    -------
    dict
        ``step``, and what the objective remembers of its evaluations.

    Raises
    ------
    TrainingDiverged, Terminated
    """
    workers, gates = objective.workers, objective.model.gates
    store = States(states, phase.keep)
    progress = store.resume(optimizer, workers, what=phase.name)
    step, nothing = progress['step'], np.zeros(len(objective.losses))
    *unlogged, counted = progress.pop('unlogged', (*nothing, 0))
    reporter.rewind(phase, step)
    collect_gradients(objective.model, optimizer.parameters, phase)
    batches = objective.batches(phase, phase.first_batch + step)
    stop = _Stop(workers)
    reporter.start(phase, step)
    sums = np.array(unlogged) * workers.first
    tokens, waited, began = 0, 0.0, time.perf_counter()
    try:
        while step < phase.steps:
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            scale = optimizer.scale.value if optimizer.scale else 1.0
            sums += backward(objective, optimizer.parameters, batch, phase, step, scale)
            if penalty is not None:
                penalty.add_gradient(gates)
            norm = optimizer.update(schedule(step), step=step + 1)
            if penalty is not None:
                penalty.after_step(gates, schedule(step))
            step, counted, tokens = step + 1, counted + 1, tokens + batch.token_total
            reporter.tick()
            last = step == phase.steps
            if last or (phase.log_every and step % phase.log_every == 0):
                means = [value / counted for value in workers.sum(sums, name='losses')]
                seconds = time.perf_counter() - began
                record = {
                    'phase': phase.name,
                    **phase.notes,
                    'step': step,
                    **dict(zip(objective.losses, means)),
                    'gradient_norm': norm if math.isfinite(norm) else None,
                    'learning_rate': schedule(step - 1),
                    'tokens_per_second': tokens / seconds,
                    'data_wait': waited / seconds,
                }
                if penalty is not None:
                    record['penalty'] = penalty.value(gates.values())
                reporter.write(record)
                sums, counted, tokens, waited, began = nothing.copy(), 0, 0, 0.0, time.perf_counter()
            paused = time.perf_counter()
            if last:
                optimizer.check(step)
            if last or (phase.evaluate_every and step % phase.evaluate_every == 0):
                measured = objective.evaluate(phase)
                if measured is not None:
                    reporter.write({'phase': phase.name, **phase.notes, 'step': step, **measured})
                    objective.remember(progress, measured, step)
            stopping = stop.agreed()
            wanted = (phase.checkpoint_every and step % phase.checkpoint_every == 0) or (
                objective.returns_to_best and progress.get('best_step') == step
            )
            if stopping or (wanted and not last):
                optimizer.check(step)
                sums = (
                    np.array(workers.sum(sums, name='losses')) * workers.first
                )  # rank 0 has them, here as after resuming
                if workers.first:
                    store.save(
                        step, optimizer, {**progress, 'unlogged': [*sums, counted], 'workers': workers.size}
                    )
                workers.barrier('checkpoint')
            if stopping:
                raise Terminated(
                    f'{phase.name}: asked to stop at step {step}; its state is saved, go on with --resume'
                )
            began += time.perf_counter() - paused  # only training counts in tokens_per_second
    finally:
        stop.restore()
        reporter.close()
        batches.close()
    progress['step'] = step
    return progress
