"""Architectures by name: BERT-l, optBERTs, BERT-all uniform, ALBERT-e and "Undivided Attention".

``python -m gluon_optbert.architecture NAME`` prints what `resolve` finds."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection
from pathlib import Path

from ..runs.failures import meant
from .architecture import Architecture, LayerDims
from .cost import CostModel, ParameterCost
from .paper import load_table
from .parameters import LETTERS

VOCAB_SIZE = 30522  # of BERT uncased
NEAREST_STEPS = 10000  # `scale_uniformly` tries factors of 1/10,000, 2/10,000 …
BUDGET_STEPS = 2**40  # and for a budget much finer ones
# the tables that give an optBERT-all layer by layer, by millions of parameters
LAYER_TABLES = {99: 12, 88: 7}
OPTBERTS = tuple(f'optbert_{row["parameters_m"]}m' for row in load_table(10).records()[1:])
FORMS = (
    f'bert_base; bert_L (L layers); {", ".join(OPTBERTS)}; uniform_66m (BERT-base with all widths scaled to '
    '66 million parameters); albert_eE (BERT-base, embedding width E); lL_hH_aA (uniform, optionally with '
    '_kK _vV _fF _eE, as in l4_h256_a4_f512); and undivided_every_N or undivided_keep_0_5_11 (f = 0 in the '
    'other layers, optionally with _stacked_M), of BERT-base or after any other name, as in '
    'l4_h256_a4_undivided_every_2; a width has up to 6 digits, a number of layers up to 4'
)
EXAMPLES = ('bert_base', 'bert_9', 'uniform_66m', 'albert_e128', 'l4_h256_a4', 'undivided_every_2') + OPTBERTS


def uniform(
    *,
    layers: int,
    h: int,
    a: int,
    vocab_size: int,
    k: int | None = None,
    v: int | None = None,
    f: int | None = None,
    e: int | None = None,
    max_length: int = 512,
) -> Architecture:
    """A BERT with equal layers; k and v are h/a and f is 4h unless given (optBERT, Table 2).

    Raises
    ------
    ValueError
        If there is no layer, or k or v has to be derived and a does not divide h.
    """
    if layers < 1:
        raise ValueError(f'architecture: a network has at least one layer, found {layers}')
    if (k is None or v is None) and (a < 1 or h % a):
        raise ValueError(f'architecture: h={h} is not a multiple of a={a}, so k and v have to be given')
    dims = LayerDims(
        a=a, k=h // a if k is None else k, v=h // a if v is None else v, f=4 * h if f is None else f
    )
    return Architecture(h=h, layers=(dims,) * layers, vocab_size=vocab_size, e=e, max_length=max_length)


def bert_base(layers: int = 12) -> Architecture:
    """BERT-base uncased (Devlin et al., 2018), or BERT-l with fewer layers."""
    return uniform(layers=layers, h=768, a=12, vocab_size=VOCAB_SIZE)


def resolve(name: str | Path, *, vocab_size: int | None = None) -> Architecture:
    """The architecture that a name, a file, a model directory or inline JSON stands for.

    Names are those of `FORMS`.

    Parameters
    ----------
    vocab_size : int, optional
        Replaces the vocabulary size of a named architecture, whose widths stay what they are with BERT's
        vocabulary; one read from JSON keeps its own.

    Raises
    ------
    ValueError
        If it is none of them; the message says which names there are.
    """
    text = str(name).strip()
    if text.startswith('{'):
        return Architecture.from_json(text, source='inline architecture')
    architecture = from_name(text)
    if architecture is not None:
        size = architecture.vocab_size if vocab_size is None else vocab_size
        return dataclasses.replace(architecture, vocab_size=size)
    if os.path.isfile(text):
        return Architecture.read(Path(text))
    if not os.path.isdir(text):
        hint = meant(text.lower(), EXAMPLES)
        raise ValueError(f'{text!r} is neither a file nor an architecture{hint}; names are {FORMS}')
    path = Path(text, 'architecture.json')
    if not path.is_file():
        raise ValueError(f'{text} is a directory without an architecture.json')
    return Architecture.read(path)


def from_name(name: str) -> Architecture | None:
    """The architecture of that name, with BERT's vocabulary; None if no name looks like it.

    Raises
    ------
    ValueError
        If it is a name of one of these forms, but no network can be made of its numbers.
    """

    def match(pattern: str) -> re.Match | None:
        return re.fullmatch(pattern, name, flags=re.ASCII)

    number = r'(\d{1,6})'
    found = match(r'(?:(.+)_)?undivided_(every|keep)_(\d{1,4}(?:_\d{1,4})*)(?:_stacked_(\d{1,3}))?')
    if found:
        base_name, how, which, stacked = found.groups()
        base = from_name(base_name or 'bert_base')
        chosen = [int(layer) for layer in which.split('_')]
        if base is None or (how == 'every' and len(chosen) > 1):
            return None
        keep = every(chosen[0], len(base.layers)) if how == 'every' else chosen
        return undivided(base, keep, stacked=int(stacked or 0))
    if name == 'bert_base':
        return bert_base()
    if name in OPTBERTS:
        return published(int(name[len('optbert_') : -1]))
    if found := match(r'bert_(\d{1,4})'):
        return bert_base(int(found[1]))
    if found := match(f'albert_e{number}'):
        return dataclasses.replace(bert_base(), e=int(found[1]))
    if found := match(r'uniform_(\d{1,4}(?:\.\d{1,6})?)m'):
        return scale_uniformly(bert_base(), float(found[1]) * 1e6)
    found = match(rf'l(\d{{1,4}})_h{number}_a{number}((?:_[kvfe]{number})*)')
    if not found:
        return None
    widths = re.findall(r'([kvfe])(\d+)', found[4])
    if len(dict(widths)) < len(widths):
        raise ValueError(f'{name!r} gives a width twice')
    layers, h, a = (int(found[group]) for group in (1, 2, 3))
    options = {letter: int(width) for letter, width in widths}
    return uniform(layers=layers, h=h, a=a, vocab_size=VOCAB_SIZE, **options)


def published(parameters_m: int) -> Architecture:
    """The best optBERT of a published size in millions of parameters (optBERT, Tables 7, 10 and 12).

    Some cells of the tables were inferred; `uncertainties` says which. `OPTBERTS` has the names of all sizes.
    """
    row = next(row for row in load_table(10).records()[1:] if row['parameters_m'] == parameters_m)
    if parameters_m in LAYER_TABLES:
        table = load_table(LAYER_TABLES[parameters_m])
        layers = tuple(LayerDims(**{letter: layer[letter] for letter in 'akvf'}) for layer in table.records())
    else:  # no range in Table 10: all layers are equal
        layers = (LayerDims(**{letter: row[letter + '_max'] for letter in 'akvf'}),) * row['layers']
    return Architecture(h=row['h'], layers=layers, vocab_size=VOCAB_SIZE)


def uncertainties(name: str) -> list[str]:
    """The inferred cells of a published architecture: a sentence or two per gap in its table."""
    sizes = {f'optbert_{size}m': number for size, number in LAYER_TABLES.items()}
    name = re.sub(r'_undivided_(?:every|keep)_.*', '', name.strip())
    if name not in sizes:
        return []
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for one in load_table(sizes[name]).inferred:
        if one.column != 'layer':
            groups.setdefault((one.printed, one.reason), []).append((one.row, one.column))
    stories = []
    for (printed, reason), cells in groups.items():
        letters = ' and '.join(sorted({column for _, column in cells}))
        layers = sorted({row + 1 for row, _ in cells})
        where = f'layer {layers[0]}' if len(layers) == 1 else f'layers {", ".join(map(str, layers))}'
        evidence = f'the text has {printed!r}' if printed else 'the text has nothing'
        stories.append(f'Table {sizes[name]}, {letters} of {where}: inferred, {evidence}. {reason}')
    return stories


def scale_uniformly(
    base: Architecture,
    target: float,
    *,
    cost: CostModel = ParameterCost(),
    letters: str = LETTERS,
    budget: bool = False,
) -> Architecture:
    """The base with all of its widths h, a, k, v and f times one factor: "BERT-all uniform" of optBERT,
    section 6.

    No width falls below 1; f = 0 stays 0, and an embedding width e stays as it is. Parameter `budget` says
    which factor is taken and how widths are rounded. There are two ways because a published size is a name
    that the nearest network bears, while a pruning run may not spend more than its target.

    Parameters
    ----------
    target : float
        In the cost model's unit.
    letters : str
        Of the widths that are scaled.
    budget : bool
        False: widths are rounded to the nearest whole number (a half goes up), and of the factors 0.0001,
        0.0002, ... 1 it is the one whose cost comes nearest to the target, from above or below; of two
        equally near, the smaller network. True: widths are rounded down, and it is the largest factor whose
        cost is not above the target.

    Raises
    ------
    ValueError
        If the target is below the cost of widths of 1; without a budget, also if it is above the base's.
    """
    steps = BUDGET_STEPS if budget else NEAREST_STEPS

    def rounded(width: int, step: int) -> int:
        if budget:  # a product that lies less than 1e-9 below a whole number counts as that number
            return int(width * step / steps + 1e-9)
        return (2 * width * step + steps) // (2 * steps)

    def scaled(step: int) -> Architecture:
        return base.with_widths(
            {
                key: max(1, rounded(width, step)) if key[0] in letters and width else width
                for key, width in base.widths().items()
            }
        )

    least, most = cost.cost(scaled(0)), cost.cost(base)
    if budget and target < least:
        raise ValueError(
            f'target {target:.6g} {cost.unit} cannot be reached by pruning {letters} uniformly: one unit of '
            f'each width costs {least:.6g}'
        )
    if not budget and not least <= target <= most:
        raise ValueError(
            f'widths can be scaled to between {least:,.0f} and {most:,.0f} {cost.unit}, not to {target:,.0f}'
        )
    low, high = 0, steps  # cost(low) <= target; above high it is more
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost.cost(scaled(middle)) <= target else (low, middle - 1)
    if budget:
        return scaled(low)
    return min(
        (scaled(step) for step in (low, min(low + 1, steps))),
        key=lambda candidate: abs(cost.cost(candidate) - target),
    )


def every(n: int, layers: int) -> list[int]:
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

    The abstract of its first version is the source: fewer intermediate blocks, and a modified architecture.
    How many blocks, and where, is the caller's; more attention cells between them are one modification.

    Parameters
    ----------
    keep : collection of int
        The layers, counted from 0, that keep their f; in the others it is 0.
    stacked : int
        How many attention cells more stand before each kept layer, with its a, k and v and with f = 0.

    Raises
    ------
    ValueError
        If a layer to keep is not there, is given twice, or has no intermediate block.
    """
    problems = []
    for i in sorted(set(keep)):
        if not 0 <= i < len(base.layers):
            problems.append(f'there is no layer {i} among {len(base.layers)}, counted from 0')
        elif not base.layers[i].f:
            problems.append(f'layer {i} has no intermediate block to keep')
    if len(set(keep)) < len(keep):
        problems.append('a layer to keep is given twice')
    if stacked < 0:
        problems.append(f'stacked must not be negative, found {stacked}')
    if problems:
        raise ValueError('; '.join(problems))
    layers: list[LayerDims] = []
    for i, layer in enumerate(base.layers):
        attention = dataclasses.replace(layer, f=0)
        layers += [attention] * stacked + [layer] if i in keep else [attention]
    return dataclasses.replace(base, layers=tuple(layers))
