"""The options of learning from a teacher, which pruning and fine-tuning share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import NonNegativeFloat, PositiveFloat

from ..runs.recipe import Recipe, option
from .distillation import PARTS_OF_LOSS, STATES_ALONE, WITH_LABELS, Weights


def _listed(weights: Mapping[str, float]) -> str:
    return ','.join(f'{name}={weight:g}' for name, weight in weights.items())


class TeacherRecipe(Recipe):
    """Fields of a run that may learn from a teacher."""

    OF_TEACHER: ClassVar = ('teacher', 'teacher_weights', 'temperature')

    teacher: str | None = option('network that is learnt from, in addition to the labels', None)
    teacher_weights: dict[str, NonNegativeFloat | None] = option(
        'weights of the parts of the loss, with a teacher, such as labels=0,states=2. labels: MLM and NSP, '
        "or the loss of the task; scores: the divergence from the teacher's scores; states: the squared "
        "difference from the teacher's hidden states, over all layers; last: that of the last layer; "
        'embeddings: that between the similarities of sentences; cosines: the cosine distance between the '
        "embeddings of a sentence in both networks; relations: the divergence of the last layer's relations "
        f'between tokens, not for gates. By default {_listed(WITH_LABELS)} with labels and '
        f'{_listed(STATES_ALONE)} without; the others 0',
        dict.fromkeys(PARTS_OF_LOSS),
    )
    temperature: PositiveFloat = option(
        "both networks' scores are divided by this before they are compared", 2.0
    )

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.taught is None:
            stated = [name for name in ('teacher_weights', 'temperature') if not self.is_default(name)]
            problems += [f'{name} goes with --teacher' for name in stated]
        elif not any(getattr(self.teaching(), name) for name in PARTS_OF_LOSS):
            problems.append('all teacher_weights are 0, so nothing would be learnt')
        elif not (self.is_default('temperature') or self.teaching().scores):
            problems.append('temperature is about scores, whose weight is 0 in teacher_weights')
        if self.without_labels:
            problems += [
                f'teacher_weights {name} is about labels and scores, which recovery without labels has not'
                for name in ('labels', 'scores')
                if self.teacher_weights[name]
            ]
        return problems

    @property
    def taught(self) -> str | None:
        """The teacher; None without one."""
        return self.teacher

    @property
    def without_labels(self) -> bool:
        """Whether the network is pruned for its states: no labels rank units, train gates or weights."""
        return False

    def teaching(self) -> Weights:
        """Weights of the parts of the loss."""
        usual = STATES_ALONE if self.without_labels else WITH_LABELS
        stated = {name: weight for name, weight in self.teacher_weights.items() if weight is not None}
        weights = {**dict.fromkeys(PARTS_OF_LOSS, 0.0), **usual, **stated}
        return Weights(**weights, temperature=self.temperature)
