"""Tables of text, by the ending of the file's name: CSV, JSON lines, or else tab-separated values.

Cells with commas between may stand in quotes; in those with tabs between quotes are literal, as in GLUE's
files. A column is found by its name, because mirrors of a data set differ in which columns they carry."""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from ..runs.files import decoded, json_object

LOG = logging.getLogger(__name__)
SUFFIXES = ('.csv', '.tsv', '.jsonl')
_SEPARATORS = {',': 'commas', '\t': 'tabs', ';': 'semicolons', '|': 'bars'}


@dataclasses.dataclass(frozen=True)
class Table:
    """The rows of a file, blank ones left out.

    Cells are of type str; of JSON lines they are values, None where an object has no such key."""

    path: Path
    columns: tuple[str, ...]  # of JSON lines, the keys of all objects
    rows: list[tuple[int, Sequence[Any]]]  # the line that each begins on, and a cell for each column

    def cells(self, names: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
        """The line and the cells of some columns, row by row; ValueError if a name is that of several
        columns, or an object of JSON lines lacks a key.
        """
        for name in names:
            if self.columns.count(name) > 1:
                raise ValueError(
                    f'{self.path}: {self.columns.count(name)} columns are called {name!r}, of '
                    f'{", ".join(self.columns)}; keep one, or give the others other names'
                )
        places = [self.columns.index(name) for name in names]
        for line, row in self.rows:
            cells = [row[place] for place in places]
            if None in cells:
                raise ValueError(f'{self.path}: line {line} has no {names[cells.index(None)]!r}')
            yield line, cells

    def column(self, name: str) -> Iterator[tuple[int, Any]]:
        """The line and the cell of a column, row by row; errors are those of `cells`."""
        return ((line, cell) for line, (cell,) in self.cells([name]))

    def texts(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The texts in some columns, row by row; ValueError if a cell is another value of JSON."""
        rows = []
        for line, cells in self.cells(names):
            for name, cell in zip(names, cells):
                if not isinstance(cell, str):
                    raise ValueError(
                        f'{self.path}: line {line} has {cell!r:.60} as {name!r}, and a text is wanted'
                    )
            rows.append(tuple(cells))
        return tuple(rows)


def read_table(
    path: Path, wanted: Sequence[str] = (), *, headerless: Sequence[str] = (), cut_with: str = ''
) -> Table:
    """The table in a file, with all columns that are wanted; `headerless` are those of a file without header.

    In a file with the column `cut_with`, rows with too few cells are left out, and it is said how many.
    FileNotFoundError or ValueError if there is no such file; it is not UTF-8 or not what its ending says; a
    column is missing; there are no rows; or a row has too few cells or too many: the line is named.
    """
    path = Path(path)
    if path.suffix.lower() == '.jsonl':
        objects = list(read_json_lines(path))
        columns = list(dict.fromkeys(key for _, values in objects for key in values))
        rows = [(line, [values.get(name) for name in columns]) for line, values in objects]
    else:
        rows = list(read_records(path))
        columns = rows[0][1] if rows else []
    missing = [name for name in wanted if name not in columns]
    if missing and headerless and len(columns) == len(headerless):
        columns = list(headerless)
    elif missing:
        raise ValueError(
            f'{path}: no column {", ".join(map(repr, missing))}; its header is '
            f'{", ".join(columns)[:400] or "empty"}{wrong_separator(path, columns)}'
        )
    elif path.suffix.lower() != '.jsonl':
        rows = rows[1:]
    whole = [(line, row) for line, row in rows if len(row) == len(columns)]
    for line, row in rows:
        known = cut_with and cut_with in columns  # a column may have no name
        if len(row) > len(columns) or len(row) < len(columns) and not known:
            raise ValueError(
                f'{path}: line {line} has {len(row)} cells, and {len(columns)} are wanted: '
                f'{", ".join(columns)}{wrong_separator(path, columns)}'
            )
    if len(whole) < len(rows):
        LOG.warning('%s: %d rows are cut short and left out', path, len(rows) - len(whole))
    if not whole:
        raise ValueError(f'{path}: has no rows')
    return Table(path, tuple(columns), whole)


def read_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line and the cells of every row of a file with separators, its header among them, blank lines left
    out; errors as of `read_table`, but rows may have any number of cells.
    """
    if path.suffix.lower() == '.csv':
        return _comma_separated(path, io.StringIO(decoded(path), newline=''))
    return ((line, cells) for line, cells in enumerate(read_cells(path), 1) if cells != [''])


def wrong_separator(path: Path, header: Sequence[str]) -> str:
    """The end of a message on a header that may be cut at the wrong places; empty if it is not."""
    own = ',' if path.suffix.lower() == '.csv' else '\t'
    found = [mark for mark in _SEPARATORS if len(header) == 1 and mark != own and mark in header[0]]
    if not found or path.suffix.lower() == '.jsonl':
        return ''
    remedy = {',': 'call the file .csv', '\t': 'call the file .tsv'}.get(
        found[0], 'save it with commas as .csv'
    )
    return f'; {_SEPARATORS[found[0]]} found, {_SEPARATORS[own]} expected: {remedy}'


def read_header(path: Path) -> list[str]:
    """The cells of the first row of a file that is not blank; ValueError if it is no CSV as the name says.
    The rest of the file is not read.
    """
    if path.suffix.lower() == '.csv':
        with open(path, encoding='utf-8-sig', errors='replace', newline='') as file:
            return next((cells for _, cells in _comma_separated(path, file)), [])
    with open(path, 'rb') as file:
        lines = (line.decode('utf-8-sig', errors='replace').rstrip('\r\n') for line in file)
        return next(filter(None, lines), '').split('\t')


def read_cells(path: Path) -> list[list[str]]:
    """The cells of every line of a tab-separated file. Quotes are literal; a byte order mark is left out;
    FileNotFoundError or ValueError if there is no such file, or it is not UTF-8.
    """
    # not splitlines: a sentence may hold a Unicode line separator
    lines = decoded(Path(path)).replace('\r\n', '\n').split('\n')
    return [line.split('\t') for line in lines]


def _comma_separated(path: Path, text: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The line that a record of a CSV file begins on, and its cells; its line ends are as in the file.
    A blank line is no record; one with two quotes is an empty cell.
    """
    line, reader = 1, csv.reader(text, strict=True)
    before = csv.field_size_limit(max(csv.field_size_limit(), path.stat().st_size))  # 131,072 are the usual
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f'{path}: line {line}: {error}; a cell with a comma, a quote or a line break stands in quotes, '
            'and a quote in it is doubled'
        ) from error
    finally:
        csv.field_size_limit(before)


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line numbers and objects of JSON lines; FileNotFoundError, or ValueError if a line is none."""
    for number, line in enumerate(decoded(Path(path)).split('\n'), 1):
        if line.strip():
            yield number, json_object(line, source=f'{path}: line {number}')
