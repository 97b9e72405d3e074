"""Trim the vocabulary of a network to a text: fewer rows in the embedding, the same numbers for the tokens
that stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..cutting.shrink import take_units
from ..network.saved_model import SavedModel, check_folded, read_model, write_model
from ..runs.files import new_output, sha256
from ..runs.machine import ORIGIN, commit, versions
from ..runs.programs import named
from ..runs.recipe import Recipe, option, to_dict
from ..tasks.texts import read_words
from ..text.documents import list_files
from ..text.tokenizer import Vocabulary, casing_of
from ..text.trimming import TRIM, Splits, TrimRecord, compare_splits, trimmed_vocabulary

_TAKEN_ALONG = ('metrics.jsonl', ORIGIN)  # from the directory of the whole network: how it was trained


class TrimRecipe(Recipe):
    """The network that loses tokens, and the tokens."""

    model: Path = option('model directory whose vocabulary is trimmed')
    text: tuple[Path, ...] = option(
        'files and directories of text, separated by commas, similar to what the network will read: raw text '
        f"in any layout of {named('optbert-make-shards')}, .tsv files such as GLUE's, SQuAD's .json, .jsonl",
        metavar='PATH',
    )
    output: Path = option('model directory to write')
    count: PositiveInt = option('uses in the text that a token needs to stay', 1)

    def problems(self) -> list[str]:
        return [] if self.text else ['text names no file']


@dataclasses.dataclass(frozen=True)
class Trimmed:
    """A network with a smaller vocabulary."""

    model: SavedModel
    before: Architecture  # of the whole network
    splits: Splits  # how the text splits now


def trim(saved: SavedModel, vocabulary: Vocabulary) -> SavedModel:
    """A network with some of its tokens, in the order of the smaller vocabulary; all else as it was.

    For tokens that stay it computes what the whole network computes.

    Parameters
    ----------
    saved : SavedModel
        With any head, and any widths; without gates.
    vocabulary : Vocabulary
        Tokens of the network, such as `trimmed_vocabulary` gives.

    Raises
    ------
    ValueError
        If it still has gates, a token is none of the network's, or the smaller vocabulary would be taken for
        one of another casing.
    """
    check_folded(saved, 'the network')
    absent = [token for token in vocabulary.idx_to_token if token not in saved.vocabulary]
    if absent:
        raise ValueError(
            f'{len(absent)} of {len(vocabulary)} tokens are not in the vocabulary of the network, such as '
            f'{absent[0]!r}; a vocabulary can only lose tokens'
        )
    casing, before = casing_of(vocabulary), casing_of(saved.vocabulary)
    if casing[0] != before[0]:
        raise ValueError(
            f'of the whole vocabulary, {before[1]}; of the smaller one, {casing[1]}: text would be read with '
            'another casing, so keep a token that tells it'
        )
    kept = np.array([saved.vocabulary.token_to_idx[token] for token in vocabulary.idx_to_token])
    parameters = take_units(saved.parameters, saved.architecture, {'vocab_size': kept}, head=saved.head)
    architecture = dataclasses.replace(saved.architecture, vocab_size=len(kept))
    return dataclasses.replace(saved, architecture=architecture, parameters=parameters, vocabulary=vocabulary)


def trim_to_text(saved: SavedModel, text: Sequence[Path], *, count: int = 1) -> Trimmed:
    """A network with the tokens that some files and directories of text use at least so many times.

    Raises
    ------
    ValueError, FileNotFoundError
        If a file cannot be read, there is no text, or as `trim`.
    """
    files = list_files(text)
    words = read_words(files, saved.vocabulary)
    model = trim(saved, trimmed_vocabulary(saved.vocabulary, words, count=count))
    return Trimmed(model, saved.architecture, compare_splits(words, saved.vocabulary, model.vocabulary))


def trim_vocabulary(recipe: TrimRecipe) -> Trimmed:
    """Trim the vocabulary of a network to a text, and write the smaller network.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input; nothing is written.
    """
    with new_output(recipe.output):
        saved = read_model(recipe.model)
        check_folded(saved, recipe.model)
        trimmed = trim_to_text(saved, recipe.text, count=recipe.count)
        beside = {name: recipe.model / name for name in _TAKEN_ALONG}
        extra = {name: path.read_bytes() for name, path in beside.items() if path.is_file()}
        extra[TRIM] = record_of(trimmed, to_dict(recipe), recipe.model).to_bytes()
        write_model(recipe.output, trimmed.model, extra=extra)
    return trimmed


def record_of(trimmed: Trimmed, recipe: Mapping[str, Any], model: Path) -> TrimRecord:
    """Record of a trimmed network in ``trim.json``; the recipe has ``model`` and ``text``, at least, and
    `model` is the directory of the whole network.
    """
    architectures = (trimmed.before, trimmed.model.architecture)
    return TrimRecord(
        recipe=dict(recipe),
        model_sha256=sha256(model / 'model.params'),
        tokens=tuple(one.vocab_size for one in architectures),
        parameters=tuple(int(ParameterCost().cost(one)) for one in architectures),
        splits={**dataclasses.asdict(trimmed.splits), 'share': trimmed.splits.share},
        origin={'commit': commit(), 'versions': versions()},
    )
