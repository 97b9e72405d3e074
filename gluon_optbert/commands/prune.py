"""Prune a pre-trained BERT by Algorithm 1 of optBERT."""

from .. import PruneRecipe, prune
from ..runs.command_line import parse
from ..training.distributed import Workers
from .starting import command, line


@command
def main(argv=None):
    """Parse the recipe, prune, and say what was written."""
    words = ['--model', 'models/small', '--shards', 'shards', '--target', 0.6, '--rounds', 4]
    words += ['--output', 'runs/pruned']
    example = line('optbert-prune', *words, recipe='pretrain/small_prune', workers=2)
    recipe = parse(PruneRecipe, argv, description=__doc__, example=example)
    workers = Workers()
    prune(recipe, workers=workers)
    if workers.first:
        print((recipe.output / 'pruning.md').read_text(encoding='utf-8'))
        print(f'wrote {recipe.output}\nnext: {line("optbert-verify", recipe.output)}')
