"""What can be said of masked tokens without reading a text: how frequent each token is."""

from __future__ import annotations

import numpy as np

from .shards import Shards

_MOST = 2**20  # masked tokens that are counted, of either split
_UNSEEN = 0.1  # how often a token counts as seen before anything is counted


def frequency_loss(train: Shards, heldout: Shards) -> float:
    """The MLM loss, in nats per masked token, of guessing by how frequent each token is.

    The frequencies are those of masked tokens to train on, the guesses those of held-out ones. A network
    whose held-out loss is not below it has learnt nothing from the tokens around a mask.

    Parameters
    ----------
    train, heldout : Shards
        With one vocabulary; the first million masked tokens of each are counted.

    Raises
    ------
    FileNotFoundError, ValueError
        From reading the shards.
    """
    frequencies = _counts(train) + _UNSEEN
    wanted = _counts(heldout)
    losses = np.log(frequencies.sum()) - np.log(frequencies)
    return float(losses @ wanted / max(1, wanted.sum()))


def _counts(shards: Shards) -> np.ndarray:
    """How often each token is masked, shape (vocabulary,)."""
    counts = np.zeros(shards.vocabulary_size, dtype=np.int64)
    for number in range(len(shards.files)):
        if counts.sum() >= _MOST:
            break
        fields = shards.read(number)
        tokens = fields['masked_lm_ids'][fields['masked_lm_weights'] > 0]
        counts += np.bincount(tokens.astype(np.int64), minlength=len(counts))
    return counts
