"""Answers from the scores of tokens. An answer is a piece of the context, from one token to another.

Fine-tuning and predictions choose answers in the same way (Devlin et al., 2018, section 4.2 and its program).
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt, StrictBool

from ..runs.files import checked, read_json
from ..runs.limits import MOST_SQUAD_BYTES
from ..runs.recipe import Recipe, fill, option
from ..text.tokenizer import Vocabulary, make_aligner
from .features import Features

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Question:
    """One question; in SQuAD 2.0 it may have no answer."""

    id: str
    text: str
    context: str
    answers: tuple[tuple[str, int], ...]  # those that are known, each with the place of its first character
    unknown: bool = False  # whether it has an answer that the file lacks


@dataclasses.dataclass(frozen=True)
class Windows:
    """Input of a network: [CLS] question [SEP] a window of the context [SEP].

    The features have the numbers of the questions as those of their texts. Labels are the places of the
    answer's first and last token where there are answers; [CLS] where the window has none.
    """

    features: Features
    firsts: np.ndarray  # (windows,) int; which token of the context a window begins with
    places: list[tuple[np.ndarray, np.ndarray]]  # of each question: where tokens of its context begin and end


class Reading(Recipe):
    """Settings of reading questions and choosing answers. The defaults are those of Devlin's program.

    Without a threshold every question has an answer.
    """

    max_length: int = option('tokens of a window, question included', 384)
    stride: PositiveInt = option('tokens between the starts of successive windows', 128)
    max_question: PositiveInt = option('largest number of tokens of a question; longer ones are cut', 64)
    max_answer: PositiveInt = option('largest number of tokens of an answer', 30)
    n_best: PositiveInt = option('number of answers per question in nbest.json', 20)
    null_threshold: float | None = option(
        'for 2.0: "no answer" is predicted if its score exceeds that of the best answer by more than this',
        None,
    )

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.max_length < self.max_question + 4:
            problems.append(
                f'max_length must be at least {self.max_question + 4}, four above max_question, found '
                f'{self.max_length}'
            )
        return problems

    @staticmethod
    def of(recipe: Mapping[str, Any], positions: int) -> Reading:
        """The reading of the fine-tuning run that a recipe describes; ValueError if a value is not what such
        a recipe holds. For any other recipe, the defaults, shortened to the positions of the network.
        """
        if {*Reading.model_fields} <= {*recipe}:
            values = {name: recipe[name] for name in Reading.model_fields}
            if recipe.get('version') != '2.0':
                values['null_threshold'] = None
            return Reading.from_dict(values, source='the recipe of the fine-tuning run')
        usual = Reading()
        length = min(usual.max_length, positions)
        stride, question = min(usual.stride, length // 3), min(usual.max_question, length // 2 - 2)
        return Reading(max_length=length, stride=max(1, stride), max_question=max(1, question))

    @classmethod
    def from_dict(cls, values: Any, *, source: str) -> Reading:
        """The inverse of `to_dict`; raises ValueError if the values are something else."""
        if not isinstance(values, Mapping) or set(values) != {*cls.model_fields}:
            raise ValueError(f'{source}: wanted {", ".join(cls.model_fields)}, found {values!r:.200}')
        return fill(cls, values, source=source)


class _Answer(BaseModel):
    text: str
    answer_start: int


class _Asked(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    question: str
    answers: list[_Answer] = []
    is_impossible: StrictBool | None = None


class _Paragraph(BaseModel):
    context: str
    qas: list[Any]


class _Article(BaseModel):
    paragraphs: list[_Paragraph]


class _Articles(BaseModel):
    data: list[_Article]


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in SQuAD's format, version 1.1 or 2.0.

    A question has no answer if its ``is_impossible`` says so, whatever ``answers`` holds; where there is no
    such key, if it has no answer that is not empty. FileNotFoundError or ValueError, which names the
    question, if there is no such file, it is not in the format, it has no questions, or one comes twice.
    """
    values = read_json(path, most_bytes=MOST_SQUAD_BYTES)
    articles = checked(_Articles, values, source=f"{path}: not in SQuAD's format").data
    questions: dict[str, Question] = {}
    paragraphs = (paragraph for article in articles for paragraph in article.paragraphs)
    asked = ((paragraph.context, values) for paragraph in paragraphs for values in paragraph.qas)
    for number, (context, values) in enumerate(asked, 1):
        id = values.get('id') if isinstance(values, Mapping) else None
        name = f'{path}: question {f"number {number}" if id is None else id!s:.80}'
        one = checked(_Asked, values, source=name)
        answers = tuple((answer.text, answer.answer_start) for answer in one.answers if answer.text.strip())
        answers = () if one.is_impossible else answers
        unknown = one.is_impossible is False and not answers
        if one.id in questions:
            raise ValueError(f'{name} comes twice')
        questions[one.id] = Question(one.id, one.question, context, answers, unknown)
    if not questions:
        raise ValueError(f'{path}: has no questions')
    return list(questions.values())


def known_answers(questions: Sequence[Question], source: object) -> dict[str, list[str]]:
    """The texts of the answers by question, to score with; ValueError if a question has an answer that is not
    known.
    """
    unknown = [one.id for one in questions if one.unknown]
    if unknown:
        raise ValueError(
            f'{source}: {len(unknown)} questions have no answers, and is_impossible is false; the first is '
            f'{unknown[0]}'
        )
    return {one.id: [text for text, _ in one.answers] for one in questions}


def make_question_reader(vocabulary: Vocabulary, reading: Reading) -> Callable[..., Windows]:
    """A function from questions to their `Windows`, in their order.

    With ``labelled=True`` it wants the first answer of each question. An answer is looked for among the words
    at its place, see `found_answer`; a question whose answer does not stand there is left out. Both are
    counted and logged, as are questions that are cut.
    """
    align = make_aligner(vocabulary)
    cls_id, sep_id = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]

    def read(questions: Sequence[Question], *, labelled: bool = False) -> Windows:
        instances: list[tuple[list[int], int]] = []
        labels: list[tuple[int, int]] = []
        numbers: list[int] = []
        firsts: list[int] = []
        places, known, moved, dropped, cut = [], {}, [], [], []
        for number, question in enumerate(questions):
            if question.context not in known:
                ids, begins, ends = align(question.context)
                known[question.context] = ids, (np.array(begins, np.int64), np.array(ends, np.int64))
            ids, place = known[question.context]
            places.append(place)
            wanted = question.answers[:1] if labelled else ()
            found = found_answer(question.context, *wanted[0]) if wanted else None
            span = None if found is None else _token_span(found, *place)
            if labelled and span is None and (wanted or question.unknown):
                dropped.append(question.id)
                continue
            if found is not None and wanted[0] != (question.context[slice(*found)], found[0]):
                moved.append(question.id)
            asked = align(question.text)[0]
            if len(asked) > reading.max_question:
                cut.append(question.id)
            head = [cls_id, *asked[: reading.max_question], sep_id]
            room = reading.max_length - len(head) - 1
            step = min(reading.stride, room)
            for first in range(0, max(len(ids) - room, 0) + step, step):  # the last window reaches the end
                instances.append(([*head, *ids[first : first + room], sep_id], len(head)))
                numbers.append(number)
                firsts.append(first)
                inside = span is not None and first <= span[0] and span[1] < first + room
                labels.append(tuple(place - first + len(head) for place in span) if inside else (0, 0))
        for ids, what in (
            (
                moved,
                'have an answer at another place, or with other white space, than their context; it is moved',
            ),
            (dropped, 'have no answer that stands in their context where it says; they are left out'),
            (cut, f'have more than {reading.max_question} tokens; they are cut'),
        ):
            if ids:
                some = ', '.join(ids[:3]) + ' …' * (len(ids) > 3)
                LOG.warning('%d of %d questions %s: %s', len(ids), len(questions), what, some)
        features = Features.of(instances, np.array(labels, np.int64).reshape(-1, 2) if labelled else None)
        features = dataclasses.replace(features, texts=np.array(numbers, np.int64))
        return Windows(features, np.array(firsts), places)

    return read


def found_answer(context: str, text: str, start: int) -> tuple[int, int] | None:
    """Start and end of an answer in a context; None if it does not stand there.

    As in BERT's program for SQuAD, an answer that does not begin at its place is looked for in the words, cut
    at white space, from that of the place to that where it would end; white space may be any.
    """
    if not 0 <= start < len(context):
        return None
    if context.startswith(text, start):
        return start, start + len(text)
    words = [word.span() for word in re.finditer(r'\S+', context)]
    begins = [begin for begin, _ in words]
    first = max(0, bisect.bisect_right(begins, start) - 1)  # white space belongs to the word before it
    last = bisect.bisect_right(begins, start + len(text) - 1) - 1
    if last < first:
        return None
    spelt = re.compile(r'\s+'.join(map(re.escape, text.split())))
    match = spelt.search(context, words[first][0], words[last][1])
    return None if match is None else match.span()


def _token_span(place: tuple[int, int], begins: np.ndarray, ends: np.ndarray) -> tuple[int, int] | None:
    """The first and the last token of a piece of a context; None if it has none."""
    first = int(np.searchsorted(ends, place[0], side='right'))
    last = int(np.searchsorted(begins, place[1], side='left')) - 1
    return (first, last) if first <= last else None


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer that the scores suggest; the empty text says that there is none."""

    text: str
    score: float  # of its first token plus its last one
    start: int = 0  # where it stands in the context, in characters
    end: int = 0  # the first behind it
    probability: float = 0.0  # among the answers of a list


def best_answers(
    questions: Sequence[Question], windows: Windows, scores: np.ndarray, reading: Reading
) -> tuple[list[list[Answer]], list[float]]:
    """The best answers of every question, the best first, and the score of its having none, from scores of
    the shape (windows, length, 2).

    The answers are without probabilities; there are none if a context has no token. The score of having none
    is that of [CLS], in the window where it is lowest.
    """
    answers, nulls = [], []
    borders = np.searchsorted(windows.features.texts, np.arange(len(questions) + 1))
    for number, question in enumerate(questions):
        rows = np.arange(borders[number], borders[number + 1])
        begins, ends = windows.places[number]
        spans = [
            span
            for row, owned in zip(rows, _owned(windows, rows))
            for span in _spans(windows, row, scores[row], owned, reading)
        ]
        best: dict[str, Answer] = {}  # different texts
        for score, first, last in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
            start, end = int(begins[first]), int(ends[last])
            text = question.context[start:end]
            best.setdefault(text, Answer(text, score, start, end))
            if len(best) == reading.n_best:
                break
        answers.append(list(best.values()))
        nulls.append(min(float(scores[row, 0].sum()) for row in rows))
    return answers, nulls


def _owned(windows: Windows, rows: np.ndarray) -> list[np.ndarray]:
    """For each window of a question, which of its tokens of the context are scored in it.

    A token that is in several windows is scored where the shorter of its two sides of context is longest.
    """
    counts = windows.features.lengths[rows] - windows.features.seconds[rows] - 1
    firsts = windows.firsts[rows]
    best, owner = np.full(int((firsts + counts).max()), -np.inf), np.zeros(int((firsts + counts).max()), int)
    for i, (first, count) in enumerate(zip(firsts, counts)):
        left, part = np.arange(count), slice(first, first + count)
        richness = np.minimum(left, count - 1 - left) + 0.01 * count
        owner[part][richness > best[part]] = i
        best[part] = np.maximum(best[part], richness)
    return [owner[first : first + count] == i for i, (first, count) in enumerate(zip(firsts, counts))]


def _spans(
    windows: Windows, row: int, scores: np.ndarray, owned: np.ndarray, reading: Reading
) -> list[tuple[float, int, int]]:
    """The best spans of one window: score, first token and last token in the context."""
    count, second = len(owned), int(windows.features.seconds[row])
    context = scores[second : second + count]
    # tokens after the first, first token
    table = np.full((min(reading.max_answer, count), count), -np.inf, np.float32)
    for more, line in enumerate(table):
        line[: count - more] = context[: count - more, 0] + context[more:, 1]
    table[:, ~owned] = -np.inf
    flat = table.reshape(-1)
    n_best = reading.n_best
    chosen = np.argpartition(-flat, n_best)[:n_best] if len(flat) > n_best else np.arange(len(flat))
    first = int(windows.firsts[row])
    return [
        (float(flat[i]), first + int(i) % count, first + int(i) % count + int(i) // count)
        for i in chosen
        if np.isfinite(flat[i])
    ]


def decide(answers: Sequence[Answer], null: float | None, threshold: float) -> str:
    """The text of the best answer; the empty text if having no answer scores higher by more than `threshold`.

    `null` is that score, and None where every question has an answer.
    """
    if not answers or (null is not None and null - answers[0].score > threshold):
        return ''
    return answers[0].text


def with_probabilities(answers: Sequence[Answer], null: float | None = None) -> list[Answer]:
    """The answers with probabilities that sum to one, the best first.

    With `null`, the score of having no answer, the empty answer is among them.
    """
    every = [*answers, *([] if null is None else [Answer('', null)])]
    every.sort(key=lambda answer: -answer.score)
    weights = np.exp(np.array([answer.score for answer in every]) - (every[0].score if every else 0.0))
    return [
        dataclasses.replace(answer, probability=float(weight / weights.sum()))
        for answer, weight in zip(every, weights)
    ]


def chosen_answer(answers: Sequence[Answer], null: float, threshold: float | None) -> Answer:
    """The answer that `decide` chooses, with its place and its probability.

    Without a threshold every question has an answer.
    """
    scored = None if threshold is None else null
    text = decide(answers, scored, threshold or 0.0)
    return next(
        (answer for answer in with_probabilities(answers, scored) if answer.text == text), Answer('', 0.0)
    )


def answer_files(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Answer]],
    nulls: Sequence[float] | None,
    *,
    threshold: float,
) -> dict[str, Mapping[str, Any]]:
    """The files of a run about its answers, by file name; the content of each is by question id.

    ``predictions.json`` is the official format; ``nbest.json`` has the best answers with probabilities. Where
    a question may have no answer, ``null_odds.json`` has the score of none less that of the best answer, and
    ``answers.json`` that answer."""
    names = ('predictions.json', 'nbest.json', *(() if nulls is None else ('answers.json', 'null_odds.json')))
    files: dict[str, dict[str, Any]] = {name: {} for name in names}
    odds = [None] * len(questions) if nulls is None else nulls
    for question, best, null in zip(questions, answers, odds):
        files['predictions.json'][question.id] = decide(best, null, threshold)
        files['nbest.json'][question.id] = [vars(answer) for answer in with_probabilities(best, null)]
        if nulls is not None:
            files['answers.json'][question.id] = decide(best, None, 0.0)
            files['null_odds.json'][question.id] = null - best[0].score if best else 0.0
    return files
