"""Figures of pruning runs: widths across the layers, gates, and loss or score against size; their style."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use('Agg')

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ..runs.files import write_file
from ..runs.progress import CLOSED, OPEN
from .networks import (
    LETTERS,
    GateRecord,
    Letters,
    Network,
    Run,
    by_quantity,
    paper_networks,
    read_gates,
    size_table,
    value_of,
)

# told apart by the colour-blind
OKABE_ITO = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#999999')
MARKERS = 'osD^vPX*'
STYLE = {
    'font.size': 10,
    'axes.titlesize': 11,
    'axes.titlelocation': 'left',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'grid.color': '#e4e4e4',
    'axes.axisbelow': True,
    'legend.frameon': False,
    'figure.constrained_layout.use': True,
}
FORMATS = {'png': {'dpi': 160, 'metadata': {'Software': None}}, 'svg': {'metadata': {'Date': None}}}
LONGEST = 60  # characters of a name in a figure
NARROW = 5.0  # inches; a figure of a page, whose words can still be read on 400 pixels

WIDTHS = {
    'f': ('Filters of the feed-forward block', 'f (filters)'),
    'a': ('Attention heads', 'a (heads)'),
    'k': ('Width of keys and queries', 'k (units per head)'),
    'v': ('Width of values', 'v (units per head)'),
}
NAMES = {'h': 'h (hidden units)', **{letter: label for letter, (_, label) in WIDTHS.items()}}
KEPT, REMOVED = OKABE_ITO[0], OKABE_ITO[4]


def look(place: int) -> dict[str, str]:
    """Colour and marker of a line by its place, from 0; no two of the first 64 look alike."""
    colours = len(OKABE_ITO)
    marker = MARKERS[(place + place // colours) % len(MARKERS)]
    return {'color': OKABE_ITO[place % colours], 'marker': marker}


def plain(name: str) -> str:
    """Somebody else's name as a figure shows it: no formula, nothing that SVG cannot hold, not too long.

    A long name lacks its middle, because names that begin alike often end differently. Legends leave out
    what begins with an underscore, so a space stands before it.
    """
    name = re.sub(
        r'[\x00-\x1f\x7f-\x9f\ufffe\uffff]', '\ufffd', name.encode('utf-8', errors='replace').decode('utf-8')
    )
    if len(name) > LONGEST:
        end = LONGEST // 2
        name = f'{name[: LONGEST - end - 1]}…{name[-end:]}'
    return (' ' if name.startswith('_') else '') + name.replace('$', r'\$')


def drawn(figure: Figure, name: str, kind: str) -> bytes:
    """A figure as ``png`` or ``svg``, the same bytes for the same figure and name."""
    content = io.BytesIO()
    with matplotlib.rc_context({'svg.hashsalt': name}):
        figure.savefig(content, format=kind, **FORMATS[kind])
    return content.getvalue()


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG."""
    written = [directory / f'{name}.{kind}' for kind in FORMATS]
    for path in written:
        write_file(path, drawn(figure, name, path.suffix[1:]))
    return written


# Widths, gates and sizes of pruning runs


def draw_widths(letter: str, networks: Sequence[Network], title: str = '') -> Figure:
    """One width across the layers, a line for each network; the first is the reference, dashed.

    Lines and marks grow smaller from first to last, so that equal ones stay visible; a hollow mark is an
    inferred width. A page has the title beside the figure."""
    figure = Figure(figsize=(NARROW, 3.9))
    _draw_layers(figure, {letter: figure.add_subplot()}, networks, {letter: title})
    return figure


def draw_all_widths(networks: Sequence[Network], titles: Mapping[str, str]) -> Figure:
    """As `draw_widths`, the four widths of a layer in one figure, in the order of their titles."""
    figure = Figure(figsize=(2 * NARROW, 7.4))
    _draw_layers(figure, dict(zip(titles, figure.subplots(2, 2).ravel())), networks, titles)
    return figure


def _draw_layers(
    figure: Figure, grid: Mapping[str, Axes], networks: Sequence[Network], titles: Mapping[str, str]
) -> None:
    """The widths across the layers, each on its axes, and the legend that they share."""
    deepest = max(len(network.architecture.layers) for network in networks)
    for letter, axes in grid.items():
        for i, network in enumerate(networks):
            _draw_network(axes, letter, network, place=i, count=len(networks))
        label = 'encoder layer, from the input to the output'
        axes.set(title=titles[letter], xlabel=label, ylabel=WIDTHS[letter][1])
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.03)
        axes.set_xlim(0.5, max(1, deepest) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=13, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    inferred = any(column in grid for network in networks for _, column in network.inferred)
    named = _legend(next(iter(grid.values())), 'inferred' if inferred else '')
    figure.legend(*named, loc='outside lower center', ncol=2 if len(grid) == 1 else 4)


def _draw_network(axes: Axes, letter: str, network: Network, *, place: int, count: int) -> None:
    """The line of a network; the first of `count` networks is the reference."""
    values = [getattr(layer, letter) for layer in network.architecture.layers]
    numbers = np.arange(1, len(values) + 1)
    if place == 0:
        dashed = {'color': '#555555', 'zorder': 20, 'linestyle': '--', 'linewidth': 1}
        axes.plot(numbers, values, label=plain(network.label), **dashed)
        return
    colours = matplotlib.colormaps['viridis'](np.linspace(0.1, 0.8, max(2, count - 1)))
    style = {
        'color': colours[place - 1],
        'marker': MARKERS[(place - 1) % len(MARKERS)],
        'markersize': max(4, 12 - 3 * place),
    }
    thinner = {'zorder': 2 + place, 'linewidth': max(1.2, 4 - place)}
    axes.plot(numbers, values, label=plain(network.label), **thinner, **style)
    doubtful = [j for j in range(len(values)) if (j, letter) in network.inferred]
    heights = [values[j] for j in doubtful]
    axes.plot(numbers[doubtful], heights, linestyle='none', zorder=21, markerfacecolor='white', **style)


def _legend(axes: Axes, hollow: str) -> tuple[list[Any], list[str]]:
    """The handles and names of a legend; if a hollow mark means something, with that."""
    handles, names = axes.get_legend_handles_labels()
    if hollow:
        handles.append(Line2D([], [], linestyle='none', marker='o', color='#555555', markerfacecolor='white'))
        names.append(f'hollow: {hollow}')
    return handles, names


def draw_alphas(letters: Letters, edges: np.ndarray) -> Figure:
    """Histograms of alpha in one round, the removed units on top of the others; `edges` as `alpha_bins` gives
    them.

    All letters have one axis and the same bins, because Algorithm 1 ranks their units together.
    """
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


def alpha_bins(gates: Sequence[tuple[int, Letters]]) -> np.ndarray:
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
    counts = f'{len(removed):,} of {len(stayed) + len(removed):,} removed'
    axes.text(0.0, 1.01, counts, transform=axes.transAxes, fontsize=8, va='bottom')
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))


def draw_losses(runs: Sequence[Run], title: str = '') -> Figure | None:
    """Held-out MLM loss, or the score of a task, against size, a line for each run; None if no network was
    evaluated.

    The runs decide by one quantity, as those of a group of `by_quantity` do.
    """
    if not any(_points(run, name) for run in runs for name in ('recovered', 'after_cut')):
        return None
    figure = Figure(figsize=(NARROW, 4.4))
    axes = figure.add_subplot()
    for i, run in enumerate(runs):
        _draw_run(axes, run, **look(i))
    instances = {row.recovered.instances for run in runs for row in run.rounds if row.recovered}
    counted = f' ({instances.pop():,} instances)' if len(instances) == 1 else ''
    of_task = runs[0].metric is not None
    quantity = f'{plain(runs[0].quantity)}{counted}\n(percent)'
    axes.set(
        title=title,
        xlabel='parameters of embeddings and encoder (millions)',
        ylabel=quantity if of_task else f'MLM loss on held-out text{counted}\n(nats per masked token)',
    )
    hollow = f'after the cut, before {"repairs and training" if of_task else "recovery"}'
    axes.legend(*_legend(axes, hollow), loc='upper center', bbox_to_anchor=(0.5, -0.17), ncol=1)
    return figure


def title_by_size(run: Run) -> str:
    """The quantity that `draw_losses` draws of such runs."""
    return f'{"Held-out MLM loss" if run.metric is None else plain(run.quantity)} against size'


def _points(run: Run, name: str) -> list[tuple[float, float]]:
    """Millions of parameters, and held-out loss or score, of the rounds that were measured then."""
    measured = [(row.parameters / 1e6, value_of(getattr(row, name))) for row in run.rounds]
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
        pair = [value_of(row.after_cut), value_of(row.recovered)]
        if None not in pair:
            size = row.parameters / 1e6
            axes.plot([size] * 2, pair, color=color, linestyle=':', linewidth=1, zorder=2)


def plot(runs: Sequence[Run], output: Path, *, paper: bool) -> tuple[list[Path], list[str]]:
    """Draw everything; the files that were written, and a line for each figure that could not be drawn;
    ValueError, before the first is written, if two would have one name.
    """
    written, left_out = [], []
    slugs, groups = [run.label.replace('/', '-') for run in runs], by_quantity(runs)
    names = [f'{slug}_' for slug in ['paper'] * paper + slugs]
    names += [name_by_size(group[0], runs) for group in groups]
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(
            f'several drawings would be called {twice[0]}; plot one at a time, each to an --output of its own'
        )
    networks = [run.networks() for run in runs]  # all is read before the first file is written
    gates = [read_gates(run) for run in runs]
    with matplotlib.rc_context(STYLE):
        if paper:
            for number, letter in enumerate('fakv', start=3):
                title = f'optBERT, Figure {number}, where published'
                written += save(draw_widths(letter, paper_networks(), title), output, f'paper_{letter}')
        for run, slug, of_rounds, trained in zip(runs, slugs, networks, gates):
            for letter in 'fakv':
                written += save(draw_widths(letter, of_rounds, plain(run.label)), output, f'{slug}_{letter}')
            for number, letters in trained:
                name = f'{slug}_alphas_{number}'
                written += save(draw_alphas(letters, alpha_bins(trained)), output, name)
            if not trained:
                why = 'its gates were not trained, or not kept'
                left_out.append(f'no histogram of alpha for {run.path}: {why}')
        for group in groups:
            drawing, name = draw_losses(group, title_by_size(group[0])), name_by_size(group[0], runs)
            if drawing is None:
                left_out.append('no loss against size: no network of these runs was evaluated')
                continue
            written += save(drawing, output, name)
            write_file(output / f'{name}.md', size_table(group).encode())
    return written, left_out


def name_by_size(run: Run, runs: Sequence[Run]) -> str:
    """The name of the files that show runs like this one; with several tasks it says which."""
    if run.metric is None:
        return 'loss_by_size'
    several = len({one.quantity for one in runs if one.metric is not None}) > 1
    return 'score_by_size_' + re.sub(r'\W+', '_', run.quantity) if several else 'score_by_size'


# How gates went, round by round


def draw_gates(records: Sequence[GateRecord]) -> Figure:
    """Four measurements of the gates over the rounds, a line for each width.

    A hollow mark is a correlation that is no better than chance allows.
    """
    panels: dict[str, Callable[[GateRecord, str], float | None]] = {
        f'share of the gates\nbelow {CLOSED}': lambda one, key: one.closed[key] / max(1, one.units[key]),
        f'share of the gates\nabove {OPEN}': lambda one, key: one.open[key] / max(1, one.units[key]),
        'largest $\\alpha$\nthat went': lambda one, key: one.alpha_at_cut[key],
        'split-half\ncorrelation': lambda one, key: one.split_half[key],
    }
    figure = Figure(figsize=(NARROW, 8.2))
    grid = figure.subplots(len(panels), 1, sharex=True)
    for axes, (title, value) in zip(grid, panels.items()):
        for letter in LETTERS:
            measured = [(one, value(one, letter)) for one in records if letter in one.units]
            if measured:
                _draw_width(axes, letter, measured, hollow=axes is grid[-1])
        axes.set_ylabel(title)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    for axes in grid[:2]:
        axes.set_ylim(-0.03, 1.03)
    grid[-1].axhline(0, color='#555555', linewidth=0.8)
    numbers = [record.round for record in records]
    grid[-1].set_xticks(numbers)
    grid[-1].set_xlim(min(numbers) - 0.5, max(numbers) + 0.5)
    grid[-1].set_xlabel('round')
    hollow = 'no better than chance' if any(record.noise() for record in records) else ''
    figure.legend(*_legend(grid[0], hollow), loc='outside lower center', ncol=2)
    return figure


def _draw_width(
    axes: Axes, letter: str, measured: Sequence[tuple[GateRecord, float | None]], *, hollow: bool
) -> None:
    """The line of one width, moved a little sideways so that equal marks stay visible."""
    place = LETTERS.index(letter)
    style, shift = {**look(place), 'markersize': 6}, 0.05 * (place - (len(LETTERS) - 1) / 2)
    points = [(one.round + shift, height, one) for one, height in measured if height is not None]
    numbers, heights = [point[0] for point in points], [point[1] for point in points]
    axes.plot(numbers, heights, linewidth=1.2, label=NAMES[letter], **style)
    doubtful = [(number, height) for number, height, one in points if hollow and letter in one.noise()]
    if doubtful:
        axes.plot(*zip(*doubtful), linestyle='none', markerfacecolor='white', **style)


def draw_settling(records: Sequence[GateRecord]) -> Figure | None:
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
        if record.stopped != 'settled':
            axes.plot(*record.overlaps[-1], markerfacecolor='white', markersize=7, **style)
    axes.set(xlabel='steps of gate training', ylabel='smallest share of units in common\nover the window')
    axes.set_ylim(top=1.005)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    hollow = 'not settled' if any(record.stopped != 'settled' for record in followed) else ''
    figure.legend(*_legend(axes, hollow), loc='outside lower center', ncol=2)
    return figure
