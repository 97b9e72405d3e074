"""The tables and the plot of benchmarks/latency.py, from what it measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from timed_networks import PEERS

from gluon_optbert.reporting.figures import FORMATS, OKABE_ITO, STYLE
from gluon_optbert.runs.display import markdown_table


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown, a line for each network and shape."""
    header = (
        'network, precision, parameters, on disk, peak memory, shape, GFLOP, median, 10 % – 90 %, GFLOP/s'
    )
    cells = []
    for row in rows:
        for shape, times in row['shapes'].items():
            work = row['gflop'][shape]
            cells.append(
                (
                    row['name'],
                    row['precision'],
                    f'{row["parameters"] / 1e6:.2f} M',
                    f'{row["size_mb"]:.1f} MB',
                    f'{row["peak_mb"]:.0f} MB',
                    shape,
                    f'{work:.2f}',
                    f'{times["median_ms"]:.2f} ms',
                    f'{times["p10_ms"]:.2f} – {times["p90_ms"]:.2f} ms',
                    f'{1e3 * work / times["median_ms"]:.0f}',
                    f'{times["median_ms"] / rows[0]["shapes"][shape]["median_ms"]:.3f}',
                    f'{work / rows[0]["gflop"][shape]:.3f}',
                )
            )
    columns = [*header.split(', '), 'time of the first', 'FLOPs of the first']
    if 'score' in rows[0]:
        columns.append('score')
        scores = [f'{row["score"]:.4f}' for row in rows for _ in row['shapes']]
        cells = [(*cell, score) for cell, score in zip(cells, scores)]
    return markdown_table(columns, cells)


def beside_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians alone and beside a busy program as Markdown."""
    cells = [
        (
            row['name'],
            row['precision'],
            shape,
            f'{row["shapes"][shape]["median_ms"]:.2f} ms',
            f'{times["median_ms"]:.2f} ms',
            f'{times["p10_ms"]:.2f} – {times["p90_ms"]:.2f} ms',
            f'{times["median_ms"] / row["shapes"][shape]["median_ms"]:.2f}',
        )
        for row in rows
        for shape, times in row['beside'].items()
    ]
    header = ['network', 'precision', 'shape', 'alone, median', 'beside a busy program', '10 % – 90 %']
    return markdown_table([*header, 'of alone'], cells)


def orders_table(rows: Sequence[Mapping[str, Any]], sentences: int) -> str:
    """Sentences a second by how they are padded, as Markdown."""
    cells = []
    for row in rows:
        seconds = {order: times['median_ms'] / 1e3 for order, times in row['texts'].items()}
        rates = [f'{sentences / value:.0f} / s' for value in seconds.values()]
        gain = f'{seconds["longest"] / seconds["sorted"]:.2f}'
        cells.append((row['name'], row['precision'], *rates, gain))
    header = [
        'network',
        'precision',
        'padded to the longest of all',
        'to the longest of each batch',
        'sorted',
    ]
    return markdown_table([*header, 'sorted over longest'], cells)


def fastest(rows: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """The fastest export with the widths of the first and the fastest peer, in each precision and shape."""
    pairs = []
    exports = [row for row in rows if row['name'] not in PEERS and row['same_widths']]
    for precision in dict.fromkeys(row['precision'] for row in rows):
        own = [row for row in exports if row['precision'] == precision]
        others = [row for row in rows if row['name'] in PEERS and row['precision'] == precision]
        for shape in rows[0]['shapes'] if own and others else ():
            ours, theirs = (
                min(some, key=lambda row: row['shapes'][shape]['median_ms']) for some in (own, others)
            )
            times = [row['shapes'][shape]['median_ms'] for row in (ours, theirs)]
            pair = {'precision': precision, 'shape': shape, 'export': ours['name'], 'peer': theirs['name']}
            pairs.append({**pair, 'export_ms': times[0], 'peer_ms': times[1], 'ratio': times[0] / times[1]})
    return pairs


def fastest_table(pairs: Sequence[Mapping[str, Any]]) -> str:
    """`fastest` as Markdown."""
    cells = [
        (
            pair['precision'],
            pair['shape'],
            f'{pair["export"]}: {pair["export_ms"]:.2f} ms',
            f'{pair["peer"]}: {pair["peer_ms"]:.2f} ms',
            f'{pair["ratio"]:.2f}',
        )
        for pair in pairs
    ]
    return markdown_table(['precision', 'shape', 'fastest export', 'fastest peer', 'ratio'], cells)


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Latency as bars, a panel for each shape and a bar for each network; the whiskers are percentiles.

    Colours are precisions, and peers are paler than exports."""
    shapes = list(rows[0]['shapes'])
    precisions = list(dict.fromkeys(row['precision'] for row in rows))
    ordered = sorted(rows, key=lambda row: precisions.index(row['precision']), reverse=True)
    colours = [OKABE_ITO[precisions.index(row['precision'])] for row in ordered]
    with rc_context(STYLE):
        figure = Figure(figsize=(4.5 * len(shapes) + 2.5, 0.24 * len(rows) + 1.2))
        panels = figure.subplots(1, len(shapes), squeeze=False, sharey=True)[0]
        for panel, shape in zip(panels, shapes):
            times = [row['shapes'][shape] for row in ordered]
            medians = [one['median_ms'] for one in times]
            low = [one['median_ms'] - one['p10_ms'] for one in times]
            high = [one['p90_ms'] - one['median_ms'] for one in times]
            bars = panel.barh(
                [row['name'] for row in ordered], medians, xerr=[low, high], color=colours, ecolor='#333333'
            )
            for bar, row in zip(bars, ordered):
                bar.set_alpha(0.45 if row['name'] in PEERS else 1.0)
            panel.set(title=f'{shape} tokens', xlabel='latency (ms)', xlim=(0, None))
            panel.grid(axis='y', visible=False)
        patches = [Patch(color=OKABE_ITO[i], label=name) for i, name in enumerate(precisions)]
        figure.legend(handles=patches, loc='outside lower center', ncols=len(patches))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=FORMATS['png']['dpi'])
