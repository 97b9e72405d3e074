"""From text to predictions or embeddings: labels with probabilities, values, answers, vectors."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.architecture import Architecture, described_html
from ..network.embedding import embedded
from ..network.inputs import TOKEN_INPUTS
from ..runs.display import number_of
from ..tasks.features import Features, TaskBatch, bucket_width, bucketed_batches, cut_note, make_reader
from ..tasks.metrics import entities
from ..tasks.squad import Answer, Question, Windows, best_answers, chosen_answer, make_question_reader
from ..tasks.tagging import make_tag_reader, split_words
from .description import NETWORK_FILES, ONNX, SHORTEST, Deployment, check_long, read_description
from .engines import Engine, MXNet, chosen_engine, make_engine, sound_outputs
from .instances import Instance, check_texts

Text = str | tuple[str, str] | Instance
LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Label:
    """A label, its name for people, and the probabilities of all labels."""

    label: str
    probabilities: dict[str, float]
    name: str = ''
    cut: bool = False  # whether the end of the text was left out


@dataclasses.dataclass(frozen=True)
class Value:
    """The value of a regression."""

    value: float
    cut: bool = False  # whether the end of the text was left out


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels with a probability of more than one half, their names, and the probabilities of all."""

    labels: tuple[str, ...]
    names: tuple[str, ...]
    probabilities: dict[str, float]
    cut: bool = False  # whether the end of the text was left out


@dataclasses.dataclass(frozen=True)
class Entity:
    """A part of a text with a label, by its characters, and the mean of the probabilities of its tags."""

    label: str
    text: str
    start: int
    end: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Tags:
    """The entities in a text, and its words with a tag each."""

    entities: tuple[Entity, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]


Prediction = Label | Labels | Value | Answer | Tags


def record(instance: Instance, prediction: Prediction) -> dict[str, Any]:
    """A prediction with the text that it is of, as JSON values.

    A sentence is ``text``, the other one of a pair ``pair``. A question is ``question``; its context, which
    may be long, is left out. ``id`` is what the file calls the instance, if it does. ``cut`` is there if the
    end of a text was left out.
    """
    if isinstance(prediction, Answer):
        texts = {'question': instance.first}
    else:
        texts = {'text': instance.first, **({} if instance.second is None else {'pair': instance.second})}
    values = dataclasses.asdict(prediction)
    if isinstance(prediction, Label):
        values = {name: values[name] for name in ('label', 'name', 'probabilities', 'cut')}
    if not values.get('cut', True):
        del values['cut']
    return {**({} if instance.id is None else {'id': instance.id}), **texts, **values}


class Encoder:
    """Text to the features that the network of an export reads; ValueError if it has too few positions."""

    def __init__(self, deployment: Deployment):
        length, vocabulary = deployment.architecture.max_length, deployment.vocabulary
        if length < SHORTEST:
            raise ValueError(f'the network reads {length} tokens, too few for a pair of sentences')
        self._head, self._reading = deployment.head, deployment.reading
        self.pairs = deployment.architecture.token_types > 1
        self.max_length = deployment.text_length or deployment.head.embedding.length(length)  # of texts
        split = deployment.long == 'split'
        self._read = make_reader(vocabulary, max_length=self.max_length, split=split)
        self._tag = make_tag_reader(vocabulary, max_length=deployment.text_length or length)
        self._ask = None if self._reading is None else make_question_reader(vocabulary, self._reading)

    def features(self, instances: Sequence[Instance]) -> Features:
        """The features of sentences and pairs; of questions, those of all windows of their contexts.

        ValueError if an instance has another number of texts than the task.
        """
        if self._reading is not None:
            return self.windows(instances)[1].features
        self._check(instances)
        if self._head.kind == 'token_classification':
            return self._tag([[word for word, _, _ in words_of(instance)] for instance in instances])
        texts = [(instance.first, instance.second) for instance in instances]
        return self._read([pair[:1] if pair[1] is None else pair for pair in texts])

    def windows(self, instances: Sequence[Instance]) -> tuple[list[Question], Windows]:
        """Instances as questions, and their windows; ValueError as of `features`."""
        self._check(instances)
        questions = [Question(str(i), one.first, str(one.second), ()) for i, one in enumerate(instances)]
        assert self._ask is not None
        return questions, self._ask(questions)

    def _check(self, instances: Sequence[Instance]) -> None:
        for instance in instances:
            check_texts(instance, self._head)
            if instance.second is not None and not self.pairs:
                raise ValueError(
                    f'{instance.source or "pair"}: two texts, and the network has one token type, so that it '
                    f'cannot tell them apart: {instance.first!r:.60} and {instance.second!r:.60}'
                )


def words_of(instance: Instance) -> list[tuple[str, int, int]]:
    """The words of a text and where each begins and ends."""
    if not instance.words:
        return [(instance.first[first:end], first, end) for first, end in split_words(instance.first)]
    ends = np.cumsum([len(word) + 1 for word in instance.words]) - 1
    return [(word, int(end) - len(word), int(end)) for word, end in zip(instance.words, ends)]


def check_inputs(architecture: Architecture, feed: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless inputs fit each other, and the network has a row or a position for each number.

    MXNet does not check this: it takes the last row of a table for every index beyond it.
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
        if not (least <= low and high < end):  # nor NaN
            raise ValueError(
                f'{name} from {low:g} to {high:g}, and they must lie between {least} and {end - 1}'
            )
        broken = feed[name] % 1 != 0
        if broken.any():
            raise ValueError(f'{name} must be whole numbers, found {feed[name][broken][0]}')


class Predictor:
    """The network of a deployment directory, from text to predictions or embeddings.

    Parameters
    ----------
    directory : Path
        Of an export that computes the scores of a task, for `predict`; or of an encoder, for `encode`.
    engine : str, optional
        ``onnxruntime`` or ``openvino``, which read ``model.onnx``, or ``mxnet``; by default ONNX Runtime
        where it is installed and the directory has that file, else MXNet, else OpenVINO.
    threads : int, optional
        By default one for each core that this process may use and no other program uses now. MXNet takes its
        threads while it is loaded, and keeps them.
    precision : str, optional
        ``bfloat16``, for OpenVINO on a processor that has it; or that of one of the ONNX files, such as
        ``int8 dynamic``. By default that of the export.
    null_threshold : float, optional
        For question answering, instead of the export's: by how much the score of no answer must exceed that
        of the best answer.
    long : str, optional
        What is done with a text that is too long, instead of what the export does: ``cut``, or ``split`` into
        windows, of whose scores the mean is taken.

    Attributes
    ----------
    head : Head
    engine : Engine
        What computes, with its ``name``, ``version`` and ``precision``.
    threads, choice : int, ThreadChoice
        How many threads it has, and why.
    pairs : bool
        Whether the network can tell two texts apart: it has two token types.
    max_length : int
        Tokens of a text that are read at once.
    long : str
        What is done with a text that has more: ``cut``, or ``split`` into windows.
    texts, cut : int
        Sentences and pairs that were read so far, and those of them that were cut. Questions and sentences to
        tag are not counted: they are read in windows.
    problem : str, optional
        Why nothing that it computes can be trusted, once that is known.

    Raises
    ------
    FileNotFoundError, ValueError
        If the directory is no export, was changed, computes no numbers, or has no file for the engine; if a
        threshold is given to an export that answers no questions.
    NotInstalled
        If the library of the engine is missing.

    Examples
    --------
    >>> for prediction in Predictor('deploy').predict(['a fine film', 'a dull one']):
    ...     print(prediction.label, prediction.probabilities)
    >>> embeddings = Predictor('deploy-encoder').encode(['a fine film', 'a dull one'])
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        engine: str | None = None,
        threads: int | None = None,
        precision: str | None = None,
        null_threshold: float | None = None,
        long: str | None = None,
    ):
        directory = Path(directory)
        if not (directory / 'manifest.json').is_file():
            read_description(directory)  # which says what is missing
        name = chosen_engine(directory, engine)
        deployment = read_description(directory, needs=NETWORK_FILES if name == 'mxnet' else (ONNX,))
        reading = deployment.reading
        if null_threshold is not None:
            if not math.isfinite(null_threshold):
                raise ValueError(f'null_threshold must be finite, found {null_threshold}')
            if reading is None:
                raise ValueError(
                    f'{directory}: a null threshold is for question answering, and this is an export of '
                    f'{deployment.head.kind if deployment.head.outputs else deployment.kind}'
                )
            reading = reading.replace(null_threshold=null_threshold)
            deployment = dataclasses.replace(deployment, reading=reading)
        if long is not None:
            long = check_long(long, deployment.head, source=f'{directory}: long')
            if not deployment.head.pooled:
                raise ValueError(
                    f'{directory}: long is {long!r}, and a {deployment.head.kind.replace("_", " ")} reads '
                    'long texts in windows or in parts, always; leave out --long'
                )
            deployment = dataclasses.replace(deployment, long=long)
        loaded = make_engine(directory, deployment, name, threads=threads, precision=precision)
        self._start(loaded, deployment)
        LOG.info('%s: %s, %s', directory, loaded, loaded.choice)

    @classmethod
    def of(cls, block: Callable, deployment: Deployment) -> Predictor:
        """The predictor of a network of MXNet in memory, with the inputs and outputs of an export."""
        return cls.by(MXNet(block, deployment), deployment)

    @classmethod
    def by(cls, engine: Engine, deployment: Deployment) -> Predictor:
        """The predictor of a network that an engine computes."""
        predictor = cls.__new__(cls)
        predictor._start(engine, deployment)
        return predictor

    def _start(self, engine: Engine, deployment: Deployment) -> None:
        self.engine, self.choice, self.threads = engine, engine.choice, engine.choice.threads
        self._encoder, self._deployment = Encoder(deployment), deployment
        self.head, self._reading = deployment.head, deployment.reading
        self.max_length = self._reading.max_length if self._reading else self._encoder.max_length
        self.long = deployment.long if self.head.pooled else 'split'
        self.texts = self.cut = 0
        self.problem: str | None = None
        self.pairs = self._encoder.pairs

    def __repr__(self) -> str:
        deployment = self._deployment
        what = deployment.head.described if deployment.head.outputs else f'an export of {deployment.kind}'
        return (
            f'predictor for {what}\n{deployment.architecture!r}\n'
            f'{self.engine}, {number_of(self.threads, "thread")}'
        )

    def _repr_html_(self) -> str:
        return described_html(self, self._deployment.architecture)

    @property
    def cut_note(self) -> str:
        """Number of texts that were cut so far, in words, and what would help; empty if none."""
        if not self.cut:
            return ''
        remedy = '; --long split' * (self._deployment.kind == 'task')
        return cut_note(self.cut, self.texts, self.max_length) + remedy

    def _features(self, instances: Sequence[Instance]) -> Features:
        """The features of instances, which are counted."""
        features = self._encoder.features(instances)
        self.texts += len(instances)
        self.cut += int(features.cut.sum())
        return features

    def outputs(
        self,
        input_ids: np.ndarray,
        token_types: np.ndarray | None = None,
        valid_length: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Outputs of the network for token ids, by the names of the manifest.

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
            If a token is not in the vocabulary or no whole number, a sequence is longer than the network's
            positions, or what the network computes is no number.
        """
        input_ids = np.atleast_1d(input_ids)
        token_types = np.zeros_like(input_ids) if token_types is None else token_types
        valid_length = np.full(len(input_ids), input_ids.shape[-1]) if valid_length is None else valid_length
        feed = {
            'input_ids': input_ids,
            'token_types': np.asarray(token_types),
            'valid_length': np.asarray(valid_length),
            'masked_positions': np.zeros((len(input_ids), 1)),  # for an export of pre-training
        }
        check_inputs(self._deployment.architecture, feed)
        try:
            return sound_outputs(self.engine.outputs(feed), self._deployment.outputs)
        except ValueError as error:
            self.problem = str(error)
            raise

    def encode(
        self,
        texts: Iterable[Text],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        batch_size: int = 32,
    ) -> np.ndarray:
        """An embedding of every text.

        Parameters
        ----------
        texts : iterable of str, of (str, str) or of Instance
            Sentences, or pairs. They are cut to the length of the network's embedding, or else to its
            positions.
        pooling : str, optional
            One of `POOLINGS`; that of the network's embedding unless given.
        normalise : bool, optional
            Whether every embedding is divided by its length; as in the network's embedding unless given.
        batch_size : int
            Sequences of a forward pass.

        Returns
        -------
        np.ndarray of float32, shape (texts, width of the embedding)

        Raises
        ------
        TypeError, ValueError
            If the export has no encoded tokens, `pooling` is unknown, `batch_size` is below 1, or the texts
            are none.
        """
        head = self._deployment.head
        if 'encoded' not in self._deployment.outputs:
            raise ValueError(
                f'this is an export of a {head.kind.replace("_", " ")}, which has no embeddings; export the '
                'model that it was fine-tuned from'
            )
        _check_counts(batch_size=batch_size)
        embedding = head.embedding.changed(pooling=pooling, normalise=normalise)
        features = self._features(list(_instances(texts)))
        width = embedding.width(self._deployment.architecture.h)
        embeddings = np.zeros((len(features), width), np.float32)
        for batch, outputs in self._computed(features, batch_size):
            embeddings[batch.rows] = embedded(
                outputs['encoded'], batch.valid_length, embedding, self._deployment.dense
            )
        return embeddings

    def predict(
        self, instances: Iterable[Text], *, batch_size: int = 32, ahead: int = 16
    ) -> Iterator[Prediction]:
        """A `Label`, `Labels`, a `Value`, an `Answer` or `Tags` for each instance, in their order.

        Parameters
        ----------
        instances : iterable of str, of (str, str) or of Instance
            Sentences, pairs, or questions with their contexts; read as they are needed.
        batch_size, ahead : int
            Sequences of a forward pass, and how many such batches are read at once and sorted by length.

        Raises
        ------
        TypeError, ValueError
            If the export has no task, an instance has another number of texts than the task or is none, or
            `batch_size` or `ahead` is below 1.
        """
        _check_counts(batch_size=batch_size, ahead=ahead)
        if self._deployment.kind != 'task':
            raise ValueError(
                f'this is an export of {self._deployment.kind}, which has no labels; export a fine-tuned '
                'model, or take embeddings'
            )
        return self._predictions(_instances(instances), batch_size, ahead)

    def _predictions(
        self, instances: Iterator[Instance], batch_size: int, ahead: int
    ) -> Iterator[Prediction]:
        while some := list(itertools.islice(instances, batch_size * ahead)):
            if self._reading is not None:
                questions, windows = self._encoder.windows(some)
                scores = self._scores(windows.features, batch_size)
                best, nulls = best_answers(questions, windows, scores, self._reading)
                for pair in zip(best, nulls):
                    yield chosen_answer(*pair, self._reading.null_threshold)
            elif self.head.kind == 'token_classification':
                yield from self._tags(some, batch_size)
            else:
                features = self._features(some)
                scores = features.by_text(self._scores(features, batch_size))
                for own, cut in zip(scores, features.cut):
                    yield self._predicted(own, bool(cut))

    def _scores(self, features: Features, batch_size: int) -> np.ndarray:
        """The scores of the network, by instance, or by window and token."""
        most = self._deployment.architecture.max_length
        places = () if self.head.pooled else (bucket_width(int(features.lengths.max()), most),)
        scores = np.zeros((len(features), *places, self.head.outputs), np.float32)
        for batch, outputs in self._computed(features, batch_size):
            scores[batch.rows, : outputs['scores'].shape[1]] = outputs['scores']
        return scores

    def _computed(
        self, features: Features, batch_size: int
    ) -> Iterator[tuple[TaskBatch, dict[str, np.ndarray]]]:
        """Batches of features, and what the network computes of each."""
        for batch in bucketed_batches(features, batch_size, self._deployment.architecture.max_length):
            yield batch, self.outputs(batch.input_ids, batch.token_types, batch.valid_length)

    def _tags(self, instances: Sequence[Instance], batch_size: int) -> Iterator[Tags]:
        features = self._encoder.features(instances)
        scores = features.by_text(self._scores(features, batch_size))
        for instance, own in zip(instances, scores):
            words, shares = words_of(instance), _shares(own)
            tags = tuple(self.head.labels[number] for number in own.argmax(axis=1))
            found = []
            for kind, first, last in entities(tags, self.head.labels):
                start, end = words[first][1], words[last - 1][2]
                probability = float(shares[first:last].max(axis=1).mean())
                found.append(Entity(kind, instance.first[start:end], start, end, probability))
            yield Tags(tuple(found), tuple(word for word, _, _ in words), tags)

    def _predicted(self, scores: np.ndarray, cut: bool) -> Value | Labels | Label:
        """The prediction that the scores of a text stand for."""
        if self.head.kind == 'regression':
            return Value(float(scores[0]), cut)
        if self.head.kind == 'multi_label':
            shares = dict(zip(self.head.labels, (1 / (1 + np.exp(-scores.astype(np.float64)))).tolist()))
            chosen = tuple(label for label, share in shares.items() if share > 0.5)
            return Labels(chosen, tuple(map(self.head.name_of, chosen)), shares, cut)
        shares = dict(zip(self.head.labels, _shares(scores).tolist()))
        label = max(shares, key=shares.get)
        return Label(label, shares, self.head.name_of(label), cut)


def _shares(scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores along the last axis."""
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _check_counts(**counts: int) -> None:
    """Raise TypeError or ValueError unless numbers of sequences or batches are whole, and at least 1."""
    for name, count in counts.items():
        if not isinstance(count, (int, np.integer)):
            raise TypeError(f'{name} must be a whole number, found {count!r:.60}')
        if count < 1:
            raise ValueError(f'{name} must be at least 1, found {count}')


_WANTED = "wanted several texts, ['a fine film', ...]: each a str, a pair (str, str) or an Instance"


def _instances(texts: Iterable[Text]) -> Iterator[Instance]:
    """Texts as instances; a lone text, or what has no texts, is a TypeError at once."""
    is_table = getattr(texts, 'ndim', 1) != 1  # pandas gives the names of its columns
    if isinstance(texts, (str, bytes, Mapping, Instance)) or is_table or not isinstance(texts, Iterable):
        raise TypeError(f'{_WANTED}; found {type(texts).__name__} {" ".join(repr(texts).split()):.60}')
    return (_instance(item, number) for number, item in enumerate(texts))


def _instance(item: Text, number: int) -> Instance:
    """The instance that one of several texts is."""
    if isinstance(item, Instance):
        parts = (item.first,) if item.second is None else (item.first, item.second)
    else:
        parts = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(f'text number {number} is {item!r:.80} ({type(item).__name__}); {_WANTED}')
    if len(parts) not in (1, 2):
        raise ValueError(f'text number {number} has {len(parts)} parts: {item!r:.80}; {_WANTED}')
    return item if isinstance(item, Instance) else Instance(*parts, source=f'text number {number}')
