"""The processes that latency.py times: exports, each in an engine, and other libraries."""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from measured import ROOT
from workers import SCRIPTS, Worker, peer_python, uniform_config

from gluon_optbert.architecture.named import resolve
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.deployment.description import ONNX, PARAMETERS, SYMBOL, Deployment
from gluon_optbert.deployment.engines import Engine
from gluon_optbert.deployment.export import PRECISIONS, export, relative_difference
from gluon_optbert.deployment.instances import Instance, read_instances
from gluon_optbert.deployment.measures import score
from gluon_optbert.deployment.mxnet_network import read_deployment
from gluon_optbert.deployment.predictor import Encoder, Predictor
from gluon_optbert.importing.name_maps import names_in
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import random_feed
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.machine import ThreadChoice
from gluon_optbert.tasks.features import sorted_batches
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, vocabulary_of

# the largest difference at which it is still the same network
SAME = {'float32': 1e-3, 'int8': 1.0, 'bfloat16': 0.2}
ENGINES = ('mxnet', 'onnxruntime', 'openvino', 'openvino-bfloat16', 'predictor')


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another library, which computes the network of the first directory."""

    script: str  # of benchmarks/peers
    environment: str | None = None  # in the directory of the peers' environments; else this one
    precision: str = 'float32'
    quantized: str | None = None  # how quantize_onnx.py makes its file from model.onnx
    words: tuple[str, ...] = ()  # more for the script


_SESSION, _COMPILED, _TORCH = 'onnxruntime_session.py', 'openvino_model.py', 'torch_bert.py'
PEERS = {
    'onnxruntime': Peer(_SESSION, 'onnx'),
    'onnxruntime-int8-static': Peer(_SESSION, 'onnx', 'int8', 'static'),
    'onnxruntime-int8-dynamic': Peer(_SESSION, 'onnx', 'int8', 'dynamic'),
    'openvino': Peer(_COMPILED, 'onnx'),
    'openvino-int8': Peer(_COMPILED, 'onnx', 'int8', 'nncf'),
    'openvino-bfloat16': Peer(_COMPILED, 'onnx', 'bfloat16', words=('bf16',)),
    'torch': Peer(_TORCH, 'torch'),
    'torch-compile': Peer(_TORCH, 'torch', words=('compile',)),
    'torch-bfloat16': Peer(_TORCH, 'torch', 'bfloat16', words=('bfloat16',)),
    'torch-bfloat16-compile': Peer(_TORCH, 'torch', 'bfloat16', words=('bfloat16', 'compile')),
    'gluonnlp': Peer('gluonnlp_bert.py'),
}


def megabytes(*paths: Path) -> float:
    """What files take on disk, in millions of bytes."""
    return sum(path.stat().st_size for path in paths if path.exists()) / 1e6


def name_and_precision(name: str) -> tuple[str, str]:
    """An architecture and a precision, such as ``bert_base:int8``; float32 if there is none at the end.

    A file may have a colon in its path, and inline JSON has many.
    """
    match = re.fullmatch(r'(.+):(\w+)', name, flags=re.DOTALL)
    return (name, 'float32') if match is None or os.path.isfile(name) else (match.group(1), match.group(2))


def random_export(name: str, output: Path, *, onnx: bool) -> Path:
    """An export of an architecture with random weights that are the same every time; with `onnx` also the
    ONNX files, of a precision that has them.

    The name is what `resolve` takes, ``bert_base`` or a file; ``bert_base:int8`` is not in float32.
    """
    name, precision = name_and_precision(name)
    if precision not in PRECISIONS:
        raise ValueError(f'{name}:{precision}: wanted a precision of {", ".join(PRECISIONS)}')
    architecture = resolve(name)
    words = [*SPECIAL_TOKENS, *(f'word{i}' for i in range(architecture.vocab_size - len(SPECIAL_TOKENS)))]
    saved = SavedModel(
        architecture, read_parameters(build(architecture, trainable=False)), vocabulary_of(words)
    )
    text = Instance(' '.join(words[10:100]))
    export(
        saved,
        output,
        precision=precision,
        calibration=[text] if precision == 'int8' else [],
        onnx=onnx and precision != 'bfloat16',
    )
    return output


class Timed(Worker):
    """A process that computes the network of an export, by an engine or a peer; in the precision of the
    export, unless another is given. `size_mb` is that of its files on disk.
    """

    def __init__(
        self,
        name: str,
        words: Sequence[Any],
        deployment: Deployment,
        *,
        engine: str,
        size_mb: float,
        precision: str | None = None,
        **more: Any,
    ):
        self.deployment, self.engine, self.size_mb = deployment, engine, size_mb
        self.precision = precision or deployment.precision
        super().__init__(name, words, **more)

    def outputs(self, feed: Mapping[str, np.ndarray], place: Path) -> list[np.ndarray]:
        """What it computes of the inputs of `peers/protocol.py`; `place` is for files on the way."""
        paths = {name: str(place / f'{name}.npz') for name in ('feed', 'outputs')}
        np.savez(paths['feed'], **feed)
        self.ask(**paths)
        with np.load(paths['outputs']) as arrays:
            return [arrays[name] for name in arrays.files]


class WorkerEngine(Engine):
    """A process as an engine of `Predictor`; `place` is for files on the way."""

    def __init__(self, timed: Timed, place: Path):
        self.name, self.version, self.precision = timed.name, '', timed.precision
        self.choice = ThreadChoice(timed.threads, timed.threads, 0, True)
        self._timed, self._place = timed, place

    def outputs(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by the names of the export."""
        inputs = {'masked_positions': np.zeros((len(feed['input_ids']), 1)), **feed}
        return dict(zip(self._timed.deployment.outputs, self._timed.outputs(inputs, self._place)))


def score_of(timed: Timed, labelled: Sequence[Instance], place: Path) -> float:
    """The score of a network on labelled texts, from 0 to 1."""
    predictor = Predictor.by(WorkerEngine(timed, place), timed.deployment)
    return score(predictor.head, labelled, list(predictor.predict(labelled)))


class Starter:
    """Starts the processes of a benchmark; `close` ends them.

    `peers` is the directory of the peers' environments, `place` is for files on the way, and `calibration`
    has text for the peers' quantisation; without it random tokens are taken.
    """

    def __init__(self, peers: Path, threads: int, place: Path, calibration: Path | None = None):
        self._peers, self._threads, self._place, self._calibration = peers, threads, place, calibration
        self.timed: list[Timed] = []

    def close(self) -> None:
        """End all processes."""
        for one in self.timed:
            one.close()

    def _start(self, name: str, words: Sequence[Any], deployment: Deployment, **facts: Any) -> None:
        self.timed.append(Timed(name, words, deployment, threads=self._threads, **facts))

    def export(self, name: str, directory: Path, engine: str) -> None:
        """Start the processes of an export in an engine: none if it has no file for it, one for each ONNX
        file.
        """
        deployment, here = read_deployment(directory), directory.absolute()
        if engine == 'mxnet':
            size = megabytes(directory / SYMBOL, directory / PARAMETERS)
            words = [sys.executable, SCRIPTS / 'symbol.py', here, self._threads]
            self._start(name, words, deployment, engine=engine, size_mb=size)
            return
        script = {'predictor': 'predictor.py', 'onnxruntime': _SESSION}.get(engine, _COMPILED)
        facts: dict[str, Any] = {'settings': {'PYTHONPATH': str(ROOT)}} if engine == 'predictor' else {}
        if engine == 'openvino-bfloat16' and deployment.precision == 'float32':
            facts['precision'] = 'bfloat16'
        for file in sorted(here.glob(ONNX if engine == 'predictor' else '*.onnx')):
            reader = engine if file.name == ONNX else f'{engine}, {file.stem}'
            read = here if engine == 'predictor' else file
            words = [peer_python(self._peers, 'onnx'), SCRIPTS / script, read, self._threads]
            words += [deployment.architecture.vocab_size, *['bf16'] * (engine == 'openvino-bfloat16')]
            shown = f'{name}, {"Predictor" if engine == "predictor" else reader}'
            self._start(shown, words, deployment, engine=reader, size_mb=megabytes(file), **facts)

    def peer(self, name: str, first: Path) -> None:
        """Start a peer, with the weights of the first directory."""
        peer, deployment = PEERS[name], read_deployment(first)
        facts: dict[str, Any] = {'engine': name, 'precision': peer.precision}
        if peer.environment == 'onnx':
            if not (first / ONNX).is_file():
                raise FileNotFoundError(f'{first / ONNX}: {name} reads it; export with --onnx')
            file = self._quantized(peer, first, deployment) if peer.quantized else (first / ONNX).absolute()
            config, facts['size_mb'] = [], megabytes(file, file.with_suffix('.bin'))
        else:
            if deployment.kind != 'encoder':
                raise ValueError(
                    f'{first}: {name} computes exports of an encoder only, this is one of {deployment.kind}'
                )
            theirs, gluon = uniform_config(deployment.architecture)
            arrays, file = trained_weights(first, deployment), self._place / f'{name}.npz'
            if peer.environment == 'torch':
                names = names_in('Hugging Face', len(deployment.architecture.layers))
                arrays = {names[key]: value for key, value in arrays.items()}
            np.savez(file, **arrays)
            config = [json.dumps(theirs if peer.environment == 'torch' else gluon)]
            facts['size_mb'] = megabytes(file) / (2 if peer.precision == 'bfloat16' else 1)
        words = [peer_python(self._peers, peer.environment), SCRIPTS / peer.script, file, self._threads]
        words += [deployment.architecture.vocab_size, *config, *peer.words]
        self._start(name, words, deployment, **facts)

    def _quantized(self, peer: Peer, first: Path, deployment: Deployment) -> Path:
        """The file in eight bits that a library makes of model.onnx; RunFailed if it cannot."""
        feeds = self._place / 'calibration.npz'
        if not feeds.exists():
            np.savez(
                feeds,
                **{
                    f'{name}.{i}': feed[name]
                    for i, feed in enumerate(calibration_feeds(deployment, self._calibration))
                    for name in TOKEN_INPUTS
                },
            )
        output = self._place / f'{peer.quantized}{".xml" if peer.quantized == "nncf" else ".onnx"}'
        words = [peer_python(self._peers, peer.environment), SCRIPTS / 'quantize_onnx.py']
        words += [(first / ONNX).absolute(), output, peer.quantized, feeds]
        Worker(f'quantize_onnx.py {peer.quantized}', words, threads=self._threads).close()
        return output


def calibration_feeds(deployment: Deployment, path: Path | None) -> list[Mapping[str, np.ndarray]]:
    """Batches of text to measure ranges on: those of a file, or random tokens."""
    if path is None:
        longest = min(64, deployment.architecture.max_length)
        return [random_feed(deployment.architecture, batch=4, length=longest)]
    texts = read_instances(path, deployment.head, most=256)
    batches = sorted_batches(Encoder(deployment).features(texts), 8)
    return [{name: getattr(batch, name) for name in TOKEN_INPUTS} for batch in batches]


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

    Raises
    ------
    RunFailed
        If it is so large that a peer must compute another network.
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
            if worker.name in PEERS and not differences[worker.name] <= SAME[worker.precision]:
                raise RunFailed(
                    f'{worker.name} computes another network: off by {differences[worker.name]:.1e}'
                )
    return differences


def padding_orders(
    deployment: Deployment, path: Path, batch_size: int, most: int
) -> dict[str, tuple[list[list[int]], list[int]]]:
    """Lengths and widths of batches of real sentences, by how they are padded.

    Returns
    -------
    dict of str to (list of lengths, list of widths)
        ``longest``: in the file's order, all as wide as the longest of all; ``in order``: each batch as wide
        as its own longest; ``sorted``: by length, as `Predictor` reads them.
    """
    features = Encoder(deployment).features(read_instances(path, deployment.head, most=most))
    lengths = [int(length) for length in features.lengths]
    rows = [lengths[first : first + batch_size] for first in range(0, len(lengths), batch_size)]

    ordered = list(sorted_batches(features, batch_size))
    return {
        'longest': (rows, [max(lengths)] * len(rows)),
        'in order': (rows, [max(some) for some in rows]),
        'sorted': (
            [[int(length) for length in batch.valid_length] for batch in ordered],
            [batch.input_ids.shape[1] for batch in ordered],
        ),
    }
