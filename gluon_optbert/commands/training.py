"""The commands that make shards and networks: from raw text, from a checkpoint, for a task."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..runs.command_line import command, parse
from ..runs.display import Display, doing, number_of
from ..runs.failures import say
from ..runs.files import read_json
from ..runs.recipe import read_yaml
from ..runs.starting import again, line

FURTHER, LEAST = 10, 100  # times the steps, and steps at least, that are proposed where they were too few
MINUTES = 'finetune/prune_in_minutes'  # a recipe
LONG_TRAINING, LARGE_NETWORK = 100_000, 2e7  # steps of pre-training; parameters


@command
def make_shards(argv=None):
    """Turn raw text into shards for pre-training."""
    from ..text.make_shards import ShardRecipe, make_shards as run

    example = line('optbert-make-shards', '--input', 'TEXT_DIR', '--vocab', 'vocab.txt', '--output', 'SHARDS')
    recipe = parse(ShardRecipe, argv, description=make_shards.__doc__, example=example)
    with contextlib.ExitStack() as stack:
        title = 'reading the input once, to find what is unreadable and count documents'
        display = stack.enter_context(Display(title, seconds=10.0))

        def progress(done: int, total: int) -> None:  # the total is known when the first call comes
            nonlocal display
            if display.total is None:
                stack.close()
                display = stack.enter_context(
                    Display('making instances', total, unit='character', seconds=10.0)
                )
            display.advance(done - display.done)

        summary = run(recipe, progress=progress, say=say)
    for split, instances in summary.instances.items():
        print(
            f'{split}: {number_of(summary.documents[split], "document")}, {summary.tokens[split]:,} tokens, '
            f'{instances:,} instances in {number_of(summary.shards[split], "shard")}'
        )
    tokens = sum(summary.tokens.values())
    print(
        f'{tokens / summary.seconds / 1e3:.1f}k tok/s | {summary.seconds:.1f} s with '
        f'{number_of(summary.workers, "worker")} | '
        f'peak memory {summary.peak_memory_bytes / 2**20:.0f} MiB, all processes'
    )
    print(f'wrote {summary.output} ({summary.bytes / 1e6:.1f} MB)')
    print(f'next: {after_shards(recipe)}')


def after_shards(recipe: Any) -> str:
    """The command that comes after shards, for the network beside their vocabulary, if there is one."""
    beside, shards = recipe.vocab.parent, ['--shards', recipe.output, '--output']
    if (beside / 'config.json').is_file():
        return line('optbert-import', beside, '--output', f'models/{beside.resolve().name}')
    if not (beside / 'progress.json').is_file() or (beside / 'head.json').is_file():
        return line('optbert-pretrain', *shards, 'models/small', recipe='pretrain/small')
    random = set(read_json(beside / 'progress.json').get('untrained') or ())
    if 'mlm' not in random and (random and recipe.next_sentence):
        words = ['--model', beside, *shards, f'{beside}-heads']
        return line('optbert-pretrain', *words, recipe='pretrain/imported_heads')
    fitting = 'encoder' if 'mlm' in random else pruning_recipe(beside)
    return line('optbert-prune', '--model', beside, *shards, 'runs/pruned', recipe=f'pretrain/{fitting}')


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
    from ..importing.convert import ImportRecipe, describe, import_checkpoint as run

    example = line('optbert-import', 'downloads/bert-base-uncased', '--output', 'models/base')
    recipe = parse(
        ImportRecipe, argv, description=import_checkpoint.__doc__, positional='source', example=example
    )
    with doing('importing'):
        imported = run(recipe)
    say(*describe(imported, recipe))
    print('\n'.join(after_import(imported.model, recipe.output)))


def after_import(model: Any, output: Path) -> list[str]:
    """The commands that lead on from an imported network, by its head, and what each is for."""
    from ..architecture.heads import PRETRAINING

    half = f'runs/{output.name}-half'
    if model.head != PRETRAINING:
        return [
            after_tuning(output, 'DATA', half),
            f'next, to use it as it is: {line("optbert-export", output, "--output", "deploy", "--onnx")}',
        ]
    table = ['--data', 'table.csv', '--text', 'text', '--label', 'label']
    tuning = line(
        *('optbert-finetune-glue', *table, '--model', output, '--output', 'runs/tuned'),
        recipe='finetune/glue',
    )
    lines = [f'next, to fine-tune it: {tuning}']
    if 'mlm' in (model.progress.untrained or ()):
        words = ['--model', output, '--data', 'TEXT_DIR', '--target', 0.5, '--output', half]
        pruning = line('optbert-prune-task', *words, recipe='finetune/sentences')
        lines.append(f'next, to prune it as an encoder of sentences: {pruning}')
    words = ['--input', 'TEXT_DIR', '--vocab', output / 'vocab.txt', '--output', 'shards']
    return [*lines, f'next, to prune it on raw text: {line("optbert-make-shards", *words)}']


def after_tuning(model: Path, data: Any, output: str) -> str:
    """The command that prunes a network with the head of a task."""
    words = ['--model', model, *(['--data', data] if data else []), '--target', 0.5, '--output', output]
    return f'next, to prune it for its task: {line("optbert-prune-task", *words, recipe=MINUTES)}'


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
        further = functools.partial(again, 'optbert-pretrain', argv, workers=workers.size)
        print('\n'.join([f'wrote {recipe.output}', *advice(recipe, progress, further)]))


def advice(recipe: Any, progress: Any, further: Callable[..., str]) -> list[str]:
    """Result of a run, places to look, and the command that comes next; `further` gives the command of the
    run with other values of some fields.
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
    return [*lines, f'next, to train it for longer: {further(steps=steps, output=output, resume=None)}']


@command
def finetune_glue(argv=None):
    """Fine-tune a model directory, pruned or not, on a task of GLUE, or on a table of your own.

    --data reviews.csv --text text --label label is such a task; two columns of text are pairs, and labels
    with a fraction are numbers to predict. JSON lines and tab-separated files are read alike. Lists of labels
    are several labels at a time, and files of CoNLL's columns are tags of words.
    """
    from ..finetuning.recipes import GlueRecipe, finetune_glue as run

    words = ['--task', 'MRPC', '--model', 'models/small', '--data', 'glue', '--seeds', '1,2,3']
    example = line('optbert-finetune-glue', *words, '--output', 'runs/mrpc', recipe='finetune/glue')
    recipe = parse(GlueRecipe, argv, description=finetune_glue.__doc__, example=example)
    _finetune(recipe, run, functools.partial(again, 'optbert-finetune-glue', argv))


@command
def finetune_squad(argv=None):
    """Fine-tune a model directory, pruned or not, on SQuAD."""
    from ..finetuning.recipes import SquadRecipe, finetune_squad as run

    words = ['--model', 'models/small', '--data', 'squad', '--output', 'runs/squad2']
    example = line('optbert-finetune-squad', *words, recipe='finetune/squad2')
    recipe = parse(SquadRecipe, argv, description=finetune_squad.__doc__, example=example)
    _finetune(recipe, run, functools.partial(again, 'optbert-finetune-squad', argv))


def _finetune(recipe: Any, run: Any, further: Callable[..., str]) -> None:
    """Fine-tune, and say what was written; `further` is as of `advice`."""
    from ..finetuning.recipe import written
    from ..finetuning.result import summary
    from ..runs.progress import exceeds
    from ..training.distributed import Workers

    workers = Workers()
    result = run(recipe, workers=workers)
    if workers.first:
        first, before = recipe.output / f'seed-{recipe.seeds[0]}', recipe.model / 'progress.json'
        following = [f'next, to export it: {line("optbert-export", first, "--output", "deploy", "--onnx")}']
        if not exceeds(result.mean[result.metric], (result.majority or {}).get(result.metric)):
            more = {'epochs': 3 * recipe.epochs, 'output': f'{recipe.output}-2', 'resume': None}
            again_for_longer = further(workers=workers.size, **more)
            following = [f'more data may help, or more epochs\nnext: {again_for_longer}']
        elif before.is_file() and not read_json(before).get('round'):  # a finished run needs no model
            following.insert(0, after_tuning(first, recipe.data, f'{recipe.output}-half'))
        print('\n'.join([summary(result), written(recipe), *following]))
