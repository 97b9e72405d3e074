"""Prune a pre-trained BERT by Algorithm 1 of optBERT."""

import sys

from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.training.distributed import Workers

EXAMPLE = (
    'horovodrun -np 2 python pretrain/run_prune.py pretrain/recipes/small_prune.yaml '
    '--model models/small --shards shards --target 0.6 --rounds 4 --output runs/pruned'
)


@command
def main(argv=None):
    """Parse the recipe, prune, and say what was written."""
    recipe = parse(PruneRecipe, argv, description=__doc__, example=EXAMPLE)
    workers = Workers()
    prune(recipe, workers=workers)
    if workers.first:
        print((recipe.output / 'pruning.md').read_text(encoding='utf-8'))
        print(f'wrote {recipe.output}\nnext: python tools/verify.py {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
