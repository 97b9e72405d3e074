"""The engines: libraries that run the network of an export, and which of them does.

ONNX Runtime and OpenVINO read ``model.onnx``, MXNet its own files. An engine's library is imported when the
engine is made, and not before. An export is trusted like a program: its manifest vouches for the files, and
the engine parses them."""

from __future__ import annotations

import abc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..network.inputs import TOKEN_INPUTS
from ..runs.failures import NotInstalled
from ..runs.machine import ThreadChoice, bfloat16_is_fast, load_mxnet, threads_here, threads_to_predict
from ..runs.mxnet_arrays import is_finite
from .description import ONNX, TRANSFORMERS_OUTPUTS, Deployment, onnx_inputs

ENGINES = ('onnxruntime', 'openvino', 'mxnet')
PRECISIONS = ('float32', 'int8', 'int8 dynamic', 'bfloat16')  # of an export, or of one of its ONNX files
_EXTRAS = {'onnxruntime': 'serve', 'openvino': 'openvino', 'mxnet': 'cpu'}  # of pip, by engine
_THREADS = 'OMP_NUM_THREADS'


def onnx_feed(feed: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The inputs of an ONNX file, by its names, from those of a network with padding at the end."""
    length = np.shape(feed['input_ids'])[1]
    every = {
        **feed,
        'token_type_ids': feed['token_types'],
        'attention_mask': np.arange(length) < np.asarray(feed['valid_length'])[:, np.newaxis],
    }
    return {name: np.asarray(every[name], dtype=np.int64) for name in names}


def network_outputs(
    outputs: Mapping[str, np.ndarray], feed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of an ONNX file by the names of `description.outputs_of`, whatever names the file has.

    `feed` is what the network would read, and needs masked positions for the scores of pre-training only.
    """
    named = dict(outputs)
    if 'start_logits' in named:
        named['scores'] = np.stack([named.pop('start_logits'), named.pop('end_logits')], axis=-1)
    if 'prediction_logits' in named:
        places = np.asarray(feed['masked_positions'], dtype=np.int64)[:, :, np.newaxis]
        named['masked_scores'] = np.take_along_axis(named.pop('prediction_logits'), places, axis=1)
    ours = {theirs: ours for ours, theirs in TRANSFORMERS_OUTPUTS.items()}
    return {ours.get(name, name): value for name, value in named.items()}


def sound_outputs(outputs: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """The outputs of these names; ValueError if one is missing, or holds NaN or infinity."""
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ValueError(f'the network computes {", ".join(outputs)}, and no {" and no ".join(missing)}')
    if not all(is_finite(outputs[name]) for name in names):
        raise ValueError('the network computes NaN or infinity; its weights are damaged, or were never sound')
    return {name: outputs[name] for name in names}


class Engine(abc.ABC):
    """A network that is ready to run; `choice` says how many threads it has, and why.

    The name is one of `ENGINES`, the version is that of the library, the precision is what it computes in.
    """

    name: str
    version: str
    precision: str
    choice: ThreadChoice

    def __str__(self) -> str:
        return f'{self.name} {self.version} in {self.precision}'

    @abc.abstractmethod
    def outputs(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, float32, of inputs by name; shapes are those of `network.inputs`."""


class OnnxEngine(Engine):
    """A library that reads an ONNX file, whose inputs have these names.

    The precision is that of the file; or with OpenVINO ``bfloat16``, for the matrix products of a file in
    float32.
    """

    def __init__(self, path: Path, inputs: list[str], choice: ThreadChoice, precision: str):
        self.inputs, self.choice, self.precision = inputs, choice, precision
        self.load(str(path))

    @abc.abstractmethod
    def load(self, path: str) -> None:
        """Import the library, and make it ready to run the file."""

    @abc.abstractmethod
    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by the file's names, of inputs by these names."""

    def outputs(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return network_outputs(self.run(onnx_feed(feed, self.inputs)), feed)


class OnnxRuntime(OnnxEngine):
    """ONNX Runtime on the CPU."""

    name = 'onnxruntime'

    def load(self, path: str) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.choice.threads, 1
        options.add_session_config_entry('session.intra_op.allow_spinning', str(int(self.choice.spinning)))
        # threads that spin on after a pass would take the cores from the next network of this process
        options.add_session_config_entry('session.force_spinning_stop', '1')
        options.log_severity_level = 3  # errors
        self.version = onnxruntime.__version__
        self._session = onnxruntime.InferenceSession(
            path, sess_options=options, providers=['CPUExecutionProvider']
        )

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, feed)))


class OpenVino(OnnxEngine):
    """OpenVINO on the CPU."""

    name = 'openvino'

    def load(self, path: str) -> None:
        import openvino

        hints = {
            'INFERENCE_NUM_THREADS': self.choice.threads,
            'PERFORMANCE_HINT': 'LATENCY',
            'INFERENCE_PRECISION_HINT': 'bf16' if self.precision == 'bfloat16' else 'f32',
            'ENABLE_CPU_PINNING': self.choice.spinning,  # no thread waits for a core that another program has
        }
        self.version = openvino.__version__.split('-')[0]
        self._request = openvino.Core().compile_model(path, 'CPU', hints).create_infer_request()
        self._lock = threading.Lock()  # a request computes one batch at a time

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self._lock:
            values = self._request.infer(feed)
            return {name: np.array(value) for output, value in values.items() for name in output.names}


class MXNet(Engine):
    """A block of MXNet, with the inputs and outputs of an export."""

    name = 'mxnet'

    def __init__(self, block: Callable, deployment: Deployment):
        import mxnet

        self._block, self._inputs, self._outputs = block, deployment.inputs, list(deployment.outputs)
        self.version, self.precision = mxnet.__version__, deployment.precision
        self.choice = threads_to_predict(threads_here())  # which MXNet has, whatever the choice would be now

    def outputs(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        from ..network.running import run

        return dict(zip(self._outputs, run(self._block, feed, self._inputs)))


def _load_mxnet(directory: Path, deployment: Deployment, choice: ThreadChoice, *, stated: bool) -> MXNet:
    """The network of a deployment directory in MXNet, which takes its threads while it is loaded."""
    if stated and 'mxnet' in sys.modules and threads_here() != choice.threads:
        raise ValueError(
            f'threads={choice.threads}: MXNet is loaded already, with {threads_here()}; set {_THREADS} '
            'before the program starts'
        )
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = str(choice.threads)
    try:
        load_mxnet()
        from .mxnet_network import load_network
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
    return MXNet(load_network(directory, deployment), deployment)


def is_installed(library: str) -> bool:
    """Whether a library can be imported; it is not imported."""
    return importlib.util.find_spec(library) is not None


def chosen_engine(directory: Path, engine: str | None = None) -> str:
    """The engine for a deployment directory: the wanted one, or ONNX Runtime where it is installed and there
    is an ONNX file, else MXNet, and OpenVINO if nothing else is installed.

    NotInstalled, with the way to install it, if the library is missing; ValueError if there is no such
    engine, or the directory has no file for it.
    """
    if engine is not None and engine not in ENGINES:
        raise ValueError(f'engine must be one of {", ".join(ENGINES)}, found {engine!r}')
    has_onnx = (directory / ONNX).is_file()
    if engine is None:
        order = ('onnxruntime', 'mxnet', 'openvino') if has_onnx else ('mxnet',)
        engine = next(filter(is_installed, order), order[0])
    if engine != 'mxnet' and not has_onnx:
        raise ValueError(f'{directory}: no {ONNX}, which {engine} reads; export the model again with --onnx')
    if not is_installed(engine):
        beside = '' if has_onnx else f' and {directory} has no {ONNX} for another engine (export with --onnx)'
        raise NotInstalled(
            f'{engine} is not installed{beside}: pip install gluon_optbert[{_EXTRAS[engine]}] installs it',
            name=engine,
        )
    return engine


def _onnx_files(deployment: Deployment) -> dict[str, str]:
    """The names of the ONNX files by their precisions, the one for every use first."""
    return {str(entry.get('precision')): name for name, entry in deployment.onnx.items()}


def precision_of(deployment: Deployment, engine: str, precision: str | None) -> str:
    """Precision of an engine: MXNet as the export says, the others as ``model.onnx`` does, in the
    precision of another ONNX file of the export, or with OpenVINO a float32 file in bfloat16, if that is
    wanted; ValueError if another one is wanted than the engine has here.
    """
    known = [deployment.precision] if engine == 'mxnet' else list(_onnx_files(deployment))
    if not known:
        raise ValueError(f'the manifest describes no ONNX file, which {engine} reads; export with --onnx')
    if precision is None:
        return known[0]
    if engine == 'openvino' and precision == 'bfloat16' and 'float32' in known:
        if not bfloat16_is_fast():
            raise ValueError('precision bfloat16: this process may use neither avx512_bf16 nor amx_bf16')
        return precision
    if precision not in known:
        raise ValueError(
            f'precision {precision!r}: {engine} computes this export in {", ".join(sorted(known))}; OpenVINO '
            'computes exports in float32 in bfloat16, too'
        )
    return precision


def make_engine(
    directory: Path,
    deployment: Deployment,
    engine: str,
    *,
    threads: int | None = None,
    precision: str | None = None,
) -> Engine:
    """The network of a deployment directory, loaded by an engine that `chosen_engine` gave.

    ValueError if the precision is not to be had or the engine cannot read the file; if MXNet is loaded
    already with another number of threads than is stated, or as `mxnet_network.load_network`.
    """
    choice, precision = threads_to_predict(threads), precision_of(deployment, engine, precision)
    if engine == 'mxnet':
        return _load_mxnet(directory, deployment, choice, stated=threads is not None)
    files = _onnx_files(deployment)
    file = files.get(precision) or files['float32']  # in bfloat16
    inputs = list(onnx_inputs(deployment.kind, deployment.onnx[file]['names']))
    loaded = {'onnxruntime': OnnxRuntime, 'openvino': OpenVino}[engine]
    token = {name: np.zeros((1, 1), np.int64) for name in (*TOKEN_INPUTS, 'masked_positions')}
    try:
        made = loaded(directory / file, inputs, choice, precision)
        sound_outputs(made.outputs({**token, 'valid_length': np.ones(1, np.int64)}), deployment.outputs)
        return made
    except Exception as error:  # of the engine's own kinds
        reason = ' '.join(str(error).split())[-200:]  # whose end says most
        raise ValueError(f'{directory / file}: {engine} cannot read it ({reason})') from error
