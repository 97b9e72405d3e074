"""Cut the tokens that a vocabulary loses out of the tensors: pure functions on arrays."""

from __future__ import annotations

import dataclasses
from typing import Dict, Tuple

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import Parameters, check_parameters, parameter_table

TOKENS = ('vocab_size',)  # the side of a tensor that runs through the tokens


def cut_tokens(
    parameters: Parameters, architecture: Architecture, kept: np.ndarray, head: Head = PRETRAINING
) -> Tuple[Dict[str, np.ndarray], Architecture]:
    """Keep some tokens in every tensor that has a side of tokens: the embedding, and the biases of MLM.

    Parameters
    ----------
    parameters : mapping of name to np.ndarray
        As `network_shapes` lists them.
    architecture : Architecture
    kept : np.ndarray of int, shape (tokens,)
        The numbers of the tokens that stay, in their new order; all different, at least one.
    head : Head

    Returns
    -------
    parameters : dict of name to np.ndarray
        Copies where something was cut, else the arrays themselves.
    architecture : Architecture
        The same but for its `vocab_size`.

    Raises
    ------
    ValueError
        If the parameters do not fit the architecture, or `kept` does not.
    """
    check_parameters(parameters, architecture, head)
    kept = np.asarray(kept)
    size = architecture.vocab_size
    if kept.ndim != 1 or not len(kept) or kept.dtype.kind not in 'iu':
        raise ValueError(f'tokens: wanted a list of numbers, found {kept.dtype} {kept.shape}')
    if kept.min() < 0 or kept.max() >= size or len(np.unique(kept)) < len(kept):
        raise ValueError(
            f'tokens: wanted different numbers from 0 to {size - 1}, found {len(kept)} from {kept.min()} to '
            f'{kept.max()}, {len(np.unique(kept))} of them different'
        )
    left = {}
    for name, spec in parameter_table(architecture, head).items():
        value = np.asarray(parameters[name])
        for side, axis in enumerate(spec.axes):
            if axis == TOKENS:
                value = np.take(value, kept, axis=side)
        left[name] = value
    return left, dataclasses.replace(architecture, vocab_size=len(kept))
