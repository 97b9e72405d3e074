"""Tables of runs that pruned a network for its task, for a page: scores and times, a row for each network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List, Mapping, Sequence

from .page import Html, joined, table, tag
from .pruned import Run, value_of

NOTE = (
    'Scores are percent on held-out instances, each of one run. ± is the standard error: how far a score is '
    'off by the choice of these instances. Sizes count embeddings and encoder.'
)
TIMES = 'times.json'  # of a run
_SIZES = ('parameters, M', 'of the first', 'FLOPs at 128, G', 'of the first')


def rounds_with_scores(run: Run) -> Html:
    """The rounds of a run: size, FLOPs, and the score at every stage that some round has."""
    stages = {
        f'{run.quantity} before': 'before',
        'after the cut': 'after_cut',
        'reconstructed': 'after_reconstruction',
        'at the end': 'recovered',
    }
    named = {head: name for head, name in stages.items() if any(row.get(name) for row in run.rounds)}
    rows = [
        [row['round'], *_sizes(row, run), *(_text(row.get(name)) for name in named.values()), _lost(row, run)]
        for row in run.rounds
    ]
    return table(['round', *_SIZES, *named, 'points from the first'], rows)


def ends_of_runs(runs: Sequence[Run]) -> Html:
    """Every network of runs of one task; a network that several runs began with is there once."""
    rows: List[Any] = []
    starts: List[Any] = []
    for run in runs:
        start = (run.rounds[0]['architecture'], run.rounds[0]['recovered'])
        for row in run.rounds[1 if start in starts else 0 :]:
            cells = [row['round'], *_sizes(row, run), _text(row['recovered']), _lost(row, run)]
            rows.append(['not pruned' if row is run.rounds[0] else run.label, *cells])
        starts.append(start)
    return table(['run', 'round', *_SIZES, runs[0].quantity, 'points from the first'], rows)


def times_of_rounds(path: Path, run: Run) -> Html:
    """The times of a run's networks, which the run measured at its end, from its `TIMES`.

    Raises
    ------
    ValueError
        If the file does not have a time for every round.
    """
    try:
        times = json.loads(path.read_text(encoding='utf-8'))
        shapes, threads = times['milliseconds'], times['threads']
        rows = []
        for place, row in enumerate(run.rounds):
            cells = [row['round']]
            for values in shapes.values():
                cells += [float(values[place]), f'{values[0] / values[place]:.2f} ×']
            rows.append(cells)
    except (LookupError, TypeError, AttributeError, ValueError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f'{path}: not the times of the rounds ({error!s:.200})') from error
    head = [text for shape in shapes for text in (f'{shape.replace("x", " × ")} tokens, ms', 'times as fast')]
    note = f'Medians of exports with these widths and random weights. Threads: {threads}.'
    return joined([table(['round', *head], rows), tag('p', note, class_='note')])


def _sizes(row: Mapping[str, Any], run: Run) -> List[Any]:
    """The cells of `_SIZES`."""
    cells: List[Any] = []
    for name, unit in (('parameters', 1e6), ('flops', 1e9)):
        value, first = row.get(name), run.rounds[0].get(name)
        cells += [value / unit, f'{value / first:.1%}'] if value and first else [None, None]
    return cells


def _text(measured: Any) -> Any:
    """A score with its standard error, where that is known."""
    value = value_of(measured)
    if value is None:
        return None
    error = measured.get('standard_error')
    return f'{value:.2f}' + ('' if error is None else f' ± {error:.2f}')


def _lost(row: Mapping[str, Any], run: Run) -> Any:
    """The points that a network has more than the first of its run."""
    values = [value_of(one['recovered']) for one in (run.rounds[0], row)]
    return None if None in values or row is run.rounds[0] else f'{values[1] - values[0]:+.2f}'
