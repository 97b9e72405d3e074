"""A vocabulary without the tokens that a text does not need, how words split with it, and the record of it in
a model directory: ``trim.json``."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from ..runs.files import checked, read_json
from .tokenizer import (
    CONTINUATION,
    Vocabulary,
    casing_witnesses,
    is_special,
    piece_splitter,
    settings_of,
    vocabulary_of,
    word_splitter,
)

_UNUSED = re.compile(r'\[unused\d+\]')
TRIM = 'trim.json'
FORMAT = 'gluon_optbert trimmed vocabulary'
VERSION = 1
EXAMPLES = 10  # words that are shown


def count_words(texts: Iterable[str], vocab: Vocabulary) -> collections.Counter:
    """Counts of the words of some texts; words are those that the vocabulary's tokenizer splits."""
    split = word_splitter(settings_of(vocab))
    words: collections.Counter = collections.Counter()
    for text in texts:
        words.update(split(text))
    return words


def trimmed_vocabulary(vocab: Vocabulary, words: Mapping[str, int], *, count: int = 1) -> Vocabulary:
    """The tokens of a vocabulary that a text needs, in their order.

    These stay: added and special tokens, but not those such as [unused1]; single characters, at the beginning
    of a word and inside; tokens with at least `count` uses in the text. The other tokens go, the longest ones
    first. The words that had one are split anew before shorter tokens are looked at, so a token stays, too,
    if `count` of these words need it. One token that tells the casing stays in any case. Words are those of
    `count_words`.
    """
    splitting = _Splitting(words)
    splitting.renew(words, vocab)
    used = {token for token, uses in splitting.uses.items() if uses >= count}
    signs = {token for token in vocab.idx_to_token if is_special(token) and not _UNUSED.fullmatch(token)}
    kept = signs | used | {token for token in vocab.idx_to_token if len(_spelling(token)) == 1}
    kept |= {token.content for token in vocab.settings.added_tokens} if vocab.settings else set()
    witnesses = casing_witnesses(vocab)[1]
    if witnesses and kept.isdisjoint(witnesses):
        kept |= {witnesses[0]}
    by_length: dict[int, list[str]] = collections.defaultdict(list)
    for token in vocab.idx_to_token:
        if token not in kept:
            by_length[len(_spelling(token))].append(token)
    left = vocab
    for length in sorted(by_length, reverse=True):
        rare = {token for token in by_length[length] if splitting.uses[token] < count}
        tokens = [token for token in left.idx_to_token if token not in rare]
        left = vocabulary_of(tokens, settings=left.settings)
        splitting.renew(sorted(set().union(*(splitting.holders[token] for token in rare))), left)
    return left


def _spelling(token: str) -> str:
    """The characters that a token stands for."""
    return token.removeprefix(CONTINUATION) or token


class _Splitting:
    """Splits of the words of a text while tokens are taken out of the vocabulary."""

    def __init__(self, words: Mapping[str, int]):
        self._words = words
        self._pieces: dict[str, tuple[str, ...]] = {}
        self.holders: dict[str, set[str]] = collections.defaultdict(set)  # words by the tokens in them
        self.uses: collections.Counter = collections.Counter()

    def renew(self, words: Iterable[str], vocab: Vocabulary) -> None:
        """Split some words, perhaps anew."""
        pieces_of = piece_splitter(vocab)
        for word in words:
            for piece in self._pieces.get(word, ()):
                self.uses[piece] -= self._words[word]
                self.holders[piece].discard(word)
            self._pieces[word] = tuple(pieces_of(word))
            for piece in self._pieces[word]:
                self.uses[piece] += self._words[word]
                self.holders[piece].add(word)


@dataclasses.dataclass(frozen=True)
class SplitWord:
    """A word of a text, how often it occurs, and its tokens before and after a vocabulary was trimmed."""

    word: str
    uses: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Splits:
    """Splits of the words of a text, every occurrence counted, with a whole vocabulary and with a part of it.

    Words of examples are the most frequent ones that had a token that is gone."""

    words: int
    tokens: int
    tokens_after: int
    tokens_gone: int  # those of `tokens` that the part lacks
    unknown: int  # words that are [UNK]
    unknown_after: int
    examples: tuple[SplitWord, ...]
    now_unknown: tuple[SplitWord, ...]  # examples that are [UNK] with the part alone

    @property
    def share(self) -> float:
        """The share of the text's tokens that are gone, so that they split; 0 of no text."""
        return self.tokens_gone / self.tokens if self.tokens else 0.0


def compare_splits(words: Mapping[str, int], before: Vocabulary, after: Vocabulary) -> Splits:
    """Splits of the words of `count_words` with a whole vocabulary and with a part of it."""
    split_before, split_after = piece_splitter(before), piece_splitter(after)
    unknown = (before.unknown_token,)
    counts: collections.Counter = collections.Counter()
    changed: list[SplitWord] = []
    for word, uses in words.items():
        old, new = tuple(split_before(word)), tuple(split_after(word))
        gone = sum(token not in after for token in old)
        counts.update(
            words=uses,
            tokens=uses * len(old),
            tokens_after=uses * len(new),
            tokens_gone=uses * gone,
            unknown=uses * (old == unknown),
            unknown_after=uses * (new == unknown),
        )
        if gone:
            changed.append(SplitWord(word, uses, old, new))
    changed.sort(key=lambda one: (-one.uses, one.word))
    names = ('words', 'tokens', 'tokens_after', 'tokens_gone', 'unknown', 'unknown_after')
    return Splits(
        **{name: counts[name] for name in names},
        examples=tuple(one for one in changed if one.after != unknown)[:EXAMPLES],
        now_unknown=tuple(one for one in changed if one.after == unknown)[:EXAMPLES],
    )


class TrimRecord(BaseModel, frozen=True):
    """Record of a trimmed vocabulary."""

    format: Literal['gluon_optbert trimmed vocabulary'] = FORMAT
    version: Literal[1] = VERSION
    recipe: dict[str, Any]  # among it ``model``, the directory of the whole network, and ``text``
    model_sha256: str  # of the ``model.params`` of the whole network
    tokens: tuple[int, int]  # before and after
    parameters: tuple[int, int]  # of embeddings and encoder, before and after
    splits: dict[str, Any]  # of the text, as `Splits` has it, and its ``share``
    origin: dict[str, Any]  # the commit and the versions of what trimmed it

    @model_validator(mode='after')
    def _check_recipe(self) -> TrimRecord:
        if not (isinstance(self.recipe.get('model'), str) and self.recipe.get('text')):
            raise ValueError('the recipe names no model or no text')
        return self

    def to_bytes(self) -> bytes:
        """The file."""
        text = json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + '\n'
        return text.encode('utf-8', 'backslashreplace')

    @property
    def model(self) -> Path:
        """Directory of the whole network."""
        return Path(self.recipe['model'])

    @property
    def text(self) -> tuple[Path, ...]:
        """The files and directories of text."""
        return tuple(map(Path, self.recipe['text']))


def read_trim_record(directory: Path) -> TrimRecord:
    """The record in a model directory; FileNotFoundError or ValueError if there is none that is right."""
    path = Path(directory) / TRIM
    return checked(TrimRecord, read_json(path), source=path)
