"""A WordPiece vocabulary, one token per line on disk, and the tokenizer of it."""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
import re
import string
import unicodedata
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

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


log = logging.getLogger(__name__)

SPECIAL_TOKENS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
CONTINUATION = '##'
_LONGEST_WORD = 200  # characters; a longer one is [UNK], as in GluonNLP's tokenizer
_WORD_CACHE = 2**17  # entries
_SPECIAL = re.compile(r'\[.+\]|<.+>', re.DOTALL)
_CASING = {True: 'a cased', False: 'an uncased'}


class Vocabulary:
    """Tokens and their numbers. GluonNLP's tokenizer and transforms take it in place of their `BERTVocab`.

    `idx_to_token` is the list of tokens, `token_to_idx` a dict of their numbers. `vocabulary[token]` is the
    number of a token, that of [UNK] for an unknown one; `vocabulary[tokens]` is a list of numbers.

    Parameters
    ----------
    tokens : sequence of str
        All different, the special tokens among them; see `vocabulary_of`.
    """

    padding_token, unknown_token, cls_token, sep_token, mask_token = SPECIAL_TOKENS

    def __init__(self, tokens: Sequence[str]):
        self.idx_to_token: List[str] = list(tokens)
        self.token_to_idx: Dict[str, int] = {token: number for number, token in enumerate(self.idx_to_token)}

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def __contains__(self, token: object) -> bool:
        return token in self.token_to_idx

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.idx_to_token == other.idx_to_token

    def __getitem__(self, tokens: Union[str, Sequence[str]]) -> Union[int, List[int]]:
        unknown = self.token_to_idx[self.unknown_token]
        if isinstance(tokens, str):
            return self.token_to_idx.get(tokens, unknown)
        return [self.token_to_idx.get(token, unknown) for token in tokens]

    def to_indices(self, tokens: Union[str, Sequence[str]]) -> Union[int, List[int]]:
        """The number of a token, or those of several."""
        return self[tokens]

    __call__ = to_indices

    def to_tokens(self, indices: Union[int, Sequence[int]]) -> Union[str, List[str]]:
        """The token of a number, or those of several.

        Raises
        ------
        ValueError
            If a number is negative or beyond the last token.
        """
        numbers = [indices] if isinstance(indices, int) else list(indices)
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise ValueError(f'no token has the number {wrong[0]}; there are {len(self)}')
        return (
            self.idx_to_token[indices]
            if isinstance(indices, int)
            else [self.idx_to_token[i] for i in numbers]
        )


def vocabulary_of(tokens: Sequence[str], *, source: str = 'vocabulary') -> Vocabulary:
    """The vocabulary in which token i of `tokens` has the index i.

    Raises
    ------
    ValueError
        If it is empty, a token is empty or occurs twice, or a special token is missing; `source` is named.
    """
    if not tokens:
        raise ValueError(f'{source}: is empty; a vocabulary has one token per line')
    token_to_idx: dict = {}
    for i, token in enumerate(tokens):
        if not token.strip(string.whitespace):  # BERT's Chinese vocabulary has a line separator, U+2028
            raise ValueError(
                f'{source}: line {i + 1} is blank, and every line is the index of a token; put a token '
                'there, or remove the line if no network was trained with it'
            )
        if token in token_to_idx:
            raise ValueError(
                f'{source}: {token!r} is on line {token_to_idx[token] + 1} and on line {i + 1}; '
                'a token has one line'
            )
        token_to_idx[token] = i
    missing = [token for token in SPECIAL_TOKENS if token not in token_to_idx]
    if missing:
        raise ValueError(
            f'{source}: {" ".join(missing)} missing; pre-training needs {" ".join(SPECIAL_TOKENS)}, '
            'so take a BERT WordPiece vocabulary, or add them as lines'
        )
    return Vocabulary(tokens)


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a file of one token per line, in the file's order.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is not UTF-8, or `vocabulary_of` refuses its tokens.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such vocabulary file; it has one token per line')
    try:
        text = path.read_bytes().decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path}: not UTF-8 at byte {error.start}; convert it, or give the right file'
        ) from error
    lines = text.replace('\r\n', '\n').split('\n')  # not splitlines: a token may be a Unicode line separator
    if lines[-1] == '':
        lines.pop()
    return vocabulary_of(lines, source=str(path))


def vocabulary_bytes(vocab: Vocabulary) -> bytes:
    """The file that `read_vocabulary` reads back as `vocab`."""
    return ''.join(f'{token}\n' for token in vocab.idx_to_token).encode('utf-8')


def write_vocabulary(vocab: Vocabulary, path: Path) -> None:
    """Write `vocab` as one token per line."""
    Path(path).write_bytes(vocabulary_bytes(vocab))


def vocabulary_hash(vocab: Vocabulary) -> str:
    """The SHA-256 (hexadecimal) of the tokens in their order."""
    return hashlib.sha256(vocabulary_bytes(vocab)).hexdigest()


def casing_of(vocab: Vocabulary) -> Tuple[Optional[bool], str]:
    """Whether a vocabulary is cased, None if it cannot be told, and what says so.

    Special tokens such as ``[unused1]`` and ``<S>`` aside, one capital makes it cased, and small letters
    without one uncased. Scripts without capitals are told by their marks: uncased text has か for が.
    """
    cased, witnesses = casing_witnesses(vocab)
    number = f'{sum(not is_special(token) for token in vocab.idx_to_token):,}'
    if cased:
        kind = 'capitals' if witnesses[0] != witnesses[0].lower() else 'accents'
        return True, f'{len(witnesses):,} of its {number} tokens have {kind}, such as {witnesses[0]}'
    if cased is False:
        return False, f'none of its {number} tokens has a capital'
    return None, f'none of its {number} tokens has a letter with a capital or an accent'


def casing_witnesses(vocab: Vocabulary) -> Tuple[Optional[bool], List[str]]:
    """Whether a vocabulary is cased, as `casing_of` says, and the tokens by which this is told."""
    words = [token for token in vocab.idx_to_token if not is_special(token)]
    capitals = [token for token in words if token != token.lower()]
    if capitals:
        return True, capitals
    small = [token for token in words if token != token.upper()]
    if small:
        return False, small
    fold = word_splitter(cased=False)
    marked = [token for token in words if not token.isascii() and ''.join(fold(token)) != token]
    return (True, marked) if marked else (None, [])


def is_special(token: str) -> bool:
    """Whether a token is no text but a sign, such as ``[CLS]``, ``[unused1]`` and ``<S>``."""
    return _SPECIAL.fullmatch(token) is not None


def is_cased(vocab: Vocabulary, stated: Optional[bool] = None, *, source: object = 'the vocabulary') -> bool:
    """Whether text keeps its capitals and accents for this vocabulary; it loses both otherwise.

    The vocabulary decides. Where it says nothing `stated` does; without that it is no, and a warning says so.

    Parameters
    ----------
    vocab : Vocabulary
    stated : bool, optional
        What the user says.
    source : object
        What messages call the vocabulary.

    Raises
    ------
    ValueError
        If `stated` contradicts the vocabulary.
    """
    cased, evidence = casing_of(vocab)
    if cased is None:
        if stated is None:
            log.warning(
                '%s: %s, so text is lower-cased; --cased keeps capitals and accents', source, evidence
            )
        return bool(stated)
    if stated is not None and stated != cased:
        raise ValueError(
            f'{source}: {evidence}, so it is {_CASING[cased]} vocabulary, which --cased '
            f'{str(stated).lower()} contradicts; leave --cased out, or take {_CASING[stated]} vocabulary'
        )
    return cased


def make_tokenizer(vocab: Vocabulary, *, cased: Optional[bool] = None) -> Callable[[str], List[int]]:
    """A function text → token ids, those of BERT's program and about twice as fast as GluonNLP's on English.

    Uncased, it equals GluonNLP's BERT tokenizer; cased, that of `tokenizers`, since GluonNLP's takes accents
    off cased text too. The vocabulary decides which it is, or `cased` where that says nothing: `is_cased`.
    The ids of a word are remembered.
    """
    cased = is_cased(vocab, cased)
    split, pieces_of = fast_word_splitter(cased=cased), piece_splitter(vocab)
    token_to_idx = vocab.token_to_idx

    @functools.lru_cache(maxsize=_WORD_CACHE)
    def word_ids(word: str) -> Tuple[int, ...]:
        return tuple(token_to_idx[piece] for piece in pieces_of(word))

    def tokenize(text: str) -> List[int]:
        ids: List[int] = []
        for word in split(text):
            ids += word_ids(word)
        return ids

    return tokenize


def make_aligner(
    vocab: Vocabulary, *, cased: Optional[bool] = None
) -> Callable[[str], Tuple[List[int], List[int], List[int]]]:
    """A function text → token ids, and where in the text each token begins and ends; the ids are the
    tokenizer's.

    ``text[begin:end]`` is what a token stands for, with the accents that are dropped from uncased text. Both
    positions never decrease. A character of which several tokens are made, such as a Hangul syllable, belongs
    to each of them; [UNK] has its whole word."""
    cased = is_cased(vocab, cased)
    split_any, pieces_of = word_splitter(cased=cased), piece_splitter(vocab)
    token_to_idx = vocab.token_to_idx

    @functools.lru_cache(maxsize=_WORD_CACHE)
    def word_pieces(word: str) -> Tuple[Tuple[int, int], ...]:
        """Ids and lengths."""
        pieces = pieces_of(word)
        if pieces == ['[UNK]']:
            return ((token_to_idx['[UNK]'], len(word)),)
        return tuple((token_to_idx[piece], len(piece) - 2 * (i > 0)) for i, piece in enumerate(pieces))

    def align(text: str) -> Tuple[List[int], List[int], List[int]]:
        words, (begins, ends) = split_any(text), origins(text, cased)
        assert sum(map(len, words)) == len(begins)
        ids, firsts, lasts, place = [], [], [], 0
        for word in words:
            for token, length in word_pieces(word):
                ids.append(token)
                firsts.append(begins[place])
                lasts.append(ends[place + length - 1])
                place += length
        return ids, firsts, lasts

    return align


def piece_splitter(vocab: Vocabulary) -> Callable[[str], List[str]]:
    """A function word → pieces, those of `tokenizers`: the longest piece first, or [UNK] alone."""
    from tokenizers import models

    model = models.WordPiece(
        dict(vocab.token_to_idx), unk_token=vocab.unknown_token, max_input_chars_per_word=_LONGEST_WORD
    )

    def pieces_of(word: str) -> List[str]:
        try:
            return [piece.value for piece in model.tokenize(word)]
        except UnicodeEncodeError:  # half a surrogate pair, which is in no vocabulary
            return [vocab.unknown_token]

    return pieces_of


def train_wordpiece(
    texts: Iterable[str], size: int, *, cased: bool = False, min_frequency: int = 2
) -> Vocabulary:
    """A WordPiece vocabulary of at most `size` tokens learnt from `texts`; the same texts give the same
    vocabulary.

    The special tokens come first, then the characters. A merge needs `min_frequency` occurrences.

    Raises
    ------
    ValueError
        If there is no text, or `size` cannot hold the special tokens and a few characters.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    split_words = word_splitter(cased=cased)
    counts: collections.Counter = collections.Counter()
    for text in texts:
        counts.update(word for word in split_words(text) if len(word) <= _LONGEST_WORD)
    if not counts:
        raise ValueError('no text to learn a vocabulary from')
    alphabet = _alphabet(counts, most=(size - len(SPECIAL_TOKENS)) // 4)
    if not alphabet:
        raise ValueError(
            f'a vocabulary of {size} tokens holds no characters beside {" ".join(SPECIAL_TOKENS)}; '
            'ask for some hundreds at least'
        )
    # The library numbers the continuation characters in an order that differs between runs, and ties between
    # merges go by number, so both are given to it as tokens whose numbers are known.
    first = [*SPECIAL_TOKENS, *alphabet, *(CONTINUATION + character for character in alphabet)]
    known = set(alphabet)
    tokenizer = Tokenizer(models.WordPiece(unk_token='[UNK]', max_input_chars_per_word=_LONGEST_WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        show_progress=False,
        special_tokens=first,
        initial_alphabet=[],
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=CONTINUATION,
    )
    spelt = {word: count for word, count in counts.items() if known.issuperset(word)}
    tokenizer.train_from_iterator(_repeated(spelt), trainer)
    learnt = tokenizer.get_vocab()
    return vocabulary_of(sorted(learnt, key=learnt.__getitem__), source='learnt vocabulary')


def _alphabet(counts: collections.Counter, *, most: int) -> List[str]:
    """The `most` commonest characters, in the order of their code points."""
    characters: collections.Counter = collections.Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    commonest = sorted(characters, key=lambda character: (-characters[character], character))
    return sorted(commonest[: max(most, 0)])


def _repeated(counts: dict, line: int = 1000) -> Iterator[str]:
    """Lines in which every word occurs as often as `counts` says."""
    for word in sorted(counts):
        for done in range(0, counts[word], line):
            yield ' '.join([word] * min(line, counts[word] - done))
