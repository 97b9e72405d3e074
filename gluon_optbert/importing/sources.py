"""Public BERT checkpoints as they lie on disk: the files of Hugging Face, of Google's TensorFlow BERT, and of
GluonNLP.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from ..architecture.architecture import LAYER_NORM_EPS, Architecture, epsilon_problems
from ..architecture.heads import PRETRAINING, Head
from ..architecture.name_maps import QUESTION_ANSWERING, look_up
from ..architecture.named import uniform
from ..runs.arrays import BFLOAT16, read_arrays
from ..runs.failures import RunFailed
from ..runs.fetching import fetching, reason
from ..text.vocabulary import Vocabulary, read_vocabulary, vocabulary_of
from .foreign import array_of, existing, read_json, read_sharded, read_small
from .safetensors_reader import read_safetensors
from .tensorflow_reader import read_index, read_tensorflow
from .torch_reader import read_torch

# The fields of a configuration that are widths, and more than anything in use has.
WIDTHS = {
    'vocab_size': 1 << 24,
    'hidden_size': 1 << 14,
    'num_hidden_layers': 1000,
    'num_attention_heads': 1 << 12,
    'intermediate_size': 1 << 17,
    'max_position_embeddings': 1 << 20,
    'type_vocab_size': 1 << 10,
}
# What a configuration may say of the rest; a field that is not there has the first value.
FIXED = {
    'model_type': ('bert',),
    'hidden_act': ('gelu', 'gelu_python'),
    'position_embedding_type': ('absolute',),
    'is_decoder': (False,),
    'add_cross_attention': (False,),
}
WRAPPED = 'module.'  # how every name begins in a network that was saved from PyTorch's DataParallel
UNREAD = (
    'BertForTokenClassification',
    'BertForMultipleChoice',
)  # whose heads have the names of a sequence classification's
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
    """

    form: str
    architecture: Architecture
    vocabulary: Vocabulary
    head: Head
    arrays: Mapping[str, np.ndarray]
    skipped: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()


def read_source(source: str, *, vocabulary: Optional[Path] = None, heads: Optional[int] = None) -> Source:
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
        return read_zoo(source)
    raise FileNotFoundError(
        f"{source}: no such file or directory, and no name in GluonNLP's model zoo, which begin with "
        f'{" or ".join(ZOO)}'
    )


def architecture_of(config: Mapping[str, Any], source: Path) -> Tuple[Architecture, Tuple[str, ...]]:
    """The architecture that a BERT configuration describes, and notes on it for people.

    Raises
    ------
    ValueError
        With everything that is wrong with the configuration.
    """
    problems = [
        f'{name} must be a whole number from 1 to {most}, found {config.get(name)!r:.80}'
        for name, most in WIDTHS.items()
        if type(config.get(name)) is not int or not 1 <= config[name] <= most
    ]
    problems += [
        f'{name} must be {" or ".join(map(str, values))}, found {config[name]!r:.80}'
        for name, values in FIXED.items()
        if config.get(name, values[0]) not in values
    ]
    eps = config.get('layer_norm_eps', LAYER_NORM_EPS)
    problems += epsilon_problems(eps)
    if not problems and config['hidden_size'] % config['num_attention_heads']:
        problems.append(
            f'num_attention_heads {config["num_attention_heads"]} does not divide hidden_size '
            f'{config["hidden_size"]}'
        )
    if problems:
        raise ValueError(f'{source}: not a BERT that can be read: {"; ".join(problems)}')
    architecture = dataclasses.replace(
        uniform(
            layers=config['num_hidden_layers'],
            h=config['hidden_size'],
            a=config['num_attention_heads'],
            f=config['intermediate_size'],
            vocab_size=config['vocab_size'],
            max_length=config['max_position_embeddings'],
        ),
        token_types=config['type_vocab_size'],
        layer_norm_eps=eps,
    )
    note = f'its LayerNorm epsilon is {eps}, that of BERT {LAYER_NORM_EPS}; architecture.json records it'
    return architecture, () if eps == LAYER_NORM_EPS else (note,)


def head_of(form: str, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], source: Path) -> Head:
    """The head that the tensors of a checkpoint make up, its labels by the configuration, or else numbers."""
    weights = [name for name in arrays if look_up(form, name)[1] == 'task.weight']
    if not weights:
        return PRETRAINING
    unread = [name for name in UNREAD if name in (config.get('architectures') or ())]
    if unread or len(weights) > 1 or arrays[weights[0]].ndim != 2:
        raise ValueError(
            f'{source}: its head ({", ".join(unread or weights)}) is none of those that are read: '
            'pre-training, sequence classification, regression and question answering'
        )
    task = config.get('finetuning_task') or ''
    if any(weights[0].endswith(name) for name in QUESTION_ANSWERING):
        return Head('question_answering', (), str(task))
    count = len(arrays[weights[0]])
    if count == 1:
        return Head('regression', (), str(task))
    if config.get('problem_type') == 'multi_label_classification':
        raise ValueError(f'{source}: a classification with several labels at a time is not read')
    named = config.get('id2label') or {str(i): str(i) for i in range(count)}
    if (
        not isinstance(named, dict)
        or sorted(named) != sorted(map(str, range(count)))
        or not all(isinstance(label, str) for label in named.values())
    ):
        raise ValueError(
            f'{source}: id2label must have a word for each of the {count} rows of {weights[0]}, found '
            f'{named!r:.200}'
        )
    return Head('classification', tuple(named[str(i)] for i in range(count)), str(task))


def _beside(directory: Path, given: Optional[Path]) -> Vocabulary:
    path = given or directory / 'vocab.txt'
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such vocabulary; put the vocab.txt of the checkpoint there, or give --vocabulary'
        )
    return (
        read_gluonnlp_vocabulary(path) if path.suffix in ('.vocab', '.json') else _read_text_vocabulary(path)
    )


def _read_text_vocabulary(path: Path) -> Vocabulary:
    read_small(path)  # for its limit
    return read_vocabulary(path)


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
    if any('\n' in token or '\r' in token for token in tokens):
        raise ValueError(f'{path}: a token has a line break')
    return vocabulary_of(tokens, source=str(path))


def read_hugging_face(directory: Path, vocabulary: Optional[Path] = None) -> Source:
    """A Hugging Face directory: ``config.json``, ``vocab.txt`` and safetensors or PyTorch's ``.bin``, in one
    file or several.
    """
    config = read_json(directory / 'config.json')
    architecture, notes = architecture_of(config, directory / 'config.json')
    words = _beside(directory, vocabulary)
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
    head = head_of('Hugging Face', arrays, config, directory)
    return Source('Hugging Face', architecture, words, head, arrays, notes=notes)


def read_google(prefix: Path, vocabulary: Optional[Path] = None) -> Source:
    """A TensorFlow checkpoint of Google's BERT, ``bert_config.json`` and ``vocab.txt`` beside it."""
    config = read_json(prefix.parent / 'bert_config.json')
    architecture, notes = architecture_of(config, prefix.parent / 'bert_config.json')
    words = _beside(prefix.parent, vocabulary)
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


def read_params(path: Path) -> Dict[str, np.ndarray]:
    """The arrays of an MXNet parameter file; a leading ``arg:`` or ``aux:`` is no part of a name, bfloat16
    becomes float32.

    Raises
    ------
    FileNotFoundError, ValueError
        As `existing` and `read_arrays`, and if two names are one without their beginnings.
    """
    arrays: Dict[str, np.ndarray] = {}
    for name, array in read_arrays(existing(path)).items():
        name = name[4:] if name.startswith(('arg:', 'aux:')) else name
        if name in arrays:
            raise ValueError(f'{path}: {name} occurs twice')
        arrays[name] = array_of(array.tobytes(), 'BF16', array.shape) if array.dtype == BFLOAT16 else array
    return arrays


def read_gluonnlp(path: Path, vocabulary: Optional[Path] = None, heads: Optional[int] = None) -> Source:
    """A GluonNLP parameter file with a ``.vocab`` or ``vocab.txt``; the widths are those of its arrays."""
    named = re.match(r'bert_[0-9]+_[0-9]+_([0-9]{1,4})(?![0-9])', path.name)
    heads = heads or (int(named.group(1)) if named else None)
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
    words = _beside(path.parent, vocabularies[0])
    arrays = read_params(path)
    return Source(
        'GluonNLP', _measured(arrays, heads, path), words, head_of('GluonNLP', arrays, {}, path), arrays
    )


def _measured(arrays: Mapping[str, np.ndarray], heads: int, path: Path) -> Architecture:
    """The architecture whose widths the arrays of a GluonNLP file have."""
    shapes: Dict[str, Tuple[int, ...]] = {}
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
    layers: List[int] = sorted(
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
