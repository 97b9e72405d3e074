"""Sentences, pairs, or questions with their contexts to labels with probabilities, values, or answers."""
from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from .answers import Answer, Window, best_answer, tokens_and_places, windows
from .deployment import Deployment, load_deployment
from .vocabulary import is_cased, make_tokenizer

MULTIPLE = 8  # batches are padded to a length that it divides, so that few shapes occur


@dataclasses.dataclass(frozen=True)
class Instance:
    """What a prediction is made for.

    Parameters
    ----------
    first : str
        A sentence, or a question.
    second : str, optional
        The other sentence of a pair, or a context.
    label : str, optional
        What is right, where it is known.
    """
    first: str
    second: Optional[str] = None
    label: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Label:
    """A label and the probabilities of all."""
    label: str
    probabilities: Dict[str, float]


@dataclasses.dataclass(frozen=True)
class Value:
    """What a regression gives."""
    value: float


Prediction = Union[Label, Value, Answer]


def instance_of(line: str, *, labelled: bool = False, source: str = 'line') -> Instance:
    """The instance on a line of text: a sentence, or two with a tab between; then another tab and the label if there is one.

    Raises
    ------
    ValueError
        If there are more or fewer columns.
    """
    columns = line.rstrip('\r\n').split('\t')
    label = columns.pop() if labelled and len(columns) > 1 else None
    if labelled and label is None or len(columns) > 2:
        raise ValueError(f'{source}: {len(columns)} columns, wanted a sentence or two'
                         + (' and a label' if labelled else '') + ', with tabs between them')
    return Instance(columns[0], columns[1] if len(columns) == 2 else None, label)


def read_instances(path: Path, *, labelled: bool = False, most: Optional[int] = None) -> List[Instance]:
    """The instances of a file, one a line, blank lines left out; at most so many.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, it is not UTF-8, a line has other columns, or there is no instance.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        with open(path, encoding='utf-8') as file:
            lines = ((i, line) for i, line in enumerate(file, 1) if line.strip())
            found = [instance_of(line, labelled=labelled, source=f'{path}: line {i}')
                     for i, line in itertools.islice(lines, most)]
    except UnicodeDecodeError as error:
        raise ValueError(f'{path}: not UTF-8 at byte {error.start}; convert it') from error
    if not found:
        raise ValueError(f'{path}: no text in it')
    return found


class Encoder:
    """Text as what a network reads.

    Parameters
    ----------
    found : Deployment
    """

    def __init__(self, found: Deployment):
        self._vocabulary, self._max_length = found.vocabulary, found.architecture.max_length
        self.tokenize = make_tokenizer(found.vocabulary, cased=is_cased(found.vocabulary))
        self._answers = found.head.kind == 'question_answering'
        if self._max_length < 5:
            raise ValueError(f'the network reads {self._max_length} tokens, too few for a pair of sentences')

    def windows(self, instance: Instance) -> List[Window]:
        """What is read for an instance: one window, or for a question as many as its context needs.

        Raises
        ------
        ValueError
            If a question has no context.
        """
        first, separator = (self._vocabulary.token_to_idx[token] for token in ('[CLS]', '[SEP]'))
        ids = self.tokenize(instance.first)
        if self._answers:
            if instance.second is None:
                raise ValueError(f'question without a context: {instance.first!r:.60}')
            return windows(ids, tokens_and_places(instance.second, self.tokenize), first=first, separator=separator,
                           max_length=self._max_length)
        other = None if instance.second is None else self.tokenize(instance.second)
        room = self._max_length - 2 - (other is not None)
        ids = ids[:max(room - len(other or ()), (room + 1) // 2)]  # both give way where they do not fit, the longer one first
        whole, types = [first, *ids, separator], [0] * (len(ids) + 2)
        if other is not None:
            other = other[:room - len(ids)]
            whole, types = [*whole, *other, separator], types + [1] * (len(other) + 1)
        return [Window(whole, types, [])]

    def feed(self, batch: Sequence[Window]) -> Dict[str, np.ndarray]:
        """The inputs of a batch, padded to the same length."""
        longest = max(len(window.ids) for window in batch)
        length = min(self._max_length, -(-longest // MULTIPLE) * MULTIPLE)
        padding = self._vocabulary.token_to_idx['[PAD]']
        feed = {'input_ids': np.full((len(batch), length), padding, dtype=np.float32),
                'token_types': np.zeros((len(batch), length), dtype=np.float32),
                'valid_length': np.array([len(window.ids) for window in batch], dtype=np.float32)}
        for row, window in enumerate(batch):
            feed['input_ids'][row, :len(window.ids)] = window.ids
            feed['token_types'][row, :len(window.ids)] = window.types
        return feed


def feeds_of(found: Deployment, instances: Sequence[Instance], *, batch_size: int = 8) -> List[Dict[str, np.ndarray]]:
    """Instances as batches, the short ones together."""
    encoder = Encoder(found)
    every = sorted((window for instance in instances for window in encoder.windows(instance)),
                   key=lambda window: len(window.ids))
    return [encoder.feed(every[i:i + batch_size]) for i in range(0, len(every), batch_size)]


class Predictor:
    """The network of a deployment directory with what stands before and behind it.

    Parameters
    ----------
    directory : Path
        Of an export that computes the scores of a task.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load_deployment`; if the export has no task.

    Examples
    --------
    >>> for found in Predictor('deploy').predict(['a fine film', ('one sentence', 'and another')]):
    ...     print(found.label, found.probabilities)
    """

    def __init__(self, directory: Union[str, Path]):
        block, found = load_deployment(Path(directory))
        block.hybridize(static_alloc=True)  # not static_shape: lengths vary
        self._start(block, found)

    @classmethod
    def of(cls, block: Callable, found: Deployment) -> 'Predictor':
        """The predictor of a network in memory that takes ids, token types and lengths."""
        predictor = cls.__new__(cls)
        predictor._start(block, found)
        return predictor

    def _start(self, block: Callable, found: Deployment) -> None:
        if found.kind != 'task':
            raise ValueError(f'this is an export of {found.kind}, which has no labels; export a fine-tuned model')
        self._block, self.head, self._encoder = block, found.head, Encoder(found)

    def predict(self, instances: Iterable[Union[str, Tuple[str, str], Instance]], *, batch_size: int = 32,
                ahead: int = 16) -> Iterator[Prediction]:
        """A `Label`, a `Value` or an `Answer` for each instance, in their order.

        Parameters
        ----------
        instances : iterable of str, of (str, str) or of Instance
            Sentences, pairs, or questions with their contexts; read as they are needed.
        batch_size : int
            Sequences that are computed together.
        ahead : int
            Batches' worth of instances that are read at once, so that sequences of like length are computed together.
        """
        instances = iter(instances)
        while True:
            some = [_as_instance(item) for item in itertools.islice(instances, batch_size * ahead)]
            if not some:
                return
            yield from self._predict(some, batch_size)

    def _predict(self, instances: Sequence[Instance], batch_size: int) -> List[Prediction]:
        read = [self._encoder.windows(instance) for instance in instances]
        flat = [(i, window) for i, group in enumerate(read) for window in group]
        order = sorted(range(len(flat)), key=lambda place: len(flat[place][1].ids))
        scores: List[Any] = [None] * len(flat)
        for begin in range(0, len(order), batch_size):
            places = order[begin:begin + batch_size]
            feed = self._encoder.feed([flat[place][1] for place in places])
            for place, found in zip(places, self._block(*map(mx.nd.array, feed.values())).asnumpy()):
                scores[place] = found
        grouped: List[List[Tuple[Window, np.ndarray]]] = [[] for _ in instances]
        for (i, window), found in zip(flat, scores):
            grouped[i].append((window, found))
        return [self._result(instance, found) for instance, found in zip(instances, grouped)]

    def _result(self, instance: Instance, found: Sequence[Tuple[Window, np.ndarray]]) -> Prediction:
        if self.head.kind == 'question_answering':
            return best_answer(instance.second or '', found)
        (_, scores), = found
        if self.head.kind == 'regression':
            return Value(float(scores[0]))
        powers = np.exp(scores.astype(np.float64) - scores.max())
        shares = dict(zip(self.head.labels, (powers / powers.sum()).tolist()))
        return Label(max(shares, key=shares.get), shares)


def _as_instance(item: Union[str, Tuple[str, str], Instance]) -> Instance:
    if isinstance(item, Instance):
        return item
    return Instance(item) if isinstance(item, str) else Instance(*item)


def score(predictor: Predictor, labelled: Sequence[Instance]) -> float:
    """How good predictions are: the share of right labels or of exact answers, or Pearson's correlation for a regression.

    Raises
    ------
    ValueError
        If a label is none of the head's, or no number for a regression.
    """
    found, wanted = list(predictor.predict(labelled)), [str(instance.label) for instance in labelled]
    if predictor.head.kind == 'regression':
        try:
            values = np.array([float(label) for label in wanted])
        except ValueError as error:
            raise ValueError(f'labelled file: {error}') from error
        return float(np.corrcoef(values, [prediction.value for prediction in found])[0, 1])
    if predictor.head.kind == 'question_answering':
        return float(np.mean([answer.text.strip().lower() == label.strip().lower() for answer, label in zip(found, wanted)]))
    unknown = sorted(set(wanted) - set(predictor.head.labels))
    if unknown:
        raise ValueError(f'labelled file: {", ".join(unknown[:9])} not among the labels {", ".join(predictor.head.labels)}')
    return float(np.mean([prediction.label == label for prediction, label in zip(found, wanted)]))
