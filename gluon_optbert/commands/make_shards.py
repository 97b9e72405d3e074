"""Turn raw text into shards for pre-training."""

from __future__ import annotations

import contextlib
from typing import Optional, Sequence

from .. import ShardRecipe, make_shards
from ..runs.command_line import parse
from ..runs.display import Counting, counting
from ..text.make_shards import ShardSummary, described_layouts
from .starting import command, line


class _Progress(contextlib.ExitStack):
    """A bar on a terminal, lines elsewhere, once it is known how much text there is."""

    def __init__(self) -> None:
        super().__init__()
        self._count: Optional[Counting] = None
        self._done = 0

    def __call__(self, done: int, total: int) -> None:
        if self._count is None:
            self._count = self.enter_context(counting('making instances', total, unit='character'))
        self._count(done - self._done)
        self._done = done


def _report(summary: ShardSummary) -> None:
    print(f'read {described_layouts(summary.layouts)}')
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
    with _Progress() as progress:
        summary = make_shards(recipe, progress=progress)
    _report(summary)
