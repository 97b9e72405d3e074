"""The results of a study so far, or of several of one base together, and the differences between their rows.

A difference is paired: taken instance by instance of the development set where the results say which were
right, as the mean over the seeds of pruning that both rows have. Its standard error is that of the instances
and that of the seeds together."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ..architecture.rounds import Round
from ..finetuning.result import FineTuningResult
from ..pruning.report import FORGOTTEN
from ..reporting.curves import read_metrics, segments_of
from ..runs.files import read_json
from ..runs.progress import CLEAR, RESULT, HeldOut, Measured, Progress, paired_errors, score_text, spread
from ..training.held_out import Losses, difference
from .held_out import read_losses
from .results import NOT_RUN, Entry, score_name, tuning_text
from .rows import BASE, FORMAT, INPUTS, MAKERS, STUDY_PLAN, size_name, slug_of

_WHOLE = 0.99  # of the base; a network with a greater share of it does not count as cut
Key = tuple[str, float | None]  # a row and a size


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference between two rows at a size on a task, in percentage points, or of their MLM losses, in
    nats; positive if the first is better.

    Parameters
    ----------
    error : float, optional
        Standard error; None of a single seed whose instances are not known.
    freedom : float
        Degrees of freedom of the error.
    """

    mean: float
    error: float | None
    freedom: float = math.inf

    @classmethod
    def of(
        cls, gains: Sequence[float], *marks: Sequence[str], beside: Sequence[tuple[float, int]] = ()
    ) -> Difference:
        """Of the seeds that both rows have; arguments as of `paired_error`, and further parts of the error as
        of `paired_errors`. The degrees of freedom are those of Welch and Satterthwaite.
        """
        parts, mean = [*paired_errors(gains, *marks), *beside], float(np.mean(gains))
        if not parts:
            return cls(mean, None)
        square = sum(part for part, _ in parts)
        free = sum(part**2 / freedom for part, freedom in parts)
        return cls(mean, square**0.5, square**2 / free if free else math.inf)

    @property
    def verdict(self) -> str:
        """Whether the first row is seen to be better: with as little chance of error as `CLEAR` standard
        errors have where these are known for certain.
        """
        clear = stats.t.ppf(stats.norm.cdf(CLEAR), self.freedom)
        if self.error is None or self.mean == 0 or abs(self.mean) < clear * self.error:
            return 'undecided'
        return 'seen' if self.mean > 0 else 'the opposite'

    def text(self, digits: int = 1) -> str:
        """For people."""
        error = '' if self.error is None else f' ± {self.error:.{digits}f}'
        return f'{self.mean:+.{digits}f}{error}'


@dataclasses.dataclass(frozen=True)
class StudyResults:
    """The cells of a study that were run.

    Parameters
    ----------
    plan : mapping
        As `Plan.write` leaves it, or `together`.
    cells : mapping of ((row, size), task) to mapping of int to FineTuningResult
        By seed of pruning.
    recovered : mapping of (row, size) to mapping of int to HeldOut
        By seed of pruning, what was measured of the network on held-out text.
    losses : mapping of (row, size) to mapping of int to Losses
        By seed of pruning, the same instance by instance, where that was kept.
    speeds : mapping of (row, size) to list of float
        Tokens a second in recovery, every reading of all seeds.
    """

    plan: Mapping[str, Any]
    cells: Mapping[tuple[Key, str], Mapping[int, FineTuningResult]]
    recovered: Mapping[Key, Mapping[int, HeldOut]] = dataclasses.field(default_factory=dict)
    losses: Mapping[Key, Mapping[int, Losses]] = dataclasses.field(default_factory=dict)
    speeds: Mapping[Key, Sequence[float]] = dataclasses.field(default_factory=dict)

    def scores(self, key: Key, task: str, metric: str) -> dict[int, float]:
        """A score in percent, by seed of pruning; ``metric`` as a column has it."""
        results = self.cells.get((key, task), {})
        return {seed: one.runs[0].scores[score_name(one, metric)] for seed, one in results.items()}

    def _marks(self, key: Key, task: str, seed: int, metric: str) -> str:
        """The marks of the instances of the first development set; empty if they are not known, or another
        score is their mean.
        """
        result = self.cells[key, task][seed]
        held_out = result.metric.split('/')[0]
        known = score_name(result, metric) == result.metric
        return (result.runs[0].right or {}).get(held_out, '') if known else ''

    def entry(self, key: Key, task: str, metric: str) -> Entry:
        """The same as a cell of a table, over the seeds."""
        first = next(iter(self.cells.get((key, task), {}).values()), None)
        majority = None if first is None else (first.majority or {}).get(score_name(first, metric))
        return Entry(tuple(self.scores(key, task, metric).values()), NOT_RUN, None, majority)

    def rows(self) -> list[str]:
        """Beside the base, in the order of the plan."""
        return list(dict.fromkeys(one['row'] for one in self.plan['networks'] if one['row'] != BASE))

    def from_scratch(self) -> list[str]:
        """Rows that are not made of the base."""
        return [row for row in self.rows() if row in MAKERS and MAKERS[row].kind == 'built']

    def sizes(self) -> list[float]:
        """From the smallest to the largest."""
        return sorted({one['size'] for one in self.plan['networks'] if one['size']})

    def first_results(self) -> dict[Key, FineTuningResult]:
        """A result of every network that has one, by row and size: that of the first seed on the first
        task.
        """
        found: dict[Key, FineTuningResult] = {}
        for (key, _), results in self.cells.items():
            found.setdefault(key, results[min(results)])
        return found

    def difference(self, better: Key, other: Key, task: str, metric: str) -> Difference | None:
        """Of two rows; the base, which has one seed, stands beside every seed of another row."""
        scores = [self.scores(key, task, metric) for key in (better, other)]
        pairs = _pairs((better, other), scores)
        if not pairs:
            return None
        apart = [scores[0][one] - scores[1][two] for one, two in pairs]
        marks = (
            [self._marks(key, task, seed, metric) for seed in of_row]
            for key, of_row in zip((better, other), zip(*pairs))
        )
        return Difference.of(apart, *marks)

    def loss_difference(self, better: Key, other: Key) -> Difference | None:
        """Of the MLM losses of two rows, as of `difference`. Where the losses of single instances were not
        kept, that part of the error is as large as if the rows had been measured on different ones.
        """
        measured = [self.recovered.get(key, {}) for key in (better, other)]
        pairs = _pairs((better, other), measured)
        if not pairs:
            return None
        seeds = [*zip(*pairs)]
        ones = [[of_row[seed] for seed in own] for of_row, own in zip(measured, seeds)]
        gains = [two.mlm_loss - one.mlm_loss for one, two in zip(*ones)]
        sides = [
            [self.losses.get(key, {}).get(seed) for seed in own] for key, own in zip((better, other), seeds)
        ]
        errors = [[one.standard_error for one in pair] for pair in zip(*ones)]
        if all(itertools.chain(*sides)):
            error = difference(*map(_mean_losses, sides))[1]
            square = None if error is None else error**2
        elif None in itertools.chain(*errors):
            square = None
        else:
            square = float(np.mean([np.square(pair).sum() for pair in errors]))
        freedom = int(ones[0][0].instances) - 1
        return Difference.of(gains, beside=[] if square is None else [(square, freedom)])

    def held_out_text(self, key: Key, name: str, *, scale: float = 1.0, digits: int = 2) -> str:
        """The mean of a field of `HeldOut`, scaled, and, of several seeds, their deviation."""
        known = [getattr(one, name) for one in self.recovered.get(key, {}).values()]
        values = [scale * one for one in known if one is not None]
        return score_text(*spread(values), digits=digits) if values else '–'

    def foretold(self, task: str, metric: str, name: str) -> tuple[float, int] | None:
        """Spearman's correlation of a score with a field of `HeldOut`, and the number of networks, which are
        those that were cut; None of fewer than four of them.
        """
        pairs = []
        for one in self.plan['networks']:
            key, seed = (one['row'], one['size']), one['seed']
            measured = getattr(self.recovered.get(key, {}).get(seed), name, None)
            score, cut = self.scores(key, task, metric).get(seed), one['row'] not in self.from_scratch()
            if cut and None not in (measured, score, one['share']) and one['share'] < _WHOLE:
                pairs.append((measured, score))
        return (float(stats.spearmanr(pairs).statistic), len(pairs)) if len(pairs) > 3 else None


def _pairs(keys: tuple[Key, Key], seeds: Sequence[Mapping[int, Any]]) -> list[tuple[int, int]]:
    """The seeds of two rows that stand beside each other: the same one, and every one of a row beside the
    base's.
    """
    if any(row == BASE for row, _ in keys):
        return list(itertools.product(*map(sorted, seeds)))
    return [(seed, seed) for seed in sorted(seeds[0]) if seed in seeds[1]]


def _mean_losses(seeds: Sequence[Losses]) -> Losses:
    """Of several networks, the mean of the losses of every instance."""
    return dataclasses.replace(seeds[0], sums=np.mean([one.sums for one in seeds], axis=0))


def read_study(output: Path) -> StudyResults:
    """The plan and the cells of a study so far; FileNotFoundError or ValueError if there is none."""
    plan = read_json(Path(output) / STUDY_PLAN)
    if plan.get('format') != FORMAT:
        raise ValueError(f'{output}/{STUDY_PLAN}: not the plan of a study')
    cells: dict[tuple[Key, str], dict[int, FineTuningResult]] = {}
    for network in plan['networks']:
        for task in network['tasks']:
            path = Path(output) / 'cells' / network['place'] / slug_of(task) / RESULT
            if path.is_file():
                key = (network['row'], network['size'])
                cells.setdefault((key, task), {})[network['seed']] = FineTuningResult.read(path)
    losses: dict[Key, dict[int, Losses]] = {}
    recovered, speeds = _of_rounds(Path(output) / 'networks', plan['networks'])
    for network in plan['networks']:
        kept = read_losses(Path(output) / 'cells' / network['place'])
        if kept is not None:
            key, seed = (network['row'], network['size']), network['seed']
            losses.setdefault(key, {})[seed] = kept
            recovered.setdefault(key, {})[seed] = kept.measured
    return StudyResults(plan, cells, recovered, losses, speeds)


def _of_rounds(
    runs: Path, networks: Sequence[Mapping[str, Any]]
) -> tuple[dict[Key, dict[int, HeldOut]], dict[Key, list[float]]]:
    """What recovery left, and its speed, as of `StudyResults`. The rounds of a run are its sizes, from the
    largest.
    """
    found: dict[Key, dict[int, HeldOut]] = {}
    speeds: dict[Key, list[float]] = collections.defaultdict(list)
    ladders = collections.defaultdict(list)
    for network in networks:
        if network['size'] and not network['unreachable']:
            ladders[network['place'].split('/')[0]].append(network)
    for run, ladder in ladders.items():
        ladder.sort(key=lambda network: network['size'], reverse=True)
        measured = runs / run / 'metrics.jsonl'
        segments = segments_of(read_metrics(measured)) if measured.is_file() else []
        for number, network in enumerate(ladder, start=1):
            key: Key = (network['row'], network['size'])
            before, after = _held_out(runs / run / f'round-{number}')
            if isinstance(after, HeldOut):
                found.setdefault(key, {})[network['seed']] = after
            if isinstance(before, HeldOut) and number == 1:
                found.setdefault((BASE, None), {1: before})
            for one in segments:
                if (one.phase, one.round) == ('recovery', number):
                    speeds[key] += one.series('tokens_per_second')[1]
    return found, speeds


def _held_out(directory: Path) -> tuple[Measured | None, Measured | None]:
    """What a round measured on held-out data before the cut and at its end, whether its network is there or
    was forgotten, perhaps by another process just now; None of what is not known.
    """
    with contextlib.suppress(FileNotFoundError):
        progress = Progress.from_dict(read_json(directory / 'model' / 'progress.json'))
        return progress.before, progress.held_out
    with contextlib.suppress(FileNotFoundError):
        one = Round.from_dict(read_json(directory / FORGOTTEN))
        return one.before, one.recovered
    return None, None


def read_studies(outputs: Sequence[Path]) -> list[StudyResults]:
    """Studies so far, as of `read_study`; ValueError, too, if base, shards or data are not those of the
    first.
    """
    if len(outputs) > 1:
        begun = [read_json(Path(output) / INPUTS) for output in outputs]
        for output, inputs in zip(outputs, begun):
            others = [what for what in inputs if inputs[what] != begun[0].get(what, inputs[what])]
            if others:
                raise ValueError(
                    f'{output} was begun with other content of {", ".join(others)} than {outputs[0]}'
                )
    return [*map(read_study, outputs)]


def together(studies: Sequence[StudyResults]) -> StudyResults:
    """Studies with one base as one, in which `ladders` of the plan has the sizes of each; ValueError if two
    have the same size, or decide otherwise what a size or a score is.
    """
    studies = sorted(studies, key=lambda study: max(study.sizes(), default=0), reverse=True)
    ladders = [study.sizes()[::-1] for study in studies]
    counts = collections.Counter(itertools.chain(*ladders))
    problems = [
        f'{size_name(size)} is a size of {count} of the studies'
        for size, count in counts.items()
        if count > 1
    ]
    objectives = dict.fromkeys(study.plan['objective'] for study in studies)
    if len(objectives) > 1:
        problems.append(f'their sizes are of {" and of ".join(objectives)}')
    tunings: dict[str, dict[str, None]] = {}
    of_base: dict[str, list[Any]] = {}
    for (key, task), results in itertools.chain(*(study.cells.items() for study in studies)):
        tunings.setdefault(task, {}).update(dict.fromkeys(map(tuning_text, results.values())))
        if key[0] == BASE:
            of_base.setdefault(task, []).extend(
                (one.runs[0].scores, one.runs[0].right) for one in results.values()
            )
    problems += [
        f'{task} is fine-tuned with {" or with ".join(ways)}'
        for task, ways in tunings.items()
        if len(ways) > 1
    ]
    problems += [
        f'the base answers otherwise on {task}; fine-tune it in one of them, and copy its cells to the others'
        for task, answers in of_base.items()
        if any(one != answers[0] for one in answers)
    ]
    if problems:
        raise ValueError(f'the studies cannot be shown together: {"; ".join(problems)}')
    networks: dict[tuple[Key, int], dict[str, Any]] = {}
    for one in itertools.chain(*(study.plan['networks'] for study in studies)):
        known = networks.setdefault(((one['row'], one['size']), one['seed']), {**one, 'tasks': []})
        known['tasks'] = [*dict.fromkeys([*known['tasks'], *one['tasks']])]
    maps = zip(*((study.cells, study.recovered, study.losses, study.speeds) for study in studies))
    # only the base is in several, and is the same in all
    joined = (functools.reduce(lambda one, other: {**one, **other, **one}, each) for each in maps)
    plan = {**studies[0].plan, 'networks': [*networks.values()], 'ladders': ladders}
    return StudyResults(plan, *joined)
