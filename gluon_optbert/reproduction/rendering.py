"""A results table as Markdown, CSV and LaTeX, from its plan and the result files that are there.

Every score stands beside the published one, as mean and deviation over the seeds of fine-tuning. What has no
result file says "not run", what the base is too small for "not reachable"."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..architecture.paper import Cell, Column, PaperTable, load_table
from ..finetuning.finetune import FORMAT as RESULT_FORMAT
from .rows import plain
from .runs import FORMAT

SCORES = {
    'accuracy': ('accuracy',),
    'f1': ('f1',),
    'em': ('exact_match', 'exact'),
}  # a column's metric, as results call it
NOT_RUN, NOT_REACHABLE = 'not run', 'not reachable'
CSV_HEADER = (
    'row',
    'column',
    'task',
    'metric',
    'state',
    'mean',
    'std',
    'seeds',
    'published',
    'parameters',
    'published_parameters_m',
)


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


def _json(path: Path, kind: Callable[[Mapping[str, Any]], bool], what: str) -> Dict[str, Any]:
    """The object in a JSON file; ValueError if it is none of that kind."""
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
        if isinstance(values, dict) and kind(values):
            return values
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error
    raise ValueError(f'{path}: not {what}')


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
    plan = _json(path, lambda values: values.get('format') == FORMAT, f'a plan of format {FORMAT}')
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
    found: Dict[str, Dict[str, Any]] = {}
    for task in dict.fromkeys(column.task for column in columns if column.task):
        path = output / 'cells' / planned['slug'] / plain(task) / 'result.json'
        if path.is_file():
            found[task] = _json(
                path, lambda values: values.get('format') == RESULT_FORMAT, 'a result of fine-tuning'
            )
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
        next((result['parameters'] for result in found.values()), None),
        record['parameters_m'],
        {task: _tuning(result) for task, result in found.items()},
        sum(run['seconds'] for result in found.values() for run in result['runs']),
    )


def _tuning(result: Mapping[str, Any]) -> str:
    """The fine-tuning of a cell, in words."""
    recipe = result['recipe']
    return (
        f'{result["samples"]["train"]:,} instances, {recipe["epochs"]} epochs, batches of '
        f'{recipe["batch_size"]}, learning rate '
        f'{recipe["learning_rate"]:g}, {recipe["precision"]}'
    )


def _scores(result: Mapping[str, Any], column: Column) -> Tuple[float, ...]:
    """A column's score by seed, on the first held-out set."""
    first = str(result['metric']).split('/')[0]
    names = [f'{first}/{name}' for name in SCORES[str(column.metric)]]
    return tuple(
        next(run['scores'][name] for name in names if name in run['scores']) for run in result['runs']
    )


def table_lines(results: Results) -> List[List[str]]:
    """Two lines a row: what was measured, and what was published."""
    lines = []
    for row in results.rows:
        size = '–' if row.parameters is None else f'{row.parameters / 1e6:.3g} M'
        lines.append(
            [row.name, 'here', size, *(row.entries[column.name].text() for column in results.columns)]
        )
        published = (row.entries[column.name].published for column in results.columns)
        lines.append(
            [
                '',
                'paper',
                f'{row.published_parameters_m} M',
                *('–' if cell is None else str(cell) for cell in published),
            ]
        )
    return lines


def table_head(results: Results) -> List[str]:
    """The heads of the columns of `table_lines`."""
    return ['model', '', 'parameters', *(results.label(column) for column in results.columns)]


def notes(results: Results) -> List[str]:
    """What has to be known to read the table."""
    plan = results.plan
    said = [
        f'Here: on a base of {plan["base_parameters"]:,} parameters; mean ± deviation of the sample over the '
        f'seeds '
        f'{", ".join(map(str, plan["seeds"]))} of fine-tuning, one network a row; scores in percent, on the '
        f'held-out sets.',
        'The average is of one score a task, F1 of SQuAD.',
        f'Steps in each of {plan["rounds"]} rounds: {plan["alpha_steps"]} of gates, {plan["recovery_steps"]} '
        f'of recovery; '
        f'scale {plan["scale"]:g}.',
    ]
    tunings = dict.fromkeys((task, tuning) for row in results.rows for task, tuning in row.tuning.items())
    said += [f'Fine-tuned on {task}: {tuning}.' for task, tuning in tunings]
    if tunings:
        said.append(f'Fine-tuning took {sum(row.seconds for row in results.rows) / 60:.0f} minutes in all.')
    said += [
        f'{row["name"]}: {row["how"]}'
        + ('' if row['share'] is None else f', {row["share"]:.1%} of the base')
        + (f'; {NOT_REACHABLE}: {row["unreachable"]}' if row['unreachable'] else '')
        + '.'
        for row in plan['rows']
    ]
    return said


def markdown(results: Results) -> str:
    """The table for a page."""
    heads = table_head(results)
    lines = [
        f'# Table {results.table.number}',
        '',
        results.table.caption,
        '',
        '| ' + ' | '.join(heads) + ' |',
        '| --- ' * len(heads) + '|',
        *('| ' + ' | '.join(line) + ' |' for line in table_lines(results)),
        '',
    ]
    return '\n'.join(lines + [f'- {note}' for note in notes(results)]) + '\n'


def sheet(results: Results) -> str:
    """The table as CSV, a line for each cell, unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerow(CSV_HEADER)
    for row in results.rows:
        for column in results.columns:
            entry = row.entries[column.name]
            writer.writerow(
                [
                    row.name,
                    column.name,
                    column.task,
                    column.metric,
                    entry.state,
                    entry.mean,
                    entry.std,
                    len(entry.scores),
                    entry.published,
                    row.parameters,
                    row.published_parameters_m,
                ]
            )
    return text.getvalue()


_TEX = {
    '\\': r'\textbackslash{}',
    **{sign: '\\' + sign for sign in '&%$#_{}'},
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    'ℓ': r'$\ell$',
    '±': r'$\pm$',
    '–': '--',
    'α': r'$\alpha$',
}


def tex(results: Results) -> str:
    """The table for LaTeX, without packages."""

    def line(cells: Sequence[str]) -> str:
        return ' & '.join(''.join(_TEX.get(sign, sign) for sign in cell) for cell in cells) + r' \\'

    heads, body = table_head(results), [line(cells) for cells in table_lines(results)]
    return (
        '\n'.join(
            [
                r'\begin{tabular}{ll' + 'r' * (len(heads) - 2) + '}',
                r'\hline',
                line(heads),
                r'\hline',
                *body,
                r'\hline',
                r'\end{tabular}',
            ]
        )
        + '\n'
    )


def render(results: Results) -> Dict[str, str]:
    """The files of a table by name."""
    return {'table.md': markdown(results), 'table.csv': sheet(results), 'table.tex': tex(results)}
