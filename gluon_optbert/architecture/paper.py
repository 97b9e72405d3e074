"""The published tables of optBERT as data: the architectures to build, the numbers to stand beside.

The tables are the files ``paper/table_NN.json`` beside this module. They were taken from text that a PDF
gave, which lost or scattered some cells; every file says, cell by cell, which ones were inferred, what stood
there and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ..runs.files import checked, read_json

Cell = str | int | float | None
NUMBERS = (1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)


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
    settings : dict of str to int
        What holds for the whole table, e.g. ``layers`` and ``h``.
    rows : tuple of tuple
        One cell per column; None where the paper prints a dash.
    architectures : tuple of str or None
        By row, the name that `architecture.resolve` knows its network by; None where its widths were not
        published.
    inferred : tuple of Inference
        Every other cell was read.
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


def load_table(number: int) -> PaperTable:
    """A published table by its number, one of `NUMBERS`; ValueError if its data is not kept."""
    if number not in NUMBERS:
        raise ValueError(
            f'there is no data for Table {number!r}; there is for {", ".join(map(str, NUMBERS))}'
        )
    path = Path(__file__).with_name('paper') / f'table_{number:02d}.json'
    values = read_json(path)
    values['inferred'] = [
        {**one, 'row': row, 'column': column}
        for one in values['inferred']
        for row in one['rows']
        for column in one['columns']
    ]
    return checked(PaperTable, values, source=path)
