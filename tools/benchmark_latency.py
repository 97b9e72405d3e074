"""Time exported networks, and those of others beside them: taken in turn, at equal threads, each in a process
of its own.

A network is a deployment directory, or the name of an architecture, which is exported with random weights.
The peers compute the network of the first, which has to be in float32, with its weights: onnxruntime and
openvino from its model.onnx, torch (Transformers) and gluonnlp from its parameters if its layers are those of
a plain BERT. A network is first compared with the first, so that what is timed computes the same. Their
environments are made by

    python tools/peers/install.py peers

Only one process computes at a time; nothing else should run meanwhile.
"""

from __future__ import annotations

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from workers import PAUSE, SCRIPTS, Worker, peer_python, uniform_config

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.deployment.directory import PARAMETERS, SYMBOL, Deployment, read_deployment
from gluon_optbert.deployment.export import export, relative_difference
from gluon_optbert.deployment.onnx_export import ONNX
from gluon_optbert.importing.name_maps import names_in
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import random_feed
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.reporting.figures import FORMATS, MARKERS, OKABE_ITO, STYLE
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.markdown import markdown_table
from gluon_optbert.runs.provenance import origin_here
from gluon_optbert.runs.recipe import option, to_dict
from gluon_optbert.runs.staging import refuse_existing, write_file
from gluon_optbert.runs.threads import threads_here
from gluon_optbert.text.vocabulary import SPECIAL_TOKENS, vocabulary_of

PEERS = {
    'onnxruntime': ('onnx', 'onnxruntime_session.py'),
    'openvino': ('onnx', 'openvino_model.py'),
    'torch': ('torch', 'torch_bert.py'),
    'gluonnlp': (None, 'gluonnlp_bert.py'),
}  # environment and worker
SAME = {
    'float32': 1e-3,
    'int8': 1.0,
    'bfloat16': 0.2,
}  # the largest difference at which it is still the same network


@dataclasses.dataclass(frozen=True)
class LatencyBenchmarkRecipe:
    """What is timed."""

    deployments: Tuple[Path, ...] = option('deployment directories or names of architectures, one or more')
    against: Tuple[str, ...] = option('peers to time the first of them in', (), choices=tuple(PEERS))
    peers: Path = option(
        "directory of the peers' environments, made by tools/peers/install.py", Path('peers')
    )
    batches: Tuple[int, ...] = option('numbers of sequences', (1, 8))
    lengths: Tuple[int, ...] = option('tokens of a sequence', (128,))
    threads: Optional[int] = option('threads of each; by default the physical cores', None)
    repeats: int = option('timed passes of each at each shape', 30)
    output: Optional[Path] = option('JSON file to write, the table as Markdown beside it', None)
    plot: Optional[Path] = option('picture to draw, latency against size, e.g. latency.png', None)

    def problems(self) -> List[str]:
        """What is out of range."""
        values = (*self.batches, *self.lengths, self.repeats, self.threads or 1)
        problems = (
            []
            if min(values, default=0) >= 1
            else ['batches, lengths, threads and repeats must be at least 1']
        )
        return problems + ([] if self.deployments else ['give a deployment directory'])


def random_export(name: str, output: Path, *, onnx: bool) -> Path:
    """A float32 export of an architecture given by name, with random weights."""
    architecture = resolve(name)
    words = [*SPECIAL_TOKENS, *(f'word{i}' for i in range(architecture.vocab_size - len(SPECIAL_TOKENS)))]
    saved = SavedModel(
        architecture, read_parameters(build(architecture, trainable=False)), vocabulary_of(words)
    )
    export(saved, output, onnx=onnx)
    return output


def megabytes(*paths: Path) -> float:
    """What files take on disk, in millions of bytes."""
    return sum(path.stat().st_size for path in paths) / 1e6


def trained_weights(directory: Path, deployment: Deployment) -> Dict[str, np.ndarray]:
    """The weights of a float32 export by GluonNLP's names: no filters added, the attention's scale out of the
    queries again.
    """
    table = parameter_table(deployment.architecture)
    arrays = {
        name[len('arg:') :]: value.asnumpy()
        for name, value in mx.nd.load(str(directory / PARAMETERS)).items()
    }
    scale = deployment.architecture.layers[0].k ** 0.5
    return {
        name: value[tuple(map(slice, table[name].shape))] * (scale if table[name].attention_scale else 1)
        for name, value in arrays.items()
    }


def start_peer(
    peer: str, recipe: LatencyBenchmarkRecipe, first: Path, deployment: Deployment, threads: int, place: Path
) -> Worker:
    """The process of a peer, with the weights of the first directory."""
    environment, script = PEERS[peer]
    python = peer_python(recipe.peers, environment)
    vocab_size = deployment.architecture.vocab_size
    words = [python, SCRIPTS / script]
    if environment == 'onnx':
        if not (first / ONNX).is_file():
            raise FileNotFoundError(f'{first / ONNX}: {peer} reads it; export with --onnx')
        return Worker(
            peer,
            [*words, (first / ONNX).absolute(), threads, vocab_size],
            threads=threads,
            size_mb=megabytes(first / ONNX),
        )
    if deployment.kind != 'encoder':
        raise ValueError(
            f'{first}: {peer} computes exports of an encoder only, this is one of {deployment.kind}'
        )
    theirs, gluon = uniform_config(deployment.architecture)
    arrays, path = trained_weights(first, deployment), place / f'{peer}.npz'
    if peer == 'torch':
        names = names_in('Hugging Face', len(deployment.architecture.layers))
        arrays = {names[name]: value for name, value in arrays.items()}
    np.savez(path, **arrays)
    return Worker(
        peer,
        [*words, path, threads, vocab_size, json.dumps(theirs if peer == 'torch' else gluon)],
        threads=threads,
        size_mb=megabytes(path),
    )


def check_same(workers: Sequence[Worker], deployment: Deployment, place: Path) -> Dict[str, float]:
    """The largest relative difference of each network's outputs from the first's.

    Raises
    ------
    RunFailed
        If it is so large that another network must be computed.
    """
    np.savez(
        place / 'feed.npz',
        **random_feed(deployment.architecture, batch=3, length=min(24, deployment.architecture.max_length)),
    )
    differences, wanted = {}, None
    for i, worker in enumerate(workers):
        worker.ask(feed=str(place / 'feed.npz'), outputs=str(place / f'{i}.npz'))
        with np.load(place / f'{i}.npz') as outputs:
            arrays = [outputs[name] for name in outputs.files]
        if wanted is None:
            wanted = arrays
        elif len(arrays) == len(wanted) and all(a.shape == b.shape for a, b in zip(arrays, wanted)):
            differences[worker.name] = max(relative_difference(a, b) for a, b in zip(arrays, wanted))
            if worker.name in PEERS and not differences[worker.name] <= SAME[worker.precision]:
                raise RunFailed(
                    f'{worker.name} computes another network: off by {differences[worker.name]:.1e}'
                )
    return differences


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
            low, median, high = np.percentile(values, [10, 50, 90])
            summaries[name][f'{batch}x{length}'] = {
                'median_ms': median,
                'p10_ms': low,
                'p90_ms': high,
                'min_ms': min(values),
            }
    return summaries


def gflops(architecture: Architecture, shape: str) -> float:
    """Thousand millions of operations of one pass over a batch through the encoder."""
    batch, length = map(int, shape.split('x'))
    return batch * sum(count_flops(architecture, length).values()) / 1e9


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
    return markdown_table([*header.split(', '), 'time of the first', 'FLOPs of the first'], cells)


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


@command
def main(argv=None):
    """Start the workers, time them, print the table."""
    recipe = parse(
        LatencyBenchmarkRecipe,
        argv,
        description=__doc__,
        positional='deployments',
        example='python tools/benchmark_latency.py deploy deploy-int8 --against onnxruntime --batches 1,8',
    )
    for path in (recipe.output, recipe.output and recipe.output.with_suffix('.md'), recipe.plot):
        if path is not None:
            refuse_existing(path)
    with tempfile.TemporaryDirectory() as place:
        benchmark(recipe, Path(place))


def benchmark(recipe: LatencyBenchmarkRecipe, place: Path) -> None:
    """Time what the recipe says; `place` is for files on the way."""
    names = list(map(str, recipe.deployments))
    onnx = any(PEERS[peer][0] == 'onnx' for peer in recipe.against)
    directories = []
    for i, name in enumerate(names):
        directories.append(
            Path(name)
            if os.path.isdir(name)
            else random_export(name, place / f'export-{i}', onnx=onnx and not i)
        )
    deployments = [read_deployment(directory) for directory in directories]
    if deployments[0].precision != 'float32':
        raise ValueError(f'{recipe.deployments[0]}: the first directory has to be an export in float32')
    if max(recipe.lengths) > min(one.architecture.max_length for one in deployments):
        raise ValueError(f'lengths: at most {min(one.architecture.max_length for one in deployments)} tokens')
    threads = recipe.threads or threads_here()
    workers: List[Worker] = []
    try:
        for name, directory, one in zip(names, directories, deployments):
            workers.append(
                Worker(
                    name,
                    [sys.executable, SCRIPTS / 'symbol.py', directory.absolute(), threads],
                    threads=threads,
                    precision=one.precision,
                    size_mb=megabytes(directory / SYMBOL, directory / PARAMETERS),
                )
            )
        for peer in recipe.against:
            workers.append(start_peer(peer, recipe, directories[0], deployments[0], threads, place))
        differences = check_same(workers, deployments[0], place)
        times = measure(
            workers,
            [(batch, length) for batch in recipe.batches for length in recipe.lengths],
            recipe.repeats,
        )
    finally:
        for worker in workers:
            worker.close()
    architectures = [one.architecture for one in deployments] + [deployments[0].architecture] * len(
        recipe.against
    )
    rows = [
        {
            'name': worker.name,
            'precision': worker.precision,
            'parameters': int(ParameterCost().cost(architecture)),
            'size_mb': worker.size_mb,
            'peak_mb': worker.peak_mb,
            'versions': worker.versions,
            'shapes': times[worker.name],
            'gflop': {shape: gflops(architecture, shape) for shape in times[worker.name]},
            'difference_from_first': differences.get(worker.name),
        }
        for worker, architecture in zip(workers, architectures)
    ]
    text = (
        f'{table(rows)}\n\n{threads} threads, {recipe.repeats} passes of each, taken in turn; parameters of '
        f'embeddings and '
        'encoder'
    )
    print(text)
    if recipe.output:
        write_file(recipe.output.with_suffix('.md'), (text + '\n').encode())
        write_file(
            recipe.output,
            (
                json.dumps(
                    {'recipe': to_dict(recipe), 'networks': rows, 'threads': threads, **origin_here()},
                    indent=1,
                )
                + '\n'
            ).encode(),
        )
        print(f'wrote {recipe.output} and its table as .md')
    if recipe.plot:
        draw(rows, recipe.plot)
        print(f'wrote {recipe.plot}')


if __name__ == '__main__':
    sys.exit(main())
