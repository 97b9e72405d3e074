"""Shards on disk: masked and paired instances as npz files with GluonNLP's field names, and a manifest that
vouches for them.

manifest.json  vocab.txt  train-00000.npz …  heldout-00000.npz …

Everything that is read is checked: the manifest against a model, each shard against its checksum and the
ranges of its fields, and nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..runs.files import MANIFEST, checked, read_sealed
from ..runs.limits import MOST_MANIFEST_BYTES, MOST_SHARD_BYTES, npz_arrays
from ..runs.programs import named
from . import tokenizer as vocabulary

FORMAT = 'gluon_optbert shards'
VERSION = 1
SPLITS = ('train', 'heldout')
VOCABULARY = 'vocab.txt'
_LONGEST_HEADER = 2**12  # bytes of an array in a file
REMAKE = f'make the shards again with {named("optbert-make-shards")}'

Count = Annotated[int, Field(ge=1, lt=2**62)]
Sha256 = Annotated[str, Field(pattern='^[0-9a-f]{64}$')]


def record_dtype(max_seq_length: int, max_predictions: int, vocabulary_size: int) -> np.dtype:
    """One instance: GluonNLP's fields, padded to L = `max_seq_length` and M = `max_predictions`, in few
    bytes.
    """
    ids = np.uint16 if vocabulary_size <= 2**16 else np.int32
    places = np.uint16 if max_seq_length < 2**16 else np.int32
    return np.dtype(
        [
            ('input_ids', ids, (max_seq_length,)),
            ('segment_ids', np.uint8, (max_seq_length,)),
            ('valid_lengths', places),
            ('masked_lm_positions', places, (max_predictions,)),
            ('masked_lm_ids', ids, (max_predictions,)),
            ('masked_lm_weights', np.uint8, (max_predictions,)),
            ('next_sentence_labels', np.uint8),
        ]
    )


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class ShardFile(_Entry, extra='forbid'):
    """One shard as the manifest lists it."""

    name: str = Field(pattern=r'^(train|heldout)-[0-9]{5,9}\.npz$')
    instances: Count
    bytes: Annotated[int, Field(ge=1, le=2 * MOST_SHARD_BYTES)]
    sha256: Sha256


class SplitEntry(_Entry):
    """The shards of one split."""

    instances: Count
    shards: list[ShardFile] = Field(min_length=1)


class VocabularyEntry(_Entry):
    """Vocabulary of the ids in the shards."""

    size: Annotated[int, Field(ge=1, lt=2**31)]
    sha256: Sha256


class Manifest(_Entry):
    """Manifest of a directory of shards; `make_shards` adds the versions of libraries."""

    format: Literal['gluon_optbert shards']
    version: Literal[1]
    max_seq_length: Annotated[int, Field(ge=4, le=2**20)]
    max_predictions: Annotated[int, Field(ge=1, le=2**20)]
    vocabulary: VocabularyEntry
    splits: dict[Literal['train', 'heldout'], SplitEntry] = Field(min_length=1)
    cased: bool | None = None
    next_sentence: bool = True
    recipe: dict[str, Any] = {}

    @model_validator(mode='after')
    def _check_shards(self) -> Manifest:
        most = MOST_SHARD_BYTES // self.dtype.itemsize
        for split, entry in self.splits.items():
            names = [file.name for file in entry.shards]
            if len(set(names)) < len(names) or not all(name.startswith(f'{split}-') for name in names):
                raise ValueError(f'{split}: a shard is listed twice, or is of another split')
            if max(file.instances for file in entry.shards) > most:
                raise ValueError(f'{split}: a shard has more than {most} instances')
            if sum(file.instances for file in entry.shards) != entry.instances:
                raise ValueError(f'{split}: {entry.instances} instances are not those of its shards')
        return self

    @property
    def dtype(self) -> np.dtype:
        """Of one record."""
        return record_dtype(self.max_seq_length, self.max_predictions, self.vocabulary.size)


def write_shard(path: Path, records: np.ndarray) -> ShardFile:
    """Write `records` (of `record_dtype`) as one uncompressed npz; equal records give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, 'w') as npz:  # not np.savez, whose headers differ between versions of Python
        for name in records.dtype.names:
            field = io.BytesIO()
            np.lib.format.write_array(field, np.ascontiguousarray(records[name]), allow_pickle=False)
            npz.writestr(zipfile.ZipInfo(f'{name}.npy'), field.getvalue())
    content = packed.getvalue()
    path.write_bytes(content)
    return ShardFile(
        name=path.name, instances=len(records), bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
    )


def _unpacked(content: bytes, instances: int, dtype: np.dtype) -> np.ndarray:
    """The records in an npz, which unpacks to no more than they take."""
    most = instances * dtype.itemsize + len(dtype.names) * _LONGEST_HEADER
    arrays = npz_arrays(content, most, source='the archive')
    if sorted(arrays) != sorted(dtype.names):
        raise ValueError(f'has the fields {list(arrays)!r:.200}')
    records = np.empty(instances, dtype)
    for name in dtype.names:
        values, field = arrays.pop(name), records[name]
        if values.shape != field.shape or values.dtype != field.dtype:
            raise ValueError(f'{name} is {values.dtype} {values.shape}, wanted {field.dtype} {field.shape}')
        field[...] = values
    return records


def _check_values(records: np.ndarray, vocabulary_size: int) -> None:
    """Raise ValueError if a model could not take a value."""
    length = records['input_ids'].shape[1]
    limits = {
        'input_ids': (0, vocabulary_size - 1),
        'masked_lm_ids': (0, vocabulary_size - 1),
        'segment_ids': (0, 1),
        'masked_lm_weights': (0, 1),
        'next_sentence_labels': (0, 1),
        'valid_lengths': (1, length),
        'masked_lm_positions': (0, length - 1),
    }
    for name, (low, high) in limits.items():
        values = records[name]
        if values.min() < low or values.max() > high:
            raise ValueError(f'{name} from {values.min()} to {values.max()}, wanted {low} to {high}')
    valid = records['valid_lengths'][:, np.newaxis]
    if ((records['masked_lm_positions'] >= valid) & (records['masked_lm_weights'] > 0)).any():
        raise ValueError('a masked position beyond the valid length')


@dataclasses.dataclass(frozen=True)
class Shards:
    """One split of a directory of shards, whose manifest was checked; see `Shards.open`."""

    directory: Path
    split: str
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path, *, split: str = 'train', vocabulary_hash: str | None = None) -> Shards:
        """The shards of `split`, their manifest and file sizes checked; what a file holds is checked whenever
        it is read.

        FileNotFoundError if the directory, the manifest or a shard is not there; ValueError if the manifest
        or the size of a shard is not what it should be, or the vocabulary is not that of the model, whose
        hash is given.
        """
        directory = Path(directory)
        path = directory / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(f'{path}: not there, so this is no directory of shards; {REMAKE}')
        values = read_sealed(path, most_bytes=MOST_MANIFEST_BYTES)
        if values.get('format', FORMAT) != FORMAT:
            raise ValueError(
                f'{path}: this is {values["format"]!r:.80}, so this is no directory of shards; {REMAKE}'
            )
        try:
            manifest = checked(Manifest, values, source=path)
        except ValueError as error:
            raise ValueError(f'{error}; {REMAKE}') from error
        own = manifest.vocabulary.sha256
        if vocabulary_hash not in (None, own):
            raise ValueError(
                f'{directory}: a shard made with another vocabulary (sha256 {own[:12]}…, the model '
                f'has {vocabulary_hash[:12]}…); make shards with the --vocab of the model'
            )
        if split not in manifest.splits:
            raise ValueError(
                f'{directory}: has no {split} shards, only {", ".join(manifest.splits)}; held-out ones '
                'are made with --held-out above 0'
            )
        shards = cls(directory, split, manifest)
        if manifest.cased is not None:
            shards.vocabulary()
        for number in range(len(shards.files)):
            shards._check_size(number)
        return shards

    @property
    def next_sentence(self) -> bool:
        """Whether instances are pairs for next-sentence prediction, and not single segments."""
        return self.manifest.next_sentence

    @property
    def files(self) -> list[ShardFile]:
        """Those of the split."""
        return self.manifest.splits[self.split].shards

    @property
    def instances(self) -> int:
        """Number of instances of the split."""
        return self.manifest.splits[self.split].instances

    def vocabulary(self) -> vocabulary.Vocabulary:
        """The vocabulary the shards were made with; FileNotFoundError or ValueError if the file beside the
        shards is missing or is another, or the shards were made of text with another casing than it asks for.
        """
        path, own, stated = self.directory / VOCABULARY, self.manifest.vocabulary, self.manifest.cased
        vocab = vocabulary.read_vocabulary(path)
        if vocabulary.vocabulary_hash(vocab) != own.sha256 or len(vocab) != own.size:
            raise ValueError(f'{path}: is not the vocabulary of these shards; {REMAKE}')
        cased, evidence = vocabulary.casing_of(vocab)
        if None not in (stated, cased) and stated != cased:
            raise ValueError(
                f'{self.directory}: made of text that {"kept" if stated else "lost"} its capitals and '
                f'accents, yet the vocabulary is {"cased" if cased else "uncased"}: {evidence}; {REMAKE}'
            )
        return vocab

    def _check_size(self, number: int) -> Path:
        file = self.files[number]
        path = self.directory / file.name
        if not path.is_file():
            raise FileNotFoundError(
                f'{path}: the manifest lists this shard and it is not there; restore it, or {REMAKE}'
            )
        size = path.stat().st_size
        if size != file.bytes:
            raise ValueError(
                f'{path}: {size} bytes, the manifest says {file.bytes}: truncated or overwritten; '
                f'restore it, or {REMAKE}'
            )
        return path

    def read(self, number: int) -> np.ndarray:
        """The records (of `record_dtype`) of shard `number`, after its checksum and values were checked;
        FileNotFoundError or ValueError if the shard is missing, truncated, corrupt or out of range.
        """
        file = self.files[number]
        path = self._check_size(number)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ValueError(f"{path}: corrupt, its sha256 is not the manifest's; restore it, or {REMAKE}")
        try:
            records = _unpacked(content, file.instances, self.manifest.dtype)
            _check_values(records, self.manifest.vocabulary.size)
        except Exception as error:  # a damaged archive or header raises errors of a dozen kinds
            raise ValueError(f'{path}: not a shard of this manifest ({error}); {REMAKE}') from error
        return records
