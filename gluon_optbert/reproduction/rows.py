"""The results tables of the paper as things to run: their recipe, and how each row is made of a base network.

`MAKERS` says it row by row; `runs` runs them, `rendering` sets what came of it beside the published
numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.named import bert_base, resolve
from ..architecture.paper import Cell, PaperTable, load_table
from ..architecture.parameters import LETTERS
from ..pruning.methods import METHODS
from ..pruning.recipe import PruneRecipe, unreachable
from ..runs.programs import named
from ..runs.recipe import Recipe, option

FORMAT = 1  # of plan.json
TABLES = (1, 6, 8, 9, 11, 13, 14, 15)
BASE = 'base'  # the row that every table has beside its own


def slug_of(name: str) -> str:
    """A row's or a task's name as a directory and as users may type it, as ``bert-l`` or ``squad-v1.1``."""
    return re.sub('[^a-z0-9.]+', '-', name.lower().replace('ℓ', 'l').replace('+', '-plus'))


def row_names(table: PaperTable) -> list[str]:
    """The models of a table; the architectures where it gives models no names."""
    return [str(record.get('model') or name) for record, name in zip(table.records(), table.architectures)]


def known_rows(table: PaperTable) -> list[str]:
    """The models of a table, each followed by those that this package has beside it."""
    return [row for name in row_names(table) for row in (name, *BESIDE.get(name, ()))]


def task_names(table: PaperTable) -> list[str]:
    """The data sets of a table."""
    return list(dict.fromkeys(column.task for column in table.columns if column.task))


class TableRecipe(Recipe):
    """A results table of the paper."""

    table: int | None = option('number of the table in the paper', None, choices=TABLES)
    study: Path | None = option(
        'YAML file of a study, in place of --table: rows at several sizes, with several seeds of pruning, on '
        'several tasks, from which every table is made',
        None,
    )
    minutes: PositiveFloat | None = option(
        'of a study: begin no further piece after so many minutes; --resume goes on', None
    )
    output: Path = option('directory to write')
    base: Path | None = option('model directory that takes the place of BERT-base', None)
    shards: Path | None = option(f'directory of shards that {named("optbert-make-shards")} made', None)
    rows: tuple[str, ...] = option('rows to run, such as optbert-h,bert-l; by default all', ())
    tasks: tuple[str, ...] = option('tasks to run, such as mrpc,squad-v1.1; by default all of the table', ())
    seeds: tuple[int, ...] = option(
        'random seeds of fine-tuning; mean and standard deviation are over them', (1, 2, 3)
    )
    epochs: int | None = option('passes over a training set; by default as --glue and --squad say', None)
    learning_rates: tuple[float, ...] = option(
        'peak learning rates that each cell of the table chooses from; by default as --glue and --squad say',
        (),
    )
    data_glue: Path | None = option(
        'directory of GLUE in the official layout; by default GluonNLP downloads it', None
    )
    data_squad: Path | None = option(
        'directory of SQuAD in the official layout; by default GluonNLP downloads it', None
    )
    scale: Annotated[float, Field(gt=0, le=1)] = option(
        'factor, at most 1, on the steps of gate training, of recovery and from scratch, and on the number '
        'of training instances of every task, rounded up; epochs are not scaled',
        1.0,
    )
    alpha_steps: PositiveInt | Literal['auto'] | None = option(
        f'steps of gate training in a round, before --scale; auto as in {named("optbert-prune")}', None
    )
    recovery_steps: int | None = option('steps of recovery in a round, before --scale', None)
    scratch_steps: PositiveInt | None = option(
        'steps of pre-training of the rows that are trained from scratch, before --scale; by default as many '
        'as the base was pre-trained for',
        None,
    )
    pruning: Path | None = option(
        f'YAML file with further settings of {named("optbert-prune")}; method, widths, target, repairs and '
        'teacher are those of the row',
        None,
    )
    pretraining: Path | None = option(
        f'YAML file with settings of {named("optbert-pretrain")} for the rows that are trained from scratch; '
        'architecture and steps are those of the row. What it lacks is as in --pruning',
        None,
    )
    glue: Path | None = option(f'YAML file with further settings of {named("optbert-finetune-glue")}', None)
    squad: Path | None = option(f'YAML file with further settings of {named("optbert-finetune-squad")}', None)
    squad1: Path | None = option('YAML file with settings for SQuAD 1.1 that override those of --squad', None)
    squad2: Path | None = option(
        'YAML file with settings for SQuAD 2.0 that override those of --squad; by default 2 epochs and '
        'batches of 48',
        None,
    )
    dry_run: bool = option(
        'measure a few steps, say what would be run and how long it takes, and write nothing', False
    )
    render: bool = option('only render the tables and plots again, from the results so far', False)
    resume: bool = option(
        'continue an unfinished table; --rows and --tasks may differ from call to call', False
    )

    def problems(self) -> list[str]:
        """Problems: missing, unknown or contradictory fields."""
        problems = [
            f'--{name} is missing'
            for name in ('base', 'shards')
            if getattr(self, name) is None and not self.render
        ]
        if self.render and self.dry_run:
            problems.append('render and dry_run exclude each other')
        if (self.table is None) == (self.study is None):
            return [*problems, 'give either --table or --study']
        if self.study is not None:
            decided = (
                'rows',
                'tasks',
                'seeds',
                'epochs',
                'learning_rates',
                'scale',
                'alpha_steps',
                'recovery_steps',
            )
            decided += ('scratch_steps', 'pruning', 'pretraining', 'glue', 'squad', 'squad1', 'squad2')
            return problems + [
                f'the file of --study says {name}' for name in decided if not self.is_default(name)
            ]
        problems += ['minutes is about a study'] if self.minutes else []
        table = load_table(self.table)
        for what, asked, known in (
            ('row', self.rows, [BASE, *known_rows(table)]),
            ('task', self.tasks, task_names(table)),
        ):
            names = [slug_of(name) for name in known]
            problems += [
                f'Table {self.table} has no {what} {name!r}; there are {", ".join(names)}'
                for name in asked
                if slug_of(name) not in names
            ]
        return problems


@dataclasses.dataclass(frozen=True)
class Published:
    """Facts of a row in the paper."""

    name: str
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
    # of a study, which no table of the paper has
    'a random cut': Maker(
        'pruned',
        by_share,
        'random',
        settings={'rotate_heads': True, 'reconstruct': True, 'teacher': 'parent'},
    ),
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
# fields of `PruneRecipe` that the paper does not have; a row has them by its maker, never by the user's file
BEYOND_THE_PAPER = ('rotate_heads', 'reconstruct', 'teacher', 'gate_teacher', 'relative_gates')


@dataclasses.dataclass(frozen=True)
class Row:
    """A row on a base.

    Parameters
    ----------
    name, slug : str
        As printed, and as a directory.
    maker : Maker
    share : float, optional
        Of the base's parameters, at most.
    architecture : Architecture, optional
        Of one that is built.
    unreachable : str, optional
        Why it cannot be had on this base.
    """

    name: str
    slug: str
    maker: Maker
    share: float | None = None
    architecture: Architecture | None = None
    unreachable: str | None = None


def rows_of(table: PaperTable, base: Architecture) -> list[Row]:
    """Every row of a table, on a base; those out of reach say why."""
    rows = []
    for name, record, architecture in zip(row_names(table), table.records(), table.architectures):
        published = Published(name, _number(record['parameters_m']), architecture)
        rows += [row_of(made, published, base) for made in (name, *BESIDE.get(name, ()))]
    return rows


def row_of(name: str, published: Published, base: Architecture) -> Row:
    """A row on a base, made in the way of its name at a published size."""
    maker, slug, cost = MAKERS[name], slug_of(name), ParameterCost()
    try:
        size = maker.size(base, published)
    except ValueError as error:
        return Row(name, slug, maker, unreachable=str(error))
    whole, wanted = cost.cost(base), cost.cost(size) if isinstance(size, Architecture) else size
    if maker.kind == 'pruned':
        share = (wanted + 0.5) / whole  # half a parameter, for the division's rounding
        trial = PruneRecipe.model_construct(method=maker.method, prune=maker.prune, target=share)
        return Row(name, slug, maker, share, unreachable=unreachable(trial, base))
    return Row(name, slug, maker, wanted / whole, size if isinstance(size, Architecture) else None)


def all_rows(table: PaperTable, base: Architecture) -> list[Row]:
    """The rows of a table on a base; the base itself comes first where the table does not have it."""
    rows = rows_of(table, base)
    if any(row.maker.kind == 'base' for row in rows):
        return rows
    return [Row(BASE, BASE, Maker('base', base_itself), 1.0, base), *rows]


def _number(cell: Cell) -> float:
    assert isinstance(cell, (int, float))  # tables of results give every size
    return float(cell)
