"""Scores of a file of predictions against a labelled file: GLUE's submissions, SQuAD's ``predictions.json``,
and the JSON lines of this package.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..architecture.heads import SAID
from ..runs.files import read_json
from .examples import Examples, labels_of, read_examples
from .features import cut_note
from .metrics import score, squad_v1, squad_v2, unanswered
from .squad import known_answers, read_questions
from .tables import read_json_lines, read_table
from .task import Task

_SQUAD = re.compile(r'squad[-_\sv]*([12])(?:\.[01])?', re.IGNORECASE)


def squad_version(name: str) -> str | None:
    """The version of SQuAD that a name such as ``SQuAD2.0`` stands for; None if it is no SQuAD."""
    found = _SQUAD.fullmatch(name)
    return found and {'1': '1.1', '2': '2.0'}[found.group(1)]


def version_of(data: Path) -> str:
    """The version of SQuAD that a file is of: 2.0 if a question has no answer."""
    return '1.1' if all(question.answers for question in read_questions(data)) else '2.0'


def score_squad(
    version: str, data: Path, predictions: Path, null_odds: Path | None = None
) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """The official scores of answers, those of no answer to any question, and what to know of them, a line
    each.

    Predictions are a JSON object of texts by question id, or JSON lines with ``id`` and ``text``. The odds,
    of 2.0, are a JSON object of numbers by question id, how much speaks for no answer; they give the best
    thresholds. FileNotFoundError or ValueError if a file is missing, or not what it should be.
    """
    questions = read_questions(data)
    texts = known_answers(questions, data)
    answers = _answers(Path(predictions))
    if version == '2.0':
        odds = None if null_odds is None else _finite_numbers(Path(null_odds))
        try:
            return squad_v2(texts, answers, odds), unanswered(texts, version), []
        except ValueError as error:
            source = null_odds if set(texts) <= set(answers) else predictions
            raise ValueError(f'{source}: {error}') from error
    unanswerable = [question.id for question in questions if not question.answers]
    if unanswerable:
        raise ValueError(
            f'{data}: {len(unanswerable)} questions have no answer, the first is {unanswerable[0]}; they are '
            'scored as SQuAD2.0'
        )
    missing = sum(question not in answers for question in texts)
    notes = (
        [f'{missing} of {len(texts)} questions have no prediction; they count as wrong'] if missing else []
    )
    return squad_v1(texts, answers), unanswered(texts, version), notes


def score_task(task: Task, data: Path, predictions: Path) -> tuple[dict[str, float], Examples, list[str]]:
    """The scores of labels or values, in percent, the labelled examples, and what to know of them, a line
    each: how many texts were cut.

    Predictions are a submission, with the columns ``index`` and ``prediction``; or JSON lines in the order of
    the data, a labelled file of the task, with ``label`` or ``value``. If they have a ``text`` or a ``pair``,
    it must be that of the data. FileNotFoundError or ValueError if a file is missing or not what it should
    be, or a row has no prediction.
    """
    examples = read_examples(task, data)
    predictions, notes = Path(predictions), []
    if predictions.suffix.lower() == '.tsv':
        cells = _submitted(read_examples(task, data, labelled=False).indices, predictions)
    else:
        records = list(read_json_lines(predictions))
        cells = _recorded(task, examples, predictions, records)
        cut = sum(record.get('cut') is True for _, record in records)
        notes += [f'{cut_note(cut, len(records))} when they were predicted; --long split'] * bool(cut)
    if task.head.kind == 'token_classification':
        cells = [(line, cell.split() if isinstance(cell, str) else cell) for line, cell in cells]
        for (line, tags), words in zip(cells, examples.texts):
            if len(tags) != len(words):
                raise ValueError(f'{predictions}: line {line} has {len(tags)} tags for {len(words)} words')
    labels = labels_of(task, cells, predictions)
    try:
        return score(task.metrics, labels, examples.labels), examples, notes
    except ValueError as error:  # too few rows for a correlation
        raise ValueError(f'{data}: {error}') from error


def _submitted(indices: tuple[str, ...], path: Path) -> list[tuple[int, str]]:
    """The predictions of a submission with their lines, in the order of the indices."""
    table = read_table(path, ['index', 'prediction'])
    cells: dict[str, tuple[int, str]] = {}
    for line, (index, prediction) in table.cells(['index', 'prediction']):
        if index in cells:
            raise ValueError(f'{path}: line {line} has the index {index} again')
        cells[index] = line, prediction
    missing = [index for index in indices if index not in cells]
    if missing or len(cells) != len(indices):
        raise ValueError(
            f'{path}: {len(cells)} predictions for {len(indices)} rows'
            + (f'; the row with the index {missing[0]} has none' if missing else '')
        )
    return [cells[index] for index in indices]


def _recorded(
    task: Task, examples: Examples, path: Path, records: list[tuple[int, dict[str, Any]]]
) -> list[tuple[int, str]]:
    """The predictions of JSON lines with their lines; their texts are compared with those of the data."""
    name = SAID[task.head.kind]
    if len(records) != len(examples):
        raise ValueError(f'{path}: {len(records)} predictions for {len(examples)} rows')
    cells = []
    for (line, record), texts in zip(records, examples.texts):
        if name not in record:
            raise ValueError(f'{path}: line {line} has no {name!r}')
        if task.head.kind == 'token_classification':
            texts = (' '.join(texts),)
        for key, text in zip(('text', 'pair'), texts):
            if key in record and record[key] != text:
                raise ValueError(
                    f'{path}: line {line} is of {record[key]!r:.60}, and the data has {text!r:.60} there'
                )
        value = record[name]
        if name == 'tags':
            value = tuple(map(str, value)) if isinstance(value, list) else ()
        cells.append((line, value if name in ('labels', 'tags') else str(value)))
    return cells


def _object_of(path: Path) -> dict[str, Any] | None:
    """The object that a JSON file is; None if it is JSON lines."""
    try:
        values = read_json(path)
    except ValueError:
        return None
    return None if 'id' in values else values


def _answers(path: Path) -> dict[str, str]:
    """Texts by question id, of either form."""
    answers = _object_of(path)
    if answers is None:
        answers = {}
        for line, record in read_json_lines(path):
            if not isinstance(record.get('id'), str) or not isinstance(record.get('text'), str):
                raise ValueError(f"{path}: line {line} has no 'id' and 'text' of an answer")
            if record['id'] in answers:
                raise ValueError(f'{path}: line {line} has the id {record["id"]:.60} again')
            answers[record['id']] = record['text']
    wrong = [question for question, text in answers.items() if not isinstance(text, str)]
    if wrong:
        raise ValueError(f'{path}: the answer to {wrong[0]:.60} is no text')
    return answers


def _finite_numbers(path: Path) -> dict[str, float]:
    """Finite numbers by question id."""
    values = _object_of(path)
    if values is None or not all(
        type(value) in (int, float) and abs(value) < math.inf for value in values.values()
    ):
        raise ValueError(f'{path}: wanted a JSON object of finite numbers by question id')
    return values
