"""Walk the whole way on a tiny BERT: text, vocabulary, shards, pre-training, pruning, verification, export,
and a page that says how much worse and how much faster the pruned network is.

The corpus is the documentation of the Python language that comes with Python, so nothing is downloaded. Every
step is the command that a user would give, and is shown."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import pydantic

from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.report import CLEAR, Round, summary, widths_line
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import duration, markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.files import refuse_existing
from gluon_optbert.runs.recipe import Recipe, option
from gluon_optbert.text.batches import frequency_loss
from gluon_optbert.text.tokenizer import train_wordpiece, write_vocabulary
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import difference, losses_of
from gluon_optbert.training.recipe import open_shards

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LENGTH = 32  # tokens of a sequence
BATCH = 8  # sequences of 128 tokens of a pass that is timed: enough to hide what a call costs by itself
TOKENS = 1000  # of the vocabulary
TAKES = 'This takes two to three minutes on two quiet cores.'


class QuickstartRecipe(Recipe):
    """Settings of the quickstart."""

    output: Path = option('directory to make', Path('quickstart'))
    short: bool = option('a few steps of everything, to see that it runs; losses then mean nothing', False)
    workers: pydantic.PositiveInt = option('Horovod workers of the pruning', 2)


def step(title: str, *words: object) -> None:
    """Run one command of the way, shown as a user would type it."""
    shown = [Path(str(word)).name if str(word).startswith(str(BIN)) else str(word) for word in words]
    print(f'\n== {title}\n$ {shlex.join(shown)}', flush=True)
    began = time.perf_counter()
    status = subprocess.run([str(word) for word in words], cwd=ROOT, check=False).returncode
    if status:
        raise RunFailed(f'{title}: the command ended with exit status {status}')
    print(f'({time.perf_counter() - began:.0f} s)', flush=True)


def write_corpus(directory: Path) -> list[str]:
    """The topics of Python's own documentation, a file each; their texts."""
    directory.mkdir(parents=True)
    texts = [topics[name] for name in sorted(topics)]
    for name, text in zip(sorted(topics), texts):
        (directory / f'{name}.txt').write_text(text, encoding='utf-8')
    return texts


def table(rows: Sequence[Round], chance: Round) -> str:
    """Results, round by round, and the random cut of the same size."""
    cells = []
    for name, row in [*((str(row.round), row) for row in rows), ('random', chance)]:
        layers = row.architecture.layers
        sizes = f'{row.parameters:,}', f'{row.flops / 1e6:.1f} M', f'{row.recovered.mlm_loss:.3f}'
        cells.append((name, *sizes, row.architecture.h, *(widths_line(layers, letter) for letter in 'akvf')))
    header = ['round', 'parameters', 'FLOPs at 128', 'held-out MLM loss']
    return markdown_table([*header, *'hakvf'], cells)


def train(output: Path, recipe: QuickstartRecipe) -> None:
    """Text, vocabulary, shards and the network before pruning."""
    vocabulary = train_wordpiece(write_corpus(output / 'text'), TOKENS)
    write_vocabulary(vocabulary, output / 'vocab.txt')
    print(f'corpus: {len(topics)} documents from pydoc_data.topics; vocabulary: {len(vocabulary)} tokens')
    words = ['--input', output / 'text', '--vocab', output / 'vocab.txt', '--output', output / 'shards']
    words += ['--layout', 'book', '--max-seq-length', LENGTH, '--masked-share', 0.2]
    words += ['--dupe-factor', 5, '--held-out', 0.15]
    step('shards', sys.executable, 'pretrain/make_shards.py', *words)
    words = ['pretrain/recipes/quickstart.yaml', '--shards', output / 'shards', '--output', output / 'model']
    words += ['--steps', 20] if recipe.short else []
    step('pre-training', sys.executable, 'pretrain/run_pretraining.py', *words)


def prune(output: Path, recipe: QuickstartRecipe) -> None:
    """The network pruned by trained gates, and one cut to the same size at random; both verified."""
    workers = [BIN / 'horovodrun', '--gloo', '-np', recipe.workers] if recipe.workers > 1 else []
    few = ['--alpha-steps', 4, '--recovery-steps', 4] if recipe.short else []
    words = ['pretrain/recipes/quickstart_prune.yaml', '--model', output / 'model']
    words += ['--shards', output / 'shards']
    start = [*workers, sys.executable, 'pretrain/run_prune.py', *words]
    step('pruning', *start, '--method', 'alpha', '--output', output / 'pruned', *few)
    step('the same cut at random', *start, '--method', 'random', '--output', output / 'random', *few)
    step('verification', sys.executable, 'tools/verify.py', output / 'pruned')


def compare(output: Path) -> None:
    """The export of the pruned network, the table, and the page."""
    rows, chance = summary(output / 'pruned'), summary(output / 'random')[-1]
    model = output / 'pruned' / f'round-{rows[-1].round}' / 'model'
    step('export', sys.executable, 'tools/export_model.py', model, '--output', output / 'deploy')
    (output / 'table.md').write_text(table(rows, chance) + '\n', encoding='utf-8')
    words = [output / 'pruned', output / 'random', '--batch', BATCH, '--output', output / 'report.html']
    step('the page', sys.executable, 'tools/report.py', *words)


def verdict(output: Path) -> list[str]:
    """The first sentences of the page."""
    page = (output / 'report.html').read_text(encoding='utf-8')
    return [html.unescape(one) for one in re.findall(r'<p class="verdict">(.*?)</p>', page)]


def apart(output: Path) -> tuple[float, float]:
    """By how much the held-out loss of the random cut is larger than that of the pruned network, and the
    standard error of this difference.
    """
    heldout, workers = open_shards(output / 'shards')['heldout'], Workers()
    losses = []
    for run in ('pruned', 'random'):
        saved = read_model(output / run / f'round-{summary(output / run)[-1].round}' / 'model')
        losses.append(losses_of(build(saved.architecture, saved.parameters), heldout, workers, batch_size=32))
    return difference(*losses, workers)


def check(guessed: float, base: float, apart: tuple[float, float]) -> str:
    """Judgement of the losses, in words.

    Parameters
    ----------
    guessed, base : float
        Held-out MLM losses of guessing by the frequency of tokens, and of the network before pruning.
    apart : tuple of float
        As of `apart`.

    Raises
    ------
    RunFailed
        If pre-training learnt nothing, or the pruned network is no better than the random cut.
    """
    learnt = f'held-out MLM loss {base:.3f}, and {guessed:.3f} by guessing from the frequency of tokens'
    if not base < guessed:
        raise RunFailed(f'pre-training did not learn: {learnt}')
    more, error = apart
    said = f'its held-out MLM loss is {more:.3f} larger (standard error {error:.3f})'
    if not more > 0:
        raise RunFailed(f'the pruned network is no better than the random cut: {said}')
    said += '' if more > CLEAR * error else '. That may be chance'
    return f'Before pruning: {learnt}.\nThe random cut is worse than the pruned network of its size: {said}.'


@command
def main(argv=None):
    """Walk the way, and say what came of it."""
    recipe = parse(
        QuickstartRecipe, argv, description=__doc__, example='make quickstart', positional='output'
    )
    output = recipe.output.resolve()
    refuse_existing(output, remedy='give another directory (make quickstart QUICKSTART=DIR)')
    began = time.perf_counter()
    print(TAKES, flush=True)
    output.mkdir(parents=True)
    train(output, recipe)
    prune(output, recipe)
    compare(output)
    print('\n' + (output / 'table.md').read_text(encoding='utf-8'))
    print('\n'.join(verdict(output)))
    if not recipe.short:
        shards = open_shards(output / 'shards')
        guessed = frequency_loss(shards['train'], shards['heldout'])
        base = summary(output / 'pruned')[0].recovered.mlm_loss
        print(check(guessed, base, apart(output)))
    print(f'wrote {output} in {duration(time.perf_counter() - began)}')
    print(
        f'open first: {output / "report.html"} in a browser\n'
        f'then: {output / "table.md"}, the table above, and {output / "deploy"}, the export'
    )


if __name__ == '__main__':
    sys.exit(main())
