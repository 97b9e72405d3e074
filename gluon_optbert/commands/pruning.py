"""The commands that make networks smaller, and the one that checks what a cut has changed."""

from __future__ import annotations

import sys
from typing import Any

from ..runs.command_line import command, parse
from ..runs.display import number_of
from ..runs.failures import say, shown
from ..runs.starting import line


@command
def trim_vocabulary(argv=None):
    """Trim the vocabulary of a network to a text: tokens that the text does not use lose their embedding.

    Special tokens and single characters stay.
    """
    from ..architecture.cost import ParameterCost
    from ..architecture.heads import PRETRAINING
    from ..pruning.trimming import TrimRecipe, trim_vocabulary as run

    words = ['--model', 'models/base', '--text', 'wiki', '--output', 'models/trimmed']
    example = line('optbert-trim-vocabulary', *words)
    recipe = parse(TrimRecipe, argv, description=trim_vocabulary.__doc__, example=example, positional='')
    trimmed = run(recipe)
    before, after = trimmed.before, trimmed.model.architecture
    cost, left = ParameterCost().cost(before), ParameterCost().cost(after)
    say(*described_splits(trimmed.splits))
    print(
        f'tokens: {before.vocab_size:,} before, {after.vocab_size:,} left '
        f'({after.vocab_size / before.vocab_size:.0%})\n'
        f'parameters of embeddings and encoder: {cost / 1e6:.2f} M before, {left / 1e6:.2f} M left '
        f'({left / cost:.0%}), {(cost - left) / 1e6:.2f} M went\n'
        f'wrote {recipe.output}'
    )
    if trimmed.model.head == PRETRAINING:
        words = ['--input', 'TEXT_DIR', '--vocab', recipe.output / 'vocab.txt']
        anew = line('optbert-make-shards', *words, '--output', f'{recipe.output}-shards')
        print(f'shards of the whole vocabulary do not fit it; to train it, make them anew: {anew}')
    print(f'next: {line("optbert-verify", recipe.output)}')


def described_splits(splits: Any) -> list[str]:
    """Words for the present splits of a text; `splits` is what `text.trimming` counted."""

    def shown(words: Any) -> list[str]:
        return [
            f'  {one.word} ({one.uses:,}): {" ".join(one.before)} -> {" ".join(one.after)}' for one in words
        ]

    lines = [
        f'text: {splits.words:,} words, {splits.tokens:,} tokens; {splits.tokens_gone:,} of these '
        f'({splits.share:.2%}) are gone and split, so there are {splits.tokens_after:,} tokens now'
    ]
    if splits.examples:
        lines += ['the most frequent words that split anew:', *shown(splits.examples)]
    lines.append(f'unknown words: {splits.unknown:,} before, {splits.unknown_after:,} now')
    if splits.now_unknown:
        lines += ['the most frequent words that are unknown now:', *shown(splits.now_unknown)]
    return lines


@command
def prune(argv=None):
    """Prune a pre-trained BERT by Algorithm 1 of optBERT."""
    from ..pruning.algorithm import prune as run
    from ..pruning.recipe import PruneRecipe

    words = ['--model', 'models/small', '--shards', 'shards', '--target', 0.6, '--rounds', 4]
    words += ['--output', 'runs/pruned']
    example = line('optbert-prune', *words, recipe='pretrain/small_prune', workers=2)
    _prune(parse(PruneRecipe, argv, description=prune.__doc__, example=example), run)


@command
def prune_task(argv=None):
    """Prune a fine-tuned network for its task."""
    from ..pruning.recipe import TaskPruneRecipe
    from ..pruning.task_objectives import prune_task as run

    words = ['--model', 'runs/sst2/seed-1', '--data', 'glue', '--target', 0.5, '--output', 'runs/sst2-half']
    example = line('optbert-prune-task', *words, recipe='finetune/prune_in_minutes')
    _prune(parse(TaskPruneRecipe, argv, description=prune_task.__doc__, example=example), run)


def _prune(recipe: Any, run: Any) -> None:
    """Prune, and say what was written."""
    from ..training.distributed import Workers

    workers = Workers()
    run(recipe, workers=workers)
    if workers.first:
        print((recipe.output / 'pruning.md').read_text(encoding='utf-8'))
        print(f'wrote {recipe.output}\nnext: {line("optbert-verify", recipe.output)}')


@command
def verify(argv=None):
    """Check for every round of a pruning run that the cut network and its export equal the gated network.

    Of a network with a trimmed vocabulary, check that it equals the whole one where all tokens stayed.
    """
    from ..deployment import export, trim_check, verify as checks
    from ..runs.files import new_output, refuse_existing, write_json
    from ..runs.machine import origin_here, origin_warnings
    from ..runs.recipe import read_yaml
    from ..runs.run_directory import RECIPE

    example = line('optbert-verify', 'runs/pruned')
    recipe = parse(checks.VerifyRecipe, argv, description=verify.__doc__, example=example, positional='run')
    if trim_check.is_trimmed(recipe.run):
        _verify_trimmed(trim_check.check_trimmed(recipe), trim_check.TOLERANCE)
        print(f'next: {line("optbert-export", recipe.run, "--output", "deploy", "--onnx")}')
        return
    if recipe.output is not None:
        refuse_existing(recipe.output)
    rows = checks.verify(recipe)
    print('largest difference over the largest activation, on held-out batches:\n')
    print(checks.table(rows))
    for sentence in checks.described_rounding(rows):
        print(f'\n{sentence}')
    print('\nerror relative to the network before the cut, and loss, on the same batches:\n')
    errors = checks.stages(recipe)
    print(checks.stages_table(errors))
    for sentence in checks.described_stages(errors):
        print(f'\n{sentence}')
    if recipe.output is not None:
        settings = {name: getattr(recipe, name) for name in ('batches', 'batch_size')}
        values = {**settings, 'differences': rows, 'stages': errors, **origin_here()}
        with new_output(recipe.output):
            write_json(recipe.output, values)
    model = recipe.run / f'round-{rows[-1]["round"]}' / 'model'
    beside = ' or rounding' if checks.described_rounding(rows) else ''
    print(f'\nverified: {number_of(len(rows), "round")}, all within {export.TOLERANCE:.0e}{beside}')
    settings = recipe.run / RECIPE
    encodes = settings.is_file() and read_yaml(settings).get('task') == 'sentences'
    words = ['--format', 'sentence-transformers'] if encodes else ['--onnx']
    print(f'next: {line("optbert-export", model, "--output", "deploy", *words)}')
    for sentence in origin_warnings(recipe.run):
        print(f'warning: {shown(sentence)}', file=sys.stderr)


def _verify_trimmed(checked: Any, tolerance: float) -> None:
    """Print how far a network with a trimmed vocabulary is from the whole one."""
    for name, difference in checked.differences.items():
        print(f'{name}: largest difference {difference:.1e} of its largest value')
    if checked.splits is not None:
        say(*described_splits(checked.splits))
    if checked.as_is:
        say(f'text is not read as by the tokenizer of the checkpoint: {checked.as_is}')
    print(
        f'verified: {number_of(checked.sequences, "sequence")} whose tokens all stayed, within '
        f'{tolerance:.0e} of the network with the whole vocabulary'
    )
