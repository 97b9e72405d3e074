"""A study so far as people read it: the tables of the paper beside its own, scores against sizes, and which
orders are seen."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ..architecture.architecture import Architecture
from ..architecture.cost import FlopsCost
from ..architecture.paper import load_table
from ..pruning.report import widths_line
from ..reporting.figures import STYLE, draw_all_widths, look, plain as plain_text, save
from ..reporting.networks import Network
from ..runs.display import markdown_table, number_of
from ..runs.files import write_file
from ..runs.progress import CLEAR
from .results import Results, render, result_row
from .rows import BASE, OF_STUDIES, TABLES, known_rows, row_names, size_name, slug_of, task_names
from .study_results import Key, StudyResults, read_studies, together

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


def size_of(number: int) -> float:
    """The published size of a table of the paper, in millions of parameters; 0 of one with several."""
    table = load_table(number)
    sizes = {name: float(record['parameters_m']) for name, record in zip(row_names(table), table.records())}
    return max((sizes[name] for name in _SIZED if name in sizes), default=0.0)


def table_of(study: StudyResults, number: int) -> Results:
    """A table of the paper with the study's scores, over the seeds of pruning."""
    table, size = load_table(number), size_of(number)
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
    scratch = ''
    if study.from_scratch():
        names, steps = ', '.join(study.from_scratch()), study.plan['scratch_steps']
        scratch = f' Trained from scratch, for {steps:,} steps, and not made of the base: {names}.'
    lines = [
        '# The study' if done == planned else '# The study so far',
        '',
        f'{done} of {planned} cells (network, task and seed) were run.{scratch}',
        '',
        *_ladder_lines(study.plan.get('ladders', ())),
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
    for task, metric in tasks_of(study):
        lines += ['', *_score_lines(study, task, metric)]
    if study.recovered:
        lines += ['', *_held_out_lines(study, sizes)]
    lines += ['', *_dimension_lines(study), '', '## Machines', '']
    machines = collections.Counter(
        f'{_machine_text(one.origin["machine"])}, commit {one.origin["commit"] or "unknown":.10}'
        for results in study.cells.values()
        for one in results.values()
    )
    lines += [f'- {number_of(count, "cell")}: {machine}' for machine, count in machines.items()]
    return '\n'.join(lines) + '\n'


def _ladder_lines(ladders: Sequence[Sequence[float]]) -> list[str]:
    """Which sizes are made alike, where the page is of several studies."""
    if len(ladders) < 2:
        return []
    texts = ['to ' + ', then '.join(map(size_name, one)) for one in ladders]
    return [
        f'Every cut row is cut from the base anew {"; ".join(texts)}. Each of these ladders is a study with '
        'settings of pruning of its own; fine-tuning is the same in all.',
        '',
    ]


def _beside_base(sizes: Sequence[float], body: Sequence[Sequence[str]]) -> str:
    """A table of rows, with a value and its difference to the base at each size."""
    return markdown_table(
        ['row', *(word for size in sizes for word in (size_name(size), 'to the base'))], body
    )


def _score_lines(study: StudyResults, task: str, metric: str) -> list[str]:
    """The scores on a task of the networks that are to be fine-tuned on it."""
    planned = [one for one in study.plan['networks'] if task in one['tasks'] and not one['unreachable']]
    keys = [(one['row'], one['size']) for one in planned if one['row'] != BASE]
    sizes = sorted({size for _, size in keys}, reverse=True)
    body = []
    rows = {row for row, _ in keys}
    for row in filter(rows.__contains__, study.rows()):
        cells = []
        for size in sizes:
            apart = study.difference((row, size), (BASE, None), task, metric)
            score = study.entry((row, size), task, metric).text() if (row, size) in keys else '–'
            cells += [score, apart.text() if apart else '–']
        body.append([row, *cells])
    base = dataclasses.replace(study.entry((BASE, None), task, metric), majority=None)  # not marked
    alone = '' if body else ' No other network is fine-tuned on it.'
    lines = [f'## {task}', '', f'The base: {base.text()}.{alone}']
    return [*lines, '', _beside_base(sizes, body)] if body else lines


def _held_out_lines(study: StudyResults, sizes: Sequence[float]) -> list[str]:
    """What recovery left of pre-training, and how far scores go along with that."""
    body = []
    for row in study.rows():
        found = [study.loss_difference((row, size), (BASE, None)) for size in sizes]
        texts = [study.held_out_text((row, size), 'mlm_loss') for size in sizes]
        body.append([row, *itertools.chain(*zip(texts, (one.text(2) if one else '–' for one in found)))])
    lines = ['## MLM loss', '', 'After recovery, in nats a masked token, on held-out instances.']
    lines += [f'The base: {study.held_out_text((BASE, None), "mlm_loss")}.', '', _beside_base(sizes, body)]
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
    keys = sorted(found, key=lambda key: key[1] or math.inf, reverse=True)
    for (row, size), (parameters, one) in ((key, found[key]) for key in keys):
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


def draw_dimensions(study: StudyResults, row: str) -> Figure | None:
    """Figures 3 to 6 of optBERT, of a row of the study at all its sizes: the widths across the layers.

    None if no two networks of the row were fine-tuned.
    """
    found = {size: one for (name, size), one in study.first_results().items() if name in (BASE, row)}
    sizes = [None] * (None in found) + [size for size in study.sizes()[::-1] if size in found]
    if len([*filter(None, sizes)]) < 2:
        return None
    names = ['the base' if size is None else f'{row}, {size_name(size)}' for size in sizes]
    networks = [
        Network(name, Architecture.from_dict(found[size].architecture)) for name, size in zip(names, sizes)
    ]
    titles = {letter: f'optBERT, Figure {number}, here' for number, letter in enumerate('fakv', start=3)}
    return draw_all_widths(networks, titles)


def draw(study: StudyResults, task: str, metric: str) -> Figure:
    """A task's score against the size, rows set apart so that errors can be told: standard errors of the
    difference to the base, which is dashed. A line joins the sizes of a row that one ladder made.
    """
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    rows, sizes = study.rows(), study.sizes()
    ladders = study.plan.get('ladders', [sizes[::-1]])
    nearest = min((two - one for one, two in itertools.pairwise(sizes)), default=0.0)
    apart = 0.5 * nearest / max(1, len(rows))
    for number, row in enumerate(rows):
        entries = {size: study.entry((row, size), task, metric) for size in sizes}
        label: str | None = plain_text(row)
        for ladder in ladders:
            points = []
            for size in (one for one in ladder if entries[one].scores):
                to_base = study.difference((row, size), (BASE, None), task, metric)
                error = (to_base.error if to_base else None) or 0.0
                points.append((size + apart * (number - (len(rows) - 1) / 2), entries[size].mean, error))
            if points:
                axes.errorbar(*zip(*points), **look(number), capsize=2, label=label)
                label = None  # once in the legend
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


def write_study(output: Path, beside: Sequence[Path] = ()) -> list[Path]:
    """Make tables and plots from the results so far, in ``tables/`` of the study; the files.

    Studies with the same base and other sizes may stand beside it in them; ValueError if they cannot.
    """
    studies, place = read_studies([output, *beside]), Path(output) / 'tables'
    study = together(studies) if beside else studies[0]
    place.mkdir(exist_ok=True)
    written = [place / 'README.md']
    for number in TABLES if study.plan['objective'] == 'parameters' else ():
        own = next((one for one in studies if size_of(number) in one.sizes()), studies[0])
        for name, content in render(table_of(own, number)).items():
            written.append(place / name.replace('table', f'table_{number:02d}'))
            write_file(written[-1], content.encode())
    with matplotlib.rc_context(STYLE):
        for task, metric in tasks_of(study):
            if len({size for (_, size), of_task in study.cells if size and of_task == task}) > 1:
                written += save(draw(study, task, metric), place, slug_of(task))
        widths = draw_dimensions(study, 'optBERT-all')
        written += save(widths, place, 'dimensions') if widths else []
    shown = [f'![{path.stem}]({path.name})' for path in written if path.suffix == '.png']
    plots = ['', '## Plots', '', *shown, ''] if shown else []
    write_file(written[0], (summary(study) + '\n'.join(plots)).encode())
    return written
