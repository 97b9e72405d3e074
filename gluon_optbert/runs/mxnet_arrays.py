"""Parameter files of MXNet, read, written and checked without MXNet: the one place that knows their form.

MXNet believes the sizes that a file states, so a damaged one may take all memory, and it does not notice a
disk that fills up while it closes a file. Here a size is believed if the bytes are there, and a full disk is
an OSError.

    uint64 0x112, uint64 0, uint64 n, n arrays, uint64 n, n names array: uint32 magic, int32 storage (0:
    dense), int32 d, d int64 (the shape), int32[2] device, int32 type, values name: uint64 bytes, UTF-8

All little-endian; `NDArray::Save` and `MXNDArraySave` of MXNet 1.9.1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .limits import MOST_ARRAYS, fits_memory, within

_LIST, _ARRAY, _ARRAY_NP = 0x112, 0xF993FAC9, 0xF993FACA  # the last one: with NumPy's shapes
BFLOAT16 = np.dtype([('bfloat16', np.uint16)])  # how MXNet spells it
_TYPES = {
    0: np.dtype('float32'),
    1: np.dtype('float64'),
    2: np.dtype('float16'),
    3: np.dtype('uint8'),
    4: np.dtype('int32'),
    5: np.dtype('int8'),
    6: np.dtype('int64'),
    7: np.dtype('bool'),
    12: BFLOAT16,
}
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}
_CPU = (1, 0)
_MOST_SIDES = 32  # of an array, NumPy's limit


def is_finite(values: np.ndarray) -> bool:
    """Whether an array holds numbers alone: no NaN and no infinity."""
    values = np.asarray(values)
    if values.dtype == BFLOAT16:
        return not (values.view(np.uint16) & 0x7F80 == 0x7F80).any()  # the exponent of what is no number
    return not values.size or bool(np.isfinite([values.min(), values.max()]).all())


def _list_head(count: int) -> bytes:
    """Header of a file of so many arrays."""
    return struct.pack('<QQQ', _LIST, 0, count)


def _array_head(shape: Sequence[int], dtype: np.dtype) -> bytes:
    """Header of a dense array."""
    return struct.pack(
        f'<Iii{len(shape)}qiii', _ARRAY, 0, len(shape), *shape, *_CPU, _NUMBERS[np.dtype(dtype)]
    )


def _text(name: str) -> bytes:
    """A name as it stands behind the arrays."""
    encoded = name.encode('utf-8')
    return struct.pack('<Q', len(encoded)) + encoded


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays, NumPy's or MXNet's, as `mx.nd.save` does, byte for byte."""
    with open(path, 'wb') as file:
        file.write(_list_head(len(arrays)))
        for array in arrays.values():
            array = np.ascontiguousarray(array.asnumpy() if hasattr(array, 'asnumpy') else array)
            file.write(_array_head(array.shape, array.dtype))
            file.write(array.tobytes())
        file.write(struct.pack('<Q', len(arrays)))
        for name in arrays:
            file.write(_text(name))


def check_arrays(path: Path, wanted: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
    """Refuse a parameter file that is not made of arrays of these names, shapes and types in this order, or
    holds NaN or infinity: ValueError that names the first array that is another.
    """

    def expect(expected: bytes, what: str) -> None:
        if file.read(len(expected)) != expected:
            raise ValueError(f'{path}: {what} is not the wanted one')

    with open(path, 'rb') as file:
        expect(_list_head(len(wanted)), 'the number of arrays')
        for name, (shape, dtype) in wanted.items():
            expect(_array_head(shape, dtype), f'{name} {shape}')
            if not is_finite(np.fromfile(file, dtype, math.prod(shape))):
                raise ValueError(f'{path}: {name} has values that are NaN or infinite')
        expect(struct.pack('<Q', len(wanted)), 'the number of names')
        for name in wanted:
            expect(_text(name), f'the name {name}')
        if file.read(1):
            raise ValueError(f'{path}: something stands behind the last name')


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a parameter file by name; ValueError if it is no such file or has been cut short, or its
    arrays are sparse or have no names.
    """
    path = Path(path)
    fits_memory(path)
    size = path.stat().st_size
    with open(path, 'rb') as file:
        try:
            magic, _, count = _unpack(file, '<QQQ')
            if magic != _LIST:
                raise ValueError('does not begin as one')
            within(count, MOST_ARRAYS, 'arrays', source=path.name)
            arrays = [_read_array(file, size) for _ in range(count)]
            (named,) = _unpack(file, '<Q')
            if named != count:
                raise ValueError(
                    'its arrays have no names' if named == 0 else f'{count} arrays and {named} names'
                )
            names = [_read_name(file, size) for _ in range(count)]
            if file.tell() != size or len(set(names)) < len(names):
                raise ValueError(
                    'more bytes follow its last name' if file.tell() != size else 'a name occurs twice'
                )
        except ValueError as error:  # UnicodeDecodeError is one
            raise ValueError(f'{path}: not a parameter file of MXNet ({error})') from error
    return dict(zip(names, arrays))


def _unpack(file: BinaryIO, form: str) -> tuple:
    content = file.read(struct.calcsize(form))
    if len(content) < struct.calcsize(form):
        raise ValueError('cut short')
    return struct.unpack(form, content)


def _read_array(file: BinaryIO, size: int) -> np.ndarray:
    magic, storage, sides = _unpack(file, '<Iii')
    if magic not in (_ARRAY, _ARRAY_NP) or storage != 0 or not 0 < sides <= _MOST_SIDES:
        raise ValueError(f'an array of form {magic:#x}, storage {storage} and {sides} sides')
    *shape, _, _, number = _unpack(file, f'<{sides}qiii')
    if number not in _TYPES or min(shape) < 0:
        raise ValueError(f'an array of type {number} and shape {tuple(shape)}')
    dtype, count = _TYPES[number], math.prod(shape)
    if count * dtype.itemsize > size - file.tell():
        raise ValueError('cut short')
    return np.fromfile(file, dtype, count).reshape(shape)


def _read_name(file: BinaryIO, size: int) -> str:
    (length,) = _unpack(file, '<Q')
    if length > size - file.tell():
        raise ValueError('cut short')
    return file.read(length).decode('utf-8')
