"""A results table of the paper on a base: the recipe of every run that it takes, and running them.

    OUTPUT/recipe.yaml, plan.json   what the table is
    OUTPUT/rows/ROW                 the pruning run of a row, or the model directory of one that is built
    OUTPUT/cells/ROW/TASK           a fine-tuning run with all seeds
    OUTPUT/results/ROW              copies of the result files

A row or a cell that exists is finished. One that was interrupted continues where it stopped. The table may
have been moved meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..architecture.cost import ParameterCost
from ..architecture.paper import PaperTable, load_table
from ..finetuning.recipe import FineTuneRecipe, copy_path, result_path
from ..finetuning.recipes import (
    GlueRecipe,
    SquadRecipe,
    finetune_glue,
    finetune_squad,
    read_parts,
    task_directory,
)
from ..network.saved_model import SavedModel
from ..pruning.algorithm import prune
from ..pruning.objectives import check_heads, read_start
from ..pruning.recipe import PruneRecipe
from ..runs.display import Display
from ..runs.files import running, write_file
from ..runs.recipe import RecipeError, check_same, differing, fill, overridden, read_yaml, save, to_dict
from ..runs.run_directory import RECIPE, RunDirectory, work_directory
from ..tasks.examples import read_examples
from ..tasks.task import find_task
from ..training.distributed import Workers
from ..training.pretrain import pretrain
from ..training.recipe import PretrainRecipe, TrainingRecipe, WeightRecipe, open_shards
from .rows import BEYOND_THE_PAPER, FORMAT, MAKERS, Maker, Row, TableRecipe, all_rows, slug_of, task_names

SQUAD = {'SQuAD v1.1': '1.1', 'SQuAD v2.0': '2.0'}  # their versions; the other tasks are GLUE's
SQUAD2 = {'epochs': 2, 'batch_size': 48}  # Devlin et al., 2018, section 4.3
R = TypeVar('R', bound=WeightRecipe)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A table on a base: its rows and tasks, and the recipe of everything that is run for them.

    Parameters
    ----------
    recipe : TableRecipe
    table : PaperTable
    base : SavedModel
    rows : tuple of Row
        All of the table.
    tasks : tuple of str
        Those that are run.
    instances : mapping of task to int
        To train on: sentences, pairs or questions.
    pruning : PruneRecipe
        What the pruning runs have in common, with the steps of a round.
    scratch_steps : int, optional
        Of the rows that are trained from scratch; None if nothing says how many.
    """

    recipe: TableRecipe
    table: PaperTable
    base: SavedModel
    rows: tuple[Row, ...]
    tasks: tuple[str, ...]
    instances: Mapping[str, int]
    pruning: PruneRecipe
    scratch_steps: int | None = None

    def chosen(self) -> list[Row]:
        """The rows that are run: the base and those asked for, without those out of reach."""
        asked = [slug_of(name) for name in self.recipe.rows]
        return [
            row
            for row in self.rows
            if row.unreachable is None and (not asked or row.slug in asked or row.maker.kind == 'base')
        ]

    def directory(self, row: Row) -> Path:
        """Where a row's network is made."""
        return self.recipe.output / 'rows' / row.slug

    def model(self, row: Row) -> Path:
        """The model directory that a row is fine-tuned from."""
        return {
            'base': Path(str(self.recipe.base)),
            'built': self.directory(row),
            'pruned': self.directory(row) / f'round-{len(self.pruning.shares())}' / 'model',
        }[row.maker.kind]

    def row_done(self, row: Row) -> bool:
        """Whether a row's network is made already."""
        return (
            row.maker.kind == 'base'
            or (
                self.directory(row) / {'pruned': 'rounds.json', 'built': 'manifest.json'}[row.maker.kind]
            ).is_file()
        )

    def row_recipe(self, row: Row) -> TrainingRecipe:
        """The run that makes a row's network; ValueError if it is trained from scratch, and nothing says for
        how many steps.
        """
        return self._pruning_of(row) if row.maker.kind == 'pruned' else self._scratch_of(row)

    def how(self, row: Row) -> str:
        """Words for the making of a row; with its steps of gates where they are not those of the others."""
        own = pruning_of(self.recipe, self.base, row.maker)
        if own.alpha_steps == self.pruning.alpha_steps:
            return row.maker.sentence()
        most = 'at most ' if own.alpha_steps == 'auto' else ''
        return f'{row.maker.sentence()}, in each round {most}{gate_steps(own)} steps of gates'

    def _pruning_of(self, row: Row) -> PruneRecipe:
        pruning = pruning_of(self.recipe, self.base, row.maker)
        values = {
            'output': str(self.directory(row)),
            'method': row.maker.method,
            'prune': row.maker.prune,
            'target': row.share,
            'alpha_steps': pruning.alpha_steps if row.maker.trains_gates else gate_steps(pruning),
        }
        return fill(PruneRecipe, {**dict(pruning), **values}, source=row.name)

    def _scratch_of(self, row: Row) -> PretrainRecipe:
        assert row.architecture is not None
        if self.scratch_steps is None:
            raise ValueError(
                f'{self.recipe.base} does not say how many steps it was pre-trained for, and {row.name} is '
                'trained from scratch for as many; give --scratch-steps, or leave the row out with --rows'
            )
        defaults = {
            name: value
            for name, value in to_dict(self.pruning).items()
            if name in TrainingRecipe.model_fields
        }
        if 'optimizer' not in _settings(PruneRecipe, [self.recipe.pruning]):
            del defaults['optimizer']  # the default of pre-training is another one than that of recovery
        values = {
            'output': str(self.directory(row)),
            'shards': str(self.pruning.shards),
            'resume': True,
            'model': None,
            'architecture': json.dumps(row.architecture.to_dict()),
            'steps': self.scratch_steps,
        }
        defaults['initial_std'] = round(0.6 / math.sqrt(row.architecture.h), 2)
        return _further(PretrainRecipe, [self.recipe.pretraining], defaults, values)

    def cell(self, row: Row, task: str) -> Path:
        """Where a row is fine-tuned on a task."""
        return self.recipe.output / 'cells' / row.slug / slug_of(task)

    def cell_recipe(self, row: Row, task: str) -> FineTuneRecipe:
        """The fine-tuning of a row on a task, with sequences as long as the paper's where the base has the
        positions.
        """
        recipe, positions = self.recipe, self.base.architecture.max_length
        values: dict[str, Any] = {
            'model': str(self.model(row)),
            'output': str(self.cell(row, task)),
            'resume': True,
            'results': str(recipe.output / 'results' / row.slug),
            'seeds': list(recipe.seeds),
        }
        if recipe.epochs is not None:
            values['epochs'] = recipe.epochs
        if recipe.learning_rates:
            values['learning_rates'] = list(recipe.learning_rates)
        if recipe.scale < 1:
            values['limit'] = math.ceil(recipe.scale * self.instances[task])
        if task in SQUAD:
            length = min(384, positions)
            windows = {
                'max_length': length,
                'stride': min(128, length // 3),
                'max_question': min(64, length // 3),
            }
            return _further(
                SquadRecipe,
                _files(recipe, task),
                {**windows, **(SQUAD2 if SQUAD[task] == '2.0' else {})},
                {**values, 'version': SQUAD[task], 'data': recipe.data_squad},
            )
        return _further(
            GlueRecipe,
            _files(recipe, task),
            {'max_length': min(128, positions)},
            {**values, 'task': task, 'data': recipe.data_glue},
        )

    def write(self, directory: Path) -> None:
        """Leave what rendering has to know beside the results."""
        write_file(directory / 'plan.json', (json.dumps(self.to_dict(), indent=1) + '\n').encode('utf-8'))

    def to_dict(self) -> dict[str, Any]:
        """Facts that rendering needs beside the results."""
        return {
            'format': FORMAT,
            'table': self.table.number,
            'base': str(self.recipe.base),
            'base_parameters': int(ParameterCost().cost(self.base.architecture)),
            'rounds': len(self.pruning.shares()),
            'alpha_steps': gate_steps(self.pruning),
            'alpha_steps_auto': self.pruning.alpha_steps == 'auto',
            'recovery_steps': self.pruning.recovery_steps,
            'scratch_steps': self.scratch_steps,
            'scale': self.recipe.scale,
            'seeds': list(self.recipe.seeds),
            'rows': [
                {
                    'name': row.name,
                    'slug': row.slug,
                    'how': self.how(row),
                    'share': row.share,
                    'unreachable': row.unreachable,
                }
                for row in self.rows
            ],
        }


def gate_steps(pruning: PruneRecipe) -> int:
    """Steps of gate training in a round, or the most of them."""
    steps = pruning.alpha_steps
    return pruning.alpha_limit if steps is None or steps == 'auto' else steps


def _files(recipe: TableRecipe, task: str) -> list[Path | None]:
    """The user's files of further settings for a task; a later one overrides those before it."""
    if task not in SQUAD:
        return [recipe.glue]
    return [recipe.squad, recipe.squad1 if SQUAD[task] == '1.1' else recipe.squad2]


def _settings(cls: type[R], paths: Sequence[Path | Mapping[str, Any] | None]) -> dict[str, Any]:
    """The settings of files of the user, a later one in place of those before it."""
    settings: dict[str, Any] = {}
    for path in filter(None, paths):
        settings = overridden(cls, settings, path if isinstance(path, Mapping) else read_yaml(path))
    return settings


# What a file of further settings cannot say, and the flag that does.
_DECIDED = ('data', 'seeds', 'task', 'version', 'objective', 'model', 'shards', 'output')
_INSTEAD = {'data': ' (--data-glue, --data-squad)', 'seeds': ' (--seeds)', 'model': ' (--base)'}


def _further(
    cls: type[R],
    paths: Sequence[Path | None],
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    refused: Sequence[str] = (),
) -> R:
    """A recipe of defaults, files of further settings of the user, and what the table decides.

    `refused` is what is wrong with the files beside that, in sentences.
    """
    stated, source = _settings(cls, paths), ', '.join(map(str, filter(None, paths)))
    ignored = [
        f'{source}: the table decides {name}{_INSTEAD.get(name, "")}; leave it out there'
        for name in _DECIDED
        if name in stated and name in values and str(stated[name]) != str(values[name])
    ]
    if ignored or refused:
        raise RecipeError([*ignored, *refused])
    further = overridden(cls, stated, values)
    return fill(cls, {**defaults, **further}, source=source or cls.__name__)


def _instances(recipe: TableRecipe, task: str, workers: Workers) -> int:
    """Training instances of a task, no more than the further settings allow."""
    if task in SQUAD:
        count, cls = len(read_parts(recipe.data_squad, SQUAD[task], workers)['train']), SquadRecipe
    else:
        known, cls = find_task(task), GlueRecipe
        count = len(read_examples(known, task_directory(known, recipe.data_glue, workers) / known.train))
    limit = _settings(cls, _files(recipe, task)).get('limit')
    return min(count, limit) if isinstance(limit, int) else count


def _beyond_the_paper(recipe: TableRecipe, stated: Mapping[str, Any]) -> list[str]:
    """Problem with the settings of --pruning if they change what the paper's rows are: a line, or
    none.
    """
    off = {name: PruneRecipe.model_fields[name].default for name in BEYOND_THE_PAPER}
    found = [name for name in off if stated.get(name, off[name]) != off[name]]
    if not found:
        return []
    beside = [f'{name} has {", ".join(maker.settings)}' for name, maker in MAKERS.items() if maker.settings]
    return [
        f'{recipe.pruning}: the rows of the paper are pruned without {", ".join(found)}; leave that out '
        f'there. Of the rows beside them, {"; ".join(beside)}'
    ]


def pruning_of(recipe: TableRecipe, base: SavedModel, maker: Maker | None = None) -> PruneRecipe:
    """Settings of all pruning runs, or of those on the way to a row; the steps are scaled."""
    fixed = {
        'model': str(recipe.base),
        'shards': str(recipe.shards),
        'output': str(recipe.output),
        'resume': True,
        'objective': 'parameters',
        'targets': [],
    }
    steps = {
        name: getattr(recipe, name)
        for name in ('alpha_steps', 'recovery_steps')
        if getattr(recipe, name) is not None
    }
    paths = [recipe.pruning]
    stated = {**_settings(PruneRecipe, paths), **steps}
    unsaid = (
        {}
        if maker is None
        else {name: value for name, value in maker.unless_stated.items() if stated.get(name) is None}
    )
    own = {} if maker is None else {**unsaid, **maker.settings}
    if maker is not None and own:  # which may not go with the method of the file
        own = {'method': maker.method, 'prune': maker.prune, **own}
        if not maker.trains_gates:
            own['alpha_steps'] = None  # auto is about trained gates
    unread = {}
    if 'teacher' not in own:  # what the file says for the rows with a teacher, the others do not read
        unread = {name: PruneRecipe.model_fields[name].default for name in ('teacher_weights', 'temperature')}
    refused = _beyond_the_paper(recipe, stated)
    common = _further(PruneRecipe, paths, {}, {**fixed, **steps, **own, **unread}, refused=refused)
    gates, recovery = (math.ceil(recipe.scale * steps) for steps in common.round_steps(base))
    settling = common.settling()
    if settling is not None and settling.first <= gates:  # a scaled limit may leave no time to settle
        return common.replace(alpha_limit=gates, recovery_steps=recovery)
    return common.replace(alpha_steps=gates, recovery_steps=recovery)


def plan(recipe: TableRecipe, *, workers: Workers | None = None) -> Plan:
    """Everything that a table takes, checked: the base, its shards, the data of every task and every recipe.

    Parameters
    ----------
    recipe : TableRecipe
    workers : Workers, optional
        Those of this job; by default those that the environment names.

    Raises
    ------
    ValueError, FileNotFoundError
        If something is missing or does not fit.
    """
    workers = workers or Workers()
    base = read_start(Path(str(recipe.base)))
    table = load_table(recipe.table)
    asked = [slug_of(task) for task in recipe.tasks]
    tasks = tuple(task for task in task_names(table) if not asked or slug_of(task) in asked)
    scratch_steps = recipe.scratch_steps or base.progress.trained_steps
    pruning = pruning_of(recipe, base)
    check_heads(base, open_shards(pruning.shards, base.vocabulary)['train'], recipe.base)
    table_plan = Plan(
        recipe,
        table,
        base,
        tuple(all_rows(table, base.architecture)),
        tasks,
        {task: _instances(recipe, task, workers) for task in tasks},
        pruning,
        math.ceil(recipe.scale * scratch_steps) if scratch_steps else None,
    )
    for row in table_plan.chosen():
        for run in ([] if row.maker.kind == 'base' else [table_plan.row_recipe(row)]) + [
            table_plan.cell_recipe(row, task) for task in tasks
        ]:
            run.check_workers(workers)
    return table_plan


# Running it

# What may differ when a table is resumed; of squad1 and squad2, the cells that are begun tell more.
_LATER = ('rows', 'tasks', 'dry_run', 'render', 'squad1', 'squad2')


def run(table_plan: Plan, *, workers: Workers | None = None) -> None:
    """Make every row that is asked for and fine-tune it on every task, as far as it has not been done.

    Parameters
    ----------
    table_plan : Plan
    workers : Workers, optional
        Those of this job; by default those that the environment names.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, an output that was begun with other settings, or one that another process is writing.
    TrainingDiverged, Interrupted
        From the runs.
    """
    workers = workers or Workers()
    with running(table_plan.recipe.output, workers):
        directory = RunDirectory(table_plan.recipe, may_change=_LATER, name='table ')
        _check_begun(table_plan)
        directory.lay_out(workers, table_plan.write)
        if workers.first:
            _name_new_place(table_plan)
        chosen = list(table_plan.chosen())
        total = len(chosen) * (1 + len(table_plan.tasks))
        done = sum(
            table_plan.row_done(row) + sum(table_plan.cell(row, task).exists() for task in table_plan.tasks)
            for row in chosen
        )
        workers.barrier('counted')
        unit = {'unit': 'cell', 'quiet': not workers.first, 'seconds': 0.0}
        with Display(f'table {table_plan.table.number}', total, start=done, **unit) as display:
            for number, row in enumerate(chosen, 1):
                display.title = f'row {number}/{len(chosen)} {row.name}'
                display.advance(_make(table_plan, row, workers))
                for task in table_plan.tasks:
                    display.title = f'row {number}/{len(chosen)} {row.name}, {task}'
                    display.advance(_tune(table_plan, row, task, workers))


def _make(table_plan: Plan, row: Row, workers: Workers) -> bool:
    """Prune or build a row, unless that is done; whether it was to be made."""
    done = table_plan.row_done(row)
    workers.barrier(f'row {row.slug}')  # all have looked before one writes
    if done:
        return False
    recipe = table_plan.row_recipe(row)
    if isinstance(recipe, PruneRecipe):
        prune(recipe, workers=workers)
    else:
        pretrain(recipe, workers=workers)
    return True


def _tune(table_plan: Plan, row: Row, task: str, workers: Workers) -> bool:
    """Fine-tune a row on a task, unless that is done; whether it was to be.

    Of what is done, leave the copy that a killed run did not come to.
    """
    recipe, done = table_plan.cell_recipe(row, task), table_plan.cell(row, task).exists()
    workers.barrier(f'cell {row.slug} {task}')
    if not done:
        tune = finetune_squad if isinstance(recipe, SquadRecipe) else finetune_glue
        tune(recipe, workers=workers)
        return True
    copy = copy_path(recipe)
    if workers.first and copy is not None and not copy.exists():
        write_file(copy, result_path(recipe).read_bytes())
    return False


def _begun_cells(table_plan: Plan) -> Iterator[tuple[Row, str, Path]]:
    """The cells that are begun or finished, with the file of their recipe."""
    for row in table_plan.rows:
        for task in table_plan.tasks if row.unreachable is None else ():
            cell = table_plan.cell(row, task)
            files = (place / RECIPE for place in (cell, work_directory(cell)))
            yield from ((row, task, file) for file in files if file.is_file())


def _check_begun(table_plan: Plan) -> None:
    """Raise ValueError if a row or a cell of the table was begun with other settings than it has now.

    So all cells of a task have the same settings, and nothing is run where they would not.
    """
    for row in table_plan.rows:
        made = table_plan.directory(row) / RECIPE
        if made.is_file():
            check_same(table_plan.row_recipe(row), made)
    for row, task, begun in _begun_cells(table_plan):
        # what follows from where the table is may differ; the base is elsewhere
        of_its_place = ('results',) if row.maker.kind == 'base' else ('results', 'model')
        check_same(table_plan.cell_recipe(row, task), begun, but=of_its_place)


def _name_new_place(table_plan: Plan) -> None:
    """Have the recipes of unfinished cells name the place of a table that was moved."""
    for row, task, begun in _begun_cells(table_plan):
        recipe = table_plan.cell_recipe(row, task)
        if begun.parent == work_directory(recipe.output) and differing(recipe, begun):
            save(recipe, begun)
