"""Time exported networks, and those of others beside them: taken in turn, at equal threads, each in a process
of its own.

A network is a deployment directory, or the name or the JSON file of an architecture, which is exported with
random weights. bert_base:int8 exports it in another precision.

ONNX Runtime and OpenVINO read the ONNX files of all directories. The peers compute the network of the first
directory, which has to be in float32, with its weights: what the tools of ONNX Runtime and OpenVINO make of
its model.onnx in eight bits; torch (Transformers) and gluonnlp, if its layers are those of a plain BERT.
Every network is first compared with the first: its peers, and other engines, have to compute the same.
Nothing else should run meanwhile."""

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

import numpy as np
from latency_networks import ENGINES, PEERS, Timed, check_same, random_export, start_export, start_peer
from measured import Measured, in_turn, parsed, write
from pydantic import PositiveInt

from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.deployment.description import read_description
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.machine import threads_here
from gluon_optbert.runs.recipe import option


class LatencyRecipe(Measured):
    """Networks and engines to time."""

    deployments: tuple[Path, ...] = option(
        'deployment directories, or names or files of architectures, one or more'
    )
    engines: tuple[str, ...] = option(
        'what computes the directories: mxnet, first; onnxruntime and openvino, which read their ONNX files; '
        'openvino-bfloat16, which computes the rest in bfloat16',
        ('mxnet',),
        choices=ENGINES,
    )
    against: tuple[str, ...] = option('peers to time the first of them in', (), choices=tuple(PEERS))
    peers: Path = option("directory of the peers' environments", Path('peers'))
    batches: tuple[PositiveInt, ...] = option('numbers of sequences', (1, 8))
    lengths: tuple[PositiveInt, ...] = option('tokens of a sequence', (128,))
    repeats: PositiveInt = option('timed passes of each at each shape', 30)


def timed_rows(recipe: LatencyRecipe, timed: Sequence[Timed], place: Path) -> list[dict[str, Any]]:
    """Measurements of every process."""
    differences = check_same(timed, place)
    first = timed[0].deployment.architecture
    shapes = [(batch, length) for batch in recipe.batches for length in recipe.lengths]
    times: dict[str, dict[str, Any]] = {worker.name: {} for worker in timed}
    for batch, length in shapes:
        passes = {worker.name: worker.timed(batch=batch, length=length) for worker in timed}
        for name, values in in_turn(passes, recipe.repeats).items():
            low, median, high = np.percentile(values, [10, 50, 90])
            times[name][f'{batch}x{length}'] = {
                'median_ms': median,
                'p10_ms': low,
                'p90_ms': high,
                'min_ms': min(values),
            }
    rows = []
    for worker in timed:
        architecture = worker.deployment.architecture
        gflop = {
            f'{batch}x{length}': batch * sum(count_flops(architecture, length).values()) / 1e9
            for batch, length in shapes
        }
        row = {
            'name': worker.name,
            'precision': worker.precision,
            'engine': worker.engine,
            'architecture': architecture.to_dict(),
            'parameters': int(ParameterCost().cost(architecture)),
            'same_widths': architecture == first,
            'size_mb': worker.size_mb,
            'versions': worker.versions,
            'gflop': gflop,
            'difference_from_first': differences.get(worker.name),
            'shapes': times[worker.name],
            'peak_mb': worker.peak_mb,
        }
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every network and shape, as Markdown."""
    head = ['network', 'precision', 'parameters', 'on disk', 'peak memory', 'shape', 'GFLOP', 'median']
    head += ['10 % – 90 %', 'GFLOP/s', 'time of the first', 'FLOPs of the first']
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
        )
        for row in rows
        for shape, times in row['shapes'].items()
    ]
    return markdown_table(head, cells)


@command
def main(argv=None):
    """Start the workers, time them, print the table."""
    recipe = parsed(
        LatencyRecipe,
        argv,
        description=__doc__,
        positional='deployments',
        example='python benchmarks/latency.py deploy deploy-int8 --engines mxnet,onnxruntime --batches 1,8',
    )
    onnx = recipe.engines != ('mxnet',) or any(PEERS[peer].environment == 'onnx' for peer in recipe.against)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place, load = Path(folder), os.getloadavg()[0]
        directories = [
            Path(name) if os.path.isdir(name) else random_export(str(name), place / f'export-{i}', onnx=onnx)
            for i, name in enumerate(recipe.deployments)
        ]
        if read_description(directories[0]).precision != 'float32':
            raise ValueError(f'{recipe.deployments[0]}: the first has to be an export in float32')
        # one that is given twice shows the noise
        names = [
            str(name) if recipe.deployments.count(name) == 1 else f'{name}, {i + 1}'
            for i, name in enumerate(recipe.deployments)
        ]
        timed: list[Timed] = []
        for engine in recipe.engines:
            for name, directory in zip(names, directories):
                for worker in start_export(name, directory, engine, recipe.peers):
                    stack.callback(worker.close)
                    timed.append(worker)
        for peer in recipe.against:
            timed.append(start_peer(peer, directories[0], recipe.peers, place))
            stack.callback(timed[-1].close)
        rows = timed_rows(recipe, timed, place)
    note = (
        f'{threads_here()} threads, {recipe.repeats} passes of each, taken in turn; parameters of embeddings '
        f'and encoder; load average {load:.1f} before'
    )
    text = f'{table(rows)}\n\n{note}'
    print(text)
    write(recipe, text, networks=rows, threads=threads_here(), load_before=load)


if __name__ == '__main__':
    sys.exit(main())
