"""How raw text becomes shards: the settings of a user."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import List, Optional, Tuple

from ..runs.recipe import option, seed_problems
from . import documents


@dataclasses.dataclass(frozen=True)
class ShardRecipe:
    """How raw text becomes shards."""

    input: Tuple[Path, ...] = option('files and directories of text, separated by commas', metavar='PATH')
    vocab: Path = option('WordPiece vocabulary, one token per line', metavar='FILE')
    output: Path = option('directory to write the shards to', metavar='DIR')
    layout: str = option(
        'layout of the text; auto detects it for each file', 'auto', choices=('auto', *documents.LAYOUTS)
    )
    cased: Optional[bool] = option('keep capitals and accents; by default if the vocabulary has them', None)
    max_seq_length: int = option('largest number of tokens in an instance, with [CLS] and [SEP]', 128)
    max_predictions: Optional[int] = option(
        'largest number of masked tokens in an instance; by default 20 per 128 tokens', None
    )
    masked_share: float = option('share of the tokens that are masked and predicted', 0.15)
    short_share: float = option('share of instances with a random shorter length', 0.1)
    dupe_factor: int = option('passes over the text, each with new pairs and masks', 5)
    whole_word_masking: bool = option('mask all pieces of a word together', False)
    held_out: float = option('share of the documents that are held out for evaluation; 0 for none', 0.01)
    instances_per_shard: int = option('largest number of instances in a shard', 16384)
    chunk_characters: int = option(
        'characters of text that a process works on at a time; fewer need less memory', 4_000_000
    )
    seed: int = option('random seed of pairs, masks, order and held-out documents', 0)
    workers: Optional[int] = option('number of processes; by default one per processor', None)

    def problems(self) -> List[str]:
        """What contradicts itself or is out of range."""
        longest = 2**16 - 1
        checks = (
            (
                8 <= self.max_seq_length <= longest,
                f'max_seq_length {self.max_seq_length}: must be from 8 to {longest}',
            ),
            (
                self.max_predictions is None or 1 <= self.max_predictions <= self.max_seq_length,
                f'max_predictions {self.max_predictions}: must be from 1 to max_seq_length '
                f'{self.max_seq_length}',
            ),
            (0 < self.masked_share < 1, f'masked_share {self.masked_share}: must be between 0 and 1'),
            (0 <= self.short_share <= 1, f'short_share {self.short_share}: must be from 0 to 1'),
            (0 <= self.held_out <= 0.5, f'held_out {self.held_out}: must be from 0 to 0.5'),
            (self.dupe_factor >= 1, f'dupe_factor {self.dupe_factor}: must be at least 1'),
            (
                self.instances_per_shard >= 1,
                f'instances_per_shard {self.instances_per_shard}: must be at least 1',
            ),
            (self.chunk_characters >= 1, f'chunk_characters {self.chunk_characters}: must be at least 1'),
            (self.workers is None or self.workers >= 1, f'workers {self.workers}: must be at least 1'),
            (self.input != (), 'input: names no file'),
        )
        return [problem for holds, problem in checks if not holds] + seed_problems(self.seed)

    @property
    def predictions(self) -> int:
        """The largest number of masked tokens in an instance."""
        return (
            self.max_predictions
            if self.max_predictions is not None
            else max(math.ceil(self.max_seq_length * 20 / 128), 1)
        )
