"""The vocabulary beside a checkpoint: ``vocab.txt``, ``tokenizer.json``, or a ``.vocab`` of GluonNLP."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ..text.vocabulary import Vocabulary, casing_of, read_vocabulary, vocabulary_of
from .foreign import read_json, read_small

TOKENIZER = 'tokenizer.json'  # has the vocabulary where Transformers saved no vocab.txt
SETTINGS = 'tokenizer_config.json'  # of Transformers' tokenizer
_NAMES = {  # of its settings: in tokenizer_config.json, in tokenizer.json
    'do_lower_case': 'lowercase',
    'strip_accents': 'strip_accents',
    'tokenize_chinese_chars': 'handle_chinese_chars',
}


def vocabulary_beside(directory: Path, given: Optional[Path] = None) -> Vocabulary:
    """The vocabulary `given`, or else the one in the directory of the weights.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is none, or it cannot be read.
    """
    path = given or directory / 'vocab.txt'
    if not given and not path.is_file() and (directory / TOKENIZER).is_file():
        path = directory / TOKENIZER
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such vocabulary; put the vocab.txt of the checkpoint there, or give --vocabulary'
        )
    if path.name == TOKENIZER:
        return read_tokenizer_vocabulary(path)
    return read_gluonnlp_vocabulary(path) if path.suffix in ('.vocab', '.json') else _read_text(path)


def _read_text(path: Path) -> Vocabulary:
    read_small(path)  # for its limit
    return read_vocabulary(path)


def read_tokenizer_vocabulary(path: Path) -> Vocabulary:
    """The WordPiece vocabulary in a ``tokenizer.json``, with the tokens that were added behind it.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it has another kind of vocabulary, or two tokens have one number.
    """
    values = read_json(path)
    model, added = values.get('model'), values.get('added_tokens', [])
    if not isinstance(model, dict) or model.get('type') != 'WordPiece' or not isinstance(added, list):
        raise ValueError(f'{path}: wanted a model of type WordPiece; put a vocab.txt beside it')
    numbers = model.get('vocab')
    pairs = list(numbers.items()) if isinstance(numbers, dict) else []
    pairs += [(token.get('content'), token.get('id')) for token in added if isinstance(token, dict)]
    fit = all(type(number) is int and isinstance(token, str) for token, number in pairs)
    tokens = {number: token for token, number in pairs} if fit else {}
    fit = fit and all(tokens[number] == token for token, number in pairs)
    if not fit or sorted(tokens) != list(range(len(tokens))):
        raise ValueError(f'{path}: its tokens must have the numbers from 0 on, each token one')
    return _vocabulary([tokens[number] for number in range(len(tokens))], path)


def read_gluonnlp_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in a GluonNLP ``.vocab`` file, which is JSON; every token keeps its number.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is none, or its two lists disagree.
    """
    values = read_json(path)
    tokens, numbers = values.get('idx_to_token'), values.get('token_to_idx')
    if (
        not isinstance(tokens, list)
        or not isinstance(numbers, dict)
        or not all(isinstance(token, str) for token in tokens)
        or (numbers != {token: number for number, token in enumerate(tokens)})
    ):
        raise ValueError(
            f'{path}: wanted idx_to_token and token_to_idx that agree, as GluonNLP 0.7 and later write them'
        )
    return _vocabulary(tokens, path)


def _vocabulary(tokens: Sequence[str], path: Path) -> Vocabulary:
    """The vocabulary of tokens that a JSON file lists; ValueError if one cannot stand on a line of UTF-8."""
    if any('\n' in token or '\r' in token for token in tokens):
        raise ValueError(f'{path}: a token has a line break')
    if any('\ud800' <= character <= '\udfff' for token in tokens for character in token):
        raise ValueError(f'{path}: a token has half a surrogate pair')
    return vocabulary_of(tokens, source=str(path))


def tokenizer_notes(directory: Path, vocab: Vocabulary) -> Tuple[str, ...]:
    """Where Transformers' tokenizer beside the weights reads text otherwise than it is read here: a sentence
    each.

    Here the vocabulary decides: with a cased one text keeps capitals and accents, otherwise it loses both;
    Chinese characters are words of their own.
    """
    cased, _ = casing_of(vocab)
    read: Dict[str, Any] = {'tokenize_chinese_chars': True}
    if cased is not None:
        read.update(do_lower_case=not cased, strip_accents=not cased)
    notes = []
    for file, settings in _tokenizer_settings(directory).items():
        for name, wanted in read.items():
            theirs = _NAMES[name] if file == TOKENIZER else name
            value = settings.get(theirs)
            if isinstance(value, bool) and value != wanted:
                notes.append(
                    f'{file} has {theirs}: {str(value).lower()}, and here text is read as with '
                    f'{str(wanted).lower()}; words that this touches get other tokens than in training'
                )
    return tuple(notes)


def _tokenizer_settings(directory: Path) -> Dict[str, Mapping[str, Any]]:
    """The settings of the tokenizer that lies beside the weights, by file; one file is enough."""
    if (directory / SETTINGS).is_file():
        return {SETTINGS: read_json(directory / SETTINGS)}
    normalizer = (
        read_json(directory / TOKENIZER).get('normalizer') if (directory / TOKENIZER).is_file() else None
    )
    return {TOKENIZER: normalizer} if isinstance(normalizer, dict) else {}
