"""The widths across the layers, the gates before a cut, and the loss against the size of pruning runs."""

from __future__ import annotations

from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Tuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..runs.staging import write_file
from .figures import MARKERS, OKABE_ITO, STYLE, plain, save
from .pruned import LETTERS, Network, Run, loss_table, paper_networks, read_gates

WIDTHS = {
    'f': ('Filters of the feed-forward block', 'f (filters)'),
    'a': ('Attention heads', 'a (heads)'),
    'k': ('Width of keys and queries', 'k (units per head)'),
    'v': ('Width of values', 'v (units per head)'),
}
NAMES = {'h': 'h (hidden units)', **{letter: label for letter, (_, label) in WIDTHS.items()}}
KEPT, REMOVED = OKABE_ITO[0], OKABE_ITO[4]


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
