"""A results table as Markdown, CSV and LaTeX.

Every score stands beside the published one, as mean and deviation over the seeds of fine-tuning. The first
line has the scores of always giving the majority class, and a score that is no better is marked; in CSV
they are columns. What has no result file says "not run", what the base is too small for "not reachable"."""

from __future__ import annotations

import csv
import io
from typing import Any, Dict, List, Mapping, Sequence

from ..runs.display import markdown_table
from ..runs.progress import NOTE, exceeds, score_text
from .results import NOT_REACHABLE, Results

CSV_HEADER = (
    'row',
    'column',
    'task',
    'metric',
    'state',
    'mean',
    'std',
    'seeds',
    'published',
    'parameters',
    'published_parameters_m',
    'majority',
    'exceeds_majority',
)


def table_lines(results: Results) -> List[List[str]]:
    """The majority class, then two lines a row: what was measured, and what was published."""
    majority = [results.majority(column) for column in results.columns]
    lines = [
        ['majority class', 'here', '–', *('–' if score is None else score_text(score) for score in majority)]
    ]
    for row in results.rows:
        size = '–' if row.parameters is None else f'{row.parameters / 1e6:.3g} M'
        lines.append(
            [row.name, 'here', size, *(row.entries[column.name].text() for column in results.columns)]
        )
        if row.published_parameters_m is None:
            continue
        published = (row.entries[column.name].published for column in results.columns)
        lines.append(
            [
                '',
                'paper',
                f'{row.published_parameters_m} M',
                *('–' if cell is None else str(cell) for cell in published),
            ]
        )
    return lines


def table_head(results: Results) -> List[str]:
    """The heads of the columns of `table_lines`."""
    return ['model', '', 'parameters', *(results.label(column) for column in results.columns)]


def _gate_steps(plan: Mapping[str, Any]) -> str:
    most = 'at most ' if plan.get('alpha_steps_auto') else ''
    return f'{most}{plan["alpha_steps"]}'


def notes(results: Results) -> List[str]:
    """What has to be known to read the table."""
    plan = results.plan
    remarks = [
        f'Here: on a base of {plan["base_parameters"]:,} parameters; mean ± deviation of the sample over the '
        f'seeds {", ".join(map(str, plan["seeds"]))} of fine-tuning, one network a row; scores in percent, '
        'on the held-out sets.',
        'The majority class is the commonest of the held-out set; for SQuAD it stands for giving no answer. '
        f'{NOTE}.',
        'The average is of one score a task, F1 of SQuAD.',
        f'Steps in each of {plan["rounds"]} rounds: {_gate_steps(plan)} of gates, {plan["recovery_steps"]} '
        f'of recovery; scale {plan["scale"]:g}.',
    ]
    if plan.get('scratch_steps'):
        remarks.append(f'Steps of a row that is trained from scratch: {plan["scratch_steps"]:,}.')
    tunings = dict.fromkeys((task, tuning) for row in results.rows for task, tuning in row.tuning.items())
    remarks += [f'Fine-tuned on {task}: {tuning}.' for task, tuning in tunings]
    if tunings:
        resumed = any(row.resumed for row in results.rows)
        lacking = ', without what came before runs were resumed' if resumed else ''
        remarks.append(
            f'Fine-tuning took {sum(row.seconds for row in results.rows) / 60:.0f} minutes in all{lacking}.'
        )
    remarks += [
        f'{row["name"]}: {row["how"]}'
        + ('' if row['share'] is None else f', {row["share"]:.1%} of the base')
        + (f'; {NOT_REACHABLE}: {row["unreachable"]}' if row['unreachable'] else '')
        + '.'
        for row in plan['rows']
    ]
    return remarks


def markdown(results: Results) -> str:
    """The table for a page."""
    lines = [
        f'# Table {results.table.number}',
        '',
        results.table.caption,
        '',
        markdown_table(table_head(results), table_lines(results)),
        '',
    ]
    return '\n'.join(lines + [f'- {note}' for note in notes(results)]) + '\n'


def sheet(results: Results) -> str:
    """The table as CSV, a line for each cell, unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerow(CSV_HEADER)
    for row in results.rows:
        for column in results.columns:
            entry = row.entries[column.name]
            known = entry.mean is not None and entry.majority is not None
            writer.writerow(
                [
                    row.name,
                    column.name,
                    column.task,
                    column.metric,
                    entry.state,
                    entry.mean,
                    entry.std,
                    len(entry.scores),
                    entry.published,
                    row.parameters,
                    row.published_parameters_m,
                    entry.majority,
                    exceeds(entry.mean, entry.majority) if known else None,
                ]
            )
    return text.getvalue()


_TEX = {
    '\\': r'\textbackslash{}',
    **{sign: '\\' + sign for sign in '&%$#_{}'},
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    'ℓ': r'$\ell$',
    '±': r'$\pm$',
    '–': '--',
    'α': r'$\alpha$',
}


def tex(results: Results) -> str:
    """The table for LaTeX, without packages."""

    def line(cells: Sequence[str]) -> str:
        return ' & '.join(''.join(_TEX.get(sign, sign) for sign in cell) for cell in cells) + r' \\'

    heads, body = table_head(results), [line(cells) for cells in table_lines(results)]
    return (
        '\n'.join(
            [
                r'\begin{tabular}{ll' + 'r' * (len(heads) - 2) + '}',
                r'\hline',
                line(heads),
                r'\hline',
                *body,
                r'\hline',
                r'\end{tabular}',
            ]
        )
        + '\n'
    )


def render(results: Results) -> Dict[str, str]:
    """The files of a table by name."""
    return {'table.md': markdown(results), 'table.csv': sheet(results), 'table.tex': tex(results)}
