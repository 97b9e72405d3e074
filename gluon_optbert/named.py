"""Architectures by name: BERT-l, the published optBERTs, BERT-all uniform, ALBERT-e and "Undivided
Attention".

`architecture.resolve` looks names up here, and ``python -m gluon_optbert.architecture NAME`` prints what is
found."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
import textwrap
from typing import Any, Collection, Dict, List, Optional, Sequence, Tuple

from .architecture import Architecture, LayerDims, bert_base, resolve, uniform
from .cost import CostModel, ParameterCost, beta, count_flops, count_parameters
from .paper import load_table
from .runs.command_line import command

VOCAB_SIZE = 30522  # of BERT uncased
SCALE_STEPS = 10000  # the factor of `scale_uniformly` is a multiple of 1/10,000
LAYER_TABLES = {
    99: 12,
    88: 7,
}  # the tables that give an optBERT-all layer by layer, by millions of parameters
OPTBERTS = tuple(f'optbert_{row["parameters_m"]}m' for row in load_table(10).records()[1:])
FORMS = (
    f'bert_base; bert_L (L layers); {", ".join(OPTBERTS)}; uniform_66m (BERT-base with all widths scaled to '
    f'66 million '
    'parameters); albert_eE (BERT-base, embedding width E); lL_hH_aA (uniform, optionally with _kK _vV _fF '
    '_eE, as in '
    'l4_h256_a4_f512); and undivided_every_N or undivided_keep_0_5_11 (f = 0 in the other layers, optionally '
    'with '
    '_stacked_M), of BERT-base or after any other name, as in l4_h256_a4_undivided_every_2'
)
EXAMPLES = ('bert_base', 'bert_9', 'uniform_66m', 'albert_e128', 'l4_h256_a4', 'undivided_every_2') + OPTBERTS
PUBLISHED_BETA = {'a': '1.0', 'h': '0.73', 'k': '0.093', 'v': '0.093', 'f': '0.0078'}  # optBERT, section 5
COUNTING_RULE = 'embeddings (word, position, token type, LayerNorm) and encoder, without pooler and heads'


def from_name(name: str) -> Optional[Architecture]:
    """The architecture of that name, with BERT's vocabulary; None if no name looks like it.

    Raises
    ------
    ValueError
        If it is a name of one of these forms, but no network can be made of its numbers.
    """

    def numbers(pattern: str) -> Optional[List[int]]:
        found = re.fullmatch(pattern, name, flags=re.ASCII)
        return [int(group) for group in found.groups()] if found else None

    undivided_name = re.fullmatch(
        r'(?:(.+)_)?undivided_(every|keep)_(\d{1,4}(?:_\d{1,4})*)(?:_stacked_(\d{1,3}))?',
        name,
        flags=re.ASCII,
    )
    if undivided_name:
        base_name, how, which, stacked = undivided_name.groups()
        base = from_name(base_name or 'bert_base')
        chosen = [int(number) for number in which.split('_')]
        if base is None or (how == 'every' and len(chosen) > 1):
            return None
        keep = every(chosen[0], len(base.layers)) if how == 'every' else chosen
        return undivided(base, keep, stacked=int(stacked or 0))
    if name == 'bert_base':
        return bert_base()
    layers, embedding = numbers(r'bert_(\d{1,4})'), numbers(r'albert_e(\d{1,6})')
    if layers:
        return bert_base(layers[0])
    if embedding:
        return dataclasses.replace(bert_base(), e=embedding[0])
    if name in OPTBERTS:
        return published(int(name[len('optbert_') : -1]))
    size = re.fullmatch(r'uniform_(\d{1,4}(?:\.\d{1,6})?)m', name, flags=re.ASCII)
    if size:
        return scale_uniformly(bert_base(), float(size.group(1)) * 1e6)
    return _uniform_from_name(name)


def _uniform_from_name(name: str) -> Optional[Architecture]:
    """The network of a name like ``l4_h256_a4_k32_f512``; None if it is not of that form."""
    found = re.fullmatch(r'l(\d{1,4})_h(\d{1,6})_a(\d{1,6})((?:_[kvfe]\d{1,6})*)', name, flags=re.ASCII)
    if not found:
        return None
    given = [(part[0], int(part[1:])) for part in found.group(4).split('_') if part]
    options = dict(given)
    if len(options) < len(given):
        raise ValueError(f'{name!r} gives a width twice')
    layers, h, a = (int(group) for group in found.groups()[:3])
    return uniform(layers=layers, h=h, a=a, vocab_size=VOCAB_SIZE, **options)


def unknown_name(text: str) -> str:
    """What to say of a word that is neither a file nor a name."""
    near = difflib.get_close_matches(text.lower(), EXAMPLES, n=1)
    hint = f' (did you mean {near[0]}?)' if near else ''
    return f'{text!r} is neither a file nor an architecture{hint}; names are {FORMS}'


def published(parameters_m: int) -> Architecture:
    """The best optBERT of a published size in millions of parameters (optBERT, Tables 7, 10 and 12).

    Some cells of the tables were inferred; `uncertainties` says which.

    Raises
    ------
    ValueError
        If there is none of that size.
    """
    rows = {row['parameters_m']: row for row in load_table(10).records()[1:]}
    if parameters_m not in rows:
        raise ValueError(
            f'no optBERT of {parameters_m} million parameters was published; there are {", ".join(OPTBERTS)}'
        )
    row = rows[parameters_m]
    if parameters_m in LAYER_TABLES:
        table = load_table(LAYER_TABLES[parameters_m])
        layers = tuple(LayerDims(**{letter: layer[letter] for letter in 'akvf'}) for layer in table.records())
    else:  # no range in Table 10: all layers are equal
        layers = (LayerDims(**{letter: row[letter + '_max'] for letter in 'akvf'}),) * row['layers']
    return Architecture(h=row['h'], layers=layers, vocab_size=VOCAB_SIZE)


def uncertainties(name: str) -> List[str]:
    """What had to be inferred about a published architecture, a sentence or two per gap in its table."""
    sizes = {f'optbert_{size}m': number for size, number in LAYER_TABLES.items()}
    if name not in sizes:
        return []
    groups: Dict[Tuple[str, str], List[Tuple[int, str]]] = {}
    for one in load_table(sizes[name]).inferred:
        if one.column != 'layer':
            groups.setdefault((one.printed, one.reason), []).append((one.row, one.column))
    stories = []
    for (printed, reason), cells in groups.items():
        letters = ' and '.join(sorted({column for _, column in cells}))
        layers = sorted({row + 1 for row, _ in cells})
        where = f'layer {layers[0]}' if len(layers) == 1 else f'layers {", ".join(map(str, layers))}'
        found = f'the text has {printed!r}' if printed else 'the text has nothing'
        stories.append(f'Table {sizes[name]}, {letters} of {where}: inferred, {found}. {reason}')
    return stories


def scale_uniformly(base: Architecture, target: float, *, cost: CostModel = ParameterCost()) -> Architecture:
    """The base with all of its widths h, a, k, v and f times one factor: "BERT-all uniform" of optBERT,
    section 6.

    Every width is rounded to the nearest whole number (a half goes up), to no less than 1; f = 0 stays 0, and
    an embedding width e stays as it is. Of the factors 0.0001, 0.0002, ... 1 it is the one whose cost comes
    nearest to the target, from above or below; of two equally near, the smaller network.

    Parameters
    ----------
    base : Architecture
    target : float
        In the cost model's unit.
    cost : CostModel

    Raises
    ------
    ValueError
        If the target is above the base's cost, or below that of widths of 1.
    """

    def scaled(step: int) -> Architecture:
        return base.with_widths(
            {
                key: width and max(1, (2 * width * step + SCALE_STEPS) // (2 * SCALE_STEPS))
                for key, width in base.widths().items()
            }
        )

    least, most = cost.cost(scaled(0)), cost.cost(base)
    if not least <= target <= most:
        raise ValueError(
            f'widths can be scaled to between {least:,.0f} and {most:,.0f} {cost.unit}, not to {target:,.0f}'
        )
    low, high = 0, SCALE_STEPS  # cost(low) <= target; above high it is more
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost.cost(scaled(middle)) <= target else (low, middle - 1)
    return min(
        (scaled(step) for step in (low, min(low + 1, SCALE_STEPS))),
        key=lambda candidate: abs(cost.cost(candidate) - target),
    )


def every(n: int, layers: int) -> List[int]:
    """Every n-th layer, counted from 0: n - 1, 2n - 1, and so on, so that n = 2 keeps the last of twelve.

    Raises
    ------
    ValueError
        If there is no n-th layer.
    """
    if not 1 <= n <= layers:
        raise ValueError(f'of {layers} layers there is no {n}-th one to keep an intermediate block in')
    return list(range(n - 1, layers, n))


def undivided(base: Architecture, keep: Collection[int], *, stacked: int = 0) -> Architecture:
    """The base with intermediate blocks in the kept layers only ("Undivided Attention", arXiv:2012.11881).

    The abstract is the source: fewer intermediate blocks and attention cells between them. How many, and
    where, is the caller's.

    Parameters
    ----------
    base : Architecture
    keep : collection of int
        The layers, counted from 0, that keep their f; in the others it is 0.
    stacked : int
        How many attention cells more stand before each kept layer, with its a, k and v and with f = 0.

    Raises
    ------
    ValueError
        If a layer to keep is not there, is given twice, or has no intermediate block.
    """
    problems = [
        f'there is no layer {i} among {len(base.layers)}, counted from 0'
        for i in sorted(set(keep))
        if not 0 <= i < len(base.layers)
    ]
    problems += [
        f'layer {i} has no intermediate block to keep'
        for i in sorted(set(keep))
        if 0 <= i < len(base.layers) and not base.layers[i].f
    ]
    if len(set(keep)) < len(keep):
        problems.append('a layer to keep is given twice')
    if stacked < 0:
        problems.append(f'stacked must not be negative, found {stacked}')
    if problems:
        raise ValueError('; '.join(problems))
    layers: List[LayerDims] = []
    for i, layer in enumerate(base.layers):
        attention = dataclasses.replace(layer, f=0)
        layers += [attention] * stacked + [layer] if i in keep else [attention]
    return dataclasses.replace(base, layers=tuple(layers))


def describe(name: str, architecture: Architecture, length: int) -> Dict[str, Any]:
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


def _layer_lines(architecture: Architecture) -> List[str]:
    """The widths as a table; layers that are equal and follow each other share a line."""
    lines, first = [f'{"layer":>7} {"a":>5} {"k":>5} {"v":>5} {"f":>6}'], 0
    layers = architecture.layers
    for i, layer in enumerate(layers):
        if i + 1 == len(layers) or layers[i + 1] != layer:
            where = str(i + 1) if i == first else f'{first + 1}-{i + 1}'
            lines.append(f'{where:>7} {layer.a:5d} {layer.k:5d} {layer.v:5d} {layer.f:6d}')
            first = i + 1
    return lines


def _beta_lines(values: Dict[str, float]) -> List[str]:
    """Our weights of equation (2), over the layers, beside the published ones."""
    lines = [f'{"width":>7} {"here":>19}   published for BERT-base']
    for letter, printed in PUBLISHED_BETA.items():
        own = [value for key, value in values.items() if key[0] == letter and value]
        low, high = (f'{bound:.4g}' for bound in (min(own), max(own))) if own else ('-', '-')
        lines.append(f'{letter:>7} {low if low == high else low + " to " + high:>19}   {printed}')
    return lines


def readable(story: Dict[str, Any], architecture: Architecture) -> str:
    """What `describe` found, for people."""
    parameters, flops = story['parameters'], story['flops']
    embedding = 'e = h' if architecture.e is None else f'e = {architecture.e}'

    def amounts(rows: Sequence[Tuple[str, int, str]]) -> List[str]:
        return [f'  {what:<14} {amount:>18,}  {note}'.rstrip() for what, amount, note in rows]

    lines = [
        f'{story["name"]}: h = {architecture.h}, {embedding}, {len(architecture.layers)} layers, vocabulary '
        f'{architecture.vocab_size:,}, {architecture.max_length} positions, {architecture.token_types} token '
        f'types',
        *(line for note in story['inferred'] for line in textwrap.wrap(note, 116, subsequent_indent='  ')),
        '',
        *_layer_lines(architecture),
        '',
        'parameters',
    ]
    lines += amounts(
        [
            ('embeddings', parameters['embeddings'], ''),
            ('attention', parameters['attention'], ''),
            ('feed-forward', parameters['feed_forward'], ''),
            (
                'total',
                parameters['published_rule'],
                f'{parameters["published_rule"] / 1e6:.2f} M by the published rule: {COUNTING_RULE}',
            ),
            ('pooler', parameters['pooler'], ''),
            ('heads', parameters['heads'], 'MLM and NSP; the decoder shares the word embedding'),
            ('everything', parameters['everything'], ''),
        ]
    )
    lines += [
        '',
        f'FLOPs of one sequence of {flops["length"]} tokens (matrix products, two for each multiply-add; no '
        f'pooler, '
        'no heads)',
    ]
    lines += amounts(
        [('embeddings', flops['embeddings'], 'the projection from e to h')] if flops['embeddings'] else []
    )
    lines += amounts(
        [
            ('attention', flops['attention'], ''),
            ('feed-forward', flops['feed_forward'], ''),
            ('total', flops['total'], f'{flops["total"] / 1e9:.2f} G'),
        ]
    )
    lines += [
        '',
        'beta: the parameters that go with one unit of a width, over those of the dearest head',
        *_beta_lines(story['beta']),
        'The published values are those that bert_base has here, cut off (not rounded) after two significant '
        'digits.',
    ]
    return '\n'.join(lines)


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print an architecture: its widths, parameters, FLOPs and beta."""
    parser = argparse.ArgumentParser(
        prog='python -m gluon_optbert.architecture',
        allow_abbrev=False,
        description=f'{main.__doc__}\n\nexample:\n  python -m gluon_optbert.architecture optbert_88m '
        f'--length 128',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    given = parser.parse_args(argv)
    architecture = resolve(given.name)
    story = describe(given.name, architecture, given.length)
    print(json.dumps(story, indent=1) if given.json else readable(story, architecture))
