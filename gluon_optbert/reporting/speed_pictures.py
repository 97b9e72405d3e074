"""Pictures, files and the part of a page that show what speed costs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..runs.display import markdown_table
from ..runs.files import write_file
from .figures import NARROW, STYLE, look, plain, save
from .networks import Run, read_json
from .speed import FORMAT, Line, Panel, Times, panels_of
from .speed_words import notes, sentences, table_of
from .task_runs import Group, Point

POINTS, TABLE, PICTURE = 'points.json', 'table.md', 'speed'
_START = '#333333'  # the network that went in


def draw_panels(panels: Sequence[Panel], quantity: str) -> Figure:
    """All panels: a row for each precision, a column for each shape."""
    rows = list(dict.fromkeys(panel.precision for panel in panels))
    columns = list(dict.fromkeys((panel.batch, panel.length) for panel in panels))
    figure = Figure(figsize=(5.2 * len(columns), 3.9 * len(rows) + 0.6))
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey=True)
    for axes in grid.ravel():
        axes.set_axis_off()
    for panel in panels:
        axes = grid[rows.index(panel.precision), columns.index((panel.batch, panel.length))]
        axes.set_axis_on()
        _draw_panel(axes, panel, limits=_limits(panels), labels=_labels(panels))
        axes.set_title(panel.title)
    for precision, row in zip(rows, grid):
        row[0].set_ylabel(_of_score(quantity, precision))
    _legend(figure)
    return figure


def draw_tasks(tasks: Sequence[Tuple[str, Panel]]) -> Figure:
    """A panel for each task, with what was scored above it: two in a row, one axis of speed, and every method
    in one colour.
    """
    panels = [panel for _, panel in tasks]
    columns = min(2, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows + 0.8))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(tasks) :]:
        axes.set_axis_off()
    for axes, (quantity, panel) in zip(grid, tasks):
        _draw_panel(axes, panel, limits=_limits(panels), labels=_labels(panels))
        axes.set_title(f'{plain(quantity)}, {panel.title}')
        axes.set_ylabel('percent' if panel.precision == 'float32' else 'percent, of the network in float32')
    _legend(figure)
    return figure


def draw_panel(panel: Panel, quantity: str) -> Figure:
    """One panel for a page, which has its title beside it."""
    figure = Figure(figsize=(NARROW, 4.6))
    axes = figure.add_subplot()
    _draw_panel(axes, panel, limits=_limits([panel]), labels=_labels([panel]))
    axes.set_ylabel(_of_score(quantity, panel.precision))
    _legend(figure)
    return figure


def _of_score(quantity: str, precision: str) -> str:
    """What the axis of scores shows, which were measured in float32."""
    return f'{plain(quantity)} (percent)' + ('' if precision == 'float32' else '\nof the network in float32')


def _limits(panels: Sequence[Panel]) -> Tuple[float, float]:
    """The least and the largest speed-up that fits all panels."""
    rungs = [rung for panel in panels for line in panel.lines for rung in line.rungs]
    values = [speedup for rung in rungs for speedup, _ in rung.each]
    least, most = min(1.0, *values), max(1.0, *values)
    edge = 0.06 * (most - least) or 0.1
    return max(least - edge, least / 2), most + edge


def _labels(panels: Sequence[Panel]) -> List[str]:
    """The methods of all panels; the place of one is that of its colour."""
    return list(dict.fromkeys(line.label for panel in panels for line in panel.lines))


def _legend(figure: Figure) -> None:
    """What the marks of all panels mean, once."""
    marks = {n: h for axes in figure.axes for h, n in zip(*axes.get_legend_handles_labels())}
    columns = 2 if figure.get_figwidth() > NARROW else 1
    figure.legend(marks.values(), marks.keys(), loc='outside lower center', ncol=columns)


def _draw_panel(axes: Axes, panel: Panel, *, limits: Tuple[float, float], labels: Sequence[str]) -> None:
    """Score against speed-up, a line for each method, from the network that went in on."""
    score = panel.start
    axes.axhline(score.mean, color=_START, linestyle='--', linewidth=1, zorder=1)
    if score.std:
        axes.axhspan(score.mean - score.std, score.mean + score.std, color=_START, alpha=0.08, linewidth=0)
    for line in panel.lines:
        _draw_line(axes, panel, line, labels.index(line.label))
    axes.plot(
        1, score.mean, marker='*', markersize=13, color=_START, linestyle='none', label='not pruned', zorder=6
    )
    axes.set_xlabel('times as fast as the network before pruning')
    axes.set_xlim(limits)
    _milliseconds(axes, panel.start_ms)


def _draw_line(axes: Axes, panel: Panel, line: Line, place: int) -> None:
    """The means of a method with their deviations, and the runs, pale."""
    style = look(place)
    means = [(rung.speedup.mean, rung.score.mean) for rung in line.rungs]
    axes.plot(*zip((1.0, panel.start.mean), *means), color=style['color'], linewidth=1.2, zorder=3)
    axes.errorbar(
        *zip(*means),
        xerr=[rung.speedup.std or 0.0 for rung in line.rungs],
        yerr=[rung.score.std or 0.0 for rung in line.rungs],
        linestyle='none',
        markersize=6,
        capsize=3,
        label=plain(line.label),
        zorder=5,
        **style,
    )
    each = [pair for rung in line.rungs if rung.repetitions > 1 for pair in rung.each]
    if each:
        axes.plot(*zip(*each), linestyle='none', markersize=3, alpha=0.35, zorder=4, **style)


def _milliseconds(axes: Axes, start_ms: float) -> None:
    """The times of the ticks, above."""
    low, high = axes.get_xlim()
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(ticks)
    above = axes.secondary_xaxis('top')
    above.set_xticks(ticks, [f'{start_ms / tick:.3g}' for tick in ticks])
    above.set_xlabel('milliseconds', fontsize=8)
    above.tick_params(labelsize=8, length=0)
    above.spines['top'].set_visible(False)


def summary(
    runs: Sequence[Run], starts: Sequence[Point], groups: Sequence[Group], times: Times, engine: str
) -> Dict[str, Any]:
    """All that is written and shown, as JSON values; ValueError if a network was not timed."""
    panels = panels_of(starts, groups, times, engine)

    def told(point: Point, method: str) -> Dict[str, Any]:
        keys = dict.fromkeys(key[1:] for rows in times.rows for key in rows if key[0] == point.architecture)
        measured: Dict[str, Dict[str, Any]] = {}
        for name, precision in keys:
            pairs = times.of(point.architecture, starts[0].architecture, name, precision)
            measured.setdefault(name, {})[precision] = {
                shape: {'ms': mine, 'ms_before_pruning': first} for shape, (mine, first) in pairs.items()
            }
        return {'method': method, **point.to_dict(), 'times': measured}

    pruned = [(group.label, point) for group in groups for rung in group.rungs for point in rung]
    return {
        'format': FORMAT,
        'quantity': runs[0].quantity,
        'instances': runs[0].rounds[0]['recovered'].get('instances'),
        'engine': engine,
        'sentences': sentences(panels),
        'notes': notes(runs[0], panels, engine),
        'table': table_of(starts, groups, panels),
        'points': [told(point, 'not pruned') for point in starts]
        + [told(point, label) for label, point in pruned],
        'panels': [dataclasses.asdict(panel) for panel in panels],
        'times': list(times.sources),
    }


def write(data: Mapping[str, Any], directory: Path) -> List[Path]:
    """The points, the table with the sentences, and the picture, from what `summary` gives."""
    panels = [Panel.from_dict(panel) for panel in data['panels']]
    rows = markdown_table(data['table']['head'], data['table']['rows'])
    lines = [f'- {sentence}' for sentence in data['sentences']]
    parts = [f'# {data["quantity"]} and speed', '\n'.join(lines), rows, *data['notes']]
    write_file(directory / POINTS, (json.dumps(data, indent=1) + '\n').encode())
    write_file(directory / TABLE, ('\n\n'.join(parts) + '\n').encode())
    with matplotlib.rc_context(STYLE):
        pictures = save(draw_panels(panels, data['quantity']), directory, PICTURE)
    return [directory / POINTS, directory / TABLE, *pictures]


def _parsed(path: Path, data: Mapping[str, Any]) -> Tuple[str, List[Panel]]:
    """What was scored, and all panels, of the points of `write`; ValueError if something is missing."""
    try:
        return str(data['quantity']), [Panel.from_dict(panel) for panel in data['panels']]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'{path / POINTS}: not the points of a plot ({error!s:.200})') from error


def read_tasks(paths: Sequence[Path], shape: str, precision: str) -> List[Tuple[str, Panel]]:
    """What was scored, and the panel of a shape such as ``8x128``, of each directory of `write`.

    Raises
    ------
    ValueError, FileNotFoundError
        If one is no such directory, has no such panel, or has the times of another engine.
    """
    tasks, engines = [], {}
    for path in paths:
        if not (path / POINTS).is_file():
            raise FileNotFoundError(f'{path / POINTS}: not there; give a directory that plot_tasks.py wrote')
        data = read_json(path / POINTS)
        quantity, all_panels = _parsed(path, data)
        panels = {(f'{panel.batch}x{panel.length}', panel.precision): panel for panel in all_panels}
        if (shape, precision) not in panels:
            known = ', '.join(' in '.join(key) for key in panels)
            raise ValueError(f'{path / POINTS}: has no times of {shape} in {precision}; it has {known}')
        engines.setdefault(data.get('engine'), path)
        tasks.append((quantity, panels[shape, precision]))
    if len(engines) > 1:
        found = ', '.join(f'{engine} in {path}' for engine, path in engines.items())
        raise ValueError(f'times of several engines cannot stand beside each other: {found}')
    return tasks


def write_together(tasks: Sequence[Tuple[str, Panel]], directory: Path) -> List[Path]:
    """The picture of all tasks."""
    with matplotlib.rc_context(STYLE):
        return save(draw_tasks(tasks), directory, PICTURE)
