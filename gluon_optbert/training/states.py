"""The state of a training run on disk: what a killed run goes on from."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import mxnet as mx
import numpy as np

from ..runs.display import number_of
from ..runs.files import check_manifest, new_directory, write_manifest
from ..runs.mxnet_arrays import read_arrays, write_arrays
from ..runs.progress import Progress
from .distributed import Workers
from .optimization import Optimizer

LOG = logging.getLogger(__name__)
STATE_FORMAT, STATE_VERSION = 'gluon_optbert training state', 1
MEMORY = 'memory.params'


class States:
    """The checkpoints of one phase: parameters, optimizer state and progress, each whole or absent."""

    def __init__(self, directory: Path, keep: int):
        self.directory, self._keep = Path(directory), keep
        self.memory: dict[str, np.ndarray] = {}  # of the objective, in the checkpoint that was restored last

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, increasing."""
        matches = [re.fullmatch(r'step-(\d+)', path.name) for path in self.directory.glob('step-*')]
        return sorted(int(match.group(1)) for match in matches if match)

    def _path(self, step: int) -> Path:
        return self.directory / f'step-{step:08d}'

    def save(
        self,
        step: int,
        optimizer: Optimizer,
        progress: Progress,
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write the checkpoint of a step; then drop old ones and those beyond it, not the best or this."""
        with new_directory(self._path(step), replace=True) as staged:
            arrays = {name: parameter.data() for name, parameter in optimizer.parameters.items()}
            arrays.update(optimizer.state())
            counters = {'counters': optimizer.counters()} if optimizer.counters() else {}
            write_arrays(staged / 'state.params', arrays)
            (staged / 'progress.json').write_text(
                json.dumps({**progress.updated(step=step).to_dict(), **counters}) + '\n', encoding='utf-8'
            )
            if memory:
                write_arrays(staged / MEMORY, memory)
            write_manifest(staged, form=STATE_FORMAT, version=STATE_VERSION)
        others = [other for other in self.steps() if other < step]
        # damaged ones, or this would not have gone on from before
        beyond = [other for other in self.steps() if other > step]
        for old in others[: max(0, len(others) + 1 - self._keep)] + beyond:
            if old != progress.best_step:
                shutil.rmtree(self._path(old))

    def load(self, step: int, optimizer: Optimizer) -> Progress:
        """Restore the checkpoint of a step; its progress. ValueError or FileNotFoundError if it is damaged,
        or of another network.
        """
        check_manifest(self._path(step), form=STATE_FORMAT, version=STATE_VERSION)
        return self._restore(step, optimizer)

    def _restore(self, step: int, optimizer: Optimizer) -> Progress:
        arrays = read_arrays(self._path(step) / 'state.params')
        path, memory = self._path(step) / 'progress.json', self._path(step) / MEMORY
        self.memory = read_arrays(memory) if memory.exists() else {}
        values = json.loads(path.read_text(encoding='utf-8'))
        optimizer.restore(arrays, step, values.pop('counters', ()))
        for name, parameter in optimizer.parameters.items():
            parameter.set_data(mx.nd.array(arrays[name], dtype=parameter.dtype))
        return Progress.from_dict(values, source=str(path))

    def resume(self, optimizer: Optimizer, workers: Workers, *, what: str) -> Progress:
        """The progress of the newest checkpoint, whose state the optimizer has then; of step 0 without one.

        An older one stands in for a damaged one, and it is said. So is another number of workers than before:
        it adds up in another order, and with dropout it drops other units.
        """
        progress = Progress(step=0)
        for step in reversed(self.steps()):
            try:
                check_manifest(self._path(step), form=STATE_FORMAT, version=STATE_VERSION)
            except (ValueError, FileNotFoundError) as error:
                LOG.warning('%s; trying an older checkpoint', error)
            else:
                progress = self._restore(step, optimizer)
                break
        workers.agree(str(progress.step), what=f'the step of {what} to go on from; they need one file system')
        before = progress.workers
        if before not in (None, workers.size) and workers.first:
            LOG.warning(
                '%s goes on from step %d with %s instead of %d: its end is not bit-identical, but '
                'equal within rounding where there is no dropout',
                what,
                progress.step,
                number_of(workers.size, 'worker'),
                before,
            )
        return progress.updated(workers=None)
