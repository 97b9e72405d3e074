"""Arrays of foreign files: their bytes, safetensors, and checkpoints in several files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors

from ..runs.files import existing, read_json

MOST_SIDES = 8  # of an array
# Element types by their names in safetensors, little-endian; bfloat16 is the upper half of a float32.
ELEMENTS = {
    'F64': '<f8',
    'F32': '<f4',
    'F16': '<f2',
    'BF16': '<u2',
    'I64': '<i8',
    'I32': '<i4',
    'I16': '<i2',
    'I8': '<i1',
    'U8': '<u1',
    'BOOL': '?',
}


def element_bytes(kind: str) -> int:
    """The size of one element; ValueError if there is no such type."""
    if kind not in ELEMENTS:
        raise ValueError(f'elements of type {kind}, wanted one of {", ".join(ELEMENTS)}')
    return np.dtype(ELEMENTS[kind]).itemsize


def array_of(data: bytes, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array in little-endian bytes; bfloat16 becomes float32, which holds the same numbers. ValueError if
    the type is unknown, a side is negative, or the bytes are more or fewer than the shape wants.
    """
    if (
        len(shape) > MOST_SIDES
        or not all(isinstance(side, int) and side >= 0 for side in shape)
        or len(data) != math.prod(shape) * element_bytes(kind)
    ):
        raise ValueError(f'shape {shape} of {kind} in {len(data)} bytes')
    values = np.frombuffer(data, dtype=ELEMENTS[kind])
    if kind == 'BF16':
        values = (values.astype('<u4') << 16).view('<f4')
    return values.reshape(shape)


def read_sharded(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The tensors of the files that an index names, and of no others: its ``weight_map`` gives the name of a
    file beside it for every tensor. FileNotFoundError or ValueError if a file is missing or damaged, is not
    beside the index, or has other tensors than the index says.
    """
    index = Path(index)
    places = read_json(index).get('weight_map')
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(file, str) and Path(file).name == file for file in places.values())
    ):
        raise ValueError(f'{index}: weight_map must give a file beside it for every tensor')
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(places.values())):
        part = read(index.parent / file)
        wanted = {name for name, place in places.items() if place == file}
        if part.keys() != wanted:
            raise ValueError(
                f'{index.parent / file}: its tensors are not those of {index.name}: '
                f'{", ".join(map(repr, sorted(part.keys() ^ wanted)))}'
            )
        arrays.update(part)
    return arrays


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of one file by name; FileNotFoundError or ValueError as `existing`, and if its header does
    not describe it.
    """
    path = existing(path)
    try:
        return {
            name: array_of(entry['data'], entry['dtype'], tuple(entry['shape']))
            for name, entry in safetensors.deserialize(path.read_bytes())
        }
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        raise ValueError(f'{path}: not read as safetensors ({error})') from error
