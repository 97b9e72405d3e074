"""Scores of a file of predictions against a labelled file: GLUE's submissions, SQuAD's ``predictions.json``,
and the JSON lines of this package.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from .examples import Examples, finite_number, is_finite, read_examples, read_lines
from .metrics import score, squad_v1, squad_v2
from .squad import Question, read_questions
from .task import Task

SQUAD = {'squad1.1': '1.1', 'squad2.0': '2.0', 'squadv1.1': '1.1', 'squadv2.0': '2.0'}


def squad_version(name: str) -> Optional[str]:
    """The version of SQuAD that a name such as ``SQuAD2.0`` stands for; None if it is no SQuAD."""
    return SQUAD.get(name.lower().replace(' ', '').replace('-', '').replace('_', ''))


def score_squad(
    version: str, data: Path, predictions: Path, null_odds: Optional[Path] = None
) -> Tuple[Dict[str, float], List[str]]:
    """The official scores of answers, and what to know of them, a line each.

    Parameters
    ----------
    version : str
        ``1.1`` or ``2.0``.
    data : Path
        A file in SQuAD's format.
    predictions : Path
        A JSON object of texts by question id, or JSON lines with ``id`` and ``text``.
    null_odds : Path, optional
        Of 2.0: a JSON object of numbers by question id, how much speaks for no answer. It gives the best
        thresholds.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing, or not what it should be.
    """
    questions = read_questions(data)
    texts = {question.id: [text for text, _ in question.answers] for question in questions}
    answers = _answers(Path(predictions))
    if version == '2.0':
        odds = None if null_odds is None else _numbers(Path(null_odds))
        try:
            return squad_v2(texts, answers, odds, threshold=float('inf')), []
        except ValueError as error:
            source = null_odds if set(texts) <= set(answers) else predictions
            raise ValueError(f'{source}: {error}') from error
    _refuse_unanswerable(questions, data)
    missing = sum(question not in answers for question in texts)
    notes = (
        [f'{missing} of {len(texts)} questions have no prediction; they count as wrong'] if missing else []
    )
    return squad_v1(texts, answers), notes


def _refuse_unanswerable(questions: List[Question], data: Path) -> None:
    """Raise ValueError if a question has no answer: SQuAD 1.1 has no such question."""
    unanswerable = [question.id for question in questions if not question.answers]
    if unanswerable:
        raise ValueError(
            f'{data}: {len(unanswerable)} questions have no answer, the first is {unanswerable[0]}; they are '
            'scored as SQuAD2.0'
        )


def score_task(task: Task, data: Path, predictions: Path) -> Tuple[Dict[str, float], Examples]:
    """The scores of labels or values, in percent, and the labelled examples.

    Parameters
    ----------
    task : Task
    data : Path
        A labelled file of the task.
    predictions : Path
        A submission, with the columns ``index`` and ``prediction``; or JSON lines in the order of the data,
        with ``label`` or ``value``. If they have a ``text`` or a ``pair``, it must be that of the data.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or not what it should be, or a row has no prediction.
    """
    examples = read_examples(task, data)
    predictions = Path(predictions)
    if predictions.suffix.lower() == '.tsv':
        cells = _submitted(read_examples(task, data, labelled=False).indices, predictions)
    else:
        cells = _recorded(task, examples, predictions)
    numbers = {label: number for number, label in enumerate(task.head.labels)}
    regression = task.head.kind == 'regression'
    try:
        values = [finite_number(cell) if regression else numbers[cell] for _, cell in cells]
    except (KeyError, ValueError):
        line, cell = next(
            (line, cell) for line, cell in cells if not (is_finite(cell) if regression else cell in numbers)
        )
        wanted = 'a finite number' if regression else ' or '.join(task.head.labels)
        raise ValueError(f'{predictions}: line {line} has {cell!r:.60}, wanted {wanted}') from None
    return score(task.metrics, np.array(values), examples.labels), examples


def _submitted(indices: Tuple[str, ...], path: Path) -> List[Tuple[int, str]]:
    """The predictions of a submission with their lines, in the order of the indices."""
    header, *rows = read_lines(path)
    if header != ['index', 'prediction']:
        raise ValueError(f'{path}: its header is {", ".join(header)}; wanted index, prediction')
    cells: Dict[str, Tuple[int, str]] = {}
    for line, row in enumerate(rows, 2):
        if row == ['']:
            continue
        if len(row) != 2 or row[0] in cells:
            problem = f'has {len(row)} cells, wanted 2' if len(row) != 2 else f'has the index {row[0]} again'
            raise ValueError(f'{path}: line {line} {problem}')
        cells[row[0]] = line, row[1]
    missing = [index for index in indices if index not in cells]
    if missing or len(cells) != len(indices):
        raise ValueError(
            f'{path}: {len(cells)} predictions for {len(indices)} rows'
            + (f'; the row with the index {missing[0]} has none' if missing else '')
        )
    return [cells[index] for index in indices]


def _recorded(task: Task, examples: Examples, path: Path) -> List[Tuple[int, str]]:
    """The predictions of JSON lines with their lines; their texts are compared with those of the data."""
    records, name = _records(path), 'value' if task.head.kind == 'regression' else 'label'
    if len(records) != len(examples):
        raise ValueError(f'{path}: {len(records)} predictions for {len(examples)} rows')
    cells = []
    for (line, record), texts in zip(records, examples.texts):
        if name not in record:
            raise ValueError(f'{path}: line {line} has no {name!r}')
        for key, text in zip(('text', 'pair'), texts):
            if key in record and record[key] != text:
                raise ValueError(
                    f'{path}: line {line} is of {record[key]!r:.60}, and the data has {text!r:.60} there'
                )
        cells.append((line, str(record[name])))
    return cells


def _read(path: Path) -> str:
    """The text of a file, without a byte order mark."""
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        return path.read_bytes().decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(f'{path}: not UTF-8 at byte {error.start}') from error


def _records(path: Path) -> List[Tuple[int, Dict[str, Any]]]:
    """The objects of JSON lines with their line numbers."""
    records = []
    for number, line in enumerate(_read(path).split('\n'), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{path}: line {number} is not JSON ({error!s:.100})') from error
        if not isinstance(record, dict):
            raise ValueError(f'{path}: line {number} is no JSON object')
        records.append((number, record))
    return records


def _mapping(path: Path) -> Optional[Dict[str, Any]]:
    """The object that a JSON file is; None if it is JSON lines."""
    try:
        values = json.loads(_read(path))
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and 'id' not in values else None


def _answers(path: Path) -> Dict[str, str]:
    """Texts by question id, of either form."""
    answers = _mapping(path)
    if answers is None:
        answers = {}
        for line, record in _records(path):
            if not isinstance(record.get('id'), str) or not isinstance(record.get('text'), str):
                raise ValueError(f"{path}: line {line} has no 'id' and 'text' of an answer")
            answers[record['id']] = record['text']
    wrong = [question for question, text in answers.items() if not isinstance(text, str)]
    if wrong:
        raise ValueError(f'{path}: the answer to {wrong[0]:.60} is no text')
    return answers


def _numbers(path: Path) -> Dict[str, float]:
    """Finite numbers by question id."""
    values = _mapping(path)
    if values is None or not all(
        type(value) in (int, float) and -math.inf < value < math.inf for value in values.values()
    ):
        raise ValueError(f'{path}: wanted a JSON object of finite numbers by question id')
    return values
