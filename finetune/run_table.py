"""Run a whole results table of the paper on a base network: prune or build every row, fine-tune it, and
tabulate it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List

sys.path.append(str(Path(__file__).resolve().parent.parent / 'tools'))  # where figures lies

import matplotlib
import numpy as np
from figures import MARKERS, OKABE_ITO, STYLE, plain, save
from matplotlib.figure import Figure

from gluon_optbert.reproduction.estimate import measure, readable
from gluon_optbert.reproduction.rendering import Results, read_results, render
from gluon_optbert.reproduction.rows import TableRecipe
from gluon_optbert.reproduction.runs import plan, run
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.staging import write_file
from gluon_optbert.training.distributed import Workers

EXAMPLE = (
    'python finetune/run_table.py --table 8 --base models/small --shards shards --tasks mrpc,rte --data-glue '
    'glue '
    '--output runs/table8 --dry-run'
)


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
        colour, marker = OKABE_ITO[number % len(OKABE_ITO)], MARKERS[number % len(MARKERS)]
        places = np.arange(len(columns)) + 0.7 * ((number + 0.5) / len(results.rows) - 0.5)
        entries = [row.entries[column.name] for column in columns]
        done = [
            (place, entry.mean, entry.std or 0.0) for place, entry in zip(places, entries) if entry.scores
        ]
        axes.errorbar(
            *(zip(*done) if done else ([], [], [])),
            fmt=marker,
            color=colour,
            capsize=2,
            label=plain(row.name),
        )
        published = [np.nan if entry.published is None else entry.published for entry in entries]
        axes.plot(places, published, linestyle='', marker=marker, color=colour, fillstyle='none', alpha=0.6)
    axes.set_xticks(range(len(columns)), [results.label(column).replace(' ', '\n') for column in columns])
    axes.set_ylabel('percent')
    axes.set_title(f'Table {results.table.number}: filled here, hollow in the paper')
    figure.legend(loc='outside right upper')
    return figure


def write_tables(output: Path) -> List[Path]:
    """Make the tables and plots of what is there anew."""
    results = read_results(output)
    written = []
    for name, content in render(results).items():
        write_file(output / name, content.encode('utf-8'))
        written.append(output / name)
    with matplotlib.rc_context(STYLE):
        return written + save(draw(results), output, 'table')


@command
def main(argv=None):
    """Plan, run what is not there, and render everything that is."""
    recipe = parse(TableRecipe, argv, description=__doc__, example=EXAMPLE)
    workers = Workers()
    if not recipe.render:
        made = plan(recipe, workers=workers)
        if recipe.dry_run:
            said = readable(made, measure(made, workers))
            if workers.first:
                print(said)
            return
        run(made, workers=workers)
    if workers.first:
        written = write_tables(recipe.output)
        print((recipe.output / 'table.md').read_text(encoding='utf-8'))
        print(
            f'wrote {", ".join(path.name for path in written)} in {recipe.output}\n'
            f'next: python tools/report.py {recipe.output} --output report.html'
        )


if __name__ == '__main__':
    sys.exit(main())
