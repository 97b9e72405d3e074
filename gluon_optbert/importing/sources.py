"""Public BERT checkpoints as they lie on disk: the files of Hugging Face, of Google's TensorFlow BERT, and of
GluonNLP.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.embedding import Embedding
from ..architecture.heads import Head
from ..runs.failures import RunFailed
from ..runs.files import MANIFEST, existing, fetching, read_json, reason
from ..runs.mxnet_arrays import BFLOAT16, read_arrays
from ..text.tokenizer import Vocabulary, settings_of, vocabulary_of
from .configuration import UNEVEN, architecture_of, head_of, recorded
from .name_maps import look_up
from .pruned import pruned, without_prefix
from .sentence_modules import MODULES, embedding_of, modules_of
from .tensorflow_reader import read_index, read_tensorflow
from .tensors import array_of, read_safetensors, read_sharded
from .tokenizer_check import AS_IS, read_tokenizer
from .torch_reader import read_torch
from .vocabularies import vocabulary_beside

# how MXNet begins every name in the file of an export; GluonNLP saves its BERTs without
_EXPORTED = ('arg:', 'aux:')
ZOO = ('bert_12_768_12_', 'bert_24_1024_16_')  # how the names of GluonNLP's BERTs begin: layers, width, heads


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint as it was read, before anything is renamed."""

    form: str  # a key of `name_maps.MAPS`
    architecture: Architecture
    vocabulary: Vocabulary
    head: Head
    arrays: Mapping[str, np.ndarray]  # by the checkpoint's own names
    skipped: tuple[str, ...] = ()  # tensors that were not read because they are dropped anyway
    notes: tuple[str, ...] = ()  # what a person should know, a line each
    untrained: tuple[str, ...] = ()  # parts of the heads that are there and random, as it says itself


def read_source(
    source: str, *, vocabulary: Path | None = None, heads: int | None = None, as_is: bool = False
) -> Source:
    """The checkpoint at a path, or of a name in GluonNLP's model zoo. The arguments are the fields of
    `convert.ImportRecipe`.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is nothing, or what there is cannot be read or is no BERT that this package computes.
    RunFailed
        If the model zoo cannot be reached.
    """
    path = Path(source)
    if heads is not None and path.suffix != '.params':
        raise ValueError(f'{source}: its configuration or name says how many heads it has; leave --heads out')
    if (path / 'config.json').is_file() or (path / MODULES).is_file():
        return read_hugging_face(path, vocabulary, as_is=as_is)
    if as_is:
        raise ValueError(f'{source}: has no tokenizer beside its vocabulary; leave --tokenizer {AS_IS} out')
    if (path / MANIFEST).is_file():
        raise ValueError(
            f'{path}: is a directory of this package already, and not a checkpoint to import; give it to the '
            'commands as it is'
        )
    if path.is_dir():
        indices = sorted(path.glob('*.index'))
        if len(indices) != 1:
            raise FileNotFoundError(
                f'{path}: no config.json, and {len(indices)} TensorFlow checkpoints (NAME.index); give '
                'a Hugging Face directory, or the path of one checkpoint without its .index'
            )
        return read_google(indices[0].with_suffix(''), vocabulary)
    if Path(f'{path}.index').is_file():
        return read_google(path, vocabulary)
    if path.is_file():
        if path.suffix != '.params':
            raise ValueError(
                f'{path}: wanted a directory, a TensorFlow checkpoint or a GluonNLP .params file'
            )
        return read_gluonnlp(path, vocabulary, heads)
    if source.startswith(ZOO):
        if vocabulary is not None:
            raise ValueError(f'{source}: GluonNLP has its vocabulary; leave --vocabulary out')
        return read_zoo(source)
    raise FileNotFoundError(
        f"{source}: no such file or directory, and no name in GluonNLP's model zoo, which begin with "
        f'{" or ".join(ZOO)}; a checkpoint of a hub is downloaded first, as by '
        f'hf download {shlex.quote(source)} --local-dir {shlex.quote(Path(source).name)}'
    )


def read_hugging_face(
    directory: Path,
    vocabulary: Path | None = None,
    *,
    as_is: bool = False,
    arrays: Mapping[str, np.ndarray] | None = None,
) -> Source:
    """A Hugging Face directory: ``config.json``, the tokenizer, and safetensors or PyTorch's ``.bin``, in one
    file or several; its weights are `arrays` where these are given. The modules of sentence-transformers say
    where they lie and what follows the network.
    """
    whole, modules = directory, modules_of(directory)
    directory = modules[0][1] if modules else directory
    source = directory / 'config.json'
    config = read_json(source)
    architecture, notes = architecture_of(config, source)
    words, said = read_tokenizer(directory, vocabulary, as_is=as_is)
    notes += said
    readers = {
        'model.safetensors': read_safetensors,
        'model.safetensors.index.json': partial(read_sharded, read=read_safetensors),
        'pytorch_model.bin': read_torch,
        'pytorch_model.bin.index.json': partial(read_sharded, read=read_torch),
    }
    present = [name for name in readers if (directory / name).is_file()]
    if not present and arrays is None:
        raise FileNotFoundError(f'{directory}: no weights; wanted one of {", ".join(readers)}')
    arrays = readers[present[0]](directory / present[0]) if arrays is None else arrays
    arrays, said = without_prefix(arrays, directory)
    notes, skipped = notes + said, ()
    if config.get('model_type') != UNEVEN:
        architecture, arrays, skipped, said = pruned(arrays, architecture, config, source)
        notes += said
    head, (stated, untrained) = head_of('Hugging Face', arrays, config, source), recorded(config, source)
    if stated.labels and stated.labels != head.labels:
        notes += (
            f'id2label has the labels {", ".join(head.labels)}, and the record of the export '
            f'{", ".join(stated.labels)}; id2label counts',
        )
    embedding, dense = embedding_of(whole, config, cased=not settings_of(words).lowercase)
    if embedding != Embedding():
        head, arrays = dataclasses.replace(head, embedding=embedding), {**arrays, **dense}
    return Source('Hugging Face', architecture, words, head, arrays, skipped, notes, untrained)


def read_google(prefix: Path, vocabulary: Path | None = None) -> Source:
    """A TensorFlow checkpoint of Google's BERT, ``bert_config.json`` and ``vocab.txt`` beside it."""
    config = read_json(prefix.parent / 'bert_config.json')
    architecture, notes = architecture_of(config, prefix.parent / 'bert_config.json')
    words = vocabulary_beside(prefix.parent, vocabulary)
    skipped = tuple(name for name in read_index(prefix)[0] if look_up('TensorFlow', name) == (True, None))
    arrays = read_tensorflow(prefix, skip=frozenset(skipped))
    head = head_of('TensorFlow', arrays, config, prefix)
    return Source('TensorFlow', architecture, words, head, arrays, skipped, notes)


def read_params(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an MXNet parameter file; bfloat16 becomes float32; FileNotFoundError or ValueError as
    `existing` and `read_arrays`, and if the file is that of an export.
    """
    arrays = read_arrays(existing(path))
    if any(name.startswith(_EXPORTED) for name in arrays):
        raise ValueError(
            f'{path}: its names begin with {_EXPORTED[0]}, so it belongs to an export, whose queries contain '
            'the scale of the attention; import the model directory that was exported, or an export with '
            '--format transformers'
        )
    return {
        name: array_of(array.tobytes(), 'BF16', array.shape) if array.dtype == BFLOAT16 else array
        for name, array in arrays.items()
    }


def read_gluonnlp(path: Path, vocabulary: Path | None = None, heads: int | None = None) -> Source:
    """A GluonNLP parameter file with a ``.vocab`` or ``vocab.txt``; the widths are those of its arrays."""
    named = re.match(r'bert_[0-9]+_[0-9]+_([0-9]{1,4})(?![0-9])', path.name)
    stated = int(named.group(1)) if named else None
    if heads and stated and heads != stated:
        raise ValueError(f'{path}: its name says {stated} heads, and --heads {heads}')
    heads = heads or stated
    arrays = read_params(path)
    if not heads:
        raise ValueError(
            f'{path}: neither its name (bert_12_768_12…) nor its arrays say how many attention heads it has; '
            'give --heads'
        )
    vocabularies = (
        [vocabulary] if vocabulary else sorted(path.parent.glob('*.vocab')) or [path.parent / 'vocab.txt']
    )
    if len(vocabularies) > 1:
        raise ValueError(
            f'{path.parent}: {len(vocabularies)} vocabularies '
            f'({", ".join(file.name for file in vocabularies)}); give --vocabulary'
        )
    return _of_gluonnlp(arrays, heads, vocabulary_beside(path.parent, vocabularies[0]), path)


def _of_gluonnlp(arrays: Mapping[str, np.ndarray], heads: int, words: Vocabulary, path: Path) -> Source:
    """The checkpoint whose architecture has the widths of the arrays of a GluonNLP file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, array in arrays.items():
        shapes.setdefault(look_up('GluonNLP', name)[1] or '', array.shape)
    cell = 'encoder.transformer_cells.'
    wanted = (
        'word_embed.0.weight',
        'token_type_embed.0.weight',
        'encoder.position_weight',
        cell + '0.ffn.ffn_1.weight',
    )
    missing = [name for name in wanted if len(shapes.get(name, ())) != 2 or 0 in shapes[name]]
    if missing:
        raise ValueError(f'{path}: not a BERT of GluonNLP 0.8 to 0.10: no matrix {", ".join(missing)}')
    (vocab_size, h), (token_types, _), (max_length, _), (f, _) = (shapes[name] for name in wanted)
    layers = sorted({int(name[len(cell) :].split('.')[0]) for name in shapes if name.startswith(cell)})
    if layers != list(range(len(layers))) or h % heads:
        raise ValueError(
            f'{path}: layers {", ".join(map(str, layers))} of width {h} with {heads} heads are not '
            'those of a BERT'
        )
    dims = LayerDims(heads, h // heads, h // heads, f)
    architecture = Architecture(
        h, (dims,) * len(layers), vocab_size, max_length=max_length, token_types=token_types
    )
    return Source('GluonNLP', architecture, words, head_of('GluonNLP', arrays, {}, path), arrays)


def read_zoo(name: str) -> Source:
    """A BERT of GluonNLP's model zoo, fetched by GluonNLP into its own directory and checked against its
    SHA-1 there; ValueError if there is no such model, RunFailed if it cannot be fetched.
    """
    from gluonnlp.data.utils import _load_pretrained_vocab
    from gluonnlp.model import bert
    from gluonnlp.vocab import BERTVocab
    from mxnet.gluon.model_zoo import model_store

    known = sorted(
        model for model in model_store._model_sha1 if model.startswith(ZOO) and 'kobert' not in model
    )
    if name not in known:
        raise ValueError(f"{name}: no such BERT in GluonNLP's model zoo; there are {', '.join(known)}")
    prefix = next(prefix for prefix in ZOO if name.startswith(prefix))
    root = bert.get_home_dir()
    try:
        with fetching(name):
            path = Path(model_store.get_model_file(name, root=f'{root}/models'))
            tokens = _load_pretrained_vocab(name[len(prefix) :], f'{root}/models', BERTVocab).idx_to_token
    except Exception as error:  # whatever the network, the disk and a broken archive raise in two libraries
        raise RunFailed(
            f'{name}: could not be fetched ({reason(error)}); give the .params file itself'
        ) from error
    words = vocabulary_of(tokens, source=name)
    return _of_gluonnlp(read_params(path), int(prefix.split('_')[3]), words, path)
