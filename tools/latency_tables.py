"""The tables and the plot of tools/benchmark_latency.py, from what it measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from timed_networks import PEERS

from gluon_optbert.reporting.figures import FORMATS, MARKERS, OKABE_ITO, STYLE
from gluon_optbert.runs.markdown import markdown_table


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
    """Latency against size on disk, a panel for each shape."""
    shapes = list(rows[0]['shapes'])
    with rc_context(STYLE):
        figure = Figure(figsize=(5 * len(shapes) + 1.5, 4))
        panels = figure.subplots(1, len(shapes), squeeze=False)[0]
        for panel, shape in zip(panels, shapes):
            for i, row in enumerate(rows):
                times = row['shapes'][shape]
                spread = [[times['median_ms'] - times['p10_ms']], [times['p90_ms'] - times['median_ms']]]
                panel.errorbar(
                    row['size_mb'],
                    times['median_ms'],
                    yerr=spread,
                    capsize=3,
                    label=row['name'],
                    linestyle='none',
                    color=OKABE_ITO[i % len(OKABE_ITO)],
                    marker=MARKERS[i % len(MARKERS)],
                )
            panel.set(
                title=f'{shape} tokens',
                xlabel='size on disk (MB)',
                ylabel='latency (ms)',
                xlim=(0, None),
                ylim=(0, None),
            )
        figure.legend(*panels[0].get_legend_handles_labels(), loc='outside right center')
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=FORMATS['png']['dpi'])
