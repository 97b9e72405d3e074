"""Compare ways of pruning one base: losses, errors and scores by size, in one table and one plot.

Every way has a name and its runs, which differ in seed and sizes only: names, or patterns such as paper-60-*,
of what points.py has gathered. What it does not have is left out. Scores after fine-tuning belong to the
networks whose weights have the checksum that they state.

example:
  python benchmarks/studies/points.py runs/* models/base scores/*.json --output points.json
  python benchmarks/studies/compare_pruning.py 'the paper=paper-*' 'repaired=all-*' --points points.json \\
      --controls 'not pruned=base' --output comparison"""

from __future__ import annotations

import dataclasses
import fnmatch
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from points import check_alike, legend_below, named, read_points, write_picture

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import ParameterCost, count_flops, shares_of_rounds
from gluon_optbert.reporting.figures import OKABE_ITO, look, plain
from gluon_optbert.reporting.networks import quantity_name
from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import new_directory, refuse_existing, write_file
from gluon_optbert.runs.progress import score_text, spread

LOSS, FLOPS, PAIRS = 'MLM loss, nats', 'FLOPs, %', 'pair similarity'
CUT, END = 'error after the cut', 'error at the end'
# What a table has before the scores, in this order; a plot has the loss and the scores.
COLUMNS = (FLOPS, 'MLM loss after the cut', 'MLM loss fitted', LOSS, 'MLM accuracy, %', CUT, END)
COLUMNS += ('cosine of embeddings', PAIRS)
AFTER = {'after_cut': 'MLM loss after the cut', 'after_reconstruction': 'MLM loss fitted'}
NOTE = (
    'Parameters and FLOPs are those of embeddings and encoder. ± is the standard deviation over runs that '
    'differ in nothing but the seed. Loss and accuracy are of masked tokens of held-out text.'
)
OF_ERRORS = (
    'Errors are those of the output of the last layer, relative to the network before the cut, on the hidden '
    'units that stayed: before recovery (after fitting, where layers were fitted), and at the end.'
)
OF_PAIRS = (
    'An embedding is the mean over the tokens of a held-out instance. Their cosine is that with the '
    'embedding before pruning, on the hidden units that stayed, as a mean over the instances. Pair '
    'similarity is the rank correlation of the cosines of all pairs of instances with those of the network '
    'before pruning.'
)


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that is compared: what was measured of it by the name of a column, the parameters of the
    network that went into its run, and that run, if it came out of one.
    """

    way: str
    parameters: int
    values: dict[str, float]
    sha256: str | None
    whole: int = 0
    run: str | None = None


@dataclasses.dataclass(frozen=True)
class Rung:
    """The networks that repeat each other, of one way and one size, and their share of the parameters."""

    way: str
    share: float
    networks: list[Network]

    def spread(self, name: str) -> tuple[float, float | None] | None:
        """Mean and sample deviation of a column; None if a network lacks it."""
        known = [network.values[name] for network in self.networks if name in network.values]
        return spread(known) if len(known) == len(self.networks) else None


def check_repetitions(way: str, recipes: Mapping[str, Mapping[str, Any]]) -> None:
    """ValueError if runs of one way differ in more than seed, sizes and steps, or two have both alike."""
    check_alike(way, recipes)
    seen: dict[Any, str] = {}
    for name, own in recipes.items():
        sizes = own.get('targets') or shares_of_rounds(own['target'], own['rounds'])
        same = seen.setdefault((tuple(sizes), own['seed']), name)
        if same != name:
            raise ValueError(f'{way}: {name} and {same} have the same sizes and seed')


def _of_mlm(measured: Mapping[str, Any]) -> dict[str, float]:
    names = {LOSS: ('mlm_loss', 1), 'MLM accuracy, %': ('mlm_accuracy', 100)}
    return {name: factor * measured[key] for name, (key, factor) in names.items() if key in measured}


def networks_of(way: str, name: str, run: Mapping[str, Any]) -> list[Network]:
    """The networks of all rounds of a run but the one that went in."""
    start, *rounds = run['rounds']
    networks = []
    for row in rounds:
        values = _of_mlm(row['recovered'] or {})
        for stage, column in AFTER.items():
            if 'mlm_loss' in (row.get(stage) or {}):
                values[column] = row[stage]['mlm_loss']
        if 'flops' in row:
            values[FLOPS] = 100 * row['flops'] / start['flops']
        for stage in run.get('stages', ()):
            column = {'cut': CUT, 'reconstructed': CUT, 'recovered': END}.get(stage['network'])
            if column and stage['round'] == row['round']:  # of the cut the last one counts
                values[column] = stage['error']
        if 'embeddings' in row:
            kept = row['embeddings']['recovered']
            values |= {'cosine of embeddings': kept['cosine'], PAIRS: kept['pair_similarity']}
        sizes = int(row['parameters']), int(start['parameters'])
        networks.append(Network(way, sizes[0], values, row.get('sha256'), sizes[1], name))
    return networks


def controls_of(controls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Network]:
    """Networks that were not pruned; their FLOPs are relative to the largest of them."""
    networks = []
    for way, network in controls:
        architecture = Architecture.from_dict(network['architecture'], source=way)
        values = {FLOPS: sum(count_flops(architecture, 128).values()), **_of_mlm(network['measured'])}
        parameters = int(ParameterCost().cost(architecture))
        networks.append(Network(way, parameters, values, network['sha256']))
    most = max((network.values[FLOPS] for network in networks), default=1)
    for network in networks:
        network.values[FLOPS] *= 100 / most
    return networks


def rungs_of(networks: Sequence[Network]) -> list[Rung]:
    """The networks by way and size, the largest first; sizes that differ by less than 2 % are one."""
    whole = max(max(network.parameters, network.whole) for network in networks)
    rungs: list[Rung] = []
    for network in networks:
        share = network.parameters / whole
        for rung in rungs:
            own_run = network.run and any(network.run == other.run for other in rung.networks)
            if rung.way == network.way and abs(rung.share - share) < 0.02 * rung.share and not own_run:
                rung.networks.append(network)
                break
        else:
            rungs.append(Rung(network.way, share, [network]))
    order = list(dict.fromkeys(network.way for network in networks))
    return sorted(rungs, key=lambda rung: (order.index(rung.way), -rung.share))


def columns_of(rungs: Sequence[Rung]) -> list[str]:
    """Columns of what was measured of some network: those of pre-training first, then scores."""
    found = {name for rung in rungs for network in rung.networks for name in network.values}
    return [name for name in COLUMNS if name in found] + sorted(found - set(COLUMNS))


def table_of(rungs: Sequence[Rung]) -> str:
    """A row for each way and size, and what has to be known of the columns, in Markdown."""
    names, rows = columns_of(rungs), []
    for rung in rungs:
        size = sum(network.parameters for network in rung.networks) / len(rung.networks)
        cells = []
        for name in names:
            found = rung.spread(name)
            cells.append(found and score_text(*found, digits=1 if name.endswith('%') else 3))
        rows.append([plain(rung.way), f'{size / 1e6:.1f} M', f'{rung.share:.0%}', len(rung.networks), *cells])
    head = ['network', 'parameters', 'left', 'runs', *names]
    parts = [markdown_table(head, rows, numbers=True), NOTE]
    parts += [OF_ERRORS] if {CUT, END} & set(names) else []
    parts += [OF_PAIRS] if PAIRS in names else []
    return '\n\n'.join(parts) + '\n'


def draw(rungs: Sequence[Rung]) -> Figure:
    """MLM loss and scores against the share of the parameters, a line for each way; networks that were not
    pruned are broken lines across it.
    """
    ways = [rung for rung in rungs if rung.networks[0].run]
    names = [
        name
        for name in columns_of(rungs)
        if (name == LOSS or name not in COLUMNS) and any(rung.spread(name) for rung in ways)
    ]
    panels = max(1, len(names))
    figure = Figure(figsize=(4.4 * panels, 4.6))
    for axes, name in zip(figure.subplots(1, panels, squeeze=False)[0], names):
        for place, rung in enumerate(rung for rung in rungs if rung not in ways):
            line = ('--', ':', '-.')[place % 3]
            colour = ('#333333', *OKABE_ITO[:4])[place // 3 % 5]
            if found := rung.spread(name):
                axes.axhline(found[0], color=colour, linestyle=line, linewidth=1.2, label=plain(rung.way))
        for place, way in enumerate(dict.fromkeys(rung.way for rung in ways)):
            shown = [(100 * rung.share, rung.spread(name)) for rung in ways if rung.way == way]
            shown = [(share, *found) for share, found in shown if found]
            if shown:
                x, mean, std = zip(*shown)
                errors = [deviation or 0.0 for deviation in std]
                style = {'linewidth': 1.2, 'markersize': 6, 'capsize': 3, **look(place)}
                axes.errorbar(x, mean, yerr=errors, label=plain(way), **style)
        axes.set_title(f'{name} ({"lower" if name == LOSS else "higher"} is better)')
        axes.set_xlabel('parameters left, %')
        axes.set_xlim(102, min(100 * rung.share for rung in rungs) - 5)
    columns = min(2, panels)  # two do not fit below a single panel
    figure.set_figheight(max(4.6, 3.2 + 0.23 * legend_below(figure, columns) / columns))
    return figure


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read everything, write the directory, print the table."""
    parser = Parser(__doc__)
    parser.add_argument('ways', nargs='+', metavar='NAME=RUN,RUN', help='a way of pruning, and its runs')
    parser.add_argument(
        '--controls',
        default='',
        metavar='NAME=NETWORK,…',
        help='networks that were not pruned, with commas between them; a name may come again',
    )
    parser.add_argument(
        '--points', type=Path, required=True, metavar='FILE', help='what points.py has gathered'
    )
    parser.add_argument('--tasks', help='of scores, with commas between them; without it all')
    parser.add_argument(
        '--plots',
        nargs='*',
        default=('parameters',),
        choices=('parameters',),
        help='what losses and scores are drawn against; none without a word behind it',
    )
    parser.add_argument('--output', type=Path, required=True, metavar='DIR', help='directory to write')
    arguments = parser.parse_args(argv)
    refuse_existing(arguments.output)
    points = read_points(arguments.points)
    controls = [named(text) for text in arguments.controls.split(',') if text]
    known = points['networks']
    networks = controls_of([(way, known[name]) for way, (name,) in controls if name in known])
    for way, patterns in map(named, arguments.ways):
        names = [name for pattern in patterns for name in sorted(fnmatch.filter(points['runs'], pattern))]
        check_repetitions(way, {name: points['runs'][name]['recipe'] for name in names})
        for name in names:
            networks += networks_of(way, name, points['runs'][name])
    if not any(network.run for network in networks):
        print(f'{arguments.points} has no run of these ways: nothing was written')
        return
    for score in points['scores'].values():
        if arguments.tasks is None or score['task'] in arguments.tasks.split(','):
            column = f'{quantity_name(score["task"], score["metric"])}, %'
            for network in networks:
                if network.sha256 == score['model_sha256']:  # several runs may have come to the same
                    network.values[column] = score['mean'][score['metric']]
    rungs = rungs_of(networks)
    with new_directory(arguments.output) as staged:
        write_file(staged / 'table.md', table_of(rungs).encode())
        if arguments.plots:
            write_picture(lambda: draw(rungs), staged / 'comparison.png')
    print(table_of(rungs))
    print(f'wrote {arguments.output}')


if __name__ == '__main__':
    sys.exit(main())
