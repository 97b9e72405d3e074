"""A WordPiece vocabulary, one token per line on disk, and BERT's tokenizer of it, made by `tokenizers`.

A vocabulary may have settings of its tokenizer, in a file beside it. Without them the casing of its tokens
decides, and uncased ids equal those of GluonNLP's tokenizer, but for characters that only newer versions of
Unicode call marks, punctuation or invisible, and for private ones, which are dropped. Cased text keeps its
accents, which GluonNLP's takes off.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import logging
import re
import string
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import tokenizers
from pydantic import BaseModel, ConfigDict, PositiveInt
from tokenizers import models, normalizers, pre_tokenizers, trainers

from ..runs.files import checked, decoded, read_json

log = logging.getLogger(__name__)

SPECIAL_TOKENS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
# by Transformers' names
SPECIAL = {f'{name}_token': f'[{name.upper()}]' for name in ('unk', 'sep', 'pad', 'cls', 'mask')}
CONTINUATION = '##'
SETTINGS = 'tokenizer_settings.json'  # beside a vocabulary, where its tokens do not say how text is read
_LONGEST_WORD = 200  # characters; a longer one is [UNK], as in GluonNLP's tokenizer
_WORD_CACHE = 2**17  # entries
_SPECIAL = re.compile(r'\[.+\]|<.+>', re.DOTALL)
_CASING = {True: 'a cased', False: 'an uncased'}
_ASCII_WORDS = re.compile('[A-Za-z0-9]+|[^A-Za-z0-9 ]')
_SURROGATES = re.compile('[\ud800-\udfff]')


class AddedToken(BaseModel):
    """A token that is looked for in a text before its words are split. The flags but the last are those of
    `tokenizers`.
    """

    model_config = ConfigDict(frozen=True, extra='forbid')

    content: str
    single_word: bool = False  # found only where no letter or digit touches it
    lstrip: bool = False  # takes the white space before it
    rstrip: bool = False  # and behind it
    normalized: bool = True  # found in the normalized text, with or without capitals
    special: bool = False  # no text, for whoever turns tokens into text
    piece: bool = True  # words may be split into it, too; else it is among the last of its vocabulary


class TokenizerSettings(BaseModel):
    """Settings of how text is read before its words are split into the tokens of a vocabulary."""

    model_config = ConfigDict(frozen=True, extra='forbid')

    lowercase: bool
    strip_accents: bool
    clean_text: bool = True  # drops control characters
    handle_chinese_chars: bool = True  # makes every Chinese character a word
    # lower-casing makes a final sigma at the end of a word, as in BERT's own program and not in `tokenizers`
    final_sigma: bool = True
    max_input_chars_per_word: PositiveInt = _LONGEST_WORD  # a longer word is [UNK]
    added_tokens: tuple[AddedToken, ...] = ()
    as_is: str = ''  # where the checkpoint's own tokenizer reads text otherwise, if it was imported so

    def normalizer(self) -> normalizers.Normalizer:
        """The one of `tokenizers`."""
        names = ('clean_text', 'handle_chinese_chars', 'strip_accents', 'lowercase')
        return normalizers.BertNormalizer(**{name: getattr(self, name) for name in names})


@dataclasses.dataclass(repr=False)
class Vocabulary:
    """Tokens and their numbers. GluonNLP's tokenizer and transforms take it in place of their `BERTVocab`.

    `token_to_idx` is a dict of their numbers. `vocabulary[token]` is the number of a token, that of [UNK] for
    an unknown one; `vocabulary[tokens]` is a list of numbers.
    """

    idx_to_token: list[str]  # all different, the special tokens among them; see `vocabulary_of`
    settings: TokenizerSettings | None = None  # without them the tokens say how text is read: `settings_of`

    padding_token, unknown_token, cls_token, sep_token, mask_token = SPECIAL_TOKENS

    def __post_init__(self) -> None:
        self.token_to_idx = {token: number for number, token in enumerate(self.idx_to_token)}

    @property
    def as_is(self) -> str:
        """Differences from the tokenizer of an imported checkpoint."""
        return self.settings.as_is if self.settings else ''

    def __len__(self) -> int:
        return len(self.idx_to_token)

    def __contains__(self, token: object) -> bool:
        return token in self.token_to_idx

    def __getitem__(self, tokens: str | Sequence[str]) -> int | list[int]:
        unknown = self.token_to_idx[self.unknown_token]
        if isinstance(tokens, str):
            return self.token_to_idx.get(tokens, unknown)
        return [self.token_to_idx.get(token, unknown) for token in tokens]

    __call__ = to_indices = __getitem__

    def to_tokens(self, indices: int | Sequence[int]) -> str | list[str]:
        """The token of a number, or those of several; ValueError if there is no such token."""
        numbers = [indices] if isinstance(indices, int) else list(indices)
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise ValueError(f'no token has the number {wrong[0]}; there are {len(self)}')
        tokens = [self.idx_to_token[number] for number in numbers]
        return tokens[0] if isinstance(indices, int) else tokens


def vocabulary_of(
    tokens: Sequence[str], *, settings: TokenizerSettings | None = None, source: str = 'vocabulary'
) -> Vocabulary:
    """The vocabulary in which token i of `tokens` has the index i; ValueError, with the source, if it is
    empty, a token is empty or occurs twice, a special token is missing, or an added token has no number, or
    not the one that `tokenizers` gives it.
    """
    if not tokens:
        raise ValueError(f'{source}: is empty; a vocabulary has one token per line')
    lines: dict[str, int] = {}
    for line, token in enumerate(tokens, 1):
        if not token.strip(string.whitespace):  # BERT's Chinese vocabulary has a line separator, U+2028
            raise ValueError(
                f'{source}: line {line} is blank, and every line is the index of a token; put a token there, '
                'or remove the line if no network was trained with it'
            )
        if lines.setdefault(token, line) != line:
            raise ValueError(f'{source}: {token!r} is on line {lines[token]} and on line {line}; keep one')
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise ValueError(
            f'{source}: {" ".join(missing)} missing; pre-training needs {" ".join(SPECIAL_TOKENS)}, '
            'so take a BERT WordPiece vocabulary, or add them as lines'
        )
    added = settings.added_tokens if settings else ()
    absent = [token.content for token in added if token.content not in lines]
    last = [token.content for token in added if not token.piece]
    if absent or last != list(tokens[len(tokens) - len(last) :]):
        raise ValueError(
            f'{source}: the added tokens {", ".join(map(repr, absent or last)):.200} are not '
            f'{"among its tokens" if absent else "its last ones, in their order"}'
        )
    return Vocabulary(list(tokens), settings)


def read_vocabulary(path: Path, *, files: Collection[str] | None = None) -> Vocabulary:
    """The vocabulary in a file of one token per line, in the file's order, with the settings beside it if
    they are among `files`, by default all. FileNotFoundError or ValueError if there is no such file, it is
    not UTF-8, or `vocabulary_of` refuses its tokens.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such vocabulary file; it has one token per line')
    # not splitlines: a token may be a Unicode line separator
    lines = decoded(path).replace('\r\n', '\n').split('\n')
    if lines[-1] == '':
        lines.pop()
    beside, settings = path.with_name(SETTINGS), None
    if beside.is_file() and (files is None or SETTINGS in files):
        settings = checked(TokenizerSettings, read_json(beside), source=beside)
    return vocabulary_of(lines, settings=settings, source=str(path))


def vocabulary_bytes(vocab: Vocabulary) -> bytes:
    """The tokens, one per line."""
    return ''.join(f'{token}\n' for token in vocab.idx_to_token).encode('utf-8')


def settings_bytes(vocab: Vocabulary) -> bytes:
    """The content of the file of settings; nothing without settings."""
    values = vocab.settings and vocab.settings.model_dump(mode='json')
    return json.dumps(values, indent=1).encode('utf-8') + b'\n' if values else b''


def write_vocabulary(vocab: Vocabulary, path: Path) -> None:
    """Write `vocab` as one token per line, and its settings, if it has some, beside that."""
    Path(path).write_bytes(vocabulary_bytes(vocab))
    if vocab.settings:
        Path(path).with_name(SETTINGS).write_bytes(settings_bytes(vocab))


def vocabulary_hash(vocab: Vocabulary) -> str:
    """The SHA-256 (hexadecimal) of the tokens in their order, and of the settings."""
    return hashlib.sha256(vocabulary_bytes(vocab) + settings_bytes(vocab)).hexdigest()


def casing_of(vocab: Vocabulary) -> tuple[bool | None, str]:
    """Whether a vocabulary is cased, None if it cannot be told, and what says so.

    Its settings say it. Without them, special tokens such as ``[unused1]`` and ``<S>`` aside, one capital
    makes it cased, and small letters without one uncased. Scripts without capitals are told by their marks:
    uncased text has か for が.
    """
    if vocab.settings:
        return not vocab.settings.lowercase, f'{SETTINGS} has lowercase: {vocab.settings.lowercase}'
    cased, witnesses = casing_witnesses(vocab)
    number = f'{sum(not is_special(token) for token in vocab.idx_to_token):,}'
    if cased:
        kind = 'capitals' if witnesses[0] != witnesses[0].lower() else 'accents'
        return True, f'{len(witnesses):,} of its {number} tokens have {kind}, such as {witnesses[0]}'
    if cased is False:
        return False, f'none of its {number} tokens has a capital'
    return None, f'none of its {number} tokens has a letter with a capital or an accent'


def casing_witnesses(vocab: Vocabulary) -> tuple[bool | None, list[str]]:
    """Whether a vocabulary is cased, as `casing_of` says, and the tokens by which this is told."""
    words = [token for token in vocab.idx_to_token if not is_special(token)]
    capitals = [token for token in words if token != token.lower()]
    if capitals:
        return True, capitals
    small = [token for token in words if token != token.upper()]
    if small:
        return False, small
    fold = word_splitter(TokenizerSettings(lowercase=True, strip_accents=True))
    marked = [token for token in words if not token.isascii() and ''.join(fold(token)) != token]
    return (True, marked) if marked else (None, [])


def is_special(token: str) -> bool:
    """Whether a token is no text but a sign, such as ``[CLS]``, ``[unused1]`` and ``<S>``."""
    return _SPECIAL.fullmatch(token) is not None


def is_cased(vocab: Vocabulary, stated: bool | None = None, *, source: object = 'the vocabulary') -> bool:
    """Whether text keeps its capitals and accents for this vocabulary; it loses both otherwise.

    The vocabulary decides. Where it says nothing `stated` does, by the user; without that it is no, and a
    warning says so. ValueError, with the name `source`, if `stated` contradicts the vocabulary.
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


def settings_of(vocab: Vocabulary, cased: bool | None = None) -> TokenizerSettings:
    """Settings of how text is read for a vocabulary: its own, or else those that its casing makes up;
    ValueError as of `is_cased`.
    """
    cased = is_cased(vocab, cased)
    return vocab.settings or TokenizerSettings(lowercase=not cased, strip_accents=not cased)


def _readable(text: str, settings: TokenizerSettings) -> str:
    """A text of as many characters that `tokenizers` takes.

    Half a surrogate pair becomes a sign that no vocabulary has, and a capital sigma the small one of its
    place in a word, on request: `tokenizers` does not look at what follows.
    """
    if text.isascii():
        return text
    text = _SURROGATES.sub('\U0001d800', text)
    if settings.lowercase and settings.final_sigma and 'Σ' in text:
        lowered = text.replace('İ', 'I').lower()
        text = ''.join(small if large == 'Σ' else large for large, small in zip(text, lowered))
    return text


def word_splitter(settings: TokenizerSettings) -> Callable[[str], list[str]]:
    """A function text → words, punctuation marks and added tokens: BERT's basic tokenizer."""
    normalize = settings.normalizer().normalize_str
    separate = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    may_have_added = _finder(settings)
    # it finds the added tokens, and no other word
    finder = _pipeline(settings, models.WordPiece({'': 0}, unk_token='', max_input_chars_per_word=0))
    added = finder.get_added_tokens_decoder()

    def split(text: str) -> list[str]:
        if may_have_added(text):
            text = _readable(text, settings)
            encoding = finder.encode(text, add_special_tokens=False)
            return [
                added[number].content if number else normalize(text[begin:end]).strip()
                for number, (begin, end) in zip(encoding.ids, encoding.offsets)
            ]
        if text.isascii() and text.isprintable():  # the same, three times as fast
            return _ASCII_WORDS.findall(text.lower() if settings.lowercase else text)
        return [word for word, _ in separate(normalize(_readable(text, settings)))]

    return split


def _finder(settings: TokenizerSettings) -> Callable[[str], object]:
    """A function text → whether it may have an added token; what is found in normalized text may be
    anywhere.
    """
    added = settings.added_tokens
    if any(token.normalized for token in added):
        return lambda text: True
    pattern = '|'.join(re.escape(token.content) for token in added)
    return re.compile(pattern).search if added else lambda text: False


def piece_splitter(vocab: Vocabulary) -> Callable[[str], list[str]]:
    """A function word → pieces: the longest piece first, or [UNK] alone; an added token is one."""
    model, settings = _word_pieces(vocab), vocab.settings
    added = {token.content for token in settings.added_tokens} if settings else ()
    return lambda word: [word] if word in added else [piece.value for piece in model.tokenize(word)]


def _word_pieces(vocab: Vocabulary) -> models.WordPiece:
    settings = vocab.settings
    longest, added = (
        (settings.max_input_chars_per_word, settings.added_tokens) if settings else (_LONGEST_WORD, ())
    )
    whole = {token.content for token in added if not token.piece}
    pieces = {token: number for token, number in vocab.token_to_idx.items() if token not in whole}
    return models.WordPiece(pieces, unk_token=vocab.unknown_token, max_input_chars_per_word=longest)


def _pipeline(settings: TokenizerSettings, model: models.Model) -> tokenizers.Tokenizer:
    """The tokenizer of `tokenizers` with some settings."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = settings.normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    add_tokens(tokenizer, settings.added_tokens)
    return tokenizer


def add_tokens(tokenizer: tokenizers.Tokenizer, tokens: Iterable[AddedToken]) -> None:
    """Add tokens to a tokenizer of `tokenizers`, all at once, for each call takes longer the more it has."""
    tokenizer.add_tokens([tokenizers.AddedToken(**token.model_dump(exclude={'piece'})) for token in tokens])


def make_tokenizer(vocab: Vocabulary, *, cased: bool | None = None) -> Callable[[str], list[int]]:
    """A function text → token ids; text is read as `settings_of` says.

    The ids of a word are remembered, which is three times as fast on long texts without added tokens.
    """
    settings = settings_of(vocab, cased)
    may_have_added, whole = _finder(settings), _encoder(vocab, settings)
    split, model = word_splitter(settings.model_copy(update={'added_tokens': ()})), _word_pieces(vocab)

    @functools.lru_cache(maxsize=_WORD_CACHE)
    def word_ids(word: str) -> list[int]:
        return [piece.id for piece in model.tokenize(word)]

    def tokenize(text: str) -> list[int]:
        if may_have_added(text):
            return whole(text).ids
        return [number for word in split(text) for number in word_ids(word)]

    return tokenize


def make_aligner(vocab: Vocabulary) -> Callable[[str], tuple[list[int], list[int], list[int]]]:
    """A function text → token ids, and where in the text each token begins and ends; the ids are those of
    `make_tokenizer`.

    ``text[begin:end]`` is what a token stands for, with the accents that are dropped from uncased text. Both
    positions never decrease. A character of which several tokens are made, such as a Hangul syllable, belongs
    to each of them; [UNK] has its whole word."""
    settings = settings_of(vocab)
    encode = _encoder(vocab, settings)

    def align(text: str) -> tuple[list[int], list[int], list[int]]:
        encoding = encode(text)
        begins, ends = map(list, zip(*encoding.offsets)) if encoding.ids else ([], [])
        if settings.strip_accents and not text.isascii():
            # `tokenizers` leaves an accent that stands behind its letter to no token
            ends = [_behind_accents(text, end) for end in ends]
        return encoding.ids, begins, ends

    return align


def library_tokenizer(vocab: Vocabulary, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    """The tokenizer of `tokenizers` with a vocabulary. It makes no final sigma."""
    return _pipeline(settings, _word_pieces(vocab))


def _encoder(vocab: Vocabulary, settings: TokenizerSettings) -> Callable[[str], tokenizers.Encoding]:
    tokenizer = library_tokenizer(vocab, settings)
    return lambda text: tokenizer.encode(_readable(text, settings), add_special_tokens=False)


def _behind_accents(text: str, end: int) -> int:
    while end < len(text) and unicodedata.category(text[end]) == 'Mn':
        end += 1
    return end


def train_wordpiece(texts: Iterable[str], size: int, *, cased: bool = False) -> Vocabulary:
    """A WordPiece vocabulary of at most `size` tokens learnt from `texts`; the same texts give the same
    vocabulary.

    The special tokens come first, then the characters. A merge needs two occurrences. ValueError if there is
    no text, or `size` cannot hold the special tokens and a few characters.
    """
    split_words = word_splitter(TokenizerSettings(lowercase=not cased, strip_accents=not cased))
    counts: collections.Counter = collections.Counter()
    for text in texts:
        counts.update(word for word in split_words(text) if len(word) <= _LONGEST_WORD)
    if not counts:
        raise ValueError('no text to learn a vocabulary from')
    characters: collections.Counter = collections.Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    commonest = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = sorted(commonest[: max((size - len(SPECIAL_TOKENS)) // 4, 0)])
    if not alphabet:
        raise ValueError(
            f'a vocabulary of {size} tokens holds no characters beside {" ".join(SPECIAL_TOKENS)}; '
            'ask for some hundreds at least'
        )
    # The library numbers the continuation characters in an order that differs between runs, and ties between
    # merges go by number, so both are given to it as tokens whose numbers are known.
    first = [*SPECIAL_TOKENS, *alphabet, *(CONTINUATION + character for character in alphabet)]
    known = set(alphabet)
    tokenizer = tokenizers.Tokenizer(models.WordPiece())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=first,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=CONTINUATION,
    )
    spelt = {word: count for word, count in counts.items() if known.issuperset(word)}
    tokenizer.train_from_iterator(_repeated(spelt), trainer)
    learnt = tokenizer.get_vocab()
    return vocabulary_of(sorted(learnt, key=learnt.__getitem__), source='learnt vocabulary')


def _repeated(counts: dict[str, int]) -> Iterator[str]:
    """Lines in which every word occurs as often as `counts` says, at most 1,000 times each."""
    for word in sorted(counts):
        for done in range(0, counts[word], 1000):
            yield ' '.join([word] * min(1000, counts[word] - done))
