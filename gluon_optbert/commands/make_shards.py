"""Turn raw text into shards for pre-training."""

from __future__ import annotations

import sys
import time
from typing import Optional, Sequence

from tqdm import tqdm

from .. import ShardRecipe, make_shards
from ..runs.command_line import parse
from ..text.make_shards import ShardSummary
from .starting import command, line


class _Progress:
    """A bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self) -> None:
        self.bar = tqdm(unit='char', unit_scale=True, disable=not sys.stderr.isatty())
        self.began = self.shown = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self.bar.total = total
        self.bar.update(done - self.bar.n)
        now = time.monotonic()
        if self.bar.disable and now - self.shown >= 10:
            self.shown = now
            print(
                f'{done / 1e6:.1f} of {total / 1e6:.1f} M characters | {now - self.began:.0f} s', flush=True
            )


def _report(summary: ShardSummary) -> None:
    for split, instances in summary.instances.items():
        print(
            f'{split}: {summary.documents[split]:,} documents, {summary.tokens[split]:,} tokens, '
            f'{instances:,} instances '
            f'in {summary.shards[split]} shard(s)'
        )
    tokens = sum(summary.tokens.values())
    print(
        f'{tokens / summary.seconds / 1e3:.1f}k tok/s | {summary.seconds:.1f} s with {summary.workers} '
        f'worker(s) | peak '
        f'memory {summary.peak_memory_bytes / 2**20:.0f} MiB, all processes'
    )
    print(f'wrote {summary.output} ({summary.bytes / 1e6:.1f} MB)')
    following = line(
        'optbert-pretrain', '--shards', summary.output, '--output', 'MODEL_DIR', recipe='pretrain/small'
    )
    print(f'next: {following}')


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Parse a recipe, make the shards, say what was made."""
    example = line('optbert-make-shards', '--input', 'TEXT_DIR', '--vocab', 'vocab.txt', '--output', 'SHARDS')
    recipe = parse(ShardRecipe, argv, description=__doc__, example=example)
    print('reading the input once, to find what is unreadable and count documents', flush=True)
    progress = _Progress()
    try:
        summary = make_shards(recipe, progress=progress)
    finally:
        progress.bar.close()
    _report(summary)
