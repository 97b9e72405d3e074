"""The widths across the layers, the gates before a cut, and the loss or score against the size of pruning
runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..runs.files import write_file
from .figures import MARKERS, NARROW, OKABE_ITO, STYLE, look, plain, save
from .pruned import (
    LETTERS,
    Letters,
    Network,
    Round,
    Run,
    by_quantity,
    loss_table,
    paper_networks,
    read_gates,
    score_table,
    value_of,
)

WIDTHS = {
    'f': ('Filters of the feed-forward block', 'f (filters)'),
    'a': ('Attention heads', 'a (heads)'),
    'k': ('Width of keys and queries', 'k (units per head)'),
    'v': ('Width of values', 'v (units per head)'),
}
NAMES = {'h': 'h (hidden units)', **{letter: label for letter, (_, label) in WIDTHS.items()}}
KEPT, REMOVED = OKABE_ITO[0], OKABE_ITO[4]


def draw_widths(letter: str, networks: Sequence[Network], title: str, *, narrow: bool = False) -> Figure:
    """One width across the layers, a line for each network; the first is the reference, dashed.

    Lines and marks grow smaller from first to last, so that equal ones stay visible; a hollow mark is an
    inferred width. A narrow figure is for a page, which has its title beside it."""
    figure = Figure(figsize=(NARROW, 3.9) if narrow else (7.6, 4.2))
    axes = figure.add_subplot()
    for i, network in enumerate(networks):
        _draw_network(axes, letter, network, place=i, count=len(networks))
    deepest = max(len(network.architecture.layers) for network in networks)
    axes.set(
        title='' if narrow else title,
        xlabel='encoder layer, from the input to the output',
        ylabel=WIDTHS[letter][1],
    )
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.03)
    axes.set_xlim(0.5, max(1, deepest) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=13, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    handles, names = axes.get_legend_handles_labels()
    if any(column == letter for network in networks for _, column in network.inferred):
        handles.append(_hollow())
        names.append('hollow: inferred')
    if narrow:
        figure.legend(handles, names, loc='outside lower center', ncol=2)
    else:
        axes.legend(handles, names, loc='center left', bbox_to_anchor=(1.01, 0.5))
    return figure


def _draw_network(axes: Axes, letter: str, network: Network, *, place: int, count: int) -> None:
    """The line of a network; the first of `count` networks is the reference."""
    values = [getattr(layer, letter) for layer in network.architecture.layers]
    numbers = np.arange(1, len(values) + 1)
    if place == 0:
        axes.plot(
            numbers, values, color='#555555', label=network.label, zorder=20, linestyle='--', linewidth=1
        )
        return
    colours = matplotlib.colormaps['viridis'](np.linspace(0.1, 0.8, max(2, count - 1)))
    style = {
        'color': colours[place - 1],
        'marker': MARKERS[(place - 1) % len(MARKERS)],
        'markersize': max(4, 12 - 3 * place),
    }
    axes.plot(numbers, values, label=network.label, zorder=2 + place, linewidth=max(1.2, 4 - place), **style)
    doubtful = [j for j in range(len(values)) if (j, letter) in network.inferred]
    axes.plot(
        numbers[doubtful],
        [values[j] for j in doubtful],
        linestyle='none',
        zorder=21,
        markerfacecolor='white',
        **style,
    )


def _hollow() -> Line2D:
    """A hollow mark for a legend."""
    return Line2D([], [], linestyle='none', marker='o', color='#555555', markerfacecolor='white')


def draw_alphas(gates: Sequence[Round], label: str) -> Figure:
    """Histograms of alpha: a row for each round, a column for each letter, the removed units on top of the
    others.

    All letters have one axis and the same bins, because Algorithm 1 ranks their units together.
    """
    figure = Figure(figsize=(12, 1.2 + 1.9 * len(gates)))
    grid = figure.subplots(len(gates), len(LETTERS), squeeze=False, sharex=True)
    edges = alpha_bins(gates)
    for row, (number, letters) in enumerate(gates):
        for column, letter in enumerate(LETTERS):
            axes = grid[row, column]
            _histogram(axes, letters, letter, edges)
            axes.set_title(f'{NAMES[letter]}\n' if row == 0 else '', fontsize=10)
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


def draw_round_alphas(letters: Letters, edges: np.ndarray) -> Figure:
    """The histograms of one round for a page, two beside each other; `edges` as `alpha_bins` gives them."""
    figure = Figure(figsize=(NARROW, 5.4))
    grid = figure.subplots(3, 2, sharex=True).ravel()
    for axes, letter in zip(grid, LETTERS):
        _histogram(axes, letters, letter, edges)
        axes.set_title(f'{NAMES[letter]}\n', fontsize=10)
        axes.set_ylabel('units')
        axes.set_xlabel(r'$\alpha$')
    grid[len(LETTERS) - 2].tick_params(labelbottom=True)  # no histogram stands below it
    grid[-1].set_axis_off()
    grid[-1].legend(*grid[0].get_legend_handles_labels(), loc='center')
    return figure


def alpha_bins(gates: Sequence[Round]) -> np.ndarray:
    """The edges of the bins that all rounds of a run share."""
    parts = [part for _, letters in gates for pair in letters.values() for part in pair]
    return np.histogram_bin_edges(np.concatenate(parts), bins=40)


def _histogram(axes: Axes, letters: Letters, letter: str, edges: np.ndarray) -> None:
    """The gates of a letter in a round, and the largest alpha that went in that round."""
    last = max((removed.max() for _, removed in letters.values() if len(removed)), default=None)
    stayed, removed = letters.get(letter, (np.zeros(0), np.zeros(0)))
    axes.hist([stayed, removed], bins=edges, stacked=True, color=[KEPT, REMOVED], label=['kept', 'removed'])
    if last is not None:
        axes.axvline(last, color='#333333', linestyle=':', linewidth=1, label=r'largest $\alpha$ removed')
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


def draw_losses(runs: Sequence[Run], *, narrow: bool = False) -> Optional[Figure]:
    """Held-out MLM loss, or the score of a task, against size, a line for each run; None if no network was
    evaluated.

    The runs decide by one quantity, as those of a group of `by_quantity` do. A narrow figure is for a page,
    which has its title beside it.
    """
    if not any(_points(run, name) for run in runs for name in ('recovered', 'after_cut')):
        return None
    figure = Figure(figsize=(NARROW, 4.4) if narrow else (7.6, 4.4))
    axes = figure.add_subplot()
    for i, run in enumerate(runs):
        _draw_run(axes, run, **look(i))
    of_task = runs[0].metric is not None
    axes.set(
        title='' if narrow else title_by_size(runs[0]),
        xlabel='parameters of embeddings and encoder (millions)',
        ylabel=f'{plain(runs[0].quantity)}{_counted(runs)}\n(percent)'
        if of_task
        else f'MLM loss on held-out text{_counted(runs)}\n(nats per masked token)',
    )
    handles, names = axes.get_legend_handles_labels()
    handles.append(_hollow())
    names.append(f'hollow: after the cut, before {"repairs and training" if of_task else "recovery"}')
    below = {'loc': 'upper center', 'bbox_to_anchor': (0.5, -0.17), 'ncol': 1 if narrow else 2}
    axes.legend(handles, names, **below)
    return figure


def title_by_size(run: Run) -> str:
    """What `draw_losses` shows of runs like this one."""
    return f'{"Held-out MLM loss" if run.metric is None else plain(run.quantity)} against size'


def _counted(runs: Sequence[Run]) -> str:
    """On how many instances was measured, where that is one number."""
    recovered = [row['recovered'] or {} for run in runs for row in run.rounds]
    instances = {row['instances'] for row in recovered if 'instances' in row}
    return f' ({instances.pop():,} instances)' if len(instances) == 1 else ''


def _points(run: Run, name: str) -> List[Tuple[float, float]]:
    """Millions of parameters, and held-out loss or score, of the rounds that were measured then."""
    measured = [(row['parameters'] / 1e6, value_of(row[name])) for row in run.rounds]
    return [(size, value) for size, value in measured if value is not None]


def _draw_run(axes: Axes, run: Run, *, color: str, marker: str) -> None:
    """The networks of a run after recovery, and after the cut, hollow, each pair joined."""
    for name, style in (
        ('recovered', {'label': plain(run.label), 'zorder': 4}),
        ('after_cut', {'linestyle': 'none', 'markerfacecolor': 'white', 'zorder': 3}),
    ):
        points = _points(run, name)
        if points:
            axes.plot(*zip(*points), color=color, marker=marker, markersize=6, **style)
    for row in run.rounds:
        pair = [value_of(row[name]) for name in ('after_cut', 'recovered')]
        if None not in pair:
            size = row['parameters'] / 1e6
            axes.plot([size] * 2, pair, color=color, linestyle=':', linewidth=1, zorder=2)


def plot(runs: Sequence[Run], output: Path, *, paper: bool) -> Tuple[List[Path], List[str]]:
    """Draw everything; what was written, and what could not be drawn and why."""
    written, left_out = [], []
    networks = [run.networks() for run in runs]  # all is read before the first file is written
    gates = [read_gates(run) for run in runs]
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
                left_out.append(
                    f'no histogram of alpha for {run.path}: its gates were not trained, or not kept'
                )
        for group in by_quantity(runs):
            drawing, name = draw_losses(group), name_by_size(group[0], runs)
            if drawing is None:
                left_out.append('no loss against size: no network of these runs was evaluated')
                continue
            written += save(drawing, output, name)
            rows = loss_table(group) if group[0].metric is None else score_table(group)
            write_file(output / f'{name}.md', rows.encode())
    return written, left_out


def name_by_size(run: Run, runs: Sequence[Run]) -> str:
    """The name of the files that show runs like this one; with several tasks it says which."""
    if run.metric is None:
        return 'loss_by_size'
    several = len({one.quantity for one in runs if one.metric is not None}) > 1
    return f'score_by_size_{re.sub("[^A-Za-z0-9]+", "_", run.quantity)}' if several else 'score_by_size'
