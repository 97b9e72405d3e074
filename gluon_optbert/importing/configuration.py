"""The architecture and the head that a checkpoint's configuration describes.

A directory that `--format transformers` wrote for uneven widths has them in its configuration. The file of
code that lies there, too, is for Transformers; it is never read here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field, StrictFloat, StrictInt, model_validator

from ..architecture.architecture import LAYER_NORM_EPS, Architecture, LayerDims
from ..architecture.heads import OF_LABELS, PRETRAINING, Head
from ..architecture.parameters import PARTS
from ..runs.display import number_of
from ..runs.files import checked
from ..runs.limits import MOST_LAYERS
from .name_maps import QUESTION_ANSWERING, look_up

UNEVEN = 'optbert'  # the model_type of widths that differ from layer to layer
OWN = 'gluon_optbert'  # what an export of this package records in its configuration
# Networks that are not read although their heads have the names of a sequence classification's.
UNREAD = ('BertForMultipleChoice',)


def _whole(least: int, most: int) -> Any:
    """The type of a width; the most is more than anything in use has."""
    return Annotated[StrictInt, Field(ge=least, le=most)]


class _Network(BaseModel):
    """Settings of a configuration that networks of any layers have."""

    vocab_size: _whole(1, 1 << 24)
    hidden_size: _whole(1, 1 << 14)
    max_position_embeddings: _whole(1, 1 << 20)
    type_vocab_size: _whole(1, 1 << 10)
    layer_norm_eps: Annotated[StrictFloat, Field(ge=0, lt=1)] = LAYER_NORM_EPS
    hidden_act: Literal['gelu', 'gelu_python'] = 'gelu'
    position_embedding_type: Literal['absolute'] = 'absolute'
    is_decoder: Literal[False] = False
    add_cross_attention: Literal[False] = False
    # of nn_pruning, which replaces parts of the network
    gelu_patch: Literal[False] = False
    layer_norm_patch: Literal[False] = False
    layer_norm_type: Literal['layer_norm', None] = 'layer_norm'


class _Bert(_Network):
    """One whose layers are equal."""

    embedding_size: ClassVar[None] = None
    num_hidden_layers: _whole(1, MOST_LAYERS)
    num_attention_heads: _whole(1, 1 << 12)
    intermediate_size: _whole(1, 1 << 17)

    @model_validator(mode='after')
    def _heads_are_alike(self) -> _Bert:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f'num_attention_heads {self.num_attention_heads} does not divide hidden_size '
                f'{self.hidden_size}'
            )
        return self

    def layers(self) -> tuple[LayerDims, ...]:
        width = self.hidden_size // self.num_attention_heads
        dims = LayerDims(self.num_attention_heads, width, width, self.intermediate_size)
        return (dims,) * self.num_hidden_layers


class _Layer(BaseModel, extra='forbid'):
    a: _whole(1, 1 << 12)
    k: _whole(1, 1 << 14)
    v: _whole(1, 1 << 14)
    f: _whole(0, 1 << 17)


class _Uneven(_Network):
    """One that has the widths of its layers in a list."""

    layer_widths: Annotated[list[_Layer], Field(max_length=MOST_LAYERS)]
    num_hidden_layers: int | None = None
    embedding_size: _whole(1, 1 << 14) | None = None

    @model_validator(mode='after')
    def _counts_its_layers(self) -> _Uneven:
        if self.num_hidden_layers not in (None, len(self.layer_widths)):
            raise ValueError(f'num_hidden_layers is not the length of layer_widths, {len(self.layer_widths)}')
        return self

    def layers(self) -> tuple[LayerDims, ...]:
        return tuple(LayerDims(**dict(layer)) for layer in self.layer_widths)


def architecture_of(config: Mapping[str, Any], source: Path) -> tuple[Architecture, tuple[str, ...]]:
    """The architecture that a configuration describes, and notes on it for people; ValueError with all that
    is wrong with it.
    """
    kind = config.get('model_type', 'bert')
    if kind not in ('bert', UNEVEN):  # all else follows from it
        raise ValueError(f'{source}: model_type is {kind!r:.80}, and networks of the type bert are read')
    form = _Uneven if kind == UNEVEN else _Bert
    found = checked(form, config, source=f'{source}: not a BERT that can be read')
    eps = found.layer_norm_eps
    notes = []
    if eps != LAYER_NORM_EPS:
        notes.append(
            f'its LayerNorm epsilon is {eps}, that of BERT {LAYER_NORM_EPS}; architecture.json records it'
        )
    if config.get('auto_map') and kind != UNEVEN:
        notes.append(
            'its configuration names code of its own (auto_map); that was not run, and it was read as a BERT'
        )
    architecture = Architecture(
        h=found.hidden_size,
        layers=found.layers(),
        vocab_size=found.vocab_size,
        e=found.embedding_size,
        max_length=found.max_position_embeddings,
        token_types=found.type_vocab_size,
        layer_norm_eps=eps,
    )
    return architecture, tuple(notes)


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
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(f'{source}: architectures must be a list of names, found {classes!r:.80}')
    unread = [name for name in UNREAD if name in classes]
    if unread or len(weights) > 1 or arrays[weights[0]].ndim != 2:
        raise ValueError(
            f'{source}: its head ({", ".join(unread or weights)}) is none of those that are read: '
            'pre-training, classification of sequences and tokens, regression and question answering'
        )
    task, count = str(config.get('finetuning_task') or ''), len(arrays[weights[0]])
    kind = _kind_of_head(form, arrays, weights[0], classes, config.get('problem_type'), source)
    labels = _labels_of_head(config, weights[0], count, source) if kind in OF_LABELS else ()
    try:
        return Head(kind, labels, task)
    except ValueError as error:
        raise ValueError(f'{source}: id2label: {error}') from error


def _kind_of_head(
    form: str,
    arrays: Mapping[str, np.ndarray],
    weight: str,
    classes: Sequence[str],
    problem: Any,
    source: Path,
) -> str:
    """The kind of the head with a weight, by the classes and the problem type of a configuration."""
    if any(weight.endswith(name) for name in QUESTION_ANSWERING):
        return 'question_answering'
    if any(name.endswith('ForTokenClassification') for name in classes) or not (
        classes or any(look_up(form, name)[1] == 'pooler.weight' for name in arrays)
    ):
        return 'token_classification'
    count = len(arrays[weight])
    if problem in ('regression', 'single_label_classification') and (problem == 'regression') != (count == 1):
        raise ValueError(
            f'{source}: problem_type is {problem}, and {weight} has {number_of(count, "row")}; a regression '
            'to one number and a classification of two labels and more are read'
        )
    if problem == 'multi_label_classification':
        return 'multi_label'
    return 'regression' if count == 1 else 'classification'


def _labels_of_head(config: Mapping[str, Any], weight: str, count: int, source: Path) -> tuple[str, ...]:
    """The labels of the rows of a weight: words of a configuration, or else numbers."""
    named = config.get('id2label') or {str(i): str(i) for i in range(count)}
    if (
        not isinstance(named, dict)
        or sorted(named) != sorted(map(str, range(count)))
        or not all(isinstance(label, str) for label in named.values())
    ):
        raise ValueError(
            f'{source}: id2label must have a word for each of the {count} rows of {weight}, found '
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
    return tuple(named[str(i)] for i in range(count))
