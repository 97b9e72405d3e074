"""The processes that latency.py times: exports, each in an engine, and other libraries."""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from workers import SCRIPTS, Worker, peer_python, uniform_config

from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.deployment.description import ONNX, PARAMETERS, SYMBOL, Deployment, read_description
from gluon_optbert.deployment.export import PRECISIONS, export, relative_difference
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.importing.name_maps import names_in
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.running import random_feed, random_model
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.machine import threads_here

# the largest difference at which it is still the same network
SAME = {'float32': 1e-3, 'int8': 1.0, 'int8 dynamic': 1.0, 'bfloat16': 0.2}
ENGINES = ('mxnet', 'onnxruntime', 'openvino', 'openvino-bfloat16')


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another library, which computes the network of the first directory."""

    script: str  # of benchmarks/peers
    environment: str | None = None  # in the directory of the peers' environments; else this one
    precision: str = 'float32'
    quantized: str | None = None  # how quantize_onnx.py makes its file from model.onnx
    words: tuple[str, ...] = ()  # more for the script


_FILE, _TORCH = 'onnx_file.py', 'torch_bert.py'
PEERS = {
    'onnxruntime-int8-static': Peer(_FILE, 'onnx', 'int8', 'static', ('onnxruntime',)),
    'onnxruntime-int8-dynamic': Peer(_FILE, 'onnx', 'int8', 'dynamic', ('onnxruntime',)),
    'openvino-int8': Peer(_FILE, 'onnx', 'int8', 'nncf', ('openvino',)),
    'torch': Peer(_TORCH, 'torch'),
    'torch-compile': Peer(_TORCH, 'torch', words=('compile',)),
    'torch-bfloat16': Peer(_TORCH, 'torch', 'bfloat16', words=('bfloat16',)),
    'torch-bfloat16-compile': Peer(_TORCH, 'torch', 'bfloat16', words=('bfloat16', 'compile')),
    'gluonnlp': Peer('gluonnlp_bert.py'),
}


def megabytes(*paths: Path) -> float:
    """Size of files on disk, in millions of bytes."""
    return sum(path.stat().st_size for path in paths if path.exists()) / 1e6


def random_export(name: str, output: Path, *, onnx: bool) -> Path:
    """An export of an architecture with random weights that are the same every time; with `onnx` also the
    ONNX files, of a precision that has them.

    The name is what `resolve` takes, ``bert_base`` or a file; ``bert_base:int8`` is not in float32.
    """
    before, _, precision = name.rpartition(':')
    if precision not in PRECISIONS:
        before, precision = name, 'float32'
    architecture = resolve(before)
    saved = random_model(architecture)
    text = Instance(' '.join(saved.vocabulary.idx_to_token[10:100]))
    export(
        saved,
        output,
        precision=precision,
        calibration=[text] if precision == 'int8' else [],
        onnx=onnx and precision != 'bfloat16',
    )
    return output


class Timed(Worker):
    """A process that computes the network of an export with a script of benchmarks/peers, which is told a
    file, the threads, the size of the vocabulary and more words; in the precision of the export, unless
    another is given. `size_mb` is that of its files on disk.
    """

    def __init__(
        self,
        name: str,
        python: Path,
        script: str,
        file: Path,
        words: Sequence[Any],
        deployment: Deployment,
        *,
        engine: str,
        size_mb: float,
        precision: str | None = None,
    ):
        self.deployment, self.engine, self.size_mb = deployment, engine, size_mb
        self.precision, threads = precision or deployment.precision, threads_here()
        told = [python, SCRIPTS / script, file, threads, deployment.architecture.vocab_size, *words]
        super().__init__(name, told, threads=threads)

    def outputs(self, feed: Mapping[str, np.ndarray], place: Path) -> list[np.ndarray]:
        """Outputs for the inputs of `peers/protocol.py`; `place` is for files on the way."""
        paths = {name: str(place / f'{name}.npz') for name in ('feed', 'outputs')}
        np.savez(paths['feed'], **feed)
        self.ask(**paths)
        with np.load(paths['outputs']) as arrays:
            return [arrays[name] for name in arrays.files]


def start_export(name: str, directory: Path, engine: str, peers: Path) -> Iterator[Timed]:
    """The processes of an export in an engine: none if it has no file for it, one for each ONNX file.

    `peers` is the directory of the peers' environments.
    """
    deployment, here = read_description(directory), directory.absolute()
    if engine == 'mxnet':
        facts: dict[str, Any] = {'engine': engine, 'size_mb': megabytes(here / SYMBOL, here / PARAMETERS)}
        yield Timed(name, Path(sys.executable), 'symbol.py', here, [], deployment, **facts)
        return
    python = peer_python(peers, 'onnx')
    for file in sorted(here.glob('*.onnx')):
        reader = engine if file.name == ONNX else f'{engine}, {file.stem}'
        precision = deployment.onnx[file.name]['precision']
        if engine == 'openvino-bfloat16' and precision == 'float32':
            precision = 'bfloat16'
        facts = {'engine': reader, 'size_mb': megabytes(file), 'precision': precision}
        yield Timed(f'{name}, {reader}', python, _FILE, file, [engine], deployment, **facts)


def start_peer(name: str, first: Path, peers: Path, place: Path) -> Timed:
    """The process of a peer, with the weights of the first directory; `place` is for files on the way."""
    peer, deployment = PEERS[name], read_description(first)
    python, config = peer_python(peers, peer.environment), []
    if peer.environment == 'onnx':
        if not (first / ONNX).is_file():
            raise FileNotFoundError(f'{first / ONNX}: {name} reads it; export with --onnx')
        file = (first / ONNX).absolute()
        if peer.quantized:
            file = quantized(peer.quantized, file, deployment, python, place)
        size = megabytes(file, file.with_suffix('.bin'))
    else:
        if deployment.kind != 'encoder':
            raise ValueError(
                f'{first}: {name} computes exports of an encoder only, this is one of {deployment.kind}'
            )
        theirs, gluon = uniform_config(deployment.architecture)
        arrays, file = trained_weights(first, deployment), place / f'{name}.npz'
        if peer.environment == 'torch':
            names = names_in('Hugging Face', len(deployment.architecture.layers))
            arrays = {names[key]: value for key, value in arrays.items()}
        np.savez(file, **arrays)
        config = [json.dumps(theirs if peer.environment == 'torch' else gluon)]
        size = megabytes(file) / (2 if peer.precision == 'bfloat16' else 1)
    facts = {'engine': name, 'size_mb': size, 'precision': peer.precision}
    return Timed(name, python, peer.script, file, [*config, *peer.words], deployment, **facts)


def quantized(way: str, source: Path, deployment: Deployment, python: Path, place: Path) -> Path:
    """The file in eight bits that a library makes of model.onnx; ranges are those of random tokens."""
    feeds, architecture = place / 'calibration.npz', deployment.architecture
    feed = random_feed(architecture, batch=4, length=min(64, architecture.max_length))
    np.savez(feeds, **{name: feed[name] for name in TOKEN_INPUTS})
    output = place / f'{way}{".xml" if way == "nncf" else ".onnx"}'
    words = [python, SCRIPTS / 'quantize_onnx.py', source, output, way, feeds]
    Worker(f'quantize_onnx.py {way}', words, threads=threads_here()).close()
    return output


def trained_weights(directory: Path, deployment: Deployment) -> dict[str, np.ndarray]:
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


def check_same(timed: Sequence[Timed], place: Path) -> dict[str, float]:
    """The largest relative difference of each network's outputs from the first's, padding left out.

    RunFailed if it is so large that a peer, or another engine of the first, must compute another network.
    """
    architecture = timed[0].deployment.architecture
    feed = random_feed(architecture, batch=3, length=min(24, architecture.max_length))
    valid = np.arange(feed['input_ids'].shape[1]) < feed['valid_length'][:, np.newaxis]

    def outputs(worker: Timed) -> list[np.ndarray]:
        arrays = worker.outputs(feed, place)
        return [array[valid] if array.shape[:2] == valid.shape else array for array in arrays]

    differences: dict[str, float] = {}
    wanted = outputs(timed[0])
    for worker in timed[1:]:
        arrays = outputs(worker)
        if [array.shape for array in arrays] == [array.shape for array in wanted]:
            differences[worker.name] = max(relative_difference(a, b) for a, b in zip(arrays, wanted))
            same = worker.name in PEERS or worker.name.startswith(f'{timed[0].name}, ')
            if same and not differences[worker.name] <= SAME[worker.precision]:
                raise RunFailed(
                    f'{worker.name} computes another network: off by {differences[worker.name]:.1e}'
                )
    return differences
