"""An export as its manifest describes it, read without MXNet.

    architecture.json  vocab.txt  manifest.json  model-symbol.json  model-0000.params
    (model.onnx  tokenizer_settings.json)

The manifest says what is computed, from which inputs, in which precision, and has the size and SHA-256 of
every file. MXNet reads the symbol and the parameters (`mxnet_network`), others an ONNX file (`engines`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from ..architecture.architecture import Architecture
from ..architecture.heads import Head
from ..architecture.parameters import PARTS, parameter_table
from ..network.embedding import dense_arrays
from ..network.inputs import INPUTS, OUTPUTS, TOKEN_INPUTS
from ..runs.files import check_manifest, checked, write_manifest
from ..runs.limits import MOST_BYTES, MOST_EXPORT_BYTES, within
from ..runs.mxnet_arrays import check_arrays, read_arrays
from ..runs.recipe import to_dict
from ..tasks.features import LONG
from ..tasks.squad import Reading
from ..text.tokenizer import Vocabulary, read_vocabulary, settings_of, vocabulary_hash

FORMAT, VERSION = 'gluon_optbert deployment', 2
KINDS = ('encoder', 'pretraining', 'task')
PRECISIONS = ('float32', 'bfloat16')  # of the network for MXNet
SHORTEST = 5  # tokens of a pair of texts, with [CLS] and two [SEP]
NETWORK_FILES = SYMBOL, PARAMETERS = 'model-symbol.json', 'model-0000.params'  # that MXNet reads
ONNX, DYNAMIC, QUANTISED = 'model.onnx', 'model_dynamic.onnx', 'model_quantized.onnx'
DENSE = 'dense.params'  # the dense layers of an embedding
MASKED_LM = 'masked_lm'  # in other libraries: a network of pre-training that scores tokens alone
NAMES = ('transformers', 'gluon')  # whose names the inputs and outputs of an ONNX file have
TRANSFORMERS_INPUTS = ('input_ids', 'attention_mask', 'token_type_ids')
TRANSFORMERS_OUTPUTS = {
    'encoded': 'last_hidden_state',
    'pooled': 'pooler_output',
    'next_sentence_scores': 'seq_relationship_logits',
    'masked_scores': 'prediction_logits',  # of every token, not of the masked ones alone
    'scores': 'logits',
}
_MOST_BYTES = {'architecture.json': MOST_EXPORT_BYTES, 'vocab.txt': MOST_BYTES, SYMBOL: MOST_BYTES}


def inputs_of(kind: str) -> list[str]:
    """The inputs of an export of this kind, in their order."""
    return list(INPUTS if kind == 'pretraining' else TOKEN_INPUTS)


def outputs_of(kind: str, head: Head) -> dict[str, tuple]:
    """The outputs of an export by name, in their order, with their shapes."""
    if kind == 'task':
        return {'scores': ('batch', head.outputs) if head.pooled else ('batch', 'length', head.outputs)}
    return {name: OUTPUTS[name] for name in list(OUTPUTS)[: 4 if kind == 'pretraining' else 2]}


def whole_kind(head: Head) -> str:
    """The kind of an export that computes everything that a network with this head does."""
    return 'task' if head.outputs else 'pretraining'


def onnx_inputs(kind: str, names: str = 'transformers') -> dict[str, tuple]:
    """The shapes of an ONNX file's inputs by name; all are int64. The kind is one of `KINDS`, or `MASKED_LM`.

    With the `NAMES` of Transformers, an attention mask says which tokens are padding, wherever it is; with
    those of Gluon, ``valid_length`` counts the tokens before the padding.
    """
    if names == 'transformers':
        return dict.fromkeys(TRANSFORMERS_INPUTS, ('batch', 'length'))
    return {name: INPUTS[name] for name in inputs_of(kind)}


def onnx_outputs(kind: str, head: Head, names: str = 'transformers') -> dict[str, tuple]:
    """The shapes of an ONNX file's outputs by name; all are float32.

    With the names of Transformers, the encoded tokens are not set to zero at padding, and the scores of a
    question's answer are two outputs.
    """
    if kind == MASKED_LM:
        return {'logits': ('batch', 'length', 'vocab_size')}
    shapes = outputs_of(kind, head)
    if names == 'gluon':
        return shapes
    if kind == 'task' and head.kind == 'question_answering':
        return dict.fromkeys(('start_logits', 'end_logits'), ('batch', 'length'))
    shapes = {TRANSFORMERS_OUTPUTS[name]: shape for name, shape in shapes.items()}
    if kind == 'pretraining':
        shapes['prediction_logits'] = ('batch', 'length', 'vocab_size')
    return shapes


def onnx_entry(kind: str, head: Head, precision: str, names: str) -> dict[str, Any]:
    """Entries of a manifest for an ONNX file: ``inputs`` and ``outputs`` with their shapes and types in the
    order of the file, ``precision`` (``float32``, ``int8`` or ``int8 dynamic``), and ``names``.
    """
    inputs, outputs = onnx_inputs(kind, names), onnx_outputs(kind, head, names)
    return {
        'inputs': {name: {'shape': shape, 'dtype': 'int64'} for name, shape in inputs.items()},
        'outputs': {name: {'shape': shape, 'dtype': 'float32'} for name, shape in outputs.items()},
        'precision': precision,
        'names': names,
    }


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Description of a deployment directory, apart from the weights."""

    architecture: Architecture
    vocabulary: Vocabulary
    head: Head
    kind: str  # what is computed, one of `KINDS`
    precision: str = 'float32'  # of the network for MXNet, one of `PRECISIONS`
    reading: Reading | None = None  # of questions, for a head that answers them and no other
    # Tokens that a text or a pair of texts is cut to, as in fine-tuning, none for question answering; a
    # sentence of words with tags is divided instead. The positions of the network if it is not known.
    text_length: int | None = None
    # What is done with a longer text, one of `LONG`: its end is cut, or it is read in windows, of whose
    # scores the mean is taken.
    long: str = LONG[0]
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # when the export was written
    untrained: tuple[str, ...] = ()  # parts that are random, for the imported checkpoint had none: the pooler
    onnx: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by file, its `onnx_entry`
    dense: Sequence[tuple[Any, Any]] = dataclasses.field(default=(), compare=False)  # of the embedding

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs, in the order of the network."""
        return inputs_of(self.kind)

    @property
    def outputs(self) -> dict[str, tuple]:
        """The shapes of the outputs by name, in the order of the network."""
        return outputs_of(self.kind, self.head)


def vouch(staged: Path, deployment: Deployment) -> None:
    """Write the manifest, the last file."""
    settings = settings_of(deployment.vocabulary)
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
        lower_case=settings.lowercase,
        tokenizer=settings.model_dump(mode='json'),
        inputs={name: {'shape': INPUTS[name], 'dtype': 'float32'} for name in deployment.inputs},
        outputs={name: {'shape': shape} for name, shape in deployment.outputs.items()},
        vocabulary_sha256=vocabulary_hash(deployment.vocabulary),
        reading=None if deployment.reading is None else to_dict(deployment.reading),
        text_length=deployment.text_length,
        **({'long': deployment.long} if deployment.long != LONG[0] else {}),
        measured=deployment.measured,
        **({'onnx': deployment.onnx} if deployment.onnx else {}),
    )


def read_description(directory: Path, *, needs: Sequence[str] = ()) -> Deployment:
    """Description of a deployment directory, as its files say. Networks are not read.

    The manifest must vouch for the architecture, the vocabulary and the files in `needs`. FileNotFoundError
    or ValueError if it is incomplete, was changed, is too large, or contradicts itself.
    """
    for name, most in _MOST_BYTES.items():
        path = directory / name
        if path.is_file():
            within(path.stat().st_size, most, 'bytes', source=path)
    manifest, source = check_manifest(directory, form=FORMAT, version=VERSION), directory / 'manifest.json'
    stated = checked(_Stated, manifest, source=str(source))
    head = Head.from_dict(manifest.get('head'), source=str(source))
    if (stated.computes == 'task') != bool(head.outputs):
        raise ValueError(
            f'{source}: computes is {stated.computes!r}, wanted what goes with a head for {head.kind}'
        )
    for name, entry in stated.onnx.items():
        if name not in manifest['files'] or entry.get('names') not in NAMES:
            wanted = f'a file that is there, with the names of {" or ".join(NAMES)}'
            raise ValueError(f'{source}: onnx.{name:.80} is {entry!r:.200}, wanted {wanted}')
    wanted = ['architecture.json', 'vocab.txt', *needs, *[DENSE] * bool(head.embedding.dense)]
    missing = [name for name in wanted if name not in manifest['files']]
    if missing:
        raise ValueError(f'{directory}: the deployment directory lacks {", ".join(missing)}')
    architecture = Architecture.read(directory / 'architecture.json')
    vocabulary = read_vocabulary(directory / 'vocab.txt', files=manifest['files'])
    if len(vocabulary) != architecture.vocab_size:
        raise ValueError(
            f'{directory}: the vocabulary has {len(vocabulary)} tokens, the architecture '
            f'{architecture.vocab_size}'
        )
    positions, reading, dense = architecture.max_length, None, {}
    if head.kind == 'question_answering':
        reading = Reading.from_dict(manifest.get('reading'), source=f'{source}: reading')
        if reading.max_length > positions:
            found = f'windows of {reading.max_length} tokens'
            raise ValueError(f'{source}: reading has {found}, and the network has {positions} positions')
    if head.embedding.dense:
        table = parameter_table(architecture, head).values()
        forms = {spec.name: (spec.shape, np.dtype(np.float32)) for spec in table if spec.part == 'dense'}
        check_arrays(directory / DENSE, forms)
        dense = read_arrays(directory / DENSE)
    length = check_text_length(manifest.get('text_length'), head, positions, source=f'{source}: text_length')
    return Deployment(
        architecture,
        vocabulary,
        head,
        stated.computes,
        stated.precision,
        reading=reading,
        text_length=length,
        long=check_long(manifest.get('long', LONG[0]), head, source=f'{source}: long'),
        measured=stated.measured,
        untrained=stated.untrained,
        onnx=stated.onnx,
        dense=dense_arrays(dense, head.embedding),
    )


class _Stated(BaseModel):
    """Fields of a manifest beside its files, its head and how text is read."""

    computes: Literal[KINDS]
    precision: Literal[PRECISIONS]
    untrained: tuple[Literal[tuple(PARTS)], ...]
    measured: dict[str, Any]
    onnx: dict[str, dict[str, Any]] = {}


def check_long(long: Any, head: Head, *, source: str) -> str:
    """The treatment of long texts, one of `LONG`; ValueError if it is none, or the head has no scores of
    texts whose mean could be taken.
    """
    if long not in LONG:
        raise ValueError(f'{source} is {long!r:.80}, wanted one of {", ".join(LONG)}')
    if long != LONG[0] and not (head.outputs and head.pooled):
        raise ValueError(
            f'{source} is {long!r}, wanted {LONG[0]!r}: the network has no scores of a classification or '
            'regression, of which the mean over windows could be taken'
        )
    return long


def check_text_length(length: Any, head: Head, positions: int, *, source: str) -> int | None:
    """The `text_length` of a deployment, from JSON or YAML; None for other heads, and if it is not known.

    ValueError if it is no number of tokens that hold a pair and that the network has positions for.
    """
    if length is None or not head.outputs or head.kind == 'question_answering':
        return None
    if type(length) is not int or not SHORTEST <= length <= positions:
        raise ValueError(
            f'{source} is {length!r:.80}, wanted a whole number from {SHORTEST} to {positions}, which the '
            'network has positions for'
        )
    return length
