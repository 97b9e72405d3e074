"""Sentences, pairs, or questions with their contexts to labels with probabilities, values, or answers."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..network.running import TOKEN_INPUTS, run
from ..tasks.answers import Answer, best_answers, given
from ..tasks.features import Features, make_reader, sorted_batches
from ..tasks.metrics import exact_match
from ..tasks.squad import Question, Windows, make_windows
from ..text.vocabulary import is_cased, make_aligner
from .directory import Deployment, load_deployment


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
    """The instance on a line of text: a sentence, or two with a tab between; then another tab and the label
    if there is one.

    Raises
    ------
    ValueError
        If there are more or fewer columns.
    """
    columns = line.rstrip('\r\n').split('\t')
    label = columns.pop() if labelled and len(columns) > 1 else None
    if labelled and label is None or len(columns) > 2:
        raise ValueError(
            f'{source}: {len(columns)} columns, wanted a sentence or two'
            + (' and a label' if labelled else '')
            + ', with tabs between them'
        )
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
            found = [
                instance_of(line, labelled=labelled, source=f'{path}: line {i}')
                for i, line in itertools.islice(lines, most)
            ]
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
        length = found.architecture.max_length
        if length < 5:
            raise ValueError(f'the network reads {length} tokens, too few for a pair of sentences')
        vocabulary, self._reading = found.vocabulary, found.reading
        self._read = make_reader(vocabulary, max_length=length)
        self._align = make_aligner(vocabulary, cased=is_cased(vocabulary))
        self._ids = {'cls_id': vocabulary[vocabulary.cls_token], 'sep_id': vocabulary[vocabulary.sep_token]}

    def features(self, instances: Sequence[Instance]) -> Features:
        """What is read for sentences and pairs, one after the other; for questions, all windows of their
        contexts.
        """
        if self._reading is not None:
            return self.windows(questions_of(instances)).features
        return self._read(
            [
                (instance.first,) if instance.second is None else (instance.first, instance.second)
                for instance in instances
            ]
        )

    def windows(self, questions: Sequence[Question]) -> Windows:
        """What is read for questions."""
        assert self._reading is not None
        return make_windows(questions, self._align, self._reading, labelled=False, **self._ids)


def questions_of(instances: Sequence[Instance]) -> List[Question]:
    """Instances as questions; raises ValueError if one has no context."""
    for instance in instances:
        if instance.second is None:
            raise ValueError(f'question without a context: {instance.first!r:.60}')
    return [
        Question(str(i), instance.first, str(instance.second), ()) for i, instance in enumerate(instances)
    ]


class Predictor:
    """The network of a deployment directory with what stands before and behind it.

    Parameters
    ----------
    directory : Path
        Of an export that computes the scores of a task.
    null_threshold : float, optional
        Of question answering, instead of the export's: how far the score of having no answer must be above
        that of the best one.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load_deployment`; if the export has no task, or a threshold is given to one that answers no
        questions.

    Examples
    --------
    >>> for found in Predictor('deploy').predict(['a fine film', ('one sentence', 'and another')]):
    ...     print(found.label, found.probabilities)
    """

    def __init__(self, directory: Union[str, Path], *, null_threshold: Optional[float] = None):
        block, found = load_deployment(Path(directory))
        if null_threshold is not None:
            if found.reading is None:
                raise ValueError(
                    f'{directory}: a null threshold is for question answering, and this is an export of '
                    f'{found.head.kind if found.head.outputs else found.kind}'
                )
            found = dataclasses.replace(
                found, reading=dataclasses.replace(found.reading, null_threshold=null_threshold)
            )
        block.hybridize(static_alloc=True)  # not static_shape: lengths vary
        self._start(block, found)

    @classmethod
    def of(cls, block: Callable, found: Deployment) -> Predictor:
        """The predictor of a network in memory that takes ids, token types and lengths."""
        predictor = cls.__new__(cls)
        predictor._start(block, found)
        return predictor

    def _start(self, block: Callable, found: Deployment) -> None:
        if found.kind != 'task':
            raise ValueError(
                f'this is an export of {found.kind}, which has no labels; export a fine-tuned model'
            )
        self._block, self.head, self._reading, self._encoder = (
            block,
            found.head,
            found.reading,
            Encoder(found),
        )

    def predict(
        self,
        instances: Iterable[Union[str, Tuple[str, str], Instance]],
        *,
        batch_size: int = 32,
        ahead: int = 16,
    ) -> Iterator[Prediction]:
        """A `Label`, a `Value` or an `Answer` for each instance, in their order.

        Parameters
        ----------
        instances : iterable of str, of (str, str) or of Instance
            Sentences, pairs, or questions with their contexts; read as they are needed.
        batch_size : int
            Sequences that are computed together.
        ahead : int
            Batches' worth of instances that are read at once, so that sequences of like length are computed
            together.
        """
        instances = iter(instances)
        while True:
            some = [_as_instance(item) for item in itertools.islice(instances, batch_size * ahead)]
            if not some:
                return
            yield from self._predict(some, batch_size)

    def _predict(self, instances: Sequence[Instance], batch_size: int) -> List[Prediction]:
        reading = self._reading
        if reading is not None:
            questions = questions_of(instances)
            windows = self._encoder.windows(questions)
            best, nulls = best_answers(
                questions, windows, self._scores(windows.features, batch_size), reading
            )
            return [given(answers, null, reading.null_threshold) for answers, null in zip(best, nulls)]
        scores = self._scores(self._encoder.features(instances), batch_size)
        if self.head.kind == 'regression':
            return [Value(float(score)) for (score,) in scores]
        return [self._label(row) for row in scores]

    def _scores(self, features: Features, batch_size: int) -> np.ndarray:
        """The network's, by instance, or by window and token."""
        places = (int(features.lengths.max()),) if self._reading else ()
        found = np.zeros((len(features), *places, self.head.outputs), np.float32)
        for batch in sorted_batches(features, batch_size):
            (scores,) = run(self._block, batch, TOKEN_INPUTS)
            if self._reading is None:
                found[batch.rows] = scores
            else:
                found[batch.rows, : scores.shape[1]] = scores
        return found

    def _label(self, scores: np.ndarray) -> Label:
        powers = np.exp(scores.astype(np.float64) - scores.max())
        shares = dict(zip(self.head.labels, (powers / powers.sum()).tolist()))
        return Label(max(shares, key=shares.get), shares)


def _as_instance(item: Union[str, Tuple[str, str], Instance]) -> Instance:
    if isinstance(item, Instance):
        return item
    return Instance(item) if isinstance(item, str) else Instance(*item)


def score(predictor: Predictor, labelled: Sequence[Instance]) -> float:
    """How good predictions are: the share of right labels, or of answers that SQuAD counts as exact, or
    Pearson's correlation.

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
        return float(np.mean([exact_match(answer.text, label) for answer, label in zip(found, wanted)]))
    unknown = sorted(set(wanted) - set(predictor.head.labels))
    if unknown:
        raise ValueError(
            f'labelled file: {", ".join(unknown[:9])} not among the labels {", ".join(predictor.head.labels)}'
        )
    return float(np.mean([prediction.label == label for prediction, label in zip(found, wanted)]))
