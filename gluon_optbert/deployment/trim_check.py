"""The check of a trimmed vocabulary: where all tokens of a text stayed, both networks compute the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..network.inputs import INPUTS, OUTPUTS, TOKEN_INPUTS
from ..network.model import build
from ..network.running import run
from ..network.saved_model import SavedModel, read_model
from ..runs.display import counting
from ..runs.files import sha256
from ..tasks.features import pair
from ..tasks.texts import read_texts, read_words
from ..text.documents import list_files
from ..text.tokenizer import Vocabulary, make_tokenizer
from ..text.trimming import TRIM, Splits, compare_splits, read_trim_record
from .export import NotEqual, output_difference

TOLERANCE = 1e-6  # of the largest value: the same sums of the same numbers, in blocks of other sizes for MLM
_LONGEST = 128  # tokens of a sequence
_MASKED = 3  # positions of a sequence that MLM scores are compared at


@dataclasses.dataclass(frozen=True)
class TrimCheck:
    """How a network with a trimmed vocabulary compares with the whole one.

    Parameters
    ----------
    differences : dict of str to float
        Of each output, the largest difference over the largest value.
    sequences : int
        That were compared.
    splits : Splits, optional
        How the words of other text than that of the trimming split; None unless there is some.
    """

    differences: dict[str, float]
    sequences: int
    splits: Splits | None


def is_trimmed(directory: Path) -> bool:
    """Whether a directory is that of a model with a trimmed vocabulary."""
    return (Path(directory) / TRIM).is_file()


def check_trimmed(
    directory: Path,
    *,
    model: Path | None = None,
    text: Sequence[Path] = (),
    batches: int = 2,
    batch_size: int = 8,
) -> TrimCheck:
    """Compare a network with a trimmed vocabulary with the whole one, on sentences whose tokens all stayed.

    Parameters
    ----------
    directory : Path
        The trimmed one.
    model : Path, optional
        The whole one; where the record says unless given.
    text : sequence of Path
        Where the record says unless given.
    batches, batch_size : int

    Raises
    ------
    NotEqual
        If an output differs by more than `TOLERANCE`; the message has all of them.
    FileNotFoundError, ValueError
        If something is missing or was changed, or no sentence kept all its tokens.
    """
    after, record = read_model(directory), read_trim_record(directory)
    place = model or record.model
    if not place.is_dir():
        raise FileNotFoundError(f'{place}: the network before trimming is not here; say where it is: --model')
    before = read_model(place)
    if sha256(place / 'model.params') != record.model_sha256:
        raise ValueError(f'{place}: not the network that {directory} was trimmed from; give that as --model')
    files = _files(text or record.text)
    sequences = list(
        itertools.islice(_staying(files, before.vocabulary, after.vocabulary), batches * batch_size)
    )
    if not sequences:
        raise ValueError(
            f'{", ".join(map(str, text or record.text))}: no sentence whose tokens all stayed; give others '
            'as --text'
        )
    worst = _differences(before, after, sequences, batch_size)
    if not all(value <= TOLERANCE for value in worst.values()):
        listed = ', '.join(f'{name} {value:.1e}' for name, value in worst.items())
        raise NotEqual(f'{directory}: a difference is above {TOLERANCE:.0e} of the largest value: {listed}')
    return TrimCheck(worst, len(sequences), _splits(files, before, after) if text else None)


def _files(text: Sequence[Path]) -> list[Path]:
    try:
        return list_files(text)
    except FileNotFoundError as error:
        raise FileNotFoundError(f'{error}; give text as --text') from error


def _splits(files: Sequence[Path], before: SavedModel, after: SavedModel) -> Splits:
    with counting('reading text', len(files), unit='file') as count:
        words = read_words(files, before.vocabulary, done=count)
    return compare_splits(words, before.vocabulary, after.vocabulary)


def _staying(files: Sequence[Path], before: Vocabulary, after: Vocabulary) -> Iterator[list[str]]:
    """The tokens of the texts that both vocabularies split alike."""
    split_before, split_after = make_tokenizer(before), make_tokenizer(after)
    for path in files:
        for text in read_texts(path):
            tokens = before.to_tokens(split_before(text))
            if tokens and tokens == after.to_tokens(split_after(text)):
                yield tokens


def _differences(
    before: SavedModel, after: SavedModel, sequences: Sequence[list[str]], batch_size: int
) -> dict[str, float]:
    """The largest relative difference of each output; MLM scores are those of the tokens that stayed."""
    head = before.head
    names, outputs = (TOKEN_INPUTS, ('scores',)) if head.outputs else (tuple(INPUTS), tuple(OUTPUTS))
    blocks = [
        build(saved.architecture, saved.parameters, trainable=False, head=saved.head)
        for saved in (before, after)
    ]
    kept = np.array([before.vocabulary.token_to_idx[token] for token in after.vocabulary.idx_to_token])
    worst = dict.fromkeys(outputs, 0.0)
    for first in range(0, len(sequences), batch_size):
        group = sequences[first : first + batch_size]
        wanted, computed = (
            run(block, _feed(saved, group), names) for block, saved in zip(blocks, (before, after))
        )
        for name, one, other in zip(outputs, wanted, computed):
            one = one[..., kept] if name == 'masked_scores' else one
            worst[name] = max(worst[name], output_difference(name, other, one))
    return worst


def _feed(saved: SavedModel, sequences: Sequence[list[str]]) -> dict[str, np.ndarray]:
    """The inputs of a network for some tokens, with [CLS] and [SEP]."""
    vocab, length = saved.vocabulary, min(_LONGEST, saved.architecture.max_length)
    rows = [
        pair(
            vocab.to_indices(tokens),
            None,
            cls_id=vocab.token_to_idx[vocab.cls_token],
            sep_id=vocab.token_to_idx[vocab.sep_token],
            max_length=length,
        )[0]
        for tokens in sequences
    ]
    valid = np.array([len(row) for row in rows])
    ids = np.full((len(rows), valid.max()), vocab.token_to_idx[vocab.padding_token])
    for row, numbers in zip(ids, rows):
        row[: len(numbers)] = numbers
    return {
        'input_ids': ids,
        'token_types': np.zeros_like(ids),
        'valid_length': valid,
        'masked_positions': np.arange(_MASKED) % valid[:, np.newaxis],
    }
