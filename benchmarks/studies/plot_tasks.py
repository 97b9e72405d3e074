"""Plot what speed costs: the scores of networks that were pruned for one task against their measured times.

Give runs of run_prune.py. Runs of one method, with the same repairs and training, repeat each other: the plot
has their mean and standard deviation. The times come from benchmarks/latency.py:

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
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from points import (
    check_alike,
    gather,
    parser_of,
    paths_of,
    read_if_there,
    read_points,
    write_picture,
    write_points,
)

from gluon_optbert.reporting.figures import NARROW, STYLE, look, plain
from gluon_optbert.reporting.networks import in_millions, read_run
from gluon_optbert.runs.command_line import command
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
PRECISIONS = ('float32', 'int8')  # that are drawn, a row of panels each
NOTES = (
    'A sentence names, for each size, the method with the highest mean score over its runs. It was chosen by '
    'the scores that are shown here, so it may owe a part of its lead to chance.',
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
    rows: tuple[Mapping[str, Any], ...]
    starts: tuple[Mapping[str, Any], ...]

    def scores(self) -> list[float]:
        """In percent."""
        return [score_of(row) for row in self.rows]

    def lost(self) -> tuple[float, float | None]:
        """Points that they score less than the networks that went in, and the standard error."""
        return less(self.starts, self.rows)


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
                f'a network of {row["parameters"]:,} parameters has no time in {self.engine} at {self.title} '
                'from a file with the network before pruning; --networks lists all that are to be timed'
            ) from None

    def speedups(self, size: Size) -> list[float]:
        """How many times as fast every network is as the one before pruning."""
        return [first / own for own, first in map(self.pair, size.rows)]


@dataclasses.dataclass(frozen=True)
class Study:
    """What is plotted: what was scored, the networks that went in, every size, and every panel."""

    quantity: str
    starts: tuple[Mapping[str, Any], ...]
    sizes: tuple[Size, ...]
    panels: tuple[Panel, ...]


def score_of(row: Mapping[str, Any]) -> float:
    """The score that counts of a round."""
    return row['recovered']['scores'][row['recovered']['metric']]


def less(those: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> tuple[float, float | None]:
    """Points that some rounds score less than others, pair by pair, and the standard error: that of the runs,
    and of the instances where the runs say which were right.
    """
    gains = [score_of(one) - score_of(row) for one, row in zip(those, rows)]
    marks = ([one['recovered'].get('right') or '' for one in side] for side in (those, rows))
    return float(np.mean(gains)), paired_error(gains, *marks)


def label_of(recipe: Mapping[str, Any]) -> str:
    """Method, rounds, repairs and training: ``Fisher scores, 3 rounds, repaired, no training``."""
    repairs = {(True, True): 'repaired', (False, True): 'reconstructed', (True, False): 'rotated'}
    parts = [
        METHODS.get(recipe['method'], recipe['method']),
        f'{recipe["rounds"]} rounds' if recipe['rounds'] > 1 and not recipe.get('targets') else None,
        repairs.get((bool(recipe.get('rotate_heads')), bool(recipe.get('reconstruct')))),
        'no training' if recipe.get('steps') == 0 else 'with training',
    ]
    return ', '.join(part for part in parts if part)


def sizes_of(runs: Mapping[str, Mapping[str, Any]]) -> list[Size]:
    """The sizes of every method, the largest first; ValueError if runs of one differ in another setting, or
    two of a size have the same seed.
    """
    found: dict[str, dict[tuple[float, int], list[tuple[str, Mapping[str, Any]]]]] = {}
    for name, run in runs.items():
        recipe = run['recipe']
        shares = recipe.get('targets') or [recipe['target']]  # whose earlier rounds are on the way to it
        for row, share in zip(run['rounds'][-len(shares) :], shares):
            rungs = found.setdefault(label_of(recipe), {})
            rungs.setdefault((-share, row['round']), []).append((name, row))
    sizes = []
    for label, rungs in found.items():
        members = [name for rung in rungs.values() for name, _ in rung]
        check_alike(label, {name: runs[name]['recipe'] for name in members})
        for (share, _), members in sorted(rungs.items()):
            recipes = [runs[name]['recipe'] for name, _ in members]
            if len({(recipe['seed'], recipe['model']) for recipe in recipes}) < len(members):
                names = ' and '.join(name for name, _ in members)
                raise ValueError(f'{names}: the same method, size, network and seed; give one of them')
            starts = tuple(runs[name]['rounds'][0] for name, _ in members)
            unit = UNITS.get(recipes[0]['objective'], recipes[0]['objective'])
            sizes.append(Size(label, unit, -share, tuple(row for _, row in members), starts))
    return sizes


def study_of(points: Mapping[str, Any], patterns: Sequence[str], engine: str) -> Study:
    """What is plotted of the runs that some pattern means, in the order of their names."""
    runs = {
        name: run
        for name, run in sorted(points['runs'].items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not runs:
        raise ValueError(f'no run is called {" or ".join(patterns)}; there are {", ".join(points["runs"])}')
    firsts = {run['rounds'][0]['parameters'] for run in runs.values()}
    instances = {run['rounds'][0]['recovered'].get('instances') for run in runs.values()}
    if len(firsts) > 1 or len(instances) > 1:
        raise ValueError(
            'the runs began with other widths, or were scored on other instances; plot them apart'
        )
    starts = {
        (run['recipe']['model'], score_of(run['rounds'][0])): run['rounds'][0]
        for run in reversed(list(runs.values()))
    }
    start = next(iter(runs.values()))['rounds'][0]
    times = start.get('times', {}).get(engine, {})
    panels = [
        Panel(shape, precision, engine) for precision in PRECISIONS for shape in times.get(precision, {})
    ]
    if not panels:
        known = ', '.join(start.get('times', {}))
        raise ValueError(
            f'the network before pruning was not timed in {engine}; there is {known or "nothing"}'
        )
    return Study(points['quantity'], tuple(reversed(starts.values())), tuple(sizes_of(runs)), tuple(panels))


def percent(share: float) -> str:
    """A share for people: ``50 %``."""
    return f'{share:.0%}'.replace('%', ' %')


def sentences(study: Study) -> list[str]:
    """For every panel and size, what the method with the highest mean score costs."""
    methods = [label.partition(',')[0] for label in dict.fromkeys(size.label for size in study.sizes)]
    of_size: dict[tuple[str, float], list[Size]] = {}
    for size in study.sizes:
        of_size.setdefault((size.unit, -round(size.share, 2)), []).append(size)
    said = []
    for panel in study.panels:
        for _, some in sorted(of_size.items()):
            best = max(some, key=lambda one: (spread(one.scores())[0], spread(panel.speedups(one))[0]))
            method = best.label.partition(',')[0]
            name = method if methods.count(method) == 1 else f'{best.label},'
            speedup, (points, error) = spread(panel.speedups(best))[0], best.lost()
            batch, length = panel.shape.split('x')
            fast = f'are {speedup:.1f} times as fast'
            if speedup < 0.95:
                fast = f'take {1 / speedup:.1f} times as long'
            lost = f'for {max(points, 0):.1f} points'
            if points <= -0.05:
                lost = f'and score {-points:.1f} points more'
            lost += '' if error is None else f' ± {error:.1f}'
            runs = f'{len(best.rows)} run{"s" * (len(best.rows) > 1)}'
            runs += '' if panel.precision == 'float32' else '; scored in float32'
            said.append(
                f'At {batch} sequence{"s" * (batch != "1")} of {length} tokens in {panel.precision}, {name} '
                f'{fast} {lost} ({percent(best.share)} of the {best.unit}, {runs}).'
            )
    return said


def page_of(study: Study, against: str | None = None) -> str:
    """The sentences, a row for the network that went in and for every size of every method, and notes. With
    the label of a method to stand against, how many points the others score more at its sizes.
    """
    there = {size.share: size for size in study.sizes if size.label == against}
    if against and not there:
        known = '; '.join(dict.fromkeys(size.label for size in study.sizes))
        raise ValueError(f'no method is called {against}; there are {known}')

    def text(values: Sequence[float]) -> str:
        return score_text(*spread(values), digits=2)

    first = study.starts[0]
    rows = [['not pruned', '', '', in_millions(first['parameters']), percent(1)]]
    rows[0] += [text([score_of(start) for start in study.starts]), *[''] * (1 + bool(against))]
    rows[0] += [f'{panel.pair(first)[0]:.3g} ms' for panel in study.panels]
    for size in study.sizes:
        parameters, flops = (np.mean([row[name] for row in size.rows]) for name in ('parameters', 'flops'))
        row = [size.label, f'{percent(size.share)} of the {size.unit}', str(len(size.rows))]
        row += [
            in_millions(parameters),
            percent(flops / first['flops']),
            text(size.scores()),
            score_text(*size.lost(), digits=2),
        ]
        if against:
            other = there.get(size.share)
            compared = other and other is not size and len(other.rows) == len(size.rows)
            row.append(score_text(*less(size.rows, other.rows), digits=2) if compared else '')
        rows.append(row + [f'{text(panel.speedups(size))} ×' for panel in study.panels])
    head = ['method', 'size', 'runs', 'parameters', 'FLOPs', 'score', 'points lost']
    head += [f'more than {against}'] if against else []
    head += [panel.title for panel in study.panels]
    notes = [note.format(engine=study.panels[0].engine) for note in NOTES]
    if all(panel.precision == 'float32' for panel in study.panels):
        del notes[2]
    measured = first['recovered']
    if measured.get('standard_error') is not None:
        notes.append(
            f'On {measured["instances"]:,} held-out instances, one score has a standard error of about '
            f'{measured["standard_error"]:.1f} points.'
        )
    said = '\n'.join(f'- {sentence}' for sentence in sentences(study))
    parts = [f'# {study.quantity} and speed', said, markdown_table(head, rows), *notes]
    return '\n\n'.join(parts) + '\n'


def draw(studies: Sequence[tuple[Study, Panel]], *, columns: int, together: bool) -> Figure:
    """Panels in rows of some columns: all of one study, or one of each of several tasks."""
    rows = -(-len(studies) // columns)
    height = 3.6 * rows + 0.8 if together else 3.9 * rows + 0.6
    figure = Figure(figsize=(5.2 * columns, height))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=not together).ravel()
    for axes in grid[len(studies) :]:
        axes.set_axis_off()
    values = [one for study, panel in studies for size in study.sizes for one in panel.speedups(size)]
    least, most = min(1.0, *values), max(1.0, *values)
    edge = 0.06 * (most - least) or 0.1
    labels = list(dict.fromkeys(size.label for study, _ in studies for size in study.sizes))
    for place, (axes, (study, panel)) in enumerate(zip(grid, studies)):
        _draw_panel(axes, study, panel, (max(least - edge, least / 2), most + edge), labels)
        scored_so = panel.precision == 'float32'
        if together:
            axes.set_title(f'{plain(study.quantity)}, {panel.title}')
            axes.set_ylabel('percent' if scored_so else 'percent, of the network in float32')
        else:
            axes.set_title(panel.title)
            if place % columns == 0:
                of = '' if scored_so else '\nof the network in float32'
                axes.set_ylabel(f'{plain(study.quantity)} (percent){of}')
    marks = {name: mark for axes in figure.axes for mark, name in zip(*axes.get_legend_handles_labels())}
    wide = figure.get_figwidth() > NARROW
    figure.legend(marks.values(), marks.keys(), loc='outside lower center', ncol=2 if wide else 1)
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
        y, y_error = zip(*(spread(size.scores()) for size in sizes))
        axes.plot((1.0, *x), (start, *y), color=style['color'], linewidth=1.2, zorder=3)
        axes.errorbar(
            x,
            y,
            xerr=[error or 0.0 for error in x_error],
            yerr=[error or 0.0 for error in y_error],
            linestyle='none',
            markersize=6,
            capsize=3,
            label=plain(label),
            zorder=5,
            **style,
        )
        for size in sizes:
            if len(size.rows) > 1:  # every run, pale
                runs = panel.speedups(size), size.scores()
                axes.plot(*runs, linestyle='none', markersize=3, alpha=0.35, zorder=4, **style)
    axes.plot(
        1, start, marker='*', markersize=13, color=START, linestyle='none', label='not pruned', zorder=6
    )
    axes.set_xlabel('times as fast as the network before pruning')
    axes.set_xlim(limits)
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
        values = read_if_there(file)
        if not isinstance(values, dict) or 'networks' not in values:
            raise ValueError(f'{file}: not the JSON of latency.py')
        sources[file.name] = {name: values.get(name) for name in ('commit', 'machine', 'threads')}
        timed = {
            (json.dumps(one['architecture']), one['engine'], one['precision']): one['shapes']
            for one in reversed(values['networks'])
        }
        for run in runs.values():
            start = json.dumps(run['rounds'][0]['architecture'])
            for row in run['rounds']:
                own = json.dumps(row['architecture'])
                for (widths, engine, precision), first in timed.items():
                    shapes = timed.get((own, engine, precision))
                    if widths != start or shapes is None:
                        continue
                    times = row.setdefault('times', {}).setdefault(engine, {}).setdefault(precision, {})
                    for shape in first:
                        if shape in shapes:
                            pair = [shapes[shape]['median_ms'], first[shape]['median_ms']]
                            times.setdefault(shape, pair)
    return sources


def points_of(paths: Sequence[Path], files: Sequence[Path]) -> dict[str, Any]:
    """Runs for one task with their times, as a file of points; ValueError if one was not for this task."""
    quantities = {path: read_run(path, path.name).quantity for path in paths}
    for path, quantity in quantities.items():
        if quantity != quantities[paths[0]] or quantity == 'MLM loss':
            raise ValueError(f'{path} was pruned for {quantity}; give runs for one task')
    found = gather(paths)
    return {'quantity': quantities[paths[0]], **found, 'times': with_times(found['runs'], files)}


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read runs and times or their points, write the directory, print the sentences."""
    parser = parser_of(__doc__)
    parser.add_argument(
        'runs', nargs='+', metavar='RUN', help='directories of runs; with --points patterns of names'
    )
    parser.add_argument('--times', default='', metavar='FILE,…', help='files of latency.py')
    parser.add_argument('--points', default='', metavar='FILE,…', help='files of points instead of --times')
    parser.add_argument('--networks', action='store_true', help='only print what is to be timed')
    parser.add_argument(
        '--against',
        metavar='LABEL',
        help='of one task: a method as the table calls it; how many points the others score more',
    )
    parser.add_argument('--engine', default='mxnet', help='whose times are drawn [default: mxnet]')
    parser.add_argument('--shape', default='8x128', help='of several tasks [default: 8x128]')
    parser.add_argument('--precision', default='float32', choices=PRECISIONS, help='of several tasks')
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
    files = paths_of(arguments.points)
    if files:
        studies = [study_of(read_points(file), arguments.runs, arguments.engine) for file in files]
    else:
        points = points_of([Path(run) for run in arguments.runs], paths_of(arguments.times))
        studies = [study_of(points, ['*'], arguments.engine)]
    with new_directory(arguments.output) as staged, matplotlib.rc_context(STYLE):
        if len(studies) > 1:
            panel = Panel(arguments.shape, arguments.precision, arguments.engine)
            figure = draw([(study, panel) for study in studies], columns=2, together=True)
        else:
            (study,) = studies
            write_file(staged / 'table.md', page_of(study, arguments.against).encode())
            columns = len({panel.shape for panel in study.panels})
            figure = draw([(study, panel) for panel in study.panels], columns=columns, together=False)
            print('\n'.join(sentences(study)))
        write_picture(figure, staged / 'speed.png')
        if not files:
            write_points({'recipe': {}, **points}, staged / 'points.json')
    print(f'wrote {arguments.output}')


if __name__ == '__main__':
    sys.exit(main())
