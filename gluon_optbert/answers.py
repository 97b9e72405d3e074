"""Questions and contexts as windows of tokens, and scores of tokens as answers (Devlin et al., 2018, section 4.2)."""
from __future__ import annotations

import dataclasses
import string
import unicodedata
from typing import Callable, List, Sequence, Tuple

import numpy as np

QUESTION_TOKENS, ANSWER_TOKENS = 64, 30  # at most
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))  # a word each, for BERT


@dataclasses.dataclass(frozen=True)
class Answer:
    """A passage of a context.

    Parameters
    ----------
    text : str
        The passage, empty if the context is.
    start, end : int
        Where it stands in the context, in characters; `end` is the first behind it.
    score : float
        Sum of the scores of its first and its last token.
    """
    text: str
    start: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True)
class Window:
    """A question and a part of its context, as the network reads them.

    Parameters
    ----------
    ids : list of int
    types : list of int
    places : list of (int, int)
        Of the context's tokens, which stand at the end before the last separator: first character and the one behind the last.
    """
    ids: List[int]
    types: List[int]
    places: List[Tuple[int, int]]


def _stands_alone(character: str) -> bool:
    """Whether BERT's tokenizer makes a word of a character whatever stands beside it."""
    return (character in string.punctuation or unicodedata.category(character).startswith('P')
            or any(low <= ord(character) <= high for low, high in _IDEOGRAPHS))


def tokens_and_places(text: str, tokenize: Callable[[str], List[int]]) -> Tuple[List[int], List[Tuple[int, int]]]:
    """The token ids of a text and the characters that each stands for; pieces of a word all stand for the word."""
    ids: List[int] = []
    places: List[Tuple[int, int]] = []
    begin = 0

    def word(end: int) -> None:
        found = tokenize(text[begin:end]) if end > begin else []
        ids.extend(found)
        places.extend([(begin, end)] * len(found))

    for i, character in enumerate(text):
        space = character.isspace()
        if space or _stands_alone(character):
            word(i)
            begin = i
            if not space:
                word(i + 1)
            begin = i + 1
    word(len(text))
    return ids, places


def windows(question: Sequence[int], context: Tuple[Sequence[int], Sequence[Tuple[int, int]]], *, first: int, separator: int,
            max_length: int) -> List[Window]:
    """A question with every part of its context, each part half as far on as it is long.

    Parameters
    ----------
    question : sequence of int
        Cut to `QUESTION_TOKENS`, and to half of what there is room for.
    context : pair of sequences
        As `tokens_and_places` gives them.
    first, separator : int
        The ids of [CLS] and [SEP].
    max_length : int
        Tokens that a window may have; at least 5.
    """
    question = list(question[:min(QUESTION_TOKENS, (max_length - 3) // 2)])
    ids, places = context
    room = max_length - 3 - len(question)
    made = []
    for begin in range(0, max(1, len(ids) - room // 2), max(1, room // 2)):
        part = list(ids[begin:begin + room])
        made.append(Window([first, *question, separator, *part, separator],
                           [0] * (len(question) + 2) + [1] * (len(part) + 1), list(places[begin:begin + room])))
    return made


def best_answer(context: str, found: Sequence[Tuple[Window, np.ndarray]]) -> Answer:
    """The answer with the highest score among those of at most `ANSWER_TOKENS` tokens in any window; empty if the context is.

    Parameters
    ----------
    context : str
    found : sequence of (Window, np.ndarray of shape (length, 2))
        Windows and what the network scored their tokens as first and as last of the answer.
    """
    answers = [Answer('', 0, 0, 0.0)]
    for window, scores in found:
        count = len(window.places)
        if not count:
            continue
        begin = len(window.ids) - 1 - count
        firsts, lasts = scores[begin:begin + count].T
        sums = firsts[:, np.newaxis] + lasts[np.newaxis]  # (first, last)
        ordered = np.tril(np.triu(np.ones((count, count), dtype=bool)), ANSWER_TOKENS - 1)
        i, j = np.unravel_index(np.where(ordered, sums, -np.inf).argmax(), sums.shape)
        start, end = window.places[i][0], window.places[j][1]
        answers.append(Answer(context[start:end], start, end, float(sums[i, j])))
    return max(answers[1:] or answers, key=lambda answer: answer.score)
