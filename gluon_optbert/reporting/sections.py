"""Chapters of a page on runs, models, results, searches and tables, section by section."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from ..architecture.rounds import GateRecord, Round
from ..finetuning.result import FineTuningResult, best_rate, means
from ..runs.files import MANIFEST, read_sealed, read_small
from ..runs.machine import ORIGIN, origin_here, origin_warnings
from ..runs.progress import CLOSED, NOTE, OPEN, OPTIMISTIC, RESULT, Measured, exceeds, score_text
from ..runs.recipe import load_yaml
from ..runs.run_directory import UNFINISHED, work_directory
from .curves import draw_curves, read_metrics, segments_of, speed
from .figures import (
    WIDTHS,
    alpha_bins,
    draw_alphas,
    draw_gates,
    draw_losses,
    draw_settling,
    draw_widths,
    drawn,
    title_by_size,
)
from .networks import MEASURED, Run, by_quantity, json_values, read_gates, read_result, read_run, value_of
from .page import Chapter, Section, details, element, figures, joined, note, picture, table, values

TIMES = 'times.json'  # of a run that pruned for a task
# files that are shown otherwise, or not at all
_KNOWN = ('rounds.json', 'pruning.md', 'architecture.json', 'progress.json', 'latency.json', MANIFEST, ORIGIN)
_REPORTED = 'a run, a model, a search, a comparison or a table'  # directories, as messages call them
_SIZES = ('parameters, M', 'of the first', 'FLOPs at 128, G', 'of the first')
_FROM_FIRST, _ACCURACIES = 'points from the first', ('MLM accuracy', 'NSP accuracy')
_LOSSES = 'Losses are in nats per masked token of held-out text; sizes count embeddings and encoder.'
_SCORES = (
    'Scores are percent on held-out instances, each of one run. ± is the standard error: how far a score is '
    'off by the choice of these instances. Sizes count embeddings and encoder.'
)
_SPLIT_HALF = (
    'The split-half correlation is the rank correlation within a width of two trainings of the gates, each '
    'on one half of the batches. Near 1, the data determine which units matter.'
)
# of a result of fine-tuning: what its tables have, and what is shown when somebody asks for it
_SHOWN = ('format', 'version', 'unit', 'task', 'metric', 'mean', 'std', 'majority', 'runs', 'seeds')
_SHOWN += ('samples', 'architecture', 'learning_rates')
_FOLDED = {'recipe': 'Recipe', 'commit': 'Commit', 'versions': 'Versions', 'machine': 'Machine'}
_NAME = re.compile(r'_|^\s*[-+]?0\d')  # in a cell that Python takes for a number


class Reader(NamedTuple):
    """A kind of directory that another room reads."""

    file: str  # the directory may be of this kind if it has this file
    read: Callable[[Path], list[Section]]
    known: tuple[str, ...]  # files that these sections show, so that they are not shown again


def chapter(path: Path, label: str, *, readers: Sequence[Reader] = ()) -> Chapter:
    """All that a directory or a file of results tells, with the label as its title; `readers` are those of
    directories that other rooms know. FileNotFoundError or ValueError if there is nothing to report, or a
    file of it is damaged.
    """
    result = read_result(path)
    if result is not None:
        return Chapter(label, tuple(_of_finetuning(result, path)))
    if path.is_file() and path.suffix == '.json':
        return Chapter(label, tuple(_of_results(json_values(path))))
    if not path.is_dir():
        unfinished = path.name and work_directory(path)
        if unfinished and unfinished.is_dir():
            raise FileNotFoundError(f'{path}: is not finished; to see how far it is, give {unfinished}')
        found = 'a file, but not JSON' if path.exists() else 'not found'
        raise FileNotFoundError(f'{path}: {found}; give {_REPORTED}, or a JSON file of results')
    sections = _of_directory(path, label, readers)
    if not sections:
        raise ValueError(f'{path}: nothing to report in it; give {_REPORTED}')
    return Chapter(label, (*sections, *_of_environment(path)))


def _of_directory(path: Path, label: str, readers: Sequence[Reader]) -> list[Section]:
    """Sections on a run, on a model, from other rooms, and on any other file."""
    sections: list[Section] = []
    known = _KNOWN
    if (path / 'rounds.json').is_file():
        sections += of_rounds(read_run(path, label))
        known += (TIMES,)
    elif list(path.glob('round-*')):
        unfinished = element('p', 'This pruning run is not finished: it has no rounds.json yet.')
        sections.append(('Unfinished', unfinished))
    if (path / 'architecture.json').is_file():
        sections += _of_model(path)
    if (path / 'latency.json').is_file():
        sections.append(('Latency', values(json_values(path / 'latency.json'))))
    if (path / 'metrics.jsonl').is_file():
        sections += _of_metrics(path / 'metrics.jsonl', label)
    if path.suffix == UNFINISHED:
        sections += _of_begun_finetuning(path, label)
    for reader in readers:
        if (path / reader.file).is_file():
            sections += reader.read(path)
            known += (reader.file, *reader.known)
    sections += _of_files(path, known)
    recipe = path / 'recipe.yaml'
    if recipe.is_file():
        sections.append(('Recipe', values(load_yaml(read_small(recipe), source=str(recipe)))))
    return sections


def _of_files(path: Path, known: tuple[str, ...]) -> list[Section]:
    """The other files of a directory: tables, pictures, notes and values, each under its name."""
    readers: dict[str, Callable[[Path], Markup]] = {
        '.csv': _of_csv,
        '.md': lambda file: element('pre', file.read_text(encoding='utf-8', errors='replace')),
        '.json': lambda file: values(json_values(file)),
        '.svg': lambda file: picture(file.read_bytes(), 'svg', file.stem),
        '.png': lambda file: picture(file.read_bytes(), 'png', file.stem),
    }
    files = [file for file in path.iterdir() if file.suffix in readers and file.name not in known]
    files = sorted(filter(Path.is_file, files))
    better = {'.png': '.svg', '.md': '.csv'}
    return [
        (file.name, readers[file.suffix](file))
        for file in sorted(files, key=lambda file: list(readers).index(file.suffix))
        if file.with_suffix(better.get(file.suffix, '.none')) not in files
    ]


def _of_csv(path: Path) -> Markup:
    """A table on disk; a column of numbers stands at the right. Words of digits, such as 1_2 and 007, are no
    numbers. ValueError if it is no table.
    """
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding='utf-8', errors='replace'))))
    except csv.Error as error:
        raise ValueError(f'{path}: not readable as CSV ({error})') from error

    def number(cell: str) -> Any:
        for kind in () if _NAME.search(cell) else (int, float):
            try:
                return kind(cell)
            except ValueError:
                pass
        return cell or None

    return table(rows[0], [[number(cell) for cell in row] for row in rows[1:]]) if rows else Markup()


def _of_environment(path: Path) -> list[Section]:
    """The programs that made a directory, as far as it says."""
    if (path / ORIGIN).is_file():
        warned = [note(f'Warning: {sentence}.') for sentence in origin_warnings(path)]
        return [('Where it was made', joined(*warned, values(json_values(path / ORIGIN))))]
    for file in (path / MANIFEST, path / 'round-0' / 'model' / MANIFEST):
        if file.is_file():
            manifest, names = read_sealed(file), ('format', 'version', 'gluon_optbert')
            return [('Environment', values({name: manifest[name] for name in names if name in manifest}))]
    return []


def environment() -> Markup:
    """The commit, the versions and the machine where the page is made."""
    return details('Where this page was made', values(origin_here()))


def _chart(figure: Figure | None, caption: str) -> Markup:
    """A figure below its caption; nothing where there was nothing to draw."""
    return Markup() if figure is None else picture(drawn(figure, caption, 'svg'), 'svg', caption)


# Pruning runs


def of_rounds(run: Run) -> list[Section]:
    """Sizes and losses of a pruning run, its widths, and its gates."""
    drawing = _chart(draw_losses([run]), f'{title_by_size(run)}: {run.label}')
    words = note(_LOSSES if run.metric is None else _SCORES)
    sections = [('Size and accuracy', joined(_stages(run), words, drawing)), *_every_score(run)]
    if (run.path / TIMES).is_file():
        sections.append(('Time', _times_of_rounds(run.path / TIMES, run)))
    networks = run.networks()
    charts = [
        _chart(draw_widths(letter, networks), f'{WIDTHS[letter][0]}, round by round: {run.label}')
        for letter in 'fakv'
    ]
    sections.append(('Widths', joined(_widths(networks[-1].architecture), figures(*charts))))
    drawings = _gates(run)
    return sections + ([('Gates', joined(*drawings))] if drawings else [])


def _every_score(run: Run) -> list[Section]:
    """All scores at the end of every round, if these are several."""
    measured = [getattr(row.recovered, 'scores', {}) for row in run.rounds]
    names = list(dict.fromkeys(name for scores in measured for name in scores))
    texts = [[f'{scores[name]:.2f}' if name in scores else None for name in names] for scores in measured]
    rows = [[row.round, *own] for row, own in zip(run.rounds, texts)]
    return [('Scores', table(['round', *names], rows))] if len(names) > 1 else []


def _gates(run: Run) -> list[Markup]:
    """The gates of every round: their histograms, and what the rounds recorded of them."""
    drawings, gates, records = [], read_gates(run), run.gate_records()
    if gates:
        edges = alpha_bins(gates)
        histograms = [
            _chart(draw_alphas(letters, edges), f'Gates before the cut of round {number}: {run.label}')
            for number, letters in gates
        ]
        drawings.append(figures(*histograms))
    if records:
        widths = _chart(draw_gates(records), f'Gates by width, round by round: {run.label}')
        settling = _chart(draw_settling(records), f'How far the selection stayed the same: {run.label}')
        drawings += [figures(widths, settling), gates_table(records)]
    return drawings


def gates_table(records: Sequence[GateRecord]) -> Markup:
    """The measurements of `draw_gates` as numbers."""
    head = ['round', 'steps', 'width', 'gates', f'below {CLOSED}', f'above {OPEN}', 'largest α that went']
    rows = []
    for record in records:
        for letter in record.letters():
            fractions = (record.alpha_at_cut[letter], record.split_half[letter])
            texts = (None if value is None else f'{value:.2f}' for value in fractions)
            counts = (record.units[letter], record.closed[letter], record.open[letter])
            rows.append([record.round, record.steps, letter, *counts, *texts])
    return joined(table([*head, 'split-half correlation'], rows), note(_SPLIT_HALF))


def _stages(run: Run) -> Markup:
    """A row for each round: size, and the loss or the score at every stage; the fit of the layers is a stage
    where there was one.
    """
    of_task = run.metric is not None
    stages = {'before': f'{run.quantity} before', 'after_cut': 'after the cut'}
    if any(row.after_reconstruction for row in run.rounds):
        stages['after_reconstruction'] = 'reconstructed'
    stages['recovered'] = 'at the end' if of_task else 'recovered'
    rows = []
    for row in run.rounds:
        measured = [getattr(row, name) for name in stages]
        if of_task:
            rows.append([row.round, *_sizes(row, run), *map(_score, measured), _lost(row, run)])
        else:
            accuracies = [getattr(row.recovered, name, None) for name in MEASURED[1:]]
            rows.append([row.round, *_sizes(row, run)[:3], *map(value_of, measured), *accuracies])
    sizes, more = (_SIZES, [_FROM_FIRST]) if of_task else (_SIZES[:3], _ACCURACIES)
    return table(['round', *sizes, *stages.values(), *more], rows)


def _times_of_rounds(path: Path, run: Run) -> Markup:
    """The times of a run's networks, which the run measured at its end; ValueError if some are missing."""
    times = json_values(path)
    try:
        shapes, threads = times['milliseconds'], times['threads']
        rows = []
        for place, row in enumerate(run.rounds):
            cells = [row.round]
            for milliseconds in shapes.values():
                cells += [float(milliseconds[place]), f'{milliseconds[0] / milliseconds[place]:.2f} ×']
            rows.append(cells)
    except (LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f'{path}: not the times of the rounds ({error!s:.200})') from error
    head = [text for shape in shapes for text in (f'{shape.replace("x", " × ")} tokens, ms', 'times as fast')]
    words = f'Medians of exports with these widths and random weights. Threads: {threads}.'
    return joined(table(['round', *head], rows), note(words))


def _sizes(row: Round, run: Run) -> list[Any]:
    """The cells of `_SIZES`."""
    first, cells = run.rounds[0], []
    for value, whole, unit in ((row.parameters, first.parameters, 1e6), (row.flops, first.flops, 1e9)):
        cells += [value / unit, f'{value / whole:.1%}']
    return cells


def _score(measured: Measured | None) -> str | None:
    """A score with its standard error, where that is known."""
    return None if measured is None else score_text(measured.value, measured.standard_error, digits=2)


def _lost(row: Round, run: Run) -> str | None:
    """The points that a network has more than the first of its run."""
    start, own = (value_of(one.recovered) for one in (run.rounds[0], row))
    return None if start is None or own is None or row is run.rounds[0] else f'{own - start:+.2f}'


def side_by_side(runs: Sequence[Run]) -> Chapter | None:
    """Pruning runs against each other, those of pre-training and those of every task; None for less than two
    of each.
    """
    sections = [_ends(group) for group in by_quantity(runs) if len(group) > 1]
    return Chapter('Side by side', tuple(sections)) if sections else None


def _ends(runs: Sequence[Run]) -> Section:
    """The ends of comparable runs; of those of a task every network, the one that they began with once."""
    drawing = _chart(draw_losses(runs), title_by_size(runs[0]))
    rows: list[list[Any]] = []
    if runs[0].metric is None:
        for run in runs:
            last = run.rounds[-1]
            measured = [getattr(last.recovered, name, None) for name in MEASURED]
            rows.append([run.label, last.round, *_sizes(last, run)[:2], *measured])
        head = ['run', 'rounds', *_SIZES[:2], runs[0].quantity, *_ACCURACIES]
        return 'Where the runs ended', joined(table(head, rows), drawing)
    starts: list[Any] = []
    for run in runs:
        start = (run.rounds[0].architecture, run.rounds[0].recovered)
        for row in run.rounds[1 if start in starts else 0 :]:
            cells = [row.round, *_sizes(row, run), _score(row.recovered), _lost(row, run)]
            rows.append(['not pruned' if row is run.rounds[0] else run.label, *cells])
        starts.append(start)
    head = ['run', 'round', *_SIZES, runs[0].quantity, _FROM_FIRST]
    return f'Where the runs ended: {runs[0].quantity}', joined(table(head, rows), note(_SCORES), drawing)


# Models and the steps of runs


def _widths(architecture: Architecture) -> Markup:
    """The widths of a network, layer by layer."""
    facts = f'h = {architecture.h}' + (f', e = {architecture.e}' if architecture.e else '')
    layers = [[i, one.a, one.k, one.v, one.f] for i, one in enumerate(architecture.layers, start=1)]
    return joined(
        element('p', f'{facts}, {len(architecture.layers)} layers, {architecture.vocab_size:,} tokens:'),
        table(['layer', 'a (heads)', 'k (keys)', 'v (values)', 'f (filters)'], layers),
    )


def _of_model(path: Path) -> list[Section]:
    """Size and widths of a model directory, and what was measured at its end."""
    architecture = Architecture.read(path / 'architecture.json')
    progress = json_values(path / 'progress.json') if (path / 'progress.json').is_file() else {}
    facts = {
        'parameters of embeddings and encoder': int(ParameterCost().cost(architecture)),
        'FLOPs of 128 tokens': int(sum(count_flops(architecture, 128).values())),
        **(_without_marks(progress) if isinstance(progress, dict) else {'progress': progress}),
    }
    return [('Size and accuracy', values(facts)), ('Widths', _widths(architecture))]


def _without_marks(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Measurements without the marks of every instance."""
    return {
        name: _without_marks(value) if isinstance(value, Mapping) else value
        for name, value in measured.items()
        if name != 'right'
    }


def _of_metrics(path: Path, label: str) -> list[Section]:
    """Curves of the measurements of every step."""
    segments = segments_of(read_metrics(path))
    if not segments:
        return []
    header = ['phase', 'round', 'steps', 'tokens a second', 'waiting for data']
    drawing = _chart(draw_curves(segments), f'Over the steps of the run: {label}')
    return [('Curves', joined(drawing, table(header, speed(segments))))]


def _of_begun_finetuning(path: Path, label: str) -> list[Section]:
    """Curves of the seeds of a fine-tuning run that is not finished, those of every learning rate."""
    sections = []
    for pattern in ('seed-*', 'rate-*/seed-*'):
        files = (*path.glob(f'{pattern}/metrics.jsonl'), *path.glob(f'{pattern}.jsonl'))
        for file in sorted(filter(Path.is_file, files)):
            name = str(file.relative_to(path)).removesuffix('.jsonl').removesuffix('/metrics')
            of_seed = _of_metrics(file, f'{label}, {name}')
            sections += [(f'{title} of {name}', content) for title, content in of_seed]
    unfinished = ('Unfinished', element('p', f'This run is not finished: it has no {RESULT} yet.'))
    return [unfinished, *sections] if sections else []


# Files of results


def _of_finetuning(result: FineTuningResult, path: Path) -> list[Section]:
    """The scores of a fine-tuning run beside the majority class's, those of every epoch, the data, the
    network, and where the run was made.
    """
    architecture = Architecture.from_dict(result.architecture, source=str(path))
    names, data = list(result.mean), result.to_dict()
    epochs = [
        [run.seed, epoch.epoch, *(score_text(epoch.scores[name], digits=2) for name in names)]
        for run in result.runs
        for epoch in run.epochs
    ]
    rest = {name: value for name, value in data.items() if name not in (*_SHOWN, *_FOLDED)}
    folded = [details(title, values(data[name])) for name, title in _FOLDED.items() if name in data]
    return [
        (result.task, _scores(result)),
        ('Every epoch', table(['seed', 'epoch', *names], epochs)),
        *([('Learning rates', _rates(result))] if result.tried else []),
        ('Data', table(['part', 'instances'], result.samples.items())),
        ('Network', _widths(architecture)),
        ('How it was made', joined(values(rest), *folded)),
    ]


def _scores(result: FineTuningResult) -> Markup:
    """The scores by seed, with mean, deviation and the majority class."""
    mean, std, majority = result.mean, result.std, result.majority or {}
    rows = []
    for name in mean:
        least = majority.get(name)
        texts = [score_text(score, majority=least, digits=2) for score in result.scores(name)]
        constant = None if least is None else score_text(least, digits=2)
        rows.append([name, score_text(mean[name], std[name], majority=least, digits=2), constant, *texts])
    head = ['percent', 'mean ± deviation', 'majority class', *(f'seed {seed}' for seed in result.seeds)]
    poor = any(not exceeds(mean[name], majority.get(name)) for name in mean)
    words = f'{result.metric} is the score that counts.' + (f' {NOTE}.' if poor else '')
    return joined(table(head, rows), note(words))


def _rates(result: FineTuningResult) -> Markup:
    """The score of every learning rate, and which was chosen."""
    metric, rows = result.metric, []
    for one in result.tried:
        scores = [means(one.runs)[metric], *(run.scores[metric] for run in one.runs)]
        rows.append([f'{one.learning_rate:g}', *(score_text(score, digits=2) for score in scores)])
    chosen = best_rate(result.tried, metric).learning_rate
    head = ['learning rate', f'mean {metric}', *(f'seed {seed}' for seed in result.seeds)]
    return joined(table(head, rows), note(f'{chosen:g} was chosen: {OPTIMISTIC}.'))


def _of_results(data: Any) -> list[Section]:
    """A file of results: its plain values first, then a section for each of the others."""
    if not isinstance(data, dict):
        return [('Results', values(data))]
    nested = {name: value for name, value in data.items() if isinstance(value, (dict, list)) and value}
    single = {name: value for name, value in data.items() if name not in nested}
    first = [('Results', values(single))] if single or not nested else []
    return first + [(str(name), values(value)) for name, value in nested.items()]
