"""What an architecture is made of, for people and as JSON: widths, parameters by part, FLOPs and beta."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from .architecture import Architecture
from .cost import ParameterCost, beta, count_flops, count_parameters
from .named import uncertainties

PUBLISHED_BETA = {'a': '1.0', 'h': '0.73', 'k': '0.093', 'v': '0.093', 'f': '0.0078'}  # optBERT, section 5


COUNTING_RULE = 'embeddings (word, position, token type, LayerNorm) and encoder, without pooler and heads'


def describe(name: str, architecture: Architecture, length: int) -> dict[str, Any]:
    """All that the command prints, as JSON values.

    Raises
    ------
    ValueError
        If the network has no positions for that length.
    """
    if not 1 <= length <= architecture.max_length:
        raise ValueError(
            f'length must be from 1 to {architecture.max_length}, the positions of {name}, found {length}'
        )
    parameters, flops = count_parameters(architecture), count_flops(architecture, length)
    return {
        'name': name,
        'architecture': architecture.to_dict(),
        'inferred': uncertainties(name),
        'parameters': {
            **parameters,
            'published_rule': int(ParameterCost().cost(architecture)),
            'everything': sum(parameters.values()),
        },
        'published_rule': COUNTING_RULE,
        'flops': {'length': length, **flops, 'total': sum(flops.values())},
        'beta': beta(architecture, ParameterCost()),
        'published_beta_of_bert_base': {letter: float(value) for letter, value in PUBLISHED_BETA.items()},
    }


def _layer_lines(architecture: Architecture) -> list[str]:
    """The widths as a table; layers that are equal and follow each other share a line."""
    lines, first = [f'{"layer":>7} {"a":>5} {"k":>5} {"v":>5} {"f":>6}'], 0
    layers = architecture.layers
    for i, layer in enumerate(layers):
        if i + 1 == len(layers) or layers[i + 1] != layer:
            where = str(i + 1) if i == first else f'{first + 1}-{i + 1}'
            lines.append(f'{where:>7} {layer.a:5d} {layer.k:5d} {layer.v:5d} {layer.f:6d}')
            first = i + 1
    return lines


def _beta_lines(values: dict[str, float]) -> list[str]:
    """Our weights of equation (2), over the layers, beside the published ones."""
    lines = [f'{"width":>7} {"here":>19}   published for BERT-base']
    for letter, printed in PUBLISHED_BETA.items():
        own = [value for key, value in values.items() if key[0] == letter and value]
        low, high = (f'{bound:.4g}' for bound in (min(own), max(own))) if own else ('-', '-')
        lines.append(f'{letter:>7} {low if low == high else low + " to " + high:>19}   {printed}')
    return lines


def _amounts(rows: Sequence[tuple[str, int, str]]) -> list[str]:
    """A line for each name, number and note."""
    return [f'  {what:<14} {amount:>18,}  {note}'.rstrip() for what, amount, note in rows]


def _parameter_lines(parameters: Mapping[str, int]) -> list[str]:
    """The parameters by part, and what the published rule counts."""
    counted = parameters['published_rule']
    rows = [
        ('embeddings', parameters['embeddings'], ''),
        ('attention', parameters['attention'], ''),
        ('feed-forward', parameters['feed_forward'], ''),
        ('total', counted, f'{counted / 1e6:.2f} M by the published rule: {COUNTING_RULE}'),
        ('pooler', parameters['pooler'], ''),
        ('heads', parameters['heads'], 'MLM and NSP; the decoder shares the word embedding'),
        ('everything', parameters['everything'], ''),
    ]
    return ['parameters', *_amounts(rows)]


def _flops_lines(flops: Mapping[str, int]) -> list[str]:
    """The FLOPs by part."""
    rows = [('embeddings', flops['embeddings'], 'the projection from e to h')] if flops['embeddings'] else []
    rows += [
        ('attention', flops['attention'], ''),
        ('feed-forward', flops['feed_forward'], ''),
        ('total', flops['total'], f'{flops["total"] / 1e9:.2f} G'),
    ]
    return [
        f'FLOPs of one sequence of {flops["length"]} tokens (matrix products, two for each multiply-add; no '
        'pooler, no heads)',
        *_amounts(rows),
    ]


def readable(story: dict[str, Any], architecture: Architecture) -> str:
    """What `describe` returns, for people."""
    embedding = 'e = h' if architecture.e is None else f'e = {architecture.e}'
    lines = [
        f'{story["name"]}: h = {architecture.h}, {embedding}, {len(architecture.layers)} layers, vocabulary '
        f'{architecture.vocab_size:,}, {architecture.max_length} positions, {architecture.token_types} token '
        f'types',
        *(line for note in story['inferred'] for line in textwrap.wrap(note, 116, subsequent_indent='  ')),
        '',
        *_layer_lines(architecture),
        '',
        *_parameter_lines(story['parameters']),
        '',
        *_flops_lines(story['flops']),
        '',
        'beta: the parameters that go with one unit of a width, over those of the dearest head',
        *_beta_lines(story['beta']),
        'The published values are those that bert_base has here, cut off (not rounded) after two significant '
        'digits.',
    ]
    return '\n'.join(lines)
