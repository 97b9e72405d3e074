"""A results table as a plot, in its files, and as a section of a page."""

from __future__ import annotations

from pathlib import Path
from typing import List

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ..reporting.figures import STYLE, look, plain, save
from ..reporting.page import Section, element, joined, note, picture, table
from ..reporting.sections import Reader
from ..runs.files import write_file
from .rendering import notes, render, table_head, table_lines
from .results import Results, read_results


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
        axes.errorbar(
            *(zip(*done) if done else ([], [], [])), linestyle='', **style, capsize=2, label=plain(row.name)
        )
        published = [np.nan if entry.published is None else entry.published for entry in entries]
        axes.plot(places, published, linestyle='', fillstyle='none', alpha=0.6, **style)
    axes.set_xticks(range(len(columns)), [results.label(column).replace(' ', '\n') for column in columns])
    axes.set_ylabel('percent')
    axes.set_title(f'Table {results.table.number}: filled here, hollow in the paper')
    figure.legend(loc='outside right upper')
    return figure


def write_tables(output: Path) -> List[Path]:
    """Make the tables and plots anew from the results so far; the files that were written."""
    results = read_results(output)
    written = []
    for name, content in render(results).items():
        write_file(output / name, content.encode('utf-8'))
        written.append(output / name)
    with matplotlib.rc_context(STYLE):
        return written + save(draw(results), output, 'table')


def of_table(path: Path) -> List[Section]:
    """A results table of the paper as people read it, its plot, and what has to be known of it."""
    try:
        results = read_results(path)
        cells, remarks = table_lines(results), notes(results)
    except (KeyError, TypeError) as error:
        raise ValueError(f'{path}: a table whose plan or results lack something ({error})') from error
    drawing = path / 'table.svg'
    return [
        (
            f'Table {results.table.number}',
            joined(
                element('p', results.table.caption),
                table(table_head(results), cells),
                picture(drawing.read_bytes(), 'svg', f'Table {results.table.number}')
                if drawing.is_file()
                else '',
                *map(note, remarks),
            ),
        )
    ]


TABLE = Reader('plan.json', of_table, ('table.csv', 'table.md', 'table.svg', 'table.png'))
