"""What MXNet reads of a deployment directory, and how it is checked before.

An attacker can write checksums, too. Therefore the symbol must be identical to the one that this package
makes for the architecture, and the parameters must have its names, shapes and types. Only then does MXNet
read them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Dict, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..architecture.parameters import ParameterSpec
from ..network.settings import prepare_bfloat16
from ..runs.mxnet_arrays import BFLOAT16, check_arrays, write_arrays
from ..text.tokenizer import write_vocabulary
from .description import NETWORK_FILES, PARAMETERS, SYMBOL, Deployment, read_description
from .inference import inference_symbol, inference_table
from .quantize import int8_symbol

_ARGUMENT = 'arg:'  # how MXNet begins the name of a parameter in the file of an export


def symbol_of(deployment: Deployment) -> mx.sym.Symbol:
    """The network of an export, the same nodes with the same names every time."""
    plain = inference_symbol(
        deployment.architecture, deployment.kind, deployment.head, precision=deployment.precision
    )
    if deployment.precision != 'int8':
        return plain
    return int8_symbol(plain, table_of(deployment), deployment.calibration or {})


def table_of(deployment: Deployment) -> Dict[str, ParameterSpec]:
    """Every parameter of an export, as it is in float32."""
    return inference_table(deployment.architecture, deployment.kind, deployment.head, deployment.precision)


def stored_forms(deployment: Deployment) -> Dict[str, Tuple[Tuple[int, ...], np.dtype]]:
    """Shape and type of every array in the parameter file, in the file's order."""
    forms: Dict[str, Tuple[Tuple[int, ...], np.dtype]] = {}
    for name, spec in table_of(deployment).items():
        low = deployment.precision == 'bfloat16' and spec.low_precision
        forms[name] = spec.shape, BFLOAT16 if low else np.dtype(np.float32)
        forms[name + '_quantize'] = spec.shape, np.dtype(np.int8)
        forms[name + '_quantize_min'] = forms[name + '_quantize_max'] = (1,), np.dtype(np.float32)
    return {name: forms[name] for name in symbol_of(deployment).list_inputs() if name in forms}


def symbol_text(symbol: mx.sym.Symbol) -> str:
    """The symbol as JSON, casts to bfloat16 included (MXNet drops them unless told)."""
    return symbol.tojson(remove_amp_cast=False)


def write_deployment(staged: Path, deployment: Deployment, arrays: Mapping[str, mx.nd.NDArray]) -> None:
    """Write all files but the manifest into a staged directory."""
    (staged / SYMBOL).write_text(symbol_text(symbol_of(deployment)), encoding='utf-8')
    write_arrays(staged / PARAMETERS, {_ARGUMENT + name: arrays[name] for name in stored_forms(deployment)})
    (staged / 'architecture.json').write_text(deployment.architecture.to_json(), encoding='utf-8')
    write_vocabulary(deployment.vocabulary, staged / 'vocab.txt')


def read_deployment(directory: Path) -> Deployment:
    """The description of a deployment directory, whose symbol and parameters are checked against it.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is incomplete, was changed, is too large, or holds another network than it says.
    """
    directory = Path(directory)
    deployment = read_description(directory, needs=NETWORK_FILES)
    _check_network(directory, deployment)
    return deployment


def _check_network(directory: Path, deployment: Deployment) -> None:
    """Raise ValueError unless the symbol and the parameters are those of the export."""
    path = directory / PARAMETERS
    numbers = sum(math.prod(spec.shape) for spec in table_of(deployment).values())
    if 4 * numbers > 8 * path.stat().st_size:
        raise ValueError(f'{path}: too small for the architecture')
    if (directory / SYMBOL).read_bytes() != symbol_text(symbol_of(deployment)).encode():
        raise ValueError(
            f'{directory / SYMBOL}: not the network of architecture.json; export the model again'
        )
    try:
        check_arrays(path, {_ARGUMENT + name: form for name, form in stored_forms(deployment).items()})
    except ValueError as error:
        raise ValueError(f'{error}; export the model again') from error


def import_symbol(directory: Path, names: Sequence[str]) -> mx.gluon.SymbolBlock:
    """The exported network, loaded by MXNet alone."""
    with warnings.catch_warnings():
        # of the inputs; they are float32
        warnings.filterwarnings('ignore', 'Cannot decide type for the following arguments')
        return mx.gluon.SymbolBlock.imports(str(directory / SYMBOL), list(names), str(directory / PARAMETERS))


def load_network(directory: Path, deployment: Deployment) -> mx.gluon.SymbolBlock:
    """The network of a deployment directory, checked against its description, and hybridized.

    Raises
    ------
    ValueError
        If it is another network, or this processor has no bfloat16 where the network needs it.
    """
    _check_network(directory, deployment)
    if deployment.precision == 'bfloat16':
        prepare_bfloat16()
    block = import_symbol(directory, deployment.inputs)
    block.hybridize(static_alloc=True, static_shape=True)
    return block


def load_deployment(directory: Path) -> Tuple[mx.gluon.SymbolBlock, Deployment]:
    """The network of a deployment directory, hybridized, and its description.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_description` and `load_network`.
    """
    directory = Path(directory)
    deployment = read_description(directory, needs=NETWORK_FILES)
    return load_network(directory, deployment), deployment
