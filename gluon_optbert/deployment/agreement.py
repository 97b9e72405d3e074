"""How often an export in reduced precision says what the float32 network says, on texts of the user."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np

from .instances import Instance
from .predictor import Predictor


def agreement(low: Predictor, whole: Predictor, instances: Sequence[Instance]) -> Dict[str, Any]:
    """How far two predictors of one network agree.

    Parameters
    ----------
    low, whole : Predictor
        Of the export in reduced precision, and of the float32 network.
    instances : sequence of Instance

    Returns
    -------
    dict
        ``texts``, their number. For a classification ``same_label``, for question answering ``same_answer``:
        the shares of the texts. For a regression ``mean_difference`` of the values. For an encoder
        ``mean_cosine`` and ``smallest_cosine`` between embeddings (the mean of the tokens).
    """
    count = {'texts': len(instances)}
    if not low.head.outputs:
        cosines = (low.encode(instances) * whole.encode(instances)).sum(axis=1)
        return {**count, 'mean_cosine': float(cosines.mean()), 'smallest_cosine': float(cosines.min())}
    pairs = list(zip(low.predict(instances), whole.predict(instances)))
    if low.head.kind == 'regression':
        differences = [abs(one.value - other.value) for one, other in pairs]
        return {**count, 'mean_difference': float(np.mean(differences))}
    if low.head.kind == 'question_answering':
        return {**count, 'same_answer': float(np.mean([one.text == other.text for one, other in pairs]))}
    return {**count, 'same_label': float(np.mean([one.label == other.label for one, other in pairs]))}


def described(measured: Dict[str, Any]) -> str:
    """What `agreement` measured, as the end of a sentence."""
    if 'mean_cosine' in measured:
        return (
            f'embeddings have a cosine of {measured["mean_cosine"]:.4f} with those of float32 on average, '
            f'{measured["smallest_cosine"]:.4f} at the least'
        )
    if 'mean_difference' in measured:
        return f'values differ from those of float32 by {measured["mean_difference"]:.3g} on average'
    what = 'label' if 'same_label' in measured else 'answer'
    return f'the {what} is that of float32 for {measured["same_" + what]:.1%}'
