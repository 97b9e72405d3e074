"""The architecture and the head that a checkpoint's configuration describes.

A directory that `--format transformers` wrote for uneven widths has them in its configuration. The file of
code that lies there, too, is for Transformers; it is never read here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.architecture import LAYER_NORM_EPS, Architecture, LayerDims, epsilon_problems
from ..architecture.heads import PRETRAINING, Head
from ..architecture.named import uniform
from ..architecture.parameters import PARTS
from ..runs.display import number_of
from .name_maps import QUESTION_ANSWERING, look_up

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
    'hidden_act': ('gelu', 'gelu_python'),
    'position_embedding_type': ('absolute',),
    'is_decoder': (False,),
    'add_cross_attention': (False,),
    # of nn_pruning, which replaces parts of the network
    'gelu_patch': (False,),
    'layer_norm_patch': (False,),
    'layer_norm_type': ('layer_norm', None),
}
UNEVEN = 'optbert'  # the model_type of widths that differ from layer to layer
# Fields that layers of several widths need not have: a list of the layers' widths stands for them.
PER_LAYER = ('num_hidden_layers', 'num_attention_heads', 'intermediate_size')
LETTERS = {'a': 1 << 12, 'k': 1 << 14, 'v': 1 << 14, 'f': 1 << 17}  # more than any layer has
MOST_SAID = 20  # problems of one configuration's layers
OWN = 'gluon_optbert'  # what an export of this package records in its configuration
# Networks that are not read although their heads have the names of a sequence classification's.
UNREAD = ('BertForMultipleChoice',)


def architecture_of(config: Mapping[str, Any], source: Path) -> tuple[Architecture, tuple[str, ...]]:
    """The architecture that a configuration describes, and notes on it for people.

    Raises
    ------
    ValueError
        With everything that is wrong with the configuration; at most `MOST_SAID` problems.
    """
    kind = config.get('model_type', 'bert')
    uneven = kind == UNEVEN
    if kind not in ('bert', UNEVEN):  # all else follows from it
        raise ValueError(f'{source}: model_type is {kind!r:.80}, and networks of the type bert are read')
    problems = [
        problem
        for name, most in WIDTHS.items()
        if not (uneven and name in PER_LAYER)
        for problem in _outside(name, config.get(name), 1, most)
    ]
    problems += [
        f'{name} must be {" or ".join(map(str, values))}, found {config[name]!r:.80}'
        for name, values in FIXED.items()
        if config.get(name, values[0]) not in values
    ]
    eps = config.get('layer_norm_eps', LAYER_NORM_EPS)
    problems += epsilon_problems(eps)
    if uneven:
        problems += _wrong_layers(config)
    elif not problems and config['hidden_size'] % config['num_attention_heads']:
        problems.append(
            f'num_attention_heads {config["num_attention_heads"]} does not divide hidden_size '
            f'{config["hidden_size"]}'
        )
    if problems:
        raise ValueError(f'{source}: not a BERT that can be read: {"; ".join(problems[:MOST_SAID])}')
    if uneven:
        layers = tuple(LayerDims(**layer) for layer in config['layer_widths'])
        h, e = config['hidden_size'], config.get('embedding_size')
        architecture = Architecture(h, layers, config['vocab_size'], e)
    else:
        architecture = uniform(
            layers=config['num_hidden_layers'],
            h=config['hidden_size'],
            a=config['num_attention_heads'],
            f=config['intermediate_size'],
            vocab_size=config['vocab_size'],
        )
    notes = []
    if eps != LAYER_NORM_EPS:
        notes.append(
            f'its LayerNorm epsilon is {eps}, that of BERT {LAYER_NORM_EPS}; architecture.json records it'
        )
    if config.get('auto_map') and not uneven:
        notes.append(
            'its configuration names code of its own (auto_map); that was not run, and it was read as a BERT'
        )
    return dataclasses.replace(
        architecture,
        max_length=config['max_position_embeddings'],
        token_types=config['type_vocab_size'],
        layer_norm_eps=eps,
    ), tuple(notes)


def _outside(name: str, value: Any, least: int, most: int) -> list[str]:
    """The problem of a width that is no whole number in its range."""
    right = type(value) is int and least <= value <= most
    return [] if right else [f'{name} must be a whole number from {least} to {most}, found {value!r:.80}']


def _wrong_layers(config: Mapping[str, Any]) -> list[str]:
    """The problems of the widths of the layers and of the embedding."""
    layers, e, most = config.get('layer_widths'), config.get('embedding_size'), WIDTHS['num_hidden_layers']
    problems = [] if e is None else _outside('embedding_size', e, 1, WIDTHS['hidden_size'])
    if not isinstance(layers, list) or len(layers) > most:
        return [*problems, f'layer_widths must be a list of at most {most} layers, found {layers!r:.80}']
    if config.get('num_hidden_layers', len(layers)) != len(layers):
        problems.append(f'num_hidden_layers is not the length of layer_widths, {len(layers)}')
    for i, layer in enumerate(layers):
        if not isinstance(layer, dict) or set(layer) != set(LETTERS):
            problems.append(f'layer_widths must give a, k, v and f for layer {i}, found {layer!r:.80}')
            continue
        for letter, most in LETTERS.items():
            problems += _outside(f'{letter} of layer {i}', layer[letter], 0 if letter == 'f' else 1, most)
    return problems


def recorded(config: Mapping[str, Any], source: Path) -> tuple[Head, tuple[str, ...]]:
    """The head, and its parts that are random, that an export of this package recorded in a configuration;
    ValueError if the record is damaged.
    """
    own = config.get(OWN)
    if own is None:
        return PRETRAINING, ()
    untrained = own.get('untrained') if isinstance(own, dict) else None
    if not isinstance(untrained, list) or not all(part in tuple(PARTS) for part in untrained):
        raise ValueError(f'{source}: {OWN} must have a head and a list of random parts, found {own!r:.200}')
    return Head.from_dict(own.get('head'), source=f'{source}: {OWN}'), tuple(untrained)


def head_of(form: str, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], source: Path) -> Head:
    """The head that the tensors of a checkpoint make up, its labels by the configuration, or else numbers.

    The labels and columns that an export of this package recorded are taken if they are of the same head,
    perhaps in another order or other capitals; the order is that of the configuration.
    """
    head = _head_of_tensors(form, arrays, config, source)
    stated, _ = recorded(config, source)
    rows = stated.rows_in(head)
    if rows is None:
        return head
    order = sorted(range(len(rows)), key=rows.__getitem__)
    words = {
        name: tuple(getattr(stated, name)[i] for i in order)
        for name in ('labels', 'names')
        if getattr(stated, name)
    }
    return dataclasses.replace(stated, **words)


def _head_of_tensors(
    form: str, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any], source: Path
) -> Head:
    """The head by the tensors of a checkpoint and the fields of Transformers alone."""
    weights = [name for name in arrays if look_up(form, name)[1] == 'task.weight']
    if not weights:
        return PRETRAINING
    classes = config.get('architectures') or []
    if not isinstance(classes, list):
        raise ValueError(f'{source}: architectures must be a list of names, found {classes!r:.80}')
    unread = [name for name in UNREAD if name in classes]
    if unread or len(weights) > 1 or arrays[weights[0]].ndim != 2:
        raise ValueError(
            f'{source}: its head ({", ".join(unread or weights)}) is none of those that are read: '
            'pre-training, classification of sequences and tokens, regression and question answering'
        )
    task = config.get('finetuning_task') or ''
    if any(weights[0].endswith(name) for name in QUESTION_ANSWERING):
        return Head('question_answering', (), str(task))
    count, problem = len(arrays[weights[0]]), config.get('problem_type')
    of_tokens = any(name.endswith('ForTokenClassification') for name in classes) or not (
        classes or any(look_up(form, name)[1] == 'pooler.weight' for name in arrays)
    )
    kind = 'multi_label' if problem == 'multi_label_classification' else 'classification'
    if of_tokens:
        kind, problem = 'token_classification', None
    if problem in ('regression', 'single_label_classification') and (problem == 'regression') != (count == 1):
        raise ValueError(
            f'{source}: problem_type is {problem}, and {weights[0]} has {number_of(count, "row")}; a '
            'regression to one number and a classification of two labels and more are read'
        )
    if count == 1 and kind == 'classification':
        return Head('regression', (), str(task))
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
    numbers = config.get('label2id')
    numbers = numbers if isinstance(numbers, dict) else {}
    numbers = {**{label.casefold(): number for label, number in numbers.items()}, **numbers}
    for i, label in named.items():
        number = numbers.get(label, numbers.get(label.casefold(), int(i)))
        if str(number) != i:
            raise ValueError(
                f'{source}: {label!r:.80} is {number!r:.80} in label2id and {i} in id2label; write the right '
                'one into both'
            )
    try:
        return Head(kind, tuple(named[str(i)] for i in range(count)), str(task))
    except ValueError as error:
        raise ValueError(f'{source}: id2label: {error}') from error
