"""Run a whole results table of the paper on a base network: prune or build every row, fine-tune it, and
tabulate it.
"""

import sys

from gluon_optbert.reproduction.drawing import write_tables
from gluon_optbert.reproduction.estimate import measure, readable
from gluon_optbert.reproduction.rows import TableRecipe
from gluon_optbert.reproduction.runs import plan, run
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.training.distributed import Workers

EXAMPLE = (
    'python finetune/run_table.py --table 8 --base models/small --shards shards --tasks mrpc,rte --data-glue '
    'glue '
    '--output runs/table8 --dry-run'
)


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
