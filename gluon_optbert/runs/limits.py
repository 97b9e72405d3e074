"""Limits of files of any origin: how large, deep and many they may be, so that no small file takes minutes or
gigabytes. Readers count before they build what they count.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MOST_BYTES = 1 << 26  # of a file that is read whole: ten times the largest vocabulary in use
MOST_YAML_BYTES = 1 << 19
MOST_EXPORT_BYTES = 1 << 20  # of the architecture of an export
MOST_CARD_BYTES = 1 << 20  # of a model card that is served
MOST_MANIFEST_BYTES = 1 << 28  # of shards
MOST_SHARD_BYTES = 1 << 31  # unpacked
MOST_SQUAD_BYTES = 1 << 31
LONGEST_DOCUMENT = 4_000_000  # characters; a longer text without borders counts as several documents
LONGEST_LINE = 1_000_000  # characters of a text
LONGEST_OBJECT = 1 << 26  # characters of a line of JSON
MOST_UNPACKED = 1 << 28  # bytes of an npz file's arrays
DEEPEST = 64  # values within each other in JSON
MOST_VALUES = 4_000_000  # in JSON
MOST_NODES = 100_000  # in YAML, with its aliases written out
MOST_LAYERS = 1_000  # of an architecture
MOST_WIDTH = 2**31 - 1  # of an architecture; MXNet counts in 32 bits
MOST_ARRAYS = 100_000  # in a file of arrays
MOST_INSTRUCTIONS = 2_000_000  # of a pickle


def within(found: float, most: int, what: str, *, source: object) -> None:
    """Refuse more of something than a limit: ValueError that names the source."""
    if found > most:
        raise ValueError(f'{source}: {found:,} {what}, wanted at most {most:,}')


def memory_of_machine() -> int:
    """Its bytes, without a file that is read for it."""
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def fits_memory(path: Path) -> None:
    """Refuse a file that is larger than the memory of this machine: ValueError."""
    within(path.stat().st_size, memory_of_machine(), 'bytes, more than this machine has memory', source=path)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file of any origin by name; nothing is unpickled. FileNotFoundError, or ValueError
    if it is damaged or unpacks to more than `MOST_UNPACKED` bytes.
    """
    try:
        within(path.stat().st_size, MOST_BYTES, 'bytes', source=path.name)
        return npz_arrays(path.read_bytes(), MOST_UNPACKED, source=path.name)
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever zip and npy parsers raise on bytes that are neither
        raise ValueError(f'{path}: not readable as arrays ({error})') from error


def npz_arrays(content: bytes, most: int, *, source: object) -> dict[str, np.ndarray]:
    """The arrays in the content of an npz file by name; nothing is unpickled. ValueError if they take more
    than `most` bytes, with their headers; else whatever zip and npy parsers raise.
    """
    import numpy as np  # here, so that a command's --help does not load it

    packed = io.BytesIO(content)
    with zipfile.ZipFile(packed) as archive:
        members = archive.infolist()
    within(len(members), MOST_ARRAYS, 'arrays', source=source)
    within(sum(member.file_size for member in members), most, 'bytes unpacked', source=source)
    # of others `zipfile` unpacks more than a member says it has
    if not all(member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise ValueError(f'{source}: arrays must be stored or deflated')
    with np.load(packed, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
