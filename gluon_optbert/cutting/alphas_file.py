"""The gates of a round as a file, ``alphas.npz``: a vector for each width key.

Where alpha_h stands decides how it is folded. With the h gate ``table5`` it has another key, so that a
program that expects the other place refuses the file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Dict, Tuple

import numpy as np

from ..architecture.parameters import ALPHA_H, Alphas


def packed_alphas(alphas: Alphas, *, h_gate: str) -> bytes:
    """The bytes of an ``alphas.npz``.

    Parameters
    ----------
    alphas : mapping of width key to np.ndarray, shape (width,)
    h_gate : str
        Where alpha_h stands, one of `H_GATES`.
    """
    packed = io.BytesIO()
    np.savez(packed, **{ALPHA_H[h_gate] if key == 'h' else key: alpha for key, alpha in alphas.items()})
    return packed.getvalue()


def read_alphas(path: Path) -> Tuple[Dict[str, np.ndarray], str]:
    """The gate vectors of an ``alphas.npz`` by width key, and where alpha_h stands.

    Raises
    ------
    FileNotFoundError
    ValueError
        If the file is no such file.
    """
    try:
        with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as arrays:
            alphas = {key: arrays[key] for key in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever zip and npy parsers raise on bytes that are neither
        raise ValueError(f'{path}: not readable as gate vectors ({error})') from error
    h_gate = next((name for name, key in ALPHA_H.items() if key in alphas), 'stream')
    return {'h' if key == ALPHA_H[h_gate] else key: alpha for key, alpha in alphas.items()}, h_gate
