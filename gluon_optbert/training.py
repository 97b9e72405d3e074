"""The one training loop: weights by equation (1), gates by equation (2), with checkpoints that resume bit for bit."""
from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from tqdm import tqdm

from .batches import Batch, evaluation_batches, stream
from .checkpoint import check_manifest, read_arrays, write_manifest
from .distributed import Workers
from .model import OptBERTModel, PretrainingLoss
from .optimization import Optimizer
from .penalty import Penalty
from .recipe import RunFailed
from .shards import Shards
from .staging import new_directory, write_file

LOG = logging.getLogger(__name__)
STATE_FORMAT, STATE_VERSION = 'gluon_optbert training state', 1


class Terminated(RunFailed):
    """The run was asked to stop (SIGTERM), has saved its state, and can be resumed."""


def _feed(batch: Batch, rows: slice, ctx: mx.Context) -> Dict[str, mx.nd.NDArray]:
    return {name: mx.nd.array(getattr(batch, name)[rows], ctx=ctx, dtype='float32') for name in (
        'input_ids', 'token_types', 'valid_length', 'masked_positions', 'masked_ids', 'masked_weights',
        'next_sentence_labels', 'instance_weights')}


def _losses(model: OptBERTModel, loss: PretrainingLoss, feed: Mapping[str, mx.nd.NDArray]):
    outputs = model(feed['input_ids'], feed['token_types'], feed['valid_length'], feed['masked_positions'])
    return loss(outputs[-2], outputs[-1], feed['masked_ids'], feed['masked_weights'], feed['next_sentence_labels'],
                feed['instance_weights'])


def evaluate(model: OptBERTModel, shards: Shards, workers: Workers, *, batch_size: int,
             limit: Optional[int] = None) -> Dict[str, float]:
    """Held-out losses and accuracies, over all workers' shares together.

    Parameters
    ----------
    model : OptBERTModel
    shards : Shards
        Of the held-out split.
    batch_size : int
        Instances at a time, over all workers.
    limit : int, optional
        The most instances to look at.

    Returns
    -------
    dict
        ``mlm_loss`` (nats per masked token), ``mlm_accuracy``, ``nsp_loss``, ``nsp_accuracy`` and ``instances``.
    """
    loss = PretrainingLoss(accuracy=True)
    loss.hybridize(static_alloc=True)
    sums = np.zeros(6)
    for batch in evaluation_batches(shards, batch_size=batch_size, rank=workers.rank, workers=workers.size, limit=limit):
        with autograd.predict_mode():
            found = _losses(model, loss, _feed(batch, slice(None), workers.context()))
        sums += [*(float(value.asscalar()) for value in found), batch.masked_weights.sum(),
                 batch.instance_weights.sum()]
    mlm, nsp, mlm_right, nsp_right, masked, instances = workers.sum(sums, name='evaluation')
    masked, instances = max(masked, 1.0), max(instances, 1.0)
    return {'mlm_loss': mlm / masked, 'mlm_accuracy': mlm_right / masked, 'nsp_loss': nsp / instances,
            'nsp_accuracy': nsp_right / instances, 'instances': int(instances)}


@dataclasses.dataclass(frozen=True)
class Phase:
    """What one call of `fit` is to do.

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


class States:
    """The checkpoints of one phase: trained parameters, optimizer state and progress, each whole or absent."""

    def __init__(self, directory: Path, keep: int):
        self.directory, self._keep = Path(directory), keep

    def steps(self) -> List[int]:
        """The steps that have a checkpoint, increasing."""
        found = [re.fullmatch(r'step-(\d+)', path.name) for path in self.directory.glob('step-*')]
        return sorted(int(match.group(1)) for match in found if match)

    def _path(self, step: int) -> Path:
        return self.directory / f'step-{step:08d}'

    def save(self, step: int, optimizer: Optimizer, progress: Mapping[str, Any]) -> None:
        """Write the checkpoint of a step; then drop old ones, never the best or the newest."""
        with new_directory(self._path(step), replace=True) as staged:
            arrays = {name: parameter.data() for name, parameter in optimizer.parameters.items()}
            arrays.update(optimizer.state())
            mx.nd.save(str(staged / 'state.params'), arrays)
            (staged / 'progress.json').write_text(json.dumps({**progress, 'step': step}) + '\n', encoding='utf-8')
            write_manifest(staged, form=STATE_FORMAT, version=STATE_VERSION)
        for old in self.steps()[:-self._keep]:
            if old != progress.get('best_step'):
                shutil.rmtree(self._path(old))

    def load_newest(self, optimizer: Optimizer) -> Optional[Dict[str, Any]]:
        """Restore the newest checkpoint that is sound; older ones stand in for a damaged one, and it is said.

        Returns
        -------
        dict or None
            Its progress; None if there is none.
        """
        for step in reversed(self.steps()):
            try:
                check_manifest(self._path(step), form=STATE_FORMAT, version=STATE_VERSION)
            except (ValueError, FileNotFoundError) as error:
                LOG.warning('%s; trying an older checkpoint', error)
                continue
            progress = json.loads((self._path(step) / 'progress.json').read_text(encoding='utf-8'))
            arrays = read_arrays(self._path(step) / 'state.params')
            optimizer.restore(arrays, step)
            for name, parameter in optimizer.parameters.items():
                parameter.set_data(mx.nd.array(arrays[name], dtype=parameter.dtype))
            return progress
        return None


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
            same = record.get('phase') == phase.name and all(record.get(k) == v for k, v in phase.notes.items())
            if not same or record['step'] <= step:
                kept.append(line)
        write_file(self._path, ''.join(line + '\n' for line in kept).encode())

    def start(self, phase: Phase, step: int) -> None:
        """Begin the progress bar of a phase."""
        if self._workers.first and sys.stderr.isatty():
            self._bar = tqdm(total=phase.steps, initial=step, desc=phase.name, unit='step', dynamic_ncols=True)

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
        names = {'mlm': 'mlm', 'nsp': 'nsp', 'penalty': 'penalty', 'mlm_loss': 'held-out mlm',
                 'mlm_accuracy': 'mlm accuracy', 'nsp_accuracy': 'nsp accuracy'}
        parts = [f'{record["phase"]} step {record["step"]}'] + ([f'round {record["round"]}'] if 'round' in record else [])
        parts += [f'{shown} {record[name]:.3f}' for name, shown in names.items() if name in record]
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


def fit(model: OptBERTModel, optimizer: Optimizer, schedule: Callable[[int], float], phase: Phase, *, shards: Shards,
        heldout: Optional[Shards], workers: Workers, reporter: Reporter, states: Path,
        penalty: Optional[Penalty] = None) -> Dict[str, Any]:
    """Train what the optimizer holds for the steps of a phase, going on from the newest checkpoint if there is one.

    The loss is the mean over the masked tokens of the global batch plus the mean over its instances, whatever the number
    of workers and of passes; every step's dropout follows from the seed, the rank and the step.

    Returns
    -------
    dict
        ``step``, and the last evaluation's values if there was one.

    Raises
    ------
    TrainingDiverged, Terminated
    """
    loss = PretrainingLoss()
    loss.hybridize(static_alloc=True)
    store = States(states, phase.keep)
    progress: Dict[str, Any] = store.load_newest(optimizer) or {'step': 0}
    step = progress['step']
    *unlogged, counted = progress.pop('unlogged', (0.0, 0.0, 0))
    reporter.rewind(phase, step)
    for parameter in optimizer.parameters.values():
        parameter.grad_req = 'add' if phase.accumulate > 1 else 'write'
    batches = stream(shards, batch_size=phase.batch_size, seed=phase.seed, start=phase.first_batch + step,
                     rank=workers.rank, workers=workers.size)
    stop = _Stop(workers)
    reporter.start(phase, step)
    sums = np.array(unlogged) * workers.first
    tokens, waited, began = 0, 0.0, time.perf_counter()
    try:
        while step < phase.steps:
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            sums += _backward(model, loss, optimizer.parameters, batch, phase, workers, step)
            if penalty is not None:
                penalty.add_gradient(model.gates)
            norm = optimizer.update(schedule(step), step=step + 1)
            if penalty is not None:
                penalty.after_step(model.gates, schedule(step))
            step, counted, tokens = step + 1, counted + 1, tokens + batch.token_total
            reporter.tick()
            last = step == phase.steps
            if last or (phase.log_every and step % phase.log_every == 0):
                mlm, nsp = (value / counted for value in workers.sum(sums, name='losses'))
                seconds = time.perf_counter() - began
                record = {'phase': phase.name, **phase.notes, 'step': step, 'mlm': mlm, 'nsp': nsp,
                          'gradient_norm': norm, 'learning_rate': schedule(step - 1),
                          'tokens_per_second': tokens / seconds, 'data_wait': waited / seconds}
                if penalty is not None:
                    record['penalty'] = penalty.value(model.gates.values())
                reporter.write(record)
                sums, counted, tokens, waited, began = np.zeros(2), 0, 0, 0.0, time.perf_counter()
            if heldout is not None and (last or (phase.evaluate_every and step % phase.evaluate_every == 0)):
                measured = evaluate(model, heldout, workers, batch_size=phase.batch_size, limit=phase.evaluation_limit)
                reporter.write({'phase': phase.name, **phase.notes, 'step': step, **measured})
                progress.update(measured)
                if measured['mlm_loss'] < progress.get('best_mlm_loss', math.inf):
                    progress.update(best_mlm_loss=measured['mlm_loss'], best_step=step)
                began = time.perf_counter()
            stopping = stop.agreed()
            if stopping or (phase.checkpoint_every and step % phase.checkpoint_every == 0 and not last):
                sums = np.array(workers.sum(sums, name='losses')) * workers.first  # rank 0 has them, here as after resuming
                if workers.first:
                    store.save(step, optimizer, {**progress, 'unlogged': [*sums, counted]})
                workers.barrier('checkpoint')
                began = time.perf_counter()
            if stopping:
                raise Terminated(f'{phase.name}: asked to stop at step {step}; its state is saved, go on with --resume')
    finally:
        stop.restore()
        reporter.close()
        batches.close()
    progress['step'] = step
    return progress


def gradients(model: OptBERTModel, parameters: Mapping[str, gluon.Parameter], phase: Phase, *, shards: Shards,
              workers: Workers) -> Iterator[int]:
    """Leave the gradients of one batch after the other in some parameters, averaged over the workers; nothing is trained.

    Yields
    ------
    int
        The number of the batch, ``phase.steps`` times.
    """
    loss = PretrainingLoss()
    loss.hybridize(static_alloc=True)
    for parameter in parameters.values():
        parameter.grad_req = 'add' if phase.accumulate > 1 else 'write'
    batches = stream(shards, batch_size=phase.batch_size, seed=phase.seed, start=phase.first_batch, rank=workers.rank,
                     workers=workers.size)
    try:
        for step in range(phase.steps):
            _backward(model, loss, parameters, next(batches), phase, workers, step)
            workers.average([parameter.grad() for parameter in parameters.values()], name='gradient')
            yield step
    finally:
        batches.close()


def _backward(model: OptBERTModel, loss: PretrainingLoss, parameters: Mapping[str, gluon.Parameter], batch: Batch, phase: Phase,
              workers: Workers, step: int) -> np.ndarray:
    """Leave the gradients of this worker's share in the parameters; its share of the two losses."""
    mx.random.seed((phase.seed + workers.rank + 1000003 * (phase.first_batch + step)) % (2 ** 31))
    if phase.accumulate > 1:
        for parameter in parameters.values():
            parameter.zero_grad()
    share = len(batch.input_ids) // phase.accumulate
    found = []
    for i in range(phase.accumulate):
        with autograd.record():
            mlm, nsp = _losses(model, loss, _feed(batch, slice(i * share, (i + 1) * share), workers.context()))
            total = mlm * (workers.size / batch.masked_total) + nsp * (workers.size / batch.instance_total)
        total.backward()
        found.append((mlm, nsp))
    sums = np.array([[float(value.asscalar()) for value in pair] for pair in found]).sum(axis=0)
    return sums / [batch.masked_total, batch.instance_total]
