"""Answers from the scores of tokens. An answer is a piece of the context, from one token to another.

Fine-tuning and predictions choose answers in the same way (Devlin et al., 2018, section 4.2 and its program).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from .squad import Question, Reading, Windows


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer that the scores suggest; the empty text says that there is none.

    Parameters
    ----------
    text : str
    score : float
        Of its first token plus its last one.
    start, end : int
        Where it stands in the context, in characters; `end` is the first behind it.
    probability : float
        Among the answers of a list.
    """

    text: str
    score: float
    start: int = 0
    end: int = 0
    probability: float = 0.0


def best_answers(
    questions: Sequence[Question], windows: Windows, scores: np.ndarray, reading: Reading
) -> Tuple[List[List[Answer]], List[float]]:
    """The best answers of every question, and the score of its having none.

    Parameters
    ----------
    questions : sequence of Question
    windows : Windows
        All of the questions.
    scores : np.ndarray, shape (windows, length, 2)
    reading : Reading

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
        spans = [
            span
            for row, owned in zip(rows, _owned(windows, rows))
            for span in _spans(
                windows, row, scores[row], owned, n_best=reading.n_best, max_answer=reading.max_answer
            )
        ]
        best: Dict[str, Answer] = {}  # different texts
        for score, first, last in sorted(spans, key=lambda span: (-span[0], span[1], span[2])):
            start, end = int(begins[first]), int(ends[last])
            best.setdefault(
                question.context[start:end], Answer(question.context[start:end], score, start, end)
            )
            if len(best) == reading.n_best:
                break
        answers.append(list(best.values()))
        nulls.append(min(float(scores[row, 0].sum()) for row in rows))
    return answers, nulls


def _counts(windows: Windows, rows: np.ndarray) -> np.ndarray:
    """Tokens of the context in each window."""
    return windows.features.lengths[rows] - windows.features.seconds[rows] - 1


def _owned(windows: Windows, rows: np.ndarray) -> List[np.ndarray]:
    """For each window of a question, which of its tokens are scored in it.

    A token that is in several windows is scored where the shorter of its two sides of context is longest.
    """
    counts, firsts = _counts(windows, rows), windows.firsts[rows]
    if len(rows) == 1:
        return [np.ones(counts[0], bool)]
    best = np.full((len(rows), int((firsts + counts).max())), -np.inf)
    for richness, first, count in zip(best, firsts, counts):
        left = np.arange(count)
        richness[first : first + count] = np.minimum(left, count - 1 - left) + 0.01 * count
    owner = best.argmax(axis=0)
    return [owner[first : first + count] == i for i, (first, count) in enumerate(zip(firsts, counts))]


def _spans(
    windows: Windows, row: int, scores: np.ndarray, owned: np.ndarray, *, n_best: int, max_answer: int
) -> List[Tuple[float, int, int]]:
    """The best spans of one window: score, first token and last token in the context."""
    count, second = len(owned), int(windows.features.seconds[row])
    context = scores[second : second + count]
    # tokens after the first, first token
    table = np.full((min(max_answer, count), count), -np.inf, np.float32)
    for more, line in enumerate(table):
        line[: count - more] = context[: count - more, 0] + context[more:, 1]
    table[:, ~owned] = -np.inf
    flat = table.reshape(-1)
    chosen = np.argpartition(-flat, n_best)[:n_best] if len(flat) > n_best else np.arange(len(flat))
    first = int(windows.firsts[row])
    return [
        (float(flat[i]), first + int(i) % count, first + int(i) % count + int(i) // count)
        for i in chosen
        if np.isfinite(flat[i])
    ]


def decide(answers: Sequence[Answer], null: Optional[float], threshold: float) -> str:
    """The text of the best answer; the empty text if having no answer scores higher by more than `threshold`.

    Parameters
    ----------
    answers : sequence of Answer
    null : float, optional
        The score of having no answer; None where every question has one.
    threshold : float
    """
    if not answers or (null is not None and null - answers[0].score > threshold):
        return ''
    return answers[0].text


def with_probabilities(answers: Sequence[Answer], null: Optional[float] = None) -> List[Answer]:
    """The answers with probabilities that sum to one, the best first.

    With `null`, the score of having no answer, the empty answer is among them.
    """
    every = sorted(
        [*answers, *([] if null is None else [Answer('', null)])], key=lambda answer: -answer.score
    )
    weights = np.exp(np.array([answer.score for answer in every]) - (every[0].score if every else 0.0))
    return [
        dataclasses.replace(answer, probability=float(weight / weights.sum()))
        for answer, weight in zip(every, weights)
    ]


def chosen_answer(answers: Sequence[Answer], null: float, threshold: Optional[float]) -> Answer:
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
    nulls: Optional[Sequence[float]],
    *,
    threshold: float,
) -> Dict[str, Mapping[str, Any]]:
    """The files of a run about its answers, by file name; the content of each is by question id.

    ``predictions.json`` is the official format; ``nbest.json`` has the best answers with probabilities. Where
    a question may have no answer, ``null_odds.json`` has the score of none less that of the best answer, and
    ``answers.json`` that answer."""
    odds = [None] * len(questions) if nulls is None else list(nulls)
    files = {
        'predictions.json': {
            question.id: decide(best, null, threshold)
            for question, best, null in zip(questions, answers, odds)
        },
        'nbest.json': {
            question.id: [dataclasses.asdict(answer) for answer in with_probabilities(best, null)]
            for question, best, null in zip(questions, answers, odds)
        },
    }
    if nulls is not None:
        files['answers.json'] = {
            question.id: decide(best, None, 0.0) for question, best in zip(questions, answers)
        }
        files['null_odds.json'] = {
            question.id: null - best[0].score if best else 0.0
            for question, best, null in zip(questions, answers, nulls)
        }
    return files
