"""What can be said of masked tokens without reading a text: how frequent each token is."""

from __future__ import annotations

import numpy as np

from .shards import Shards

_MOST = 2**20  # masked tokens that are counted


def frequency_loss(shards: Shards) -> float:
    """The MLM loss, in nats per masked token, of guessing by how frequent each token is.

    It is the entropy of the masked tokens of some shards. A network whose held-out loss is not below it has
    learnt nothing from the tokens around a mask.

    Parameters
    ----------
    shards : Shards
        Of the held-out split; the first million masked tokens are counted.

    Raises
    ------
    FileNotFoundError, ValueError
        From reading the shards.
    """
    counts = np.zeros(shards.vocabulary_size, dtype=np.int64)
    for number in range(len(shards.files)):
        if counts.sum() >= _MOST:
            break
        fields = shards.read(number)
        tokens = fields['masked_lm_ids'][fields['masked_lm_weights'] > 0]
        counts += np.bincount(tokens.astype(np.int64), minlength=len(counts))
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())
