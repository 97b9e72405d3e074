"""The input of shards, read once to know it, and then in chunks of documents."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Tuple

from ..runs.recipe import checked
from . import documents, shards
from .documents import Document
from .shard_recipe import ShardRecipe


@dataclasses.dataclass(frozen=True)
class Survey:
    """What the first reading of the input says."""

    files: Tuple[Path, ...]
    layouts: Tuple[str, ...]  # of each file
    documents: int
    characters: int
    held_out: frozenset  # numbers of documents


def survey(recipe: ShardRecipe) -> Survey:
    """Read everything once: find unreadable files early, count documents, choose those held out.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or unreadable, or there are too few documents to make pairs and to hold some out.
    """
    recipe = checked(recipe)
    vocab = recipe.vocab.resolve()
    files = [path for path in documents.list_files(recipe.input) if path.resolve() != vocab]
    wanted = [documents.detect_layout(path) if recipe.layout == 'auto' else recipe.layout for path in files]
    count = characters = 0
    for path, layout in zip(files, wanted):
        for document in documents.read_documents(path, layout):
            count += 1
            characters += document.characters
    least = 4 if recipe.held_out else 2
    where, found = ', '.join(map(str, recipe.input)), described_layouts(Counter(wanted))
    if not count:
        raise ValueError(
            f'{where}: no text in {found or "other files than the vocabulary"}; give files with text, or the '
            'right --layout'
        )
    if count < least:
        raise ValueError(
            f'{where}: {count} document(s) in {found}, at least {least} are needed, since random segments '
            f'come from another document{" and two are held out" if recipe.held_out else ""}; add text, give '
            f'the right --layout{", or hold none out with --held-out 0" if recipe.held_out else ""}'
        )
    held_out = _held_out(recipe, count)
    return Survey(tuple(files), tuple(wanted), count, characters, held_out)


def described_layouts(layouts: Mapping[str, int]) -> str:
    """How many files were read in which layout: ``3 files as book``."""
    return ', '.join(f'{count} file{"s" * (count > 1)} as {name}' for name, count in sorted(layouts.items()))


def _held_out(recipe: ShardRecipe, count: int) -> frozenset:
    """The documents whose hashes are the smallest: the wanted share, two at least, two left to train on."""
    if not recipe.held_out:
        return frozenset()
    wanted = min(max(round(count * recipe.held_out), 2), count - 2)
    hashed = (
        (hashlib.sha256(f'{recipe.seed}:{number}'.encode()).digest(), number) for number in range(count)
    )
    return frozenset(number for _, number in heapq.nsmallest(wanted, hashed))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive documents of one split; the unit of work."""

    split: str
    number: int  # within its split
    documents: Tuple[Document, ...]


def chunks(recipe: ShardRecipe, surveyed: Survey) -> Iterator[Chunk]:
    """Runs of documents of one split, each of at least two documents and about `chunk_characters`."""
    open_: Dict[str, List[Document]] = {split: [] for split in shards.SPLITS}
    # waits until the next has two documents too
    ready: Dict[str, List[Document]] = {split: [] for split in shards.SPLITS}
    sizes: Counter = Counter()
    numbers: Counter = Counter()

    def close(split: str, chunk: List[Document]) -> Chunk:
        numbers[split] += 1
        return Chunk(split, numbers[split] - 1, tuple(chunk))

    count = 0
    for path, layout in zip(surveyed.files, surveyed.layouts):
        for document in documents.read_documents(path, layout):
            split = 'heldout' if count in surveyed.held_out else 'train'
            count += 1
            open_[split].append(document)
            sizes[split] += document.characters
            if len(open_[split]) == 2 and ready[split]:
                yield close(split, ready[split])
                ready[split] = []
            if sizes[split] >= recipe.chunk_characters and len(open_[split]) >= 2:
                ready[split], open_[split], sizes[split] = open_[split], [], 0
    if count != surveyed.documents:
        raise ValueError(
            f'the input had {surveyed.documents} documents and now has {count}: it changed while it was read'
        )
    for split in shards.SPLITS:
        if ready[split] or open_[split]:
            yield close(split, ready[split] + open_[split])
