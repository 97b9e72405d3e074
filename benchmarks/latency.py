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

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Mapping, Sequence, Tuple

import numpy as np
from latency_tables import beside_table, draw, fastest, fastest_table, orders_table, table
from timed_networks import ENGINES, PEERS, Starter, Timed, check_same, padding_orders, random_export, score_of
from workers import PAUSE, Worker, busy_program

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.deployment.description import Deployment
from gluon_optbert.deployment.instances import Instance, read_instances
from gluon_optbert.deployment.measures import check_labels
from gluon_optbert.deployment.mxnet_network import read_deployment
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.files import refuse_existing, table_beside, write_file
from gluon_optbert.runs.machine import origin_here, threads_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict

_ORDERS_REPEATS = 3  # of the passes over all batches of --texts


class LatencyBenchmarkRecipe(Recipe):
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
    peers: Path = option(
        "directory of the peers' environments, made by benchmarks/peers/install.py", Path('peers')
    )
    batches: tuple[int, ...] = option('numbers of sequences', (1, 8))
    lengths: tuple[int, ...] = option('tokens of a sequence', (128,))
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
    texts_batch: int = option('sentences in a batch of --texts', 32)
    texts_limit: int = option('sentences of --texts to use', 512)
    busy: bool = option('times every shape a second time beside a program that keeps a core busy', False)
    threads: int | None = option('threads of each; by default the physical cores', None)
    repeats: int = option('timed passes of each at each shape', 30)
    output: Path | None = option('JSON file to write, the table as Markdown beside it', None)
    plot: Path | None = option('picture to draw, a bar for each network, e.g. latency.png', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        counts = (self.repeats, self.threads or 1, self.texts_batch, self.texts_limit)
        values = (*self.batches, *self.lengths, *counts)
        problems = (
            []
            if min(values, default=0) >= 1
            else ['batches, lengths, threads, repeats, texts_batch and texts_limit must be at least 1']
        )
        if self.engines[:1] != ('mxnet',):
            problems.append('engines: the first has to be mxnet, with which the others are compared')
        if len(set(self.deployments)) < len(self.deployments) or len(set(self.engines)) < len(self.engines):
            problems.append('deployments and engines: give each once; results are named after them')
        return problems + ([] if self.deployments else ['give a deployment directory'])


def summary(values: Sequence[float]) -> Dict[str, float]:
    """Median, percentiles and smallest of some milliseconds."""
    low, median, high = np.percentile(values, [10, 50, 90])
    return {'median_ms': median, 'p10_ms': low, 'p90_ms': high, 'min_ms': min(values)}


def measure(
    workers: Sequence[Worker], shapes: Sequence[Tuple[int, int]], repeats: int
) -> Dict[str, Dict[str, Any]]:
    """Milliseconds at each shape, the workers taken in turn after two passes that do not count."""
    summaries: Dict[str, Dict[str, Any]] = {worker.name: {} for worker in workers}
    for batch, length in shapes:
        times: Dict[str, List[float]] = {worker.name: [] for worker in workers}
        for attempt in range(repeats + 1):
            for worker in workers:
                answer = worker.ask(batch=batch, length=length, runs=1 if attempt else 2)
                times[worker.name] += answer['ms'] if attempt else []
                time.sleep(PAUSE)
        for name, values in times.items():
            summaries[name][f'{batch}x{length}'] = summary(values)
    return summaries


def measure_orders(
    workers: Sequence[Worker], orders: Mapping[str, Tuple[List[List[int]], List[int]]]
) -> Dict[str, Dict[str, Any]]:
    """Milliseconds of all batches of real sentences, by how they are padded; the workers take turns after one
    pass that does not count.
    """
    times: Dict[str, Dict[str, List[float]]] = {
        worker.name: {order: [] for order in orders} for worker in workers
    }
    for attempt in range(_ORDERS_REPEATS + 1):
        for order, (lengths, widths) in orders.items():
            for worker in workers:
                milliseconds = worker.ask(lengths=lengths, widths=widths, runs=1)['ms']
                times[worker.name][order] += milliseconds if attempt else []
                time.sleep(PAUSE)
    return {
        name: {order: summary(values) for order, values in by_order.items()}
        for name, by_order in times.items()
    }


def gflops(architecture: Architecture, shape: str) -> float:
    """Thousand millions of operations of one pass over a batch through the encoder."""
    batch, length = map(int, shape.split('x'))
    return batch * sum(count_flops(architecture, length).values()) / 1e9


@command
def main(argv=None):
    """Start the workers, time them, print the table."""
    recipe = parse(
        LatencyBenchmarkRecipe,
        argv,
        description=__doc__,
        positional='deployments',
        example='python benchmarks/latency.py deploy deploy-int8 --against onnxruntime --batches 1,8',
    )
    if recipe.output:
        table_beside(recipe.output)
    if recipe.plot:
        refuse_existing(recipe.plot)
    with tempfile.TemporaryDirectory() as place:
        benchmark(recipe, Path(place))


def exports_of(recipe: LatencyBenchmarkRecipe, place: Path) -> List[Path]:
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


def benchmark(recipe: LatencyBenchmarkRecipe, place: Path) -> None:
    """Time what the recipe says; `place` is for files on the way."""
    directories = exports_of(recipe, place)
    threads = recipe.threads or threads_here()
    starter = Starter(recipe.peers, threads, place, recipe.calibrate)
    load = os.getloadavg()[0]
    with contextlib.closing(starter):
        for engine in recipe.engines:
            for name, directory in zip(recipe.deployments, directories):
                starter.export(str(name), directory, engine)
        for peer in recipe.against:
            starter.peer(peer, directories[0])
        rows, sentences = timed_rows(recipe, starter.timed, place)
    texts = [table(rows)]
    pairs = fastest(rows)
    if pairs:
        texts.append(fastest_table(pairs))
    if recipe.busy:
        texts.append(beside_table(rows))
    if recipe.texts:
        texts.append(
            f'{sentences} sentences in batches of {recipe.texts_batch}:\n\n{orders_table(rows, sentences)}'
        )
    texts.append(
        f'{threads} threads, {recipe.repeats} passes of each, taken in turn; parameters of embeddings and '
        f'encoder; load average {load:.1f} before'
    )
    text = '\n\n'.join(texts)
    print(text)
    if recipe.output:
        result = {'recipe': to_dict(recipe), 'networks': rows, 'fastest': pairs, 'sentences': sentences}
        result.update(threads=threads, load_before=load, **origin_here())
        write_file(recipe.output.with_suffix('.md'), (text + '\n').encode())
        write_file(recipe.output, (json.dumps(result, indent=1) + '\n').encode())
        print(f'wrote {recipe.output} and its table as .md')
    if recipe.plot:
        draw(rows, recipe.plot)
        print(f'wrote {recipe.plot}')


def labelled_texts(recipe: LatencyBenchmarkRecipe, deployment: Deployment) -> List[Instance]:
    """The texts of --labelled; ValueError if a label is none of the network's."""
    if recipe.labelled is None:
        return []
    labelled = read_instances(recipe.labelled, deployment.head, labelled=True)
    check_labels(labelled, deployment.head)
    return labelled


def timed_rows(
    recipe: LatencyBenchmarkRecipe, timed: Sequence[Timed], place: Path
) -> Tuple[List[Dict[str, Any]], int]:
    """What was measured of every process, and the number of sentences of --texts."""
    workers = [one.worker for one in timed]
    differences = check_same(timed, place)
    shapes = [(batch, length) for batch in recipe.batches for length in recipe.lengths]
    times = measure(workers, shapes, recipe.repeats)
    beside: ContextManager[None] = busy_program() if recipe.busy else contextlib.nullcontext()
    with beside:
        under_load = measure(workers, shapes, recipe.repeats) if recipe.busy else {}
    orders, sentences = {}, 0
    if recipe.texts:
        deployment = timed[0].deployment
        orders = padding_orders(deployment, recipe.texts, recipe.texts_batch, recipe.texts_limit)
        sentences = sum(map(len, orders['longest'][0]))
        orders = measure_orders(workers, orders)
    first = timed[0].deployment.architecture
    labelled = labelled_texts(recipe, timed[0].deployment)
    rows = []
    for one in timed:
        worker, architecture = one.worker, one.deployment.architecture
        row: Dict[str, Any] = {
            'name': worker.name,
            'precision': worker.precision,
            'engine': one.engine,
            'architecture': architecture.to_dict(),
            'parameters': int(ParameterCost().cost(architecture)),
            'same_widths': architecture == first,
            'size_mb': worker.size_mb,
            'peak_mb': worker.peak_mb,
            'versions': worker.versions,
            'shapes': times[worker.name],
            'gflop': {shape: gflops(architecture, shape) for shape in times[worker.name]},
            'difference_from_first': differences.get(worker.name),
            **({'score': score_of(one, labelled, place)} if labelled else {}),
        }
        if recipe.busy:
            row['beside'] = under_load[worker.name]
        if recipe.texts:
            row['texts'] = orders[worker.name]
        rows.append(row)
    return rows, sentences


if __name__ == '__main__':
    sys.exit(main())
