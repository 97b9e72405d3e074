"""Fine-tune a model directory, pruned or not, on SQuAD."""

from .. import SquadRecipe, finetune_squad
from ..finetuning.recipe import written
from ..finetuning.result import summary
from ..runs.command_line import parse
from ..training.distributed import Workers
from .starting import command, line


@command
def main(argv=None):
    """Parse the recipe, fine-tune, and say what was written."""
    words = ['--model', 'models/small', '--data', 'squad', '--output', 'runs/squad2']
    example = line('optbert-finetune-squad', *words, recipe='finetune/squad2')
    recipe = parse(SquadRecipe, argv, description=__doc__, example=example)
    workers = Workers()
    result = finetune_squad(recipe, workers=workers)
    if workers.first:
        following = line('optbert-export', recipe.output / f'seed-{recipe.seeds[0]}', '--output', 'deploy')
        print(f'{summary(result)}\n{written(recipe)}\nnext: {following}')
