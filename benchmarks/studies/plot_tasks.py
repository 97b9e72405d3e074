"""Plot what speed costs: the scores of networks that were pruned for one task against their measured times.

Give runs of run_prune.py. Runs of one method, with the same repairs and training, repeat each other: the plot
has their mean. Upright bars are standard errors of the difference to the network before pruning, level ones
the standard deviation of times. The times come from benchmarks/latency.py:

  python benchmarks/studies/plot_tasks.py runs/sst2-* --networks > networks.txt
  python benchmarks/latency.py $(cat networks.txt) --output times.json
  python benchmarks/studies/plot_tasks.py runs/sst2-* --times times.json --output plots/sst2

The points of runs and times are written beside the table. With --points, such a file is read instead, and RUN
is a pattern; several files, of a task each, become one picture:

  python benchmarks/studies/plot_tasks.py '*-trained-*' --points sst2/points.json --output trained
  python benchmarks/studies/plot_tasks.py '*' --points sst2/points.json,mrpc/points.json --output together"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from points import check_alike, gather, legend_below, read_points, write_picture, write_points

from gluon_optbert.reporting.figures import look, plain
from gluon_optbert.reporting.networks import in_millions, read_run
from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import new_directory, refuse_existing, write_file
from gluon_optbert.runs.progress import paired_error, score_text, spread

METHODS = {
    'alpha': 'trained gates',
    'fisher': 'Fisher scores',
    'uniform': 'uniform widths',
    'uniform-alpha': 'uniform widths by trained gates',
    'magnitude': 'magnitudes',
    'random': 'random units',
    'layers': 'dropped layers',
    'blocks': 'dropped blocks',
    'heads': 'head scores',
}
UNITS = {'flops': 'FLOPs', 'latency': 'time'}
PRECISIONS = ('float32', 'int8')  # that are drawn
TOGETHER = '8x128', 'float32'  # what is drawn of several tasks
NOTES = (
    'Times are medians of exports of the encoder with these widths and random weights. "Times as fast" '
    'compares with the network before pruning in the same precision and engine ({engine}).',
    'Scores are those of the networks in float32; an int8 export may score less.',
    '± is the standard deviation over runs with other seeds or starting networks; behind a difference of '
    'scores, the standard error: that of the runs, and of the instances where the runs say which were right.',
)
START = '#333333'  # the network that went in


@dataclasses.dataclass(frozen=True)
class Size:
    """The networks of one method and one size, which repeat each other: a round of every run, and the
    networks that went into these runs.
    """

    label: str
    unit: str
    share: float
    rows: list[Mapping[str, Any]]
    starts: list[Mapping[str, Any]]

    def scores(self) -> list[float]:
        """In percent."""
        return [score_of(row) for row in self.rows]

    def lost(self) -> tuple[float, float | None]:
        """Points that they score less than the networks that went in, and the standard error."""
        gains = [score_of(start) - score_of(row) for start, row in zip(self.starts, self.rows)]
        marks = ([one['recovered'].get('right') or '' for one in side] for side in (self.starts, self.rows))
        return float(np.mean(gains)), paired_error(gains, *marks)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One shape, such as 8x128, in one precision and engine."""

    shape: str
    precision: str
    engine: str

    @property
    def title(self) -> str:
        """For people: ``8 × 128 tokens, int8``."""
        return f'{self.shape.replace("x", " × ")} tokens, {self.precision}'

    def pair(self, row: Mapping[str, Any]) -> Sequence[float]:
        """Milliseconds of a network, and of the one before pruning; ValueError if it was not timed."""
        try:
            return row['times'][self.engine][self.precision][self.shape]
        except KeyError:
            raise ValueError(
                f'a network of {row["parameters"]:,} parameters has no time in {self.engine} at '
                f'{self.title}, or the network before pruning has none; time what --networks lists'
            ) from None

    def speedups(self, size: Size) -> list[float]:
        """Speed of every network, as a multiple of that of the one before pruning."""
        return [first / own for own, first in map(self.pair, size.rows)]


@dataclasses.dataclass(frozen=True)
class Study:
    """Contents of the plots: what was scored, the networks that went in, every size, and every panel."""

    quantity: str
    starts: list[Mapping[str, Any]]
    sizes: list[Size]
    panels: list[Panel]


def score_of(row: Mapping[str, Any]) -> float:
    """The score that counts of a round."""
    return row['recovered']['scores'][row['recovered']['metric']]


def label_of(recipe: Mapping[str, Any]) -> str:
    """What a run does, for people: ``trained gates, γ = 0.03, 3 rounds, repaired, no training``."""
    repairs = {(True, True): 'repaired', (False, True): 'reconstructed', (True, False): 'rotated'}
    parts = [
        METHODS.get(recipe['method'], recipe['method']),
        f'γ = {recipe["gamma"]:g}' if 'alpha' in recipe['method'] else None,
        f'multiples of {recipe["multiple_of"]}' if recipe.get('multiple_of', 1) > 1 else None,
        f'{recipe["rounds"]} rounds' if recipe['rounds'] > 1 and not recipe.get('targets') else None,
        repairs.get((bool(recipe.get('rotate_heads')), bool(recipe.get('reconstruct')))),
        'no training' if recipe.get('steps') == 0 else 'with training',
    ]
    return ', '.join(part for part in parts if part)


def sizes_of(runs: Mapping[str, Mapping[str, Any]]) -> list[Size]:
    """The sizes of every method, the largest first; ValueError if runs of one differ in another setting."""
    found: dict[str, dict[tuple[float, int], list[tuple[str, Mapping[str, Any]]]]] = {}
    for name, run in runs.items():
        shares = run['recipe'].get('targets') or [run['recipe']['target']]
        rungs = found.setdefault(label_of(run['recipe']), {})
        for row, share in zip(run['rounds'][-len(shares) :], shares):  # the rounds before are on the way
            rungs.setdefault((-share, row['round']), []).append((name, row))
    sizes = []
    for label, rungs in found.items():
        names = [name for members in rungs.values() for name, _ in members]
        check_alike(label, {name: runs[name]['recipe'] for name in names})
        unit = runs[names[0]]['recipe']['objective']
        for (share, _), members in sorted(rungs.items()):
            recipes = [runs[name]['recipe'] for name, _ in members]
            if len({(recipe['seed'], recipe['model']) for recipe in recipes}) < len(members):
                raise ValueError(f'{label}: two runs have the same size, network and seed; give one of them')
            rows = [row for _, row in members]
            starts = [runs[name]['rounds'][0] for name, _ in members]
            sizes.append(Size(label, UNITS.get(unit, unit), -share, rows, starts))
    return sizes


def study_of(points: Mapping[str, Any], patterns: Sequence[str], engine: str) -> Study:
    """Contents of the plots of the runs that some pattern means, in the order of their names."""
    runs = {
        name: run
        for name, run in sorted(points['runs'].items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not runs:
        raise ValueError(f'no run is called {" or ".join(patterns)}; there are {", ".join(points["runs"])}')
    first = [run['rounds'][0] for run in runs.values()]
    if len({(row['parameters'], row['recovered'].get('instances')) for row in first}) > 1:
        raise ValueError('the runs began with other widths, or were scored on other instances')
    starts = {}
    for run in runs.values():
        start = run['rounds'][0]
        starts.setdefault((run['recipe']['model'], score_of(start)), start)
    times = first[0].get('times', {}).get(engine, {})
    panels = [
        Panel(shape, precision, engine) for precision in PRECISIONS for shape in times.get(precision, {})
    ]
    if not panels:
        raise ValueError(f'the network before pruning was not timed in {engine}; --networks lists it')
    return Study(points['quantity'], list(starts.values()), sizes_of(runs), panels)


def percent(share: float) -> str:
    """A share for people: ``50 %``."""
    return f'{share:.0%}'.replace('%', ' %')


def page_of(study: Study) -> str:
    """A row for the network that went in and for every size of every method, and notes."""

    def text(values: Sequence[float]) -> str:
        return score_text(*spread(values), digits=2)

    first = study.starts[0]
    row = ['not pruned', '', '', in_millions(first['parameters']), percent(1)]
    row += [text([score_of(start) for start in study.starts]), '']
    rows = [row + [f'{panel.pair(first)[0]:.3g} ms' for panel in study.panels]]
    for size in study.sizes:
        parameters, flops = (np.mean([row[name] for row in size.rows]) for name in ('parameters', 'flops'))
        row = [size.label, f'{percent(size.share)} of the {size.unit}', len(size.rows)]
        row += [in_millions(parameters), percent(flops / first['flops'])]
        row += [text(size.scores()), score_text(*size.lost(), digits=2)]
        rows.append(row + [f'{text(panel.speedups(size))} ×' for panel in study.panels])
    head = ['method', 'size', 'runs', 'parameters', 'FLOPs', 'score', 'points lost']
    head += [panel.title for panel in study.panels]
    notes = [note.format(engine=study.panels[0].engine) for note in NOTES]
    if all(panel.precision == 'float32' for panel in study.panels):
        del notes[1]
    measured = first['recovered']
    if measured.get('standard_error') is not None:
        notes.append(
            f'On {measured["instances"]:,} held-out instances, one score has a standard error of about '
            f'{measured["standard_error"]:.1f} points.'
        )
    return '\n\n'.join([f'# {study.quantity} and speed', markdown_table(head, rows), *notes]) + '\n'


def draw(drawn: Sequence[tuple[Study, Panel]]) -> Figure:
    """A panel of a study each, two in a row."""
    rows = -(-len(drawn) // 2)
    figure = Figure(figsize=(10.4, 3.6 * rows + 0.8))
    grid = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes in grid[len(drawn) :]:
        axes.set_axis_off()
    values = [one for study, panel in drawn for size in study.sizes for one in panel.speedups(size)]
    least, most = min(1.0, *values), max(1.0, *values)
    edge = 0.06 * (most - least) or 0.1
    labels = list(dict.fromkeys(size.label for study, _ in drawn for size in study.sizes))
    for axes, (study, panel) in zip(grid, drawn):
        _draw_panel(axes, study, panel, (max(least - edge, least / 2), most + edge), labels)
        axes.set_title(f'{plain(study.quantity)}, {panel.title}')
        axes.set_ylabel('percent')
    legend_below(figure, 2)
    return figure


def _draw_panel(
    axes: Axes, study: Study, panel: Panel, limits: tuple[float, float], labels: Sequence[str]
) -> None:
    """Score against speed-up, a line for each method, from the network that went in on."""
    start, deviation = spread([score_of(row) for row in study.starts])
    axes.axhline(start, color=START, linestyle='--', linewidth=1, zorder=1)
    if deviation:
        axes.axhspan(start - deviation, start + deviation, color=START, alpha=0.08, linewidth=0)
    for label in dict.fromkeys(size.label for size in study.sizes):
        style = look(labels.index(label))
        sizes = [size for size in study.sizes if size.label == label]
        x, x_error = zip(*(spread(panel.speedups(size)) for size in sizes))
        y, y_error = zip(*((float(np.mean(size.scores())), size.lost()[1]) for size in sizes))
        axes.plot((1.0, *x), (start, *y), color=style['color'], linewidth=1.2, zorder=3)
        errors = {'xerr': [error or 0.0 for error in x_error], 'yerr': [error or 0.0 for error in y_error]}
        marks = {'linestyle': 'none', 'markersize': 6, 'capsize': 3, 'zorder': 5}
        axes.errorbar(x, y, **errors, **marks, label=plain(label), **style)
        for size in sizes:
            if len(size.rows) > 1:  # every run, pale
                runs = panel.speedups(size), size.scores()
                axes.plot(*runs, linestyle='none', markersize=3, alpha=0.35, zorder=4, **style)
    star = {'marker': '*', 'markersize': 13, 'color': START, 'linestyle': 'none', 'zorder': 6}
    axes.plot(1, start, label='not pruned', **star)
    axes.set(xlabel='times as fast as the network before pruning', xlim=limits)
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(*limits)
    ticks = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
    axes.set_xticks(ticks)
    above = axes.secondary_xaxis('top')
    above.set_xticks(ticks, [f'{panel.pair(study.starts[0])[0] / tick:.3g}' for tick in ticks])
    above.set_xlabel('milliseconds', fontsize=8)
    above.tick_params(labelsize=8, length=0)
    above.spines['top'].set_visible(False)


def with_times(runs: Mapping[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Give every network its times, from the first file that has it and the network before pruning; the
    sources of the times, by file.
    """
    sources = {}
    for file in files:
        values = json.loads(file.read_text(encoding='utf-8'))
        sources[file.name] = {name: values.get(name) for name in ('commit', 'machine', 'threads')}
        timed = {
            (json.dumps(one['architecture']), one['engine'], one['precision']): one['shapes']
            for one in reversed(values['networks'])
        }
        for run in runs.values():
            start = json.dumps(run['rounds'][0]['architecture'])
            for row, (of, engine, precision) in itertools.product(run['rounds'], timed):
                own = timed.get((json.dumps(row['architecture']), engine, precision))
                if of == start and own is not None:
                    times = row.setdefault('times', {}).setdefault(engine, {}).setdefault(precision, {})
                    for shape, first in timed[of, engine, precision].items():
                        if shape in own:
                            times.setdefault(shape, [own[shape]['median_ms'], first['median_ms']])
    return sources


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read runs and times or their points, write the directory, print the table."""
    parser = Parser(__doc__)
    parser.add_argument(
        'runs', nargs='+', metavar='RUN', help='directories of runs; with --points patterns of names'
    )
    parser.add_argument('--times', default='', metavar='FILE,…', help='files of latency.py')
    parser.add_argument('--points', default='', metavar='FILE,…', help='files of points instead of --times')
    parser.add_argument('--networks', action='store_true', help='only print what is to be timed')
    parser.add_argument('--engine', default='mxnet', help='whose times are drawn [default: mxnet]')
    parser.add_argument('--output', type=Path, metavar='DIR', help='directory to write')
    arguments = parser.parse_args(argv)
    if arguments.networks:
        files = []
        for path in map(Path, arguments.runs):
            rounds = gather([path])['runs'][path.name]['rounds']
            files += [f'{path}/round-{row["round"]}/model/architecture.json' for row in rounds]
        widths = {Path(file).read_bytes(): file for file in reversed(files)}  # each architecture once
        files = [file for file in files if file in widths.values()]
        print('\n'.join(f'{file}{suffix}' for suffix in ('', ':int8') for file in files))
        return
    if arguments.output is None:
        raise ValueError('--output is missing')
    refuse_existing(arguments.output)
    files, times = (
        [Path(name) for name in text.split(',') if name] for text in (arguments.points, arguments.times)
    )
    if files:
        studies = [study_of(read_points(file), arguments.runs, arguments.engine) for file in files]
    else:
        paths = [Path(run) for run in arguments.runs]
        points = {'quantity': read_run(paths[0], paths[0].name).quantity, **gather(paths)}
        points['times'] = with_times(points['runs'], times)
        studies = [study_of(points, ['*'], arguments.engine)]
    with new_directory(arguments.output) as staged:
        if len(studies) > 1:
            drawn = [(study, Panel(*TOGETHER, arguments.engine)) for study in studies]
        else:
            (study,) = studies
            drawn = [(study, panel) for panel in study.panels]
            write_file(staged / 'table.md', page_of(study).encode())
            print(page_of(study))
        write_picture(lambda: draw(drawn), staged / 'speed.png')
        if not files:
            write_points({'recipe': {}, **points}, staged / 'points.json')
    print(f'wrote {arguments.output}')


if __name__ == '__main__':
    sys.exit(main())
