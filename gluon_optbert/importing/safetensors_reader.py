"""The tensors of a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import numpy as np
import safetensors

from .foreign import array_of, existing


def read_safetensors(path: Path) -> Dict[str, np.ndarray]:
    """The tensors of one file by name.

    Raises
    ------
    FileNotFoundError, ValueError
        As `existing`, and if its header does not describe it.
    """
    path = existing(path)
    try:
        return {
            name: array_of(entry['data'], entry['dtype'], tuple(entry['shape']))
            for name, entry in safetensors.deserialize(path.read_bytes())
        }
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        raise ValueError(f'{path}: not read as safetensors ({error})') from error
