"""The GLUE tasks as data: their files, fields, labels, metrics and heads, and a reader of the official
layout.

A task is a file ``tasks/<name>.json`` beside this module, or one of the user's with the same keys. Paths in
it are relative to the directory of all tasks. A column is found by the name in the header, because mirrors
differ in which columns they carry."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from ..architecture.heads import Head
from .metrics import METRICS, majority_score

LOG = logging.getLogger(__name__)
FORMAT = 1
_DIRECTORY = Path(__file__).with_name('descriptions')


@dataclasses.dataclass(frozen=True)
class Task:
    """One data set of sentences, or of pairs, with a label each.

    Parameters
    ----------
    name : str
    head : Head
        With the labels in their canonical order, which is that of the scores.
    fields : tuple of str
        The columns of the first text and, if there is one, of the second.
    label : str
        The column of the label.
    index : str
        The column of the number that a submission gives a row of a test set; without that column rows are
        counted from 0.
    metrics : tuple of str
        Of `METRICS`; the first decides which epoch is best.
    train : str
        The file to train on.
    dev, test : mapping of str to str
        Held-out sets by name, and test sets by the file of a submission.
    headerless : tuple of str
        The columns where a file has no header; empty if it always has one.
    incomplete_rows : bool
        Whether the official training file is known to have rows that are cut short; they are left out, and it
        is said how many.
    gluonnlp : str
        The class of GluonNLP that fetches the files; empty if there is none.
    """

    name: str
    head: Head
    fields: Tuple[str, ...]
    label: str
    index: str
    metrics: Tuple[str, ...]
    train: str
    dev: Mapping[str, str]
    test: Mapping[str, str]
    headerless: Tuple[str, ...] = ()
    incomplete_rows: bool = False
    gluonnlp: str = ''


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

    texts: Tuple[Tuple[str, ...], ...]
    labels: Optional[np.ndarray]
    indices: Tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: Optional[int]) -> Examples:
        """The first `count` rows; all of them if it is None."""
        return Examples(
            self.texts[:count], None if self.labels is None else self.labels[:count], self.indices[:count]
        )


def _plain(name: str) -> str:
    return name.lower().replace('-', '').replace('_', '')


def names() -> List[str]:
    """The names of the tasks that come with the package."""
    return sorted(read_task(path).name for path in _DIRECTORY.glob('*.json'))


def find_task(name: Union[str, Path]) -> Task:
    """The task of a name, whatever its capitals and hyphens, or of a user's JSON file.

    Raises
    ------
    ValueError, FileNotFoundError
        If there is none.
    """
    if str(name).endswith('.json'):
        return read_task(Path(name))
    for path in _DIRECTORY.glob('*.json'):
        if _plain(path.stem) == _plain(str(name)):
            return read_task(path)
    raise ValueError(
        f'{str(name)!r} is no task; there are {", ".join(names())}, or give a JSON file like those of the '
        f'package'
    )


def read_task(path: Path) -> Task:
    """The task that a JSON file describes.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or a key is missing, unknown or of the wrong kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such task file')
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error
    kinds = {
        'format': int,
        'name': str,
        'head': str,
        'labels': list,
        'fields': list,
        'label': str,
        'index': str,
        'metrics': list,
        'train': str,
        'dev': dict,
        'test': dict,
        'headerless': (list, type(None)),
        'incomplete_rows': bool,
        'gluonnlp': str,
    }
    if not isinstance(values, dict):
        raise ValueError(f'{path}: a task is a JSON object, found {type(values).__name__}')
    wrong = [
        f'{key} is {"missing" if key not in values else "of the wrong kind"}'
        for key, kind in kinds.items()
        if not isinstance(values.get(key, ...), kind)
    ]
    wrong += [f'{key!r:.80} is unknown' for key in values if key not in kinds]
    if not wrong:
        wrong += [
            f'metric {name!r} is none of {", ".join(METRICS)}'
            for name in values['metrics']
            if name not in METRICS
        ]
        wrong += (
            []
            if values['format'] == FORMAT
            else [f'format {values["format"]!r}, this version reads {FORMAT}']
        )
        wrong += [] if values['metrics'] and values['dev'] else ['it needs a metric and a dev set']
        wrong += [] if len(values['fields']) in (1, 2) else ['it needs one field or two']
    if wrong:
        raise ValueError(f'{path}: {"; ".join(wrong)}')
    lists = {key: tuple(values[key] or ()) for key in ('fields', 'metrics', 'headerless')}
    same = {
        key: values[key]
        for key in ('name', 'label', 'index', 'train', 'dev', 'test', 'incomplete_rows', 'gluonnlp')
    }
    return Task(head=Head(values['head'], tuple(values['labels']), values['name']), **same, **lists)


def task_of_file(path: Path) -> Task:
    """The classification that a tab-separated file with a header is: one column or two of text, the last one
    of labels.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it has other columns or fewer than two labels.
    """
    header, *rows = read_lines(path)
    if len(header) not in (2, 3) or len(set(header)) < len(header):
        raise ValueError(
            f'{path}: its first line has the columns {", ".join(map(repr, header))}; wanted one of text or '
            f'two and '
            'one of labels, all named'
        )
    labels = tuple(sorted({row[-1] for row in rows if len(row) == len(header)}))
    return Task(
        name=Path(path).stem,
        head=Head('classification', labels),
        fields=tuple(header[:-1]),
        label=header[-1],
        index='',
        metrics=('accuracy',),
        train=Path(path).name,
        dev={},
        test={},
    )


def read_lines(path: Path) -> List[List[str]]:
    """The cells of every line of a tab-separated file; quotes are literal, and a byte order mark is none of
    the first cell.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it is not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        text = path.read_bytes().decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(f'{path}: not UTF-8 at byte {error.start}') from error
    lines = text.replace('\r\n', '\n').split(
        '\n'
    )  # not splitlines: a sentence may hold a Unicode line separator
    return [line.split('\t') for line in lines]


def read_examples(task: Task, path: Path, *, labelled: bool = True) -> Examples:
    """The rows of one file of a task.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file; if a column is missing, a row is too short or a label is unknown: the line
        is named.
    """
    rows = read_lines(path)
    wanted = [*task.fields, *([task.label] if labelled else [])]
    columns = _columns(task, path, rows, wanted)
    headed = rows[0] == columns
    numbers = [columns.index(name) for name in wanted]
    complete, cut = [], 0
    for line, row in enumerate(rows[headed:], 1 + headed):
        if len(row) > max(numbers):
            complete.append((line, [row[number] for number in numbers], row))
        elif row != ['']:
            cut += 1
            if not (task.incomplete_rows and labelled):
                raise ValueError(
                    f'{path}: line {line} has {len(row)} cells, and {len(columns)} are wanted: '
                    f'{", ".join(columns)}'
                )
    if cut:
        LOG.warning('%s: %d rows are cut short and left out', path, cut)
    if not complete:
        raise ValueError(f'{path}: has no rows')
    count = len(task.fields)
    labels = _labels(task, path, [(line, cells[count]) for line, cells, _ in complete]) if labelled else None
    if task.index in columns and not labelled:
        indices = tuple(row[columns.index(task.index)] for _, _, row in complete)
    else:
        indices = tuple(map(str, range(len(complete))))
    return Examples(tuple(tuple(cells[:count]) for _, cells, _ in complete), labels, indices)


def _columns(task: Task, path: Path, rows: Sequence[Sequence[str]], wanted: Sequence[str]) -> List[str]:
    found = list(rows[0])
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    if task.headerless and len(found) == len(task.headerless):
        return list(task.headerless)
    raise ValueError(
        f'{path}: no column {", ".join(map(repr, missing))}; its header is {", ".join(found) or "empty"}'
    )


def _labels(task: Task, path: Path, cells: Sequence[Tuple[int, str]]) -> np.ndarray:
    regression = task.head.kind == 'regression'
    numbers = {label: number for number, label in enumerate(task.head.labels)}
    try:
        values = [float(cell) if regression else numbers[cell] for _, cell in cells]
    except (KeyError, ValueError):
        line, cell = next(
            (line, cell) for line, cell in cells if not (_is_number(cell) if regression else cell in numbers)
        )
        raise ValueError(
            f'{path}: line {line} has the label {cell!r}, wanted '
            f'{"a number" if regression else " or ".join(task.head.labels)}'
        ) from None
    return np.array(values, dtype=np.float64 if regression else np.int64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_sets(task: Task, data: Path, files: Mapping[str, str], *, labelled: bool) -> Dict[str, Examples]:
    """Those of some files of a task that are there, by name; it is said which are not."""
    found = {}
    for name, file in files.items():
        if (Path(data) / file).is_file():
            found[name] = read_examples(task, Path(data) / file, labelled=labelled)
        else:
            LOG.info('%s: there is no %s, so it is left out', task.name, Path(data) / file)
    return found


def majority_scores(task: Task, data: Path) -> Dict[str, float]:
    """The scores of always giving the commonest answer of each development set that is there, in percent, by
    the names of a fine-tuning result: ``dev/accuracy``. `metrics.majority_score` says what they are.
    """
    sets = read_sets(task, data, task.dev, labelled=True)
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


def official_files(task: Task) -> List[str]:
    """The files of a task that GluonNLP has; what lies elsewhere, such as the diagnostic set, it does not."""
    return [
        file
        for file in (task.train, *task.dev.values(), *task.test.values())
        if Path(file).parent == Path(task.train).parent
    ]
