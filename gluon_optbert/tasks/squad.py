"""SQuAD: questions, and the windows of text that a network reads for them.

A context that is too long is read in windows that overlap (Devlin et al., 2018, section 4.2 and its program).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from pathlib import Path
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .features import Features

LOG = logging.getLogger(__name__)
Aligner = Callable[[str], Tuple[List[int], List[int], List[int]]]


@dataclasses.dataclass(frozen=True)
class Question:
    """One question; in SQuAD 2.0 it may have no answer.

    Parameters
    ----------
    id, text, context : str
    answers : tuple of (str, int)
        Each with its first character's place in the context.
    """

    id: str
    text: str
    context: str
    answers: Tuple[Tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Windows:
    """What a network reads: [CLS] question [SEP] a window of the context [SEP].

    Parameters
    ----------
    features : Features
        With the places of the answer's first and last token as labels where there are answers; [CLS] where
        the window has none.
    questions : np.ndarray of int, shape (windows,), increasing
        Numbers of the questions.
    firsts : np.ndarray of int, shape (windows,)
        Which token of the context a window begins with.
    places : list of (np.ndarray, np.ndarray)
        For each question, where in the context its tokens begin and end.
    """

    features: Features
    questions: np.ndarray
    firsts: np.ndarray
    places: List[Tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How questions are read, and how an answer is chosen. The defaults are those of Devlin's program.

    Parameters
    ----------
    max_length : int
        Tokens of a window with its question and special tokens.
    stride : int
        Tokens from the beginning of a window to that of the next.
    max_question : int
        Tokens that a question is cut to.
    max_answer : int
        Tokens of an answer at most.
    n_best : int
        Answers that are kept of each question.
    null_threshold : float, optional
        A question gets no answer if the score of having none exceeds that of the best answer by more than
        this. None where every question has an answer.
    """

    max_length: int = 384
    stride: int = 128
    max_question: int = 64
    max_answer: int = 30
    n_best: int = 20
    null_threshold: Optional[float] = None

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = [
            f'{name} must be at least 1, found {getattr(self, name)}'
            for name in ('stride', 'max_question', 'max_answer', 'n_best')
            if getattr(self, name) < 1
        ]
        if self.max_length < self.max_question + 4:
            problems.append(
                f'max_length must be at least {self.max_question + 4}, four above max_question, found '
                f'{self.max_length}'
            )
        if self.null_threshold is not None and not math.isfinite(self.null_threshold):
            problems.append(f'null_threshold must be finite, found {self.null_threshold}')
        return problems

    @classmethod
    def of(cls, recipe: Mapping[str, Any], positions: int) -> Reading:
        """The reading of the fine-tuning run that a recipe describes. For any other recipe, the defaults,
        shortened to the positions of the network.

        Raises
        ------
        ValueError
            If a value is not what such a recipe holds.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if all(name in recipe for name in names):
            values = {name: recipe[name] for name in names}
            if recipe.get('version') != '2.0':
                values['null_threshold'] = None
            return cls.from_dict(values, source='the recipe of the fine-tuning run')
        length = min(cls.max_length, positions)
        return cls(
            length, max(1, min(cls.stride, length // 3)), max(1, min(cls.max_question, length // 2 - 2))
        )

    @classmethod
    def from_dict(cls, values: Any, *, source: str = 'reading') -> Reading:
        """The inverse of `dataclasses.asdict`; raises ValueError if the values are something else."""
        names = [field.name for field in dataclasses.fields(cls)]
        threshold = values.get('null_threshold') if isinstance(values, Mapping) else None
        if (
            not isinstance(values, Mapping)
            or set(values) != set(names)
            or not all(type(values[name]) is int for name in names if name != 'null_threshold')
            or not (threshold is None or type(threshold) in (int, float))
        ):
            raise ValueError(f'{source}: wanted {", ".join(names)} as numbers, found {values!r:.200}')
        reading = cls(**values)
        if reading.problems():
            raise ValueError(f'{source}: {"; ".join(reading.problems())}')
        return reading


def read_questions(path: Path) -> List[Question]:
    """The questions of a file in SQuAD's format, version 1.1 or 2.0.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is not in the format, it has no questions, or one comes twice.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        articles = json.loads(path.read_text(encoding='utf-8-sig'))['data']
        questions = [
            Question(
                str(asked['id']),
                str(asked['question']),
                str(paragraph['context']),
                tuple(
                    (str(answer['text']), int(answer['answer_start'])) for answer in asked.get('answers', ())
                ),
            )
            for article in articles
            for paragraph in article['paragraphs']
            for asked in paragraph['qas']
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: not in SQuAD's format ({type(error).__name__}: {error})") from error
    if not questions:
        raise ValueError(f'{path}: has no questions')
    seen: set = set()
    for question in questions:
        if question.id in seen:
            raise ValueError(f'{path}: the question {question.id} comes twice')
        seen.add(question.id)
    return questions


def make_windows(
    questions: Sequence[Question],
    align: Aligner,
    reading: Reading,
    *,
    cls_id: int,
    sep_id: int,
    labelled: bool,
) -> Windows:
    """The windows of all questions, in their order.

    Parameters
    ----------
    questions : sequence of Question
    align : callable
        From `make_aligner`.
    reading : Reading
    cls_id, sep_id : int
    labelled : bool
        Whether the first answer of each question is wanted; a question whose answer does not stand where it
        says is left out, and its id is logged.
    """
    instances: List[Tuple[List[int], int]] = []
    labels: List[Tuple[int, int]] = []
    numbers: List[int] = []
    firsts: List[int] = []
    places, known = [], {}
    for number, question in enumerate(questions):
        if question.context not in known:
            ids, begins, ends = align(question.context)
            known[question.context] = ids, (np.array(begins, np.int64), np.array(ends, np.int64))
        ids, place = known[question.context]
        places.append(place)
        span = _token_span(question, *place) if labelled else None
        if labelled and question.answers and span is None:
            LOG.warning('%s: its answer does not stand in the context where it says; left out', question.id)
            continue
        head = [cls_id, *align(question.text)[0][: reading.max_question], sep_id]
        room = reading.max_length - len(head) - 1
        for first in _window_starts(len(ids), room, reading.stride):
            instances.append(([*head, *ids[first : first + room], sep_id], len(head)))
            numbers.append(number)
            firsts.append(first)
            if labelled:
                inside = span is not None and first <= span[0] and span[1] < first + room
                labels.append(
                    (span[0] - first + len(head), span[1] - first + len(head)) if inside else (0, 0)
                )
    features = Features.of(instances, np.array(labels, np.int64).reshape(-1, 2) if labelled else None)
    return Windows(features, np.array(numbers), np.array(firsts), places)


def _window_starts(tokens: int, room: int, stride: int) -> Iterator[int]:
    """Where windows begin; the last one reaches the end."""
    first = 0
    while True:
        yield first
        if first + room >= tokens:
            return
        first += min(stride, room)


def _token_span(question: Question, begins: np.ndarray, ends: np.ndarray) -> Optional[Tuple[int, int]]:
    """The first and the last token of the first answer; None if there is none in the context."""
    if not question.answers:
        return None
    text, start = question.answers[0]
    if question.context[start : start + len(text)] != text:
        return None
    first = int(np.searchsorted(ends, start, side='right'))
    last = int(np.searchsorted(begins, start + len(text), side='left')) - 1
    return (first, last) if first <= last else None
