"""What an export is, without MXNet: its manifest, architecture, vocabulary, head and files.

    architecture.json  vocab.txt  manifest.json  model-symbol.json  model-0000.params  (model.onnx)

The manifest says what is computed, from which inputs, in which precision, and has the checksum of every file.
Module `directory` checks and reads what is for MXNet; module `engines` what is for others."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..architecture.architecture import Architecture
from ..architecture.heads import Head
from ..architecture.parameters import PARTS
from ..network.inputs import INPUTS, OUTPUTS, TOKEN_INPUTS
from ..runs.files import check_manifest, write_manifest
from ..tasks.squad import Reading
from ..tasks.task import known_head
from ..text.tokenizer import Vocabulary, is_cased, read_vocabulary, vocabulary_hash

FORMAT, VERSION = 'gluon_optbert deployment', 2
KINDS = ('encoder', 'pretraining', 'task')
PRECISIONS = ('float32', 'int8', 'bfloat16')
SHORTEST = 5  # tokens of a pair of texts, with [CLS] and two [SEP]
NETWORK_FILES = SYMBOL, PARAMETERS = 'model-symbol.json', 'model-0000.params'  # that MXNet reads
# In bytes.
_LARGEST = {'manifest.json': 1 << 20, 'architecture.json': 1 << 20, 'vocab.txt': 1 << 26, SYMBOL: 1 << 26}


def inputs_of(kind: str) -> List[str]:
    """The inputs of an export of this kind, in their order."""
    return list(INPUTS if kind == 'pretraining' else TOKEN_INPUTS)


def outputs_of(kind: str, head: Head) -> Dict[str, Tuple]:
    """The outputs of an export by name, in their order, with their shapes."""
    if kind == 'task':
        return {'scores': ('batch', head.outputs) if head.pooled else ('batch', 'length', head.outputs)}
    return {name: OUTPUTS[name] for name in list(OUTPUTS)[: 4 if kind == 'pretraining' else 2]}


@dataclasses.dataclass(frozen=True)
class Deployment:
    """What a deployment directory holds, apart from the weights.

    Parameters
    ----------
    architecture : Architecture
    vocabulary : Vocabulary
    head : Head
    kind : str
        What is computed, one of `KINDS`.
    precision : str
        One of `PRECISIONS`.
    calibration : dict of output name to (float, float), optional
        The ranges of an int8 network's tensors.
    reading : Reading, optional
        How questions are read and answers chosen, for a head that answers questions and no other.
    text_length : int, optional
        Tokens that a text or a pair of texts is cut to, as in fine-tuning, for a head that classifies or
        gives values and no other. The positions of the network if it is not known.
    measured : dict
        What the export measured when it was written.
    untrained : tuple of str
        The parts of it that are random, for the imported checkpoint had none: ``pooler``, or nothing.
    onnx : dict
        ``inputs``, ``outputs``, ``precision`` and ``names`` of every ONNX file.
    """

    architecture: Architecture
    vocabulary: Vocabulary
    head: Head
    kind: str
    precision: str = 'float32'
    calibration: Optional[Mapping[str, Tuple[float, float]]] = None
    reading: Optional[Reading] = None
    text_length: Optional[int] = None
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
        text_length=deployment.text_length,
        measured=deployment.measured,
        **({'onnx': deployment.onnx} if deployment.onnx else {}),
    )


def read_description(directory: Path, *, needs: Sequence[str] = ()) -> Deployment:
    """What a deployment directory says that it is. Networks are not read.

    Parameters
    ----------
    directory : Path
    needs : sequence of str
        Files that must be there beside the architecture and the vocabulary.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is incomplete, was changed, is too large, or contradicts itself.
    """
    directory = Path(directory)
    manifest = _read_manifest(directory, needs)
    architecture = Architecture.read(directory / 'architecture.json')
    vocabulary = read_vocabulary(directory / 'vocab.txt')
    if len(vocabulary) != architecture.vocab_size:
        raise ValueError(
            f'{directory}: the vocabulary has {len(vocabulary)} tokens, the architecture '
            f'{architecture.vocab_size}'
        )
    return _described(manifest, architecture, vocabulary, source=str(directory / 'manifest.json'))


def _read_manifest(directory: Path, needs: Sequence[str]) -> Dict[str, Any]:
    """The manifest of a directory whose files are all there and not too large."""
    for name, most in _LARGEST.items():
        path = directory / name
        if path.is_file() and path.stat().st_size > most:
            raise ValueError(f'{path}: {path.stat().st_size} bytes, and no such file has more than {most}')
    manifest = check_manifest(directory, form=FORMAT, version=VERSION)
    missing = [name for name in ('architecture.json', 'vocab.txt', *needs) if name not in manifest['files']]
    if missing:
        raise ValueError(f'{directory}: the deployment directory lacks {", ".join(missing)}')
    return manifest


def _described(
    manifest: Mapping[str, Any], architecture: Architecture, vocabulary: Vocabulary, *, source: str
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
    return Deployment(
        architecture,
        vocabulary,
        head,
        kind,
        precision,
        calibration,
        reading,
        check_text_length(
            manifest.get('text_length'), head, architecture.max_length, source=f'{source}: text_length'
        ),
        measured=manifest.get('measured') or {},
        untrained=tuple(untrained),
        onnx=_onnx_files(manifest, source),
    )


def _onnx_files(manifest: Mapping[str, Any], source: str) -> Dict[str, Any]:
    """What a manifest says of its ONNX files, by file name; ValueError if it is something else."""
    files = manifest.get('onnx') or {}
    if not isinstance(files, dict) or not all(
        name in manifest['files'] and isinstance(entry, dict) for name, entry in files.items()
    ):
        raise ValueError(
            f'{source}: onnx is {files!r:.200}, wanted an object for each of some files that are there'
        )
    return files


def check_text_length(length: Any, head: Head, positions: int, *, source: str) -> Optional[int]:
    """The `text_length` of a deployment, from JSON or YAML; None for other heads, and if it is not known.

    Raises
    ------
    ValueError
        If it is no number of tokens that hold a pair and that the network has positions for.
    """
    if length is None or not head.outputs or not head.pooled:
        return None
    if type(length) is not int or not SHORTEST <= length <= positions:
        raise ValueError(
            f'{source} is {length!r:.80}, wanted a whole number from {SHORTEST} to {positions}, which the '
            'network has positions for'
        )
    return length


def check_thresholds(values: Any, *, source: str) -> Dict[str, Tuple[float, float]]:
    """Thresholds from JSON; ValueError if they are something else."""
    try:
        ranges = {str(name): (float(low), float(high)) for name, (low, high) in values.items()}
        wrong = [
            name for name, ends in ranges.items() if not all(map(math.isfinite, ends)) or ends[0] > ends[1]
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f'{source}: not calibration thresholds ({error})') from error
    if wrong or not ranges:
        named = ', '.join(map(repr, wrong)) or 'anything'
        raise ValueError(f'{source}: no ranges of finite numbers for {named:.200}')
    return ranges
