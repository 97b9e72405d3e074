"""The one training loop: whatever is trained, on any batches, with checkpoints that resume bit for bit."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..runs.display import Display, tracked
from ..runs.failures import Terminated
from ..runs.files import write_file
from ..runs.progress import Progress
from .distributed import Stop, Workers
from .objective import Objective, Phase
from .optimization import Optimizer
from .states import States

_TIMED = 4  # steps at least, before others are planned


class Reporter:
    """Metrics of a run: one record a line in a file, ``metrics.jsonl``, if there is to be one, and on the
    terminal of rank 0.
    """

    def __init__(self, path: Path | None, workers: Workers):
        self._path, self._workers = None if path is None else Path(path), workers
        self._phase: Phase | None = None
        self._display: Display | None = None

    def rewind(self, phase: Phase, step: int) -> None:
        """Drop the records of a phase beyond a step: they will be written again."""
        if not self._workers.first or self._path is None or not self._path.exists():
            return
        kept = []
        for line in self._path.read_text(encoding='utf-8').splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the last line of a killed run
            same = {'phase': phase.name, **phase.notes}.items() <= record.items()
            if not same or record['step'] <= step:
                kept.append(line)
        write_file(self._path, ''.join(line + '\n' for line in kept).encode())

    @contextlib.contextmanager
    def showing(self, phase: Phase, step: int) -> Iterator[None]:
        """While the steps of a phase go by, from `step` on: a line first, and a bar on a terminal."""
        title = ' | '.join(filter(None, (phase.name, phase.place)))
        count = f'{phase.steps} step{"" if phase.steps == 1 else "s"}'
        if step:
            count = f'step {step}/{phase.steps} to go on from'
        workers = f' on {self._workers.size} workers' if self._workers.size > 1 else ''
        with Display(title, phase.steps, start=step, quiet=not self._workers.first) as display:
            size = f'{phase.batch_tokens:,} tokens' if phase.batch_tokens else f'{phase.batch_size} sequences'
            display.say(f'{title} | {count} | {size} a step{workers}')
            self._phase, self._display = phase, display
            try:
                yield
            finally:
                self._phase = self._display = None

    def tick(self) -> None:
        """One step is done."""
        if self._display is not None:
            self._display.advance()

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record, and show it."""
        if not self._workers.first:
            return
        if self._path is not None:
            with open(self._path, 'a', encoding='utf-8') as file:
                file.write(json.dumps(record) + '\n')
        if self._phase is not None and self._display is not None:
            self._display.say(self._line(record, self._phase, self._display.time_left()))

    @staticmethod
    def _line(record: Mapping[str, Any], phase: Phase, left: str) -> str:
        losses = ('loss', 'mlm', 'nsp', 'penalty', 'scores', 'states', 'last', 'embeddings', 'relations')
        names = {
            **{name: name for name in losses},
            'cosine_distance': 'cosine distance',
            'state_difference': 'held-out difference',
            'mlm_loss': 'held-out mlm',
            'mlm_accuracy': 'mlm accuracy',
            'nsp_accuracy': 'nsp accuracy',
        }
        parts = [phase.name, f'step {record["step"]}/{phase.steps}']
        parts += [part for part in (phase.place, left) if part]
        parts += [f'{shown} {record[name]:.3f}' for name, shown in names.items() if name in record]
        # held-out set/metric
        parts += [f'{name} {value:.2f}' for name, value in record.items() if '/' in name]
        if 'parameters' in record:
            parts.append(f'params {record["parameters"] / 1e6:.1f}M')
        if 'tokens_per_second' in record:
            parts.append(f'{record["tokens_per_second"] / 1e3:.1f}k tok/s')
        return ' | '.join(parts)


def backward(
    objective: Objective,
    parameters: Mapping[str, gluon.Parameter],
    batch: Any,
    phase: Phase,
    step: int,
    scale: float = 1.0,
) -> np.ndarray:
    """Leave the gradients of this worker's share in the parameters; its share of the parts of the loss.

    On the way the loss is multiplied by `scale`, a power of two, which changes nothing but what vanishes.
    """
    workers, totals = objective.workers, objective.totals(batch)
    factors = [
        scale * workers.size * weight / max(total, 1)  # whole words may leave nothing to predict
        for weight, total in zip(objective.weights or [1.0] * len(totals), totals)
    ]
    # On a CPU MXNet has 1,024 generators with consecutive seeds; neighbouring seeds would share most of them.
    state = np.random.SeedSequence([phase.seed, workers.rank, phase.first_batch + step]).generate_state(1)
    mx.random.seed(int(state[0] >> 1))
    # In reduced precision MXNet's cast forgets a gradient that is to be added.
    in_place = objective.model.precision == 'float32'
    for parameter in parameters.values():
        parameter.grad_req = 'add' if phase.accumulate > 1 and in_place else 'write'
        if parameter.grad_req == 'add':
            parameter.zero_grad()
    share = len(batch.input_ids) // phase.accumulate
    part_sums: list[Any] = []
    held: list[mx.nd.NDArray] = []
    for i in range(phase.accumulate):
        with autograd.record():
            parts = objective.loss_sums(batch, slice(i * share, (i + 1) * share))
            loss = functools.reduce(operator.add, (part * factor for part, factor in zip(parts, factors)))
        loss.backward()
        part_sums.append(parts)
        if phase.accumulate > 1 and not in_place:
            gradients = [parameter.grad() for parameter in parameters.values()]
            for gradient, before in zip(gradients, held):
                gradient += before
            held = [gradient.copy() for gradient in gradients] if i + 1 < phase.accumulate else []
    if scale != 1:
        for parameter in parameters.values():
            gradient = parameter.grad()
            gradient /= scale
    sums = np.array([[float(value.asscalar()) for value in parts] for parts in part_sums]).sum(axis=0)
    return sums / np.maximum(totals, 1)  # nothing to predict is no loss


def gradients(objective: Objective, parameters: Mapping[str, gluon.Parameter], phase: Phase) -> Iterator[int]:
    """Leave the gradients of one batch after the other in some parameters, averaged over the workers, for
    ``phase.steps`` batches, whose numbers are yielded; nothing is trained.
    """
    with contextlib.closing(objective.batches(phase, phase.first_batch)) as batches:
        title, quiet = ' | '.join(filter(None, (phase.name, phase.place))), not objective.workers.first
        for step in tracked(range(phase.steps), title, phase.steps, unit='step', quiet=quiet):
            backward(objective, parameters, next(batches), phase, step)
            objective.workers.average(
                [parameter.grad() for parameter in parameters.values()], name='gradient'
            )
            yield step


class _Meter:
    """The losses and the speed since the last metrics record; of a phase that is gone on with, after what its
    checkpoint kept, which `gather` gives.
    """

    def __init__(self, parts: int, unlogged: Sequence[float], workers: Workers):
        *sums, self._steps = unlogged or (*np.zeros(parts), 0)
        self._sums = np.array(sums) * workers.first
        self._workers = workers
        self._tokens, self._waited, self._began = 0, 0.0, time.perf_counter()

    def next(self, batches: Iterator[Any]) -> Any:
        """The next batch; the time that it takes to come counts as waiting."""
        asked = time.perf_counter()
        batch = next(batches)
        self._waited += time.perf_counter() - asked
        return batch

    def add(self, losses: np.ndarray, tokens: int) -> None:
        """Count a step."""
        self._sums += losses
        self._steps, self._tokens = self._steps + 1, self._tokens + tokens

    def read(self, names: Sequence[str]) -> dict[str, float]:
        """The means over all workers since the last reading."""
        means = [value / self._steps for value in self._workers.sum(self._sums, name='losses')]
        seconds = time.perf_counter() - self._began
        measured = {
            **dict(zip(names, means)),
            'tokens_per_second': self._tokens / seconds,
            'data_wait': self._waited / seconds,
        }
        self._sums, self._steps = np.zeros(len(means)), 0
        self._tokens, self._waited, self._began = 0, 0.0, time.perf_counter()
        return measured

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While something other than training is done, which does not count in the speed."""
        paused = time.perf_counter()
        yield
        self._began += time.perf_counter() - paused

    def gather(self) -> list[float]:
        """The sums of the parts over all workers, and the steps in them, for a checkpoint; from here on rank
        0 has these sums, as if resumed.
        """
        self._sums = np.array(self._workers.sum(self._sums, name='losses')) * self._workers.first
        return [*self._sums, self._steps]


def train(
    objective: Objective,
    optimizer: Optimizer,
    schedule: Callable[[int], float],
    phase: Phase,
    *,
    reporter: Reporter,
    states: Path | None,
) -> Progress:
    """Train what the optimizer holds for the steps of a phase, or until the objective is finished, going on
    from the newest checkpoint if there is one; the step, and what the objective remembers of its evaluations.

    The loss is the mean over the global batch, whatever the number of workers and of passes, but for the
    similarities of sentences, which are those within a pass; every step's dropout follows from the seed, the
    rank and the step.

    Parameters
    ----------
    schedule : callable
        The number of steps done → the learning rate.
    states : Path, optional
        The directory of checkpoints; without it there are none, and nothing to go on from.
    """
    workers, store = objective.workers, None if states is None else States(states, phase.keep)
    progress = Progress(step=0) if store is None else store.resume(optimizer, workers, what=phase.name)
    step = start = progress.step or 0
    if start and store is not None:
        objective.recall(start, store.memory)
    meter = _Meter(len(objective.losses), progress.unlogged or (), workers)
    progress = progress.updated(unlogged=None)
    reporter.rewind(phase, start)
    if start and objective.over():
        return progress.updated(step=start)
    batches = objective.batches(phase, phase.first_batch + start)
    with contextlib.closing(batches), Stop(workers) as stop, reporter.showing(phase, start):
        for step in range(start + 1, phase.steps + 1):
            batch = meter.next(batches)
            losses, norm = _step(objective, optimizer, schedule, batch, phase, step - 1)
            meter.add(losses, batch.token_total)
            last = objective.finished() or step == phase.steps
            reporter.tick()
            record = {'phase': phase.name, **phase.notes, 'step': step}
            if last or _due(step, phase.log_every):
                of_step = {
                    'gradient_norm': norm if math.isfinite(norm) else None,
                    'learning_rate': schedule(step - 1),
                }
                reporter.write({**record, **meter.read(objective.losses), **of_step, **objective.metrics()})
            with meter.paused():
                if last:
                    optimizer.check(step)
                if last or _due(step, phase.evaluate_every):
                    measured = objective.evaluate(phase)
                    if measured is not None:
                        reporter.write({**record, **measured})
                        progress = objective.remember(progress, measured, step)
                stopping = stop.agreed()
                best = objective.returns_to_best and progress.best_step == step
                due = stopping or (not last and (best or _due(step, phase.checkpoint_every)))
                if due and store is not None:
                    optimizer.check(step)
                    unlogged, memory = tuple(meter.gather()), objective.memory()
                    if workers.first:
                        now = progress.updated(unlogged=unlogged, workers=workers.size)
                        store.save(step, optimizer, now, memory)
                    workers.barrier('checkpoint')
                if stopping:
                    saved = '' if store is None else '; its state is saved, go on with --resume'
                    raise Terminated(f'{phase.name}: asked to stop at step {step}{saved}')
            if last:
                break
    return progress.updated(step=step)


def steps_within(
    seconds: float, objective: Objective, optimizer: Optimizer, phase: Phase
) -> tuple[int, float]:
    """The steps of a phase that fit into some time, less what is spent here, and the seconds of one.

    Steps are taken at a rate of zero on the first batches of the phase, for a 25th of the time, and one
    evaluation. The first step of every shape makes its graph and is not counted. The optimizer cannot be
    trained with afterwards, for its moments have changed.
    """
    workers, began = objective.workers, time.monotonic()

    def spent() -> float:  # the same on every worker
        return workers.sum([time.monotonic() - began], name='time')[0] / workers.size

    shapes: set[tuple[int, ...]] = set()
    times: list[float] = []
    step, after = 0, spent()
    with contextlib.closing(objective.batches(phase, phase.first_batch)) as batches:
        while len(times) < _TIMED or after < seconds / 25:
            batch, before = next(batches), after
            _step(objective, optimizer, lambda _: 0.0, batch, phase, step)
            step, after = step + 1, spent()
            if batch.input_ids.shape in shapes:
                times.append(after - before)
            shapes.add(batch.input_ids.shape)
    objective.evaluate(phase)
    evaluation = spent() - after
    each = sum(times) / len(times)
    every = evaluation / phase.evaluate_every if phase.evaluate_every else 0.0
    return max(1, int((seconds - spent() - evaluation) / (each + every))), each


def _step(
    objective: Objective,
    optimizer: Optimizer,
    schedule: Callable[[int], float],
    batch: Any,
    phase: Phase,
    step: int,
) -> tuple[np.ndarray, float]:
    """One step from number `step`: this worker's share of the parts of the loss, and the gradient's norm."""
    scale = optimizer.scale.value if optimizer.scale else 1.0
    losses = backward(objective, optimizer.parameters, batch, phase, step, scale)
    objective.after_backward()
    rate = schedule(step)
    norm = optimizer.update(rate, step=step + 1)
    if math.isfinite(norm):  # or the step was skipped
        objective.after_update(rate)
    return losses, norm


def _due(step: int, every: int) -> bool:
    """Whether something that is done every so many steps, or with 0 never, is done after this one."""
    return bool(every) and step % every == 0
