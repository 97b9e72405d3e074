"""The tensors of safetensors files, one or several with an index."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import numpy as np
import safetensors

from .foreign import array_of, read_json


def read_safetensors(path: Path) -> Dict[str, np.ndarray]:
    """The tensors of one file by name.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file, or its header does not describe it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        return {
            name: array_of(entry['data'], entry['dtype'], tuple(entry['shape']))
            for name, entry in safetensors.deserialize(path.read_bytes())
        }
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        raise ValueError(f'{path}: not read as safetensors ({error})') from error


def read_sharded_safetensors(index: Path) -> Dict[str, np.ndarray]:
    """The tensors of the files that an index names, and of no others.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or damaged, is not beside the index, or has other tensors than the index says.
    """
    index = Path(index)
    places = read_json(index).get('weight_map')
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(file, str) and Path(file).name == file for file in places.values())
    ):
        raise ValueError(f'{index}: weight_map must give a file beside it for every tensor')
    arrays = {}
    for file in sorted(set(places.values())):
        found = read_safetensors(index.parent / file)
        wanted = {name for name, place in places.items() if place == file}
        if found.keys() != wanted:
            raise ValueError(
                f'{index.parent / file}: its tensors are not those of {index.name}: '
                f'{", ".join(map(repr, sorted(found.keys() ^ wanted)))}'
            )
        arrays.update(found)
    return arrays
