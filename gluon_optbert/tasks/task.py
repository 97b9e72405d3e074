"""The GLUE tasks as data: their files, fields, labels, metrics and heads.

A task is a file ``descriptions/<name>.json`` beside this module, or one of the user's with the same keys, of
which it needs those that cannot be guessed. Paths in it are relative to the directory of all tasks. Module
`examples` reads the files, and makes the task of a table that no file describes."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..architecture.heads import Head
from ..runs.failures import meant
from ..runs.files import checked, read_json
from .metrics import METRICS, OF_HEADS, usual_metrics

_DIRECTORY = Path(__file__).with_name('descriptions')
_LONGEST_NAME = 255  # bytes that file systems take


@dataclasses.dataclass(frozen=True)
class Task:
    """One data set of sentences, or of pairs, with a label each.

    The head has the labels in their canonical order, which is that of the scores; it is None if the labels
    are those in the training file: `examples.with_head` reads them. Without held-out sets a share of the
    training file is held out.
    """

    name: str
    head: Head | None
    fields: tuple[str, ...]  # the columns of the first text and, if there is one, of the second
    label: str  # the column of the label
    train: str  # the file to train on
    # column of the number that a submission gives a row of a test set; without it they are counted from 0
    index: str = 'index'
    metrics: tuple[str, ...] = ()  # of `METRICS`, that go with the head; the first says which epoch is best
    dev: Mapping[str, str] = dataclasses.field(default_factory=dict)  # held-out sets by name
    test: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by the file name of a submission
    headerless: tuple[str, ...] = ()  # the columns where a file has no header; empty if it always has one
    incomplete_rows: bool = False  # whether the training file is known to have rows cut short, to leave out
    gluonnlp: str = ''  # the class of GluonNLP that fetches the files, if there is one

    def of(self, head: Head) -> Task:
        """The task with a head, and with the usual metrics of its kind if it has none; ValueError if a metric
        does not go with it.
        """
        problems = []
        for name in self.metrics:
            wanted = next(kind for kind, own in OF_HEADS.items() if name in own)
            if head.kind != wanted:
                problems.append(f'metric {name!r} goes with a {wanted}, and the head is {head.kind}')
            elif name == 'f1' and len(head.labels) != 2:
                problems.append(f"metric 'f1' goes with two labels, and there are {len(head.labels)}")
        if problems:
            raise ValueError('; '.join(problems))
        return dataclasses.replace(self, head=head, metrics=self.metrics or usual_metrics(head))


class _TaskFile(BaseModel):
    """The keys of a task file."""

    model_config = ConfigDict(strict=True, extra='forbid')

    format: Literal[1] = 1
    name: str = Field('', pattern=r'\S')
    head: str | None = None
    labels: list[str] = []
    names: list[str] | None = None
    fields: list[str] = Field(min_length=1, max_length=2)
    label: str
    index: str = 'index'
    metrics: list[str] = []
    train: str
    dev: dict[str, str] = {}
    test: dict[str, str] = {}
    headerless: list[str] | None = None
    incomplete_rows: bool = False
    gluonnlp: str = ''

    @model_validator(mode='after')
    def _check(self) -> _TaskFile:
        problems = [
            f'metric {name!r} is none of {", ".join(METRICS)}' for name in self.metrics if name not in METRICS
        ]
        problems += [
            f'test: {name!r:.80} is no plain file name; call it predictions.tsv'
            for name in self.test
            if not _is_plain(name)
        ]
        if self.names and not self.labels:
            problems.append('names has no labels to name; give labels, too, in the order of the names')
        columns = [*self.fields, self.label]
        if len(set(columns)) < len(columns):
            problems.append(f'one column is named twice among the fields and the label: {", ".join(columns)}')
        counts = collections.Counter(['train', *self.dev, *self.test])
        problems += [
            f'{name!r:.80} is the name of two sets; every dev and test set has a name of its own, not train'
            for name, count in counts.items()
            if count > 1
        ]
        if problems:
            raise ValueError('; '.join(problems))
        return self


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file in a directory, not of one elsewhere or hidden."""
    return (
        name != ''
        and not name.startswith('.')
        and not set(name) & set('/\\')
        and name.isprintable()
        and len(name.encode('utf-8')) <= _LONGEST_NAME
    )


def read_task(path: Path) -> Task:
    """The task that a JSON file describes.

    FileNotFoundError or ValueError if there is no such file; a key is missing, unknown or of the wrong kind;
    a metric does not go with the head, if that is known; a submission has no plain file name; or two of the
    training, dev and test sets have one name.
    """
    path = Path(path)
    file = checked(_TaskFile, read_json(path), source=path)
    same = file.model_dump(exclude={'format', 'name', 'head', 'labels', 'names'}, exclude_none=True)
    same = {key: tuple(value) if isinstance(value, list) else value for key, value in same.items()}
    task = Task(name=file.name or path.stem, head=None, **same)
    kind = file.head or ('classification' if file.labels else None)
    if kind is None:
        return task
    columns = (*file.fields, file.label)
    try:
        return task.of(Head(kind, tuple(file.labels), task.name, tuple(file.names or ()), columns))
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error


def _plain(name: str) -> str:
    return name.lower().replace('-', '').replace('_', '')


@functools.cache
def packaged_tasks() -> dict[str, Task]:
    """The tasks that come with the package, by their names without capitals and hyphens, in that order."""
    tasks = map(read_task, _DIRECTORY.glob('*.json'))
    return dict(sorted((_plain(task.name), task) for task in tasks))


def find_task(name: str | Path) -> Task:
    """The task of a name, whatever its capitals and hyphens, or of a user's JSON file; ValueError or
    FileNotFoundError if there is none.
    """
    if str(name).endswith('.json'):
        return read_task(Path(name))
    task = packaged_task(str(name))
    if task is None:
        names = [task.name for task in packaged_tasks().values()]
        raise ValueError(
            f'{str(name)!r} is no task{meant(str(name).upper(), names)}; there are '
            f'{", ".join(names)}, or give a JSON file like those of the package'
        )
    return task


def packaged_task(name: str) -> Task | None:
    """The task of the package that has a name, whatever its capitals and hyphens; None if there is none."""
    return packaged_tasks().get(_plain(name))


def known_head(head: Head) -> Head:
    """A head with the names and columns of the packaged task that it was trained for, which imported heads
    lack; the same head if it has some, or was trained for another task.
    """
    task = None if head.names or head.columns else packaged_task(head.task)
    if task is None or (task.head.kind, task.head.labels) != (head.kind, head.labels):
        return head
    return dataclasses.replace(head, names=task.head.names, columns=task.head.columns)


def official_files(task: Task) -> list[str]:
    """The files of a task that GluonNLP has. It does not have the diagnostic set, which lies elsewhere."""
    return [
        file
        for file in (task.train, *task.dev.values(), *task.test.values())
        if Path(file).parent == Path(task.train).parent
    ]
