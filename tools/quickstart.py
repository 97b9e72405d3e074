"""Walk the whole way on a tiny BERT: text, vocabulary, shards, pre-training, pruning, verification, export,
and a page that says how much worse and how much faster the pruned network is.

The corpus is the documentation of the Python language that comes with Python, so nothing is downloaded. Every
step is the command that a user would give, and is shown."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.named import resolve
from gluon_optbert.deployment.mxnet_network import load_deployment, time_exports
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.running import latency_ms, random_feed
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.report import summary, widths_line
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.files import refuse_existing
from gluon_optbert.runs.recipe import Recipe, option
from gluon_optbert.text.tokenizer import train_wordpiece, write_vocabulary

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NETWORK, LENGTH = 'l4_h64_a4', 64  # of pretrain/recipes/quickstart.yaml, and tokens of a sequence
MACHINE = 'an AMD EPYC'
MEASURED = {'whole': 977.0, 'short': 66.0, 'pass': 14.2}  # seconds and, of a pass, ms of processor time there


class QuickstartRecipe(Recipe):
    """How the quickstart is run."""

    output: Path = option('directory to make', Path('quickstart'))
    short: bool = option('a few steps of everything, to see that it runs; losses then mean nothing', False)
    workers: int = option('Horovod workers of the pruning', 2)


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


def speed_here() -> float:
    """Milliseconds of a forward pass of the network that is trained, over one batch of its training."""
    return float(np.median(time_exports({'': resolve(NETWORK)}, batch=32, length=LENGTH)['']))


def estimate(recipe: QuickstartRecipe) -> str:
    """How long it will take, from a run that was timed and from the speed of this machine.

    The run was timed on a busy machine, so processor time is what is known of it.
    """
    known, here = MEASURED['short' if recipe.short else 'whole'], speed_here()
    return (
        f'This will take about {duration(known * here / MEASURED["pass"])}. A run took {duration(known)} of '
        f'processor time on {MACHINE}, and a forward pass of the network {MEASURED["pass"]:.1f} ms of it; '
        f'here and now a pass takes {here:.1f} ms.'
    )


def duration(seconds: float) -> str:
    """Seconds or minutes, as people say them."""
    return f'{seconds:.0f} seconds' if seconds < 100 else f'{seconds / 60:.0f} minutes'


def measure(output: Path, rows: list[dict[str, Any]]) -> None:
    """Add the latency of every round's export to its row: one sequence of `LENGTH` tokens, the exports taken
    in turn.
    """
    blocks, feeds = {}, {}
    for row in rows:
        number = row['round']
        blocks[number], _ = load_deployment(output / f'deploy-{number}')
        architecture = read_model(output / 'pruned' / f'round-{number}' / 'model').architecture
        feeds[number] = random_feed(architecture, batch=1, length=LENGTH)
    times = latency_ms(blocks, feeds, TOKEN_INPUTS, repeats=40)
    for row in rows:
        row['latency_ms'] = times[row['round']]


def table(rows: list[dict[str, Any]], chance: dict[str, Any]) -> str:
    """What came out, round by round, and the random cut of the same size."""
    cells = []
    for row in [*rows, chance]:
        layers = Architecture.from_dict(row['architecture']).layers
        latency = f'{row["latency_ms"]:.2f} ms' if 'latency_ms' in row else 'not run'
        cells.append(
            (
                row['round'],
                f'{row["parameters"]:,}',
                f'{row["flops"] / 1e6:.1f} M',
                f'{row["recovered"]["mlm_loss"]:.3f}',
                latency,
                row['architecture']['h'],
                *(widths_line(layers, letter) for letter in 'akvf'),
            )
        )
    header = ['round', 'parameters', 'FLOPs at 128', 'held-out MLM loss', 'latency at 1x64']
    return markdown_table([*header, *'hakvf'], cells)


def train(output: Path, recipe: QuickstartRecipe) -> None:
    """Text, vocabulary, shards and the network before pruning."""
    vocabulary = train_wordpiece(write_corpus(output / 'text'), 2000)
    write_vocabulary(vocabulary, output / 'vocab.txt')
    print(f'corpus: {len(topics)} documents from pydoc_data.topics; vocabulary: {len(vocabulary)} tokens')
    words = ['--input', output / 'text', '--vocab', output / 'vocab.txt', '--output', output / 'shards']
    words += ['--layout', 'book', '--max-seq-length', LENGTH, '--dupe-factor', 10, '--held-out', 0.1]
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


def compare(output: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Exports and their times, the table, plots and the page; the rounds, and the random cut."""
    rows = [row.to_dict() for row in summary(output / 'pruned')]
    for row in rows:
        number = row['round']
        words = [output / 'pruned' / f'round-{number}' / 'model', '--output', output / f'deploy-{number}']
        step(f'export of round {number}', sys.executable, 'tools/export_model.py', *words)
    measure(output, rows)
    chance = {**summary(output / 'random')[-1].to_dict(), 'round': 'random'}
    results = json.dumps({'rounds': rows, 'random': chance}, indent=1) + '\n'
    (output / 'results.json').write_text(results, encoding='utf-8')
    (output / 'table.md').write_text(table(rows, chance) + '\n', encoding='utf-8')
    runs = [output / 'pruned', output / 'random']
    step('plots', sys.executable, 'tools/plot_architecture.py', *runs, '--output', output / 'plots')
    step('the page', sys.executable, 'tools/report.py', *runs, '--output', output / 'report.html')
    return rows, chance


def check(output: Path, rows: list[dict[str, Any]], chance: dict[str, Any]) -> str:
    """What the losses say, in words.

    Raises
    ------
    RunFailed
        If pre-training learnt nothing, or the pruned network is no better than the random cut.
    """
    pruned, random = rows[-1]['recovered']['mlm_loss'], chance['recovered']['mlm_loss']
    records = (output / 'model' / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()
    first, last = json.loads(records[0])['mlm'], rows[0]['recovered']['mlm_loss']
    if not last < first - 0.5:
        raise RunFailed(f'pre-training did not learn: MLM loss {first:.3f} at first, {last:.3f} at the end')
    if not pruned < random:
        raise RunFailed(
            f'the pruned network (MLM loss {pruned:.3f}) is no better than the random cut ({random:.3f})'
        )
    return f'the pruned network beats the random cut of its size: MLM loss {pruned:.3f} against {random:.3f}'


@command
def main(argv=None):
    """Walk the way, and say what came of it."""
    recipe = parse(
        QuickstartRecipe, argv, description=__doc__, example='make quickstart', positional='output'
    )
    output = recipe.output.resolve()
    refuse_existing(output, remedy='give another directory (make quickstart QUICKSTART=DIR)')
    began = time.perf_counter()
    print(estimate(recipe), flush=True)
    output.mkdir(parents=True)
    train(output, recipe)
    prune(output, recipe)
    rows, chance = compare(output)
    print('\n' + (output / 'table.md').read_text(encoding='utf-8'))
    print(f'wrote {output} in {duration(time.perf_counter() - began)}')
    if not recipe.short:
        print(check(output, rows, chance))
    print(
        f'open first: {output / "report.html"} in a browser\n'
        f'then: {output / "table.md"}, the table above, and {output / "plots" / "loss_by_size.png"}; '
        f'deploy-* are the exports'
    )


if __name__ == '__main__':
    sys.exit(main())
