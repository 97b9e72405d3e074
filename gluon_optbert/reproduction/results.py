"""A results table so far: its plan and result files, as Markdown, CSV, LaTeX, a plot, and part of a page.

Every score stands beside the published one, as mean and deviation over the seeds of fine-tuning. The first
line has the scores of always giving the majority class, and a score that is no better is marked; in CSV
they are columns. A cell without a result file is "not run", one that the base is too small for "not
reachable"."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ..architecture.paper import Cell, Column, PaperTable, load_table
from ..finetuning.result import FineTuningResult
from ..reporting.figures import STYLE, look, plain as plain_text, save
from ..reporting.page import Section, element, joined, note, picture, table
from ..reporting.sections import Reader
from ..runs.display import markdown_table, number_of
from ..runs.files import read_json, write_file
from ..runs.progress import NOTE, RESULT, exceeds, score_text, spread
from .rows import FORMAT, TABLE_PLAN, row_names, slug_of, task_names

# a column's metric, as results call it; the first that a result has
SCORES = {
    'accuracy': ('accuracy',),
    'f1': ('best_f1', 'f1'),
    'em': ('exact_at_best_f1', 'exact_match', 'exact'),
}
NOT_RUN, NOT_REACHABLE = 'not run', 'not reachable'
_TEX = str.maketrans(
    {
        '\\': r'\textbackslash{}',
        **{sign: '\\' + sign for sign in '&%$#_{}'},
        '~': r'\textasciitilde{}',
        '^': r'\textasciicircum{}',
        'ℓ': r'$\ell$',
        '±': r'$\pm$',
        '–': '--',
        'α': r'$\alpha$',
    }
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cell.

    Parameters
    ----------
    scores : tuple of float
        In percent, by seed; empty if there are none.
    state : str
        ``done``, `NOT_RUN` or `NOT_REACHABLE`.
    majority : float, optional
        The score of always giving the majority class, in percent; None where no result says it.
    """

    scores: tuple[float, ...]
    state: str
    published: Cell
    majority: float | None = None

    @property
    def mean(self) -> float | None:
        """Over the seeds."""
        return spread(self.scores)[0] if self.scores else None

    @property
    def std(self) -> float | None:
        """Of the sample; None for less than two seeds."""
        return spread(self.scores)[1] if self.scores else None

    def text(self) -> str:
        """For people, with one digit as the paper has it, and marked if it says nothing."""
        if self.mean is None:
            return self.state
        return score_text(self.mean, self.std, majority=self.majority)


@dataclasses.dataclass(frozen=True)
class ResultRow:
    """A row with its results.

    Parameters
    ----------
    entries : mapping of str to Entry
        By column.
    parameters : int, optional
        None where nothing was run.
    published_parameters_m : Cell
        In millions; None for a row that the table does not have.
    tuning : mapping of str to str
        By task, how it was fine-tuned.
    seconds : float
        Of fine-tuning.
    """

    name: str
    entries: Mapping[str, Entry]
    parameters: int | None
    published_parameters_m: Cell
    tuning: Mapping[str, str]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Results:
    """A table with its results and its plan."""

    table: PaperTable
    rows: tuple[ResultRow, ...]
    plan: Mapping[str, Any]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those that have scores."""
        return columns_of(self.table)

    def label(self, column: Column) -> str:
        """The head of a column; the two of a pair have their metrics in it."""
        alone = sum(other.label == column.label for other in self.columns) == 1
        return column.label if alone or column.metric is None else f'{column.label} {column.metric.upper()}'


def read_results(output: Path) -> Results:
    """The plan and the results of a table so far; FileNotFoundError or ValueError if there is no table, or a
    file of it is damaged.
    """
    path = Path(output) / TABLE_PLAN
    if not path.is_file():
        raise FileNotFoundError(f'{output}: no {TABLE_PLAN}, so there is no table')
    plan = read_json(path)
    if plan.get('format') != FORMAT:
        raise ValueError(f'{path}: not a plan of format {FORMAT}')
    table = load_table(plan['table'])
    lacking = {*row_names(table)} - {row['name'] for row in plan['rows']}
    if lacking:
        raise ValueError(f'{path}: lacks the rows {", ".join(sorted(lacking))} of Table {table.number}')
    rows = []
    for row in plan['rows']:
        files = {
            task: Path(output) / 'cells' / row['slug'] / slug_of(task) / RESULT for task in task_names(table)
        }
        results = {task: [FineTuningResult.read(file)] for task, file in files.items() if file.is_file()}
        rows.append(result_row(table, row, results))
    return Results(table, tuple(rows), plan)


def columns_of(table: PaperTable) -> tuple[Column, ...]:
    """The columns of a table that have scores."""
    return tuple(column for column in table.columns if column.task or column.name == 'average')


def score_name(result: FineTuningResult, metric: str) -> str:
    """The score of a result that a column's metric stands for, on the first held-out set."""
    first = result.metric.split('/')[0]
    names = (f'{first}/{name}' for name in SCORES[metric])
    return next(name for name in names if name in result.runs[0].scores)


def result_row(
    table: PaperTable, planned: Mapping[str, Any], results: Mapping[str, Sequence[FineTuningResult]]
) -> ResultRow:
    """A row of a plan with its results, of one run a task or of several, and with what was published."""
    columns, published = columns_of(table), dict(zip(row_names(table), table.records()))
    record = published.get(planned['name'], {})
    scores: dict[str, tuple[float, ...]] = {column.name: () for column in columns}
    majority: dict[str, float | None] = dict.fromkeys(scores)
    for column in columns:
        for result in results.get(str(column.task), ()):
            name = score_name(result, str(column.metric))
            scores[column.name] += result.scores(name)
            majority[column.name] = (result.majority or {}).get(name)
    counted = [column.name for column in columns if column.metric in ('f1', 'accuracy')]  # F1 of a pair
    if all(scores[name] for name in counted):
        by_seed = [scores[name] for name in counted]
        seeds = {tuple(seed for one in results[task] for seed in one.seeds) for task in task_names(table)}
        if len(seeds) > 1:  # tasks with fewer seeds, or others
            by_seed = [(float(np.mean(one)),) for one in by_seed]
        scores['average'] = tuple(float(np.mean(one)) for one in zip(*by_seed))
        constant = [majority[name] for name in counted]
        majority['average'] = None if None in constant else float(np.mean(constant))
    absent = NOT_REACHABLE if planned['unreachable'] else NOT_RUN
    every = [result for one in results.values() for result in one]
    return ResultRow(
        planned['name'],
        {
            name: Entry(scores[name], 'done' if scores[name] else absent, record.get(name), majority[name])
            for name in scores
        },
        next((one[-1].parameters for one in results.values()), None),
        record.get('parameters_m'),
        {task: tuning_text(one[-1]) for task, one in results.items()},
        sum(result.seconds for result in every),
    )


def tuning_text(result: FineTuningResult) -> str:
    """The fine-tuning of a cell, in words."""
    recipe = result.recipe
    rates = ', '.join(f'{one.learning_rate:g}' for one in result.tried)
    chosen = f' (the best of {rates} on the set that is scored)' if rates else ''
    return (
        f'{result.samples["train"]:,} instances, {number_of(recipe["epochs"], "epoch")}, batches of '
        f'{recipe["batch_size"]}, learning rate {recipe["learning_rate"]:g}{chosen}, {recipe["precision"]}'
    )


# Forms


def table_lines(results: Results) -> tuple[list[str], list[list[str]]]:
    """The head, and the lines: the majority class, then two a row, measured and published."""
    head = ['model', '', 'parameters', *(results.label(column) for column in results.columns)]
    names = [column.name for column in results.columns]

    def cells(texts: Sequence[Any]) -> list[str]:
        return ['–' if text is None else str(text) for text in texts]

    majority = []
    for name in names:
        known = [row.entries[name].majority for row in results.rows]
        score = next((score for score in known if score is not None), None)
        majority.append(None if score is None else score_text(score))
    lines = [['majority class', 'here', '–', *cells(majority)]]
    for row in results.rows:
        size = None if row.parameters is None else f'{row.parameters / 1e6:.3g} M'
        lines.append([row.name, 'here', *cells([size]), *(row.entries[name].text() for name in names)])
        if row.published_parameters_m is not None:
            published = [row.entries[name].published for name in names]
            lines.append(['', 'paper', f'{row.published_parameters_m} M', *cells(published)])
    return head, lines


def notes(results: Results) -> list[str]:
    """Remarks without which the table cannot be read."""
    plan = results.plan
    of_table, most = 'scale' in plan, 'at most ' if plan['alpha_steps_auto'] else ''
    numbers, several = ', '.join(map(str, plan['seeds'])), len(plan['seeds']) > 1
    which = f'the seeds {numbers}' if of_table else f'those of the seeds {numbers} that a cell has'
    means = f'mean ± deviation of the sample over {which}' if several else f'with seed {numbers}'
    what = 'of fine-tuning, one network a row' if of_table else 'of pruning and fine-tuning'
    remarks = [
        f'Here: on a base of {plan["base_parameters"]:,} parameters; {means}, {what}; scores in percent, on '
        'the held-out sets.',
        'The majority class is the commonest of the held-out set; for SQuAD it stands for giving no answer. '
        f'{NOTE}.',
        'The average is of one score a task, F1 of SQuAD.',
        f'Steps in each round: {most}{plan["alpha_steps"]} of gates, {plan["recovery_steps"]} of recovery'
        + (f'; {plan["rounds"]} rounds; scale {plan["scale"]:g}.' if of_table else '.'),
    ]
    if plan.get('scratch_steps'):
        remarks.append(f'Steps of a row that is trained from scratch: {plan["scratch_steps"]:,}.')
    tunings = dict.fromkeys((task, tuning) for row in results.rows for task, tuning in row.tuning.items())
    remarks += [f'Fine-tuned on {task}: {tuning}.' for task, tuning in tunings]
    if tunings:
        minutes = sum(row.seconds for row in results.rows) / 60
        remarks.append(f'Fine-tuning took {minutes:.0f} minutes in all.')
    for row in plan['rows']:
        share = '' if row['share'] is None else f', {row["share"]:.1%} of the base'
        reason = f'; {NOT_REACHABLE}: {row["unreachable"]}' if row['unreachable'] else ''
        remarks.append(f'{row["name"]}: {row["how"]}{share}{reason}.')
    return remarks


def render(results: Results) -> dict[str, str]:
    """The files of a table by name; the CSV has a line for each cell, unrounded, the LaTeX no packages."""
    head, lines = table_lines(results)
    remarks = '\n'.join(f'- {remark}' for remark in notes(results))
    rows = markdown_table(head, lines)
    title = f'# Table {results.table.number}\n\n{results.table.caption}'
    cells = []
    for row in results.rows:
        for column in results.columns:
            entry = row.entries[column.name]
            known = entry.mean is not None and entry.majority is not None
            cells.append(
                {
                    'row': row.name,
                    'column': column.name,
                    'task': column.task,
                    'metric': column.metric,
                    'state': entry.state,
                    'mean': entry.mean,
                    'std': entry.std,
                    'seeds': len(entry.scores),
                    'published': entry.published,
                    'parameters': row.parameters,
                    'published_parameters_m': row.published_parameters_m,
                    'majority': entry.majority,
                    'exceeds_majority': exceeds(entry.mean, entry.majority) if known else None,
                }
            )
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, cells[0], lineterminator='\n')
    writer.writeheader()
    writer.writerows(cells)

    def tex(cells: Sequence[str]) -> str:
        return ' & '.join(cell.translate(_TEX) for cell in cells) + r' \\'

    begin = r'\begin{tabular}{ll' + 'r' * (len(head) - 2) + '}'
    tabular = [begin, r'\hline', tex(head), r'\hline', *map(tex, lines), r'\hline', r'\end{tabular}', '']
    return {
        'table.md': f'{title}\n\n{rows}\n\n{remarks}\n',
        'table.csv': sheet.getvalue(),
        'table.tex': '\n'.join(tabular),
    }


def draw(results: Results) -> Figure:
    """Every score with its deviation, beside the published one as a hollow mark; columns without any are left
    out.
    """
    columns = [
        column for column in results.columns if any(row.entries[column.name].scores for row in results.rows)
    ]
    columns = columns or list(results.columns)
    figure = Figure(figsize=(3.5 + 1.1 * len(columns), 4.5))
    axes = figure.subplots()
    for number, row in enumerate(results.rows):
        style = look(number)
        places = np.arange(len(columns)) + 0.7 * ((number + 0.5) / len(results.rows) - 0.5)
        entries = [row.entries[column.name] for column in columns]
        done = [
            (place, entry.mean, entry.std or 0.0) for place, entry in zip(places, entries) if entry.scores
        ]
        points = zip(*done) if done else ([], [], [])
        axes.errorbar(*points, linestyle='', **style, capsize=2, label=plain_text(row.name))
        published = [np.nan if entry.published is None else entry.published for entry in entries]
        axes.plot(places, published, linestyle='', fillstyle='none', alpha=0.6, **style)
    axes.set_xticks(range(len(columns)), [results.label(column).replace(' ', '\n') for column in columns])
    axes.set_ylabel('percent')
    axes.set_title(f'Table {results.table.number}: filled here, hollow in the paper')
    figure.legend(loc='outside right upper')
    return figure


def write_tables(output: Path, number: int | None = None) -> list[Path]:
    """Make the tables and plots anew from the results so far; the files that were written; ValueError if
    the table is another one than that of a number.
    """
    results = read_results(output)
    found = results.table.number
    if number not in (None, found):
        raise ValueError(f'{output} holds Table {found}; give --table {found}, or another --output')
    files = render(results)
    for name, content in files.items():
        write_file(output / name, content.encode('utf-8'))
    with matplotlib.rc_context(STYLE):
        return [output / name for name in files] + save(draw(results), output, 'table')


def _section(path: Path) -> list[Section]:
    """A results table of the paper as people read it, its plot, and the remarks on it."""
    try:
        results = read_results(path)
        rows, remarks = table(*table_lines(results)), notes(results)
    except (KeyError, TypeError) as error:
        raise ValueError(f'{path}: a table whose plan or results lack something ({error})') from error
    title, drawing = f'Table {results.table.number}', path / 'table.svg'
    chart = picture(drawing.read_bytes(), 'svg', title) if drawing.is_file() else ''
    return [(title, joined(element('p', results.table.caption), rows, chart, *map(note, remarks)))]


TABLE = Reader(TABLE_PLAN, _section, ('table.csv', 'table.md', 'table.svg', 'table.png'))
