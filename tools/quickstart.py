"""Walk the whole way on a tiny BERT: text, vocabulary, shards, pre-training, pruning, verification, export.

The corpus is the documentation of the Python language that comes with Python, so nothing is downloaded. Every
step is the command that a user would give, and is shown."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Dict, List

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.deployment.directory import load_deployment
from gluon_optbert.network.running import TOKEN_INPUTS, latency_ms, random_feed
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.report import summary, widths_line
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.markdown import markdown_table
from gluon_optbert.runs.recipe import option
from gluon_optbert.runs.staging import refuse_existing
from gluon_optbert.text.vocabulary import train_wordpiece, write_vocabulary

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@dataclasses.dataclass(frozen=True)
class QuickstartRecipe:
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


def write_corpus(directory: Path) -> List[str]:
    """The topics of Python's own documentation, a file each; their texts."""
    directory.mkdir(parents=True)
    texts = [topics[name] for name in sorted(topics)]
    for name, text in zip(sorted(topics), texts):
        (directory / f'{name}.txt').write_text(text, encoding='utf-8')
    return texts


def measure(output: Path, rows: List[Dict[str, Any]]) -> None:
    """Add the latency of every round's export to its row: one sequence of 64 tokens, the exports taken in
    turn.
    """
    blocks, feeds = {}, {}
    for row in rows:
        number = row['round']
        blocks[number], _ = load_deployment(output / f'deploy-{number}')
        feeds[number] = random_feed(
            read_model(output / 'pruned' / f'round-{number}' / 'model').architecture, batch=1, length=64
        )
    found = latency_ms(blocks, feeds, TOKEN_INPUTS, repeats=40)
    for row in rows:
        row['latency_ms'] = found[row['round']]


def table(rows: List[Dict[str, Any]], chance: Dict[str, Any]) -> str:
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


@command
def main(argv=None):
    """Walk the way, and say what came of it."""
    recipe = parse(
        QuickstartRecipe, argv, description=__doc__, example='make quickstart', positional='output'
    )
    output = recipe.output.resolve()
    refuse_existing(output, remedy='give another directory (make quickstart QUICKSTART=DIR)')
    began = time.perf_counter()
    python = sys.executable
    output.mkdir(parents=True)
    vocabulary = train_wordpiece(write_corpus(output / 'text'), 2000)
    write_vocabulary(vocabulary, output / 'vocab.txt')
    print(f'corpus: {len(topics)} documents from pydoc_data.topics; vocabulary: {len(vocabulary)} tokens')

    step(
        'shards',
        python,
        'pretrain/make_shards.py',
        '--input',
        output / 'text',
        '--vocab',
        output / 'vocab.txt',
        '--output',
        output / 'shards',
        '--max-seq-length',
        64,
        '--dupe-factor',
        10,
        '--held-out',
        0.1,
    )
    few = ['--steps', 20] if recipe.short else []
    step(
        'pre-training',
        python,
        'pretrain/run_pretraining.py',
        'pretrain/recipes/quickstart.yaml',
        '--shards',
        output / 'shards',
        '--output',
        output / 'model',
        *few,
    )
    few = ['--alpha-steps', 4, '--recovery-steps', 4] if recipe.short else []
    workers = [BIN / 'horovodrun', '--gloo', '-np', recipe.workers] if recipe.workers > 1 else []
    for method, title in (('alpha', 'pruning'), ('random', 'the same cut at random')):
        step(
            title,
            *workers,
            python,
            'pretrain/run_prune.py',
            'pretrain/recipes/quickstart_prune.yaml',
            '--model',
            output / 'model',
            '--shards',
            output / 'shards',
            '--method',
            method,
            '--output',
            output / ('pruned' if method == 'alpha' else 'random'),
            *few,
        )
    step('verification', python, 'tools/verify.py', output / 'pruned')
    rows = [row.to_dict() for row in summary(output / 'pruned')]
    for row in rows:
        step(
            f'export of round {row["round"]}',
            python,
            'tools/export_model.py',
            output / 'pruned' / f'round-{row["round"]}' / 'model',
            '--output',
            output / f'deploy-{row["round"]}',
        )
    measure(output, rows)
    chance = {**summary(output / 'random')[-1].to_dict(), 'round': 'random'}
    (output / 'results.json').write_text(
        json.dumps({'rounds': rows, 'random': chance}, indent=1) + '\n', encoding='utf-8'
    )
    step(
        'pictures of the widths',
        python,
        'tools/plot_architecture.py',
        output / 'pruned',
        '--output',
        output / 'plots',
    )
    print('\n' + table(rows, chance))
    print(f'\nwrote {output}: results.json, plots, deploy-*; {time.perf_counter() - began:.0f} s in all')
    if recipe.short:
        return
    pruned, random = rows[-1]['recovered']['mlm_loss'], chance['recovered']['mlm_loss']
    learnt = json.loads((output / 'model' / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()[0])[
        'mlm'
    ]
    if not rows[0]['recovered']['mlm_loss'] < learnt - 0.5:
        raise RunFailed(
            f'pre-training did not learn: MLM loss {learnt:.3f} at first, '
            f'{rows[0]["recovered"]["mlm_loss"]:.3f} '
            'at the end'
        )
    if not pruned < random:
        raise RunFailed(
            f'the pruned network (MLM loss {pruned:.3f}) is no better than the random cut ({random:.3f})'
        )
    print(f'the pruned network beats the random cut of its size: MLM loss {pruned:.3f} against {random:.3f}')


if __name__ == '__main__':
    sys.exit(main())
