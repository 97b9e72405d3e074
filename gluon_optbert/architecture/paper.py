"""The published tables of optBERT as data: the architectures to build, the numbers to stand beside.

The tables are the files ``paper/table_NN.json`` beside this module. They were taken from text that a PDF
gave, which lost or scattered some cells; every file says, cell by cell, which ones were inferred, what stood
there and why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

Cell = Union[str, int, float, None]
FORMAT = 1
NUMBERS = (1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
_DIRECTORY = Path(__file__).with_name('paper')


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
        What code calls it, e.g. ``squad1_f1``; the two numbers of a pair are two columns.
    label : str
        What the paper prints above it; both columns of a pair have the same.
    task : str, optional
        The data set, where the column is a score.
    metric : str, optional
        ``accuracy``, ``f1`` or ``em`` in percent, where it is a score.
    """

    name: str
    label: str
    task: str | None = None
    metric: str | None = None


@dataclasses.dataclass(frozen=True)
class Inference:
    """A cell that could not simply be read.

    Parameters
    ----------
    row : int
        Counted from 0.
    column : str
        The column's name.
    printed : str
        What the text has in its place; empty where it has nothing.
    reason : str
        Why the value is what it is.
    """

    row: int
    column: str
    printed: str
    reason: str


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A published table.

    Parameters
    ----------
    number : int
    source : str
    caption : str
    settings : dict of str to int
        What holds for the whole table, e.g. ``layers`` and ``h``.
    columns : tuple of Column
    rows : tuple of tuple
        One cell per column; None where the paper prints a dash.
    architectures : tuple of str or None
        By row, the name that `architecture.resolve` knows its network by; None where its widths were not
        published.
    inferred : tuple of Inference
        Every other cell was read.
    notes : tuple of str
    """

    number: int
    source: str
    caption: str
    settings: Mapping[str, int]
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    architectures: tuple[str | None, ...]
    inferred: tuple[Inference, ...]
    notes: tuple[str, ...]

    def records(self) -> list[dict[str, Cell]]:
        """The rows as dicts by column name."""
        return [dict(zip((column.name for column in self.columns), row)) for row in self.rows]

    def column(self, name: str) -> tuple[Cell, ...]:
        """One column, from the first row to the last.

        Raises
        ------
        ValueError
            If there is none of that name.
        """
        names = [column.name for column in self.columns]
        if name not in names:
            raise ValueError(
                f'Table {self.number} has no column {name!r}; its columns are {", ".join(names)}'
            )
        return tuple(row[names.index(name)] for row in self.rows)

    def inference(self, row: int, column: str) -> Inference | None:
        """How a cell was inferred; None if it was read."""
        return next((one for one in self.inferred if (one.row, one.column) == (row, column)), None)


def load_table(number: int) -> PaperTable:
    """A published table by its number, one of `NUMBERS`.

    Raises
    ------
    ValueError
        If that table is not kept, or its file is not as it should be.
    """
    if number not in NUMBERS:
        raise ValueError(
            f'there is no data for Table {number!r}; there is for {", ".join(map(str, NUMBERS))}'
        )
    path = _DIRECTORY / f'table_{number:02d}.json'
    table = read_table(path)
    if table.number != number:
        raise ValueError(f'{path}: holds Table {table.number}')
    return table


def read_table(path: Path) -> PaperTable:
    """The table in a JSON file.

    Raises
    ------
    FileNotFoundError
    ValueError
        Naming everything that is missing, unknown or of the wrong shape.
    """
    try:
        values = json.loads(Path(path).read_text(encoding='utf-8'))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error
    problems = _misfits(values)
    if problems:
        raise ValueError(f'{path}: ' + '; '.join(problems))
    marks = tuple(
        Inference(row, column, one['printed'], one['reason'])
        for one in values['inferred']
        for row in one['rows']
        for column in one['columns']
    )
    return PaperTable(
        number=values['number'],
        source=values['source'],
        caption=values['caption'],
        settings=values['settings'],
        columns=tuple(Column(**column) for column in values['columns']),
        rows=tuple(tuple(row) for row in values['rows']),
        architectures=tuple(values['architectures']),
        inferred=marks,
        notes=tuple(values['notes']),
    )


def _fields(value: Any, kinds: Mapping[str, Any], what: str) -> list[str]:
    """What keeps a JSON value from being an object of exactly these fields and types."""
    if not isinstance(value, dict):
        return [f'{what} is not an object']
    problems = [f'{what} lacks {name}' for name in kinds if name not in value]
    problems += [f'{what} has an unknown field {name}' for name in value if name not in kinds]
    return problems + [
        f'{name} of {what} has the wrong type'
        for name, kind in kinds.items()
        if name in value and (not isinstance(value[name], kind) or isinstance(value[name], bool))
    ]


def _misfits(values: Any) -> list[str]:
    """What is wrong with the content of a table's file."""
    problems = _fields(
        values,
        {
            'format': int,
            'number': int,
            'source': str,
            'caption': str,
            'settings': dict,
            'columns': list,
            'rows': list,
            'architectures': list,
            'inferred': list,
            'notes': list,
        },
        'the table',
    )
    if problems:
        return problems
    if values['format'] != FORMAT:
        return [f'format {values["format"]}, this version reads {FORMAT}']
    absent = type(None)
    for i, column in enumerate(values['columns']):
        problems += _fields(
            column, {'name': str, 'label': str, 'task': (str, absent), 'metric': (str, absent)}, f'column {i}'
        )
    for i, one in enumerate(values['inferred']):
        problems += _fields(
            one, {'rows': list, 'columns': list, 'printed': str, 'reason': str}, f'inference {i}'
        )
    if problems:
        return problems
    return [*_cell_problems(values), *_inference_problems(values)]


def _cell_problems(values: Any) -> list[str]:
    """What is wrong with columns, rows and the lists beside them."""
    problems, width = [], len(values['columns'])
    if len({column['name'] for column in values['columns']}) < width:
        problems.append('two columns have the same name')
    for i, row in enumerate(values['rows']):
        if not isinstance(row, list) or len(row) != width:
            problems.append(f'row {i} is not a list of {width} cells')
        elif any(
            isinstance(cell, bool) or not isinstance(cell, (str, int, float, type(None))) for cell in row
        ):
            problems.append(f'row {i} has a cell that is neither a word, a number nor null')
    if len(values['architectures']) != len(values['rows']):
        problems.append('architectures are not one for each row')
    if not all(isinstance(name, (str, type(None))) for name in values['architectures']):
        problems.append('an architecture is neither a name nor null')
    if not all(type(value) is int for value in values['settings'].values()):
        problems.append('a setting is not a whole number')
    if not all(isinstance(note, str) for note in values['notes']):
        problems.append('a note is not text')
    return problems


def _inference_problems(values: Any) -> list[str]:
    """What is wrong with the cells that inferences speak of."""
    names = [column['name'] for column in values['columns']]
    cells = [(row, column) for one in values['inferred'] for row in one['rows'] for column in one['columns']]
    outside = [
        cell
        for cell in cells
        if type(cell[0]) is not int or not 0 <= cell[0] < len(values['rows']) or cell[1] not in names
    ]
    if not outside and len(set(cells)) < len(cells):
        return ['two inferences speak of the same cell']
    return [
        f'an inference speaks of row {row!r}, column {column!r}, which is not there'
        for row, column in outside
    ]
