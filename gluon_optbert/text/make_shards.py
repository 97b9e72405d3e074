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
import itertools
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

from ..runs.display import number_of
from ..runs.failures import RunFailed
from ..runs.files import new_directory, new_output, write_sealed
from ..runs.machine import processors
from ..runs.recipe import Recipe, Seed, Share, option, to_dict
from . import documents, shards, tokenizer as vocabulary
from .documents import Document
from .instances import SPECIALS, InstanceSpec, Tokens, make_instances
from .layouts import LAYOUTS, detect_layout
from .sentences import ends_sentence
from .shards import SPLITS, ShardFile, write_shard

log = logging.getLogger(__name__)

_BUCKET_CHUNK = 2**31  # where the random numbers of buckets start, above those of chunks
_COUNTED = 5_000_000  # characters of a layout in which sentences are counted before shards are made
_TOKEN_CHARACTERS = 4.5  # of English, roughly; only the number of buckets follows from it


class ShardRecipe(Recipe):
    """Recipe for shards from raw text."""

    input: tuple[Path, ...] = option('files and directories of text, separated by commas', metavar='PATH')
    vocab: Path = option('WordPiece vocabulary, one token per line', metavar='FILE')
    output: Path = option('directory to write the shards to', metavar='DIR')
    layout: str = option(
        'layout of the text; auto detects it for each file', 'auto', choices=('auto', *LAYOUTS)
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
    next_sentence: bool = option(
        'make pairs of segments for next-sentence prediction; false: single segments of one document, which '
        'are trained on without that loss',
        True,
    )
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
        """Contradictions between fields whose values are right in themselves."""
        checks = (
            (self.predictions > self.max_seq_length, 'max_predictions exceeds max_seq_length'),
            (not self.input, 'input names no file'),
        )
        return [problem for holds, problem in checks if holds]

    @property
    def predictions(self) -> int:
        """The largest number of masked tokens in an instance."""
        return self.max_predictions or math.ceil(self.max_seq_length * 20 / 128)


@dataclasses.dataclass(frozen=True)
class Survey:
    """Result of the first reading of the input."""

    files: tuple[Path, ...]
    layouts: tuple[str, ...]  # of the files
    documents: int
    characters: int
    held_out: frozenset[int]  # numbers of documents
    # of each layout: files, documents, and of the counted documents among them sentences, and unended ones
    counts: Mapping[str, Counter]

    def lines(self) -> list[str]:
        """Findings, a line each, for people."""
        lines = []
        for layout, counts in sorted(self.counts.items()):
            files, documents, counted = counts['files'], counts['documents'], counts['counted']
            line = f'{number_of(files, "file")} as {layout}: {number_of(documents, "document")}'
            if counts['sentences']:
                first = f' (of the first {counted:,})' if counted < documents else ''
                line += f', {counts["sentences"] / counted:,.1f} sentences a document{first}, '
                line += f'{counts["unended"] / counts["sentences"]:.1%} of them without an end mark'
            lines.append(line)
        return lines


def survey(recipe: ShardRecipe) -> Survey:
    """Read everything once: find unreadable files early, count documents, choose those held out.

    FileNotFoundError or ValueError if a file is missing or unreadable, there are too few documents to make
    pairs and to hold some out, or pairs are wanted and no document has two sentences.
    """
    vocab = recipe.vocab.resolve()
    files = [path for path in documents.list_files(recipe.input) if path.resolve() != vocab]
    wanted = [detect_layout(path) if recipe.layout == 'auto' else recipe.layout for path in files]
    total: Counter = Counter()
    counts = {layout: Counter(files=number) for layout, number in Counter(wanted).items()}
    for document in itertools.chain.from_iterable(map(documents.read_documents, files, wanted)):
        of_layout, size = counts[document.layout], document.characters
        total.update(documents=1, characters=size)
        of_layout['documents'] += 1
        if of_layout['characters'] < _COUNTED or not total['several']:
            sentences = documents.sentences_of(document)
            unended = sum(not ends_sentence(one) for one in sentences)
            of_layout.update(counted=1, characters=size, sentences=len(sentences), unended=unended)
            total['several'] += len(sentences) > 1
    count, own = total['documents'], 2 if recipe.next_sentence else 1
    surveyed = Survey(tuple(files), tuple(wanted), count, total['characters'], frozenset(), counts)
    inputs, found = ', '.join(map(str, recipe.input)), '; '.join(surveyed.lines())
    least = 2 * own if recipe.held_out else own
    if count < least:
        raise ValueError(
            f'{inputs}: {count} documents in {found or "no file but the vocabulary"}; at least {least} are '
            f'needed, because {own} of them are held out but for --held-out 0'
            f'{", and random segments come from another one" * recipe.next_sentence}; add text, or give the '
            'right --layout'
        )
    if recipe.next_sentence and not total['several']:
        raise ValueError(
            f'{inputs}: no document has two sentences in {found}; every second segment would be a random '
            'one, and next-sentence prediction would learn nothing; give the right --layout, leave blank '
            'lines between documents alone, or make no pairs, with --next-sentence false'
        )
    # those whose hashes are the smallest: the wanted share, `own` at least, `own` left to train on
    share = min(max(round(count * recipe.held_out), own), count - own) if recipe.held_out else 0
    hashed = ((hashlib.sha256(f'{recipe.seed}:{i}'.encode()).digest(), i) for i in range(count))
    return dataclasses.replace(surveyed, held_out=frozenset(i for _, i in heapq.nsmallest(share, hashed)))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive documents of one split; the unit of work."""

    split: str
    number: int  # within its split
    documents: tuple[Document, ...]


def chunks(recipe: ShardRecipe, surveyed: Survey) -> Iterator[Chunk]:
    """Runs of documents of one split, each of at least two documents and about `chunk_characters`."""
    growing: dict[str, list[Document]] = {split: [] for split in SPLITS}
    full: dict[str, list[Document]] = {split: [] for split in SPLITS}  # until the next has two documents too
    sizes: Counter = Counter()
    numbers = {split: itertools.count() for split in SPLITS}
    count, of_files = 0, map(documents.read_documents, surveyed.files, surveyed.layouts)
    for document in itertools.chain.from_iterable(of_files):
        split = 'heldout' if count in surveyed.held_out else 'train'
        count += 1
        growing[split].append(document)
        sizes[split] += document.characters
        if len(growing[split]) == 2 and full[split]:
            yield Chunk(split, next(numbers[split]), tuple(full[split]))
            full[split] = []
        if sizes[split] >= recipe.chunk_characters and len(growing[split]) >= 2:
            full[split], growing[split], sizes[split] = growing[split], [], 0
    if count != surveyed.documents:
        raise ValueError(
            f'the input had {surveyed.documents} documents and now has {count}: it changed while it was read'
        )
    for split in SPLITS:
        if full[split] or growing[split]:
            yield Chunk(split, next(numbers[split]), (*full[split], *growing[split]))


class Buckets:
    """Files over which instances are scattered at random, and each of which is then shuffled in memory."""

    def __init__(self, recipe: ShardRecipe, partial: Path, split: str, expected: float):
        self.count = max(math.ceil(expected / recipe.instances_per_shard), 1)
        self.directory, self.split = partial / f'{split}.buckets', split
        self.seeds = (recipe.seed, SPLITS.index(split))
        self.instances_per_shard = recipe.instances_per_shard
        self.directory.mkdir()

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

    split: str
    number: int  # of the chunk
    records: np.ndarray
    counts: Mapping[str, int]  # documents, sentences, tokens, instances
    characters: int
    worker: int  # process id
    peak_memory_bytes: int


def _maker(recipe: ShardRecipe) -> Callable[[Chunk], Instances]:
    """A function chunk → its instances, of all passes over it; held-out text gets one."""
    vocab = vocabulary.read_vocabulary(recipe.vocab)
    tokenize = vocabulary.make_tokenizer(vocab, cased=recipe.cased)
    spec = InstanceSpec(
        max_seq_length=recipe.max_seq_length,
        max_predictions=recipe.predictions,
        masked_share=recipe.masked_share,
        short_share=recipe.short_share,
        whole_words=recipe.whole_word_masking,
        next_sentence=recipe.next_sentence,
        cls_id=vocab['[CLS]'],
        sep_id=vocab['[SEP]'],
        mask_id=vocab['[MASK]'],
        continues=np.array([token.startswith(vocabulary.CONTINUATION) for token in vocab.idx_to_token]),
    )

    def make(chunk: Chunk) -> Instances:
        texts = map(documents.sentences_of, chunk.documents)
        tokens = Tokens.of([list(map(tokenize, sentences)) for sentences in texts])
        passes = recipe.dupe_factor if chunk.split == 'train' else 1
        seeds = (recipe.seed, SPLITS.index(chunk.split), chunk.number)
        generators = (np.random.RandomState([*seeds, copy]) for copy in range(passes))
        records = np.concatenate([make_instances(tokens, spec, generator) for generator in generators])
        counts = {
            'documents': len(tokens),
            'sentences': len(tokens.sentences) - 1,
            'tokens': len(tokens.ids),
            'instances': len(records),
        }
        characters = sum(document.characters for document in chunk.documents)
        return Instances(chunk.split, chunk.number, records, counts, characters, os.getpid(), peak_memory())

    return make


_own_maker: Callable[[Chunk], Instances] | None = None  # of a worker process


def _start_worker(recipe: ShardRecipe) -> None:
    """Set up a worker process, which leaves interrupts to its parent and ends when that is gone."""
    global _own_maker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _own_maker = _maker(recipe)


def _make(chunk: Chunk) -> Instances:
    return _own_maker(chunk)


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
    """The instances of every chunk, in the order of the chunks, with few of them under way; RunFailed if a
    worker process dies.
    """
    if workers == 1:
        yield from map(_maker(recipe), chunks)
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


@dataclasses.dataclass(frozen=True)
class ShardSummary:
    """Result of `make_shards`."""

    output: Path
    documents: dict[str, int]
    tokens: dict[str, int]
    instances: dict[str, int]
    shards: dict[str, int]
    bytes: int
    seconds: float
    workers: int
    peak_memory_bytes: int  # of all processes together


def make_shards(
    recipe: ShardRecipe,
    *,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = log.info,
) -> ShardSummary:
    """Make a directory of shards; see `ShardRecipe` and the module.

    Parameters
    ----------
    progress : callable, optional
        Called with the characters done and the characters in all.
    say : callable
        Called with lines about the text before shards are made of it.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        If the input, the vocabulary or the output cannot be used, or another process is writing the output.
    RunFailed
        If a worker process dies.
    """
    began = time.perf_counter()
    with new_output(recipe.output):
        vocab = vocabulary.read_vocabulary(recipe.vocab)
        dtype = shards.record_dtype(recipe.max_seq_length, recipe.predictions, len(vocab))
        most = shards.MOST_SHARD_BYTES // dtype.itemsize
        if recipe.instances_per_shard > most:
            raise ValueError(
                f'instances_per_shard {recipe.instances_per_shard}: an instance takes {dtype.itemsize} '
                f'bytes, so a shard has at most {most}; give a smaller --instances-per-shard'
            )
        recipe = recipe.replace(cased=vocabulary.is_cased(vocab, recipe.cased, source=recipe.vocab))
        workers = recipe.workers or processors()
        surveyed = survey(recipe)
        for found in surveyed.lines():
            say(found)
        counts = {split: Counter() for split in SPLITS if split == 'train' or surveyed.held_out}
        memory: dict[int, int] = {}  # of each process
        done = 0
        with new_directory(recipe.output) as partial:
            buckets = _buckets(recipe, surveyed, partial)
            for made in instances_of(recipe, chunks(recipe, surveyed), workers):
                buckets[made.split].scatter(made.records, made.number)
                counts[made.split].update(made.counts)
                memory[made.worker] = made.peak_memory_bytes
                done += made.characters
                if progress:
                    progress(done, surveyed.characters)
            splits = {}
            for split, counted in counts.items():
                if not counted['instances']:
                    raise ValueError(
                        f'{", ".join(map(str, recipe.input))}: the {split} documents have no text to make '
                        'instances of; add text, or choose what is held out with --held-out'
                    )
                files = buckets[split].write_shards(partial, dtype, counted['instances'])
                splits[split] = {**counted, 'shards': [file.model_dump() for file in files]}
            vocabulary.write_vocabulary(vocab, partial / shards.VOCABULARY)
            manifest = _manifest(recipe, vocab, splits)
            write_sealed(partial / shards.MANIFEST, manifest)
    memory[os.getpid()] = peak_memory()
    return ShardSummary(
        output=recipe.output,
        workers=workers,
        bytes=sum(file['bytes'] for entry in splits.values() for file in entry['shards']),
        seconds=time.perf_counter() - began,
        peak_memory_bytes=sum(memory.values()),
        shards={split: len(entry['shards']) for split, entry in splits.items()},
        **{
            noun: {split: entry[noun] for split, entry in splits.items()}
            for noun in ('documents', 'tokens', 'instances')
        },
    )


def _buckets(recipe: ShardRecipe, surveyed: Survey, partial: Path) -> dict[str, Buckets]:
    """The files over which the instances of each split are scattered."""
    share = len(surveyed.held_out) / surveyed.documents
    instances = surveyed.characters / _TOKEN_CHARACTERS / (recipe.max_seq_length - SPECIALS)
    expected = {'train': instances * (1 - share) * recipe.dupe_factor}
    if surveyed.held_out:
        expected['heldout'] = instances * share
    return {split: Buckets(recipe, partial, split, number) for split, number in expected.items()}


def _manifest(recipe: ShardRecipe, vocab: vocabulary.Vocabulary, splits: Mapping[str, Any]) -> dict[str, Any]:
    """Manifest of the shards; nothing in it depends on the time, the place or the number of workers."""
    libraries = ('numpy', 'blingfire', 'sacremoses', 'tokenizers')
    return {
        'format': shards.FORMAT,
        'version': shards.VERSION,
        'max_seq_length': recipe.max_seq_length,
        'max_predictions': recipe.predictions,
        'cased': recipe.cased,
        'next_sentence': recipe.next_sentence,
        'vocabulary': {'size': len(vocab), 'sha256': vocabulary.vocabulary_hash(vocab)},
        'recipe': {
            name: value for name, value in to_dict(recipe).items() if name not in ('output', 'workers')
        },
        'versions': {name: metadata.version(name) for name in libraries},
        'splits': splits,
    }
