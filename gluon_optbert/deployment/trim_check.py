"""The check of a trimmed vocabulary: where all tokens of a text stayed, both networks compute the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..network.saved_model import SavedModel, read_model
from ..runs.files import sha256
from ..tasks.features import make_reader, sorted_batches
from ..tasks.texts import read_texts, read_words
from ..text.documents import list_files
from ..text.tokenizer import Vocabulary, make_tokenizer
from ..text.trimming import TRIM, Splits, compare_splits, read_trim_record
from .description import whole_kind
from .export import NotEqual, network_of, output_differences

if TYPE_CHECKING:
    from .verify import VerifyRecipe

TOLERANCE = 1e-6  # of the largest value: the same sums of the same numbers, in blocks of other sizes for MLM
_LONGEST = 128  # tokens of a sequence
_MASKED = 3  # positions of a sequence that MLM scores are compared at


@dataclasses.dataclass(frozen=True)
class TrimCheck:
    """Comparison of a network with a trimmed vocabulary with the whole one: of each output, the largest
    difference over the largest value, for so many sequences.

    `splits` says how the words of other text than that of the trimming split, and `as_is` where text is not
    read as by an imported checkpoint's own tokenizer.
    """

    differences: dict[str, float]
    sequences: int
    splits: Splits | None
    as_is: str


def is_trimmed(directory: Path) -> bool:
    """Whether a directory is that of a model with a trimmed vocabulary."""
    return (Path(directory) / TRIM).is_file()


def check_trimmed(recipe: VerifyRecipe) -> TrimCheck:
    """Compare a network with a trimmed vocabulary, the recipe's `run`, with the whole one, on sentences whose
    tokens all stayed; its `model` and `text` are those of the trimming's record unless given.

    NotEqual, with all outputs, if one differs by more than `TOLERANCE`; FileNotFoundError or ValueError if
    something is missing or was changed, or no sentence kept all its tokens.
    """
    after, record = read_model(recipe.run), read_trim_record(recipe.run)
    place, text = recipe.model or record.model, recipe.text or record.text
    if not place.is_dir():
        raise FileNotFoundError(f'{place}: the network before trimming is not here; say where it is: --model')
    before = read_model(place)
    if sha256(place / 'model.params') != record.model_sha256:
        raise ValueError(f'{place}: not the network that {recipe.run} was trimmed from; give that as --model')
    try:
        files = list_files(text)
    except FileNotFoundError as error:
        raise FileNotFoundError(f'{error}; give text as --text') from error
    staying = _staying(files, before.vocabulary, after.vocabulary)
    sentences = list(itertools.islice(staying, recipe.batches * recipe.batch_size))
    if not sentences:
        listed = ', '.join(map(str, text))
        raise ValueError(f'{listed}: no sentence whose tokens all stayed; give others as --text')
    kind = whole_kind(before.head)
    networks = [network_of(saved, kind) for saved in (before, after)]
    feeds, other_feeds = (_feeds(saved, sentences, recipe.batch_size) for saved in (before, after))
    kept = {'masked_scores': np.array(before.vocabulary[after.vocabulary.idx_to_token])}
    worst = output_differences(*networks, feeds, kind, before.head, other_feeds=other_feeds, kept=kept)
    if not all(value <= TOLERANCE for value in worst.values()):
        listed = ', '.join(f'{name} {value:.1e}' for name, value in worst.items())
        raise NotEqual(f'{recipe.run}: a difference is above {TOLERANCE:.0e} of the largest value: {listed}')
    splits = None
    if recipe.text:
        words = read_words(files, before.vocabulary)
        splits = compare_splits(words, before.vocabulary, after.vocabulary)
    return TrimCheck(worst, len(sentences), splits, after.vocabulary.as_is)


def _staying(files: Sequence[Path], before: Vocabulary, after: Vocabulary) -> Iterator[str]:
    """The texts that both vocabularies split alike."""
    split_before, split_after = make_tokenizer(before), make_tokenizer(after)
    for path in files:
        for text in read_texts(path):
            tokens = before.to_tokens(split_before(text))
            if tokens and tokens == after.to_tokens(split_after(text)):
                yield text


def _feeds(saved: SavedModel, texts: Sequence[str], batch_size: int) -> list[dict[str, Any]]:
    """The inputs of a network for some texts, the shortest first."""
    length = min(_LONGEST, saved.architecture.max_length)
    features = make_reader(saved.vocabulary, max_length=length)([[text] for text in texts])
    feeds = []
    for batch in sorted_batches(features, batch_size):
        positions = np.arange(_MASKED) % batch.valid_length[:, np.newaxis]
        feeds.append({**vars(batch), 'masked_positions': positions})
    return feeds
