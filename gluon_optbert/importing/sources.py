"""Public BERT checkpoints as they lie on disk: the files of Hugging Face, of Google's TensorFlow BERT, and of
GluonNLP.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING, Head
from ..architecture.named import uniform
from ..runs.failures import RunFailed
from ..runs.files import fetching, reason
from ..runs.mxnet_arrays import BFLOAT16, read_arrays
from ..text.tokenizer import Vocabulary, casing_of, read_vocabulary, vocabulary_of
from .configuration import architecture_of, head_of, recorded
from .foreign import array_of, existing, read_json, read_safetensors, read_sharded, read_small
from .name_maps import look_up
from .tensorflow_reader import read_index, read_tensorflow
from .torch_reader import read_torch

TOKENIZER = 'tokenizer.json'  # has the vocabulary where Transformers saved no vocab.txt
SETTINGS = 'tokenizer_config.json'  # of Transformers' tokenizer
_NAMES = {  # of its settings: in tokenizer_config.json, in tokenizer.json
    'do_lower_case': 'lowercase',
    'strip_accents': 'strip_accents',
    'tokenize_chinese_chars': 'handle_chinese_chars',
}


def vocabulary_beside(directory: Path, given: Path | None = None) -> Vocabulary:
    """The vocabulary `given`, or else the one in the directory of the weights.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is none, or it cannot be read.
    """
    path = given or directory / 'vocab.txt'
    if not given and not path.is_file() and (directory / TOKENIZER).is_file():
        path = directory / TOKENIZER
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such vocabulary; put the vocab.txt of the checkpoint there, or give --vocabulary'
        )
    if path.name == TOKENIZER:
        return read_tokenizer_vocabulary(path)
    return read_gluonnlp_vocabulary(path) if path.suffix in ('.vocab', '.json') else _read_text(path)


def _read_text(path: Path) -> Vocabulary:
    read_small(path)  # for its limit
    return read_vocabulary(path)


def read_tokenizer_vocabulary(path: Path) -> Vocabulary:
    """The WordPiece vocabulary in a ``tokenizer.json``, with the tokens that were added behind it.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it has another kind of vocabulary, or two tokens have one number.
    """
    values = read_json(path)
    model, added = values.get('model'), values.get('added_tokens', [])
    if not isinstance(model, dict) or model.get('type') != 'WordPiece' or not isinstance(added, list):
        raise ValueError(f'{path}: wanted a model of type WordPiece; put a vocab.txt beside it')
    numbers = model.get('vocab')
    pairs = list(numbers.items()) if isinstance(numbers, dict) else []
    pairs += [(token.get('content'), token.get('id')) for token in added if isinstance(token, dict)]
    fit = all(type(number) is int and isinstance(token, str) for token, number in pairs)
    tokens = {number: token for token, number in pairs} if fit else {}
    fit = fit and all(tokens[number] == token for token, number in pairs)
    if not fit or sorted(tokens) != list(range(len(tokens))):
        raise ValueError(f'{path}: its tokens must have the numbers from 0 on, each token one')
    return _vocabulary([tokens[number] for number in range(len(tokens))], path)


def read_gluonnlp_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a GluonNLP ``.vocab`` file, which is JSON; every token keeps its number.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is none, or its two lists disagree.
    """
    values = read_json(path)
    tokens, numbers = values.get('idx_to_token'), values.get('token_to_idx')
    if (
        not isinstance(tokens, list)
        or not isinstance(numbers, dict)
        or not all(isinstance(token, str) for token in tokens)
        or (numbers != {token: number for number, token in enumerate(tokens)})
    ):
        raise ValueError(
            f'{path}: wanted idx_to_token and token_to_idx that agree, as GluonNLP 0.7 and later write them'
        )
    return _vocabulary(tokens, path)


def _vocabulary(tokens: Sequence[str], path: Path) -> Vocabulary:
    """The vocabulary of tokens that a JSON file lists; ValueError if one cannot stand on a line of UTF-8."""
    if any('\n' in token or '\r' in token for token in tokens):
        raise ValueError(f'{path}: a token has a line break')
    if any('\ud800' <= character <= '\udfff' for token in tokens for character in token):
        raise ValueError(f'{path}: a token has half a surrogate pair')
    return vocabulary_of(tokens, source=str(path))


def tokenizer_notes(directory: Path, vocab: Vocabulary) -> tuple[str, ...]:
    """Where Transformers' tokenizer beside the weights reads text otherwise than it is read here: a sentence
    each.

    Here the vocabulary decides: with a cased one text keeps capitals and accents, otherwise it loses both;
    Chinese characters are words of their own.
    """
    cased, _ = casing_of(vocab)
    read: dict[str, Any] = {'tokenize_chinese_chars': True}
    if cased is not None:
        read.update(do_lower_case=not cased, strip_accents=not cased)
    notes = []
    for file, settings in _tokenizer_settings(directory).items():
        for name, wanted in read.items():
            theirs = _NAMES[name] if file == TOKENIZER else name
            value = settings.get(theirs)
            if isinstance(value, bool) and value != wanted:
                notes.append(
                    f'{file} has {theirs}: {str(value).lower()}, and here text is read as with '
                    f'{str(wanted).lower()}; words that this touches get other tokens than in training'
                )
    return tuple(notes)


def _tokenizer_settings(directory: Path) -> dict[str, Mapping[str, Any]]:
    """The settings of the tokenizer that lies beside the weights, by file; one file is enough."""
    if (directory / SETTINGS).is_file():
        return {SETTINGS: read_json(directory / SETTINGS)}
    normalizer = (
        read_json(directory / TOKENIZER).get('normalizer') if (directory / TOKENIZER).is_file() else None
    )
    return {TOKENIZER: normalizer} if isinstance(normalizer, dict) else {}


WRAPPED = 'module.'  # how every name begins in a network that was saved from PyTorch's DataParallel
# how MXNet begins every name in the file of an export; GluonNLP saves its BERTs without
_EXPORTED = ('arg:', 'aux:')
ZOO = ('bert_12_768_12_', 'bert_24_1024_16_')  # how the names of GluonNLP's BERTs begin: layers, width, heads


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint as it was read, before anything is renamed.

    Parameters
    ----------
    form : str
        A key of `name_maps.MAPS`.
    architecture : Architecture
    vocabulary : Vocabulary
    head : Head
    arrays : dict of name to np.ndarray
        By the checkpoint's own names.
    skipped : tuple of str
        Tensors that were not read because they are dropped anyway.
    notes : tuple of str
        What a person should know, a line each.
    untrained : tuple of str
        Parts of the heads of pre-training that are there and random, as the checkpoint says itself.
    """

    form: str
    architecture: Architecture
    vocabulary: Vocabulary
    head: Head
    arrays: Mapping[str, np.ndarray]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()


def read_source(source: str, *, vocabulary: Path | None = None, heads: int | None = None) -> Source:
    """The checkpoint at a path, or of a name in GluonNLP's model zoo.

    Parameters
    ----------
    source : str
        A directory of Hugging Face or of Google's TensorFlow BERT, a ``bert_model.ckpt`` in one, a GluonNLP
        ``.params`` file, or a name such as ``bert_12_768_12_book_corpus_wiki_en_uncased``.
    vocabulary : Path, optional
        By default the one that lies beside the weights.
    heads : int, optional
        Attention heads of a GluonNLP file whose name does not say them.

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
    if (path / 'config.json').is_file():
        return read_hugging_face(path, vocabulary)
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
        f'{" or ".join(ZOO)}'
    )


def read_hugging_face(directory: Path, vocabulary: Path | None = None) -> Source:
    """A Hugging Face directory: ``config.json``, ``vocab.txt`` and safetensors or PyTorch's ``.bin``, in one
    file or several.
    """
    config = read_json(directory / 'config.json')
    architecture, notes = architecture_of(config, directory / 'config.json')
    words = vocabulary_beside(directory, vocabulary)
    notes += tokenizer_notes(directory, words)
    readers = {
        'model.safetensors': read_safetensors,
        'model.safetensors.index.json': partial(read_sharded, read=read_safetensors),
        'pytorch_model.bin': read_torch,
        'pytorch_model.bin.index.json': partial(read_sharded, read=read_torch),
    }
    present = [name for name in readers if (directory / name).is_file()]
    if not present:
        raise FileNotFoundError(f'{directory}: no weights; wanted one of {", ".join(readers)}')
    arrays = readers[present[0]](directory / present[0])
    if arrays and all(name.startswith(WRAPPED) for name in arrays):
        arrays = {name[len(WRAPPED) :]: array for name, array in arrays.items()}
        notes += (f'every name began with {WRAPPED}, which DataParallel of PyTorch adds; it was taken away',)
    source = directory / 'config.json'
    head, (_, untrained) = head_of('Hugging Face', arrays, config, source), recorded(config, source)
    return Source('Hugging Face', architecture, words, head, arrays, notes=notes, untrained=untrained)


def read_google(prefix: Path, vocabulary: Path | None = None) -> Source:
    """A TensorFlow checkpoint of Google's BERT, ``bert_config.json`` and ``vocab.txt`` beside it."""
    config = read_json(prefix.parent / 'bert_config.json')
    architecture, notes = architecture_of(config, prefix.parent / 'bert_config.json')
    words = vocabulary_beside(prefix.parent, vocabulary)
    skipped = tuple(name for name in read_index(prefix)[0] if look_up('TensorFlow', name) == (True, None))
    arrays = read_tensorflow(prefix, skip=frozenset(skipped).__contains__)
    return Source(
        'TensorFlow',
        architecture,
        words,
        head_of('TensorFlow', arrays, config, prefix),
        arrays,
        skipped,
        notes,
    )


def read_params(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an MXNet parameter file; bfloat16 becomes float32.

    Raises
    ------
    FileNotFoundError, ValueError
        As `existing` and `read_arrays`, and if the file is that of an export.
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
    words = vocabulary_beside(path.parent, vocabularies[0])
    return Source(
        'GluonNLP', _measured(arrays, heads, path), words, head_of('GluonNLP', arrays, {}, path), arrays
    )


def _measured(arrays: Mapping[str, np.ndarray], heads: int, path: Path) -> Architecture:
    """The architecture whose widths the arrays of a GluonNLP file have."""
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
    layers: list[int] = sorted(
        {int(name[len(cell) :].split('.')[0]) for name in shapes if name.startswith(cell)}
    )
    if layers != list(range(len(layers))) or h % heads:
        raise ValueError(
            f'{path}: layers {", ".join(map(str, layers))} of width {h} with {heads} heads are not '
            'those of a BERT'
        )
    return dataclasses.replace(
        uniform(layers=len(layers), h=h, a=heads, f=f, vocab_size=vocab_size, max_length=max_length),
        token_types=token_types,
    )


def read_zoo(name: str) -> Source:
    """A BERT of GluonNLP's model zoo, fetched by GluonNLP into its own directory and checked against its
    SHA-1 there.

    Raises
    ------
    ValueError
        If there is no such model.
    RunFailed
        If it cannot be fetched.
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
    arrays, heads = read_params(path), int(prefix.split('_')[3])
    return Source(
        'GluonNLP', _measured(arrays, heads, path), vocabulary_of(tokens, source=name), PRETRAINING, arrays
    )
