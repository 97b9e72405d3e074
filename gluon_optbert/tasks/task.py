"""The GLUE tasks as data: their files, fields, labels, metrics and heads.

A task is a file ``descriptions/<name>.json`` beside this module, or one of the user's with the same keys.
Paths in it are relative to the directory of all tasks. Module `examples` reads the files."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple, Union

from ..architecture.heads import KINDS, Head
from .metrics import CORRELATIONS, METRICS

FORMAT = 1
_DIRECTORY = Path(__file__).with_name('descriptions')
# the keys of a task file; ``names`` may be there as well
_KINDS = {
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
_STRINGS = ('labels', 'names', 'fields', 'metrics', 'headerless')  # the lists
_LONGEST_NAME = 255  # bytes that file systems take


@dataclasses.dataclass(frozen=True)
class Task:
    """One data set of sentences, or of pairs, with a label each.

    Parameters
    ----------
    name : str
    head : Head
        With the labels in their canonical order, which is that of the scores, and their names.
    fields : tuple of str
        The columns of the first text and, if there is one, of the second.
    label : str
        The column of the label.
    index : str
        The column of the number that a submission gives a row of a test set; without that column rows are
        counted from 0.
    metrics : tuple of str
        Of `METRICS`, those that go with the head; the first decides which epoch is best.
    train : str
        The file to train on.
    dev, test : mapping of str to str
        Held-out sets by name, and test sets by the file of a submission, which is a plain file name.
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
    task = packaged_task(str(name))
    if task is None:
        raise ValueError(
            f'{str(name)!r} is no task; there are {", ".join(names())}, or give a JSON file like those of '
            f'the package'
        )
    return task


def packaged_task(name: str) -> Optional[Task]:
    """The task of the package that has a name, whatever its capitals and hyphens; None if there is none."""
    paths = [path for path in _DIRECTORY.glob('*.json') if _plain(path.stem) == _plain(name)]
    return read_task(paths[0]) if paths else None


def read_task(path: Path) -> Task:
    """The task that a JSON file describes.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file; a key is missing, unknown or of the wrong kind; a list holds something else
        than strings; a metric does not go with the head; a submission has no plain file name; or two of the
        training, dev and test sets have one name.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such task file')
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error
    if not isinstance(values, dict):
        raise ValueError(f'{path}: a task is a JSON object, found {type(values).__name__}')
    problems = _wrong_keys(values) or _wrong_elements(values) or _wrong_values(values)
    if problems:
        raise ValueError(f'{path}: {"; ".join(problems)}')
    lists = {key: tuple(values[key] or ()) for key in ('fields', 'metrics', 'headerless')}
    same = {
        key: values[key]
        for key in ('name', 'label', 'index', 'train', 'dev', 'test', 'incomplete_rows', 'gluonnlp')
    }
    try:
        head = Head(
            values['head'],
            tuple(values['labels']),
            values['name'],
            tuple(values.get('names') or ()),
            (*lists['fields'], values['label']),
        )
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error
    return Task(head=head, **same, **lists)


def _wrong_keys(values: Mapping[str, Any]) -> List[str]:
    """What is wrong with the keys of a task file, and with the kinds of their values."""
    problems = [
        f'{key} is {"missing" if key not in values else "of the wrong kind"}'
        for key, kind in _KINDS.items()
        if not isinstance(values.get(key, ...), kind)
    ]
    if not isinstance(values.get('names'), (list, type(None))):
        problems.append('names is of the wrong kind')
    return problems + [f'{key!r:.80} is unknown' for key in values if key not in {*_KINDS, 'names'}]


def _wrong_elements(values: Mapping[str, Any]) -> List[str]:
    """The lists of a task file, and the sets of files, that hold something else than strings."""
    elements = {key: values.get(key) or () for key in _STRINGS}
    elements.update({f'the files of {key}': values[key].values() for key in ('dev', 'test')})
    problems = []
    for name, found in elements.items():
        wrong = [element for element in found if not isinstance(element, str)]
        if wrong:
            text = json.dumps(wrong[0])
            remedy = f'; write "{text}"' if type(wrong[0]) in (int, float) else ''
            problems.append(f'{name} must be strings, found {text:.80}{remedy}')
    return problems


def _is_plain(name: str) -> bool:
    """Whether a name is that of a file in a directory, not of one elsewhere or hidden."""
    return (
        name != ''
        and not name.startswith('.')
        and not set(name) & set('/\\')
        and name.isprintable()
        and len(name.encode('utf-8')) <= _LONGEST_NAME
    )


def _wrong_values(values: Mapping[str, Any]) -> List[str]:
    """What is wrong with the values of a task file whose keys are right."""
    problems = [
        f'metric {name!r} is none of {", ".join(METRICS)}'
        for name in values['metrics']
        if name not in METRICS
    ] + _unsuitable(values)
    problems += [
        f'test: {name!r:.80} is no plain file name; call it predictions.tsv'
        for name in values['test']
        if not _is_plain(name)
    ]
    counts = collections.Counter(['train', *values['dev'], *values['test']])
    problems += [
        f'{name!r:.80} is the name of two sets; every dev and test set has a name of its own, not train'
        for name, count in counts.items()
        if count > 1
    ]
    if not values['name'].strip():
        problems.append('name is empty')
    if values['format'] != FORMAT:
        problems.append(f'format {values["format"]!r}, this version reads {FORMAT}')
    if not (values['metrics'] and values['dev']):
        problems.append('it needs a metric and a dev set')
    if len(values['fields']) not in (1, 2):
        problems.append('it needs one field or two')
    return problems


def _unsuitable(values: Mapping[str, Any]) -> List[str]:
    """The metrics of a task file that do not go with its head, and why."""
    kind, labels, problems = values['head'], values['labels'], []
    for name in values['metrics']:
        wanted = 'regression' if name in CORRELATIONS else 'classification'
        if name in METRICS and kind in KINDS and kind != wanted:
            problems.append(f'metric {name!r} goes with a {wanted}, and the head is {kind}')
        elif name == 'f1' and len(labels) != 2:
            problems.append(f"metric 'f1' goes with two labels, and there are {len(labels)}")
    return problems


def known_head(head: Head) -> Head:
    """A head with the names and columns of the packaged task that it was trained for; the same head if it has
    some, or was trained for another task. Model directories and exports of earlier versions have none.
    """
    if head.names or head.columns:
        return head
    task = packaged_task(head.task)
    if task is None or (task.head.kind, task.head.labels) != (head.kind, head.labels):
        return head
    return dataclasses.replace(head, names=task.head.names, columns=task.head.columns)


def official_files(task: Task) -> List[str]:
    """The files of a task that GluonNLP has. It does not have the diagnostic set, which lies elsewhere."""
    return [
        file
        for file in (task.train, *task.dev.values(), *task.test.values())
        if Path(file).parent == Path(task.train).parent
    ]
