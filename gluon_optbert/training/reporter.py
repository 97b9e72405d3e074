"""The metrics of a run: one record a line in a file, and on the terminal of rank 0."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

from ..runs.display import Display
from ..runs.staging import write_file
from .distributed import Workers
from .objective import Phase


def _steps(count: int) -> str:
    return f'{count} step{"" if count == 1 else "s"}'


class Reporter:
    """Metrics of a run: one record a line in ``metrics.jsonl``, and on the terminal of rank 0.

    Parameters
    ----------
    path : Path, optional
        The file; without it records are shown and not written.
    workers : Workers
    """

    def __init__(self, path: Optional[Path], workers: Workers):
        self._path, self._workers = None if path is None else Path(path), workers
        self._phase: Optional[Phase] = None
        self._display: Optional[Display] = None

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
            same = record.get('phase') == phase.name and all(
                record.get(k) == v for k, v in phase.notes.items()
            )
            if not same or record['step'] <= step:
                kept.append(line)
        write_file(self._path, ''.join(line + '\n' for line in kept).encode())

    @contextlib.contextmanager
    def showing(self, phase: Phase, step: int) -> Iterator[None]:
        """While the steps of a phase go by, from `step` on: a line first, and a bar on a terminal."""
        title = ' | '.join(filter(None, (phase.name, phase.place)))
        count = f'step {step}/{phase.steps} to go on from' if step else _steps(phase.steps)
        workers = f' on {self._workers.size} workers' if self._workers.size > 1 else ''
        with Display(title, phase.steps, start=step, quiet=not self._workers.first) as display:
            display.say(f'{title} | {count} | {phase.batch_size} sequences a step{workers}')
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
        names = {
            'loss': 'loss',
            'mlm': 'mlm',
            'nsp': 'nsp',
            'penalty': 'penalty',
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
