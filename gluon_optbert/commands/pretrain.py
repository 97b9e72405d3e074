"""Pre-train a BERT of any widths on shards."""

from .. import PretrainRecipe, pretrain
from ..runs.command_line import parse
from ..training.distributed import Workers
from .starting import command, line


@command
def main(argv=None):
    """Parse the recipe, train, and say what was written."""
    words = ['--shards', 'shards', '--output', 'models/small']
    example = line('optbert-pretrain', *words, recipe='pretrain/small', workers=2)
    recipe = parse(PretrainRecipe, argv, description=__doc__, example=example)
    workers = Workers()
    pretrain(recipe, workers=workers)
    if workers.first:
        words = ['--model', recipe.output, '--shards', recipe.shards, '--output', 'runs/pruned']
        following = line('optbert-prune', *words, recipe='pretrain/small_prune')
        print(f'wrote {recipe.output}\nnext: {following}')
