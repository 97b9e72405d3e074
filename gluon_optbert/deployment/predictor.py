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
from ..text.vocabulary import make_aligner
from .directory import Deployment, load_deployment


@dataclasses.dataclass(frozen=True)
class Instance:
    """The text of a prediction.

    Parameters
    ----------
    first : str
        A sentence, or a question.
    second : str, optional
        The other sentence of a pair, or a context.
    label : str, optional
        The right answer, if it is known.
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
    """The value of a regression."""

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
            instances = [
                instance_of(line, labelled=labelled, source=f'{path}: line {i}')
                for i, line in itertools.islice(lines, most)
            ]
    except UnicodeDecodeError as error:
        raise ValueError(f'{path}: not UTF-8 at byte {error.start}; convert it') from error
    if not instances:
        raise ValueError(f'{path}: no text in it')
    return instances


class Encoder:
    """Text to the features that a network reads.

    Parameters
    ----------
    deployment : Deployment

    Raises
    ------
    ValueError
        If the network has fewer than five positions.
    """

    def __init__(self, deployment: Deployment):
        length = deployment.architecture.max_length
        if length < 5:
            raise ValueError(f'the network reads {length} tokens, too few for a pair of sentences')
        vocabulary, self._reading = deployment.vocabulary, deployment.reading
        self._read = make_reader(vocabulary, max_length=length)
        self._align = make_aligner(vocabulary)
        self._ids = {'cls_id': vocabulary[vocabulary.cls_token], 'sep_id': vocabulary[vocabulary.sep_token]}

    def features(self, instances: Sequence[Instance]) -> Features:
        """The features of sentences and pairs; of questions, those of all windows of their contexts."""
        if self._reading is not None:
            return self.windows(questions_of(instances)).features
        return self._read(
            [
                (instance.first,) if instance.second is None else (instance.first, instance.second)
                for instance in instances
            ]
        )

    def windows(self, questions: Sequence[Question]) -> Windows:
        """The windows of questions."""
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
    """The network of a deployment directory, from text to predictions.

    Parameters
    ----------
    directory : Path
        Of an export that computes the scores of a task.
    null_threshold : float, optional
        For question answering, instead of the export's: by how much the score of no answer must exceed that
        of the best answer.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load_deployment`; if the export has no task, or a threshold is given to one that answers no
        questions.

    Examples
    --------
    >>> for prediction in Predictor('deploy').predict(['a fine film', ('one sentence', 'and another')]):
    ...     print(prediction.label, prediction.probabilities)
    """

    def __init__(self, directory: Union[str, Path], *, null_threshold: Optional[float] = None):
        block, deployment = load_deployment(Path(directory))
        if null_threshold is not None:
            if deployment.reading is None:
                raise ValueError(
                    f'{directory}: a null threshold is for question answering, and this is an export of '
                    f'{deployment.head.kind if deployment.head.outputs else deployment.kind}'
                )
            deployment = dataclasses.replace(
                deployment, reading=dataclasses.replace(deployment.reading, null_threshold=null_threshold)
            )
        block.hybridize(static_alloc=True)  # not static_shape: lengths vary
        self._start(block, deployment)

    @classmethod
    def of(cls, block: Callable, deployment: Deployment) -> Predictor:
        """The predictor of a network in memory; it reads `TOKEN_INPUTS`."""
        predictor = cls.__new__(cls)
        predictor._start(block, deployment)
        return predictor

    def _start(self, block: Callable, deployment: Deployment) -> None:
        if deployment.kind != 'task':
            raise ValueError(
                f'this is an export of {deployment.kind}, which has no labels; export a fine-tuned model'
            )
        self._block, self._encoder = block, Encoder(deployment)
        self.head, self._reading = deployment.head, deployment.reading

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
            Sequences of a forward pass.
        ahead : int
            Batches of instances that are read at once and sorted by length.
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
        """The scores of the network, by instance, or by window and token."""
        places = (int(features.lengths.max()),) if self._reading else ()
        all_scores = np.zeros((len(features), *places, self.head.outputs), np.float32)
        for batch in sorted_batches(features, batch_size):
            (scores,) = run(self._block, batch, TOKEN_INPUTS)
            if self._reading is None:
                all_scores[batch.rows] = scores
            else:
                all_scores[batch.rows, : scores.shape[1]] = scores
        return all_scores

    def _label(self, scores: np.ndarray) -> Label:
        powers = np.exp(scores.astype(np.float64) - scores.max())
        shares = dict(zip(self.head.labels, (powers / powers.sum()).tolist()))
        return Label(max(shares, key=shares.get), shares)


def _as_instance(item: Union[str, Tuple[str, str], Instance]) -> Instance:
    if isinstance(item, Instance):
        return item
    return Instance(item) if isinstance(item, str) else Instance(*item)


def score(predictor: Predictor, labelled: Sequence[Instance]) -> float:
    """The score of predictions: accuracy, SQuAD's exact match, or Pearson's correlation, by the head.

    Raises
    ------
    ValueError
        If a label is none of the head's, or no number for a regression.
    """
    predictions = list(predictor.predict(labelled))
    wanted = [str(instance.label) for instance in labelled]
    if predictor.head.kind == 'regression':
        try:
            values = np.array([float(label) for label in wanted])
        except ValueError as error:
            raise ValueError(f'labelled file: {error}') from error
        return float(np.corrcoef(values, [prediction.value for prediction in predictions])[0, 1])
    if predictor.head.kind == 'question_answering':
        return float(np.mean([exact_match(answer.text, label) for answer, label in zip(predictions, wanted)]))
    unknown = sorted(set(wanted) - set(predictor.head.labels))
    if unknown:
        raise ValueError(
            f'labelled file: {", ".join(unknown[:9])} not among the labels {", ".join(predictor.head.labels)}'
        )
    return float(np.mean([prediction.label == label for prediction, label in zip(predictions, wanted)]))
