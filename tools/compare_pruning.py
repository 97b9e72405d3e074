"""Compare ways of pruning one base: losses, errors and scores by size, in one table and one plot.

Every way has a name and its runs of run_prune.py, which differ in seed and sizes only. What
`verify.py --output RUN/verified.json` found is read from there. With --controls alone, networks that were
not pruned are compared. Results of fine-tuning name their network by
the checksum of its weights, so the weights themselves need not be there: the manifest of a model directory
has it."""

from __future__ import annotations

import sys
from pathlib import Path

from gluon_optbert.reporting.comparison import controls_of, named, networks_of, with_scores, write
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.files import new_directory, refuse_existing
from gluon_optbert.runs.recipe import Recipe, option


class CompareRecipe(Recipe):
    """What is compared, and where to."""

    ways: tuple[str, ...] = option('NAME=RUN,RUN: a way of pruning, and its runs', (), metavar='NAME=RUN,RUN')
    controls: tuple[str, ...] = option(
        'NAME=MODEL of networks that were not pruned, with commas between them; a name may come again',
        (),
        metavar='NAME=MODEL',
    )
    scores: tuple[Path, ...] = option('results of fine-tuning: directories or result files', ())
    output: Path | None = option('directory to write')

    def problems(self) -> list[str]:
        """What is missing."""
        return [] if self.ways or self.controls else ['give at least one way of pruning, or --controls']


@command
def main(argv=None):
    """Read everything, write the directory, print the table."""
    recipe = parse(
        CompareRecipe,
        argv,
        description=__doc__,
        example="python tools/compare_pruning.py 'the paper=runs/paper-1,runs/paper-2' 'repaired=runs/all-1' "
        '--output comparison',
        positional='ways',
    )
    refuse_existing(recipe.output)
    networks = controls_of(recipe.controls)
    for text in recipe.ways:
        networks += networks_of(*named(text))
    networks = with_scores(networks, recipe.scores)
    with new_directory(recipe.output) as staged:
        written = write(networks, staged)
        print((staged / 'table.md').read_text(encoding='utf-8'))
    print(f'wrote {recipe.output}: {", ".join(path.name for path in written)}')


if __name__ == '__main__':
    sys.exit(main())
