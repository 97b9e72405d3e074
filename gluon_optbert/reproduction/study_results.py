"""A study so far: the tables of the paper beside its own, scores against sizes, and which orders are seen.

A difference is paired: taken instance by instance of the development set where the results say which were
right, as the mean over the seeds of pruning that both rows have. Its standard error is that of the instances
and that of the seeds together."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from ..architecture.architecture import Architecture
from ..architecture.cost import FlopsCost
from ..architecture.paper import load_table
from ..architecture.rounds import Round
from ..finetuning.result import FineTuningResult
from ..pruning.report import FORGOTTEN, widths_line
from ..reporting.curves import read_metrics, segments_of
from ..reporting.figures import STYLE, draw_widths, look, plain as plain_text, save
from ..reporting.networks import Network
from ..runs.display import markdown_table, number_of
from ..runs.files import read_json, write_file
from ..runs.progress import CLEAR, RESULT, HeldOut, Measured, Progress, paired_errors, score_text, spread
from ..training.held_out import Losses, difference
from .held_out import read_losses
from .results import NOT_RUN, Entry, Results, render, result_row, score_name
from .rows import (
    BASE,
    FORMAT,
    OF_STUDIES,
    STUDY_PLAN,
    TABLES,
    known_rows,
    row_names,
    size_name,
    slug_of,
    task_names,
)

# The row first that is expected to be better; in the paper all is before h at 88 and 99 M only.
ORDERS = (
    ('optBERT-all', 'optBERT-h'),
    ('optBERT-h', 'BERT-all uniform'),
    ('optBERT-all', 'BERT-all uniform'),
    ('BERT-all uniform', 'BERT-ℓ truncated'),
    ('optBERT-all', 'optBERT-f'),
    ('optBERT-all', 'optBERT-a'),
    ('optBERT-all', 'optBERT-all, unweighted'),
    ('optBERT-all+', 'optBERT-all'),
    ('optBERT-all+', 'a random cut'),
    ('BERT-all uniform', 'BERT-all uniform, magnitude'),
)
_SIZED = ('optBERT-all', 'optBERT-h', 'BERT-all uniform')  # rows whose published size is that of the table
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
        As `Plan.write` leaves it.
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
            score = self.scores(key, task, metric).get(seed)
            if None not in (measured, score, one['share']) and one['share'] < _WHOLE:
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


def table_of(study: StudyResults, number: int) -> Results:
    """A table of the paper with the study's scores, over the seeds of pruning."""
    table = load_table(number)
    sizes = {name: float(record['parameters_m']) for name, record in zip(row_names(table), table.records())}
    size = max((sizes[name] for name in _SIZED if name in sizes), default=0.0)
    names = known_rows(table) + [row for row in OF_STUDIES if row in study.rows() and number != 1]
    plan = {(one['row'], one['size']): one for one in study.plan['networks']}
    rows, planned = [], []
    for name in names:
        key: Key = (BASE, None) if name in ('BERT-base', 'bert_base') else (name, size)
        network = plan.get(key, {'unreachable': None, 'how': 'not in the study', 'share': None})
        planned.append({'name': name, **{one: network[one] for one in ('how', 'share', 'unreachable')}})
        results = {
            task: [*study.cells[key, task].values()]
            for task in task_names(table)
            if (key, task) in study.cells
        }
        rows.append(result_row(table, planned[-1], results))
    seeds = sorted({one['seed'] for one in study.plan['networks']})
    return Results(table, tuple(rows), {**study.plan, 'seeds': seeds, 'rows': planned})


def tasks_of(study: StudyResults) -> list[tuple[str, str]]:
    """Tasks of the study, each with the metric that counts."""
    columns = [column for number in (8, 1) for column in load_table(number).columns if column.task]
    metrics = {column.task: column.metric for column in reversed(columns) if column.metric != 'em'}
    return [(task, str(metrics[task])) for task in dict.fromkeys(task for _, task in study.cells)]


def summary(study: StudyResults) -> str:
    """The orders of the paper's rows, every score by row and size, dimensions and machines, in Markdown."""
    planned = sum(len(one['tasks']) for one in study.plan['networks'] if not one['unreachable'])
    done, sizes = sum(map(len, study.cells.values())), study.sizes()[::-1]
    lines = [
        '# The study' if done == planned else '# The study so far',
        '',
        f'{done} of {planned} cells (network, task and seed) were run.',
        '',
        '## Orders of rows',
        '',
        f'"Seen" is a difference of {CLEAR} standard errors and more; where few seeds tell the error, of as '
        "many more as Student's t asks for. It is paired: over the instances of the development set, and "
        'over the seeds of pruning that both rows have. With one seed, the error is that of the instances '
        'alone. Differences of MLM losses are in nats, positive if that of the first row is smaller; where '
        'the losses of single instances were not kept, they are paired over the seeds alone, and their error '
        'is the larger for that.',
        '',
    ]
    body = []
    for better, other in ORDERS:
        pairs = [((better, size), (other, size)) for size in sizes]
        measured = [
            (task, 1, [study.difference(*pair, task, metric) for pair in pairs])
            for task, metric in tasks_of(study)
        ]
        measured.append(('MLM loss', 2, [study.loss_difference(*pair) for pair in pairs]))
        for what, digits, found in measured:
            if any(found):
                cells = ['–' if one is None else f'{one.text(digits)} {one.verdict}' for one in found]
                body.append([f'{better} before {other}', what, *cells])
    lines += [markdown_table(['order', 'task', *map(size_name, sizes)], body)] if body else ['none yet']
    head = ['row', *(word for size in sizes for word in (size_name(size), 'to the base'))]
    for task, metric in tasks_of(study):
        body = []
        for row in study.rows():
            cells = []
            for size in sizes:
                apart = study.difference((row, size), (BASE, None), task, metric)
                cells += [study.entry((row, size), task, metric).text(), apart.text() if apart else '–']
            body.append([row, *cells])
        base = dataclasses.replace(study.entry((BASE, None), task, metric), majority=None)  # not marked
        lines += ['', f'## {task}', '', f'The base: {base.text()}.', '', markdown_table(head, body)]
    if study.recovered:
        lines += ['', *_held_out_lines(study, sizes, head)]
    lines += ['', *_dimension_lines(study), '', '## Machines', '']
    machines = collections.Counter(
        f'{_machine_text(one.origin["machine"])}, commit {one.origin["commit"] or "unknown":.10}'
        for results in study.cells.values()
        for one in results.values()
    )
    lines += [f'- {number_of(count, "cell")}: {machine}' for machine, count in machines.items()]
    return '\n'.join(lines) + '\n'


def _held_out_lines(study: StudyResults, sizes: Sequence[float], head: Sequence[str]) -> list[str]:
    """What recovery left of pre-training, and how far scores go along with that."""
    body = []
    for row in study.rows():
        found = [study.loss_difference((row, size), (BASE, None)) for size in sizes]
        texts = [study.held_out_text((row, size), 'mlm_loss') for size in sizes]
        body.append([row, *itertools.chain(*zip(texts, (one.text(2) if one else '–' for one in found)))])
    lines = ['## MLM loss', '', 'After recovery, in nats a masked token, on held-out instances.']
    lines += [f'The base: {study.held_out_text((BASE, None), "mlm_loss")}.', '', markdown_table(head, body)]
    percent = {'scale': 100.0, 'digits': 1}
    body = [
        [row, *(study.held_out_text((row, size), 'nsp_accuracy', **percent) for size in sizes)]
        for row in study.rows()
    ]
    lines += ['', '## NSP accuracy', '', 'After recovery, in percent of held-out instances.']
    lines += [f'The base: {study.held_out_text((BASE, None), "nsp_accuracy", **percent)}.', '']
    lines += [markdown_table(['row', *map(size_name, sizes)], body)]
    body = []
    for task, metric in tasks_of(study):
        found = [study.foretold(task, metric, name) for name in ('mlm_loss', 'nsp_loss')]
        if all(found):
            texts = [f'{rank:+.2f} ± {(count - 1) ** -0.5:.2f}' for rank, count in found]
            body.append([task, str(found[0][1]), *texts])
    if body:
        lines += ['', '## Scores and what recovery left', '']
        lines += [
            "Spearman's correlation, over the networks that were cut, of a score with a held-out loss; "
            'its error is that of a correlation of zero.',
            '',
        ]
        lines += [markdown_table(['task', 'networks', 'MLM loss', 'NSP loss'], body)]
    return lines


def _dimension_lines(study: StudyResults) -> list[str]:
    """The widths of every network, what they cost, and how fast it recovered."""
    found = {
        key: (result.parameters, Architecture.from_dict(result.architecture))
        for key, result in study.first_results().items()
    }
    flops, body = FlopsCost(), []
    whole = flops.cost(found[BASE, None][1]) if (BASE, None) in found else None
    for (row, size), (parameters, one) in found.items():
        speeds = study.speeds.get((row, size))
        body.append(
            [
                row,
                'whole' if size is None else size_name(size),
                f'{parameters / 1e6:.1f} M',
                f'{flops.cost(one) / whole:.0%}' if whole else '–',
                f'{np.median(speeds) / 1000:.1f}' if speeds else '–',
                str(one.h),
                *(widths_line(one.layers, letter) for letter in 'akvf'),
            ]
        )
    return [
        '## Dimensions',
        '',
        'Of the first seed; of every layer, from the first to the last. FLOPs are those of the encoder for '
        f"{flops.length} tokens, to the base's. Speed is that of recovery, in thousand tokens a second, the "
        'median of what was logged with all seeds; it hangs on what else the machine did.',
        '',
        markdown_table(['row', 'size', 'parameters', 'FLOPs', 'speed', *'hakvf'], body),
    ]


def _machine_text(machine: Mapping[str, Any]) -> str:
    """What computed a cell, for people, with the instructions and threads that round its results."""
    widest = f' with {machine["instructions"]}' if 'instructions' in machine else ''
    kernels = [f'{name}={value}' for name, value in machine.get('kernels', {}).items()]
    return ', '.join([machine['cpu'] + widest, *kernels, number_of(int(machine['threads']), 'thread')])


def draw_dimensions(study: StudyResults, row: str) -> dict[str, Figure]:
    """Figures 3 to 6 of optBERT, of a row of the study at all its sizes: a width across the layers, by name.

    Empty if no network of the row was fine-tuned.
    """
    found = {key: one for key, one in study.first_results().items() if key[0] in (BASE, row)}
    if len(found.keys() - {(BASE, None)}) < 2:
        return {}
    networks = [
        Network(
            'the base' if size is None else f'{row}, {size_name(size)}',
            Architecture.from_dict(one.architecture),
        )
        for (_, size), one in found.items()
    ]
    return {
        f'figure_{number}': draw_widths(letter, networks, f'optBERT, Figure {number}, here')
        for number, letter in enumerate('fakv', start=3)
    }


def draw(study: StudyResults, task: str, metric: str) -> Figure:
    """A task's score against the size, a line for each row, set apart so that errors can be told: standard
    errors of the difference to the base, which is dashed.
    """
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    rows, sizes = study.rows(), study.sizes()
    apart = 0.015 * (sizes[-1] - sizes[0]) if sizes else 0.0
    for number, row in enumerate(rows):
        points = []
        for size in sizes:
            entry = study.entry((row, size), task, metric)
            if entry.scores:
                to_base = study.difference((row, size), (BASE, None), task, metric)
                error = (to_base.error if to_base else None) or 0.0
                points.append((size + apart * (number - (len(rows) - 1) / 2), entry.mean, error))
        if points:
            axes.errorbar(*zip(*points), **look(number), capsize=2, label=plain_text(row))
    base = study.entry((BASE, None), task, metric)
    if base.scores:
        axes.axhline(base.mean, linestyle='--', color='#606060', label='the base')
    share = f'share of the {study.plan["objective"]}'
    axes.set_xlabel('published size, M parameters' if sizes and sizes[-1] > 1 else share)
    axes.set_xticks(sizes, list(map(size_name, sizes)))
    if sizes:  # those of which nothing was run yet have their place
        around = 0.15 * (sizes[-1] - sizes[0] or sizes[0])
        axes.set_xlim(sizes[0] - around, sizes[-1] + around)
    axes.set_ylabel(f'{metric}, percent')
    axes.set_title(f'{task}; bars are standard errors of the difference to the base')
    figure.legend(loc='outside right upper')
    return figure


def write_study(output: Path) -> list[Path]:
    """Make tables and plots from the results so far, in ``tables/`` of the study; the files."""
    study, place = read_study(output), Path(output) / 'tables'
    place.mkdir(exist_ok=True)
    written = [place / 'README.md']
    for number in TABLES if study.plan['objective'] == 'parameters' else ():
        for name, content in render(table_of(study, number)).items():
            written.append(place / name.replace('table', f'table_{number:02d}'))
            write_file(written[-1], content.encode())
    with matplotlib.rc_context(STYLE):
        for task, metric in tasks_of(study):
            if len({size for (_, size), of_task in study.cells if size and of_task == task}) > 1:
                written += save(draw(study, task, metric), place, slug_of(task))
        for name, figure in draw_dimensions(study, 'optBERT-all').items():
            written += save(figure, place, name)
    shown = [f'![{path.stem}]({path.name})' for path in written if path.suffix == '.png']
    plots = ['', '## Plots', '', *shown, ''] if shown else []
    write_file(written[0], (summary(study) + '\n'.join(plots)).encode())
    return written
