"""Progress of training, for checkpoints and model directories: ``progress.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pydantic
from pydantic import StrictFloat, StrictInt
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from .files import checked

MARK = '*'  # behind a score that is no better than the majority class's
NOTE = f'{MARK} no better than the majority class, which needs no network'
OPTIMISTIC = 'the learning rate was chosen on the set that is scored, so the scores are optimistic'
_ROUNDING = 1e-6  # percent; means over seeds of equal scores differ by less


def exceeds(score: float, majority: float | None) -> bool:
    """Whether a score is better than the majority class's; true where that is not known."""
    return majority is None or score > majority + _ROUNDING


def difference_error(one: np.ndarray, other: np.ndarray) -> float | None:
    """The standard error of the difference of two scores that are means over instances, in percentage points,
    taken instance by instance; None for a single instance.

    Parameters
    ----------
    one, other : np.ndarray, shape (instances,)
        What each instance was credited with, from 0 to 1, or the mean of that over networks.
    """
    if len(one) < 2:
        return None
    apart = np.asarray(other, dtype=float) - np.asarray(one, dtype=float)
    return 100 * float(apart.std(ddof=1)) / len(apart) ** 0.5


_MARKS = '0abcdefghijklmnopqrstuvwxyz1'
_STEPS = {mark: step for step, mark in enumerate(_MARKS)}


def marked(credits: np.ndarray) -> str:
    """A mark for each instance of what it was credited with, shape (instances,), from 0 to 1: 1 for an answer
    that is right, 0 for one that is wrong, else a letter, from a for 1/27 to z for 26/27.
    """
    full = len(_MARKS) - 1
    steps = np.clip(np.rint(full * credits), credits > 0, full - (credits < 1)).astype(int)
    return ''.join(_MARKS[step] for step in steps)


def paired_errors(
    gains: Sequence[float], one: Sequence[str] = (), other: Sequence[str] = ()
) -> list[tuple[float, int]]:
    """The parts of `paired_error` that are known: squared standard errors, and their degrees of freedom."""
    parts = [(float(np.var(gains, ddof=1)) / len(gains), len(gains) - 1)] if len(gains) > 1 else []
    if one and other and len({len(marks) for marks in (*one, *other)}) == 1:
        credits = (
            np.array([[_STEPS.get(mark, 0) for mark in marks] for marks in side]) for side in (one, other)
        )
        of_instances = difference_error(*(seeds.mean(axis=0) / (len(_MARKS) - 1) for seeds in credits))
        parts += [] if of_instances is None else [(of_instances**2, len(one[0]) - 1)]
    return parts


def paired_error(gains: Sequence[float], one: Sequence[str] = (), other: Sequence[str] = ()) -> float | None:
    """The standard error of a mean difference of scores over seeds, in percentage points: that of the seeds
    and, where `marked` of the same instances is known of both, that of the instances; None without either.
    """
    squares = [square for square, _ in paired_errors(gains, one, other)]
    return sum(squares) ** 0.5 if squares else None


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean of some values, and their sample deviation; None of a single one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def score_text(
    mean: float, std: float | None = None, *, majority: float | None = None, digits: int = 1
) -> str:
    """A score in percent for people, such as ``81.7 ± 0.4``; `MARK` stands behind one that is no better than
    `majority`, the score of always giving the majority class. A single run has no deviation.
    """
    spread = '' if std is None else f' ± {std:.{digits}f}'
    return f'{mean:.{digits}f}{spread}' + ('' if exceeds(mean, majority) else f' {MARK}')


GATES = 'gates.json'  # of a round
RESULT, RESULT_FORMAT = 'result.json', 'gluon_optbert fine-tuning'  # of a fine-tuning run
CLEAR = 2  # standard errors of a difference or a correlation: chance stays within so many in 95 of 100 cases
CLOSED, OPEN = 0.05, 0.95  # of where a gate starts: below the one it is closed, above the other open


# What a round does to a network; recovery also starts from the cut, where the fit of the layers was left out.
CUT, RECOVERY = 'cut', 'recovery'
Number = StrictInt | StrictFloat
R = TypeVar('R', bound='Record')


class Record:
    """Base of what stands in JSON files: a frozen dataclass that pydantic checks."""

    @classmethod
    def from_dict(cls: type[R], values: Any, *, source: str = 'record') -> R:
        """The inverse of `to_dict`; ValueError, with the source, if it is none. More keys do not matter."""
        return checked(cls, values, source=source)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without those that are not known."""
        return to_jsonable_python(self, exclude_none=True)


@dataclass(frozen=True)
class HeldOut(Record):
    """Measurement of pre-training on held-out instances."""

    mlm_loss: Number  # nats per masked token
    mlm_accuracy: Number  # share of the masked tokens, from 0 to 1
    nsp_loss: Number | None = None  # nats per instance; None if these are no pairs
    nsp_accuracy: Number | None = None  # share of the instances, from 0 to 1
    _: dataclasses.KW_ONLY
    instances: Number  # that were looked at
    mlm_standard_error: Number | None = None  # of the MLM loss, as if the instances were independent

    @property
    def value(self) -> float:
        """The MLM loss, which decides."""
        return self.mlm_loss

    @property
    def loss(self) -> float:
        """Value that is smaller for a better network."""
        return self.mlm_loss

    @property
    def described(self) -> str:
        """For people."""
        return f'MLM loss {self.mlm_loss:.3f} on {self.instances:,} held-out instances'

    @property
    def standard_error(self) -> float | None:
        """Of the MLM loss."""
        return self.mlm_standard_error

    @property
    def fields(self) -> dict[str, Any]:
        """Values that a `Progress` keeps of it."""
        return self.to_dict()


@dataclass(frozen=True)
class TaskScores(Record):
    """Measurement of a network on the held-out sets of a task; None is what is not known."""

    scores: Mapping[str, Number]  # in percent, by held-out set and metric: ``dev/accuracy``
    metric: str  # of the score that decides
    instances: StrictInt  # that the deciding score is taken over
    standard_error: Number | None = None  # of the deciding score, in percentage points
    majority: Number | None = None  # the deciding score of one answer to all, in percent
    # where the deciding score is a mean over instances, an accuracy or an F1 of answers: `marked` of them
    right: str | None = None

    @pydantic.model_validator(mode='after')
    def _metric_is_a_score(self) -> TaskScores:
        if self.metric not in self.scores:
            raise ValueError(f'no score {self.metric!r:.80}')
        return self

    @property
    def described(self) -> str:
        """For people."""
        return f'{self.metric} {self.value:.2f} on {self.instances:,} held-out instances'

    @property
    def poor(self) -> bool:
        """Whether one answer to all does as well."""
        return not exceeds(self.value, self.majority)

    @property
    def value(self) -> float:
        """The deciding score, in percent."""
        return self.scores[self.metric]

    @property
    def loss(self) -> float:
        """Value that is smaller for a better network."""
        return -self.value

    @property
    def fields(self) -> dict[str, Any]:
        """Values that a `Progress` keeps of it."""
        return {'task_scores': self}


Measured = HeldOut | TaskScores


@dataclass(frozen=True)
class Epoch(Record):
    """Result of an epoch of fine-tuning; scores are in percent, by set and metric: ``dev/accuracy``."""

    epoch: int  # from 1 on
    step: int  # the last one of the epoch
    scores: Mapping[str, int | float]


@dataclass(frozen=True)
class Progress(Record):
    """Steps that a network was trained for, and what was measured of it; None is what a file does not say."""

    step: StrictInt | None = None  # of the last phase of pre-training, of recovery, or of fine-tuning
    earlier_steps: StrictInt | None = None  # of pre-training in the phases before, earlier recovery included
    head_steps: StrictInt | None = None  # of training heads alone, which is no pre-training
    untrained: tuple[str, ...] | None = None  # parts of an imported network that are random, of `PARTS`
    # of the last evaluation, as in `HeldOut`
    mlm_loss: Number | None = None
    mlm_accuracy: Number | None = None
    nsp_loss: Number | None = None
    nsp_accuracy: Number | None = None
    instances: Number | None = None
    mlm_standard_error: Number | None = None
    best_mlm_loss: Number | None = None  # the smallest of all evaluations
    # of states, and perhaps embeddings, from a teacher's, where no labels or scores are learnt
    state_difference: Number | None = None  # of the last evaluation
    best_state_difference: Number | None = None  # the smallest
    task_scores: TaskScores | None = None  # of a network that was pruned for a task: the last evaluation
    best_score: Number | None = None  # the largest deciding score of all evaluations, in percent
    best_step: StrictInt | None = None  # of the best evaluation, or of the epoch of fine-tuning that is kept
    kept_step: StrictInt | None = None  # of recovery: that of the network, where it is not the last one
    epochs: tuple[Epoch, ...] | None = None  # of fine-tuning, that are done
    whole_vocabulary: StrictInt | None = None  # tokens before a pruning run began by trimming
    round: StrictInt | None = None  # of pruning; so are the next five
    before: Measured | None = None  # the cut
    after_cut: Measured | None = None
    after_reconstruction: Measured | None = None  # once the layers were fitted
    started_from: str | None = None  # `CUT` where the layers were fitted and that fit was left out
    # standard errors, taken instance by instance, of how the loss changed by `CUT` and by `RECOVERY`
    difference_errors: Mapping[str, Number] | None = None
    # of a checkpoint: the sums of the losses since the last metrics record, and the steps in them
    unlogged: tuple[Number, ...] | None = None
    workers: StrictInt | None = None  # of a checkpoint: how many had trained it
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what else the file says

    @property
    def trained_steps(self) -> int:
        """The steps of pre-training that a network has behind it, in all phases; 0 if it does not say.

        Where recovery kept an earlier step than the last one, those after it do not count.
        """
        step = self.step if self.kept_step is None else self.kept_step
        return (step or 0) + (self.earlier_steps or 0)

    @property
    def next_batch(self) -> int:
        """Number of the batch at which further training goes on: after the steps so far, those of the heads
        included. A network has learnt some of what it has read by heart.
        """
        return self.trained_steps + (self.head_steps or 0)

    @property
    def held_out(self) -> HeldOut | None:
        """The last evaluation of pre-training; None if there was none."""
        if None in (self.mlm_loss, self.mlm_accuracy, self.instances):
            return None
        return HeldOut(**{field.name: getattr(self, field.name) for field in dataclasses.fields(HeldOut)})

    @property
    def measured(self) -> Measured | None:
        """The last evaluation on held-out data, for a task or by pre-training; None if there was none."""
        return self.task_scores or self.held_out

    def updated(self, **values: Any) -> Progress:
        """The same with some fields changed; None takes one away."""
        return dataclasses.replace(self, **values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = 'progress.json') -> Progress:
        """The inverse of `to_dict`; ValueError that names the source and a value of another type."""
        known = {name: value for name, value in values.items() if name in _FIELDS}
        more = {name: value for name, value in values.items() if name not in _FIELDS}
        return super().from_dict({**known, 'more': more}, source=source)

    def to_dict(self) -> dict[str, Any]:
        """JSON values, without those that are not known."""
        values = super().to_dict()
        del values['more']
        return {**values, **self.more}


_FIELDS = {field.name for field in dataclasses.fields(Progress)} - {'more'}
