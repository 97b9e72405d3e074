"""Pre-train a BERT of any widths on shards."""

import shlex
from typing import List

from .. import PretrainRecipe, pretrain
from ..runs.command_line import parse
from ..runs.progress import Progress
from ..text.batches import frequency_loss
from ..text.shards import Shards
from ..training.distributed import Workers
from .starting import command, line

FURTHER, LEAST = 10, 100  # times the steps, and steps at least, that are proposed where they were too few


def advice(recipe: PretrainRecipe, progress: Progress) -> List[str]:
    """What the run came to, where to look, and the command that comes next."""
    prune = ['--model', recipe.output, '--shards', recipe.shards, '--output', 'runs/pruned']
    name = 'imported_prune' if recipe.train == 'heads' else 'small_prune'
    following = f'next: {line("optbert-prune", *prune, recipe=f"pretrain/{name}")}'
    measured = progress.held_out
    if measured is None or not recipe.shards.is_dir():  # a finished run may be asked after its shards went
        return [following]
    guessed = frequency_loss(*(Shards.open(recipe.shards, split=split) for split in ('train', 'heldout')))
    lines = [
        f'held-out MLM loss {measured.mlm_loss:.2f} nats, {measured.mlm_accuracy:.1%} of the tokens right; '
        f'guessing by the frequency of tokens: {guessed:.2f} nats'
    ]
    if measured.mlm_loss < guessed:
        lines.append(
            f'look whether mlm_loss still falls at the end of {recipe.output}/metrics.jsonl: if so, more '
            'steps before pruning are worth their time'
        )
        return [*lines, following]
    steps, output = str(max(LEAST, FURTHER * recipe.steps)), f'{recipe.output}-2'
    lines.append('the network predicts no better than guessing: it is too early to prune it')
    if recipe.train == 'heads':
        words = ['--model', recipe.output, '--shards', recipe.shards, '--steps', steps, '--output', output]
        return [*lines, f'next, to train all weights: {line("optbert-pretrain", *words)}']
    return [*lines, f'next: the same command with --steps {steps} --output {shlex.quote(output)}']


@command
def main(argv=None):
    """Parse the recipe, train, and say what was written and what comes next."""
    words = ['--shards', 'shards', '--output', 'models/small']
    example = line('optbert-pretrain', *words, recipe='pretrain/small', workers=2)
    recipe = parse(PretrainRecipe, argv, description=__doc__, example=example)
    workers = Workers()
    progress = pretrain(recipe, workers=workers)
    if workers.first:
        print('\n'.join([f'wrote {recipe.output}', *advice(recipe, progress)]))
