"""One page of HTML for runs, models, searches, results and tables, which opens from disk without network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Tuple

import matplotlib

from ..finetuning.result import FORMAT as RESULT_FORMAT
from ..reporting.figures import STYLE, labels_of
from ..reporting.page import page
from ..reporting.pruned import read_run
from ..reporting.sections import chapter, environment, side_by_side
from ..reproduction.drawing import TABLE
from ..runs.command_line import parse
from ..runs.recipe import option
from ..runs.staging import refuse_existing, write_file
from .starting import command, line


@dataclasses.dataclass(frozen=True)
class ReportRecipe:
    """What is reported, and where to."""

    runs: Tuple[Path, ...] = option(
        'directories of pruning runs, models, searches, comparisons or tables, or results as JSON'
    )
    output: Path = option('the page to write')


@command
def main(argv=None):
    """Read everything, then write the page."""
    example = line('optbert-report', 'runs/pruned', 'runs/random', '--output', 'report.html')
    recipe = parse(ReportRecipe, argv, description=__doc__, example=example, positional='runs')
    refuse_existing(recipe.output)
    labels = labels_of(recipe.runs)
    with matplotlib.rc_context(STYLE):
        chapters = [
            chapter(path, label, readers=[TABLE], finetuning=RESULT_FORMAT)
            for path, label in zip(recipe.runs, labels)
        ]
        first = side_by_side(
            [
                read_run(path, label)
                for path, label in zip(recipe.runs, labels)
                if (path / 'rounds.json').is_file()
            ]
        )
    content = page(f'Report: {", ".join(labels)}', ([first] if first else []) + chapters, note=environment())
    write_file(recipe.output, content.encode('utf-8'))
    print(f'wrote {recipe.output}: {len(content) / 1e6:.1f} MB, opens in any browser')
