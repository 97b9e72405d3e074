"""Deployment directories: their files, and how the files are checked before MXNet reads them.

    model-symbol.json  model-0000.params  architecture.json  vocab.txt  manifest.json  (model.onnx)

The manifest says what is computed, from which inputs, in which precision, and has the checksum of every file.
An attacker can write checksums, too. Therefore the symbol must be identical to the one that this package
makes for the architecture, and the parameters must have its names, shapes and types. Only then does MXNet
read them."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from gluonnlp.vocab import BERTVocab

from ..architecture.architecture import Architecture
from ..architecture.heads import Head
from ..architecture.parameters import PARTS, ParameterSpec
from ..network.precision import need_bfloat16
from ..network.running import INPUTS
from ..runs.arrays import BFLOAT16, check_arrays, write_arrays
from ..runs.manifest import check_manifest, write_manifest
from ..tasks.squad import Reading
from ..tasks.task import known_head
from ..text.vocabulary import is_cased, read_vocabulary, vocabulary_hash, write_vocabulary
from .inference import KINDS, inference_symbol, inference_table, inputs_of, outputs_of
from .quantize import check_thresholds, int8_symbol

FORMAT, VERSION = 'gluon_optbert deployment', 2
PRECISIONS = ('float32', 'int8', 'bfloat16')
SYMBOL, PARAMETERS = 'model-symbol.json', 'model-0000.params'
_ARGUMENT = 'arg:'  # how MXNet begins the name of a parameter in the file of an export
_LARGEST = {
    'manifest.json': 1 << 20,
    'architecture.json': 1 << 20,
    'vocab.txt': 1 << 26,
    SYMBOL: 1 << 26,
}  # bytes


@dataclasses.dataclass(frozen=True)
class Deployment:
    """What a deployment directory holds, apart from the weights.

    Parameters
    ----------
    architecture : Architecture
    vocabulary : BERTVocab
    head : Head
    kind : str
        What is computed, one of `inference.KINDS`.
    precision : str
        One of `PRECISIONS`.
    calibration : dict of output name to (float, float), optional
        The ranges of an int8 network's tensors.
    reading : Reading, optional
        How questions are read and answers chosen, for a head that answers questions and no other.
    measured : dict
        What the export measured when it was written.
    untrained : tuple of str
        The parts of it that are random, for the imported checkpoint had none: ``pooler``, or nothing.
    onnx : dict
        ``inputs``, ``outputs``, ``precision`` and ``names`` of every ONNX file; see `onnx_entry`.
    """

    architecture: Architecture
    vocabulary: BERTVocab
    head: Head
    kind: str
    precision: str = 'float32'
    calibration: Optional[Mapping[str, Tuple[float, float]]] = None
    reading: Optional[Reading] = None
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    untrained: Tuple[str, ...] = ()
    onnx: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def inputs(self) -> List[str]:
        """The names of the inputs, in the order of the network."""
        return inputs_of(self.kind)

    @property
    def outputs(self) -> Dict[str, Tuple]:
        """The shapes of the outputs by name, in the order of the network."""
        return outputs_of(self.kind, self.head)

    def symbol(self) -> mx.sym.Symbol:
        """The network, the same nodes with the same names every time."""
        plain = inference_symbol(self.architecture, self.kind, self.head, precision=self.precision)
        return int8_symbol(plain, self.table(), self.calibration or {}) if self.precision == 'int8' else plain

    def table(self) -> Dict[str, ParameterSpec]:
        """Every parameter, as it is in float32."""
        return inference_table(self.architecture, self.kind, self.head, self.precision)

    def stored(self) -> Dict[str, Tuple[Tuple[int, ...], np.dtype]]:
        """Shape and type of every array in the parameter file, in the file's order."""
        forms: Dict[str, Tuple[Tuple[int, ...], np.dtype]] = {}
        for name, spec in self.table().items():
            low = self.precision == 'bfloat16' and spec.low_precision
            forms[name] = spec.shape, BFLOAT16 if low else np.dtype(np.float32)
            forms[name + '_quantize'] = spec.shape, np.dtype(np.int8)
            forms[name + '_quantize_min'] = forms[name + '_quantize_max'] = (1,), np.dtype(np.float32)
        return {name: forms[name] for name in self.symbol().list_inputs() if name in forms}


def symbol_text(symbol: mx.sym.Symbol) -> str:
    """The symbol as JSON, casts to bfloat16 included (MXNet drops them unless told)."""
    return symbol.tojson(remove_amp_cast=False)


def write_deployment(staged: Path, deployment: Deployment, arrays: Mapping[str, mx.nd.NDArray]) -> None:
    """Write all files but the manifest into a staged directory."""
    (staged / SYMBOL).write_text(symbol_text(deployment.symbol()), encoding='utf-8')
    write_arrays(staged / PARAMETERS, {_ARGUMENT + name: arrays[name] for name in deployment.stored()})
    (staged / 'architecture.json').write_text(deployment.architecture.to_json(), encoding='utf-8')
    write_vocabulary(deployment.vocabulary, staged / 'vocab.txt')


def vouch(staged: Path, deployment: Deployment) -> None:
    """Write the manifest, the last file."""
    write_manifest(
        staged,
        form=FORMAT,
        version=VERSION,
        computes=deployment.kind,
        head=deployment.head.to_dict(),
        precision=deployment.precision,
        max_length=deployment.architecture.max_length,
        vocab_size=deployment.architecture.vocab_size,
        untrained=list(deployment.untrained),
        lower_case=not is_cased(deployment.vocabulary),
        inputs={name: {'shape': INPUTS[name], 'dtype': 'float32'} for name in deployment.inputs},
        outputs={name: {'shape': shape} for name, shape in deployment.outputs.items()},
        vocabulary_sha256=vocabulary_hash(deployment.vocabulary),
        calibration=deployment.calibration,
        reading=None if deployment.reading is None else dataclasses.asdict(deployment.reading),
        measured=deployment.measured,
        **({'onnx': deployment.onnx} if deployment.onnx else {}),
    )


def read_deployment(directory: Path) -> Deployment:
    """The description of a deployment directory, whose symbol and parameters are checked against it.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is incomplete, was changed, is too large, or holds another network than it says.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    path = directory / 'architecture.json'
    architecture = Architecture.from_json(
        path.read_text(encoding='utf-8', errors='replace'), source=str(path)
    )
    vocabulary = read_vocabulary(directory / 'vocab.txt')
    if len(vocabulary) != architecture.vocab_size:
        raise ValueError(
            f'{directory}: the vocabulary has {len(vocabulary)} tokens, the architecture '
            f'{architecture.vocab_size}'
        )
    deployment = _described(manifest, architecture, vocabulary, source=str(directory / 'manifest.json'))
    _check_network(directory, deployment)
    return deployment


def _read_manifest(directory: Path) -> Dict[str, Any]:
    """The manifest of a directory whose files are all there and not too large."""
    for name, most in _LARGEST.items():
        path = directory / name
        if path.is_file() and path.stat().st_size > most:
            raise ValueError(f'{path}: {path.stat().st_size} bytes, and no such file has more than {most}')
    manifest = check_manifest(directory, form=FORMAT, version=VERSION)
    missing = [
        name
        for name in (SYMBOL, PARAMETERS, 'architecture.json', 'vocab.txt')
        if name not in manifest['files']
    ]
    if missing:
        raise ValueError(f'{directory}: the deployment directory lacks {", ".join(missing)}')
    return manifest


def _described(
    manifest: Mapping[str, Any], architecture: Architecture, vocabulary: BERTVocab, *, source: str
) -> Deployment:
    """The export that a manifest describes; ValueError if it contradicts itself."""
    kind, precision = manifest.get('computes'), manifest.get('precision')
    if kind not in KINDS or precision not in PRECISIONS:
        raise ValueError(
            f'{source}: computes {kind!r:.99} in {precision!r:.99}, wanted one of {", ".join(KINDS)} in one '
            f'of {", ".join(PRECISIONS)}'
        )
    head = known_head(Head.from_dict(manifest.get('head'), source=source))
    if (kind == 'task') != bool(head.outputs):
        raise ValueError(f'{source}: a head for {head.kind} does not go with an export of {kind}')
    reading = None
    if head.kind == 'question_answering':
        reading = Reading.from_dict(manifest.get('reading'), source=f'{source}: reading')
        if reading.max_length > architecture.max_length:
            raise ValueError(
                f'{source}: windows of {reading.max_length} tokens, and the network has '
                f'{architecture.max_length} positions'
            )
    is_int8 = precision == 'int8'
    calibration = check_thresholds(manifest.get('calibration'), source=source) if is_int8 else None
    untrained = manifest.get('untrained') or []
    if not isinstance(untrained, list) or not set(map(str, untrained)) <= set(PARTS):
        raise ValueError(f'{source}: untrained is {untrained!r:.80}, wanted parts of {", ".join(PARTS)}')
    measured = manifest.get('measured') or {}
    return Deployment(
        architecture, vocabulary, head, kind, precision, calibration, reading, measured, tuple(untrained)
    )


def _check_network(directory: Path, deployment: Deployment) -> None:
    """Raise ValueError unless the symbol and the parameters are those of the export."""
    path = directory / PARAMETERS
    numbers = sum(math.prod(spec.shape) for spec in deployment.table().values())
    if 4 * numbers > 8 * path.stat().st_size:
        raise ValueError(f'{path}: too small for the architecture')
    if (directory / SYMBOL).read_bytes() != symbol_text(deployment.symbol()).encode():
        raise ValueError(
            f'{directory / SYMBOL}: not the network of architecture.json; export the model again'
        )
    try:
        check_arrays(path, {_ARGUMENT + name: form for name, form in deployment.stored().items()})
    except ValueError as error:
        raise ValueError(f'{error}; export the model again') from error


def import_symbol(directory: Path, names: Sequence[str]) -> mx.gluon.SymbolBlock:
    """The exported network, loaded by MXNet alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            'ignore', 'Cannot decide type for the following arguments'
        )  # of the inputs; they are float32
        return mx.gluon.SymbolBlock.imports(str(directory / SYMBOL), list(names), str(directory / PARAMETERS))


def load_deployment(directory: Path) -> Tuple[mx.gluon.SymbolBlock, Deployment]:
    """The network of a deployment directory, hybridized, and its description.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_deployment`, and if this processor has no bfloat16 where the network needs it.
    """
    directory = Path(directory)
    deployment = read_deployment(directory)
    if deployment.precision == 'bfloat16':
        need_bfloat16()
    block = import_symbol(directory, deployment.inputs)
    block.hybridize(static_alloc=True, static_shape=True)
    return block, deployment
