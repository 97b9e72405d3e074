"""What speed costs: the scores of networks that were pruned for one task, against their measured times."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..architecture.architecture import Architecture
from .task_runs import Group, Point

FORMAT = 'gluon_optbert speed of a task'
PRECISIONS = ('float32', 'int8')  # that are drawn, a row of panels each
Key = Tuple[Architecture, str, str]  # what is timed: widths, engine, precision


@dataclasses.dataclass(frozen=True)
class Spread:
    """A mean, and the sample deviation of more than one value."""

    mean: float
    std: Optional[float] = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of some values."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


@dataclasses.dataclass(frozen=True)
class Rung:
    """A size of a method in a panel, over all repetitions.

    Parameters
    ----------
    share : float
        Of the cost that was to be left.
    speedup : Spread
        How many times as fast as the network that went in.
    score, lost : Spread
        In percent, and in points less than the network that went in.
    repetitions : int
    each : tuple of (float, float)
        Speed-up and score of every repetition.
    """

    share: float
    speedup: Spread
    score: Spread
    lost: Spread
    repetitions: int
    each: Tuple[Tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Line:
    """A method in a panel, from its largest size on."""

    label: str
    unit: str
    rungs: Tuple[Rung, ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One shape in one precision.

    Parameters
    ----------
    batch, length : int
        Sequences, and tokens of each.
    precision : str
    start_ms : float
        The time of the network that went in.
    start : Spread
        Its score, over the networks that runs began with.
    lines : tuple of Line
    """

    batch: int
    length: int
    precision: str
    start_ms: float
    start: Spread
    lines: Tuple[Line, ...]

    @property
    def title(self) -> str:
        """For people: ``8 × 128 tokens, int8``."""
        return f'{self.batch} × {self.length} tokens, {self.precision}'

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Panel:
        """The inverse of `dataclasses.asdict`."""

        def rung(row: Mapping[str, Any]) -> Rung:
            spreads = {name: Spread(**row[name]) for name in ('speedup', 'score', 'lost')}
            return Rung(**{**row, **spreads, 'each': tuple(map(tuple, row['each']))})

        lines = tuple(Line(**{**one, 'rungs': tuple(map(rung, one['rungs']))}) for one in values['lines'])
        return cls(**{**values, 'start': Spread(**values['start']), 'lines': lines})


@dataclasses.dataclass(frozen=True)
class Times:
    """Files of `benchmarks/latency.py`.

    Parameters
    ----------
    rows : tuple of mapping
        For each file, the milliseconds by shape of what was timed.
    sources : tuple of mapping
        For each file: its path, the commit, the machine, the threads.
    """

    rows: Tuple[Mapping[Key, Mapping[str, float]], ...]
    sources: Tuple[Mapping[str, Any], ...]

    def engines(self) -> List[str]:
        """Those that timed something."""
        return list(dict.fromkeys(engine for rows in self.rows for _, engine, _ in rows))

    def of(self, one: Architecture, start: Architecture, engine: str, precision: str) -> Dict[str, Any]:
        """By shape the milliseconds of a network, and of the one that went in, from the same file; empty if
        no file has both.
        """
        for rows in self.rows:
            mine, first = (rows.get((network, engine, precision)) for network in (one, start))
            if mine and first:
                return {shape: (mine[shape], first[shape]) for shape in mine if shape in first}
        return {}


def read_times(paths: Sequence[Path]) -> Times:
    """What files of `benchmarks/latency.py` say.

    Raises
    ------
    ValueError, FileNotFoundError
        If one is no such file, or does not say which widths were timed.
    """
    rows, sources = [], []
    for path in paths:
        try:
            values = json.loads(path.read_text(encoding='utf-8'))
            timed: Dict[Key, Dict[str, float]] = {}
            for row in values['networks']:
                architecture = Architecture.from_dict(row['architecture'], source=str(path))
                medians = {shape: float(times['median_ms']) for shape, times in row['shapes'].items()}
                timed.setdefault((architecture, row['engine'], row['precision']), medians)
            sources.append(
                {'file': str(path), **{n: values.get(n) for n in ('commit', 'machine', 'threads')}}
            )
        except (UnicodeDecodeError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                f'{path}: not the JSON of benchmarks/latency.py with the widths of every network '
                f'({type(error).__name__}: {error!s:.200})'
            ) from error
        rows.append(timed)
    return Times(tuple(rows), tuple(sources))


def networks_to_time(starts: Sequence[Point], groups: Sequence[Group]) -> List[str]:
    """What `benchmarks/latency.py` takes: the file of every architecture once, that which went in first,
    in both precisions.

    Raises
    ------
    FileNotFoundError
        If a run has not kept its networks.
    """
    points = [*starts, *(point for group in groups for rung in group.rungs for point in rung)]
    files = {point.architecture: point.file for point in reversed(points)}
    for file in files.values():
        if not file.is_file():
            raise FileNotFoundError(f'{file}: not there, so this network cannot be timed')
    ordered = [files[one] for one in dict.fromkeys(point.architecture for point in points)]
    suffixes = {'float32': '', 'int8': ':int8'}
    return [f'{file}{suffix}' for suffix in suffixes.values() for file in ordered]


def panels_of(starts: Sequence[Point], groups: Sequence[Group], times: Times, engine: str) -> List[Panel]:
    """A panel for every precision and shape that was timed, precision by precision.

    Raises
    ------
    ValueError
        If nothing was timed in this engine in a precision that is drawn, or not every network.
    """
    start = starts[0].architecture
    if engine not in times.engines():
        raise ValueError(
            f'engine: nothing was timed in {engine}; the files have {", ".join(times.engines())}'
        )
    panels = []
    for precision in PRECISIONS:
        first = times.of(start, start, engine, precision)
        if not first and any(key[1:] == (engine, precision) for rows in times.rows for key in rows):
            raise ValueError(f'the network before pruning was not timed in {engine} in {precision}')
        for shape, (start_ms, _) in first.items():
            batch, length = map(int, shape.split('x'))
            lines = tuple(_line(group, times, start, (engine, precision, shape)) for group in groups)
            score = Spread.of([point.score for point in starts])
            panels.append(Panel(batch, length, precision, start_ms, score, lines))
    if not panels:
        raise ValueError(f'engine: nothing was timed in {engine} in {" or ".join(PRECISIONS)}')
    return panels


def _line(group: Group, times: Times, start: Architecture, where: Tuple[str, str, str]) -> Line:
    """A group in the panel of an engine, a precision and a shape; ValueError if a network was not timed."""
    engine, precision, shape = where
    rungs = []
    for points in group.rungs:
        speedups = []
        for point in points:
            pair = times.of(point.architecture, start, engine, precision).get(shape)
            if pair is None:
                raise ValueError(
                    f'{point.file}: not timed at {shape} in {engine} in {precision}, or not in one file with '
                    'the network before pruning; --networks lists all that are to be timed'
                )
            speedups.append(pair[1] / pair[0])
        scores = [point.score for point in points]
        rungs.append(
            Rung(
                points[0].share,
                Spread.of(speedups),
                Spread.of(scores),
                Spread.of([point.lost for point in points]),
                len(points),
                tuple(zip(speedups, scores)),
            )
        )
    return Line(group.label, group.unit, tuple(rungs))
