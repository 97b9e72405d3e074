"""The tokenizer of a Hugging Face directory: read from every file that says something of it, taken over as
far as this package's can express it, and compared with the library `tokenizers` on a text made to tell them
apart."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.pre_tokenizers import BertPreTokenizer

from ..runs.files import checked, read_json
from ..text.tokenizer import (
    SPECIAL,
    AddedToken,
    TokenizerSettings,
    Vocabulary,
    add_tokens,
    casing_of,
    make_aligner,
    vocabulary_of,
    word_splitter,
)
from .vocabularies import TOKENIZER, check_lines, tokens_beside

CONFIG, ADDED, SPECIAL_MAP = 'tokenizer_config.json', 'added_tokens.json', 'special_tokens_map.json'
AS_IS = 'as-is'
_PROBE = Path(__file__).with_name('probe.json')
_PLACE = '{added}'  # stands for every added token in a line of the probe
_LENGTHS = (49, 50, 51, 99, 100, 101, 199, 200, 201, 255, 256, 400)  # of words of the probe
_LONGEST_PROBED = 1000  # characters of a word; limits above are compared as numbers alone
_LONGEST_WORD = 100  # of Transformers, where no file says it
# What Transformers' classes for other splitters are told; BERT's has the first value.
_SWITCHES: dict[str, tuple[Any, ...]] = {
    'word_tokenizer_type': (None, 'basic'),
    'subword_tokenizer_type': (None, 'wordpiece'),
    'do_word_tokenize': (None, True),
    'do_subword_tokenize': (None, True),
    'do_basic_tokenize': (None, True),
    'never_split': (None, []),
    'split_special_tokens': (None, False),
    'wordpieces_prefix': (None, '##'),
    'auto_map': (None,),
}
# Classes of Transformers that are BERT's own, without "Fast".
_CLASSES = ('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer')
# The settings by their names in tokenizer_config.json, and in `tokenizers`.
_STATED = {
    'do_lower_case': 'lowercase',
    'strip_accents': 'strip_accents',
    'tokenize_chinese_chars': 'handle_chinese_chars',
    'clean_text': 'clean_text',
    'max_input_chars_per_word': 'max_input_chars_per_word',
}
_FLAGS = ('single_word', 'lstrip', 'rstrip', 'normalized')
_LONGEST_RECORD = 500  # characters


@dataclasses.dataclass(frozen=True)
class _Files:
    """Contents of the files of a tokenizer; without a file, nothing."""

    config: Mapping[str, Any]
    added: Mapping[str, Any]
    special: Mapping[str, Any]
    library: tokenizers.Tokenizer | None

    @classmethod
    def read(cls, directory: Path) -> _Files:
        """The files in a directory; ValueError if one cannot be read."""
        values = [
            read_json(directory / name) if (directory / name).is_file() else {}
            for name in (CONFIG, ADDED, SPECIAL_MAP)
        ]
        path = directory / TOKENIZER
        return cls(*values, _library(path, read_json(path)) if path.is_file() else None)


def _library(path: Path, values: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer that a ``tokenizer.json`` describes, without truncation and padding."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(values))
    except Exception as error:
        raise ValueError(f'{path}: not read by `tokenizers` ({error!s:.200})') from error
    model = tokenizer.model
    if isinstance(model, tokenizers.models.WordPiece) and model.token_to_id(model.unk_token) is None:
        raise ValueError(f'{path}: its model lacks {model.unk_token!r:.80}, the token of unknown words')
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_tokenizer(
    directory: Path, given: Path | None = None, *, as_is: bool = False
) -> tuple[Vocabulary, tuple[str, ...]]:
    """The vocabulary of a Hugging Face directory, or the `given` one, with the settings of its tokenizer, and
    notes for people. If `as_is`, a tokenizer that reads text otherwise is put up with; the settings record
    where it does.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or damaged, or the tokenizer reads text otherwise; the message names the piece
        and the first word that differs.
    """
    tokens, source = tokens_beside(directory, given)
    try:
        files = _Files.read(directory)
        problems = _wrong_switches(files) + _other_tokens(tokens, files, source.name)
        settings, notes = _settings(tokens, files, problems)
        settings = settings.model_copy(update={'added_tokens': _added(tokens, files, problems)})
        vocabulary = vocabulary_of(tokens, settings=settings, source=str(source))
        if files.library is not None:
            problems += _differences(files.library, vocabulary)
    except BaseException as error:  # what the library is written in panics, which is no Exception
        if type(error).__name__ != 'PanicException':
            raise
        path = directory / TOKENIZER
        raise ValueError(f'{path}: `tokenizers` fails with it ({error!s:.200})') from error
    if not problems:
        return vocabulary, notes
    found = '; '.join(problems)
    if not as_is:
        raise ValueError(
            f'{directory}: its tokenizer is not read here as it is there: {found}; --tokenizer {AS_IS} '
            'imports it all the same, and records that'
        )
    record = ''.join(sign if sign.isprintable() else '?' for sign in found)[:_LONGEST_RECORD]
    vocabulary = dataclasses.replace(vocabulary, settings=settings.model_copy(update={'as_is': record}))
    return vocabulary, (*notes, f'the tokenizer is not that of the checkpoint: {record}')


def _wrong_switches(files: _Files) -> list[str]:
    """Settings of ``tokenizer_config.json`` that no tokenizer here follows."""
    config = files.config
    problems = [
        f'{CONFIG} has {name}: {json.dumps(config[name])[:80]}, wanted {json.dumps(values[-1])}'
        for name, values in _SWITCHES.items()
        if config.get(name) not in values
    ]
    name = config.get('tokenizer_class')
    if files.library is None and name is not None:
        if not isinstance(name, str) or name.removesuffix('Fast') not in _CLASSES:
            problems.append(
                f'{CONFIG} has tokenizer_class: {json.dumps(name)[:80]}, and there is no {TOKENIZER} to '
                f"compare with; BERT's is {_CLASSES[0]}"
            )
    for file, values in ((CONFIG, config), (SPECIAL_MAP, files.special)):
        problems += [
            f'{file} has {key}: {_content(values[key])!r:.80}, wanted {wanted}'
            for key, wanted in SPECIAL.items()
            if values.get(key) is not None and _content(values[key]) != wanted
        ]
    return problems


def _content(value: Any) -> Any:
    """The token that a file states as a word, or as a word with flags."""
    return value.get('content') if isinstance(value, dict) else value


def _other_tokens(tokens: Sequence[str], files: _Files, source: str) -> list[str]:
    """The first token that has another number in ``tokenizer.json``, or the other kind of model there."""
    if files.library is None:
        return []
    model = files.library.model
    if not isinstance(model, tokenizers.models.WordPiece):
        return [f'the model of {TOKENIZER} is {type(model).__name__}, wanted WordPiece']
    problems = [
        f'the model of {TOKENIZER} has {name} {found!r:.40}, wanted {wanted!r}'
        for name, found, wanted in (
            ('unk_token', model.unk_token, SPECIAL['unk_token']),
            ('continuing_subword_prefix', model.continuing_subword_prefix, '##'),
        )
        if found != wanted
    ]
    numbers = files.library.get_vocab(with_added_tokens=True)
    moved = [(token, place) for place, token in enumerate(tokens) if numbers.get(token, place) != place]
    absent = files.library.get_vocab(with_added_tokens=False).keys() - set(tokens)
    if moved:
        token, place = moved[0]
        problems.append(f'{token!r:.80} has number {place} in {source}, {numbers[token]} in {TOKENIZER}')
    elif absent:
        problems.append(f'{source} lacks {min(absent)!r:.80}, which {TOKENIZER} has')
    return problems


def _settings(
    tokens: Sequence[str], files: _Files, problems: list[str]
) -> tuple[TokenizerSettings, tuple[str, ...]]:
    """The settings without added tokens, and notes; what files contradict is added to the problems."""
    config, notes = files.config, ()
    stated = {
        here: config[there]
        for there, here in _STATED.items()
        if type(config.get(there)) is (int if 'max' in there else bool)
    }
    if files.library is not None:
        found = _by_behaviour(files.library)
        for there, here in _STATED.items():
            if here in stated and stated[here] != getattr(found, here):
                problems.append(
                    f'{CONFIG} has {there}: {json.dumps(stated[here])}, and {TOKENIZER} reads text as with '
                    f'{json.dumps(getattr(found, here))}'
                )
        return found, ()
    lowercase = stated.get('lowercase')
    if lowercase is None:
        cased, evidence = casing_of(Vocabulary(tokens))
        lowercase = not cased
        if cased and config:
            problems.append(f'{CONFIG} does not say do_lower_case, which is true by default, and {evidence}')
        elif cased:
            notes = (f'no file says do_lower_case, and {evidence}; text keeps its capitals',)
    longest = stated.get('max_input_chars_per_word', _LONGEST_WORD)
    if longest != _LONGEST_WORD:
        problems.append(f'{CONFIG} has max_input_chars_per_word: {longest}, which Transformers does not read')
    values = {'strip_accents': lowercase, **stated, 'lowercase': lowercase}
    values.update(final_sigma=False, max_input_chars_per_word=_LONGEST_WORD)
    return TokenizerSettings(**values), notes


def _normalized(library: tokenizers.Tokenizer) -> Callable[[str], str]:
    return library.normalizer.normalize_str if library.normalizer else lambda text: text


def _by_behaviour(library: tokenizers.Tokenizer) -> TokenizerSettings:
    """The settings that a normalizer of any kind shows on a few words, and the limit of the model."""
    read = _normalized(library)
    return TokenizerSettings(
        lowercase=read('A').strip() == 'a',
        strip_accents=read('é').strip() == 'e',
        clean_text=read('a\x01b').strip() == 'ab',
        handle_chinese_chars=len(read('東京').split()) == 2,
        final_sigma=read('ΑΣ').strip() == 'ας',
        max_input_chars_per_word=getattr(library.model, 'max_input_chars_per_word', _LONGEST_WORD),
    )


def _added(tokens: list[str], files: _Files, problems: list[str]) -> tuple[AddedToken, ...]:
    """The added tokens of all files; those without a number get the next one, at the end of `tokens`."""
    library, added, numbers = files.library, {}, {}
    pieces = set(tokens if library is None else library.get_vocab(with_added_tokens=False))
    for file, token, number in _stated_tokens(files):
        name = token.content
        check_lines([name], file)
        known = added.setdefault(name, token)
        if any(getattr(known, flag) != getattr(token, flag) for flag in _FLAGS) and number is not None:
            problems.append(f'the added token {name!r:.80} has other flags in {file}')
        numbers.setdefault(name, number)
        if number not in (None, numbers[name]):
            problems.append(
                f'the added token {name!r:.80} has number {number} in {file}, {numbers[name]} elsewhere'
            )
    order = sorted(added, key=lambda name: (numbers[name] is None, numbers[name] or 0))
    places = {token: place for place, token in enumerate(tokens)}
    for name in order:
        if name not in places:
            places[name] = len(tokens)
            tokens.append(name)
        if numbers[name] not in (None, places[name]):
            problems.append(
                f'the added token {name!r:.80} has number {numbers[name]}, and would be token {places[name]} '
                'of the vocabulary'
            )
    whole = [name for name in order if name not in pieces]
    if whole != tokens[len(tokens) - len(whole) :]:
        whole = []  # the probe tells whether it matters
    return tuple(added[name].model_copy(update={'piece': name not in whole}) for name in order)


def _stated_tokens(files: _Files) -> Iterator[tuple[str, AddedToken, int | None]]:
    """The added tokens that files state: the file, the token and its number, if it has one there."""

    def token_of(value: Any, file: str, **more: Any) -> AddedToken:
        values = {**more, **(value if isinstance(value, dict) else {'content': value})}
        return checked(
            AddedToken, {k: v for k, v in values.items() if k not in ('id', '__type')}, source=file
        )

    if files.library is not None:
        for number, token in sorted(files.library.get_added_tokens_decoder().items()):
            names = ('content', *_FLAGS, 'special')
            yield TOKENIZER, token_of({name: getattr(token, name) for name in names}, TOKENIZER), number
    config, plain = files.config, {'normalized': False, 'special': True}
    decoder = config.get('added_tokens_decoder') or {}
    special = [
        _content(value)
        for values in (config, files.special)
        for key in (*SPECIAL, 'additional_special_tokens', 'extra_special_tokens')
        for value in _listed(values.get(key))
    ]
    if not isinstance(decoder, dict) or not all(str(number).isdecimal() for number in decoder):
        raise ValueError(f'{CONFIG}: added_tokens_decoder must give a token for every number')
    for number, value in decoder.items():
        yield CONFIG, token_of(value, CONFIG), int(number)
    listed = {_content(value) for value in decoder.values()}
    for token, number in files.added.items():
        if type(number) is not int:
            raise ValueError(f'{ADDED}: must give a number for every token')
        if token not in listed:
            yield ADDED, token_of(token, ADDED, **(plain if token in special else {})), number
    for token in (*SPECIAL.values(), *special):
        yield SPECIAL_MAP, token_of(token, SPECIAL_MAP, **plain), None


def _listed(value: Any) -> list[Any]:
    """The tokens of a field that has one, some, or some by name."""
    if isinstance(value, dict) and 'content' not in value:
        return list(value.values())
    return [] if value is None else value if isinstance(value, list) else [value]


def _differences(library: tokenizers.Tokenizer, vocabulary: Vocabulary) -> list[str]:
    """Places where the library reads the probe otherwise, stage by stage: the piece and the first word."""
    settings = vocabulary.settings
    probe = json.loads(_PROBE.read_text(encoding='utf-8'))
    lines = probe['lines']
    for place, characters in probe['characters'].items():  # a line with the place stands for one with each
        lines = [line.replace(place, one) for line in lines for one in (characters if place in line else ' ')]
    plain = [line for line in lines if _PLACE not in line]
    longest = min(settings.max_input_chars_per_word, _LONGEST_PROBED)
    for length in (*_LENGTHS, longest - 1, longest, longest + 1):
        plain += ['a' * length, f'word {"ab" * (length // 2)} word {"é" * length}']
    added = [
        line.replace(_PLACE, spelling)
        for token in settings.added_tokens
        for spelling in dict.fromkeys((token.content, token.content.lower(), token.content.upper()))
        for line in lines
        if _PLACE in line
    ]
    # every token once, as text, so that words are known whatever the vocabulary is
    words = [token.removeprefix('##') for token in vocabulary.idx_to_token]
    known = [' '.join(words[first : first + 32]) for first in range(0, len(words), 32)]
    return (
        _other_words(library, settings, plain)
        or _other_ids(library, vocabulary, [*plain, *known], added)
        or _other_ends(library, vocabulary)
    )


def _other_words(
    library: tokenizers.Tokenizer, settings: TokenizerSettings, lines: Sequence[str]
) -> list[str]:
    """Whether the normalizer gives other words, or the pre-tokenizer splits them otherwise."""
    own = word_splitter(settings.model_copy(update={'added_tokens': ()}))
    normalize, separate = _normalized(library), library.pre_tokenizer
    ours = [own(line) for line in lines]
    for piece, part, split in (
        ('normalizer', library.normalizer, BertPreTokenizer().pre_tokenize_str),
        ('pre_tokenizer', separate, separate.pre_tokenize_str if separate else lambda text: [(text, ())]),
    ):
        for line, words in zip(lines, ours):
            theirs = [word for word, _ in split(normalize(line))]
            if theirs != words:
                pairs = itertools.zip_longest(theirs, words)
                there, here = next((there, here) for there, here in pairs if there != here)
                kind = json.loads(part.__getstate__())['type'] if part else 'none'
                return [
                    f'the {piece} of {TOKENIZER} ({kind}): the word {there!r:.60} there is {here!r:.60} here'
                ]
    return []


def _other_ids(
    library: tokenizers.Tokenizer, vocabulary: Vocabulary, plain: Sequence[str], added: Sequence[str]
) -> list[str]:
    """Whether a text has other tokens."""
    numbers = library.get_vocab(with_added_tokens=True)
    own = vocabulary.settings.added_tokens
    add_tokens(library, [token for token in own if token.content not in numbers])  # as Transformers does
    align = make_aligner(vocabulary)
    for piece, lines in (('model', plain), ('added_tokens', added)):
        for line in lines:
            theirs, (ours, begins, _) = library.encode(line, add_special_tokens=False), align(line)
            if theirs.ids != ours:
                pairs = itertools.zip_longest(theirs.ids, ours)
                first = next(place for place, (there, here) in enumerate(pairs) if there != here)
                begins = begins if first < len(begins) else [begin for begin, _ in theirs.offsets]
                word = line[begins[first] :].split()[0]
                there, here = theirs.tokens[first:][:4], vocabulary.to_tokens(ours[first:][:4])
                return [f'the {piece} of {TOKENIZER}: {word!r:.60} is {there} there and {here} here']
    return []


def _other_ends(library: tokenizers.Tokenizer, vocabulary: Vocabulary) -> list[str]:
    """Whether a text and a pair get other special tokens or token types than BERT's."""
    ids = vocabulary.to_indices(['[CLS]', '[MASK]', '[SEP]', '[MASK]', '[SEP]'])
    for texts, length in ((('[MASK]',), 3), (('[MASK]', '[MASK]'), 5)):
        found = library.encode(*texts)
        wanted = ids[:length], [0] * 3 + [1] * (length - 3)
        if (found.ids, found.type_ids) != wanted:
            return [
                f'the post_processor of {TOKENIZER}: {" and ".join(texts)} are {found.tokens} of the types '
                f'{found.type_ids} there, and {vocabulary.to_tokens(ids[:length])} of {wanted[1]} here'
            ]
    return []
