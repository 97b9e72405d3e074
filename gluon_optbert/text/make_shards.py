"""Raw text → a directory of shards: deterministic chunks of documents, made into instances by any number of
workers.

A chunk is a run of consecutive documents of one split. Its instances follow from the seed and the chunk's
number alone, and are strewn over buckets on disk; each bucket is then shuffled and cut into shards. So the
bytes are the same whatever the number of workers, a shard is a sample of the whole corpus, and memory holds
some chunks and one bucket."""

from __future__ import annotations

import concurrent.futures
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
import threading
import time
from collections import Counter, deque
from concurrent.futures.process import BrokenProcessPool
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from ..runs.failures import RunFailed
from ..runs.lock import locked
from ..runs.processors import processors
from ..runs.recipe import checked, option, to_dict
from ..runs.staging import new_directory, refuse_existing
from . import documents, shards, vocabulary
from .buckets import Buckets
from .documents import Document
from .instances import SPECIALS, InstanceSpec, Tokens, make_instances

log = logging.getLogger(__name__)

_TOKEN_CHARACTERS = 4.5  # of English, roughly; only the number of buckets follows from it


@dataclasses.dataclass(frozen=True)
class ShardRecipe:
    """How raw text becomes shards."""

    input: Tuple[Path, ...] = option('files or trees of text, separated by commas', metavar='PATH')
    vocab: Path = option('WordPiece vocabulary, one token per line', metavar='FILE')
    output: Path = option('directory of shards to make', metavar='DIR')
    layout: str = option('how the text is laid out', 'auto', choices=('auto', *documents.LAYOUTS))
    cased: Optional[bool] = option('keep capitals and accents; as the vocabulary is, if not given', None)
    max_seq_length: int = option('tokens of an instance, [CLS] and [SEP] counted', 128)
    max_predictions: Optional[int] = option(
        'masked tokens of an instance at most; 20 per 128 tokens if not given', None
    )
    masked_share: float = option('share of tokens to predict', 0.15)
    short_share: float = option('share of instances with a random shorter length', 0.1)
    dupe_factor: int = option('passes over the text, each with fresh pairs and masks', 5)
    whole_word_masking: bool = option('mask all pieces of a word together', False)
    held_out: float = option('share of documents set aside for evaluation; 0 for none', 0.01)
    instances_per_shard: int = option('instances of a shard at most', 16384)
    chunk_characters: int = option('text of one unit of work, in characters', 4_000_000)
    seed: int = option('of all chance', 0)
    workers: Optional[int] = option('processes; one per processor if not given', None)

    def problems(self) -> List[str]:
        """What contradicts itself or is out of range."""
        longest = 2**16 - 1
        checks = (
            (
                8 <= self.max_seq_length <= longest,
                f'max_seq_length {self.max_seq_length}: must be from 8 to {longest}',
            ),
            (
                1 <= self.predictions <= self.max_seq_length,
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
            (0 <= self.seed < 2**32, f'seed {self.seed}: must be from 0 to 2^32 - 1'),
            (self.workers is None or self.workers >= 1, f'workers {self.workers}: must be at least 1'),
            (self.input != (), 'input: names no file'),
        )
        return [problem for holds, problem in checks if not holds]

    @property
    def predictions(self) -> int:
        """M, given or derived."""
        return (
            self.max_predictions
            if self.max_predictions is not None
            else max(math.ceil(self.max_seq_length * 20 / 128), 1)
        )


@dataclasses.dataclass(frozen=True)
class Survey:
    """What a first reading of the whole input found."""

    files: Tuple[Path, ...]
    layouts: Tuple[str, ...]  # of each file
    documents: int
    characters: int
    held_out: frozenset  # numbers of documents


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


def survey(recipe: ShardRecipe) -> Survey:
    """Read everything once: find unreadable files early, count documents, choose those held out.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or unreadable, or there are too few documents to make pairs and to hold some out.
    """
    recipe = checked(recipe)
    files = documents.list_files(recipe.input)
    wanted = [documents.detect_layout(path) if recipe.layout == 'auto' else recipe.layout for path in files]
    count = characters = 0
    for path, layout in zip(files, wanted):
        for document in documents.read_documents(path, layout):
            count += 1
            characters += document.characters
    least = 4 if recipe.held_out else 2
    where = ', '.join(map(str, recipe.input))
    if not count:
        raise ValueError(
            f'{where}: no text in {len(files)} file(s); give files with text, or the right --layout'
        )
    if count < least:
        raise ValueError(
            f'{where}: {count} document(s), at least {least} are needed, since random segments come from '
            f'another '
            'document' + (' and two are held out; ' if recipe.held_out else '; ') + 'add text, separate '
            'documents by blank lines' + (', or hold none out with --held-out 0' if recipe.held_out else '')
        )
    held_out = _held_out(recipe, count)
    return Survey(tuple(files), tuple(wanted), count, characters, held_out)


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
class _Chunk:
    split: str
    number: int  # within its split
    documents: Tuple[Document, ...]


def _chunks(recipe: ShardRecipe, found: Survey) -> Iterator[_Chunk]:
    """Runs of documents of one split, each of at least two documents and about `chunk_characters`."""
    open_: Dict[str, List[Document]] = {split: [] for split in shards.SPLITS}
    ready: Dict[str, List[Document]] = {
        split: [] for split in shards.SPLITS
    }  # waits until the next has two documents too
    sizes: Counter = Counter()
    numbers: Counter = Counter()

    def close(split: str, chunk: List[Document]) -> _Chunk:
        numbers[split] += 1
        return _Chunk(split, numbers[split] - 1, tuple(chunk))

    count = 0
    for path, layout in zip(found.files, found.layouts):
        for document in documents.read_documents(path, layout):
            split = 'heldout' if count in found.held_out else 'train'
            count += 1
            open_[split].append(document)
            sizes[split] += document.characters
            if len(open_[split]) == 2 and ready[split]:
                yield close(split, ready[split])
                ready[split] = []
            if sizes[split] >= recipe.chunk_characters and len(open_[split]) >= 2:
                ready[split], open_[split], sizes[split] = open_[split], [], 0
    if count != found.documents:
        raise ValueError(
            f'the input had {found.documents} documents and now has {count}: it changed while it was read'
        )
    for split in shards.SPLITS:
        if ready[split] or open_[split]:
            yield close(split, ready[split] + open_[split])


@dataclasses.dataclass(frozen=True)
class _Made:
    """A chunk's instances and counts, and what its worker is."""

    chunk: Tuple[str, int]
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
        self.tokenize = vocabulary.make_tokenizer(vocab, cased=recipe.cased)
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

    def make(self, chunk: _Chunk) -> _Made:
        """All passes over a chunk; held-out text gets one."""
        tokens = Tokens.of(
            [
                [self.tokenize(sentence) for sentence in documents.sentences_of(document)]
                for document in chunk.documents
            ]
        )
        passes = self.recipe.dupe_factor if chunk.split == 'train' else 1
        seeds = (self.recipe.seed, shards.SPLITS.index(chunk.split), chunk.number)
        made = [
            make_instances(tokens, self.spec, np.random.RandomState([*seeds, copy]), self.continues)
            for copy in range(passes)
        ]
        return _Made(
            (chunk.split, chunk.number),
            np.concatenate(made),
            len(tokens),
            len(tokens.sentences) - 1,
            len(tokens.ids),
            sum(document.characters for document in chunk.documents),
            os.getpid(),
            peak_memory(),
        )


_worker: Optional[_Worker] = None


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


def _make(chunk: _Chunk) -> _Made:
    return _worker.make(chunk)


def _made(recipe: ShardRecipe, chunks: Iterable[_Chunk], workers: int) -> Iterator[_Made]:
    """Every chunk made, in the order of the chunks, with few of them under way.

    Raises
    ------
    RunFailed
        If a worker process dies.
    """
    if workers == 1:
        worker = _Worker(recipe)
        yield from map(worker.make, chunks)
        return
    waiting: Deque[concurrent.futures.Future] = deque()
    context = multiprocessing.get_context('spawn')
    try:
        with concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(recipe,)
        ) as pool:
            for chunk in chunks:
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


def _make_shards(recipe: ShardRecipe, progress: Optional[Callable[[int, int], None]]) -> ShardSummary:
    """`make_shards`, while no other process writes the output."""
    began = time.perf_counter()
    refuse_existing(recipe.output)
    vocab = vocabulary.read_vocabulary(recipe.vocab)
    recipe = dataclasses.replace(recipe, cased=vocabulary.is_cased(vocab, recipe.cased, source=recipe.vocab))
    workers = recipe.workers or processors()
    found = survey(recipe)
    log.info(
        '%d documents, %d characters in %d files (%s)',
        found.documents,
        found.characters,
        len(found.files),
        ', '.join(f'{count} {layout}' for layout, count in sorted(Counter(found.layouts).items())),
    )
    dtype = shards.record_dtype(recipe.max_seq_length, recipe.predictions, len(vocab))
    counts: Dict[str, Counter] = {}
    memory: Dict[int, int] = {}
    done = 0
    with new_directory(recipe.output) as partial:
        buckets = {
            split: Buckets(
                partial / f'{split}.buckets',
                split=split,
                seed=recipe.seed,
                expected=expected,
                instances_per_shard=recipe.instances_per_shard,
            )
            for split, expected in _expected_instances(recipe, found).items()
        }
        for made in _made(recipe, _chunks(recipe, found), workers):
            split, number = made.chunk
            buckets[split].scatter(made.records, number)
            counts.setdefault(split, Counter()).update(
                documents=made.documents,
                sentences=made.sentences,
                tokens=made.tokens,
                instances=len(made.records),
            )
            memory[made.worker] = made.peak_memory_bytes
            done += made.characters
            if progress:
                progress(done, found.characters)
        splits: Dict[str, Any] = {}
        for split, counted in counts.items():
            if not counted['instances']:
                raise ValueError(
                    f'{", ".join(map(str, recipe.input))}: the {split} documents have no text to make '
                    f'instances '
                    'of; add text' + (', or hold none out with --held-out 0' if split == 'heldout' else '')
                )
            files = buckets[split].write_shards(partial, dtype, counted['instances'])
            splits[split] = {**counted, 'shards': [dataclasses.asdict(file) for file in files]}
        vocabulary.write_vocabulary(vocab, partial / shards.VOCABULARY)
        manifest = _manifest(recipe, vocabulary.vocabulary_hash(vocab), len(vocab), splits)
        (partial / shards.MANIFEST).write_text(
            json.dumps(manifest, indent=1, sort_keys=True) + '\n', encoding='utf-8'
        )
    memory[os.getpid()] = peak_memory()
    return ShardSummary(
        output=recipe.output,
        workers=workers,
        layouts=dict(Counter(found.layouts)),
        bytes=sum(file['bytes'] for entry in splits.values() for file in entry['shards']),
        seconds=time.perf_counter() - began,
        peak_memory_bytes=sum(memory.values()),
        shards={split: len(entry['shards']) for split, entry in splits.items()},
        **{
            noun: {split: entry[noun] for split, entry in splits.items()}
            for noun in ('documents', 'tokens', 'instances')
        },
    )


def _expected_instances(recipe: ShardRecipe, found: Survey) -> Dict[str, float]:
    """About how many instances each split will have."""
    share = len(found.held_out) / found.documents
    instances = found.characters / _TOKEN_CHARACTERS / (recipe.max_seq_length - SPECIALS)
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
