"""The measurements of a run, step by step: ``metrics.jsonl`` as data and as curves."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .figures import NARROW, OKABE_ITO, plain

GATES = 'gates'  # the phase that trains alpha
FEW_ROUNDS = 6  # with more, their numbers alone fit above a figure
TRAINED, HELD_OUT, GATED = OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[4]
SCORE = re.compile(r'\w+/\w+')  # held-out set and metric
PANELS = (
    ('mlm', 'mlm_loss', 'MLM loss\n(nats per masked token)'),
    ('nsp', 'nsp_loss', 'NSP loss\n(nats per instance)'),
    ('loss', None, 'loss of the labels'),
    ('scores', None, "loss of the\nteacher's scores"),
    ('states', None, 'difference of\nthe states'),
    ('last', None, 'difference of\nthe last states'),
    ('embeddings', None, 'difference of\nthe similarities'),
    ('cosine_distance', None, '1 - cosine of\nthe embeddings'),
    ('relations', None, 'divergence of\nthe relations'),
    ('penalty', None, 'penalty'),
    ('learning_rate', None, 'learning rate'),
)


@dataclasses.dataclass(frozen=True)
class Segment:
    """The records of one phase of one round, and the steps of the run before it."""

    phase: str
    round: Any
    start: int
    records: tuple[Mapping[str, Any], ...]

    @property
    def end(self) -> int:
        """The steps of the run up to here."""
        return self.start + self.records[-1]['step']

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Steps of the run and values, where there is one."""
        records = [one for one in self.records if isinstance(one.get(name), (int, float))]
        return [self.start + one['step'] for one in records], [one[name] for one in records]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a run; a last line that a killed run has left unfinished is passed over, and ValueError
    if another line is no record.
    """
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line, parse_int=_number)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f'{path}: line {number} is not JSON ({error})') from error
        values = record if isinstance(record, dict) else {}
        known = isinstance(values.get('phase'), str) and type(values.get('step')) is int
        if not known or isinstance(values.get('round'), (list, dict)):
            raise ValueError(
                f'{path}: line {number} has no phase and step, or a round that is no number, so this is not '
                'the metrics of a run'
            )
        records.append(record)
    return records


def _number(digits: str) -> float:
    """A whole number; one with more digits than an array holds as a float, which may be infinite."""
    return int(digits) if len(digits) < 19 else float(digits)


def segments_of(records: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """The phases of a run one after the other."""
    segments: list[Segment] = []
    for key, of_phase in itertools.groupby(records, lambda record: (record['phase'], record.get('round'))):
        start = segments[-1].end if segments else 0
        segments.append(Segment(*key, start, tuple(of_phase)))
    return segments


def draw_curves(segments: Sequence[Segment]) -> Figure | None:
    """Losses, penalty and learning rate over the steps of a run, its phases in a row; shaded where alpha is
    trained. None if nothing of this was measured.
    """
    panels = _panels({name for segment in segments for record in segment.records for name in record})
    if not panels:
        return None
    figure = Figure(figsize=(NARROW, 1.2 + 1.9 * len(panels)))
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (training, held_out, title) in zip(grid, panels):
        _draw_panel(axes, segments, training, held_out)
        axes.set_ylabel(title)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.set_xlim(0, 1.01 * max(segment.end for segment in segments))
    _mark_rounds(grid, segments)
    grid[-1].set_xlabel('steps')
    named = {name: handle for axes in grid for handle, name in zip(*axes.get_legend_handles_labels())}
    figure.legend(list(named.values()), list(named), loc='outside lower center', ncol=2)
    return figure


def _panels(names: Collection[str]) -> list[tuple[str, str | None, str]]:
    """The panels of what was measured: those of `PANELS`, and one for each score (``dev/accuracy``)."""
    scores = [
        ('', name, plain(name).replace('/', '/\n') + '\n(percent)')
        for name in sorted(names)
        if SCORE.fullmatch(name)
    ]
    return [panel for panel in PANELS if set(names) & set(panel[:2])] + scores


def _draw_panel(axes: Axes, segments: Sequence[Segment], training: str, held_out: str | None) -> None:
    """A measurement of training, and what it is called on held-out text, over all phases."""
    seen = set()
    for segment in segments:
        gated = segment.phase == GATES
        if gated:
            axes.axvspan(segment.start, segment.end, color=GATED, alpha=0.15, linewidth=0)
        trained = ('training alpha', GATED) if gated else ('training weights', TRAINED)
        for name, shown, colour in ((training, *trained), (held_out, 'held-out text', HELD_OUT)):
            steps, values = segment.series(name) if name else ([], [])
            few = name == held_out or len(steps) < 40
            if steps:
                axes.plot(
                    steps,
                    values,
                    linewidth=1.4,
                    marker='o' if few else None,
                    markersize=4,
                    color=colour,
                    label='_' if shown in seen else shown,
                )
                seen.add(shown)


def _mark_rounds(grid: Sequence[Axes], segments: Sequence[Segment]) -> None:
    """A line where a round begins, and its number above."""
    for first, second in zip(segments, segments[1:]):
        if first.round != second.round:
            for axes in grid:
                axes.axvline(second.start, color='#555555', linestyle=':', linewidth=1)
    starts = {segment.round: segment.start for segment in reversed(segments) if segment.round is not None}
    for number, start in starts.items():
        grid[0].annotate(
            plain(f'round {number}' if len(starts) <= FEW_ROUNDS else str(number)),
            (start, 1),
            xycoords=('data', 'axes fraction'),
            fontsize=8,
            xytext=(3, -9),
            textcoords='offset points',
            color='#555555',
        )


def speed(segments: Sequence[Segment]) -> list[list[Any]]:
    """Phase, round, steps, median tokens a second, median share of the time spent waiting for data; a row for
    each phase.
    """
    rows = []
    for segment in segments:
        medians = [
            float(np.median(values)) if values else None
            for values in (segment.series(name)[1] for name in ('tokens_per_second', 'data_wait'))
        ]
        rows.append([segment.phase, segment.round, segment.end - segment.start, *medians])
    return rows
