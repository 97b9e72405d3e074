"""Raw text → a directory of shards: deterministic chunks of documents, made into instances by any number of
workers.

A chunk is a run of consecutive documents of one split. Its instances follow from the seed and the chunk's
number alone. They are scattered over buckets on disk; each bucket is then shuffled and cut into shards. So
the bytes do not depend on the number of workers, a shard is a sample of the whole corpus, and memory holds
some chunks and one bucket."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import heapq
import json
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, PositiveInt

from ..runs.failures import RunFailed
from ..runs.files import locked, new_directory, refuse_existing
from ..runs.machine import processors
from ..runs.recipe import Recipe, Seed, Share, option, to_dict
from . import documents, shards
from . import tokenizer as vocabulary
from .documents import Document
from .instances import SPECIALS, InstanceSpec, Tokens, make_instances
from .shards import SPLITS, ShardFile, write_shard


class ShardRecipe(Recipe):
    """How raw text becomes shards."""

    input: tuple[Path, ...] = option('files and directories of text, separated by commas', metavar='PATH')
    vocab: Path = option('WordPiece vocabulary, one token per line', metavar='FILE')
    output: Path = option('directory to write the shards to', metavar='DIR')
    layout: str = option(
        'layout of the text; auto detects it for each file', 'auto', choices=('auto', *documents.LAYOUTS)
    )
    cased: bool | None = option('keep capitals and accents; by default if the vocabulary has them', None)
    max_seq_length: Annotated[int, Field(ge=8, lt=2**16)] = option(
        'largest number of tokens in an instance, with [CLS] and [SEP]', 128
    )
    max_predictions: PositiveInt | None = option(
        'largest number of masked tokens in an instance; by default 20 per 128 tokens', None
    )
    masked_share: Share = option('share of the tokens that are masked and predicted', 0.15)
    short_share: Annotated[float, Field(ge=0, le=1)] = option(
        'share of instances with a random shorter length', 0.1
    )
    dupe_factor: PositiveInt = option('passes over the text, each with new pairs and masks', 5)
    whole_word_masking: bool = option('mask all pieces of a word together', False)
    held_out: Annotated[float, Field(ge=0, le=0.5)] = option(
        'share of the documents that are held out for evaluation; 0 for none', 0.01
    )
    instances_per_shard: PositiveInt = option('largest number of instances in a shard', 16384)
    chunk_characters: PositiveInt = option(
        'characters of text that a process works on at a time; fewer need less memory', 4_000_000
    )
    seed: Seed = option('random seed of pairs, masks, order and held-out documents', 0)
    workers: PositiveInt | None = option('number of processes; by default one per processor', None)

    def problems(self) -> list[str]:
        """What is contradictory about fields whose values are right in themselves."""
        checks = (
            (self.predictions > self.max_seq_length, 'max_predictions exceeds max_seq_length'),
            (not self.input, 'input names no file'),
        )
        return [problem for holds, problem in checks if holds]

    @property
    def predictions(self) -> int:
        """The largest number of masked tokens in an instance."""
        return (
            self.max_predictions
            if self.max_predictions is not None
            else max(math.ceil(self.max_seq_length * 20 / 128), 1)
        )


@dataclasses.dataclass(frozen=True)
class Survey:
    """What the first reading of the input says."""

    files: tuple[Path, ...]
    layouts: tuple[str, ...]  # of each file
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
    documents: tuple[Document, ...]


def chunks(recipe: ShardRecipe, surveyed: Survey) -> Iterator[Chunk]:
    """Runs of documents of one split, each of at least two documents and about `chunk_characters`."""
    open_: dict[str, list[Document]] = {split: [] for split in shards.SPLITS}
    # waits until the next has two documents too
    ready: dict[str, list[Document]] = {split: [] for split in shards.SPLITS}
    sizes: Counter = Counter()
    numbers: Counter = Counter()

    def close(split: str, chunk: list[Document]) -> Chunk:
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


_BUCKET_CHUNK = 2**31  # where the random numbers of buckets start, above those of chunks


class Buckets:
    """Files over which instances are scattered at random, and each of which is then shuffled in memory."""

    def __init__(self, directory: Path, *, split: str, seed: int, expected: float, instances_per_shard: int):
        self.count = max(math.ceil(expected / instances_per_shard), 1)
        self.directory, self.split = directory, split
        self.seeds = (seed, SPLITS.index(split))
        self.instances_per_shard = instances_per_shard
        directory.mkdir()

    def scatter(self, records: np.ndarray, chunk: int) -> None:
        """Append each record to a bucket that follows from the seed and the chunk."""
        chosen = np.random.RandomState([*self.seeds, _BUCKET_CHUNK, chunk]).randint(
            self.count, size=len(records)
        )
        for bucket in np.unique(chosen).tolist():
            with open(self.directory / str(bucket), 'ab') as file:
                file.write(records[chosen == bucket].tobytes())

    def write_shards(self, output: Path, dtype: np.dtype, instances: int) -> list[ShardFile]:
        """Shards of nearly equal size, of all buckets in their order; the buckets vanish."""
        number = math.ceil(instances / self.instances_per_shard)
        sizes = np.diff(np.arange(number + 1, dtype=np.int64) * instances // number)
        files: list[ShardFile] = []
        held = np.zeros(0, dtype)
        for bucket in range(self.count):
            path = self.directory / str(bucket)
            if not path.exists():
                continue
            records = np.fromfile(path, dtype)
            path.unlink()
            order = np.random.RandomState([*self.seeds, _BUCKET_CHUNK + 1, bucket]).permutation(len(records))
            held = np.concatenate([held, records[order]])
            while len(files) < number and len(held) >= sizes[len(files)]:
                size = sizes[len(files)]
                files.append(write_shard(output / f'{self.split}-{len(files):05d}.npz', held[:size]))
                held = held[size:]
        assert not len(held) and len(files) == number
        self.directory.rmdir()
        return files


@dataclasses.dataclass(frozen=True)
class Instances:
    """A chunk's instances and counts, and what its worker is."""

    chunk: tuple[str, int]
    records: np.ndarray
    documents: int
    sentences: int
    tokens: int
    characters: int
    worker: int  # process id
    peak_memory_bytes: int


class _Worker:
    """Makes chunks into instances; one in every process."""

    def __init__(self, recipe: ShardRecipe):
        vocab = vocabulary.read_vocabulary(recipe.vocab)
        self.recipe = recipe
        self.tokenize = vocabulary.make_remembering_tokenizer(vocab, cased=recipe.cased)
        self.continues = np.array([token.startswith(vocabulary.CONTINUATION) for token in vocab.idx_to_token])
        self.spec = InstanceSpec(
            max_seq_length=recipe.max_seq_length,
            max_predictions=recipe.predictions,
            masked_share=recipe.masked_share,
            short_share=recipe.short_share,
            whole_words=recipe.whole_word_masking,
            cls_id=vocab['[CLS]'],
            sep_id=vocab['[SEP]'],
            mask_id=vocab['[MASK]'],
            vocabulary_size=len(vocab),
        )

    def make(self, chunk: Chunk) -> Instances:
        """All passes over a chunk; held-out text gets one."""
        tokens = Tokens.of(
            [
                [self.tokenize(sentence) for sentence in documents.sentences_of(document)]
                for document in chunk.documents
            ]
        )
        passes = self.recipe.dupe_factor if chunk.split == 'train' else 1
        seeds = (self.recipe.seed, shards.SPLITS.index(chunk.split), chunk.number)
        records = [
            make_instances(tokens, self.spec, np.random.RandomState([*seeds, copy]), self.continues)
            for copy in range(passes)
        ]
        return Instances(
            (chunk.split, chunk.number),
            np.concatenate(records),
            len(tokens),
            len(tokens.sentences) - 1,
            len(tokens.ids),
            sum(document.characters for document in chunk.documents),
            os.getpid(),
            peak_memory(),
        )


_worker: _Worker | None = None


def _start_worker(recipe: ShardRecipe) -> None:
    """Set up a worker process, which leaves interrupts to its parent and ends when that is gone."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _worker = _Worker(recipe)


def _make(chunk: Chunk) -> Instances:
    return _worker.make(chunk)


@contextlib.contextmanager
def _no_script() -> Iterator[None]:
    """Hide the script that runs from processes that are started.

    They would run it again, up to the call that started them, unless it is written for that.
    """
    script = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        yield
    finally:
        sys.modules['__main__'] = script


def instances_of(recipe: ShardRecipe, chunks: Iterable[Chunk], workers: int) -> Iterator[Instances]:
    """The instances of every chunk, in the order of the chunks, with few of them under way.

    Raises
    ------
    RunFailed
        If a worker process dies.
    """
    if workers == 1:
        worker = _Worker(recipe)
        yield from map(worker.make, chunks)
        return
    waiting: deque[concurrent.futures.Future] = deque()
    context = multiprocessing.get_context('spawn')
    try:
        with concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(recipe,)
        ) as pool:
            for chunk in chunks:
                with _no_script():  # this may start a process
                    waiting.append(pool.submit(_make, chunk))
                if len(waiting) > workers + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RunFailed(
            'a worker process died while it made instances (killed, or short of memory?); nothing was '
            'written; run again, with fewer --workers if memory was short'
        ) from error


def peak_memory() -> int:
    """The largest memory this process has held, in bytes."""
    try:
        status = Path('/proc/self/status').read_text()
        return int(status.split('VmHWM:')[1].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


log = logging.getLogger(__name__)

_TOKEN_CHARACTERS = 4.5  # of English, roughly; only the number of buckets follows from it


@dataclasses.dataclass(frozen=True)
class ShardSummary:
    """What was made."""

    output: Path
    documents: dict[str, int]
    tokens: dict[str, int]
    instances: dict[str, int]
    shards: dict[str, int]
    layouts: dict[str, int]  # files of each
    bytes: int
    seconds: float
    workers: int
    peak_memory_bytes: int  # of all processes together


def make_shards(recipe: ShardRecipe, *, progress: Callable[[int, int], None] | None = None) -> ShardSummary:
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
    with locked(recipe.output):
        return _make_shards(recipe, progress)


@dataclasses.dataclass
class _Counts:
    """What was counted while instances were made."""

    splits: dict[str, Counter] = dataclasses.field(default_factory=dict)
    memory: dict[int, int] = dataclasses.field(default_factory=dict)  # of each process, at most
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


def _make_shards(recipe: ShardRecipe, progress: Callable[[int, int], None] | None) -> ShardSummary:
    """`make_shards`, while no other process writes the output."""
    began = time.perf_counter()
    refuse_existing(recipe.output)
    vocab = vocabulary.read_vocabulary(recipe.vocab)
    _check_shard_size(recipe, len(vocab))
    recipe = recipe.replace(cased=vocabulary.is_cased(vocab, recipe.cased, source=recipe.vocab))
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


def _buckets(recipe: ShardRecipe, surveyed: Survey, partial: Path) -> dict[str, Buckets]:
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
    recipe: ShardRecipe, buckets: dict[str, Buckets], counts: _Counts, partial: Path, *, vocabulary_size: int
) -> dict[str, Any]:
    """Write the shards of every split; what the manifest says of them.

    Raises
    ------
    ValueError
        If a split has no instance.
    """
    dtype = shards.record_dtype(recipe.max_seq_length, recipe.predictions, vocabulary_size)
    splits: dict[str, Any] = {}
    for split, counted in counts.splits.items():
        if not counted['instances']:
            raise ValueError(
                f'{", ".join(map(str, recipe.input))}: the {split} documents have no text to make instances '
                'of; add text' + (', or hold none out with --held-out 0' if split == 'heldout' else '')
            )
        files = buckets[split].write_shards(partial, dtype, counted['instances'])
        splits[split] = {**counted, 'shards': [file.model_dump() for file in files]}
    return splits


def _expected_instances(recipe: ShardRecipe, surveyed: Survey) -> dict[str, float]:
    """About how many instances each split will have."""
    share = len(surveyed.held_out) / surveyed.documents
    instances = surveyed.characters / _TOKEN_CHARACTERS / (recipe.max_seq_length - SPECIALS)
    return {'train': instances * (1 - share) * recipe.dupe_factor, 'heldout': instances * share}


def _manifest(
    recipe: ShardRecipe, vocab_hash: str, vocab_size: int, splits: dict[str, Any]
) -> dict[str, Any]:
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
