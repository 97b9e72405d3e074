"""Fine-tune a model directory, pruned or not, on SQuAD."""

import sys

from gluon_optbert.finetuning.finetune import result_path, summary
from gluon_optbert.finetuning.squad import SquadRecipe, finetune_squad
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.training.distributed import Workers

EXAMPLE = (
    'python finetune/run_squad.py finetune/recipes/squad.yaml --version 2.0 --model models/small --data '
    'squad '
    '--output runs/squad2'
)


@command
def main(argv=None):
    """Parse the recipe, fine-tune, and say what was written."""
    recipe = parse(SquadRecipe, argv, description=__doc__, example=EXAMPLE)
    workers = Workers()
    result = finetune_squad(recipe, workers=workers)
    if workers.first:
        print(
            f'{summary(result)}\nwrote {recipe.output} and {result_path(recipe)}\nnext: python '
            f'tools/export_model.py '
            f'{recipe.output}/seed-{recipe.seeds[0]} --output deploy'
        )


if __name__ == '__main__':
    sys.exit(main())
