"""Settings of a results table of the paper, and of a study of several: flags, and the file of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, PositiveFloat, PositiveInt

from ..architecture.named import bert_base
from ..architecture.paper import load_table
from ..runs.programs import named
from ..runs.recipe import Recipe, RecipeError, Seed, option, read_yaml
from .rows import BASE, BEYOND_THE_PAPER, MAKERS, TABLES, known_rows, rows_at, size_name, slug_of, task_names


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
    beside: tuple[Path, ...] = option(
        'with --render, outputs of other studies with the same base, whose sizes stand in the same tables', ()
    )
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
        if self.beside and not (self.render and self.study):
            problems.append('beside is about rendering a study')
        if (self.table is None) == (self.study is None):
            return [*problems, 'give either --table or --study']
        if self.study is not None:
            stated = [name for name in _OF_A_TABLE if not self.is_default(name)]
            return problems + [f'the file of --study says {name}' for name in stated]
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


# settings that the file of a study has in their place
_OF_A_TABLE = ('rows', 'tasks', 'seeds', 'epochs', 'learning_rates', 'scale', 'alpha_steps', 'recovery_steps')
_OF_A_TABLE += ('scratch_steps', 'pruning', 'pretraining', 'glue', 'squad', 'squad1', 'squad2')
# fields of further settings that nothing reads where the rest of a study says the same
_SAID_BY_A_STUDY = {
    'pruning': ('method', 'prune', 'target', 'targets', 'rounds', 'seed'),
    'pretraining': ('architecture', 'steps', 'seed'),
}


class StudyTask(pydantic.BaseModel):
    """A task of a study, and which of its networks are fine-tuned on it.

    Parameters
    ----------
    rows, sizes : tuple, optional
        Those that are; all unless given. The base always is.
    seeds : int, optional
        So many of the first seeds of pruning of every row; all unless given.
    settings : mapping
        Further fields of `GlueRecipe` or `SquadRecipe`.
    """

    model_config = pydantic.ConfigDict(extra='forbid', frozen=True)
    rows: tuple[str, ...] | None = None
    sizes: tuple[float, ...] | None = None
    seeds: PositiveInt | None = None
    settings: dict[str, Any] = {}


class StudyFile(pydantic.BaseModel):
    """The file of a study.

    Parameters
    ----------
    rows : mapping of str to tuple of int
        The seeds of pruning of every row, as `MAKERS` names them.
    sizes : tuple of float
        Published sizes in millions of parameters, as 66, of which each row has its share of the base; or
        shares of the objective, of 1 and less. In the order in which they are made.
    tasks : mapping of str to StudyTask
        As the tables name them.
    objective : str
        ``parameters`` or ``flops``.
    pruning, pretraining : mapping
        Further fields of `PruneRecipe`, and of `PretrainRecipe` for rows that are trained from scratch.
    pruning_of : mapping
        Further fields of `PruneRecipe` for single rows, in place of those of `pruning`.
    scratch_steps : int, optional
        Of rows that are trained from scratch; by default as many as the base was pre-trained for.
    """

    model_config = pydantic.ConfigDict(extra='forbid', frozen=True, allow_inf_nan=False)
    rows: dict[str, tuple[Seed, ...]]
    sizes: tuple[pydantic.PositiveFloat, ...]
    tasks: dict[str, StudyTask]
    objective: str = 'parameters'
    pruning: dict[str, Any] = {}
    pruning_of: dict[str, dict[str, Any]] = {}
    pretraining: dict[str, Any] = {}
    scratch_steps: PositiveInt | None = None

    @classmethod
    def read(cls, path: Path) -> StudyFile:
        """The study in a YAML file; RecipeError with everything that is wrong with it."""
        try:
            study = cls.model_validate(read_yaml(path))
        except pydantic.ValidationError as error:
            places = ('.'.join(map(str, one['loc'])) + ': ' + one['msg'] for one in error.errors())
            raise RecipeError([f'{path}: {place}' for place in places]) from error
        known = {'row': set(MAKERS) - {'BERT-base', 'bert_base'}, 'task': set(task_names(load_table(8)))}
        asked = {'row': [*study.rows], 'task': [*study.tasks]}
        asked['row'] += [row for task in study.tasks.values() for row in task.rows or () if row != BASE]
        unknown = [
            f'there is no {what} {name!r}; there are {", ".join(sorted(known[what]))}'
            for what, names in asked.items()
            for name in names
            if name not in known[what]
        ]
        problems = unknown or study._left_out()
        if problems:
            raise RecipeError([f'{path}: {problem}' for problem in problems])
        return study

    def _left_out(self) -> list[str]:
        """Problems: entries that no network, seed or cell would come of."""
        problems = [f'rows.{name} has no seed of pruning' for name, seeds in self.rows.items() if not seeds]
        listed = {'sizes': self.sizes, **{f'rows.{name}': seeds for name, seeds in self.rows.items()}}
        problems += [f'{name} has a value twice' for name, one in listed.items() if len(one) > len({*one})]
        for name, task in self.tasks.items():
            known = {'rows': (BASE, *self.rows), 'sizes': self.sizes}
            problems += [
                f'tasks.{name}.{what} has {one!r}, and {what} only {", ".join(map(str, known[what]))}'
                for what in known
                for one in getattr(task, what) or ()
                if one not in known[what]
            ]
        problems += [
            f'{kind}.{name} is said by rows, sizes and scratch_steps; leave it out'
            for kind, names in _SAID_BY_A_STUDY.items()
            for name in names
            if name in getattr(self, kind)
        ]
        alike = (*_SAID_BY_A_STUDY['pruning'], *BEYOND_THE_PAPER, 'model', 'shards', 'output', 'objective')
        problems += [
            f'pruning_of.{row}' + (f'.{name} is not of single rows' if row in self.rows else ' is of no row')
            for row, settings in self.pruning_of.items()
            for name in settings
            if row not in self.rows or name in alike
        ]
        published = [size_name(size) for size in self.sizes if size > 1]
        if self.objective != 'parameters' and published:
            problems.append(
                f'sizes has {", ".join(published)}, which are of parameters, and the objective is '
                f'{self.objective}; give shares of it, of 1 and less'
            )
        made = {name for name, _ in rows_at(self.rows, self.sizes, bert_base())}
        return problems + [
            f'rows.{name} has only the sizes that tables of the paper give it, and sizes has none of these'
            for name in self.rows
            if name not in made and self.sizes
        ]
