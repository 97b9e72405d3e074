"""SQuAD: questions, the windows of text that a network reads for them, and answers from the scores of their tokens.

A context that is too long is read in windows that overlap (Devlin et al., 2018, section 4.2 and its program). An answer is a
piece of the context as it stands there, cut out by the places of its first and last token.
"""
from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

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
        With the places of the answer's first and last token as labels where there are answers; [CLS] where the window has none.
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
class WindowSpec:
    """How windows are cut, in tokens.

    Parameters
    ----------
    max_length : int
        Of a window with its question and special tokens.
    stride : int
        From the beginning of a window to that of the next.
    max_question : int
        What a question is cut to.
    """
    max_length: int
    stride: int
    max_question: int


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
        articles = json.loads(path.read_text(encoding='utf-8'))['data']
        questions = [Question(str(asked['id']), str(asked['question']), str(paragraph['context']), tuple(
            (str(answer['text']), int(answer['answer_start'])) for answer in asked.get('answers', ())))
            for article in articles for paragraph in article['paragraphs'] for asked in paragraph['qas']]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f'{path}: not in SQuAD\'s format ({type(error).__name__}: {error})') from error
    if not questions:
        raise ValueError(f'{path}: has no questions')
    seen: set = set()
    for question in questions:
        if question.id in seen:
            raise ValueError(f'{path}: the question {question.id} comes twice')
        seen.add(question.id)
    return questions


def make_windows(questions: Sequence[Question], align: Aligner, spec: WindowSpec, *, cls_id: int, sep_id: int,
                 labelled: bool) -> Windows:
    """The windows of all questions, in their order.

    Parameters
    ----------
    questions : sequence of Question
    align : callable
        From `make_aligner`.
    spec : WindowSpec
    cls_id, sep_id : int
    labelled : bool
        Whether the first answer of each question is wanted; a question whose answer does not stand where it says is left out,
        and its id is logged.
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
        head = [cls_id, *align(question.text)[0][:spec.max_question], sep_id]
        room = spec.max_length - len(head) - 1
        for first in _window_starts(len(ids), room, spec.stride):
            instances.append(([*head, *ids[first:first + room], sep_id], len(head)))
            numbers.append(number)
            firsts.append(first)
            if labelled:
                inside = span is not None and first <= span[0] and span[1] < first + room
                labels.append((span[0] - first + len(head), span[1] - first + len(head)) if inside else (0, 0))
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
    if question.context[start:start + len(text)] != text:
        return None
    first = int(np.searchsorted(ends, start, side='right'))
    last = int(np.searchsorted(begins, start + len(text), side='left')) - 1
    return (first, last) if first <= last else None


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer that the scores suggest; the empty text says that there is none."""
    text: str
    score: float  # of its first token plus its last one
    probability: float = 0.0  # among the answers of the list


def best_answers(questions: Sequence[Question], windows: Windows, scores: np.ndarray, *, n_best: int,
                 max_answer: int) -> Tuple[List[List[Answer]], List[float]]:
    """The best answers of every question, and the score of its having none.

    Parameters
    ----------
    questions : sequence of Question
    windows : Windows
        All of the questions.
    scores : np.ndarray, shape (windows, length, 2)
    n_best : int
        Different texts at most.
    max_answer : int
        Tokens of an answer at most.

    Returns
    -------
    list of list of Answer
        The best first, without probabilities; empty if a context has no token.
    list of float
        The scores of [CLS], in the window where they are lowest.
    """
    answers, nulls = [], []
    borders = np.searchsorted(windows.questions, np.arange(len(questions) + 1))
    for number, question in enumerate(questions):
        rows = np.arange(borders[number], borders[number + 1])
        begins, ends = windows.places[number]
        spans = [span for row, owned in zip(rows, _owned(windows, rows)) for span in _spans(
            windows, row, scores[row], owned, n_best=n_best, max_answer=max_answer)]
        best: Dict[str, float] = {}
        for score, first, last in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
            best.setdefault(question.context[begins[first]:ends[last]], score)
            if len(best) == n_best:
                break
        answers.append([Answer(text, score) for text, score in best.items()])
        nulls.append(min(float(scores[row, 0].sum()) for row in rows))
    return answers, nulls


def _counts(windows: Windows, rows: np.ndarray) -> np.ndarray:
    """Tokens of the context in each window."""
    return windows.features.lengths[rows] - windows.features.seconds[rows] - 1


def _owned(windows: Windows, rows: np.ndarray) -> List[np.ndarray]:
    """For each window of a question, whether a token has more context on its poorer side here than in any other window."""
    counts, firsts = _counts(windows, rows), windows.firsts[rows]
    if len(rows) == 1:
        return [np.ones(counts[0], bool)]
    best = np.full((len(rows), int((firsts + counts).max())), -np.inf)
    for richness, first, count in zip(best, firsts, counts):
        left = np.arange(count)
        richness[first:first + count] = np.minimum(left, count - 1 - left) + 0.01 * count
    owner = best.argmax(axis=0)
    return [owner[first:first + count] == i for i, (first, count) in enumerate(zip(firsts, counts))]


def _spans(windows: Windows, row: int, scores: np.ndarray, owned: np.ndarray, *, n_best: int,
           max_answer: int) -> List[Tuple[float, int, int]]:
    """The best spans of one window: score, first token and last token in the context."""
    count, second = len(owned), int(windows.features.seconds[row])
    context = scores[second:second + count]
    table = np.full((min(max_answer, count), count), -np.inf, np.float32)  # tokens after the first, first token
    for more, line in enumerate(table):
        line[:count - more] = context[:count - more, 0] + context[more:, 1]
    table[:, ~owned] = -np.inf
    flat = table.reshape(-1)
    chosen = np.argpartition(-flat, n_best)[:n_best] if len(flat) > n_best else np.arange(len(flat))
    first = int(windows.firsts[row])
    return [(float(flat[i]), first + int(i) % count, first + int(i) % count + int(i) // count)
            for i in chosen if np.isfinite(flat[i])]


def decide(answers: Sequence[Answer], null: Optional[float], threshold: float) -> str:
    """The answer to give: the best one, or none where its score is more than `threshold` below that of having none.

    Parameters
    ----------
    answers : sequence of Answer
    null : float, optional
        None where every question has an answer.
    threshold : float
    """
    if not answers or (null is not None and null - answers[0].score > threshold):
        return ''
    return answers[0].text


def with_probabilities(answers: Sequence[Answer], null: Optional[float] = None) -> List[Answer]:
    """The answers, and having none if that is scored, with probabilities that sum to one; the best first."""
    every = sorted([*answers, *([] if null is None else [Answer('', null)])], key=lambda answer: -answer.score)
    weights = np.exp(np.array([answer.score for answer in every]) - (every[0].score if every else 0.0))
    return [dataclasses.replace(answer, probability=float(weight / weights.sum())) for answer, weight in zip(every, weights)]


def answer_files(questions: Sequence[Question], answers: Sequence[Sequence[Answer]], nulls: Optional[Sequence[float]], *,
                 threshold: float) -> Dict[str, Mapping[str, Any]]:
    """What a run leaves about the answers, by file name, each by question id.

    ``predictions.json`` is the official format; ``nbest.json`` has the best answers with probabilities. Where a question may
    have no answer, ``null_odds.json`` has the score of none less that of the best answer, and ``answers.json`` that answer.
    """
    odds = [None] * len(questions) if nulls is None else list(nulls)
    files = {'predictions.json': {question.id: decide(best, null, threshold)
                                  for question, best, null in zip(questions, answers, odds)},
             'nbest.json': {question.id: [dataclasses.asdict(answer) for answer in with_probabilities(best, null)]
                            for question, best, null in zip(questions, answers, odds)}}
    if nulls is not None:
        files['answers.json'] = {question.id: decide(best, None, 0.0) for question, best in zip(questions, answers)}
        files['null_odds.json'] = {question.id: null - best[0].score if best else 0.0
                                   for question, best, null in zip(questions, answers, nulls)}
    return files
