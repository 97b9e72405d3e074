"""A shuffle that is larger than memory: instances are scattered over files, then each file is shuffled."""

from __future__ import annotations

import math
from pathlib import Path
from typing import List

import numpy as np

from .shards import SPLITS, ShardFile, write_shard

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

    def write_shards(self, output: Path, dtype: np.dtype, instances: int) -> List[ShardFile]:
        """Shards of nearly equal size, of all buckets in their order; the buckets vanish."""
        number = math.ceil(instances / self.instances_per_shard)
        sizes = np.diff(np.arange(number + 1, dtype=np.int64) * instances // number)
        files: List[ShardFile] = []
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
