"""The tensors of a TensorFlow checkpoint (the V2 form, ``NAME.index`` and ``NAME.data-00000-of-00001``),
without TensorFlow.

The index is a LevelDB table: blocks of sorted keys with common beginnings left out, each with a CRC-32C,
found through a last block and a footer. Its values are Protocol Buffers (TensorFlow's tensor_bundle.proto):
the empty key has the header, every other the type, shape, place and CRC-32C of one tensor."""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from ..runs.files import existing, read_small
from .tensors import array_of

_FOOTER, _MAGIC = 48, 0xDB4775248B80FB57
# The numbers of TensorFlow's DataType.
_ELEMENTS = {
    1: 'F32',
    2: 'F64',
    3: 'I32',
    4: 'U8',
    5: 'I16',
    6: 'I8',
    9: 'I64',
    10: 'BOOL',
    14: 'BF16',
    19: 'F16',
}
Fields = dict[int, list[int | bytes]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Place of a tensor: the number of its data file and bytes there; what it is; its masked checksum."""

    kind: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def masked_checksum(data: bytes) -> int:
    """The CRC-32C of some bytes as LevelDB and TensorFlow store it: rotated by 15 bits, plus a constant."""
    checksum = google_crc32c.value(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(data: BinaryIO) -> int:
    """The number of seven bits a byte, lowest first, that comes next."""
    number = 0
    for shift in range(0, 64, 7):
        (byte,) = data.read(1)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError('a number of more than 64 bits')


def _message(data: bytes) -> Fields:
    """The fields of a Protocol Buffers message by number."""
    fields: Fields = {}
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        number, wire = divmod(_varint(stream), 8)
        if wire == 0:
            value = _varint(stream)
        elif wire in (1, 2, 5):
            size = {1: 8, 5: 4}.get(wire) or _varint(stream)
            value = stream.read(size)
            if len(value) < size:
                raise ValueError('a field beyond the end of its message')
        else:
            raise ValueError(f'a field of wire type {wire}')
        fields.setdefault(number, []).append(value)
    return fields


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the block at a place of a table."""
    block, trailer = table[offset : offset + size], table[offset + size : offset + size + 5]
    if len(trailer) < 5 or masked_checksum(block + trailer[:1]) != struct.unpack('<I', trailer[1:])[0]:
        raise ValueError(f'the block at {offset} is cut short or its checksum is wrong')
    if trailer[0]:
        raise ValueError(
            "its blocks are compressed, which TensorFlow's own are not; save the checkpoint anew"
        )
    end = len(block) - 4 - 4 * struct.unpack('<I', block[-4:])[0]
    entries, key = io.BytesIO(block), b''
    while entries.tell() < end:
        shared, own, length = (_varint(entries) for _ in range(3))
        key, value = key[:shared] + entries.read(own), entries.read(length)
        if len(key) < shared + own or entries.tell() > end:
            raise ValueError(f'an entry beyond the block at {offset}')
        yield key, value


def _entry(fields: Fields) -> Entry:
    """A tensor's place, of the message BundleEntryProto."""
    kind = _ELEMENTS.get(fields.get(1, [0])[0])
    if kind is None or 7 in fields:
        raise ValueError('is of a type that is not read, or in slices')
    sides = [
        _message(side).get(1, [0])[0] for shape in fields.get(2, []) for side in _message(shape).get(2, [])
    ]
    shard, offset, size = (int(fields.get(number, [0])[0]) for number in (3, 4, 5))
    return Entry(kind, tuple(sides), shard, offset, size, struct.unpack('<I', fields[6][0])[0])


def read_index(prefix: Path) -> tuple[dict[str, Entry], int]:
    """The tensors of a checkpoint by name, and the number of its data files; FileNotFoundError or ValueError
    if there is no index, or it is damaged or compressed.
    """
    path = Path(f'{prefix}.index')
    table = read_small(path)
    try:
        footer = table[-_FOOTER:]
        if len(footer) < _FOOTER or struct.unpack('<Q', footer[-8:])[0] != _MAGIC:
            raise ValueError('it does not end as one')
        handles = io.BytesIO(footer)  # offsets and sizes of a block of properties, and of the index
        *_, offset, size = (_varint(handles) for _ in range(4))
        values: dict[str, bytes] = {}
        read = 0
        for _, handle in _block(table, offset, size):
            handles = io.BytesIO(handle)
            offset, size = _varint(handles), _varint(handles)
            read += size
            if read > len(table):
                raise ValueError('its blocks lie over each other')
            values.update((key.decode('utf-8'), value) for key, value in _block(table, offset, size))
        if '' not in values:
            raise ValueError('it has no header')
        header = _message(values.pop(''))
        if header.get(2, [0])[0]:
            raise ValueError('its numbers are big-endian')
        entries = {}
        for name, value in values.items():
            try:
                entries[name] = _entry(_message(value))
            except (ValueError, LookupError, struct.error) as error:
                raise ValueError(f'{name!r} {error}') from error
        return entries, int(header.get(1, [1])[0])
    except Exception as error:  # whatever the parsers raise on bytes that are something else
        raise ValueError(f'{path}: not read as the index of a TensorFlow checkpoint ({error})') from error


def read_tensorflow(prefix: Path, skip: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint by name, whose files' names begin with `prefix`; those whose names are to
    be skipped are not read. FileNotFoundError or ValueError if a file is missing, cut short or damaged.
    """
    entries, shards = read_index(prefix)
    entries = {name: entry for name, entry in entries.items() if name not in skip}
    files = {
        entry.shard: existing(Path(f'{prefix}.data-{entry.shard:05d}-of-{shards:05d}'))
        for entry in entries.values()
    }
    sizes = {shard: path.stat().st_size for shard, path in files.items()}
    if sum(entry.size for entry in entries.values()) > sum(sizes.values()) or any(
        entry.offset + entry.size > sizes[entry.shard] for entry in entries.values()
    ):
        raise ValueError(f'{prefix}: its data files are shorter than its tensors; copy it again')
    arrays = {}
    for name, entry in entries.items():
        path = files[entry.shard]
        with open(path, 'rb') as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
        if masked_checksum(data) != entry.checksum:
            raise ValueError(f'{path}: {name!r}: its checksum is wrong; copy the checkpoint again')
        try:
            arrays[name] = array_of(data, entry.kind, entry.shape)
        except ValueError as error:
            raise ValueError(f'{path}: {name!r}: {error}') from error
    return arrays
