"""What is there of a results table: its plan, and the result files that its cells have left."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..architecture.paper import Cell, Column, PaperTable, load_table
from ..finetuning.result import FineTuningResult
from .rows import plain
from .runs import FORMAT

SCORES = {
    'accuracy': ('accuracy',),
    'f1': ('f1',),
    'em': ('exact_match', 'exact'),
}  # a column's metric, as results call it
NOT_RUN, NOT_REACHABLE = 'not run', 'not reachable'


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cell.

    Parameters
    ----------
    scores : tuple of float
        In percent, by seed; empty if there are none.
    state : str
        ``done``, `NOT_RUN` or `NOT_REACHABLE`.
    published : Cell
    """

    scores: Tuple[float, ...]
    state: str
    published: Cell

    @property
    def mean(self) -> Optional[float]:
        """Over the seeds."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def std(self) -> Optional[float]:
        """Of the sample; None for less than two seeds."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None

    def text(self) -> str:
        """For people, with one digit as the paper has it."""
        if not self.scores:
            return self.state
        return f'{self.mean:.1f}' + ('' if self.std is None else f' ± {self.std:.1f}')


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """A row: its cells by column, its parameters, here (None where nothing was run) and published (millions),
    and by task how it was fine-tuned and in how many seconds."""

    name: str
    entries: Mapping[str, Entry]
    parameters: Optional[int]
    published_parameters_m: Cell
    tuning: Mapping[str, str]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Results:
    """A table with its results, and what its plan says."""

    table: PaperTable
    columns: Tuple[Column, ...]
    rows: Tuple[ResultRow, ...]
    plan: Mapping[str, Any]

    def label(self, column: Column) -> str:
        """The head of a column; the two of a pair have their metrics in it."""
        alone = sum(other.label == column.label for other in self.columns) == 1
        return column.label if alone or column.metric is None else f'{column.label} {column.metric.upper()}'


def _read_plan(path: Path) -> Dict[str, Any]:
    """What a table was to be; ValueError if the file is damaged."""
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error
    if not isinstance(values, dict) or values.get('format') != FORMAT:
        raise ValueError(f'{path}: not a plan of format {FORMAT}')
    return values


def read_results(output: Path) -> Results:
    """What is there of a table.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no table, or a file of it is damaged.
    """
    path = Path(output) / 'plan.json'
    if not path.is_file():
        raise FileNotFoundError(f'{output}: no plan.json, so there is no table')
    plan = _read_plan(path)
    table = load_table(plan['table'])
    columns = tuple(column for column in table.columns if column.task or column.name == 'average')
    if len(plan['rows']) != len(table.rows):
        raise ValueError(f'{path}: has {len(plan["rows"])} rows, Table {table.number} {len(table.rows)}')
    rows = tuple(
        _row(Path(output), columns, planned, record) for planned, record in zip(plan['rows'], table.records())
    )
    return Results(table, columns, rows, plan)


def _row(
    output: Path, columns: Sequence[Column], planned: Mapping[str, Any], record: Mapping[str, Cell]
) -> ResultRow:
    absent = NOT_REACHABLE if planned['unreachable'] else NOT_RUN
    found: Dict[str, FineTuningResult] = {}
    for task in dict.fromkeys(column.task for column in columns if column.task):
        path = output / 'cells' / planned['slug'] / plain(task) / 'result.json'
        if path.is_file():
            found[task] = FineTuningResult.read(path)
    scores = {
        column.name: _scores(found[column.task], column) if column.task in found else () for column in columns
    }
    counted = [
        scores[column.name] for column in columns if column.metric in ('f1', 'accuracy')
    ]  # F1 of a pair
    if all(counted):
        scores['average'] = tuple(float(np.mean(one)) for one in zip(*counted))
    entries = {
        column.name: Entry(
            scores[column.name], 'done' if scores[column.name] else absent, record[column.name]
        )
        for column in columns
    }
    return ResultRow(
        planned['name'],
        entries,
        next((result.parameters for result in found.values()), None),
        record['parameters_m'],
        {task: _tuning(result) for task, result in found.items()},
        sum(run.seconds for result in found.values() for run in result.runs),
    )


def _tuning(result: FineTuningResult) -> str:
    """The fine-tuning of a cell, in words."""
    recipe = result.recipe
    return (
        f'{result.samples["train"]:,} instances, {recipe["epochs"]} epochs, batches of '
        f'{recipe["batch_size"]}, learning rate {recipe["learning_rate"]:g}, {recipe["precision"]}'
    )


def _scores(result: FineTuningResult, column: Column) -> Tuple[float, ...]:
    """A column's score by seed, on the first held-out set."""
    first = result.metric.split('/')[0]
    names = [f'{first}/{name}' for name in SCORES[str(column.metric)]]
    return result.scores(next(name for name in names if name in result.runs[0].scores))
