"""Networks that others pruned: the widths of their layers, from the shapes of the tensors.

Three kinds of files are read. Transformers' `prune_heads` leaves heads out, and lists them as
``pruned_heads``; files of nn_pruning have fewer filters, too. CoFi cuts the hidden size as well, and leaves a
block out whole: its dense layers are missing, and its LayerNorm lies in the file and is not computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.parameters import ParameterSpec, parameter_table
from .name_maps import look_up

_WORDS = 'embeddings.word_embeddings.weight'
_MOST_SAID = 20  # problems of one network's layers


def without_prefix(
    arrays: Mapping[str, np.ndarray], source: Path
) -> tuple[Mapping[str, np.ndarray], tuple[str, ...]]:
    """The arrays of a network that something was wrapped around, without what every name begins with, and a
    note; ValueError if there are two networks, or a name begins otherwise.
    """
    prefixes = [name[: -len(_WORDS)].removesuffix('bert.') for name in arrays if name.endswith(_WORDS)]
    if not any(prefixes):
        return arrays, ()
    if len(prefixes) > 1:
        raise ValueError(
            f'{source}: there are {len(prefixes)} networks, whose names begin with '
            f'{", ".join(map(repr, prefixes)):.200}; save the one that is meant alone'
        )
    (prefix,) = prefixes
    others = [name for name in arrays if not name.startswith(prefix)]
    if others:
        raise ValueError(
            f'{source}: the names of a network begin with {prefix!r:.80}, and others do not: '
            f'{", ".join(map(repr, others)):.200}; it is part of another one, which is not read'
        )
    bare = {name[len(prefix) :]: array for name, array in arrays.items()}
    return bare, (f'every name began with {prefix:.80}, which was taken away',)


def pruned(
    arrays: Mapping[str, np.ndarray], architecture: Architecture, config: Mapping[str, Any], source: Path
) -> tuple[Architecture, Mapping[str, np.ndarray], tuple[str, ...], tuple[str, ...]]:
    """A Hugging Face network whose tensors are smaller than its configuration says, with their widths.

    A block of no units becomes one whose only unit gives zero. Where attention is left out, the intermediate
    block belongs to the layer before.

    It comes with its arrays, by the numbers of the layers that there are, the names of LayerNorms of blocks
    that are left out, and notes. ValueError names ``pruned_heads`` and the layer, if the widths are not those
    of a pruned network.
    """
    table = parameter_table(architecture)
    specs = {name: table.get(look_up('Hugging Face', name)[1] or '') for name in arrays}
    have = {spec.name: arrays[name] for name, spec in specs.items() if spec}
    layers, places, problems = _layers(architecture, table, have, config)
    if problems:
        raise ValueError(f'{source}: {"; ".join(problems[:_MOST_SAID])}')
    words = have.get('word_embed.0.weight')
    h = min(architecture.h, words.shape[1]) if words is not None and words.ndim == 2 else architecture.h
    found = dataclasses.replace(architecture, h=h, layers=layers)
    if found == architecture:
        return architecture, arrays, (), ()
    renamed, dropped = {}, []
    for name, spec in specs.items():
        if spec is None or spec.layer is None:
            renamed[name] = arrays[name]
        elif (spec.layer, spec.part) not in places:
            dropped.append(name)
        else:
            place, array = places[spec.layer, spec.part], arrays[name]
            if 0 in array.shape:
                unit = architecture.layers[0].k if spec.part == 'attention' else 1
                array = np.zeros([side or unit for side in array.shape], np.float32)
            renamed[name.replace(f'.layer.{spec.layer}.', f'.layer.{place}.')] = array
    absent = [
        f'{part.replace("_", "-")} of layer {i}'
        for i in range(len(architecture.layers))
        for part in ('attention', 'feed_forward')
        if (i, part) not in places
    ]
    note = (
        f'the tensors are smaller than {source.name} says, as those of a pruned network; their widths count'
    )
    notes = (note, f'left out: {", ".join(absent)}') if absent else (note,)
    return found, renamed, tuple(dropped), notes


def _layers(
    architecture: Architecture,
    table: Mapping[str, ParameterSpec],
    have: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
) -> tuple[list[LayerDims], dict[tuple[int | None, str], int], list[str]]:
    """The widths of the layers that are there, by the shapes of arrays with the names of a parameter table;
    in which of them each block of each layer lies, but for those that are left out; and what is wrong.
    """
    stated, problems = _stated_heads(config)
    layers: list[LayerDims] = []
    places: dict[tuple[int | None, str], int] = {}
    for i, whole in enumerate(architecture.layers):
        for part, most, unit in (('attention', whole.a, whole.k), ('feed_forward', whole.f, 1)):
            names = [name for name, spec in table.items() if (spec.layer, spec.part) == (i, part)]
            if {name for name in names if name in have} == {name for name in names if 'layer_norm' in name}:
                continue
            first = have.get(names[0])  # of queries, or of D
            rows = len(first) if first is not None and first.ndim == 2 else most * unit
            count, rest = divmod(rows, unit)
            if rest or count > most:
                problems.append(f'{names[0]} has {rows} rows, wanted {most} times {unit} or fewer')
            if part == 'attention':
                layers.append(LayerDims(max(count, 1), unit, unit, 0))
                left = most - len(stated.get(i, ()))
                if stated and count != left:
                    problems.append(f'layer {i} has {count} heads, and pruned_heads leaves it {left}')
            elif not layers or layers[-1].f:
                problems.append(f'layer {i} has an intermediate block and no attention, as the one before it')
                continue
            else:
                layers[-1] = dataclasses.replace(layers[-1], f=max(count, 1))
            places[i, part] = len(layers) - 1
    return layers, places, problems


def _stated_heads(config: Mapping[str, Any]) -> tuple[dict[int, list[int]], list[str]]:
    """The heads that a configuration says are pruned, by layer, and what is wrong with that."""
    values = config.get('pruned_heads') or {}
    fits = isinstance(values, dict) and all(
        str(layer).isdecimal() and isinstance(heads, list) and len(set(map(repr, heads))) == len(heads)
        for layer, heads in values.items()
    )
    if not fits:
        return {}, [f'pruned_heads must have a list of different heads by layer, found {values!r:.80}']
    return {int(layer): heads for layer, heads in values.items()}, []
