"""Sentences, pairs, or questions with their contexts to labels with probabilities, values, or answers."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..architecture.heads import Head
from ..network.running import TOKEN_INPUTS, run
from ..tasks.answers import Answer, best_answers, chosen_answer
from ..tasks.features import Features, make_reader, sorted_batches
from ..tasks.metrics import exact_match
from ..tasks.squad import Question, Windows, make_windows
from ..text.vocabulary import make_aligner
from .directory import Deployment, load_deployment
from .instances import Instance, check_texts


@dataclasses.dataclass(frozen=True)
class Label:
    """A label, its name for people, and the probabilities of all labels."""

    label: str
    probabilities: Dict[str, float]
    name: str = ''


@dataclasses.dataclass(frozen=True)
class Value:
    """The value of a regression."""

    value: float


Prediction = Union[Label, Value, Answer]


def record(instance: Instance, prediction: Prediction) -> Dict[str, Any]:
    """A prediction with the text that it is of, as JSON values.

    A sentence is ``text``, the other one of a pair ``pair``. A question is ``question``; its context, which
    may be long, is left out. ``id`` is what the file calls the instance, if it does.
    """
    known = {} if instance.id is None else {'id': instance.id}
    if isinstance(prediction, Answer):
        return {**known, 'question': instance.first, **dataclasses.asdict(prediction)}
    texts = {'text': instance.first, **({} if instance.second is None else {'pair': instance.second})}
    if isinstance(prediction, Value):
        return {**known, **texts, 'value': prediction.value}
    return {
        **known,
        **texts,
        'label': prediction.label,
        'name': prediction.name,
        'probabilities': prediction.probabilities,
    }


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
        self._head = deployment.head
        self._read = make_reader(vocabulary, max_length=length)
        self._align = make_aligner(vocabulary)
        self._ids = {'cls_id': vocabulary[vocabulary.cls_token], 'sep_id': vocabulary[vocabulary.sep_token]}

    def features(self, instances: Sequence[Instance]) -> Features:
        """The features of sentences and pairs; of questions, those of all windows of their contexts.

        Raises
        ------
        ValueError
            If an instance has another number of texts than the task.
        """
        for instance in instances:
            check_texts(instance, self._head)
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
    questions = []
    for i, instance in enumerate(instances):
        check_texts(instance, Head('question_answering'))
        questions.append(Question(str(i), instance.first, str(instance.second), ()))
    return questions


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
            return [
                chosen_answer(answers, null, reading.null_threshold) for answers, null in zip(best, nulls)
            ]
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
        label = max(shares, key=shares.get)
        return Label(label, shares, self.head.name_of(label))


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
        return float(
            np.mean(
                [
                    max(exact_match(answer.text, text) for text in instance.answers or [str(instance.label)])
                    for instance, answer in zip(labelled, predictions)
                ]
            )
        )
    for instance, label in zip(labelled, wanted):
        if label not in predictor.head.labels:
            raise ValueError(
                f'{instance.source or "labelled file"}: {label!r:.60} is not among the labels '
                f'{", ".join(predictor.head.labels)}'
            )
    return float(np.mean([prediction.label == label for prediction, label in zip(predictions, wanted)]))
