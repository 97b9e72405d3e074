"""The rows of the paper's results tables on any base: `MAKERS` says how each is made."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.named import bert_base, resolve
from ..architecture.paper import PaperTable, load_table
from ..architecture.parameters import LETTERS
from ..pruning.methods import METHODS
from ..pruning.recipe import PruneRecipe, unreachable

FORMAT = 1  # of the plan of a table, and of a study
TABLE_PLAN, STUDY_PLAN = 'plan.json', 'study.json'
INPUTS = 'inputs.json'  # SHA-256 of the files of the base and of every task, and of the splits of the shards
TABLES = (1, 6, 8, 9, 11, 13, 14, 15)
BASE = 'base'  # the row that every table has beside its own


def slug_of(name: str) -> str:
    """A row's or a task's name as a directory and as users may type it, as ``bert-l`` or ``squad-v1.1``."""
    return re.sub('[^a-z0-9.]+', '-', name.lower().replace('ℓ', 'l').replace('+', '-plus'))


def size_name(size: float) -> str:
    """A size of a study as a directory, and for people: ``66M``, or ``0.5``."""
    return f'{size:g}M' if size > 1 else f'{size:g}'


def row_names(table: PaperTable) -> list[str]:
    """The models of a table; the architectures where it gives models no names."""
    return [str(record.get('model') or name) for record, name in zip(table.records(), table.architectures)]


def known_rows(table: PaperTable) -> list[str]:
    """The models of a table, each followed by those that this package has beside it."""
    return [row for name in row_names(table) for row in (name, *BESIDE.get(name, ()))]


def task_names(table: PaperTable) -> list[str]:
    """The data sets of a table."""
    return list(dict.fromkeys(column.task for column in table.columns if column.task))


@dataclasses.dataclass(frozen=True)
class Published:
    """Facts of a row in the paper."""

    parameters_m: float
    architecture: str | None


Size = float | Architecture  # parameters, or a network that has them


def base_itself(base: Architecture, row: Published) -> Size:
    """The base, whatever its size."""
    return base


def by_share(base: Architecture, row: Published) -> Size:
    """The row's part of BERT-base's 108.9 million parameters, of the base's."""
    return ParameterCost().cost(base) * row.parameters_m * 1e6 / ParameterCost().cost(bert_base())


def in_proportion(base: Architecture, row: Published) -> Size:
    """The network with the row's share of BERT-base's layers and heads, rounded; a half goes up."""
    published, original = resolve(str(row.architecture)), bert_base()
    layers = int(len(base.layers) * len(published.layers) / len(original.layers) + 0.5)
    if not 0 < layers < len(base.layers):
        raise ValueError(
            f'{len(published.layers)} of {len(original.layers)} layers are {layers} of the '
            f'{len(base.layers)} here'
        )
    ratio = published.layers[0].a / original.layers[0].a
    return dataclasses.replace(
        base,
        layers=tuple(
            dataclasses.replace(layer, a=max(1, int(layer.a * ratio + 0.5))) for layer in base.layers[:layers]
        ),
    )


def by_embedding(base: Architecture, row: Published) -> Size:
    """The base with a factorised embedding whose width is the row's part of h, rounded; a half goes up.

    The row's part is 64 of 768 (Table 6). It is at least 2, as LayerNorm makes a constant of one unit."""
    published = resolve(str(row.architecture))
    width = max(2, int(base.h * published.embedding_width / published.h + 0.5))
    if width >= base.embedding_width:
        raise ValueError(
            f'{published.embedding_width} of {published.h} is a width of {width} here, and the embedding has '
            f'{base.embedding_width}'
        )
    return dataclasses.replace(base, e=width)


def nearly_whole(base: Architecture, row: Published) -> Size:
    """Nearly the whole base, less of it for a smaller row: a ladder of these loses next to nothing."""
    share = by_share(base, row) / ParameterCost().cost(base)
    return ParameterCost().cost(base) * (1 - 1e-3 * (1 - share))


@dataclasses.dataclass(frozen=True)
class Maker:
    """Maker of a row.

    Parameters
    ----------
    kind : str
        ``base``, ``pruned``, or ``built``: trained from scratch.
    size : callable
        The base and the published row → how large it gets, or the network itself; ValueError says why there
        is none.
    method, prune : str
        Of `PruneRecipe`, where it is pruned.
    settings : mapping
        Further fields of `PruneRecipe`, which nothing overrides.
    unless_stated : mapping
        Fields of `PruneRecipe` that the user's file and flags override.
    """

    kind: str
    size: Callable[[Architecture, Published], Size]
    method: str = ''
    prune: str = LETTERS
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unless_stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def trains_gates(self) -> bool:
        """Whether making the row trains gates."""
        return self.kind == 'pruned' and METHODS[self.method].trains_gates

    def sentence(self) -> str:
        """For people."""
        further = [name if value is True else f'{name} {value}' for name, value in self.settings.items()]
        beside = f' with {", ".join(further)}' if further else ''
        return {
            'base': 'the base as it is',
            'built': 'trained from scratch',
            'pruned': f'method {self.method} on {self.prune}{beside}, and recovered',
        }[self.kind]


MAKERS: Mapping[str, Maker] = {
    'BERT-base': Maker('base', base_itself),
    'BERT-ℓ': Maker('built', in_proportion),
    'BERT-ℓ truncated': Maker('pruned', in_proportion, 'layers'),
    'optBERT-all': Maker('pruned', by_share, 'alpha'),
    'optBERT-all+': Maker(
        'pruned',
        by_share,
        'alpha',
        settings={'rotate_heads': True, 'reconstruct': True, 'teacher': 'parent', 'relative_gates': 'hav'},
        unless_stated={'alpha_steps': 'auto', 'alpha_learning_rate': 0.05},
    ),
    'optBERT-h': Maker('pruned', by_share, 'alpha', 'h'),
    'optBERT-f': Maker('pruned', by_share, 'alpha', 'f'),
    'optBERT-a': Maker('pruned', by_share, 'alpha', 'a'),
    'BERT-all uniform': Maker('pruned', by_share, 'uniform-alpha'),
    'BERT-all uniform, magnitude': Maker('pruned', by_share, 'uniform'),
    'ALBERT-e': Maker('built', by_embedding),
    # those of OF_STUDIES
    'a random cut': Maker(
        'pruned',
        by_share,
        'random',
        settings={'rotate_heads': True, 'reconstruct': True, 'teacher': 'parent'},
    ),
    'optBERT-all, unweighted': Maker('pruned', by_share, 'alpha', settings={'unweighted': True}),
    'BERT-base, trained on': Maker('pruned', nearly_whole, 'magnitude', 'f'),
    # Table 1, where Devlin et al. trained every network from scratch
    'bert_3': Maker('built', in_proportion),
    'l6_h768_a3_k64_v64': Maker('built', in_proportion),
    'bert_6': Maker('built', in_proportion),
    'bert_base': Maker('base', base_itself),
}
# further ways to make a row of the paper; a row of its own each, without published scores
BESIDE: Mapping[str, tuple[str, ...]] = {
    'BERT-ℓ': ('BERT-ℓ truncated',),
    'optBERT-all': ('optBERT-all+',),
    'BERT-all uniform': ('BERT-all uniform, magnitude',),
}
# rows that no table of the paper has; a study may
OF_STUDIES = ('a random cut', 'optBERT-all, unweighted', 'BERT-base, trained on')
# fields of `PruneRecipe` that the paper does not have; a row has them by its maker, never by the user's file
BEYOND_THE_PAPER = ('rotate_heads', 'reconstruct', 'teacher', 'gate_teacher', 'relative_gates')
BEYOND_THE_PAPER += ('fit_tokens', 'recover_after')


@dataclasses.dataclass(frozen=True)
class Row:
    """A row on a base.

    Parameters
    ----------
    name : str
        As printed.
    share : float, optional
        Of the base's parameters, at most.
    architecture : Architecture, optional
        Of one that is built.
    unreachable : str, optional
        Why it cannot be had on this base.
    """

    name: str
    maker: Maker
    share: float | None = None
    architecture: Architecture | None = None
    unreachable: str | None = None

    @property
    def slug(self) -> str:
        """Its name as a directory."""
        return slug_of(self.name)


def published_rows(table: PaperTable) -> dict[str, Published]:
    """Facts of every row of a table, and of those that this package has beside it."""
    rows = {}
    for name, record, architecture in zip(row_names(table), table.records(), table.architectures):
        published = Published(float(record['parameters_m']), architecture)
        rows.update(dict.fromkeys((name, *BESIDE.get(name, ())), published))
    return rows


def rows_of(table: PaperTable, base: Architecture) -> list[Row]:
    """Every row of a table, on a base; those out of reach say why."""
    return [row_of(name, published, base) for name, published in published_rows(table).items()]


def row_of(name: str, published: Published, base: Architecture, pruning: Mapping[str, Any] = {}) -> Row:
    """A row on a base, made in the way of its name at a published size. Fields of `PruneRecipe` may say what
    a share is of, if not of the parameters, and what can be pruned.
    """
    maker, cost = MAKERS[name], ParameterCost()
    try:
        size = maker.size(base, published)
    except ValueError as error:
        return Row(name, maker, unreachable=str(error))
    whole, wanted = cost.cost(base), cost.cost(size) if isinstance(size, Architecture) else size
    if maker.kind == 'pruned':
        share = (wanted + 0.5) / whole  # half a parameter, for the division's rounding
        own = {'method': maker.method, 'prune': maker.prune, 'target': share, 'targets': ()}
        trial = PruneRecipe.model_construct(**{**pruning, **own})
        return Row(name, maker, share, unreachable=unreachable(trial, base))
    return Row(name, maker, wanted / whole, size if isinstance(size, Architecture) else None)


def base_row(base: Architecture) -> Row:
    """The base beside the rows of a table."""
    return Row(BASE, Maker('base', base_itself), 1.0, base)


def rows_at(
    names: Iterable[str], sizes: Sequence[float], base: Architecture, pruning: Mapping[str, Any] = {}
) -> dict[tuple[str, float], Row]:
    """Rows by name and published size, or share: as a table of the paper with several sizes has them, else by
    their share, of what `row_of` is told. Rows that no table has at a size, and that have none by a share,
    are left out.
    """
    of_tables: dict[tuple[str, float], Published] = {}
    for number in TABLES[1:]:
        table = load_table(number)
        own = [name not in ('BERT-base', 'ALBERT-e') for name in row_names(table)]
        sizes_of = [float(record['parameters_m']) for record, counts in zip(table.records(), own) if counts]
        of_tables.update({(name, max(sizes_of)): row for name, row in published_rows(table).items()})
    rows, whole = {}, ParameterCost().cost(bert_base()) / 1e6
    for name, size in itertools.product(names, sizes):
        published = of_tables.get((name, size))
        if published is None and MAKERS[name].size in (by_share, nearly_whole):
            published = Published(size if size > 1 else size * whole, None)
        if published is not None:
            rows[name, size] = row_of(name, published, base, pruning)
    return rows
