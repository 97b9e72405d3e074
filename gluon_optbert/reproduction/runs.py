"""Running a results table of the paper: its rows are pruned or built, then fine-tuned on every task.

    OUTPUT/recipe.yaml, plan.json   what the table is
    OUTPUT/rows/ROW                 the pruning run of a row, or the model directory of one that is built
    OUTPUT/cells/ROW/TASK           a fine-tuning run with all seeds
    OUTPUT/results/ROW              copies of the result files

A row or a cell that exists is finished. One that was interrupted continues where it stopped. The table may
have been moved meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Optional, Tuple

from ..finetuning.recipe import FineTuneRecipe, copy_path, result_path
from ..finetuning.recipes import GlueRecipe, SquadRecipe, finetune_glue, finetune_squad
from ..pruning.algorithm import prune
from ..pruning.recipe import PruneRecipe
from ..runs.files import running, write_file
from ..runs.recipe import check_same, differing, save
from ..runs.run_directory import RECIPE, RunDirectory, work_directory
from ..training.distributed import Workers
from ..training.pretrain import pretrain
from ..training.recipe import PretrainRecipe
from .planning import Plan
from .rows import Row

# What may differ when a table is resumed; of squad1 and squad2, the cells that are begun tell more.
_LATER = ('resume', 'rows', 'tasks', 'dry_run', 'render', 'squad1', 'squad2')


def _make(table_plan: Plan, row: Row, workers: Workers) -> None:
    """Prune or build a row, unless that is done."""
    done = table_plan.row_done(row)
    workers.barrier(f'row {row.slug}')  # all have looked before one writes
    if row.maker.kind == 'base':
        return
    recipe = table_plan.row_recipe(row)
    if done:
        check_same(recipe, table_plan.directory(row) / 'recipe.yaml')
    elif isinstance(recipe, PruneRecipe):
        prune(recipe, workers=workers)
    elif isinstance(recipe, PretrainRecipe):
        pretrain(recipe, workers=workers)


def _check_cells(table_plan: Plan) -> None:
    """Raise ValueError if a cell in any row of the table was begun with other settings than it has now.

    So all cells of a task have the same settings, and nothing is run where they would not.
    """
    for row, task, begun in _begun_cells(table_plan):
        check_same(table_plan.cell_recipe(row, task), begun, but=_of_its_place(row))


def _begun_cells(table_plan: Plan) -> Iterator[Tuple[Row, str, Path]]:
    """The cells that are begun or finished, with the file of their recipe."""
    for row in table_plan.rows:
        for task in table_plan.tasks if row.unreachable is None else ():
            cell = table_plan.cell(row, task)
            for begun in (cell / RECIPE, work_directory(cell) / RECIPE):
                if begun.is_file():
                    yield row, task, begun


def _of_its_place(row: Row) -> Tuple[str, ...]:
    """The settings of a cell that follow from where the table is, and ``resume``; the base is elsewhere."""
    return ('resume', 'results') if row.maker.kind == 'base' else ('resume', 'results', 'model')


def _name_new_place(table_plan: Plan) -> None:
    """Have the recipes of unfinished cells name the place of a table that was moved."""
    for row, task, begun in _begun_cells(table_plan):
        recipe = table_plan.cell_recipe(row, task)
        if begun.parent == work_directory(recipe.output) and differing(recipe, begun, but=('resume',)):
            save(recipe, begun)


def _copy(recipe: FineTuneRecipe) -> None:
    """Leave the copy of a finished cell's result that a killed run did not come to."""
    copy = copy_path(recipe)
    if copy is not None and not copy.exists():
        write_file(copy, result_path(recipe).read_bytes())


def _check_rows(table_plan: Plan) -> None:
    """Raise ValueError unless the rows that are there were made as the table has them; an earlier version may
    have made a row of the same name otherwise.
    """
    for row in table_plan.rows:
        made = table_plan.directory(row) / 'recipe.yaml'
        if made.is_file():
            check_same(table_plan.row_recipe(row), made)


def run(table_plan: Plan, *, workers: Optional[Workers] = None) -> None:
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
        _check_cells(table_plan)
        _check_rows(table_plan)
        directory.lay_out(workers, table_plan.write)
        if workers.first:
            table_plan.write(directory.path)  # that of an earlier version may lack rows
            _name_new_place(table_plan)
        _run(table_plan, workers)


def _run(table_plan: Plan, workers: Workers) -> None:
    """`run`, once the directory is laid out."""
    for row in table_plan.chosen():
        _make(table_plan, row, workers)
        for task in table_plan.tasks:
            recipe, cell = table_plan.cell_recipe(row, task), table_plan.cell(row, task)
            done = cell.exists()
            workers.barrier(f'cell {row.slug} {task}')
            if done:
                check_same(recipe, cell / RECIPE, but=_of_its_place(row))
                if workers.first:
                    _copy(recipe)
            elif isinstance(recipe, SquadRecipe):
                finetune_squad(recipe, workers=workers)
            elif isinstance(recipe, GlueRecipe):
                finetune_glue(recipe, workers=workers)
