"""Parameter files of MXNet, read and written without MXNet.

MXNet believes the sizes that a file states, so a damaged one may take all memory, and it does not notice a
disk that fills up while it closes a file. Here a size is believed if the bytes are there, and a full disk is
an OSError.

    uint64 0x112, uint64 0, uint64 n, n arrays, uint64 n, n names array: uint32 magic, int32 storage (0:
    dense), int32 d, d int64 (the shape), int32[2] device, int32 type, values name: uint64 bytes, UTF-8

All little-endian; `NDArray::Save` and `MXNDArraySave` of MXNet 1.9.1.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Dict, Mapping

import numpy as np

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


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays, NumPy's or MXNet's, as `mx.nd.save` does, byte for byte."""
    with open(path, 'wb') as file:
        file.write(struct.pack('<QQQ', _LIST, 0, len(arrays)))
        for array in arrays.values():
            array = np.ascontiguousarray(array.asnumpy() if hasattr(array, 'asnumpy') else array)
            file.write(
                struct.pack(
                    f'<Iii{array.ndim}qiii', _ARRAY, 0, array.ndim, *array.shape, *_CPU, _NUMBERS[array.dtype]
                )
            )
            file.write(array.tobytes())
        file.write(struct.pack('<Q', len(arrays)))
        for name in arrays:
            encoded = name.encode('utf-8')
            file.write(struct.pack('<Q', len(encoded)) + encoded)


def read_arrays(path: Path) -> Dict[str, np.ndarray]:
    """The named arrays of a parameter file of this package, as `read_named`; tied duplicates of the decoder
    are left out.
    """
    return {name: array for name, array in read_named(path).items() if name != 'decoder.3.weight'}


def read_named(path: Path) -> Dict[str, np.ndarray]:
    """All arrays of a parameter file by name.

    Raises
    ------
    ValueError
        If it is no such file or has been cut short, its arrays are sparse or have no names.
    """
    size = os.path.getsize(path)
    with open(path, 'rb') as file:
        try:
            magic, _, count = _unpack(file, '<QQQ')
            if magic != _LIST:
                raise ValueError('does not begin as one')
            arrays = [_read_array(file, size) for _ in range(min(count, size))]
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
