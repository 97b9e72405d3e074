"""Print an architecture: ``python -m gluon_optbert.architecture NAME``."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from ..runs.command_line import Parser, command
from .architecture import Architecture
from .cost import ParameterCost, beta, count_flops, count_parameters
from .named import FORMS, resolve, uncertainties

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


def readable(story: dict[str, Any], architecture: Architecture) -> str:
    """The values that `describe` returns, for people."""
    embedding = 'e = h' if architecture.e is None else f'e = {architecture.e}'
    lines = [
        f'{story["name"]}: h = {architecture.h}, {embedding}, {len(architecture.layers)} layers, vocabulary '
        f'{architecture.vocab_size:,}, {architecture.max_length} positions, {architecture.token_types} token '
        'types',
        *(line for note in story['inferred'] for line in textwrap.wrap(note, 116, subsequent_indent='  ')),
        '',
        f'{"layer":>7} {"a":>5} {"k":>5} {"v":>5} {"f":>6}',
    ]
    first, layers = 0, architecture.layers
    for i, layer in enumerate(layers):  # equal layers that follow each other share a line
        if i + 1 == len(layers) or layers[i + 1] != layer:
            where = str(i + 1) if i == first else f'{first + 1}-{i + 1}'
            lines.append(f'{where:>7} {layer.a:5d} {layer.k:5d} {layer.v:5d} {layer.f:6d}')
            first = i + 1

    def add(what: str, amount: int, note: str = '') -> None:
        lines.append(f'  {what:<14} {amount:>18,}  {note}'.rstrip())

    parameters, flops = story['parameters'], story['flops']
    counted = parameters['published_rule']
    lines += ['', 'parameters']
    for part in ('embeddings', 'attention', 'feed_forward'):
        add(part.replace('_', '-'), parameters[part])
    add('total', counted, f'{counted / 1e6:.2f} M by the published rule: {COUNTING_RULE}')
    add('pooler', parameters['pooler'])
    add('heads', parameters['heads'], 'MLM and NSP; the decoder shares the word embedding')
    add('everything', parameters['everything'])
    lines += [
        '',
        f'FLOPs of one sequence of {flops["length"]} tokens (matrix products, two for each multiply-add; no '
        'pooler, no heads)',
    ]
    if flops['embeddings']:
        add('embeddings', flops['embeddings'], 'the projection from e to h')
    add('attention', flops['attention'])
    add('feed-forward', flops['feed_forward'])
    add('total', flops['total'], f'{flops["total"] / 1e9:.2f} G')
    lines += [
        '',
        'beta: the parameters that go with one unit of a width, over those of the dearest head',
        f'{"width":>7} {"here":>19}   published for BERT-base',
    ]
    for letter, printed in PUBLISHED_BETA.items():
        own = [value for key, value in story['beta'].items() if key[0] == letter and value]
        low, high = (f'{bound:.4g}' for bound in (min(own), max(own))) if own else ('-', '-')
        lines.append(f'{letter:>7} {low if low == high else low + " to " + high:>19}   {printed}')
    lines.append(
        'The published values are those that bert_base has here, cut off (not rounded) after two significant '
        'digits.'
    )
    return '\n'.join(lines)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Print an architecture: its widths, parameters, FLOPs and beta."""
    program = 'python -m gluon_optbert.architecture'
    parser = Parser(f'{main.__doc__}\n\nexample:\n  {program} optbert_88m --length 128', prog=program)
    parser.add_argument(
        'name',
        metavar='NAME',
        help=f'a name, an architecture.json, a model directory, or JSON itself; names are {FORMS}',
    )
    parser.add_argument(
        '--length',
        type=int,
        default=128,
        help='tokens of the sequence that FLOPs are counted for [default: %(default)s]',
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    arguments = parser.parse_args(argv)
    architecture = resolve(arguments.name)
    story = describe(arguments.name, architecture, arguments.length)
    print(json.dumps(story, indent=1) if arguments.json else readable(story, architecture))


if __name__ == '__main__':
    sys.exit(main())
