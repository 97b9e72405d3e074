"""The arrays of an MXNet parameter file, with every length checked before it is believed.

MXNet's own reader is C++ that trusts the lengths in a file; this one is for files that come from elsewhere. The form, all numbers
little-endian: 0x112 and 0 (64 bits each), the number of arrays, the arrays, the number of names, and for each its length and
its bytes. An array is a magic number and a storage type (32 bits each), the number of sides (32) and the sides (64), device type,
device number and element type (32), and the elements.
"""
from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Dict, Tuple

import numpy as np

from .foreign import array_of, element_bytes, size_of

_FILE = 0x112
_ARRAYS = (0xF993FAC9, 0xF993FACA)  # with MXNet's old meaning of empty shapes, and with NumPy's
_DENSE = 0
_ELEMENTS = ('F32', 'F64', 'F16', 'U8', 'I32', 'I8', 'I64', 'BOOL')  # by their numbers
_BFLOAT16 = 12


class _File:
    """A file whose remaining length is known, so that nothing longer is asked for."""

    def __init__(self, file: BinaryIO, size: int):
        self._file, self.left = file, size

    def bytes(self, count: int) -> bytes:
        """The next bytes; ValueError if there are fewer."""
        if not 0 <= count <= self.left:
            raise ValueError(f'{count} bytes wanted where {self.left} are left')
        self.left -= count
        return self._file.read(count)

    def numbers(self, form: str) -> Tuple[int, ...]:
        """The next numbers, in the letters of module `struct`."""
        return struct.unpack('<' + form, self.bytes(struct.calcsize('<' + form)))

    def count(self, least: int) -> int:
        """The next number, of things that have at least so many bytes each."""
        number, = self.numbers('Q')
        if number > self.left // least:
            raise ValueError(f'{number} entries stated where {self.left} bytes are left')
        return number


def _array(file: _File) -> np.ndarray:
    magic, storage, sides = file.numbers('Iii')
    if magic not in _ARRAYS or storage != _DENSE or not 1 <= sides <= 8:
        raise ValueError(f'magic number {magic:#x}, storage {storage} and {sides} sides, wanted a dense array of MXNet 1.x')
    shape = file.numbers('q' * sides)
    _, _, element = file.numbers('iii')
    if not (0 <= element < len(_ELEMENTS) or element == _BFLOAT16):
        raise ValueError(f'elements of the unknown type {element}')
    kind = 'BF16' if element == _BFLOAT16 else _ELEMENTS[element]
    if min(shape) < 0:
        raise ValueError(f'shape {shape}')
    return array_of(file.bytes(size_of(shape) * element_bytes(kind)), kind, shape)


def read_params(path: Path) -> Dict[str, np.ndarray]:
    """The named arrays of a file; a leading ``arg:`` or ``aux:`` is no part of a name.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file; if it is damaged, has sparse arrays, or its arrays have no names.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        with open(path, 'rb') as opened:
            file = _File(opened, path.stat().st_size)
            if file.numbers('QQ') != (_FILE, 0):
                raise ValueError('it does not begin as one')
            arrays = [_array(file) for _ in range(file.count(28))]
            names = [file.bytes(file.count(1)).decode('utf-8') for _ in range(file.count(8))]
        names = [name[4:] if name.startswith(('arg:', 'aux:')) else name for name in names]
        if file.left or len(names) != len(arrays) or len(set(names)) < len(names):
            raise ValueError(f'{len(arrays)} arrays, {len(set(names))} different names, {file.left} bytes too many')
    except (ValueError, struct.error) as error:
        raise ValueError(f'{path}: not read as an MXNet parameter file ({error})') from error
    return dict(zip(names, arrays))
