"""The objective of fine-tuning: the loss of a task, measured after every epoch on its held-out sets."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from gluonnlp.base import get_home_dir
from mxnet import autograd

from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import INITIAL_STD, Parameters, network_shapes
from ..network.inputs import TOKEN_INPUTS
from ..network.losses import TaskLoss
from ..network.model import OptBERTModel
from ..network.running import feed_of
from ..network.saved_model import SavedModel
from ..runs.display import tracked
from ..runs.files import fetching, reason
from ..runs.progress import Epoch, Progress, marked
from ..tasks.features import Features, TaskBatch, evaluation_batches, training_batches
from ..training.distributed import Workers
from ..training.objective import Objective, Phase
from .recipe import FineTuneRecipe

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A data set made ready for one network."""

    name: str
    head: Head
    train: Features
    heldout: Mapping[str, Features]  # the first decides which epoch is best
    metric: str  # that decides, of those that `score` gives
    score: Callable[[str, np.ndarray], dict[str, float]]  # held-out set, its scores → percents by name
    test: Mapping[str, Features]  # to predict only
    # the scores of every held-out set and test set → what to leave beside the model, by file name
    files: Callable[[Mapping[str, np.ndarray]], Mapping[str, bytes]]
    samples: Mapping[str, int]  # how many are used of each set, in the units of the data set
    majority: Mapping[str, float]  # percents of the commonest answer, by set and score: ``dev/accuracy``
    # held-out set, its scores → what every instance is credited with, from 0 to 1, whose mean is `metric`;
    # None where `metric` is no mean over instances
    credits: Callable[[str, np.ndarray], np.ndarray] | None = None

    @property
    def decisive(self) -> str:
        """The measurement that decides, ``dev/accuracy``."""
        return f'{next(iter(self.heldout))}/{self.metric}'

    def marks(self, scores: Mapping[str, np.ndarray]) -> dict[str, str] | None:
        """A mark for each instance of the held-out sets whose scores are given, as of `marked`; None where
        `metric` is no mean over instances.
        """
        credits = self.credits
        return {name: marked(credits(name, own)) for name, own in scores.items()} if credits else None


def data_directory(
    chosen: Path | None, home: str, files: Sequence[str], load: Callable[[str, str], Any], workers: Workers
) -> Path:
    """The directory of the files of a data set: the user's, which is `chosen`, or GluonNLP's own, called
    `home`.

    GluonNLP fetches those of the files that its directory lacks: `load` takes a file's name without its
    ending, and its directory. FileNotFoundError if the directory is not there, or nothing can be fetched.
    """
    if chosen is not None:
        if not Path(chosen).is_dir():
            raise FileNotFoundError(f'{chosen}: no such directory')
        return Path(chosen)
    directory = Path(get_home_dir(), 'datasets', home).expanduser()
    for path in (directory / file for file in files if workers.local_rank == 0):
        try:
            if not path.is_file():
                with fetching(path):
                    load(path.stem, str(path.parent))
        except Exception as error:  # whatever sockets, zip files and checksums raise
            raise FileNotFoundError(
                f'{path}: GluonNLP could not fetch it ({reason(error)}); put the files '
                'there yourself, or give their directory with --data'
            ) from error
    workers.barrier('fetched')
    return directory


def check_fits(max_length: int, saved: SavedModel, *, pairs: bool, name: str = 'the network') -> None:
    """Raise ValueError if a network has fewer positions than an instance may have tokens, or reads pairs of
    texts and has no token type for the second one; the message has its name.
    """
    if pairs and saved.architecture.token_types < 2:
        raise ValueError(f'instances are pairs of texts, and {name} has one token type')
    positions = saved.architecture.max_length
    if max_length > positions:
        raise ValueError(f'max_length is {max_length}, and {name} has {positions} positions')


def labels_remedy(own: Head, wanted: Head) -> str:
    """The part of a message on heads whose labels may be the same under other names; empty if they cannot."""
    if own.kind != wanted.kind or len(own.labels) != len(wanted.labels) or not own.labels:
        return ''
    if own.of_another_task(wanted):
        return ''
    return (
        f'--labels {",".join(f"{label}=…" for label in own.labels)} says which of {", ".join(wanted.labels)} '
        'each of its labels is; or '
    )


def in_labels_of(saved: SavedModel, head: Head) -> SavedModel:
    """A model with the head of a task, its scores in the order of the task's labels, if its own head is one
    for these labels; else the same model.
    """
    rows = None if saved.head == head else head.rows_in(saved.head)
    if rows is None:
        return saved
    scores = {name: saved.parameters[name][rows] for name in ('task.weight', 'task.bias') if rows}
    if saved.head.labels != head.labels:
        pairs = (f'{saved.head.labels[row]} is {label}' for row, label in zip(rows, head.labels))
        LOG.warning('of the labels of the network %s', ', '.join(pairs))
    return dataclasses.replace(saved, head=head, parameters={**saved.parameters, **scores})


def start_parameters(saved: SavedModel, head: Head, *, seed: int) -> Parameters:
    """The parameters that fine-tuning begins with: the encoder as it is, and a new head unless there is this
    one already, perhaps without the name of its task, or with its labels in another order or other capitals.

    The model is without gates; the seed is that of the head's weights. Raises ValueError if the network has
    the head of another task.
    """
    saved = in_labels_of(saved, head)
    if saved.head == head:
        return dict(saved.parameters)
    if saved.head != PRETRAINING:
        raise ValueError(
            f'the network has the head of {saved.head.described}, and {head.described} wants another; '
            + labels_remedy(saved.head, head)
            + 'start from the network as it was pre-trained or pruned'
        )
    shapes = network_shapes(saved.architecture, head)
    weight = np.random.RandomState(seed).normal(0.0, INITIAL_STD, shapes['task.weight']).astype(np.float32)
    new = {'task.weight': weight, 'task.bias': np.zeros(shapes['task.bias'], np.float32)}
    return {name: new[name] if name in new else saved.parameters[name] for name in shapes}


def predict(model: OptBERTModel, features: Features, workers: Workers, *, tokens: int) -> np.ndarray:
    """The scores of all instances by a model with the head of a task, on every worker: float32 of the shape
    (instances, outputs), or (instances, longest, outputs) where not pooled; in batches of so many tokens,
    padding counted.
    """
    of_tokens = () if model.head.pooled else (int(features.lengths.max()),)
    scores = np.zeros((len(features), *of_tokens, model.head.outputs), np.float32)
    batches = evaluation_batches(features, tokens=tokens, rank=workers.rank, workers=workers.size)
    several = {'unit': 'text', 'size': lambda batch: len(batch.rows) * workers.size}
    for batch in tracked(batches, 'scoring', len(features), quiet=not workers.first, **several):
        feed = feed_of(batch, TOKEN_INPUTS, ctx=workers.context())
        with autograd.predict_mode():
            outputs = model(*feed.values())  # with the states of all layers, the scores come last
            output = (outputs[-1] if isinstance(outputs, (list, tuple)) else outputs).asnumpy()
        scores[batch.rows, : output.shape[1]] = output  # of tokens, the longest of this batch alone
    return workers.total(scores, name='scores')


class FineTuning(Objective):
    """The loss of a task, the mean over the instances of the global batch."""

    losses = ('loss',)

    def __init__(self, model: OptBERTModel, workers: Workers, exercise: Exercise, recipe: FineTuneRecipe):
        super().__init__(model, workers)
        self._exercise, self._recipe = exercise, recipe
        self.returns_to_best = recipe.select == 'best'
        self._loss = TaskLoss(exercise.head)
        self._loss.hybridize(static_alloc=True)
        self.heldout_scores: dict[str, np.ndarray] = {}  # of the last evaluation
        self._began = time.perf_counter()

    def seconds(self) -> float:
        """Time since the beginning, without that of steps which were lost before the run was resumed."""
        return time.perf_counter() - self._began

    def memory(self) -> dict[str, np.ndarray]:
        return {'seconds': np.array([self.seconds()])}

    def recall(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._began -= float(np.sum(arrays.get('seconds', 0.0)))

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        return training_batches(
            self._exercise.train,
            batch_size=phase.batch_size,
            seed=phase.seed,
            start=start,
            rank=self.workers.rank,
            workers=self.workers.size,
            batching=self._recipe.batching,
        )

    def loss_sums(self, batch: TaskBatch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        names = (*TOKEN_INPUTS, 'labels', 'instance_weights')
        *inputs, labels, weights = feed_of(batch, names, rows=rows, ctx=self.workers.context()).values()
        lengths = inputs[2:] if self.model.head.kind == 'question_answering' else ()
        return (self._loss(self.model(*inputs), labels, weights, *lengths),)

    def totals(self, batch: TaskBatch) -> tuple[int]:
        return (batch.instance_total,)

    def scores(self, sets: Mapping[str, Features]) -> dict[str, np.ndarray]:
        """The network's scores of some sets, by name."""
        tokens = self._recipe.evaluation_tokens
        return {name: predict(self.model, own, self.workers, tokens=tokens) for name, own in sets.items()}

    def evaluate(self, phase: Phase) -> dict[str, float]:
        self.heldout_scores = self.scores(self._exercise.heldout)
        return {
            f'{name}/{metric}': value
            for name, scores in self.heldout_scores.items()
            for metric, value in self._exercise.score(name, scores).items()
        }

    def remember(self, progress: Progress, measured: Mapping[str, float], step: int) -> Progress:
        before = progress.epochs or ()
        epochs = (*before, Epoch(len(before) + 1, step, dict(measured)))
        progress = progress.updated(epochs=epochs)
        if self.returns_to_best:
            best = max(epochs, key=lambda epoch: epoch.scores[self._exercise.decisive])
            progress = progress.updated(best_step=best.step)
        return progress
