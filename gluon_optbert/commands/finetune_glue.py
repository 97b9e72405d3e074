"""Fine-tune a model directory, pruned or not, on a task of GLUE."""

from .. import GlueRecipe, finetune_glue
from ..finetuning.recipe import written
from ..finetuning.result import summary
from ..runs.command_line import parse
from ..training.distributed import Workers
from .starting import command, line


@command
def main(argv=None):
    """Parse the recipe, fine-tune, and say what was written."""
    words = ['--task', 'MRPC', '--model', 'models/small', '--data', 'glue', '--seeds', '1,2,3']
    words += ['--output', 'runs/mrpc']
    example = line('optbert-finetune-glue', *words, recipe='finetune/glue')
    recipe = parse(GlueRecipe, argv, description=__doc__, example=example)
    workers = Workers()
    result = finetune_glue(recipe, workers=workers)
    if workers.first:
        following = line('optbert-export', recipe.output / f'seed-{recipe.seeds[0]}', '--output', 'deploy')
        print(f'{summary(result)}\n{written(recipe)}\nnext: {following}')
