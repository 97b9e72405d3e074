"""Sentences of words with a tag each: CoNLL's columns or JSON lines, their tokens, and tags from scores.

A word that is several tokens is scored by its first one, as in Devlin et al. (2018), section 5.3. A sentence
that is too long becomes several instances, so no word is left out."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..runs.files import decoded, parse_json
from ..text.tokenizer import Vocabulary, make_tokenizer
from .features import NO_TAG, Features
from .tables import read_json_lines

SUFFIXES = ('.conll', '.iob', '.bio')  # of files with a word and its tag on each line
KEYS = (('words', 'tags'), ('tokens', 'ner_tags'), ('tokens', 'tags'))  # of JSON lines


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, and a tag for each, or none where they are not known."""

    line: int  # in its file
    words: tuple[str, ...]
    tags: tuple[str, ...] = ()


def is_tagged(path: Path) -> bool:
    """Whether a file is one of tagged words, by its name, or in JSON lines by the keys of the first."""
    if path.suffix.lower() != '.jsonl':
        return path.suffix.lower() in SUFFIXES
    with open(path, 'rb') as file:
        lines = iter(lambda: file.readline(1 << 20), b'')
        first = next(filter(bytes.strip, lines), b'')  # blank lines are left out
    try:
        keys = parse_json(first, source=path)
    except ValueError:
        return False
    return isinstance(keys, dict) and 'text' not in keys and any(words in keys for words, _ in KEYS)


def read_sentences(path: Path, *, labelled: bool = True) -> list[Sentence]:
    """The sentences of a file: JSON lines with words and tags, or columns with a blank line behind each
    sentence, the word first and the tag last. Lines with -DOCSTART- stand between documents;
    FileNotFoundError or ValueError if there is no such file, or a line is something else; it is named.
    """
    path = Path(path)
    if path.suffix.lower() == '.jsonl':
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
    width = 0  # columns of the sentence
    for number, line in enumerate([*lines, ''], 1):
        cells = line.split('\t') if '\t' in line else line.split()
        if line.strip() and cells[0] != '-DOCSTART-':
            if labelled and (len(cells) < 2 or not cells[-1].strip()):
                raise ValueError(f'{path}: line {number} has no tag behind the word: {line!r:.60}')
            width = width if words else len(cells)
            if len(cells) != width:
                raise ValueError(
                    f'{path}: line {number} has {len(cells)} columns, the one above {width}: {line!r:.60}'
                    '; take out lines of comments, and put tabs between columns where a word has a space'
                )
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
    raise ValueError(f'{source}: wanted an object with lists of {wanted}, all text, found {values!r:.120}')


def split_words(text: str) -> list[tuple[int, int]]:
    """Starts and ends of the words of a text: what spaces stand between, without the punctuation around it,
    each mark of which is a word.
    """
    spans = []
    for found in re.finditer(r'\S+', text):
        first, last = found.span()
        inside = [i for i in range(first, last) if unicodedata.category(text[i])[0] != 'P']
        begin, end = (inside[0], inside[-1] + 1) if inside else (last, last)
        spans += [(i, i + 1) for i in range(first, begin)]
        spans += [(begin, end)] if inside else []
        spans += [(i, i + 1) for i in range(end, last)]
    return spans


def make_tag_reader(vocabulary: Vocabulary, *, max_length: int) -> Callable[..., Features]:
    """A function from the words of sentences, and optional numbers of their tags, to `Features`; an instance
    has at most `max_length` tokens, [CLS] and [SEP] counted.
    """
    tokenize, room = make_tokenizer(vocabulary), max_length - 2
    cls, sep = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]
    unknown = [vocabulary[vocabulary.unknown_token]]

    def read(sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[int]] | None = None) -> Features:
        parts: list[list[list[int]]] = []  # the tokens of the words of each instance
        owners: list[int] = []
        for owner, words in enumerate(sentences):
            own: list[list[int]] = []
            instances, size = [own], 0
            for word in words:
                tokens = (tokenize(word) or unknown)[:room]
                if size + len(tokens) > room:
                    own, size = [], 0
                    instances.append(own)
                own.append(tokens)
                size += len(tokens)
            parts += instances
            owners += [owner] * len(instances)
        places = [np.cumsum([1, *map(len, part)])[:-1].astype(np.int64) for part in parts]
        rows = [[cls, *itertools.chain(*part), sep] for part in parts]
        features = Features.of((row, len(row)) for row in rows)
        of_tokens = None
        if tags is not None:
            of_tokens = np.full(len(features.ids), NO_TAG)
            firsts = np.concatenate([start + place for start, place in zip(features.starts, places)])
            of_tokens[firsts] = list(itertools.chain(*tags))
        return dataclasses.replace(features, tags=of_tokens, texts=np.array(owners), words=places)

    return read
