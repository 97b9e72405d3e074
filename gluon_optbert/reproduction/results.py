"""A results table so far: its plan, and the result files of its finished cells."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..architecture.paper import Cell, Column, PaperTable, load_table
from ..finetuning.result import FineTuningResult
from ..runs.progress import score_text
from .planning import FORMAT
from .rows import plain, row_names

# a column's metric, as results call it; the first that a result has
SCORES = {
    'accuracy': ('accuracy',),
    'f1': ('best_f1', 'f1'),
    'em': ('exact_at_best_f1', 'exact_match', 'exact'),
}
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
    majority : float, optional
        The score of always giving the majority class, in percent; None where no result says it.
    """

    scores: Tuple[float, ...]
    state: str
    published: Cell
    majority: Optional[float] = None

    @property
    def mean(self) -> Optional[float]:
        """Over the seeds."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def std(self) -> Optional[float]:
        """Of the sample; None for less than two seeds."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None

    def text(self) -> str:
        """For people, with one digit as the paper has it, and marked if it says nothing."""
        if self.mean is None:
            return self.state
        return score_text(self.mean, self.std, majority=self.majority)


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """A row: its cells by column, its parameters, here (None where nothing was run) and published (millions;
    None for a row that the table does not have), by task how it was fine-tuned, in how many seconds, and
    whether these lack the beginning of a run that was resumed."""

    name: str
    entries: Mapping[str, Entry]
    parameters: Optional[int]
    published_parameters_m: Cell
    tuning: Mapping[str, str]
    seconds: float
    resumed: bool


@dataclasses.dataclass(frozen=True)
class Results:
    """A table with its results, and what its plan says."""

    table: PaperTable
    columns: Tuple[Column, ...]
    rows: Tuple[ResultRow, ...]
    plan: Mapping[str, Any]

    def majority(self, column: Column) -> Optional[float]:
        """The score of always giving the majority class, in percent; None where no result says it."""
        known = (row.entries[column.name].majority for row in self.rows)
        return next((score for score in known if score is not None), None)

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
    """The plan and the results of a table so far.

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
    published = {plain(name): record for name, record in zip(row_names(table), table.records())}
    lacking = set(published) - {row['slug'] for row in plan['rows']}
    if lacking:
        raise ValueError(f'{path}: lacks the rows {", ".join(sorted(lacking))} of Table {table.number}')
    rows = [_row(Path(output), columns, row, published.get(row['slug'], {})) for row in plan['rows']]
    return Results(table, columns, tuple(rows), plan)


def _row(
    output: Path, columns: Sequence[Column], planned: Mapping[str, Any], record: Mapping[str, Cell]
) -> ResultRow:
    """A row of the plan with its results; the record is what was published, empty if nothing was."""
    absent = NOT_REACHABLE if planned['unreachable'] else NOT_RUN
    results: Dict[str, FineTuningResult] = {}
    for task in dict.fromkeys(column.task for column in columns if column.task):
        path = output / 'cells' / planned['slug'] / plain(task) / 'result.json'
        if path.is_file():
            results[task] = FineTuningResult.read(path)
    scores, majority = _cells(results, columns)
    entries = {
        name: Entry(scores[name], 'done' if scores[name] else absent, record.get(name), majority[name])
        for name in (column.name for column in columns)
    }
    return ResultRow(
        planned['name'],
        entries,
        next((result.parameters for result in results.values()), None),
        record.get('parameters_m'),
        {task: _tuning(result) for task, result in results.items()},
        sum(result.seconds for result in results.values()),
        any(result.resumed for result in results.values()),
    )


def _cells(
    results: Mapping[str, FineTuningResult], columns: Sequence[Column]
) -> Tuple[Dict[str, Tuple[float, ...]], Dict[str, Optional[float]]]:
    """By column, the scores by seed, empty where there are none, and the score of the majority class."""
    scores: Dict[str, Tuple[float, ...]] = dict.fromkeys((column.name for column in columns), ())
    majority: Dict[str, Optional[float]] = dict.fromkeys(scores)
    for column in columns:
        if column.task in results:
            result = results[column.task]
            name = _score_name(result, column)
            scores[column.name] = result.scores(name)
            majority[column.name] = (result.majority or {}).get(name)
    counted = [column.name for column in columns if column.metric in ('f1', 'accuracy')]  # F1 of a pair
    if all(scores[name] for name in counted):
        scores['average'] = tuple(float(np.mean(one)) for one in zip(*(scores[name] for name in counted)))
        constant = [majority[name] for name in counted]
        if None not in constant:
            majority['average'] = float(np.mean(constant))
    return scores, majority


def _tuning(result: FineTuningResult) -> str:
    """The fine-tuning of a cell, in words."""
    recipe = result.recipe
    rates = ', '.join(f'{one.learning_rate:g}' for one in result.tried)
    chosen = f' (the best of {rates} on the set that is scored)' if rates else ''
    return (
        f'{result.samples["train"]:,} instances, {recipe["epochs"]} epochs, batches of '
        f'{recipe["batch_size"]}, learning rate {recipe["learning_rate"]:g}{chosen}, {recipe["precision"]}'
    )


def _score_name(result: FineTuningResult, column: Column) -> str:
    """A column's score, as the result names it, on the first held-out set."""
    first = result.metric.split('/')[0]
    names = [f'{first}/{name}' for name in SCORES[str(column.metric)]]
    return next(name for name in names if name in result.runs[0].scores)
