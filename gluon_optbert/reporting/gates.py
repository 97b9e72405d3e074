"""How the gates of a run went, round by round: how many closed, how certain their ranking is, and when the
selection settled."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..runs.progress import CLOSED, GATES, OPEN
from .drawing import NAMES
from .figures import MARKERS, NARROW, OKABE_ITO, look
from .page import Html, joined, table, tag
from .pruned import LETTERS, Run

CLEAR = 2  # standard errors of a correlation: chance stays within so many in 95 of 100 cases
HEAD = (
    'round',
    'steps',
    'width',
    'gates',
    f'below {CLOSED}',
    f'above {OPEN}',
    'largest α that went',
    'split-half correlation',
)
Value = Optional[float]


@dataclasses.dataclass(frozen=True)
class WidthGates:
    """The gates of one width in a round, over all layers.

    Parameters
    ----------
    units : int
    closed, open : int
        Below `CLOSED` and above `OPEN` of where they started.
    alpha_at_cut : float, optional
        The largest that went; None if none did.
    split_half, split_half_error : float, optional
        The rank correlation between the halves of the data, and its standard error without any correlation.
    """

    units: int
    closed: int
    open: int
    alpha_at_cut: Value
    split_half: Value
    split_half_error: Value

    @property
    def by_chance(self) -> bool:
        """Whether the halves agree no better than chance allows."""
        return self.split_half is not None and self.split_half < CLEAR * (self.split_half_error or 0.0)


@dataclasses.dataclass(frozen=True)
class GateRecord:
    """What a round says of its gates.

    Parameters
    ----------
    round, steps : int
    settled : bool
        Whether training ended because the selection had settled.
    overlaps : tuple of (step, share)
        The smallest overlap of selections in the window before a step.
    widths : mapping of letter to WidthGates
    """

    round: int
    steps: int
    settled: bool
    overlaps: Tuple[Tuple[int, float], ...]
    widths: Mapping[str, WidthGates]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GateRecord:
        """A record as it stands in a file; ValueError, TypeError or KeyError if it is none."""
        fields = [field.name for field in dataclasses.fields(WidthGates)]
        widths = {
            letter: WidthGates(*(_number(values[name][letter]) for name in fields))
            for letter in LETTERS
            if letter in values['units']
        }
        overlaps = tuple((int(step), float(share)) for step, share in values['overlaps'])
        return cls(
            int(values['round']), int(values['steps']), values['stopped'] == 'settled', overlaps, widths
        )


def _number(value: Any) -> Any:
    if value is not None and type(value) not in (int, float):
        raise ValueError(f'not a number: {value!r:.80}')
    return value


def read_records(run: Run) -> List[GateRecord]:
    """What every round of a run says of its gates; rounds without trained gates are left out.

    Raises
    ------
    ValueError
        If a file is no such record.
    """
    records = []
    for row in run.rounds[1:]:
        path = Path(run.path) / f'round-{row["round"]}' / GATES
        if not path.is_file():
            continue
        try:
            records.append(GateRecord.from_dict(json.loads(path.read_text(encoding='utf-8'))))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f'{path}: not a record of gates ({error!r:.200})') from error
    return records


def draw_gates(records: Sequence[GateRecord]) -> Figure:
    """Four measurements of the gates over the rounds, a line for each width.

    A hollow mark is a correlation that is no better than chance allows.
    """
    panels: Sequence[Tuple[str, Callable[[WidthGates], Value]]] = (
        (f'share of the gates\nbelow {CLOSED}', lambda gates: gates.closed / max(1, gates.units)),
        (f'share of the gates\nabove {OPEN}', lambda gates: gates.open / max(1, gates.units)),
        ('largest $\\alpha$\nthat went', lambda gates: gates.alpha_at_cut),
        ('split-half\ncorrelation', lambda gates: gates.split_half),
    )
    figure = Figure(figsize=(NARROW, 8.2))
    grid = figure.subplots(len(panels), 1, sharex=True)
    for axes, (title, value) in zip(grid, panels):
        for place, letter in enumerate(LETTERS):
            _draw_width(axes, records, letter, value, place, hollow=axes is grid[-1])
        axes.set_ylabel(title)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    for axes in grid[:2]:
        axes.set_ylim(-0.03, 1.03)
    grid[-1].axhline(0, color='#555555', linewidth=0.8)
    numbers = [record.round for record in records]
    grid[-1].set_xticks(numbers)
    grid[-1].set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
    grid[-1].set_xlabel('round')
    handles, names = grid[0].get_legend_handles_labels()
    if any(gates.by_chance for record in records for gates in record.widths.values()):
        handles.append(Line2D([], [], linestyle='none', marker='o', color='#555555', markerfacecolor='white'))
        names.append('hollow: no better than chance')
    figure.legend(handles, names, loc='outside lower center', ncol=2)
    return figure


def _draw_width(
    axes: Axes,
    records: Sequence[GateRecord],
    letter: str,
    value: Callable[[WidthGates], Value],
    place: int,
    *,
    hollow: bool,
) -> None:
    """The line of one width, moved a little sideways so that equal marks stay visible."""
    known = [(record.round, record.widths[letter]) for record in records if letter in record.widths]
    points = [(number, value(gates), gates) for number, gates in known if value(gates) is not None]
    if not known:
        return
    style = {'color': OKABE_ITO[place], 'marker': MARKERS[place], 'markersize': 6}
    shift = 0.05 * (place - (len(LETTERS) - 1) / 2)
    axes.plot(
        [number + shift for number, _, _ in points],
        [height for _, height, _ in points],
        linewidth=1.2,
        label=NAMES[letter],
        **style,
    )
    doubtful = [(number + shift, height) for number, height, gates in points if hollow and gates.by_chance]
    if doubtful:
        axes.plot(*zip(*doubtful), linestyle='none', markerfacecolor='white', **style)


def draw_settling(records: Sequence[GateRecord]) -> Optional[Figure]:
    """The overlap of selections over the steps of gate training, a line for each round; None without any.

    The last mark of a round whose selection had not settled is hollow.
    """
    followed = [record for record in records if record.overlaps]
    if not followed:
        return None
    figure = Figure(figsize=(NARROW, 3.9))
    axes = figure.add_subplot()
    for place, record in enumerate(followed):
        style = look(place)
        axes.plot(*zip(*record.overlaps), markersize=4, linewidth=1.2, label=f'round {record.round}', **style)
        if not record.settled:
            axes.plot(*record.overlaps[-1], markerfacecolor='white', markersize=7, **style)
    axes.set(xlabel='steps of gate training', ylabel='smallest share of units in common\nover the window')
    axes.set_ylim(top=1.005)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    handles, names = axes.get_legend_handles_labels()
    if not all(record.settled for record in followed):
        handles.append(Line2D([], [], linestyle='none', marker='o', color='#555555', markerfacecolor='white'))
        names.append('hollow: not settled')
    figure.legend(handles, names, loc='outside lower center', ncol=2)
    return figure


def gates_table(records: Sequence[GateRecord]) -> Html:
    """The same measurements as numbers, and what the correlation is."""
    rows = [
        [
            record.round,
            record.steps,
            letter,
            gates.units,
            gates.closed,
            gates.open,
            *(None if value is None else f'{value:.2f}' for value in (gates.alpha_at_cut, gates.split_half)),
        ]
        for record in records
        for letter, gates in record.widths.items()
    ]
    note = (
        'The split-half correlation is the rank correlation within a width of two trainings of the gates, '
        'each on one half of the batches. Near 1, the data determine which units matter.'
    )
    return joined([table(HEAD, rows), tag('p', note, class_='note')])
