"""Sentences, pairs, or questions with their contexts to labels with probabilities, values, answers or
embeddings.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from ..architecture.architecture import Architecture
from ..network.running import TOKEN_INPUTS, run
from ..tasks.answers import best_answers, chosen_answer
from ..tasks.features import Features, TaskBatch, sorted_batches
from .directory import Deployment, load_deployment
from .instances import Instance
from .predictions import Label, Prediction, Value
from .text_features import Encoder, questions_of

Text = Union[str, Tuple[str, str], Instance]
POOLINGS = ('mean', 'first')


def check_inputs(architecture: Architecture, feed: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless inputs fit each other, and the network has a row or a position for each number.

    MXNet does not check this: it takes the last row of a table for every index beyond it.

    Parameters
    ----------
    architecture : Architecture
    feed : mapping of input name to np.ndarray
        ``input_ids`` and ``token_types`` of shape (batch, length), ``valid_length`` of shape (batch,).
    """
    shapes = [feed[name].shape for name in TOKEN_INPUTS]
    if len(shapes[0]) != 2 or shapes != [shapes[0], shapes[0], shapes[0][:1]] or 0 in shapes[0]:
        raise ValueError(
            f'inputs of the shapes {", ".join(map(str, shapes))}, wanted (batch, length) twice and (batch,)'
        )
    length = shapes[0][1]
    if length > architecture.max_length:
        raise ValueError(
            f'sequences of {length} tokens, and the network has {architecture.max_length} positions'
        )
    for name, least, end in (
        ('input_ids', 0, architecture.vocab_size),
        ('token_types', 0, architecture.token_types),
        ('valid_length', 1, length + 1),
    ):
        low, high = feed[name].min(), feed[name].max()
        if low < least or high >= end:
            raise ValueError(
                f'{name} from {low:g} to {high:g}, and they must lie between {least} and {end - 1}'
            )


class Predictor:
    """The network of a deployment directory, from text to predictions or embeddings.

    Parameters
    ----------
    directory : Path
        Of an export that computes the scores of a task, for `predict`; or of an encoder, for `encode`.
    null_threshold : float, optional
        For question answering, instead of the export's: by how much the score of no answer must exceed that
        of the best answer.

    Raises
    ------
    FileNotFoundError, ValueError
        As `load_deployment`; if a threshold is given to an export that answers no questions.

    Examples
    --------
    >>> for prediction in Predictor('deploy').predict(['a fine film', 'a dull one']):
    ...     print(prediction.label, prediction.probabilities)
    >>> embeddings = Predictor('deploy-encoder').encode(['a fine film', 'a dull one'])
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
        """The predictor of a network in memory, with the inputs and outputs of an export."""
        predictor = cls.__new__(cls)
        predictor._start(block, deployment)
        return predictor

    def _start(self, block: Callable, deployment: Deployment) -> None:
        self._block, self._encoder, self._deployment = block, Encoder(deployment), deployment
        self.head, self._reading = deployment.head, deployment.reading

    def outputs(
        self,
        input_ids: np.ndarray,
        token_types: Optional[np.ndarray] = None,
        valid_length: Optional[np.ndarray] = None,
    ) -> Dict[str, np.ndarray]:
        """What the network computes from token ids, by the names of the manifest.

        Parameters
        ----------
        input_ids : np.ndarray of int, shape (batch, length)
            Lines of ``vocab.txt``, counted from 0.
        token_types : np.ndarray of int, shape (batch, length), optional
            0 for the first segment and 1 for the second; all 0 unless given.
        valid_length : np.ndarray of int, shape (batch,), optional
            Tokens before the padding; the whole length unless given.

        Raises
        ------
        ValueError
            If a token is not in the vocabulary, or a sequence is longer than the network's positions.
        """
        input_ids = np.asarray(input_ids)
        feed = {
            'input_ids': input_ids,
            'token_types': np.zeros_like(input_ids) if token_types is None else np.asarray(token_types),
            'valid_length': np.full(len(input_ids), input_ids.shape[-1])
            if valid_length is None
            else np.asarray(valid_length),
            'masked_positions': np.zeros(
                (len(input_ids), 1)
            ),  # for an export with the scores of pre-training
        }
        check_inputs(self._deployment.architecture, feed)
        return dict(zip(self._deployment.outputs, run(self._block, feed, self._deployment.inputs)))

    def encode(
        self, texts: Iterable[Text], *, pooling: str = 'mean', normalise: bool = True, batch_size: int = 32
    ) -> np.ndarray:
        """An embedding of every text.

        Parameters
        ----------
        texts : iterable of str, of (str, str) or of Instance
            Sentences, or pairs; what is longer than the network's positions is cut.
        pooling : str
            ``mean``: of the encoded tokens, [CLS] and [SEP] included and padding left out. ``first``: the
            encoded first token, [CLS].
        normalise : bool
            Whether every embedding is divided by its length, so that products are cosines.
        batch_size : int
            Sequences of a forward pass.

        Returns
        -------
        np.ndarray of float32, shape (texts, h)

        Raises
        ------
        ValueError
            If the export has no encoded tokens, or `pooling` is unknown.
        """
        deployment = self._deployment
        if 'encoded' not in deployment.outputs:
            raise ValueError(
                f'this is an export of a {deployment.head.kind.replace("_", " ")}, which has no embeddings; '
                'export the model that it was fine-tuned from'
            )
        if pooling not in POOLINGS:
            raise ValueError(f'pooling must be one of {", ".join(POOLINGS)}, found {pooling!r}')
        features = self._encoder.features([_as_instance(text) for text in texts])
        embeddings = np.zeros((len(features), deployment.architecture.h), np.float32)
        for batch in sorted_batches(features, batch_size) if len(features) else ():
            encoded = self._batch_outputs(batch)['encoded']  # (b, length, h), zero at the padding
            embeddings[batch.rows] = (
                encoded[:, 0]
                if pooling == 'first'
                else encoded.sum(axis=1) / batch.valid_length[:, np.newaxis]
            )
        if normalise:
            embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        return embeddings

    def predict(
        self, instances: Iterable[Text], *, batch_size: int = 32, ahead: int = 16
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

        Raises
        ------
        ValueError
            If the export has no task, or an instance has another number of texts than the task.
        """
        if self._deployment.kind != 'task':
            raise ValueError(
                f'this is an export of {self._deployment.kind}, which has no labels; export a fine-tuned '
                'model, or take embeddings'
            )
        return self._predictions(iter(instances), batch_size, ahead)

    def _predictions(self, instances: Iterator[Text], batch_size: int, ahead: int) -> Iterator[Prediction]:
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
            scores = self._batch_outputs(batch)['scores']
            if self._reading is None:
                all_scores[batch.rows] = scores
            else:
                all_scores[batch.rows, : scores.shape[1]] = scores
        return all_scores

    def _batch_outputs(self, batch: TaskBatch) -> Dict[str, np.ndarray]:
        return self.outputs(batch.input_ids, batch.token_types, batch.valid_length)

    def _label(self, scores: np.ndarray) -> Label:
        powers = np.exp(scores.astype(np.float64) - scores.max())
        shares = dict(zip(self.head.labels, (powers / powers.sum()).tolist()))
        label = max(shares, key=shares.get)
        return Label(label, shares, self.head.name_of(label))


def _as_instance(item: Text) -> Instance:
    if isinstance(item, Instance):
        return item
    return Instance(item) if isinstance(item, str) else Instance(*item)
