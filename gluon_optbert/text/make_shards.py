"""Raw text → a directory of shards: deterministic chunks of documents, made into instances by any number of
workers.

A chunk is a run of consecutive documents of one split. Its instances follow from the seed and the chunk's
number alone. They are scattered over buckets on disk; each bucket is then shuffled and cut into shards. So
the bytes do not depend on the number of workers, a shard is a sample of the whole corpus, and memory holds
some chunks and one bucket."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from ..runs.lock import locked
from ..runs.processors import processors
from ..runs.recipe import checked, to_dict
from ..runs.staging import new_directory, refuse_existing
from . import shards, vocabulary
from .buckets import Buckets
from .chunk_workers import Instances, instances_of, peak_memory
from .instances import SPECIALS
from .shard_recipe import ShardRecipe
from .survey import Survey, chunks, described_layouts, survey

log = logging.getLogger(__name__)

_TOKEN_CHARACTERS = 4.5  # of English, roughly; only the number of buckets follows from it


@dataclasses.dataclass(frozen=True)
class ShardSummary:
    """What was made."""

    output: Path
    documents: Dict[str, int]
    tokens: Dict[str, int]
    instances: Dict[str, int]
    shards: Dict[str, int]
    layouts: Dict[str, int]  # files of each
    bytes: int
    seconds: float
    workers: int
    peak_memory_bytes: int  # of all processes together


def make_shards(
    recipe: ShardRecipe, *, progress: Optional[Callable[[int, int], None]] = None
) -> ShardSummary:
    """Make a directory of shards; see `ShardRecipe` and the module.

    Parameters
    ----------
    recipe : ShardRecipe
    progress : callable, optional
        Called with the characters done and the characters in all.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        If the input, the vocabulary or the output cannot be used, or another process is writing the output.
    RunFailed
        If a worker process dies.
    """
    recipe = checked(recipe)
    with locked(recipe.output):
        return _make_shards(recipe, progress)


@dataclasses.dataclass
class _Counts:
    """What was counted while instances were made."""

    splits: Dict[str, Counter] = dataclasses.field(default_factory=dict)
    memory: Dict[int, int] = dataclasses.field(default_factory=dict)  # of each process, at most
    characters: int = 0

    def add(self, instances: Instances) -> None:
        """Count the instances of a chunk."""
        self.splits.setdefault(instances.chunk[0], Counter()).update(
            documents=instances.documents,
            sentences=instances.sentences,
            tokens=instances.tokens,
            instances=len(instances.records),
        )
        self.memory[instances.worker] = instances.peak_memory_bytes
        self.characters += instances.characters


def _make_shards(recipe: ShardRecipe, progress: Optional[Callable[[int, int], None]]) -> ShardSummary:
    """`make_shards`, while no other process writes the output."""
    began = time.perf_counter()
    refuse_existing(recipe.output)
    vocab = vocabulary.read_vocabulary(recipe.vocab)
    _check_shard_size(recipe, len(vocab))
    recipe = dataclasses.replace(recipe, cased=vocabulary.is_cased(vocab, recipe.cased, source=recipe.vocab))
    workers = recipe.workers or processors()
    surveyed = survey(recipe)
    layouts = Counter(surveyed.layouts)
    log.info(
        '%d documents, %d characters in %d files (%s)',
        surveyed.documents,
        surveyed.characters,
        len(surveyed.files),
        described_layouts(layouts),
    )
    counts = _Counts()
    with new_directory(recipe.output) as partial:
        buckets = _buckets(recipe, surveyed, partial)
        for instances in instances_of(recipe, chunks(recipe, surveyed), workers):
            split, number = instances.chunk
            buckets[split].scatter(instances.records, number)
            counts.add(instances)
            if progress:
                progress(counts.characters, surveyed.characters)
        splits = _write_splits(recipe, buckets, counts, partial, vocabulary_size=len(vocab))
        vocabulary.write_vocabulary(vocab, partial / shards.VOCABULARY)
        manifest = _manifest(recipe, vocabulary.vocabulary_hash(vocab), len(vocab), splits)
        (partial / shards.MANIFEST).write_text(
            json.dumps(manifest, indent=1, sort_keys=True) + '\n', encoding='utf-8'
        )
    counts.memory[os.getpid()] = peak_memory()
    return ShardSummary(
        output=recipe.output,
        workers=workers,
        layouts=dict(layouts),
        bytes=sum(file['bytes'] for entry in splits.values() for file in entry['shards']),
        seconds=time.perf_counter() - began,
        peak_memory_bytes=sum(counts.memory.values()),
        shards={split: len(entry['shards']) for split, entry in splits.items()},
        **{
            noun: {split: entry[noun] for split, entry in splits.items()}
            for noun in ('documents', 'tokens', 'instances')
        },
    )


def _check_shard_size(recipe: ShardRecipe, vocabulary_size: int) -> None:
    """Raise ValueError if a shard could become larger than what `Shards.open` takes."""
    row = shards.record_dtype(recipe.max_seq_length, recipe.predictions, vocabulary_size).itemsize
    most = shards.most_instances(row)
    if recipe.instances_per_shard > most:
        raise ValueError(
            f'instances_per_shard {recipe.instances_per_shard}: an instance takes {row} bytes, so a shard '
            f'has at most {most}; give a smaller --instances-per-shard'
        )


def _buckets(recipe: ShardRecipe, surveyed: Survey, partial: Path) -> Dict[str, Buckets]:
    """The files over which the instances of each split are scattered."""
    return {
        split: Buckets(
            partial / f'{split}.buckets',
            split=split,
            seed=recipe.seed,
            expected=expected,
            instances_per_shard=recipe.instances_per_shard,
        )
        for split, expected in _expected_instances(recipe, surveyed).items()
        if split == 'train' or surveyed.held_out
    }


def _write_splits(
    recipe: ShardRecipe, buckets: Dict[str, Buckets], counts: _Counts, partial: Path, *, vocabulary_size: int
) -> Dict[str, Any]:
    """Write the shards of every split; what the manifest says of them.

    Raises
    ------
    ValueError
        If a split has no instance.
    """
    dtype = shards.record_dtype(recipe.max_seq_length, recipe.predictions, vocabulary_size)
    splits: Dict[str, Any] = {}
    for split, counted in counts.splits.items():
        if not counted['instances']:
            raise ValueError(
                f'{", ".join(map(str, recipe.input))}: the {split} documents have no text to make instances '
                'of; add text' + (', or hold none out with --held-out 0' if split == 'heldout' else '')
            )
        files = buckets[split].write_shards(partial, dtype, counted['instances'])
        splits[split] = {**counted, 'shards': [dataclasses.asdict(file) for file in files]}
    return splits


def _expected_instances(recipe: ShardRecipe, surveyed: Survey) -> Dict[str, float]:
    """About how many instances each split will have."""
    share = len(surveyed.held_out) / surveyed.documents
    instances = surveyed.characters / _TOKEN_CHARACTERS / (recipe.max_seq_length - SPECIALS)
    return {'train': instances * (1 - share) * recipe.dupe_factor, 'heldout': instances * share}


def _manifest(
    recipe: ShardRecipe, vocab_hash: str, vocab_size: int, splits: Dict[str, Any]
) -> Dict[str, Any]:
    """What vouches for the shards; nothing in it depends on the time, the place or the number of workers."""
    left_out = ('output', 'workers')
    libraries = ('numpy', 'gluonnlp', 'blingfire', 'sacremoses', *(('tokenizers',) if recipe.cased else ()))
    return {
        'format': shards.FORMAT,
        'version': shards.VERSION,
        'max_seq_length': recipe.max_seq_length,
        'max_predictions': recipe.predictions,
        'cased': recipe.cased,
        'vocabulary': {'size': vocab_size, 'sha256': vocab_hash},
        'recipe': {name: value for name, value in to_dict(recipe).items() if name not in left_out},
        'versions': {name: metadata.version(name) for name in libraries},
        'splits': splits,
    }
