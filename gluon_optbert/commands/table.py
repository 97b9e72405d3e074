"""Run a whole results table of the paper on a base network: prune or build every row, fine-tune it, and
tabulate it.
"""

from ..reproduction.estimate import measure, readable
from ..reproduction.results import write_tables
from ..reproduction.rows import TableRecipe
from ..reproduction.table import plan, run
from ..runs.command_line import parse
from ..training.distributed import Workers
from .starting import command, line


@command
def main(argv=None):
    """Plan, run what is not there, and render everything that is."""
    words = ['--table', 8, '--base', 'models/small', '--shards', 'shards', '--tasks', 'mrpc,rte']
    words += ['--data-glue', 'glue', '--output', 'runs/table8', '--dry-run']
    recipe = parse(TableRecipe, argv, description=__doc__, example=line('optbert-table', *words))
    workers = Workers()
    if not recipe.render:
        table_plan = plan(recipe, workers=workers)
        if recipe.dry_run:
            estimate = readable(table_plan, measure(table_plan, workers))
            if workers.first:
                print(estimate)
            return
        run(table_plan, workers=workers)
    if workers.first:
        written = write_tables(recipe.output)
        print((recipe.output / 'table.md').read_text(encoding='utf-8'))
        following = line('optbert-report', recipe.output, '--output', 'report.html')
        print(f'wrote {", ".join(path.name for path in written)} in {recipe.output}\nnext: {following}')
