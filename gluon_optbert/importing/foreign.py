"""What the readers of foreign files share: JSON, and arrays from bytes. Whatever is wrong with a file is a
ValueError.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np

MOST_TEXT_BYTES = 1 << 26  # of a JSON file, a vocabulary or an index: ten times the largest in use
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


def size_of(shape: Tuple[int, ...]) -> int:
    """How many elements a shape has, exactly."""
    size = 1
    for side in shape:
        size *= side
    return size


def array_of(data: bytes, kind: str, shape: Tuple[int, ...]) -> np.ndarray:
    """The array in little-endian bytes; bfloat16 becomes float32, which holds the same numbers.

    Raises
    ------
    ValueError
        If the type is unknown, a side is negative, or the bytes are more or fewer than the shape wants.
    """
    if (
        len(shape) > MOST_SIDES
        or not all(isinstance(side, int) and side >= 0 for side in shape)
        or len(data) != size_of(shape) * element_bytes(kind)
    ):
        raise ValueError(f'shape {shape} of {kind} in {len(data)} bytes')
    values = np.frombuffer(data, dtype=ELEMENTS[kind])
    if kind == 'BF16':
        values = (values.astype('<u4') << 16).view('<f4')
    return values.reshape(shape)


def read_small(path: Path) -> bytes:
    """The bytes of a text file or index.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or it is larger than any that is in use.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    if path.stat().st_size > MOST_TEXT_BYTES:
        raise ValueError(f'{path}: {path.stat().st_size} bytes, which is more than any such file has')
    return path.read_bytes()


def read_json(path: Path) -> Dict[str, Any]:
    """The object in a JSON file; ValueError if it holds anything else."""
    try:
        values = json.loads(read_small(path).decode('utf-8'))
    except FileNotFoundError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({str(error) or type(error).__name__})') from error
    if not isinstance(values, dict):
        raise ValueError(f'{path}: wanted a JSON object, found {type(values).__name__}')
    return values
