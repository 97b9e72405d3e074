"""Time exported networks, and those of others beside them: taken in turn, at equal threads, each in a process
of its own.

A network is a deployment directory, or the name or the JSON file of an architecture, which is exported with
random weights. bert_base:int8 exports it in another precision. --engines says what computes a directory:
plain MXNet, ONNX Runtime and OpenVINO from its ONNX files, or this package's Predictor with the engine that
it chooses.

The peers compute the network of the first directory, which has to be in float32, with its weights. ONNX
Runtime and OpenVINO read its model.onnx, or what their own tools make of it in eight bits. torch
(Transformers) and gluonnlp take its parameters, if its layers are those of a plain BERT. Every network is
first compared with the first, so that what is timed computes the same. The peers' environments are made by

    python benchmarks/peers/install.py peers

Only one process computes at a time; nothing else should run meanwhile.
"""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latency_networks import (
    ENGINES,
    PEERS,
    Starter,
    Timed,
    check_same,
    padding_orders,
    random_export,
    score_of,
)
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from measured import Measured, in_turn, load_average, parsed, spread, write
from pydantic import PositiveInt
from workers import busy_program

from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.deployment.instances import read_instances
from gluon_optbert.deployment.measures import check_labels
from gluon_optbert.deployment.mxnet_network import read_deployment
from gluon_optbert.reporting.figures import FORMATS, OKABE_ITO, STYLE
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing
from gluon_optbert.runs.machine import threads_here
from gluon_optbert.runs.recipe import option

ORDERS_REPEATS = 3  # of the passes over all batches of --texts
Rows = Sequence[Mapping[str, Any]]


class LatencyRecipe(Measured):
    """What is timed."""

    deployments: tuple[Path, ...] = option(
        'deployment directories, or names or files of architectures, one or more'
    )
    engines: tuple[str, ...] = option(
        'what computes the directories: mxnet; onnxruntime and openvino, which read their ONNX files; '
        'openvino-bfloat16, which computes the rest in bfloat16; predictor, with the engine that it chooses',
        ('mxnet',),
        choices=ENGINES,
    )
    against: tuple[str, ...] = option('peers to time the first of them in', (), choices=tuple(PEERS))
    peers: Path = option("directory of the peers' environments", Path('peers'))
    batches: tuple[PositiveInt, ...] = option('numbers of sequences', (1, 8))
    lengths: tuple[PositiveInt, ...] = option('tokens of a sequence', (128,))
    calibrate: Path | None = option(
        "text for the peers' quantisation, in any format of predict.py; random tokens without", None
    )
    texts: Path | None = option(
        'text, in any format of predict.py: times batches of its sentences as well, padded to the longest of '
        'all, to the longest of each batch, and sorted by length',
        None,
    )
    labelled: Path | None = option(
        'labelled text, as of export_model.py, for exports of a fine-tuned network: tells the score of each',
        None,
    )
    texts_batch: PositiveInt = option('sentences in a batch of --texts', 32)
    texts_limit: PositiveInt = option('sentences of --texts to use', 512)
    busy: bool = option('times every shape a second time beside a program that keeps a core busy', False)
    threads: PositiveInt | None = option('threads of each; by default the physical cores', None)
    repeats: PositiveInt = option('timed passes of each at each shape', 30)
    plot: Path | None = option('picture to draw, a bar for each network, e.g. latency.png', None)

    def problems(self) -> list[str]:
        """What is contradictory."""
        problems = [] if self.deployments else ['give a deployment directory']
        if self.engines[:1] != ('mxnet',):
            problems.append('engines: the first has to be mxnet, with which the others are compared')
        if len(set(self.deployments)) < len(self.deployments) or len(set(self.engines)) < len(self.engines):
            problems.append('deployments and engines: give each once; results are named after them')
        return problems


def measure(
    timed: Sequence[Timed], asked: Mapping[str, Mapping[str, Any]], repeats: int, *, untimed: int
) -> dict[str, Any]:
    """Spreads of the milliseconds that each worker takes for what it is asked, by the name of that."""
    spreads: dict[str, Any] = {worker.name: {} for worker in timed}
    for name, words in asked.items():
        passes = {worker.name: worker.timed(**words) for worker in timed}
        for worker, values in in_turn(passes, repeats, untimed=untimed).items():
            spreads[worker][name] = spread(values)
    return spreads


def timed_rows(
    recipe: LatencyRecipe, timed: Sequence[Timed], place: Path
) -> tuple[list[dict[str, Any]], int]:
    """What was measured of every process, and the number of sentences of --texts."""
    differences = check_same(timed, place)
    first, labelled = timed[0].deployment, []
    if recipe.labelled:
        labelled = read_instances(recipe.labelled, first.head, labelled=True)
        check_labels(labelled, first.head)
    shapes = [(batch, length) for batch in recipe.batches for length in recipe.lengths]
    asked = {f'{batch}x{length}': {'batch': batch, 'length': length} for batch, length in shapes}
    measured = {'shapes': measure(timed, asked, recipe.repeats, untimed=2)}
    if recipe.busy:
        with busy_program():
            measured['beside'] = measure(timed, asked, recipe.repeats, untimed=2)
    sentences = 0
    if recipe.texts:
        orders = padding_orders(first, recipe.texts, recipe.texts_batch, recipe.texts_limit)
        sentences = sum(map(len, orders['longest'][0]))
        padded = {
            order: {'lengths': lengths, 'widths': widths} for order, (lengths, widths) in orders.items()
        }
        measured['texts'] = measure(timed, padded, ORDERS_REPEATS, untimed=1)
    rows = []
    for worker in timed:
        architecture = worker.deployment.architecture
        row = {
            'name': worker.name,
            'precision': worker.precision,
            'engine': worker.engine,
            'architecture': architecture.to_dict(),
            'parameters': int(ParameterCost().cost(architecture)),
            'same_widths': architecture == first.architecture,
            'size_mb': worker.size_mb,
            'versions': worker.versions,
            'gflop': {
                f'{batch}x{length}': batch * sum(count_flops(architecture, length).values()) / 1e9
                for batch, length in shapes
            },
            'difference_from_first': differences.get(worker.name),
            **{name: values[worker.name] for name, values in measured.items()},
        }
        if labelled:
            row['score'] = score_of(worker, labelled, place)
        rows.append({**row, 'peak_mb': worker.peak_mb})
    return rows, sentences


def fastest(rows: Rows) -> list[dict[str, Any]]:
    """The fastest export with the widths of the first and the fastest peer, in each precision and shape."""
    pairs = []
    for precision in dict.fromkeys(row['precision'] for row in rows):
        some = [row for row in rows if row['precision'] == precision]
        own = [row for row in some if row['name'] not in PEERS and row['same_widths']]
        others = [row for row in some if row['name'] in PEERS]
        for shape in rows[0]['shapes'] if own and others else ():
            ours, theirs = (
                min((row['shapes'][shape]['median_ms'], row['name']) for row in side)
                for side in (own, others)
            )
            pair = {'precision': precision, 'shape': shape, 'export': ours[1], 'peer': theirs[1]}
            pairs.append({**pair, 'export_ms': ours[0], 'peer_ms': theirs[0], 'ratio': ours[0] / theirs[0]})
    return pairs


def tables(rows: Rows, pairs: Rows, sentences: int) -> list[str]:
    """Every network and shape; the fastest; beside a busy program; and real sentences, as Markdown."""
    header = ['network', 'precision', 'parameters', 'on disk', 'peak memory', 'shape', 'GFLOP', 'median']
    header += ['10 % – 90 %', 'GFLOP/s', 'time of the first', 'FLOPs of the first']
    cells = [
        (
            row['name'],
            row['precision'],
            f'{row["parameters"] / 1e6:.2f} M',
            f'{row["size_mb"]:.1f} MB',
            f'{row["peak_mb"]:.0f} MB',
            shape,
            f'{row["gflop"][shape]:.2f}',
            f'{times["median_ms"]:.2f} ms',
            f'{times["p10_ms"]:.2f} – {times["p90_ms"]:.2f} ms',
            f'{1e3 * row["gflop"][shape] / times["median_ms"]:.0f}',
            f'{times["median_ms"] / rows[0]["shapes"][shape]["median_ms"]:.3f}',
            f'{row["gflop"][shape] / rows[0]["gflop"][shape]:.3f}',
            *([f'{row["score"]:.4f}'] if 'score' in row else []),
        )
        for row in rows
        for shape, times in row['shapes'].items()
    ]
    parts = [markdown_table([*header, *(['score'] if 'score' in rows[0] else [])], cells)]
    if pairs:
        cells = [
            (
                pair['precision'],
                pair['shape'],
                *(f'{pair[side]}: {pair[f"{side}_ms"]:.2f} ms' for side in ('export', 'peer')),
                f'{pair["ratio"]:.2f}',
            )
            for pair in pairs
        ]
        parts.append(markdown_table(['precision', 'shape', 'fastest export', 'fastest peer', 'ratio'], cells))
    if 'beside' in rows[0]:
        cells = []
        for row in rows:
            for shape, times in row['beside'].items():
                alone, beside = row['shapes'][shape]['median_ms'], times['median_ms']
                shown = (f'{alone:.2f} ms', f'{beside:.2f} ms', f'{beside / alone:.2f}')
                cells.append((row['name'], row['precision'], shape, *shown))
        header = ['network', 'precision', 'shape', 'alone, median', 'beside a busy program', 'of alone']
        parts.append(markdown_table(header, cells))
    if sentences:
        cells = []
        for row in rows:
            seconds = {order: times['median_ms'] / 1e3 for order, times in row['texts'].items()}
            rates = [f'{sentences / value:.0f} / s' for value in seconds.values()]
            gain = f'{seconds["longest"] / seconds["sorted"]:.2f}'
            cells.append((row['name'], row['precision'], *rates, gain))
        header = ['network', 'precision', 'padded to the longest of all', 'to the longest of each batch']
        parts.append(markdown_table([*header, 'sorted', 'sorted over longest'], cells))
    return parts


def draw(rows: Rows, path: Path) -> None:
    """Latency as bars, a panel for each shape and a bar for each network; the whiskers are percentiles.

    Colours are precisions, and peers are paler than exports.
    """
    precisions = list(dict.fromkeys(row['precision'] for row in rows))
    ordered = sorted(rows, key=lambda row: precisions.index(row['precision']), reverse=True)
    colours = [OKABE_ITO[precisions.index(row['precision'])] for row in ordered]
    shapes = list(rows[0]['shapes'])
    with rc_context(STYLE):
        figure = Figure(figsize=(4.5 * len(shapes) + 2.5, 0.24 * len(rows) + 1.2))
        panels = figure.subplots(1, len(shapes), squeeze=False, sharey=True)[0]
        for panel, shape in zip(panels, shapes):
            times = [row['shapes'][shape] for row in ordered]
            medians = [one['median_ms'] for one in times]
            low = [one['median_ms'] - one['p10_ms'] for one in times]
            high = [one['p90_ms'] - one['median_ms'] for one in times]
            names = [row['name'] for row in ordered]
            bars = panel.barh(names, medians, xerr=[low, high], color=colours, ecolor='#333333')
            for bar, row in zip(bars, ordered):
                bar.set_alpha(0.45 if row['name'] in PEERS else 1.0)
            panel.set(title=f'{shape} tokens', xlabel='latency (ms)', xlim=(0, None))
            panel.grid(axis='y', visible=False)
        patches = [Patch(color=OKABE_ITO[i], label=name) for i, name in enumerate(precisions)]
        figure.legend(handles=patches, loc='outside lower center', ncols=len(patches))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=FORMATS['png']['dpi'])


def exports_of(recipe: LatencyRecipe, place: Path) -> list[Path]:
    """The deployment directories, those of names with random weights.

    Raises
    ------
    ValueError
        If the first is not in float32, or one has fewer positions than a length.
    """
    onnx = len(recipe.engines) > 1 or any(PEERS[peer].environment == 'onnx' for peer in recipe.against)
    directories = [
        Path(name) if os.path.isdir(name) else random_export(str(name), place / f'export-{i}', onnx=onnx)
        for i, name in enumerate(recipe.deployments)
    ]
    deployments = [read_deployment(directory) for directory in directories]
    if deployments[0].precision != 'float32':
        raise ValueError(f'{recipe.deployments[0]}: the first directory has to be an export in float32')
    longest = min(one.architecture.max_length for one in deployments)
    if max(recipe.lengths) > longest:
        raise ValueError(f'lengths: at most {longest} tokens')
    return directories


@command
def main(argv=None):
    """Start the workers, time them, print the table."""
    recipe = parsed(
        LatencyRecipe,
        argv,
        description=__doc__,
        positional='deployments',
        example='python benchmarks/latency.py deploy deploy-int8 --against onnxruntime --batches 1,8',
    )
    if recipe.plot:
        refuse_existing(recipe.plot)
    threads = recipe.threads or threads_here()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        directories, load = exports_of(recipe, place), load_average()
        with contextlib.closing(Starter(recipe.peers, threads, place, recipe.calibrate)) as starter:
            for engine in recipe.engines:
                for name, directory in zip(recipe.deployments, directories):
                    starter.export(str(name), directory, engine)
            for peer in recipe.against:
                starter.peer(peer, directories[0])
            rows, sentences = timed_rows(recipe, starter.timed, place)
    pairs = fastest(rows)
    note = (
        f'{threads} threads, {recipe.repeats} passes of each, taken in turn; parameters of embeddings and '
        f'encoder; load average {load:.1f} before'
    )
    text = '\n\n'.join([*tables(rows, pairs, sentences), note])
    print(text)
    content = {'networks': rows, 'fastest': pairs, 'sentences': sentences}
    write(recipe, text, **content, threads=threads, load_before=load)
    if recipe.plot:
        draw(rows, recipe.plot)
        print(f'wrote {recipe.plot}')


if __name__ == '__main__':
    sys.exit(main())
