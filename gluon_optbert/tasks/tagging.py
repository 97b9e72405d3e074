"""Sentences of words with a tag each: CoNLL's columns or JSON lines, their tokens, and tags from scores.

A word that is several tokens is scored by its first one, as in Devlin et al. (2018), section 5.3. A sentence
that is too long becomes several instances, so no word is left out."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..runs.files import decoded
from ..text.tokenizer import Vocabulary, make_tokenizer
from .features import NO_TAG, Features
from .tables import read_json_lines

SUFFIXES = ('.conll', '.iob', '.bio')  # of files with a word and its tag on each line
KEYS = (('words', 'tags'), ('tokens', 'ner_tags'), ('tokens', 'tags'))  # of JSON lines
_CHUNK = re.compile(r'\S+')


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence.

    Parameters
    ----------
    line : int
        In its file.
    tags : tuple of str
        One for each word, or none where they are not known.
    """

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...] = ()


def is_tagged(path: Path) -> bool:
    """Whether a file is one of tagged words, by its name, or in JSON lines by the keys of the first."""
    if path.suffix == '.jsonl':
        with open(path, 'rb') as file:
            first = file.readline(1 << 20)
        return any(f'"{words}"'.encode() in first for words, _ in KEYS) and b'"text"' not in first
    return path.suffix in SUFFIXES


def read_sentences(path: Path, *, labelled: bool = True) -> list[Sentence]:
    """The sentences of a file: JSON lines with words and tags, or columns with a blank line behind each
    sentence, the word first and the tag last. Lines with -DOCSTART- stand between documents;
    FileNotFoundError or ValueError if there is no such file, or a line is something else; it is named.
    """
    path = Path(path)
    if path.suffix == '.jsonl':
        records = read_json_lines(path)
        found = [sentence_of(one, f'{path}: line {line}', line, labelled) for line, one in records]
    else:
        found = list(_of_columns(re.split('\r\n?|\n', decoded(path)), path, labelled))
    if not found:
        raise ValueError(f'{path}: has no sentence')
    return found


def _of_columns(lines: Sequence[str], path: Path, labelled: bool) -> Iterator[Sentence]:
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*lines, ''], 1):
        cells = line.split('\t') if '\t' in line else line.split()
        if line.strip() and cells[0] != '-DOCSTART-':
            if labelled and (len(cells) < 2 or not cells[-1].strip()):
                raise ValueError(f'{path}: line {number} has no tag behind the word: {line!r:.60}')
            words.append(cells[0])
            tags.append(cells[-1])
        elif words:
            yield Sentence(number - len(words), tuple(words), tuple(tags) if labelled else ())
            words, tags = [], []


def sentence_of(values: object, source: str, line: int = 0, labelled: bool = False) -> Sentence:
    """The sentence in a JSON object; ValueError, naming the source, if there is none."""
    for names in KEYS if isinstance(values, dict) else ():
        words, tags = (values.get(name) for name in names)
        lists = [words, tags] if labelled else [words]
        if all(isinstance(one, list) and all(isinstance(word, str) for word in one) for one in lists):
            if words and (not labelled or len(tags) == len(words)):
                return Sentence(line, tuple(words), tuple(tags) if labelled else ())
    wanted = 'words and as many tags' if labelled else 'words'
    raise ValueError(f'{source}: wanted an object with lists of {wanted}')


def split_words(text: str) -> list[tuple[int, int]]:
    """Where the words of a text begin and end: what spaces stand between, without the punctuation around it,
    each mark of which is a word.
    """
    spans = []
    for found in _CHUNK.finditer(text):
        first, last = found.span()
        while first < last and _is_mark(text[first]):
            spans.append((first, first + 1))
            first += 1
        end = last
        while end > first and _is_mark(text[end - 1]):
            end -= 1
        spans += [(first, end)] if first < end else []
        spans += [(i, i + 1) for i in range(end, last)]
    return spans


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == 'P'


@dataclasses.dataclass(frozen=True)
class Tagged:
    """The tokens of sentences.

    Parameters
    ----------
    features : Features
        With tags, if they are known.
    owners : np.ndarray of int, shape (instances,)
        The sentence of each instance, in order.
    places : list of np.ndarray of int
        Of each instance, the first tokens of its words.
    """

    features: Features
    owners: np.ndarray
    places: list[np.ndarray]

    def scores(self, scores: np.ndarray) -> list[np.ndarray]:
        """The scores of the words of each sentence, shape (words, labels), from those of the tokens of every
        instance.
        """
        parts: list[list[np.ndarray]] = [[] for _ in range(int(self.owners[-1]) + 1)]
        for row, owner in enumerate(self.owners):
            parts[owner].append(scores[row, self.places[row]])
        return [np.concatenate(part) for part in parts]


class TagReader:
    """Words to tokens, at most `max_length` in an instance, [CLS] and [SEP] counted."""

    def __init__(self, vocabulary: Vocabulary, *, max_length: int):
        self._tokenize, self._room = make_tokenizer(vocabulary), max_length - 2
        self._ends = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]
        self._unknown = [vocabulary[vocabulary.unknown_token]]

    def __call__(
        self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[int]] | None = None
    ) -> Tagged:
        """The instances of sentences, with tags if those of the words are given, as numbers."""
        cls, sep = self._ends
        rows, owners, places, numbers = [], [], [], []
        for owner, words in enumerate(sentences):
            pieces = [(self._tokenize(word) or self._unknown)[: self._room] for word in words]
            first = 0
            while True:
                last, size = first, 0
                while last < len(words) and size + len(pieces[last]) <= self._room:
                    size += len(pieces[last])
                    last += 1
                own = pieces[first:last]
                tokens = [cls, *(token for word in own for token in word), sep]
                begins = np.cumsum([1, *map(len, own)])[:-1].astype(np.int64)
                of_tokens = np.full(len(tokens), NO_TAG)
                if tags is not None:
                    of_tokens[begins] = tags[owner][first:last]
                rows.append((tokens, len(tokens)))
                owners.append(owner)
                places.append(begins)
                numbers.append(of_tokens)
                first = last
                if first >= len(words):
                    break
        features = Features.of(rows)
        if tags is not None:
            features = dataclasses.replace(features, tags=np.concatenate(numbers))
        return Tagged(features, np.array(owners), places)
