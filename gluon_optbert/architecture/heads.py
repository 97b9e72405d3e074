"""What stands on the encoder: the heads of pre-training, or the head of one task."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping, Tuple

KINDS = ('pretraining', 'classification', 'regression', 'question_answering')


@dataclasses.dataclass(frozen=True)
class Head:
    """The outputs of a network (Devlin et al., 2018, section 4 and Figure 4).

    Parameters
    ----------
    kind : str
        One of `KINDS`. ``pretraining`` scores the vocabulary at masked tokens and the next sentence;
        ``classification`` scores labels and ``regression`` gives one number, both from the pooled output;
        ``question_answering`` scores every token as the start and as the end of an answer.
    labels : tuple of str
        Of a classification, in the order of its scores.
    task : str
        What it was trained for, e.g. ``SST-2``.

    Raises
    ------
    ValueError
        If the kind is unknown, or the labels do not go with it.
    """

    kind: str = 'pretraining'
    labels: Tuple[str, ...] = ()
    task: str = ''

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f'head: kind must be one of {", ".join(KINDS)}, found {self.kind!r}')
        if (len(self.labels) > 1) != (self.kind == 'classification') or len(set(self.labels)) < len(
            self.labels
        ):
            raise ValueError(
                f'head: a classification has two different labels or more and no other head has any, found '
                f'{self.kind} with {", ".join(self.labels) or "none"}'
            )

    @property
    def outputs(self) -> int:
        """Scores of an instance, or of a token for question answering; 0 for pre-training, whose scores are
        the vocabulary's.
        """
        return {'classification': len(self.labels), 'regression': 1, 'question_answering': 2}.get(
            self.kind, 0
        )

    @property
    def pooled(self) -> bool:
        """Whether the head reads the pooled output."""
        return self.kind != 'question_answering'

    def to_dict(self) -> Dict[str, Any]:
        """The head as JSON values."""
        return {'kind': self.kind, 'labels': list(self.labels), 'task': self.task}

    @classmethod
    def from_dict(cls, values: Any, *, source: str = 'head') -> Head:
        """The inverse of `to_dict`; raises ValueError if the values are something else."""
        wanted = {'kind': str, 'labels': list, 'task': str}
        if (
            not isinstance(values, Mapping)
            or set(values) != set(wanted)
            or not all(isinstance(values[name], kind) for name, kind in wanted.items())
            or not all(isinstance(label, str) for label in values['labels'])
        ):
            raise ValueError(f'{source}: wanted kind, labels and task, found {values!r:.200}')
        return cls(values['kind'], tuple(values['labels']), values['task'])


PRETRAINING = Head()
