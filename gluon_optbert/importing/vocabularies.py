"""Vocabularies of foreign checkpoints."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path

from ..runs.files import read_json, read_small
from ..text.tokenizer import Vocabulary, read_vocabulary, vocabulary_of

TOKENIZER = 'tokenizer.json'  # has the vocabulary where Transformers saved no vocab.txt


def tokens_beside(directory: Path, given: Path | None = None) -> tuple[list[str], Path]:
    """The tokens of the vocabulary `given`, or else of the one in the directory of the weights, and its path;
    FileNotFoundError or ValueError if there is none, or it cannot be read.
    """
    path = given or directory / 'vocab.txt'
    if not given and not path.is_file() and (directory / TOKENIZER).is_file():
        path = directory / TOKENIZER
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such vocabulary; put the vocab.txt of the checkpoint there, or give --vocabulary'
        )
    if path.name == TOKENIZER:
        tokens = _tokens_of_tokenizer(path)
    elif path.suffix in ('.vocab', '.json'):
        tokens = _tokens_of_gluonnlp(path)
    else:
        read_small(path)  # for its limit
        return read_vocabulary(path, files=()).idx_to_token, path
    check_lines(tokens, str(path))
    return tokens, path


def check_lines(tokens: Iterable[str], source: str) -> None:
    """Raise ValueError, with the source, if a token fits on no line of a vocabulary."""
    for token in tokens:
        if not token.strip(string.whitespace) or any(
            character in '\n\r' or '\ud800' <= character <= '\udfff' for character in token
        ):
            raise ValueError(
                f'{source}: the token {token!r:.80} is blank, or has a line break or half a surrogate pair, '
                'so it fits on no line of a vocabulary'
            )


def vocabulary_beside(directory: Path, given: Path | None = None) -> Vocabulary:
    """The vocabulary of `tokens_beside`, whose casing says how text is read; it raises ValueError, too, if a
    special token is missing.
    """
    tokens, path = tokens_beside(directory, given)
    return vocabulary_of(tokens, source=str(path))


def _tokens_of_tokenizer(path: Path) -> list[str]:
    """The WordPiece vocabulary in a ``tokenizer.json``, with the tokens that were added behind it; ValueError
    if it has another kind of vocabulary, or two tokens have one number.
    """
    values = read_json(path)
    model, added = values.get('model'), values.get('added_tokens', [])
    if not isinstance(model, dict) or model.get('type') != 'WordPiece' or not isinstance(added, list):
        raise ValueError(f'{path}: wanted a model of type WordPiece; put a vocab.txt beside it')
    numbers = model.get('vocab')
    pairs = list(numbers.items()) if isinstance(numbers, dict) else []
    pairs += [(token.get('content'), token.get('id')) for token in added if isinstance(token, dict)]
    fit = all(type(number) is int and isinstance(token, str) for token, number in pairs)
    ordered = sorted({(number, token) for token, number in pairs}) if fit else []
    if not fit or [number for number, _ in ordered] != list(range(len(ordered))):
        raise ValueError(f'{path}: its tokens must have the numbers from 0 on, each token one')
    return [token for _, token in ordered]


def _tokens_of_gluonnlp(path: Path) -> list[str]:
    """The tokens of a GluonNLP ``.vocab`` file, which is JSON; ValueError if its two lists disagree."""
    values = read_json(path)
    tokens, numbers = values.get('idx_to_token'), values.get('token_to_idx')
    if (
        not isinstance(tokens, list)
        or not all(isinstance(token, str) for token in tokens)
        or numbers != {token: number for number, token in enumerate(tokens)}
    ):
        raise ValueError(
            f'{path}: wanted idx_to_token and token_to_idx that agree, as GluonNLP 0.7 and later write them'
        )
    return tokens
