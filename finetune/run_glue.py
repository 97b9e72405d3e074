"""Fine-tune a model directory, pruned or not, on a task of GLUE."""

import sys

from gluon_optbert.finetuning.finetune import result_path, summary
from gluon_optbert.finetuning.glue import GlueRecipe, finetune_glue
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.training.distributed import Workers

EXAMPLE = (
    'python finetune/run_glue.py finetune/recipes/glue.yaml --task MRPC --model models/small --data glue '
    '--seeds 1,2,3 '
    '--output runs/mrpc'
)


@command
def main(argv=None):
    """Parse the recipe, fine-tune, and say what was written."""
    recipe = parse(GlueRecipe, argv, description=__doc__, example=EXAMPLE)
    workers = Workers()
    result = finetune_glue(recipe, workers=workers)
    if workers.first:
        print(
            f'{summary(result)}\nwrote {recipe.output} and {result_path(recipe)}\nnext: python '
            f'tools/export_model.py '
            f'{recipe.output}/seed-{recipe.seeds[0]} --output deploy'
        )


if __name__ == '__main__':
    sys.exit(main())
