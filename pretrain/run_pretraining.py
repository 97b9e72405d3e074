"""Pre-train a BERT of any widths on shards."""

import sys

from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.pretrain import pretrain
from gluon_optbert.training.recipe import PretrainRecipe

EXAMPLE = (
    'horovodrun -np 2 python pretrain/run_pretraining.py pretrain/recipes/small.yaml '
    '--shards shards --output models/small'
)


@command
def main(argv=None):
    """Parse the recipe, train, and say what was written."""
    recipe = parse(PretrainRecipe, argv, description=__doc__, example=EXAMPLE)
    workers = Workers()
    pretrain(recipe, workers=workers)
    if workers.first:
        print(
            f'wrote {recipe.output}\nnext: python pretrain/run_prune.py pretrain/recipes/small_prune.yaml '
            f'--model {recipe.output} --shards {recipe.shards} --output runs/pruned'
        )


if __name__ == '__main__':
    sys.exit(main())
