"""The texts of predictions, and how they are read from files: lines, JSON lines, SQuAD's JSON, and tables."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..architecture.heads import PRETRAINING, Head
from ..runs.files import parse_json
from ..tasks.examples import (
    known_columns,
    label_columns,
    label_text,
    marked_labels,
    read_examples,
    several_labels,
)
from ..tasks.squad import read_questions
from ..tasks.tables import read_header, wrong_separator
from ..tasks.tagging import SUFFIXES, Sentence, read_sentences, sentence_of
from ..tasks.task import Task, packaged_task

LOG = logging.getLogger(__name__)
FORMATS = ('lines', 'jsonl', 'squad', 'conll')
TABLES = ('.csv', '.tsv')
_ENDINGS = {'.jsonl': 'jsonl', '.json': 'squad', **dict.fromkeys(SUFFIXES, 'conll')}
_WHOLE = ('squad', 'conll')  # that are no lines of their own
_KEYS = (('text', 'pair'), ('question', 'context'))  # of JSON lines; the second one may be absent


@dataclasses.dataclass(frozen=True)
class Instance:
    """The text of a prediction."""

    first: str  # a sentence, or a question
    second: str | None = None  # the other sentence of a pair, or a context
    label: str | None = None  # the right answer, if it is known
    # all right answers to a question, or labels, where there may be several; the tags of the words
    answers: tuple[str, ...] = ()
    id: str | int | None = None  # what a file calls it
    words: tuple[str, ...] = ()  # of a sentence that is divided already; the text has spaces between them
    source: str = dataclasses.field(default='', compare=False)  # the file and the line, for messages


def check_texts(instance: Instance, head: Head) -> None:
    """Raise ValueError unless an instance has as many texts as the task of a head wants, if that is known;
    or if they have half of a character, which UTF-8 cannot hold.
    """
    place = f'{instance.source}: ' if instance.source else ''
    task = head.task or head.kind.replace('_', ' ')
    texts = 1 if head.kind == 'token_classification' else len(head.columns) - 1
    if head.kind == 'question_answering':
        if instance.second is None:
            raise ValueError(f'{place}question without a context: {instance.first!r:.60}')
    elif texts == 1 and instance.second is not None:
        raise ValueError(
            f'{place}two texts, and {task} is a task on one sentence: {instance.first!r:.60} and '
            f'{instance.second!r:.60}'
        )
    elif texts == 2 and instance.second is None:
        raise ValueError(f'{place}one text, and {task} is a task on pairs of texts: {instance.first!r:.60}')
    for text in (instance.first, instance.second or '', str(instance.id or '')):
        try:
            text.encode('utf-8')
        except UnicodeEncodeError as error:
            near = text[max(0, error.start - 20) : error.start + 20]
            raise ValueError(
                f'{place}half of a character, a lone surrogate, in {near!a}; write whole ones'
            ) from None


def instance_of(
    line: str, head: Head = PRETRAINING, *, labelled: bool = False, source: str = 'line'
) -> Instance:
    """The instance on a line of text: a sentence, or two with a tab between; then another tab and the label
    if there is one. ValueError if there are more or fewer columns.
    """
    columns = line.rstrip('\r\n').split('\t')
    texts, label = (columns[:-1], columns[-1]) if labelled else (columns, None)
    if len(texts) not in (1, 2):
        beside = ' and a label' if labelled else ''
        known = ' and '.join(map(repr, head.columns if labelled else head.columns[:-1]))
        raise ValueError(
            f'{source}: {len(columns)} columns, wanted a sentence or two{beside}, with tabs between them'
            + (f'; or a file whose header has {known}' if known else '')
        )
    return Instance(*texts, label=label, source=source)


def instance_of_json(
    line: str,
    head: Head = PRETRAINING,
    *,
    labelled: bool = False,
    text: Sequence[str] = (),
    source: str = 'line',
) -> Instance:
    """The instance in a line of JSON, an object with one or two texts and perhaps ``id`` and ``label``; or,
    if `labelled`, a key for each of several labels.

    The texts are called ``text`` and ``pair``, ``question`` and ``context``, or as the columns of the head;
    or only as `text` says, if it is given. For a head that tags words, a list of ``words`` may stand for a
    text. A text that is null is absent. Other keys are not read. ValueError if it is no such object.
    """
    values = parse_json(line, source=source)
    known = [text] if text else [*([head.columns[:-1]] if head.columns else []), *_KEYS]
    if not isinstance(values, Mapping):
        values = {}
    id = values.get('id')
    id = id if id is None or type(id) is int else str(id)
    if head.kind == 'token_classification' and not isinstance(values.get((*text, 'text')[0]), str):
        own = {'words': values.get(text[0])} if text else values  # a list of words may have any key
        return dataclasses.replace(_of_sentence(sentence_of(own, source), source), id=id)
    present = [
        [values[name] for name in keys if values.get(name) is not None]
        for keys in known
        if values.get(keys[0]) is not None
    ]
    texts = max(present, key=len, default=[])
    if not texts or not all(isinstance(text, str) for text in texts):
        names = ', or '.join(' and '.join(map(repr, keys)) for keys in known)
        raise ValueError(f'{source}: wanted an object with the texts {names}')
    name = head.columns[-1] if head.columns else 'label'
    label, answers = values.get(name, values.get('label')), ()
    of_labels = name.split(',')
    if labelled and head.kind == 'multi_label' and len(of_labels) > 1 and {*of_labels} <= {*values}:
        label = marked_labels(of_labels, [values[one] for one in of_labels], source)
    if label is not None and head.kind == 'multi_label':
        answers = tuple(several_labels(label))
        label = ','.join(answers)
    elif label is not None:
        label = label_text(label)
    return Instance(*texts, label=label, answers=answers, id=id, source=source)


def format_of(path: Path | None) -> str:
    """The format that the ending of a file's name stands for, one of `FORMATS`; lines unless it is known."""
    return _ENDINGS.get('' if path is None else path.suffix.lower(), 'lines')


def read_instances(
    path: Path,
    head: Head = PRETRAINING,
    *,
    labelled: bool = False,
    most: int | None = None,
    format: str | None = None,
) -> list[Instance]:
    """The instances of a file, blank lines left out; at most so many, with the right answers if `labelled`.

    Without one of `FORMATS`, the format is that of the file's ending, or a table whose header has the columns
    of the head. FileNotFoundError or ValueError, with the line, if there is no such file, it is not UTF-8, a
    line has other columns, or there is no instance.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    read = _of_file(path, head, format, labelled)
    instances = list(itertools.islice(read, most))
    if not instances:
        raise ValueError(f'{path}: no text in it')
    for instance in instances:
        check_texts(instance, head)
        if labelled and instance.label is None:
            raise ValueError(f'{instance.source}: has no label')
    if labelled:
        return _in_labels_of(head, instances)
    return instances


def stream_instances(
    path: Path | None, head: Head = PRETRAINING, *, format: str | None = None, text: Sequence[str] = ()
) -> Iterator[Instance]:
    """The instances to predict, of a file or of standard input; lines are read as they are needed.

    The columns of a table, or the keys of JSON lines, that hold the texts are those in `text`, if it is
    given, else the head's. Errors are those of `read_instances`, and ValueError for a blank line, and where
    nothing reads `text`.
    """
    if path is None and format in _WHOLE:
        raise ValueError(f'{format} is read as a whole; give the file with --input')
    if text:
        head = dataclasses.replace(head, columns=(*text, (head.columns or ('label',))[-1]))
    whole = format is None and path is not None and _task_of_file(path, head, False) is not None
    form = format or format_of(path)
    if text and not whole and form != 'jsonl':
        raise ValueError(
            f'{"standard input" if path is None else path}: read as {form}, and has no column '
            f'{" and ".join(map(repr, text))}; --text goes with a table, .csv or .tsv, or with JSON lines'
        )
    if whole or form in _WHOLE:
        yield from read_instances(path, head, format=format)
        return
    for place, line in _lines(path):
        if not line.strip():
            raise ValueError(f'{place}: is blank, and every line is predicted; remove it')
        instance = _of_line(line, head, form, False, place, text)
        check_texts(instance, head)
        yield instance


def _lines(path: Path | None) -> Iterator[tuple[str, str]]:
    """The lines of a file or of standard input, without ends, and their places; only a line feed ends one."""
    with open(0 if path is None else path, 'rb', closefd=path is not None) as file:
        for number, content in enumerate(file, 1):
            place = f'{"standard input" if path is None else path}: line {number}'
            try:
                line = content.decode('utf-8-sig' if number == 1 else 'utf-8')
            except UnicodeDecodeError as error:
                raise ValueError(f'{place} is not UTF-8; convert it') from error
            yield place, line.rstrip('\r\n')


def _of_file(path: Path, head: Head, format: str | None, labelled: bool) -> Iterator[Instance]:
    """The instances of a file in a format, blank lines left out."""
    task = _task_of_file(path, head, labelled) if format is None else None
    format = format or format_of(path)
    if format == 'squad':
        for question in read_questions(path):
            texts = tuple(text for text, _ in question.answers)
            source = f'{path}: question {question.id}'
            label = None if question.unknown else [*texts, ''][0]
            yield Instance(question.text, question.context, label, texts, id=question.id, source=source)
    elif format == 'conll' or labelled and head.kind == 'token_classification':
        for sentence in read_sentences(path, labelled=labelled):
            yield _of_sentence(sentence, f'{path}: line {sentence.line}')
    elif task is not None:
        yield from _of_task(path, task, labelled)
    else:
        lines = ((place, line) for place, line in _lines(path) if line.strip())
        for number, (place, line) in enumerate(lines):
            if labelled and format == 'lines' and number == 0 and _is_header(line, head):
                LOG.warning('%s is taken for a header, for its last column is no label', place)
            else:
                yield _of_line(line, head, format, labelled, place)


def _of_line(
    line: str, head: Head, format: str, labelled: bool, source: str, text: Sequence[str] = ()
) -> Instance:
    """The instance on a line of text or of JSON."""
    if format == 'jsonl':
        return instance_of_json(line, head, labelled=labelled, text=text, source=source)
    return instance_of(line, head, labelled=labelled, source=source)


def _of_sentence(sentence: Sentence, source: str) -> Instance:
    """A sentence of words, and of tags if they are known."""
    label = ' '.join(sentence.tags) or None
    words = sentence.words
    return Instance(' '.join(words), label=label, answers=sentence.tags, words=words, source=source)


def _task_of_file(path: Path, head: Head, labelled: bool) -> Task | None:
    """The task of a head if a file has its columns, in a header or without one; None for lines of text.

    What ends with .csv or .tsv is a table. Where the head has no columns, they are the usual ones.
    """
    if format_of(path) != 'lines':
        return None
    header, is_table = read_header(path), path.suffix.lower() in TABLES
    columns = head.columns or (_usual_columns(header, head) if is_table else ())
    wanted = columns[:-1]
    if columns:
        task = packaged_task(head.task)
        if task is None or task.head.columns != columns:
            task = Task(head.task or path.stem, None, columns[:-1], columns[-1], path.name)
        task = dataclasses.replace(task, head=dataclasses.replace(head, columns=columns))
        if labelled:
            wanted = (*wanted, *label_columns(task))
        # one column without a table may be a sentence that is the name of a column
        headed = set(wanted) <= set(header) and (is_table or len(header) > 1)
        if headed or task.headerless and len(header) == len(task.headerless):
            return task
    if is_table:
        raise ValueError(
            f'{path}: its header {", ".join(header)!r:.200} has no columns '
            f'{" and ".join(map(repr, wanted)) or "that are known for text"}{wrong_separator(path, header)}; '
            'predict --text names those of text, and a file of lines without a header ends with .txt'
        )
    return None


def _usual_columns(header: Sequence[str], head: Head) -> tuple[str, ...]:
    """The columns of a file by their usual names; none if it has no such text.

    The last column is of labels where none has the name, unless it is of text, or a question is to be
    answered.
    """
    asks = head.kind == 'question_answering'
    usual = [(*_KEYS[1], 'answer')] if asks else known_columns()
    fitting = [columns for columns in usual if set(columns[:-1]) <= set(header)]
    found = max(fitting, key=lambda columns: (len(columns), columns[-1] in header), default=())
    if not found or found[-1] in header or header[-1] in found or asks:
        return found
    return (*found[:-1], header[-1])


def _of_task(path: Path, task: Task, labelled: bool) -> Iterator[Instance]:
    """The rows of a file of a task. The label of a question is its answer, empty if it has none."""
    head, fields = task.head, len(task.fields)
    if head.kind in ('question_answering', 'token_classification'):  # whose cells are read as they are
        columns = (*task.fields, *[task.label] * labelled)
        task, labelled = dataclasses.replace(task, head=PRETRAINING, fields=columns), False
    examples = read_examples(task, path, labelled=labelled)
    for number, (texts, id) in enumerate(zip(examples.texts, examples.indices)):
        label = next(iter(texts[fields:]), None)
        answers: tuple[str, ...] = ()
        if examples.labels is not None:
            value = examples.labels[number]
            if head.kind == 'multi_label':
                answers = tuple(itertools.compress(head.labels, value))
                label = ','.join(answers)
            else:
                label = repr(float(value)) if head.kind == 'regression' else head.labels[value]
        yield Instance(*texts[:fields], label=label, answers=answers, id=id, source=f'{path}: row {number}')


def _in_labels_of(head: Head, instances: Sequence[Instance]) -> list[Instance]:
    """Labelled instances with the labels of a head that are meant, by their names or in other capitals; what
    is no label stays.
    """
    numbers = head.numbers  # once, for labels and instances may be many

    def known(label: str) -> str:
        number = numbers.get(label, numbers.get(label.casefold()))
        return label if number is None else head.labels[number]

    found = []
    for one in instances:
        label = known(one.label) if head.kind == 'classification' else one.label
        answers = one.answers or several_labels(label) if head.kind == 'multi_label' else one.answers
        found.append(dataclasses.replace(one, label=label, answers=tuple(map(known, answers))))
    return found


def _is_header(line: str, head: Head) -> bool:
    """Whether the label on a line is none of a head's, nor a number for a regression."""
    label = line.split('\t')[-1]
    if head.kind == 'regression':
        try:
            float(label)
        except ValueError:
            return True
    return head.kind == 'classification' and head.numbers.keys().isdisjoint((label, label.casefold()))
