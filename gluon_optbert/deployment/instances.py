"""The texts of predictions, and how they are read from files: lines, JSON lines, SQuAD's JSON, and the
tab-separated files of a task.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import BinaryIO, Iterable, Iterator, List, Mapping, Optional, Tuple

from ..architecture.heads import PRETRAINING, Head
from ..tasks.examples import read_examples, read_header, task_of_head
from ..tasks.squad import read_questions
from ..tasks.task import Task, packaged_task

LOG = logging.getLogger(__name__)
FORMATS = ('lines', 'jsonl', 'squad')
_ENDINGS = {'.jsonl': 'jsonl', '.json': 'squad'}
_KEYS = (('text', 'pair'), ('question', 'context'))  # of JSON lines; the second one may be absent


@dataclasses.dataclass(frozen=True)
class Instance:
    """The text of a prediction.

    Parameters
    ----------
    first : str
        A sentence, or a question.
    second : str, optional
        The other sentence of a pair, or a context.
    label : str, optional
        The right answer, if it is known.
    answers : tuple of str
        All right answers to a question, if there are several.
    id : str, optional
        What a file calls it.
    source : str
        The file and the line that it stands on, for messages.
    """

    first: str
    second: Optional[str] = None
    label: Optional[str] = None
    answers: Tuple[str, ...] = ()
    id: Optional[str] = None
    source: str = dataclasses.field(default='', compare=False)


def check_texts(instance: Instance, head: Head) -> None:
    """Raise ValueError unless an instance has as many texts as the task of a head wants, if that is known."""
    place = f'{instance.source}: ' if instance.source else ''
    task = head.task or head.kind.replace('_', ' ')
    if head.kind == 'question_answering':
        if instance.second is None:
            raise ValueError(f'{place}question without a context: {instance.first!r:.60}')
    elif head.columns and len(head.columns) == 2 and instance.second is not None:
        raise ValueError(
            f'{place}two texts, and {task} is a task on one sentence: {instance.first!r:.60} and '
            f'{instance.second!r:.60}'
        )
    elif head.columns and len(head.columns) == 3 and instance.second is None:
        raise ValueError(f'{place}one text, and {task} is a task on pairs of texts: {instance.first!r:.60}')


def instance_of(line: str, *, labelled: bool = False, source: str = 'line') -> Instance:
    """The instance on a line of text: a sentence, or two with a tab between; then another tab and the label
    if there is one.

    Raises
    ------
    ValueError
        If there are more or fewer columns.
    """
    columns = line.rstrip('\r\n').split('\t')
    label = columns.pop() if labelled and len(columns) > 1 else None
    if labelled and label is None or len(columns) > 2:
        count = len(columns) + (label is not None)
        raise ValueError(
            f'{source}: {count} columns, wanted a sentence or two'
            + (' and a label' if labelled else '')
            + ', with tabs between them'
        )
    return Instance(columns[0], columns[1] if len(columns) == 2 else None, label, source=source)


def instance_of_json(line: str, head: Head = PRETRAINING, *, source: str = 'line') -> Instance:
    """The instance in a line of JSON, an object with one or two texts and perhaps ``id`` and ``label``.

    The texts are called ``text`` and ``pair``, ``question`` and ``context``, or as the columns of the head.
    A text that is null is absent. Other keys are not read.

    Raises
    ------
    ValueError
        If it is not such an object.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{source}: not JSON ({error!s:.100})') from error
    known = [*([head.columns[:-1]] if head.columns else []), *_KEYS]
    present = [
        [values[name] for name in keys if values.get(name) is not None]
        for keys in known
        if isinstance(values, Mapping) and values.get(keys[0]) is not None
    ]
    texts = max(present, key=len, default=[])
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f'{source}: wanted an object with the texts '
            + ', or '.join(' and '.join(map(repr, keys)) for keys in known)
        )
    label = values.get(head.columns[-1] if head.columns else 'label', values.get('label'))
    _check_unicode((*texts, str(values.get('id'))), source)
    return Instance(
        *texts,
        **({} if label is None else {'label': str(label)}),
        id=None if values.get('id') is None else str(values['id']),
        source=source,
    )


def _check_unicode(texts: Iterable[str], source: str) -> None:
    """Raise ValueError if a text of JSON has half of a character, which no file in UTF-8 can hold."""
    for text in texts:
        try:
            text.encode('utf-8')
        except UnicodeEncodeError as error:
            near = text[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f'{source}: half of a character, a lone surrogate, in {near!a}; write whole characters'
            ) from None


def format_of(path: Optional[Path]) -> str:
    """The format that the ending of a file's name stands for, one of `FORMATS`; lines unless it is known."""
    return _ENDINGS.get('' if path is None else path.suffix.lower(), 'lines')


def read_instances(
    path: Path,
    head: Head = PRETRAINING,
    *,
    labelled: bool = False,
    most: Optional[int] = None,
    format: Optional[str] = None,
) -> List[Instance]:
    """The instances of a file, blank lines left out; at most so many.

    Parameters
    ----------
    path : Path
    head : Head
        For its task's columns: a file with a header that has them is read by them.
    labelled : bool
        Whether the right answers are read as well.
    most : int, optional
    format : str, optional
        One of `FORMATS`; by default that of the file's ending.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is not UTF-8, a line has other columns, or there is no instance. The file
        and the line are named.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    read = _of_file(path, head, format or format_of(path), labelled)
    instances = list(itertools.islice(read, most))
    if not instances:
        raise ValueError(f'{path}: no text in it')
    for instance in instances:
        check_texts(instance, head)
        if labelled and instance.label is None:
            raise ValueError(f'{instance.source}: has no label')
    return instances


def stream_instances(
    path: Optional[Path], head: Head = PRETRAINING, *, format: Optional[str] = None
) -> Iterator[Instance]:
    """The instances to predict, of a file or of standard input; lines are read as they are needed.

    Parameters are those of `read_instances`; without a path, standard input is read.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_instances`, and for a blank line.
    """
    format = format or format_of(path)
    if path is None and format == 'squad':
        raise ValueError('SQuAD is read as a whole; give the file with --input')
    if path is not None and (format == 'squad' or format == 'lines' and _task_of_file(path, head, False)):
        yield from read_instances(path, head, format=format)
        return
    source = 'standard input' if path is None else str(path)
    with open(0 if path is None else path, 'rb', closefd=path is not None) as file:
        for number, line in _lines(file, source):
            place = f'{source}: line {number}'
            if not line.strip():
                raise ValueError(f'{place}: is blank, and every line is predicted; remove it')
            instance = _of_line(line, head, format, False, place)
            check_texts(instance, head)
            yield instance


def _lines(file: BinaryIO, source: str) -> Iterator[Tuple[int, str]]:
    """The lines of a file with their numbers, without ends; only a line feed ends one."""
    for number, content in enumerate(file, 1):
        try:
            line = content.decode('utf-8-sig' if number == 1 else 'utf-8')
        except UnicodeDecodeError as error:
            raise ValueError(f'{source}: line {number} is not UTF-8; convert it') from error
        yield number, line.rstrip('\r\n')


def _of_file(path: Path, head: Head, format: str, labelled: bool) -> Iterator[Instance]:
    """The instances of a file in a format, blank lines left out."""
    if format == 'squad':
        yield from _of_squad(path)
        return
    if format == 'lines' and _task_of_file(path, head, labelled) is not None:
        yield from _of_task(path, head, labelled)
        return
    with open(path, 'rb') as file:
        lines = [(number, line) for number, line in _lines(file, str(path)) if line.strip()]
    if labelled and format == 'lines':
        lines = _without_header(lines, head, path)
    for number, line in lines:
        yield _of_line(line, head, format, labelled, f'{path}: line {number}')


def _of_line(line: str, head: Head, format: str, labelled: bool, source: str) -> Instance:
    """The instance on a line of text or of JSON."""
    if format == 'jsonl':
        return instance_of_json(line, head, source=source)
    try:
        return instance_of(line, labelled=labelled, source=source)
    except ValueError as error:
        columns = head.columns if labelled else head.columns[:-1]
        header = f'; or a file whose header has {" and ".join(map(repr, columns))}' if columns else ''
        raise ValueError(f'{error}{header}') from None


def _of_squad(path: Path) -> Iterator[Instance]:
    """The questions of a file in SQuAD's format."""
    for question in read_questions(path):
        texts = tuple(text for text, _ in question.answers)
        source = f'{path}: question {question.id}'
        _check_unicode((question.id, question.text, question.context), source)
        yield Instance(
            question.text, question.context, texts[0] if texts else '', texts, id=question.id, source=source
        )


def _task_of_file(path: Path, head: Head, labelled: bool) -> Optional[Task]:
    """The task of a head if a tab-separated file has the task's columns, in its header or without one."""
    if not head.columns:
        return None
    task = packaged_task(head.task)
    if task is None or task.head.columns != head.columns:
        task = task_of_head(head, path)
    header = read_header(path)
    wanted = head.columns if labelled else head.columns[:-1]
    is_table = len(header) > 1 or path.suffix.lower() == '.tsv'  # a sentence may be the name of a column
    if is_table and set(wanted) <= set(header) or task.headerless and len(header) == len(task.headerless):
        return dataclasses.replace(task, head=head)
    return None


def _of_task(path: Path, head: Head, labelled: bool) -> Iterator[Instance]:
    """The rows of a file of a head's task."""
    task = _task_of_file(path, head, labelled)
    assert task is not None
    examples = read_examples(task, path, labelled=labelled)
    for number, (texts, id) in enumerate(zip(examples.texts, examples.indices)):
        label = None
        if examples.labels is not None:
            value = examples.labels[number]
            label = repr(float(value)) if head.kind == 'regression' else head.labels[value]
        yield Instance(*texts, label=label, id=id, source=f'{path}: row {number}')


def _without_header(lines: List[Tuple[int, str]], head: Head, path: Path) -> List[Tuple[int, str]]:
    """Labelled lines without a header: a first line whose label is none of the head's, nor a number."""
    if not lines or head.kind not in ('classification', 'regression'):
        return lines
    label = lines[0][1].split('\t')[-1]
    if label in head.labels or head.kind == 'regression' and _is_number(label):
        return lines
    LOG.warning('%s: line %d is taken for a header, for %r is no label', path, lines[0][0], label)
    return lines[1:]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
