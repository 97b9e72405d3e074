"""The words of a text, as BERT's basic tokenizer splits it, and where their characters stand."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Callable, List, Tuple

_PUNCTUATION = frozenset('!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~')
_ASCII_WORDS = re.compile('[A-Za-z0-9]+|[^A-Za-z0-9 ]')
# the blocks whose characters are words of their own, first and last code point
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def word_splitter(*, cased: bool, capitals: bool = False) -> Callable[[str], List[str]]:
    """A function text → words and punctuation marks: BERT's basic tokenizer.

    Cased, capitals and accents stay as they are written. Uncased, both are taken away, as GluonNLP does it;
    with `capitals` only accents are.
    """
    if cased:
        spaced = _spaced_characters()
        return lambda text: text.translate(spaced).split()
    cleaned, separated = _cleaned_characters(), _separated_marks()

    def split(text: str) -> List[str]:
        text = text.translate(cleaned)
        text = text if capitals else text.lower()
        return unicodedata.normalize('NFD', text).translate(separated).split()

    return split


def fast_word_splitter(*, cased: bool) -> Callable[[str], List[str]]:
    """The function of `word_splitter`, faster: in printable ASCII, a regular expression finds the words."""
    split_any = word_splitter(cased=cased)

    def split(text: str) -> List[str]:
        if text.isascii() and text.isprintable():
            return _ASCII_WORDS.findall(text if cased else text.lower())
        return split_any(text)

    return split


class _CleanedCharacters(dict):
    """A table for `str.translate`: control characters are dropped, a space of any kind is one, and a Chinese
    character stands between spaces.
    """

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if character in ' \t\n\r' or category == 'Zs':
            cleaned = ' '
        elif category in ('Cc', 'Cf') or character == '\ufffd':
            cleaned = ''
        elif any(first <= code <= last for first, last in _CHINESE):
            cleaned = f' {character} '
        else:
            cleaned = character
        self[code] = cleaned
        return cleaned


class _SeparatedMarks(dict):
    """A table for `str.translate`: non-spacing marks are dropped, and punctuation stands between spaces."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category == 'Mn':
            separated = ''
        elif character in _PUNCTUATION or category.startswith('P'):
            separated = f' {character} '
        else:
            separated = character
        self[code] = separated
        return separated


class _SpacedCharacters(dict):
    """A table for `str.translate`, after which the words of cased text stand between spaces.

    Each character is looked up once, in `tokenizers`: it is dropped (a control character), is a space, stands
    for itself (punctuation, a Chinese character), or is part of a word."""

    def __init__(self) -> None:
        from tokenizers import normalizers, pre_tokenizers

        super().__init__()
        self._clean = normalizers.BertNormalizer(lowercase=False, strip_accents=False).normalize_str
        self._split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.category(character) == 'Cs':  # half a surrogate pair, which `tokenizers` does not take
            spaced = character
        else:
            spaced = ' '.join(word for word, _ in self._split(self._clean(f'a{character}a')))[1:-1]
        self[code] = spaced
        return spaced


_spaced_characters = functools.lru_cache(maxsize=None)(_SpacedCharacters)
_cleaned_characters = functools.lru_cache(maxsize=None)(_CleanedCharacters)
_separated_marks = functools.lru_cache(maxsize=None)(_SeparatedMarks)


def origins(text: str, cased: bool) -> Tuple[List[int], List[int]]:
    """Where every character of the words of `word_splitter` comes from: begins and ends in the text."""
    if cased:
        spaced = _spaced_characters()
        begins = [i for i, character in enumerate(text) if spaced[ord(character)].strip()]
    elif text.isascii():
        begins = [
            i for i, character in enumerate(text) if not character.isspace() and character.isprintable()
        ]
    else:
        return _folded_origins(text)
    return begins, [i + 1 for i in begins]


def _folded_origins(text: str) -> Tuple[List[int], List[int]]:
    """`origins` of uncased text.

    The tokenizer drops control characters, folds case, decomposes and drops non-spacing marks. Character by
    character that gives as many characters as on the whole text: what looks at neighbours (the final sigma,
    the order of marks) changes no count."""
    begins: List[int] = []
    ends: List[int] = []
    for i, character in enumerate(text):
        if character == '\ufffd' or (unicodedata.category(character) in ('Cc', 'Cf')) or character.isspace():
            continue
        plain = unicodedata.normalize('NFD', character.lower())
        left = sum(1 for part in plain if unicodedata.category(part) != 'Mn' and not part.isspace())
        if left:
            begins += [i] * left
            ends += [i + 1] * left
        elif ends and ends[-1] == i:
            ends[-1] = i + 1
    return begins, ends
