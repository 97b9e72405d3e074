"""Processes that make chunks of documents into instances."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import threading
import types
from collections import deque
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Deque, Iterable, Iterator, Optional, Tuple

import numpy as np

from ..runs.failures import RunFailed
from . import documents, shards, vocabulary
from .instances import InstanceSpec, Tokens, make_instances
from .shard_recipe import ShardRecipe
from .survey import Chunk


@dataclasses.dataclass(frozen=True)
class Instances:
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
    waiting: Deque[concurrent.futures.Future] = deque()
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
