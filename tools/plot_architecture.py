"""Draw the widths across the layers, the gates and the loss against the size of pruning runs, and of the
paper.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import matplotlib
import numpy as np
from figures import MARKERS, OKABE_ITO, STYLE, in_millions, labels_of, plain, save
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.named import LAYER_TABLES, bert_base, published
from gluon_optbert.architecture.paper import load_table
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.staging import write_file

EXAMPLE = 'python tools/plot_architecture.py runs/pruned runs/random --paper --output plots'
LETTERS = 'hakvf'
WIDTHS = {
    'f': ('Filters of the feed-forward block', 'f (filters)'),
    'a': ('Attention heads', 'a (heads)'),
    'k': ('Width of keys and queries', 'k (units per head)'),
    'v': ('Width of values', 'v (units per head)'),
}
NAMES = {'h': 'h (hidden units)', **{letter: label for letter, (_, label) in WIDTHS.items()}}
KEPT, REMOVED = OKABE_ITO[0], OKABE_ITO[4]


@dataclasses.dataclass(frozen=True)
class Network:
    """One line of a plot of widths.

    Parameters
    ----------
    label : str
    architecture : Architecture
    inferred : frozenset of (int, str)
        Layers, counted from 0, and letters whose width is not certain.
    """

    label: str
    architecture: Architecture
    inferred: FrozenSet[Tuple[int, str]] = frozenset()


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished pruning run, as its ``rounds.json`` tells it."""

    path: Path
    label: str
    rounds: Tuple[Mapping[str, Any], ...]

    @property
    def slug(self) -> str:
        """The label as the beginning of a file name."""
        return self.label.replace('/', '-')

    def networks(self) -> List[Network]:
        """One per round, the network that went in first; the shares are of its parameters."""
        sizes = [row['parameters'] for row in self.rounds]
        networks = []
        for row, size in zip(self.rounds, sizes):
            architecture = Architecture.from_dict(row['architecture'], source=f'{self.path}/rounds.json')
            networks.append(Network(f'{in_millions(size)} ({size / sizes[0]:.0%})', architecture))
        return networks


def read_run(path: Path, label: str) -> Run:
    """The run in a directory.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is not there, not finished, or its rounds are not what pruning writes.
    """
    source = path / 'rounds.json'
    if not source.is_file():
        raise FileNotFoundError(f'{source}: not there; a pruning run writes it when it is finished')
    try:
        rows = json.loads(source.read_text(encoding='utf-8'))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f'{source}: not JSON ({error})') from error
    fields = {'round', 'parameters', 'architecture', 'after_cut', 'recovered'}
    if (
        not isinstance(rows, list)
        or not rows
        or not all(
            isinstance(row, dict)
            and fields <= set(row)
            and isinstance(row['parameters'], (int, float))
            and row['parameters'] > 0
            and all(isinstance(row[name] or {}, dict) for name in ('after_cut', 'recovered'))
            for row in rows
        )
    ):
        raise ValueError(f'{source}: wanted a list of rounds, each with {", ".join(sorted(fields))}')
    if len(rows) > 1 and rows[1].get(
        'before'
    ):  # measured as all others are; the network may have been on more instances
        rows[0] = {**rows[0], 'recovered': rows[1]['before']}
    return Run(path, label, tuple(rows))


def paper_networks() -> List[Network]:
    """BERT-base and the networks that optBERT gives layer by layer."""
    networks = [Network('BERT-base, 108M', bert_base())]
    for size, number in LAYER_TABLES.items():
        inferred = frozenset((one.row, one.column) for one in load_table(number).inferred)
        networks.append(Network(f'optBERT-all, {size}M', published(size), inferred))
    return networks


def draw_widths(letter: str, networks: Sequence[Network], title: str) -> Figure:
    """One width across the layers, a line for each network; the first is the reference, dashed.

    Lines and marks grow smaller from first to last, so that equal ones stay visible; a hollow mark is an
    inferred width."""
    figure = Figure(figsize=(7.6, 4.2))
    axes = figure.add_subplot()
    colours = matplotlib.colormaps['viridis'](np.linspace(0.1, 0.8, max(2, len(networks) - 1)))
    deepest = 1
    for i, network in enumerate(networks):
        values = [getattr(layer, letter) for layer in network.architecture.layers]
        numbers = np.arange(1, len(values) + 1)
        deepest = max(deepest, len(values))
        if i == 0:
            axes.plot(
                numbers, values, color='#555555', label=network.label, zorder=20, linestyle='--', linewidth=1
            )
            continue
        style = {
            'color': colours[i - 1],
            'marker': MARKERS[(i - 1) % len(MARKERS)],
            'markersize': max(4, 12 - 3 * i),
        }
        axes.plot(numbers, values, label=network.label, zorder=2 + i, linewidth=max(1.2, 4 - i), **style)
        doubtful = [j for j in range(len(values)) if (j, letter) in network.inferred]
        axes.plot(
            numbers[doubtful],
            [values[j] for j in doubtful],
            linestyle='none',
            zorder=21,
            markerfacecolor='white',
            **style,
        )
    axes.set(title=title, xlabel='encoder layer, from the input to the output', ylabel=WIDTHS[letter][1])
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.03)
    axes.set_xlim(0.5, deepest + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=13, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    handles, names = axes.get_legend_handles_labels()
    if any(column == letter for network in networks for _, column in network.inferred):
        handles.append(
            matplotlib.lines.Line2D(
                [], [], linestyle='none', marker='o', color='#555555', markerfacecolor='white'
            )
        )
        names.append('hollow: inferred')
    axes.legend(handles, names, loc='center left', bbox_to_anchor=(1.01, 0.5))
    return figure


def read_gates(run: Run) -> List[Tuple[int, Dict[str, Tuple[np.ndarray, np.ndarray]]]]:
    """The trained gates of every round.

    Returns
    -------
    list of (int, dict)
        The round, and by letter the alphas that stayed and those that were removed, over all layers; rounds
        whose gates were not trained are left out, and those whose directory was not kept.

    Raises
    ------
    ValueError
        If ``alphas.npz`` and ``selection.json`` cannot be read or do not belong together.
    """
    rounds = []
    for row in run.rounds[1:]:
        directory = run.path / f'round-{row["round"]}'
        if not directory.is_dir():  # a record without its models
            continue
        try:
            with np.load(directory / 'alphas.npz') as stored:
                alphas = {key: np.asarray(stored[key]) for key in stored.files}
            kept = json.loads((directory / 'selection.json').read_text(encoding='utf-8'))['kept']
            stays = {key: np.isin(np.arange(len(values)), kept[key]) for key, values in alphas.items()}
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f'{directory}: alphas.npz and selection.json are not those of a cut ({error!r})'
            ) from error
        if all((values == 1).all() for values in alphas.values()):
            continue
        by_letter = {}
        for letter in LETTERS:
            keys = [key for key in alphas if key[0] == letter]
            if keys:
                values, mask = (np.concatenate([part[key] for key in keys]) for part in (alphas, stays))
                by_letter[letter] = (values[mask], values[~mask])
        rounds.append((row['round'], by_letter))
    return rounds


def draw_alphas(
    gates: Sequence[Tuple[int, Mapping[str, Tuple[np.ndarray, np.ndarray]]]], label: str
) -> Figure:
    """Histograms of alpha: a row for each round, a column for each letter, the removed units on top of the
    others.

    All letters have one axis and the same bins, because Algorithm 1 ranks their units together.
    """
    figure = Figure(figsize=(12, 1.2 + 1.9 * len(gates)))
    grid = figure.subplots(len(gates), len(LETTERS), squeeze=False, sharex=True)
    edges = np.histogram_bin_edges(
        np.concatenate([part for _, letters in gates for pair in letters.values() for part in pair]), bins=40
    )
    for row, (number, letters) in enumerate(gates):
        last = max((removed.max() for _, removed in letters.values() if len(removed)), default=None)
        for column, letter in enumerate(LETTERS):
            axes = grid[row, column]
            stayed, removed = letters.get(letter, (np.zeros(0), np.zeros(0)))
            axes.hist(
                [stayed, removed], bins=edges, stacked=True, color=[KEPT, REMOVED], label=['kept', 'removed']
            )
            if last is not None:
                axes.axvline(
                    last, color='#333333', linestyle=':', linewidth=1, label=r'largest $\alpha$ removed'
                )
            axes.set_title(f'{NAMES[letter]}\n' if row == 0 else '', fontsize=10)
            axes.text(
                0.0,
                1.01,
                f'{len(removed):,} of {len(stayed) + len(removed):,} removed',
                transform=axes.transAxes,
                fontsize=8,
                va='bottom',
            )
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
            if column == 0:
                axes.set_ylabel(f'round {number}\nunits')
            if row == len(gates) - 1:
                axes.set_xlabel(r'$\alpha$')
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc='outside upper right', ncol=3)
    figure.suptitle(
        f'Trained gates before the cut, all layers together: {plain(label)}', x=0.01, ha='left', fontsize=11
    )
    return figure


def draw_losses(runs: Sequence[Run]) -> Optional[Figure]:
    """Held-out MLM loss against size, a line for each run; None if no network was evaluated."""
    figure = Figure(figsize=(7.6, 4.4))
    axes = figure.add_subplot()
    drawn, instances = False, set()
    for i, run in enumerate(runs):
        colour, marker = OKABE_ITO[i % len(OKABE_ITO)], MARKERS[i % len(MARKERS)]
        for name, style in (
            ('recovered', {'label': plain(run.label), 'zorder': 4}),
            ('after_cut', {'linestyle': 'none', 'markerfacecolor': 'white', 'zorder': 3}),
        ):
            points = [
                (row['parameters'] / 1e6, row[name]['mlm_loss'])
                for row in run.rounds
                if 'mlm_loss' in (row[name] or {})
            ]
            if points:
                axes.plot(*zip(*points), color=colour, marker=marker, markersize=6, **style)
                drawn = True
        for row in run.rounds:
            if all('mlm_loss' in (row[name] or {}) for name in ('after_cut', 'recovered')):
                axes.plot(
                    [row['parameters'] / 1e6] * 2,
                    [row[name]['mlm_loss'] for name in ('after_cut', 'recovered')],
                    color=colour,
                    linestyle=':',
                    linewidth=1,
                    zorder=2,
                )
        instances |= {
            row['recovered']['instances'] for row in run.rounds if 'instances' in (row['recovered'] or {})
        }
    if not drawn:
        return None
    counted = f' ({instances.pop():,} instances)' if len(instances) == 1 else ''
    axes.set(
        title='Held-out MLM loss against size',
        xlabel='parameters of embeddings and encoder (millions)',
        ylabel=f'MLM loss on held-out text{counted}\n(nats per masked token)',
    )
    handles, names = axes.get_legend_handles_labels()
    handles.append(
        matplotlib.lines.Line2D(
            [], [], linestyle='none', marker='o', color='#555555', markerfacecolor='white'
        )
    )
    axes.legend(
        handles,
        names + ['hollow: after the cut, before recovery'],
        loc='upper center',
        bbox_to_anchor=(0.5, -0.17),
        ncol=2,
    )
    return figure


def loss_table(runs: Sequence[Run]) -> str:
    """The networks of every run by size, with their held-out losses, as Markdown."""
    lines = [
        '| run | parameters | of the first | MLM loss after the cut | recovered | MLM accuracy | NSP '
        'accuracy |',
        '| --- | --- | --- | --- | --- | --- | --- |',
    ]
    for run in runs:
        for row in run.rounds:
            cut, recovered = row['after_cut'] or {}, row['recovered'] or {}
            cells = [
                f'{found[name]:.3f}' if name in found else ''
                for found, name in (
                    (cut, 'mlm_loss'),
                    (recovered, 'mlm_loss'),
                    (recovered, 'mlm_accuracy'),
                    (recovered, 'nsp_accuracy'),
                )
            ]
            share = row['parameters'] / run.rounds[0]['parameters']
            lines.append(
                f'| {run.label} | {in_millions(row["parameters"])} | {share:.1%} | '
                + ' | '.join(cells)
                + ' |'
            )
    return '\n'.join(lines) + '\n'


def plot(runs: Sequence[Run], output: Path, *, paper: bool) -> Tuple[List[Path], List[str]]:
    """Draw everything; what was written, and what could not be drawn and why."""
    written, left_out = [], []
    networks, gates = (
        [run.networks() for run in runs],
        [read_gates(run) for run in runs],
    )  # before the first file is written
    with matplotlib.rc_context(STYLE):
        if paper:
            for number, letter in enumerate('fakv', start=3):
                title = f'optBERT, Figure {number}: {WIDTHS[letter][0].lower()}, where published'
                written += save(draw_widths(letter, paper_networks(), title), output, f'paper_{letter}')
        for run, rounds, trained in zip(runs, networks, gates):
            for letter in 'fakv':
                written += save(
                    draw_widths(letter, rounds, f'{WIDTHS[letter][0]}: {plain(run.label)}'),
                    output,
                    f'{run.slug}_{letter}',
                )
            if trained:
                written += save(draw_alphas(trained, run.label), output, f'{run.slug}_alphas')
            else:
                left_out.append(f'no histogram of alpha for {run.path}: its gates were not trained')
        losses = draw_losses(runs) if runs else None
        if losses is not None:
            written += save(losses, output, 'loss_by_size')
            write_file(output / 'loss_by_size.md', loss_table(runs).encode())
        elif runs:
            left_out.append('no loss against size: no network of these runs was evaluated')
    return written, left_out


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Read the runs, draw, and say what was written."""
    parser = argparse.ArgumentParser(
        description=f'{__doc__}\n\nexample:\n  {EXAMPLE}',
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('runs', nargs='*', type=Path, metavar='RUN_DIR', help='finished pruning runs')
    parser.add_argument(
        '--paper',
        action='store_true',
        help='draw Figures 3 to 6 of optBERT, as far as the widths are published',
    )
    parser.add_argument(
        '--output',
        type=Path,
        required=True,
        metavar='DIR',
        help='where PNG and SVG files go; those of the same name are replaced',
    )
    given = parser.parse_args(argv)
    if not given.runs and not given.paper:
        raise ValueError('nothing to draw: give a RUN_DIR, --paper, or both')
    runs = [read_run(path, label) for path, label in zip(given.runs, labels_of(given.runs))]
    written, left_out = plot(runs, given.output, paper=given.paper)
    for line in left_out:
        print(line)
    print(
        f'wrote {len(written)} files to {given.output}: '
        + ', '.join(path.name for path in written if path.suffix == '.png')
        + ', each also as .svg'
        + (', and loss_by_size.md' if any(path.stem == 'loss_by_size' for path in written) else '')
    )


if __name__ == '__main__':
    sys.exit(main())
