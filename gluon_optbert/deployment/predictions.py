"""What a network predicts of a text: a label, a value or an answer."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Union

from ..tasks.squad import Answer
from .instances import Instance


@dataclasses.dataclass(frozen=True)
class Label:
    """A label, its name for people, and the probabilities of all labels."""

    label: str
    probabilities: Dict[str, float]
    name: str = ''


@dataclasses.dataclass(frozen=True)
class Value:
    """The value of a regression."""

    value: float


Prediction = Union[Label, Value, Answer]


def record(instance: Instance, prediction: Prediction) -> Dict[str, Any]:
    """A prediction with the text that it is of, as JSON values.

    A sentence is ``text``, the other one of a pair ``pair``. A question is ``question``; its context, which
    may be long, is left out. ``id`` is what the file calls the instance, if it does.
    """
    known = {} if instance.id is None else {'id': instance.id}
    if isinstance(prediction, Answer):
        return {**known, 'question': instance.first, **dataclasses.asdict(prediction)}
    texts = {'text': instance.first, **({} if instance.second is None else {'pair': instance.second})}
    if isinstance(prediction, Value):
        return {**known, **texts, 'value': prediction.value}
    return {
        **known,
        **texts,
        'label': prediction.label,
        'name': prediction.name,
        'probabilities': prediction.probabilities,
    }
