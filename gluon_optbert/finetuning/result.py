"""The result of fine-tuning on a task, as ``results/*.json`` hold it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from ..runs.files import checked, parse_json
from ..runs.progress import MARK, NOTE, OPTIMISTIC, RESULT_FORMAT, Epoch, Record, score_text, spread
from ..tasks.metrics import OF_HEADS

VERSION = 1


@dataclass(frozen=True)
class SeedRun(Record):
    """A run with one seed; also what the progress of its model directory says."""

    seed: int
    epochs: tuple[Epoch, ...]
    kept_epoch: int  # whose network was written
    scores: Mapping[str, int | float]  # of the kept epoch, in percent
    seconds: float  # of training with its evaluations, without steps that were lost in a kill
    # Where the deciding score is a mean over instances, by held-out set: a mark for each of them, as of
    # `runs.progress.marked`, in the order of the file. A file of an earlier version has none.
    right: Mapping[str, str] | None = None


def means(runs: Sequence[SeedRun]) -> dict[str, float]:
    """The mean of every score over the runs, in percent."""
    return {name: float(np.mean([run.scores[name] for run in runs])) for name in runs[0].scores}


@dataclass(frozen=True)
class RateRuns(Record):
    """The runs with one of several learning rates, one for each seed."""

    learning_rate: float
    runs: tuple[SeedRun, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = super().to_dict()
        return {'learning_rate': self.learning_rate, 'mean': means(self.runs), 'runs': values['runs']}


def best_rate(tried: Sequence[RateRuns], metric: str) -> RateRuns:
    """The runs with the best mean of a score, those of the first rate among equals."""
    scores = np.array([means(one.runs)[metric] for one in tried])
    return tried[int(np.where(np.isnan(scores), -np.inf, scores).argmax())]


@dataclass(frozen=True)
class FineTuningResult:
    """The result of fine-tuning on a task with one or several seeds."""

    task: str
    metric: str  # the score that counts, as scores are named
    model_sha256: str  # of the parameters that the runs started from
    parameters: int  # of the network without the task's head
    architecture: Mapping[str, Any]  # as `Architecture.to_dict`
    samples: Mapping[str, int]  # in each part of the data, in the units of the data set
    runs: tuple[SeedRun, ...]  # one for each seed
    recipe: Mapping[str, Any]  # as it was run
    # ``commit``, ``versions``, ``machine`` and the number of ``workers`` when the run began, or was last
    # resumed with others; ``commits``, the first first, if there were several
    origin: Mapping[str, Any]
    # the percents of always giving the majority class: for SQuAD, of giving no answer; for a regression, of
    # giving the mean; a file of an earlier version has none
    majority: Mapping[str, int | float] | None = None
    tried: tuple[RateRuns, ...] = ()  # with every learning rate, where it was chosen; its runs are `runs`
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # beside these in another version

    @model_validator(mode='after')
    def _every_run_has_every_score(self) -> FineTuningResult:
        runs = [run for one in (self, *self.tried) for run in one.runs]
        scored = [one.scores for run in runs for one in (run, *run.epochs)]
        names = {self.metric}.union(*scored)
        if not all(one.runs for one in (self, *self.tried)) or any(names != set(one) for one in scored):
            raise ValueError(f'wanted runs that all have the scores {", ".join(sorted(names))}')
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the runs."""
        return tuple(run.seed for run in self.runs)

    def scores(self, name: str) -> tuple[float, ...]:
        """A score by seed, in percent."""
        return tuple(run.scores[name] for run in self.runs)

    @property
    def mean(self) -> dict[str, float]:
        """Of every score over the seeds, in percent."""
        return means(self.runs)

    @property
    def std(self) -> dict[str, float | None]:
        """The deviation of the sample of every score over the seeds; None for one seed."""
        return {name: spread(self.scores(name))[1] for name in self.runs[0].scores}

    @property
    def seconds(self) -> float:
        """Of all runs, those with the other learning rates included; see `SeedRun`."""
        made = [run for one in self.tried for run in one.runs] or self.runs
        return sum(run.seconds for run in made)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str) -> FineTuningResult:
        """The inverse of `to_dict`; ValueError, naming the source, if it is none of these results."""
        if not isinstance(values, dict) or values.get('format') != RESULT_FORMAT:
            raise ValueError(f'{source}: not a result of fine-tuning')
        rates = values.get('learning_rates') or {}
        named = {name: values[name] for name in (*_PLAIN, 'runs', 'majority') if name in values}
        named['origin'] = {name: values[name] for name in _ORIGIN if name in values}
        named['tried'] = rates.get('tried', ())
        known = (*_PLAIN, *_DERIVED, *_ORIGIN)
        named['more'] = {name: value for name, value in values.items() if name not in known}
        return checked(cls, named, source=f'{source}: not a result of fine-tuning')

    @classmethod
    def read(cls, path: Path) -> FineTuningResult:
        """The result in a file; FileNotFoundError or ValueError if there is none, or it is damaged."""
        return cls.from_dict(parse_json(Path(path).read_bytes(), source=path), source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """JSON values, in the order of the file."""
        rates = {
            'chosen': self.recipe.get('learning_rate'),
            'chosen_on': self.metric,
            'note': f'{OPTIMISTIC}.',
            'tried': [one.to_dict() for one in self.tried],
        }
        return {
            'format': RESULT_FORMAT,
            'version': VERSION,
            'task': self.task,
            'metric': self.metric,
            'unit': 'percent',
            'model_sha256': self.model_sha256,
            'parameters': self.parameters,
            'architecture': dict(self.architecture),
            'samples': dict(self.samples),
            'seeds': list(self.seeds),
            'runs': [run.to_dict() for run in self.runs],
            'mean': self.mean,
            'std': self.std,
            **({} if self.majority is None else {'majority': dict(self.majority)}),
            **({'learning_rates': rates} if self.tried else {}),
            'recipe': dict(self.recipe),
            **self.origin,
            **self.more,
        }

    def to_json(self) -> bytes:
        """The content of the file."""
        return (json.dumps(self.to_dict(), indent=1) + '\n').encode()


_PLAIN = ('task', 'metric', 'model_sha256', 'parameters', 'architecture', 'samples', 'recipe')
_ORIGIN = ('commit', 'versions', 'machine', 'workers', 'commits')
_DERIVED = ('format', 'version', 'unit', 'seeds', 'runs', 'mean', 'std', 'majority', 'learning_rates')


def summary(result: FineTuningResult) -> str:
    """The scores of a result in one line, then those of the majority class, or of the mean of a regression; a
    score that is no better is marked.
    """
    std, majority = result.std, result.majority or {}
    regression = result.metric.rpartition('/')[2] in OF_HEADS['regression']
    scores = {
        name: score_text(mean, std[name], majority=majority.get(name), digits=2)
        for name, mean in result.mean.items()
    }
    parts = ' | '.join(f'{name} {text}' for name, text in scores.items())
    lines = [f'{result.task}, seeds {",".join(map(str, result.seeds))}: {parts}']
    if result.tried:
        scored = {one.learning_rate: means(one.runs)[result.metric] for one in result.tried}
        rates = ', '.join(f'{rate:g} {score_text(score, digits=2)}' for rate, score in scored.items())
        chosen = result.recipe['learning_rate']
        lines.append(f'learning rates by {result.metric}: {rates}; kept {chosen:g}; {OPTIMISTIC}')
    if majority:
        constant = ' | '.join(f'{name} {score_text(value, digits=2)}' for name, value in majority.items())
        what = 'no answer to any question' if result.task.startswith('SQuAD') else 'always the majority class'
        lines.append(f'{"always the mean" if regression else what}: {constant}')
    if any(text.endswith(MARK) for text in scores.values()):
        lines.append(f'{MARK} no better than the mean, which needs no network' if regression else NOTE)
    return '\n'.join(lines)
