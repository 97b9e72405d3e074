"""The commands that make shards and networks: from raw text, from a checkpoint, for a task."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..runs.command_line import command, parse
from ..runs.display import counting, doing
from ..runs.failures import say
from ..runs.files import read_json
from ..runs.recipe import read_yaml
from ..runs.starting import line

FURTHER, LEAST = 10, 100  # times the steps, and steps at least, that are proposed where they were too few
LONG_TRAINING, LARGE_NETWORK = 100_000, 2e7  # steps of pre-training; parameters


@command
def make_shards(argv=None):
    """Turn raw text into shards for pre-training."""
    from ..text.make_shards import ShardRecipe
    from ..text.make_shards import make_shards as run

    example = line('optbert-make-shards', '--input', 'TEXT_DIR', '--vocab', 'vocab.txt', '--output', 'SHARDS')
    recipe = parse(ShardRecipe, argv, description=make_shards.__doc__, example=example)
    with contextlib.ExitStack() as stack:
        count, before = None, 0
        stack.enter_context(
            counting('reading the input once, to find what is unreadable and count documents')
        )

        def progress(done: int, total: int) -> None:  # the total is known when the first call comes
            nonlocal count, before
            if count is None:
                stack.close()
                count = stack.enter_context(counting('making instances', total, unit='character'))
            count(done - before)
            before = done

        summary = run(recipe, progress=progress, say=say)
    for split, instances in summary.instances.items():
        print(
            f'{split}: {summary.documents[split]:,} documents, {summary.tokens[split]:,} tokens, '
            f'{instances:,} instances in {summary.shards[split]} shard(s)'
        )
    tokens = sum(summary.tokens.values())
    print(
        f'{tokens / summary.seconds / 1e3:.1f}k tok/s | {summary.seconds:.1f} s with {summary.workers} '
        f'worker(s) | peak memory {summary.peak_memory_bytes / 2**20:.0f} MiB, all processes'
    )
    print(f'wrote {summary.output} ({summary.bytes / 1e6:.1f} MB)')
    print(f'next: {after_shards(recipe)}')


def after_shards(recipe: Any) -> str:
    """The command that comes after shards, for the network that is beside their vocabulary, if there is one.

    Parameters
    ----------
    recipe : ShardRecipe
    """
    beside, shards = recipe.vocab.parent, ['--shards', recipe.output, '--output']
    if (beside / 'config.json').is_file():
        return line('optbert-import', beside, '--output', 'MODEL_DIR')
    if not (beside / 'progress.json').is_file() or (beside / 'head.json').is_file():
        return line('optbert-pretrain', *shards, 'MODEL_DIR', recipe='pretrain/small')
    random = set(read_json(beside / 'progress.json').get('untrained') or ())
    if 'mlm' not in random and (random and recipe.next_sentence):
        words = ['--model', beside, *shards, f'{beside}-heads']
        return line('optbert-pretrain', *words, recipe='pretrain/imported_heads')
    fitting = 'encoder' if 'mlm' in random else pruning_recipe(beside)
    return line('optbert-prune', '--model', beside, *shards, 'PRUNED_DIR', recipe=f'pretrain/{fitting}')


def pruning_recipe(model: Path) -> str:
    """The recipe that prunes a network with trained heads of pre-training: with steps that follow from those
    of a long training, that are stated for other networks of some size, or that are few.
    """
    files = model / 'recipe.yaml', model / 'architecture.json'
    if not all(path.is_file() for path in files):
        return 'small_prune'
    recipe, size = read_yaml(files[0]), ParameterCost().cost(Architecture.read(files[1]))
    imported = 'source' in recipe or recipe.get('train') == 'heads'
    if recipe.get('steps', 0) >= LONG_TRAINING and not imported:
        return 'optbert_prune'
    return 'imported_prune' if imported or size > LARGE_NETWORK else 'small_prune'


@command
def import_checkpoint(argv=None):
    """Import a public BERT checkpoint of Hugging Face, Google or GluonNLP as a model directory."""
    from ..architecture.heads import PRETRAINING
    from ..importing.convert import ImportRecipe, describe
    from ..importing.convert import import_checkpoint as run

    example = line('optbert-import', 'downloads/bert-base-uncased', '--output', 'models/base')
    recipe = parse(
        ImportRecipe, argv, description=import_checkpoint.__doc__, positional='source', example=example
    )
    with doing('importing'):
        imported = run(recipe)
    say(*describe(imported, recipe))
    if imported.model.head == PRETRAINING:  # the shards lead on to what it needs
        words = ['--input', 'TEXT_DIR', '--vocab', recipe.output / 'vocab.txt', '--output', 'shards']
        print(f'next: {line("optbert-make-shards", *words)}')
        if 'mlm' in (imported.model.progress.untrained or ()):
            words = ['--model', recipe.output, '--data', 'TEXT_DIR', '--output', 'PRUNED_DIR']
            following = line('optbert-prune-task', *words, recipe='finetune/sentences')
            print(f'or, for a sentence encoder: {following}')
    else:
        print(f'next: {line("optbert-export", recipe.output, "--output", "deploy", "--onnx")}')


@command
def pretrain(argv=None):
    """Pre-train a BERT of any widths on shards."""
    from ..training.distributed import Workers
    from ..training.pretrain import pretrain as run
    from ..training.recipe import PretrainRecipe

    words = ['--shards', 'shards', '--output', 'models/small']
    example = line('optbert-pretrain', *words, recipe='pretrain/small', workers=2)
    recipe = parse(PretrainRecipe, argv, description=pretrain.__doc__, example=example)
    workers = Workers()
    progress = run(recipe, workers=workers)
    if workers.first:
        print('\n'.join([f'wrote {recipe.output}', *advice(recipe, progress)]))


def advice(recipe: Any, progress: Any) -> list[str]:
    """Result of a run, places to look, and the command that comes next.

    Parameters
    ----------
    recipe : PretrainRecipe
    progress : Progress
    """
    from ..text.batches import frequency_loss
    from ..text.shards import Shards

    prune = ['--model', recipe.output, '--shards', recipe.shards, '--output', 'runs/pruned']
    following = f'next: {line("optbert-prune", *prune, recipe=f"pretrain/{pruning_recipe(recipe.output)}")}'
    measured = progress.held_out
    if measured is None or not recipe.shards.is_dir():  # a finished run may be asked after its shards went
        return [following]
    with doing('counting tokens'):
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
def finetune_glue(argv=None):
    """Fine-tune a model directory, pruned or not, on a task of GLUE, or on a table of your own.

    --data reviews.csv --text text --label label is such a task; two columns of text are pairs, and labels
    with a fraction are numbers to predict. JSON lines and tab-separated files are read alike. Lists of labels
    are several labels at a time, and files of CoNLL's columns are tags of words.
    """
    from ..finetuning.recipes import GlueRecipe
    from ..finetuning.recipes import finetune_glue as run

    words = ['--task', 'MRPC', '--model', 'models/small', '--data', 'glue', '--seeds', '1,2,3']
    example = line('optbert-finetune-glue', *words, '--output', 'runs/mrpc', recipe='finetune/glue')
    _finetune(parse(GlueRecipe, argv, description=finetune_glue.__doc__, example=example), run)


@command
def finetune_squad(argv=None):
    """Fine-tune a model directory, pruned or not, on SQuAD."""
    from ..finetuning.recipes import SquadRecipe
    from ..finetuning.recipes import finetune_squad as run

    words = ['--model', 'models/small', '--data', 'squad', '--output', 'runs/squad2']
    example = line('optbert-finetune-squad', *words, recipe='finetune/squad2')
    _finetune(parse(SquadRecipe, argv, description=finetune_squad.__doc__, example=example), run)


def _finetune(recipe: Any, run: Any) -> None:
    """Fine-tune, and say what was written."""
    from ..finetuning.recipe import written
    from ..finetuning.result import summary
    from ..training.distributed import Workers

    workers = Workers()
    result = run(recipe, workers=workers)
    if workers.first:
        words = [recipe.output / f'seed-{recipe.seeds[0]}', '--output', 'deploy', '--onnx']
        following = line('optbert-export', *words)
        print(f'{summary(result)}\n{written(recipe)}\nnext: {following}')
