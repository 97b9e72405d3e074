"""Which engine runs an export, and in which precision.

ONNX Runtime and OpenVINO read ``model.onnx``, MXNet its own files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Optional

from ..runs.failures import NotInstalled
from ..runs.machine import bfloat16_is_native, threads_to_predict
from .description import Deployment
from .engine import Engine
from .onnx_check import check_onnx
from .onnx_engines import OnnxRuntime, OpenVino
from .onnx_names import NAMES, ONNX, onnx_inputs, onnx_outputs

ENGINES = ('onnxruntime', 'openvino', 'mxnet')
PRECISIONS = ('float32', 'int8', 'int8 dynamic', 'bfloat16')  # of an export, or of one of its ONNX files


def is_installed(library: str) -> bool:
    """Whether a library can be imported; it is not imported."""
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # it stands in sys.modules as something that is no module
        return False


def chosen_engine(directory: Path, engine: Optional[str] = None) -> str:
    """The engine for a deployment directory: the wanted one, or ONNX Runtime where it is installed and there
    is an ONNX file, else MXNet, and OpenVINO if nothing else is installed.

    Raises
    ------
    NotInstalled
        If the library is missing; the message says how to install it.
    ValueError
        If there is no such engine, or the directory has no file for it.
    """
    if engine is not None and engine not in ENGINES:
        raise ValueError(f'engine must be one of {", ".join(ENGINES)}, found {engine!r}')
    has_onnx = (directory / ONNX).is_file()
    if engine is None:
        if has_onnx and is_installed('onnxruntime'):
            return 'onnxruntime'
        if is_installed('mxnet'):
            return 'mxnet'
        if has_onnx and is_installed('openvino'):
            return 'openvino'
        raise _nothing_reads(directory, has_onnx)
    if engine != 'mxnet' and not has_onnx:
        raise ValueError(f'{directory}: no {ONNX}, which {engine} reads; export the model again with --onnx')
    if not is_installed(engine):
        extra = {'onnxruntime': 'serve', 'mxnet': 'cpu'}.get(engine, engine)
        raise NotInstalled(
            f'{engine} is not installed: pip install gluon_optbert[{extra}] installs it', name=engine
        )
    return engine


def _nothing_reads(directory: Path, has_onnx: bool) -> NotInstalled:
    if has_onnx:
        return NotInstalled(
            'ONNX Runtime is not installed, nor is MXNet: pip install gluon_optbert[serve]',
            name='onnxruntime',
        )
    return NotInstalled(
        f'{directory}: no {ONNX}, and MXNet, which needs none, is not installed: export the model again with '
        '--onnx, or pip install gluon_optbert[cpu]',
        name='mxnet',
    )


def file_of(deployment: Deployment, precision: Optional[str]) -> str:
    """The ONNX file in a precision, as the manifest lists them; the first one if there is none."""
    files = (name for name, entry in deployment.onnx.items() if entry.get('precision') == precision)
    return next(files, ONNX)


def precision_of(deployment: Deployment, engine: str, precision: Optional[str]) -> str:
    """What an engine computes in: as the export says, in the precision of another of its ONNX files, or an
    export in float32 in bfloat16 with OpenVINO, if that is wanted.

    Raises
    ------
    ValueError
        If another precision is wanted than the engine has here.
    """
    own = deployment.precision
    if precision is None:
        return own
    if engine == 'openvino' and precision == 'bfloat16' and own == 'float32':
        if not bfloat16_is_native():
            raise ValueError('precision bfloat16: this processor has neither avx512_bf16 nor amx_bf16')
        return precision
    files = {str(entry.get('precision')) for entry in deployment.onnx.values()}
    known = {own} | files if engine != 'mxnet' else {own}
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
    threads: Optional[int] = None,
    precision: Optional[str] = None,
) -> Engine:
    """The network of a deployment directory, loaded by an engine.

    Parameters
    ----------
    directory : Path
    deployment : Deployment
        Its description.
    engine : str
        As `chosen_engine` gives it.
    threads, precision
        As `Predictor` has them.

    Raises
    ------
    ValueError
        If the ONNX file is no network of this export, or the precision is not to be had.
    """
    choice, precision = threads_to_predict(threads), precision_of(deployment, engine, precision)
    if engine == 'mxnet':
        from .mxnet_engine import load_mxnet

        return load_mxnet(directory, deployment, choice, stated=threads is not None)
    path = directory / file_of(deployment, precision)
    names = _names_in(deployment, path.name)
    inputs = list(onnx_inputs(deployment.kind, names))
    check_onnx(path, inputs=inputs, outputs=list(onnx_outputs(deployment.kind, deployment.head, names)))
    if engine == 'openvino':
        return OpenVino(path, inputs, choice, precision)
    return OnnxRuntime(path, inputs, choice, precision)


def _names_in(deployment: Deployment, file: str) -> str:
    """Which names the inputs and outputs of an ONNX file have, one of `NAMES`; exports of earlier versions do
    not say it, and have the network's.
    """
    names = deployment.onnx[file].get('names') if file in deployment.onnx else 'gluon'
    if names not in NAMES:
        raise ValueError(f'{file}: names are {names!r:.80}, wanted one of {", ".join(NAMES)}')
    return names
