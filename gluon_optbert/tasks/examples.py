"""The rows of a task's files, in GLUE's official layout: texts, labels, scores of the development sets,
submissions.

A column is found by its name in the header, because mirrors differ in which columns they carry."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.heads import Head
from ..runs.files import parse_json
from .metrics import majority_score
from .task import Task, find_task, names

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of one file.

    Parameters
    ----------
    texts : tuple of tuple of str
        One text a row, or two.
    labels : np.ndarray, shape (rows,), optional
        Numbers of classes (int64), or values (float64); None of a test set.
    indices : tuple of str
    """

    texts: tuple[tuple[str, ...], ...]
    labels: np.ndarray | None
    indices: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: int | None) -> Examples:
        """The first `count` rows; all of them if it is None."""
        return Examples(
            self.texts[:count], None if self.labels is None else self.labels[:count], self.indices[:count]
        )


def read_lines(path: Path) -> list[list[str]]:
    """The cells of every line of a tab-separated file. Quotes are literal; a byte order mark is left out.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it is not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    content = path.read_bytes()
    try:
        text = content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b'\n') + 1
        raise ValueError(f'{path}: not UTF-8 at byte {error.start}, in line {line}; convert it') from error
    # not splitlines: a sentence may hold a Unicode line separator
    lines = text.replace('\r\n', '\n').split('\n')
    return [line.split('\t') for line in lines]


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, with their line numbers; FileNotFoundError or ValueError if a line
    is none.
    """
    for number, cells in enumerate(read_lines(path), 1):
        line = '\t'.join(cells)
        if line.strip():
            values = parse_json(line, source=f'{path}: line {number}')
            if not isinstance(values, dict):
                raise ValueError(f'{path}: line {number} is no JSON object')
            yield number, values


def read_header(path: Path) -> list[str]:
    """The cells of the first line of a file. The rest of the file is not read."""
    with open(path, 'rb') as file:
        line = file.readline()
    return line.decode('utf-8-sig', errors='replace').rstrip('\r\n').split('\t')


def task_of_file(path: Path) -> Task:
    """The task that a tab-separated file with a header holds, by its columns.

    If the header has the columns of a task of GLUE, the texts and the label are those. Else it has one column
    of text or two, and the last one of labels. The labels of a classification are those in the file.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it has other columns, no labels, or fewer than two.
    """
    header, *rows = read_lines(path)
    tasks = [find_task(name) for name in names()]
    fitting = [task for task in tasks if set(task.head.columns) <= set(header)]
    packaged = max(fitting, key=lambda task: len(task.fields), default=None)
    if packaged is not None and packaged.head.kind != 'classification':
        return packaged
    if packaged is not None:
        columns = (*packaged.fields, packaged.label)
    elif header[-1] in {field for task in tasks for field in task.fields}:
        raise ValueError(
            f'{path}: its last column, {header[-1]!r}, is of text, so it has no labels, like a test set of '
            f'GLUE; give a labelled file, such as dev.tsv'
        )
    elif len(header) in (2, 3) and len(set(header)) == len(header):
        columns = tuple(header)
    else:
        raise ValueError(
            f'{path}: its first line has the columns {", ".join(map(repr, header))}; wanted the columns of a '
            f'task of GLUE, or one of text or two and one of labels, all named'
        )
    place = header.index(columns[-1])
    labels = tuple(sorted({row[place] for row in rows if len(row) == len(header)}))
    try:
        head = Head('classification', labels, columns=columns)
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    return task_of_head(head, Path(path))


def task_of_head(head: Head, path: Path) -> Task:
    """The task of a head whose columns are known, to read one file of it."""
    return Task(
        name=head.task or path.stem,
        head=head,
        fields=head.columns[:-1],
        label=head.columns[-1],
        index='index',
        metrics=('pearson',) if head.kind == 'regression' else ('accuracy',),
        train=path.name,
        dev={},
        test={},
    )


def read_examples(task: Task, path: Path, *, labelled: bool = True) -> Examples:
    """The rows of one file of a task.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file; if a column is missing or comes twice; if a row is too short, or a label is
        unknown or no finite number: the line is named.
    """
    rows = read_lines(path)
    wanted = [*task.fields, *([task.label] if labelled else [])]
    columns = _columns(task, path, rows[0], wanted)
    headed = rows[0] == columns
    numbers = [columns.index(name) for name in wanted]
    may_be_cut = task.incomplete_rows and task.label in columns  # a test set has to be whole
    # without the labels, the same rows are left out
    least = 1 + max([*numbers, *([columns.index(task.label)] if may_be_cut else [])])
    complete, cut = [], 0
    for line, row in enumerate(rows[headed:], 1 + headed):
        if row == ['']:
            continue
        if len(row) >= least:
            complete.append((line, row))
        elif may_be_cut:
            cut += 1
        else:
            raise ValueError(
                f'{path}: line {line} has {len(row)} cells, and {len(columns)} are wanted: '
                f'{", ".join(columns)}'
            )
    if cut:
        LOG.warning('%s: %d rows are cut short and left out', path, cut)
    if not complete:
        raise ValueError(f'{path}: has no rows')
    fields = numbers[: len(task.fields)]
    texts = tuple(tuple(row[number] for number in fields) for _, row in complete)
    labels = labels_of(task, ((line, row[numbers[-1]]) for line, row in complete), path) if labelled else None
    if task.index in columns and not labelled:
        indices = tuple(row[columns.index(task.index)] for _, row in complete)
    else:
        indices = tuple(map(str, range(len(complete))))
    return Examples(texts, labels, indices)


def _columns(task: Task, path: Path, header: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The columns of a file: its header, or those of the task where a file of it has no header."""
    missing = [name for name in wanted if name not in header]
    if missing and not (task.headerless and len(header) == len(task.headerless)):
        raise ValueError(
            f'{path}: no column {", ".join(map(repr, missing))}; its header is {", ".join(header) or "empty"}'
        )
    columns = list(task.headerless if missing else header)
    for name in (*wanted, task.index):
        if columns.count(name) > 1:
            raise ValueError(
                f'{path}: {columns.count(name)} columns are called {name!r}, of {", ".join(columns)}; keep '
                f'one, or give the others other names'
            )
    return columns


def labels_of(task: Task, cells: Iterable[tuple[int, str]], path: Path) -> np.ndarray:
    """The numbers of classes, or the values, in cells that come with their lines; ValueError if one holds
    something else.
    """
    regression = task.head.kind == 'regression'
    numbers = {label: number for number, label in enumerate(task.head.labels)}
    values = []
    for line, cell in cells:
        try:
            values.append(finite_number(cell) if regression else numbers[cell])
        except (KeyError, ValueError):
            wanted = 'a finite number' if regression else ' or '.join(task.head.labels)
            raise ValueError(f'{path}: line {line} has the label {cell!r:.60}, wanted {wanted}') from None
    return np.array(values, dtype=np.float64 if regression else np.int64)


def finite_number(cell: str) -> float:
    """The number that a cell holds; ValueError if it holds none, an infinite one or NaN."""
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError(f'{cell!r} is no finite number')
    return value


def read_sets(task: Task, data: Path, files: Mapping[str, str], *, labelled: bool) -> dict[str, Examples]:
    """The examples of the files that exist, by name; a missing file is logged and left out."""
    sets = {}
    for name, file in files.items():
        if (Path(data) / file).is_file():
            sets[name] = read_examples(task, Path(data) / file, labelled=labelled)
        else:
            LOG.info('%s: there is no %s, so it is left out', task.name, Path(data) / file)
    return sets


def majority_scores(task: Task, sets: Mapping[str, Examples]) -> dict[str, float]:
    """The scores of always giving the commonest answer of each set, in percent, by the names of a fine-tuning
    result: ``dev/accuracy``. `metrics.majority_score` says what they are.
    """
    return {
        f'{name}/{metric}': value
        for name, examples in sets.items()
        for metric, value in majority_score(task.metrics, examples.labels).items()
    }


def submission(task: Task, indices: Sequence[str], scores: np.ndarray) -> bytes:
    """The file that GLUE's leaderboard takes for one test set: ``index`` and ``prediction``.

    Parameters
    ----------
    task : Task
    indices : sequence of str
    scores : np.ndarray, shape (rows, outputs)
    """
    if task.head.kind == 'regression':
        predictions: Sequence[Any] = [f'{value:.3f}' for value in scores[:, 0]]
    else:
        predictions = [task.head.labels[number] for number in scores.argmax(axis=1)]
    rows = [f'{index}\t{prediction}\n' for index, prediction in zip(indices, predictions)]
    return ''.join(['index\tprediction\n', *rows]).encode()
