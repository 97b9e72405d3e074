"""The rows of a task's files: texts, labels, scores of the development sets, submissions."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.heads import Head
from . import tagging
from .tables import SUFFIXES, Table, read_table, wrong_separator
from .tagging import is_tagged, read_sentences
from .task import Task, packaged_tasks

LOG = logging.getLogger(__name__)
PARTS = {'train': ('train',), 'dev': ('dev', 'validation', 'valid', 'val'), 'test': ('test',)}
_BETWEEN = re.compile('[,;|]')  # labels of a cell
_NUMBERING = ('', 'id', 'idx', 'index')  # names of columns that number the rows
_MOST_LABELS = 20  # of a classification, unless every second row has another of the same


@dataclasses.dataclass(frozen=True)
class Examples:
    """The rows of one file.

    Labels are numbers of classes (int64) or values (float64), of the shape (rows,); of several labels zeros
    and ones, (rows, labels); of words, whose rows are sentences, tuples of tags. A test set has none."""

    texts: tuple[tuple[str, ...], ...]  # one a row, or two
    labels: np.ndarray | None
    indices: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: int | None) -> Examples:
        """The first `count` rows; all of them if it is None."""
        return self.rows(range(len(self))[:count])

    def rows(self, numbers: Sequence[int]) -> Examples:
        """Some of the rows."""
        return Examples(
            tuple(self.texts[number] for number in numbers),
            None if self.labels is None else self.labels[list(numbers)],
            tuple(self.indices[number] for number in numbers),
        )

    def split(self, share: float) -> tuple[Examples, Examples]:
        """The rows without a share of them, one at least, and those: the same for every run."""
        order = np.random.RandomState(0).permutation(len(self))
        held = max(1, round(share * len(self)))
        return self.rows(sorted(order[held:])), self.rows(sorted(order[:held]))


def known_columns() -> list[tuple[str, ...]]:
    """The columns of the tasks of the package, and the usual ones of a user's own data, as those of heads."""
    own = [('text', 'label'), ('text', 'pair', 'label')]
    return [*(task.head.columns for task in packaged_tasks().values()), *own]


def known_texts(header: Sequence[str]) -> tuple[str, ...]:
    """The columns of text that a header has, one or two, among `known_columns`; empty if it has none."""
    texts = (columns[:-1] for columns in known_columns())
    return max((one for one in texts if {*one} <= {*header}), key=len, default=())


def task_of_file(
    path: Path, *, text: Sequence[str] = (), label: str | None = None, kind: str | None = None
) -> Task:
    """The task that a table with a header holds, by its columns.

    If the header has the columns of a task of GLUE, or text, label and perhaps pair, the texts and the label
    are those. Else it has one column of text or two, and one of labels: that called label, or the last one.
    Where they are known, `text` has the columns of texts, `kind` is that of the head, and `label` names the
    column of the labels, or with commas between those of zeros and ones, of which each is a label. If one is
    known, the other has its usual name; else the labels are the last column, and texts are all columns
    without labels, one or two. FileNotFoundError or ValueError if there is no such file, or it has other
    columns, those of several tasks, numbers for texts, no labels, or fewer than two.
    """
    path = Path(path)
    tagged = {'--text': ('words',), '--label': 'tags', '--kind': 'token_classification'}  # as of a known head
    stated = {'--text': tuple(text), '--label': label, '--kind': kind}
    of_columns = [flag for flag, value in stated.items() if value and value != tagged[flag]]
    if is_tagged(path) and not (of_columns and path.suffix.lower() == '.jsonl'):
        if of_columns:
            raise ValueError(
                f'{path}: a file of tagged words has no columns; leave {", ".join(of_columns)} out'
            )
        tags = {tag for sentence in read_sentences(path) for tag in sentence.tags}
        labels = tuple(sorted(tags, key=lambda tag: (tag != 'O', tag[2:], tag)))
        return task_of_head(_head(path, 'token_classification', labels, ('words', 'tags')), path)
    several = tuple(label.split(',')) if label else ()
    table = read_table(path, [*text, *several])
    columns, named = _columns_of(table, tuple(text), label)
    if len(several) > 1:
        if kind not in (None, 'multi_label'):
            raise ValueError(f'{path}: each of the columns {label} is a label, and --kind says {kind}')
        return task_of_head(_head(path, 'multi_label', several, columns), path)
    head = head_of_table(table, columns, kind)
    if not named and _is_label(columns[-1], head):
        raise ValueError(
            f'{path}: its first line has {columns[-1]!r} where the others have labels, so it is a row and no '
            'header; put the names of the columns above it, such as text,label'
        )
    return task_of_head(head, path)


def _columns_of(table: Table, text: tuple[str, ...], label: str | None) -> tuple[tuple[str, ...], bool]:
    """The columns of texts, one or two, then the one of labels; and whether a name or a flag says which that
    is. Parameters and errors are those of `task_of_file`.
    """
    path, header = table.path, table.columns
    known = [(text or one[:-1]) + ((label,) if label else one[-1:]) for one in known_columns()]
    fitting = [columns for columns in dict.fromkeys(known) if {*columns} - {label} <= {*header}]
    longest = [columns for columns in fitting if len(columns) == max(map(len, fitting))]
    columns: tuple[str, ...] = ()
    if longest:
        columns = longest[0]
        if len(longest) > 1 and not text:
            raise ValueError(
                f'{path}: its columns may be {" or ".join(map(", ".join, longest))}; --text and --label say '
                'which'
            )
    elif text:  # and the labels are all that is left, or stand last
        rest = [name for name in header if name not in text]
        columns = (*text, rest[-1]) if len(rest) == 1 or rest and rest[-1] == header[-1] else ()
    else:
        label = label or ('label' if 'label' in header else None)
        several = label.split(',') if label else ()
        columns = (*(name for name in header if name not in several), *([label] if label else []))
    named = bool(longest or text and columns or label)
    if not named and header[-1] in {field for one in known_columns() for field in one[:-1]}:
        raise ValueError(
            f'{path}: its last column, {header[-1]!r}, is of text, so it has no labels, like a test set of '
            f'GLUE; give a labelled file, such as dev.tsv, or name its columns with --text and --label'
        )
    if len(columns) not in (2, 3) or len(set(columns)) < len(columns):
        raise ValueError(
            f'{path}: its first line has the columns {", ".join(map(repr, header))}; wanted the columns of a '
            f'task of GLUE, or one of text or two and one of labels; --text and --label name them'
            f'{wrong_separator(path, header)}'
        )
    if not (longest or text):
        _check_texts(table, columns[:-1])
    return columns, named


def _check_texts(table: Table, names: Sequence[str]) -> None:
    """Raise ValueError if a column that was taken for text has numbers, or names of rows: single words, no
    two of them the same, beside a text.
    """
    texts = {name: [label_text(cell) for _, cell in table.column(name)] for name in names}
    of_words = {name for name, cells in texts.items() if any(len(cell.split()) > 1 for cell in cells)}
    for name, cells in texts.items():
        numbers = all(_number(cell) is not None for cell in cells)
        of_rows = of_words and name not in of_words and len(set(cells)) == len(cells)
        if name.casefold() in _NUMBERING or numbers or of_rows:
            raise ValueError(
                f'{table.path}: its column {name!r} has numbers, or names of rows, and no text; --text and '
                '--label name the columns to read'
            )


def _is_label(name: str, head: Head) -> bool:
    """Whether the name of a column is one of the labels in it, or a number where these are."""
    return name in head.labels if head.labels else _number(name) is not None


def _head(path: Path, kind: str, labels: tuple[str, ...], columns: Sequence[str]) -> Head:
    """The head of a file; ValueError, with the path, if there is no such head."""
    try:
        return Head(kind, labels, columns=tuple(columns))
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error


def own_task(
    data: Path, *, text: Sequence[str] = (), label: str | None = None, kind: str | None = None
) -> Task:
    """The task of a user's own table or file of tagged words, or of a directory with some that are called
    train, and perhaps dev (or validation, valid, val) and test; the parameters and errors are those of
    `task_of_file`.
    """
    data = Path(data)
    files = {'train': [data]}
    if data.is_dir():
        files = {
            part: [path for path in sorted(data.iterdir()) if path.stem.lower() in names and _is_table(path)]
            for part, names in PARTS.items()
        }
        wrong = [part for part, paths in files.items() if len(paths) > 1 or part == 'train' and not paths]
        if wrong:
            found = ', '.join(path.name for path in files[wrong[0]]) or 'none'
            raise ValueError(
                f'{data}: wanted one file {wrong[0]}.csv, .tsv or .jsonl, found {found}; or give one file, '
                'of which a share is held out'
            )
    elif data.is_file() and not _is_table(data):
        raise ValueError(
            f'{data}: a table ends with {", ".join(SUFFIXES)}, and tagged words with '
            f'{", ".join(tagging.SUFFIXES)}, which say how it is read'
        )
    paths = {part: str(own[0].absolute()) for part, own in files.items() if own}
    task = task_of_file(paths['train'], text=text, label=label, kind=kind)
    dev = {'dev': paths['dev']} if 'dev' in paths else {}
    test = {'predictions.tsv': paths['test']} if 'test' in paths else {}
    return dataclasses.replace(task, name=data.stem, train=paths['train'], dev=dev, test=test)


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in (*SUFFIXES, *tagging.SUFFIXES)


def with_head(task: Task, path: Path) -> Task:
    """A task with the head that the labels of a file want, if it has none; errors as of `head_of_table`."""
    if task.head is not None:
        return task
    columns = (*task.fields, task.label)
    head = head_of_table(read_table(path, columns, headerless=task.headerless), columns)
    try:
        return task.of(dataclasses.replace(head, task=task.name))
    except ValueError as error:
        raise ValueError(f'{task.name}: {error}') from error


def head_of_table(table: Table, columns: Sequence[str], kind: str | None = None) -> Head:
    """The head that the labels in a table want.

    Numbers of which one has a fraction are the values of a regression, lists are several labels at a time;
    all else are classes; ValueError if the labels do not say what they are, two of them may be the same, or
    one may be several.
    """
    path, column = table.path, columns[-1]
    has_lists = any(isinstance(cell, list) for _, cell in table.column(column))
    if kind == 'multi_label' or kind is None and has_lists:
        found = {label for _, cell in table.column(column) for label in several_labels(cell)}
        return _head(path, 'multi_label', tuple(sorted(found)), columns)
    cells = []
    for line, cell in table.column(column):
        if isinstance(cell, (list, dict)):
            raise ValueError(f'{path}: line {line} has {cell!r:.60} as {column!r}, and one label is wanted')
        cells.append(label_text(cell))
    values: dict[str, Any] = {cell: _number(cell) for cell in cells}  # what each label means
    words = [cell for cell, value in values.items() if value is None]
    broken = [cell for cell, value in values.items() if value is not None and value % 1]
    if words and broken and kind is None:
        raise ValueError(
            f'{path}: {column!r} has numbers such as {broken[0]} and {words[0]!r:.60}, which is none; take '
            'those rows out, or say --kind classification if all are names'
        )
    if words:
        values = {cell: cell.strip().casefold() for cell in cells if cell.strip()}
    labels = sorted(values, key=None if words else values.__getitem__)
    if kind is None:
        kind = 'regression' if broken else 'classification'
        if not broken:
            _check_classes(f'{path}: {column!r}', labels, values, len(cells), numbers=not words)
    if kind == 'classification' and len(labels) == 1:
        raise ValueError(
            f'{path}: no row has another label than {labels[0]!r}, and a classification has two '
            'different labels or more; give more rows, or name the column of the labels with --label'
        )
    return _head(path, kind, tuple(labels) if kind == 'classification' else (), columns)


def _check_classes(
    place: str, labels: Sequence[str], values: Mapping[str, Any], rows: int, *, numbers: bool
) -> None:
    """Raise ValueError if labels may be no classes: there are too many of them, whether they are numbers or
    words; or one of them may be several, or two of the same meaning in `values`.
    """
    if len(labels) > max(_MOST_LABELS, 0 if numbers else rows / 2):
        what = 'numbers' if numbers else 'labels'
        ways = '--kind regression or --kind classification' if numbers else '--label the column of labels'
        raise ValueError(f'{place} has {len(labels):,} different {what} in {rows:,} rows; say {ways}')
    first: dict[Any, str] = {}
    for label in labels:
        parts = several_labels(label)
        if len(parts) > 1 and not values.keys().isdisjoint(parts):
            raise ValueError(
                f'{place} has the label {label!r:.60}, which may be several; say --kind multi_label, or '
                '--kind classification if it is one'
            )
        other = first.setdefault(values[label], label)
        if other != label:
            raise ValueError(
                f'{place} has the labels {other!r} and {label!r}, which may be the same; write them alike, '
                'or say --kind classification if they are two'
            )


def task_of_head(head: Head, path: Path) -> Task:
    """The task of a head whose columns are known, to read one file of it."""
    return Task(head.task or path.stem, None, head.columns[:-1], head.columns[-1], path.name).of(head)


def read_examples(task: Task, path: Path, *, labelled: bool = True) -> Examples:
    """The rows of one file of a task, or the sentences of a file of tagged words; FileNotFoundError or
    ValueError from `read_table`, `read_sentences` or `labels_of`: the line is named.
    """
    indices: tuple[str, ...] = ()
    if task.head.kind == 'token_classification':
        found = read_sentences(path, labelled=labelled)
        texts, cells = tuple(one.words for one in found), ((one.line, one.tags) for one in found)
    else:
        wanted = [*task.fields, *(label_columns(task) if labelled else [])]
        cut_with = task.label if task.incomplete_rows else ''  # a test set has to be whole
        table = read_table(path, wanted, headerless=task.headerless, cut_with=cut_with)
        lines = [line for line, _ in table.rows]
        blank = {*range(lines[0], lines[-1])}.difference(lines)
        if blank and len(table.columns) == 1 and table.path.suffix.lower() not in ('.csv', '.jsonl'):
            raise ValueError(
                f'{path}: line {min(blank)} is blank, and may be an empty text; remove it, or call the file '
                '.csv and write "" there'
            )
        texts, cells = table.texts(task.fields), label_cells(task, table)
        if task.index in table.columns and not labelled:
            indices = tuple(str(cell) for _, cell in table.column(task.index))
    labels = labels_of(task, cells, path) if labelled else None
    return Examples(texts, labels, indices or tuple(map(str, range(len(texts)))))


def label_columns(task: Task) -> list[str]:
    """The columns of the labels: one, or of several labels one for each, with zeros and ones."""
    return task.label.split(',') if task.head.kind == 'multi_label' else [task.label]


def label_cells(task: Task, table: Table) -> Iterable[tuple[int, Any]]:
    """The line and the label of every row; of several columns the names of those that hold a one."""
    columns = label_columns(task)
    if len(columns) == 1:
        yield from table.column(task.label)
        return
    for line, cells in table.cells(columns):
        yield line, marked_labels(columns, cells, f'{table.path}: line {line}')


def marked_labels(columns: Sequence[str], cells: Sequence[Any], source: str) -> list[str]:
    """The names of the columns that hold a one; ValueError if a cell is neither one nor zero."""
    wrong = [cell for cell in cells if str(cell).lower() not in ('0', '1', 'false', 'true')]
    if wrong:
        raise ValueError(f'{source} has {wrong[0]!r:.60} where 0 or 1 is wanted')
    return [name for name, cell in zip(columns, cells) if str(cell).lower() in ('1', 'true')]


def several_labels(cell: Any) -> list[str]:
    """The labels in a cell: a list of JSON, or words with commas, semicolons or bars between."""
    if isinstance(cell, list):
        return list(map(label_text, cell))
    return [word.strip() for word in _BETWEEN.split(label_text(cell)) if word.strip()]


def label_text(cell: Any) -> str:
    """A label as text, whatever value of JSON it is."""
    return cell if isinstance(cell, str) else json.dumps(cell)


def labels_of(task: Task, cells: Iterable[tuple[int, Any]], path: Path) -> np.ndarray:
    """The labels of `Examples` in cells that come with their lines; ValueError if one is something else."""
    kind, names, numbers = task.head.kind, task.head.labels, task.head.numbers

    def number(line: int, cell: Any) -> float:
        text = label_text(cell)
        try:
            if kind == 'regression':
                return finite_number(text)
            return numbers[text if text in numbers else text.casefold()]
        except (KeyError, ValueError):
            wanted = 'a finite number' if kind == 'regression' else ' or '.join(names)
            raise ValueError(f'{path}: line {line} has the label {cell!r:.60}, wanted {wanted}') from None

    if kind in ('classification', 'regression'):
        values = [number(line, cell) for line, cell in cells]
        return np.array(values, dtype=np.float64 if kind == 'regression' else np.int64)
    rows = []
    for line, cell in cells:
        words = cell if kind == 'token_classification' else several_labels(cell)
        rows.append([number(line, word) for word in words])
    if kind == 'multi_label':
        return np.array([[label in row for label in range(len(names))] for row in rows], dtype=np.int64)
    labels = np.empty(len(rows), object)
    for place, row in enumerate(rows):  # at once, rows of one length would be a table
        labels[place] = tuple(names[label] for label in row)
    return labels


def finite_number(cell: str) -> float:
    """The number that a cell holds; ValueError if it holds none, an infinite one, NaN, or a word such as 1_5,
    which Python takes for 15.
    """
    value = float(cell)
    if not math.isfinite(value) or '_' in cell:
        raise ValueError(f'{cell!r} is no finite number')
    return value


def _number(cell: str) -> float | None:
    try:
        return finite_number(cell)
    except ValueError:
        return None


def read_sets(task: Task, data: Path, files: Mapping[str, str], *, labelled: bool) -> dict[str, Examples]:
    """The examples of the files that exist, by name; a missing file is logged and left out."""
    sets = {}
    for name, file in files.items():
        if (Path(data) / file).is_file():
            sets[name] = read_examples(task, Path(data) / file, labelled=labelled)
        else:
            LOG.info('%s: there is no %s, so it is left out', task.name, Path(data) / file)
    return sets


def decided(head: Head, scores: Any) -> Any:
    """Predictions of a network, as the labels of `Examples` are, from scores of the shape (rows, outputs), or
    of tags a list of (words, outputs).
    """
    if head.kind == 'token_classification':
        return [tuple(head.labels[number] for number in own.argmax(axis=1)) for own in scores]
    if head.kind == 'multi_label':
        return (scores > 0).astype(np.int64)
    return scores[:, 0] if head.kind == 'regression' else scores.argmax(axis=1)


def check_submission(task: Task) -> None:
    """ValueError if a label of the task holds a character that ends a label in a submission."""
    read = {'multi_label': several_labels, 'token_classification': lambda label: label.split(' ')}
    read_back = read.get(task.head.kind, lambda label: [label])
    for label in task.head.labels:
        if set(label) & set('\t\r\n') or read_back(label) != [label]:
            raise ValueError(
                f'{task.name}: a submission cannot hold the label {label!r:.60}, of which a character ends a '
                f'label there; rename it, or take {" and ".join(task.test.values())} away'
            )


def submission(task: Task, indices: Sequence[str], scores: np.ndarray) -> bytes:
    """The file that GLUE's leaderboard takes for a test set, from scores of the shape (rows, outputs)."""
    predictions: Sequence[Any] = decided(task.head, scores)
    if task.head.kind == 'regression':
        predictions = [f'{value:.3f}' for value in predictions]
    elif task.head.kind == 'classification':
        predictions = [task.head.labels[number] for number in predictions]
    elif task.head.kind == 'multi_label':
        predictions = [','.join(np.array(task.head.labels)[row == 1]) for row in predictions]
    else:
        predictions = map(' '.join, predictions)
    rows = [f'{index}\t{prediction}\n' for index, prediction in zip(indices, predictions)]
    return ''.join(['index\tprediction\n', *rows]).encode()
