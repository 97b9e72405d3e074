"""Prune a fine-tuned network for its task."""

from .. import TaskPruneRecipe, prune_task
from ..runs.command_line import parse
from ..training.distributed import Workers
from .starting import command, line


@command
def main(argv=None):
    """Parse the recipe, prune, and say what was written."""
    words = ['--model', 'runs/sst2/seed-1', '--data', 'glue', '--target', 0.5, '--method', 'fisher']
    words += ['--reconstruct', '--steps', 0, '--output', 'runs/sst2-half']
    example = line('optbert-prune-task', *words)
    recipe = parse(TaskPruneRecipe, argv, description=__doc__, example=example)
    workers = Workers()
    prune_task(recipe, workers=workers)
    if workers.first:
        print((recipe.output / 'pruning.md').read_text(encoding='utf-8'))
        following = line('optbert-verify', recipe.output)
        print(f'wrote {recipe.output}\nnext: {following}')
