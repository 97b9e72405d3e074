"""Sentences, their tokens, and a network's states of them, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import mxnet as mx
import numpy as np

from ..architecture.architecture import Architecture
from ..cutting.shrink import without_gates
from ..network.encoder import without_padding
from ..network.model import OptBERTModel, build
from ..network.running import build_open, feed_of, states_of
from ..network.saved_model import SavedModel
from ..tasks.examples import read_examples, task_of_file, with_head
from ..tasks.features import Features, TaskBatch, pair
from ..tasks.tables import SUFFIXES, read_cells
from ..tasks.task import find_task
from ..text.batches import evaluation_batches
from ..text.shards import Shards
from ..text.tokenizer import (
    CONTINUATION,
    SPECIAL_TOKENS,
    Vocabulary,
    make_tokenizer,
    settings_of,
    vocabulary_hash,
    word_splitter,
)

Words = tuple[tuple[int, str], ...]
# of `residuals`; the embedding is layer 0
BEHIND = {'attention': slice(1, None, 2), 'layer': slice(0, None, 2)}


@dataclasses.dataclass(frozen=True)
class Sample:
    """The sequences that networks are compared on.

    Parameters
    ----------
    features : Features
        Tokens from [CLS] to the last [SEP].
    words : tuple of tuple of (int, str)
        For every sequence, the position of each word's first token and its spelling.
    labels : tuple of str
        One for each sequence, or empty.
    """

    features: Features
    words: tuple[Words, ...]
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.features)

    @property
    def ids(self) -> list[np.ndarray]:
        """The tokens of every sequence."""
        return np.split(self.features.ids, self.features.starts[1:-1])


def sample_of_texts(
    texts: Sequence[Sequence[str]], vocabulary: Vocabulary, *, length: int = 128, labels: Sequence[str] = ()
) -> Sample:
    """A sample of sentences or of pairs of sentences.

    `Sample.words` keeps capitals, whatever the vocabulary, and accents with a cased one.

    A sequence has `length` tokens at the most; in a longer one, the end of the longer sentence is cut off. It
    is ValueError if `length` is too small for the special tokens, see `pair`.
    """
    split = word_splitter(settings_of(vocabulary).model_copy(update={'lowercase': False}))
    tokenize = make_tokenizer(vocabulary)
    instances, words = [], []
    for sentences in texts:
        pieces = [
            [(word, ids) for word, ids in ((word, tokenize(word)) for word in split(text)) if ids]
            for text in sentences
        ]
        tokens = [[number for _, ids in sentence for number in ids] for sentence in pieces]
        instance = pair(tokens, cls_id=vocabulary['[CLS]'], sep_id=vocabulary['[SEP]'], max_length=length)
        positions: list[tuple[int, str]] = []
        for sentence, begin, end in zip(pieces, (1, instance[1]), (instance[1] - 1, len(instance[0]) - 1)):
            for word, ids in sentence:
                if begin < end:
                    positions.append((begin, word))
                begin += len(ids)
        instances.append(instance)
        words.append(tuple(positions))
    return Sample(Features.of(instances), tuple(words), tuple(labels))


def _spelt(ids: np.ndarray, lost: np.ndarray, vocabulary: Vocabulary) -> Words:
    """The words of tokens, shape (n,); one with a special token in it, or with one that is `lost`, (n,), is
    left out.
    """
    words: list[tuple[int, str, bool]] = []  # where it begins, its spelling, whether all of it is known
    for position, number in enumerate(ids):
        token = vocabulary.idx_to_token[number]
        known = token not in SPECIAL_TOKENS and not lost[position]
        if not token.startswith(CONTINUATION):
            words.append((position, token, known))
        elif words:
            begin, spelling, whole = words[-1]
            words[-1] = (begin, spelling + token[len(CONTINUATION) :], whole and known)
    return tuple((begin, spelling) for begin, spelling, whole in words if whole)


def sample_of_shards(directory: Path, vocabulary: Vocabulary, *, limit: int, length: int) -> Sample:
    """The first held-out instances of shards, with their [MASK] tokens, and of each at most `length` tokens;
    raises what `Shards.open` does.

    `Sample.words` are those of which no token is masked, replaced or cut off. A word that was cut when the
    shards were made, at the end of a segment, cannot be told from a whole one.
    """
    shards = Shards.open(directory, split='heldout', vocabulary_hash=vocabulary_hash(vocabulary))
    instances, words = [], []
    for batch in evaluation_batches(shards, batch_size=64, limit=limit):
        text = batch.input_ids.copy()
        rows, slots = np.nonzero(batch.masked_weights)
        text[rows, batch.masked_positions[rows, slots]] = batch.masked_ids[rows, slots]
        lost = (text != batch.input_ids) | (np.arange(text.shape[1]) >= length)
        for row in np.flatnonzero(batch.instance_weights):
            whole = int(batch.valid_length[row])
            kept = slice(min(whole, length))
            instances.append((batch.input_ids[row, kept], int(np.sum(batch.token_types[row, kept] == 0))))
            words.append(_spelt(text[row, :whole], lost[row, :whole], vocabulary))
    return Sample(Features.of(instances), tuple(words))


def read_sample(
    path: Path,
    vocabulary: Vocabulary,
    *,
    limit: int,
    length: int = 128,
    task: str | None = None,
    seed: int = 0,
) -> Sample:
    """A sample of shards, of a text with a sequence in each line, or of labelled sentences or pairs.

    Parameters
    ----------
    path : Path
        Of labelled text: a file of a task, or the directory of all tasks, for the task's training file.
        FileNotFoundError or ValueError if it does not exist, or is none of these.
    limit : int
        The most sequences; a file with more is sampled at random.
    task : str, optional
        By a name that `find_task` knows; without it, `task_of_file` finds the task of a table.
    """

    def some(count: int) -> list[int]:
        return sorted(np.random.RandomState(seed).permutation(count)[:limit])

    if task is not None or path.suffix.lower() in SUFFIXES:
        known = task_of_file(path) if task is None else find_task(task)
        file = path / known.train if path.is_dir() else path
        known = with_head(known, file)
        examples = read_examples(known, file)
        assert examples.labels is not None
        if known.head.kind != 'classification':
            raise ValueError(f'{known.name} is a {known.head.kind}; probes want labels')
        kept = some(len(examples))
        labels = [known.head.labels[examples.labels[i]] for i in kept]
        return sample_of_texts([examples.texts[i] for i in kept], vocabulary, length=length, labels=labels)
    if path.is_dir():
        return sample_of_shards(path, vocabulary, limit=limit, length=length)
    lines = [' '.join(cells) for cells in read_cells(path) if any(cell.strip() for cell in cells)]
    if not lines:
        raise ValueError(f'{path}: no text in it')
    return sample_of_texts([[lines[i]] for i in some(len(lines))], vocabulary, length=length)


def network_of(saved: SavedModel) -> OptBERTModel:
    """The network of a model, for `residuals`; gates are folded, and its head is kept."""
    return build_open(without_gates(saved))


def random_network(architecture: Architecture, seed: int = 0) -> OptBERTModel:
    """A network with the random weights of a pre-training's start, for `residuals`."""
    network = build(architecture, seed=seed, initial_std=0.6 * architecture.h**-0.5, trainable=False)
    network.hybridize(False)
    return network


def residuals(network: OptBERTModel, batch: TaskBatch) -> list[np.ndarray]:
    """Every state of the residual stream, as `states_of` gives them; `BEHIND` has those of either kind.

    Returns
    -------
    list of np.ndarray, 1 + 2 per layer, shape (b, L, h), float32
        Zero at the padding.
    """
    valid = feed_of(batch, ['valid_length'])['valid_length']
    states = (without_padding(mx.nd, state, valid) for state in states_of(network, batch))
    return [state.transpose((1, 0, 2)).asnumpy() for state in states]
