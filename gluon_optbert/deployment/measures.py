"""Measures of an export on texts: its score, and its agreement with the float32 network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..architecture.heads import SAID, Head
from ..runs.display import tracked
from ..tasks.examples import finite_number
from ..tasks.metrics import METRICS, exact_match, usual_metrics
from .instances import Instance
from .predictor import Prediction, Predictor


def measured_on_texts(
    whole: Predictor,
    export: Predictor,
    *,
    calibration: Sequence[Instance],
    labelled: Sequence[Instance],
    reduced: bool,
) -> dict[str, Any]:
    """``score`` and ``float32_score`` of an export and of the float32 network on labelled texts; in reduced
    precision also their ``agreement``, on calibration texts or else on the labelled ones.

    The labels are those that `check_labels` lets through.
    """
    head, both = whole.head, {'float32': whole, 'the export': export}
    measured: dict[str, Any] = {}
    if labelled:
        answers = [predicted(one, labelled, f'scoring {name}') for name, one in both.items()]
        measured['float32_score'], measured['score'] = (score(head, labelled, one) for one in answers)
    if reduced and calibration and not head.outputs:
        cosines = (export.encode(calibration) * whole.encode(calibration)).sum(axis=1)  # they have length 1
        measured['agreement'] = {
            'texts': len(cosines),
            'mean_cosine': float(cosines.mean()),
            'smallest_cosine': float(cosines.min()),
        }
    elif reduced and (calibration or labelled):
        if calibration:
            title = '{} on calibration text'.format
            answers = [predicted(one, calibration, title(name)) for name, one in both.items()]
        measured['agreement'] = agreement(head, *answers)
    return measured


def predicted(predictor: Predictor, instances: Sequence[Instance], title: str) -> list[Prediction]:
    """The predictions of some instances, with their number shown meanwhile."""
    return list(tracked(predictor.predict(instances), title, len(instances), unit='text'))


def check_labels(labelled: Sequence[Instance], head: Head) -> None:
    """Raise ValueError, with the line, if a label is none of the head's, or no number for a regression; or if
    a regression has a single label.
    """
    for instance in labelled:
        place, label = instance.source or 'labelled text', str(instance.label)
        stated = (label,) if head.kind == 'classification' else instance.answers
        for one in stated if head.labels else ():
            if one not in head.labels:
                raise ValueError(f'{place}: {one!r:.60} is not among the labels {", ".join(head.labels)}')
        if head.kind == 'regression':
            try:
                finite_number(label)
            except ValueError as error:
                raise ValueError(f'{place}: {error}') from error
            if len(labelled) < 2:
                raise ValueError(f'{place}: a correlation needs at least two labelled texts, found 1')


def score(head: Head, labelled: Sequence[Instance], predictions: Sequence[Prediction]) -> float:
    """The score of predictions by the head: accuracy, SQuAD's exact match, Pearson's correlation; of several
    labels and of tags the first of `usual_metrics`.

    The labels are those that `check_labels` lets through.
    """
    said = [getattr(prediction, SAID[head.kind]) for prediction in predictions]
    labels, answers = [one.label for one in labelled], [one.answers for one in labelled]
    if head.kind == 'question_answering':
        texts = [several or [str(label)] for several, label in zip(answers, labels)]
        return float(np.mean([max(exact_match(one, text) for text in own) for one, own in zip(said, texts)]))
    both = said, answers if head.kind == 'token_classification' else labels
    if head.kind == 'regression':
        both = np.array(said), np.array([float(str(label)) for label in labels])
    elif head.kind == 'multi_label':
        rows = [[[label in own for label in head.labels] for own in every] for every in (said, answers)]
        both = tuple(np.array(rows, dtype=np.int64))
    return METRICS[usual_metrics(head)[0]](*both)


def agreement(head: Head, whole: Sequence[Prediction], low: Sequence[Prediction]) -> dict[str, Any]:
    """Agreement of the predictions of an export in reduced precision with those of the float32 network: the
    number of ``texts``, and for a regression the ``mean_difference`` of the values, else the share with the
    ``same_answer`` or ``same_label``.
    """
    said = SAID[head.kind]
    pairs = [(getattr(one, said), getattr(other, said)) for one, other in zip(whole, low)]
    if head.kind == 'regression':
        return {'texts': len(low), 'mean_difference': float(np.mean([abs(one - two) for one, two in pairs]))}
    name = 'same_answer' if head.kind == 'question_answering' else 'same_label'
    return {'texts': len(low), name: float(np.mean([one == two for one, two in pairs]))}


def described(measured: Mapping[str, Any]) -> str:
    """Agreement or cosines of embeddings, as the end of a sentence."""
    if 'mean_cosine' in measured:
        return (
            f'embeddings have a cosine of {measured["mean_cosine"]:.4f} with those of float32 on average, '
            f'{measured["smallest_cosine"]:.4f} at the least'
        )
    if 'mean_difference' in measured:
        return f'values differ from those of float32 by {measured["mean_difference"]:.3g} on average'
    what = 'label' if 'same_label' in measured else 'answer'
    return f'the {what} is that of float32 for {measured["same_" + what]:.1%}'
