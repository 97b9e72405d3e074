"""Shards on disk: masked and paired instances as npz files with GluonNLP's field names, and a manifest that
vouches for them.

manifest.json  vocab.txt  train-00000.npz …  heldout-00000.npz …
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.programs import named
from ..text import tokenizer as vocabulary

FORMAT = 'gluon_optbert shards'
VERSION = 1
SPLITS = ('train', 'heldout')
MANIFEST = 'manifest.json'
VOCABULARY = 'vocab.txt'
REMAKE = f'make the shards again with {named("optbert-make-shards")}'

_SHARD_NAME = re.compile(r'(train|heldout)-[0-9]{5,9}\.npz')
_HASH = re.compile(r'[0-9a-f]{64}')
_LARGEST_MANIFEST = 2**28  # bytes
_LARGEST_SHARD = 2**31  # bytes, unpacked


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


def most_instances(row: int) -> int:
    """How many instances of `row` bytes a shard may have."""
    return _LARGEST_SHARD // row


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """One shard as the manifest lists it."""

    name: str
    instances: int
    bytes: int
    sha256: str


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
    return ShardFile(path.name, len(records), len(content), hashlib.sha256(content).hexdigest())


def _npz_problem(members: dict[str, zipfile.ZipInfo], instances: int, dtype: np.dtype) -> str | None:
    """What is wrong with an npz's table of contents, found before anything is unpacked."""
    wanted = {f'{name}.npy' for name in dtype.names}
    if set(members) != wanted:
        return f'has the fields {sorted(members)}, wanted {sorted(wanted)}'
    for name in dtype.names:
        method = members[f'{name}.npy'].compress_type
        # others' decoders raise errors of their own
        if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f'{name} is packed by method {method}, wanted stored or deflated'
        size = members[f'{name}.npy'].file_size
        if not 0 <= size - instances * dtype[name].itemsize <= 2**12:  # the difference is the field's header
            return f'{name} takes {size} bytes, wanted {instances} rows of {dtype[name].itemsize}'
    return None


def parse_shard(
    content: bytes, *, instances: int, dtype: np.dtype, vocabulary_size: int, source: str
) -> dict[str, np.ndarray]:
    """The fields of a shard, every value of which a model can take.

    Raises
    ------
    ValueError
        If it is no npz, a field is missing, has another shape or type, or has values out of range.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as npz:
            names = [member.filename for member in npz.infolist()]
            problem = (
                'names a field twice'
                if len(set(names)) < len(names)
                else _npz_problem({member.filename: member for member in npz.infolist()}, instances, dtype)
            )
            if problem:
                raise ValueError(problem)
            fields = {
                name: np.lib.format.read_array(io.BytesIO(npz.read(f'{name}.npy')), allow_pickle=False)
                for name in dtype.names
            }
        for name, values in fields.items():
            base, shape = dtype[name].base, (instances, *dtype[name].shape)
            if values.shape != shape or values.dtype != base:
                raise ValueError(f'{name} is {values.dtype} {values.shape}, wanted {base} {shape}')
        problem = _value_problem(fields, vocabulary_size)
        if problem:
            raise ValueError(problem)
    except (
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
        TypeError,
        IndexError,
        OverflowError,
        MemoryError,
        tokenize.TokenError,
    ) as error:
        raise ValueError(f'{source}: not a shard of this manifest ({error}); {REMAKE}') from error
    return fields


def _value_problem(fields: dict[str, np.ndarray], vocabulary_size: int) -> str | None:
    """What is out of range, if anything is."""
    length = fields['input_ids'].shape[1]
    valid = fields['valid_lengths'][:, np.newaxis].astype(np.int64)
    limits = (
        ('input_ids', 0, vocabulary_size - 1),
        ('masked_lm_ids', 0, vocabulary_size - 1),
        ('segment_ids', 0, 1),
        ('masked_lm_weights', 0, 1),
        ('next_sentence_labels', 0, 1),
        ('valid_lengths', 1, length),
        ('masked_lm_positions', 0, length - 1),
    )
    for name, low, high in limits:
        values = fields[name]
        if values.size and (values.min() < low or values.max() > high):
            return f'{name} from {values.min()} to {values.max()}, wanted {low} to {high}'
    beyond = (fields['masked_lm_positions'] >= valid) & (fields['masked_lm_weights'] > 0)
    if beyond.any():
        return f'a masked position beyond the valid length in row {int(np.argmax(beyond.any(axis=1)))}'
    return None


@dataclasses.dataclass(frozen=True)
class Shards:
    """One split of a directory of shards, whose manifest was checked; see `Shards.open`."""

    directory: Path
    split: str
    max_seq_length: int
    max_predictions: int
    vocabulary_size: int
    vocabulary_hash: str
    files: tuple[ShardFile, ...]
    manifest: dict[str, Any]

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        split: str = 'train',
        vocabulary_hash: str | None = None,
        verify: bool = False,
    ) -> Shards:
        """The shards of `split`, their manifest and file sizes checked; what a file holds is checked whenever
        it is read.

        Parameters
        ----------
        directory : Path
            What pretrain/make_shards.py wrote.
        split : 'train' or 'heldout'
        vocabulary_hash : str, optional
            That of the model; shards of another vocabulary are refused.
        verify : bool
            Read and check every shard now.

        Raises
        ------
        FileNotFoundError
            If the directory, the manifest or a shard is not there.
        ValueError
            If the manifest or a shard is not what it should be, or belongs to another vocabulary.
        """
        directory = Path(directory)
        manifest = _read_manifest(directory)
        problems = _manifest_problems(manifest)
        if problems:
            raise ValueError(f'{directory / MANIFEST}: {"; ".join(problems)}; {REMAKE}')
        own_hash = manifest['vocabulary']['sha256']
        if vocabulary_hash is not None and own_hash != vocabulary_hash:
            raise ValueError(
                f'{directory}: a shard made with another vocabulary (sha256 {own_hash[:12]}…, the model has '
                f'{vocabulary_hash[:12]}…); make shards with the --vocab of the model'
            )
        if split not in manifest['splits']:
            raise ValueError(
                f'{directory}: has no {split} shards, only {", ".join(manifest["splits"])}; held-out ones '
                'are made with --held-out above 0'
            )
        files = tuple(ShardFile(**entry) for entry in manifest['splits'][split]['shards'])
        shards = cls(
            directory,
            split,
            manifest['max_seq_length'],
            manifest['max_predictions'],
            manifest['vocabulary']['size'],
            own_hash,
            files,
            manifest,
        )
        if 'cased' in manifest:
            shards.vocabulary()
        for number in range(len(files)):
            shards.read(number) if verify else shards._check_size(number)
        return shards

    @property
    def instances(self) -> int:
        """How many instances the split has."""
        return sum(file.instances for file in self.files)

    def vocabulary(self) -> vocabulary.Vocabulary:
        """The vocabulary the shards were made with.

        Raises
        ------
        FileNotFoundError, ValueError
            If the file beside the shards is missing or is another, or the shards were made of text with
            another casing than it asks for.
        """
        vocab = vocabulary.read_vocabulary(self.directory / VOCABULARY)
        if vocabulary.vocabulary_hash(vocab) != self.vocabulary_hash or len(vocab) != self.vocabulary_size:
            raise ValueError(
                f'{self.directory / VOCABULARY}: is not the vocabulary of these shards; {REMAKE}'
            )
        stated = self.manifest.get('cased')
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

    def read(self, number: int) -> dict[str, np.ndarray]:
        """The fields of shard `number`, after its checksum and values were checked.

        Raises
        ------
        FileNotFoundError, ValueError
            If the shard is missing, truncated, corrupt or out of range.
        """
        file = self.files[number]
        path = self._check_size(number)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ValueError(f"{path}: corrupt, its sha256 is not the manifest's; restore it, or {REMAKE}")
        dtype = record_dtype(self.max_seq_length, self.max_predictions, self.vocabulary_size)
        return parse_shard(
            content,
            instances=file.instances,
            dtype=dtype,
            vocabulary_size=self.vocabulary_size,
            source=str(path),
        )


def _read_manifest(directory: Path) -> Any:
    path = directory / MANIFEST
    if not directory.is_dir():
        raise FileNotFoundError(
            f'{directory}: no such directory of shards; make one with {named("optbert-make-shards")}'
        )
    if not path.is_file():
        raise FileNotFoundError(f'{path}: not there, so this is no finished directory of shards; {REMAKE}')
    if path.stat().st_size > _LARGEST_MANIFEST:
        raise ValueError(f'{path}: {path.stat().st_size} bytes are no manifest; {REMAKE}')
    try:
        return json.loads(path.read_bytes().decode('utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not readable as JSON ({error}); {REMAKE}') from error


def _is_count(value: Any, low: int, high: int = 2**62) -> bool:
    return type(value) is int and low <= value <= high  # a bool is no count


def _manifest_problems(manifest: Any) -> list[str]:
    """Everything about a manifest that does not fit, as far as it can be read."""
    if not isinstance(manifest, dict) or manifest.get('format') != FORMAT:
        return ['not a manifest of shards']
    if manifest.get('version') != VERSION:
        return [f'version {manifest.get("version")!r:.80}, this program reads {VERSION}']
    problems = []
    if not _is_count(manifest.get('max_seq_length'), 4, 2**20):
        problems.append(f'max_seq_length is {manifest.get("max_seq_length")!r:.80}')
    if not _is_count(manifest.get('max_predictions'), 1, 2**20):
        problems.append(f'max_predictions is {manifest.get("max_predictions")!r:.80}')
    if not isinstance(manifest.get('cased', False), bool):
        problems.append(f'cased is {manifest["cased"]!r:.80}')
    vocab = manifest.get('vocabulary')
    if (
        not isinstance(vocab, dict)
        or not _is_count(vocab.get('size'), 1, 2**31 - 1)
        or not _is_hash(vocab.get('sha256'))
    ):
        problems.append('vocabulary must have a size and a sha256')
    splits = manifest.get('splits')
    if problems or not isinstance(splits, dict) or not splits or not set(splits) <= set(SPLITS):
        return problems or [f'splits must be some of {", ".join(SPLITS)}']
    row = record_dtype(manifest['max_seq_length'], manifest['max_predictions'], vocab['size']).itemsize
    for split, entry in splits.items():
        problem = _split_problem(split, entry, row)
        if problem:
            problems.append(f'{split}: {problem}')
    return problems


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _split_problem(split: str, entry: Any, row: int) -> str | None:
    """What is wrong with one split of a manifest whose instances take `row` bytes."""
    files = entry.get('shards') if isinstance(entry, dict) else None
    if not isinstance(files, list) or not files:
        return 'lists no shards'
    seen = set()
    for file in files:
        if not isinstance(file, dict) or set(file) != {field.name for field in dataclasses.fields(ShardFile)}:
            return f'a shard is listed as {str(file)[:80]!r}'
        name = file['name']
        if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name) or not name.startswith(f'{split}-'):
            return f'{str(name)[:80]!r} is not the name of a shard'
        if name in seen:
            return f'{name} is listed twice'
        seen.add(name)
        if not (
            _is_count(file['instances'], 1, most_instances(row))
            and _is_count(file['bytes'], 1, 2 * _LARGEST_SHARD)
            and _is_hash(file['sha256'])
        ):
            return f'{name} needs instances, bytes and a sha256 that a shard can have'
    total = sum(file['instances'] for file in files)
    if entry.get('instances') != total:
        return f'says {entry.get("instances")!r} instances, its shards have {total}'
    return None
