"""The outputs on the encoder: the heads of pre-training, or the head of one task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..runs.files import checked
from .embedding import Embedding

KINDS = ('pretraining', 'classification', 'regression', 'question_answering')
KINDS += ('multi_label', 'token_classification')
OF_LABELS = ('classification', 'multi_label', 'token_classification')
SAID = {  # what a prediction says, by its key in JSON lines
    'classification': 'label',
    'multi_label': 'labels',
    'token_classification': 'tags',
    'regression': 'value',
    'question_answering': 'text',
}


@dataclasses.dataclass(frozen=True)
class Head:
    """The outputs of a network (Devlin et al., 2018, section 4 and Figure 4).

    Parameters
    ----------
    kind : str
        One of `KINDS`. ``pretraining`` scores the vocabulary at masked tokens and the next sentence;
        ``classification`` scores labels and ``regression`` gives one number, both from the pooled output;
        ``question_answering`` scores every token as the start and as the end of an answer. ``multi_label``
        scores labels of which any number may be right, from the pooled output; ``token_classification``
        scores labels for every token.
    labels : tuple of str
        Of a kind of `OF_LABELS`, in the order of its scores.
    task : str
        What it was trained for, e.g. ``SST-2``. Empty if not known.
    names : tuple of str
        Of the labels, for people: ``negative`` and ``positive`` where the labels are 0 and 1. Empty if labels
        need none.
    columns : tuple of str
        Of a data file of the task: that of the text or those of both texts, then that of the label. Empty if
        not known.
    embedding : Embedding
        How an encoder makes one vector of a text; a task has none of its own.

    Two heads are equal whatever their names, columns and embeddings are: a network with the heads of
    pre-training is one of its encoder, too.

    Raises
    ------
    ValueError
        If the kind is unknown, or the labels or names do not go with it.
    """

    kind: str = 'pretraining'
    labels: tuple[str, ...] = ()
    task: str = ''
    names: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    columns: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    embedding: Embedding = dataclasses.field(default=Embedding(), compare=False)

    def __post_init__(self):
        def listed(words: tuple[str, ...]) -> str:
            return f'{", ".join(map(repr, words)) or "none":.200}'

        if self.kind not in KINDS:
            raise ValueError(f'head: kind must be one of {", ".join(KINDS)}, found {self.kind!r}')
        distinct = len(set(self.labels)) == len(self.labels)
        if (len(self.labels) > 1) != (self.kind in OF_LABELS) or not distinct:
            raise ValueError(
                'head: a classification has two different labels or more and other heads have none, found '
                f'{self.kind} with {listed(self.labels)}'
            )
        if self.names and not len(set(self.names)) == len(self.names) == len(self.labels):
            raise ValueError(
                f'head: {len(self.labels)} labels have as many different names, or none, found '
                f'{listed(self.names)}'
            )
        if self.outputs and self.embedding != Embedding():
            raise ValueError(f'head: {self.kind} has no embedding of its own, found {self.embedding}')
        if self.columns and len(self.columns) not in (2, 3):
            raise ValueError(
                f'head: columns are one or two of text and one of labels, found {listed(self.columns)}'
            )

    def name_of(self, label: str) -> str:
        """The name of a label; the label itself if it has none."""
        return dict(zip(self.labels, self.names)).get(label, label)

    @property
    def numbers(self) -> dict[str, int]:
        """The row of every label in the scores, by the label, its name, and either in small letters.

        Transformers' ``LABEL_0`` and so on are numbers.
        """
        words = (self.labels, self.names, map(str.casefold, self.labels), map(str.casefold, self.names))
        rows: dict[str, int] = {}
        for spelling in words:
            for row, word in enumerate(spelling):
                rows.setdefault(word, row)
        unnamed = self.labels == tuple(f'LABEL_{row}' for row in range(len(self.labels)))
        return {**rows, **({str(row): row for row in range(len(self.labels))} if unnamed else {})}

    def named(self, pairs: Sequence[str]) -> Head:
        """The head with labels and their names by ``name=label``, or ``label=name`` where these are the words
        that it knows; all of its labels must be there.

        Raises
        ------
        ValueError
            If it is another label, or a pair is none.
        """
        names, marks, labels = zip(*(pair.partition('=') for pair in pairs))
        if not {*self.labels} <= {*labels} and {*self.labels} <= {*names}:
            names, labels = labels, names
        if not all(marks) or not self.labels or not set(self.labels) <= set(labels):
            raise ValueError(
                f'--labels is name=label for each of the labels {", ".join(self.labels) or "of a task"}, '
                f'found {",".join(pairs)}'
            )
        return dataclasses.replace(self, labels=labels, names=names)

    def of_another_task(self, other: Head) -> bool:
        """Whether both heads say of which task they are, and it is not the same."""
        tasks = {''.join(filter(str.isalnum, head.task.lower())) for head in (self, other)} - {''}
        return len(tasks) > 1

    def rows_in(self, other: Head) -> list[int] | None:
        """The row of each label in the scores of another head, by the label or by its name, without regard to
        capitals; None if that is of another kind or task, or not every label has one row of its own there.
        """
        if self.kind != other.kind or len(self.labels) != len(other.labels) or self.of_another_task(other):
            return None
        rows, numbers = [], other.numbers
        for label, name in zip(self.labels, self.names or self.labels):
            words = {label, name}
            words = words & numbers.keys() or {word.casefold() for word in words} & numbers.keys()
            rows.append({numbers[word] for word in words})
        found = [row for places in rows for row in places]
        return found if all(len(places) == 1 for places in rows) and len({*found}) == len(found) else None

    @property
    def outputs(self) -> int:
        """Scores of an instance, or of a token where the head is not `pooled`; 0 for pre-training, whose
        scores are the vocabulary's.
        """
        return {'regression': 1, 'question_answering': 2}.get(self.kind, len(self.labels))

    def sizes(self) -> dict[str, int]:
        """The lengths that belong to the head: its ``outputs``, and the units of every dense layer of the
        embedding, ``dense0`` and so on.
        """
        units = {f'dense{i}': units for i, (units, _) in enumerate(self.embedding.dense)}
        return {'outputs': self.outputs, **units}

    @property
    def pooled(self) -> bool:
        """Whether the head reads the pooled output."""
        return self.kind not in ('question_answering', 'token_classification')

    @property
    def described(self) -> str:
        """Its task, or its kind if the task is not known, and its labels, for messages."""
        labels = f' with the labels {", ".join(self.labels)}' if self.labels else ''
        return (self.task or self.kind) + labels

    def fits(self, other: Head) -> bool:
        """Whether this may be the other head: the two are equal, or would be if both knew their task, or
        spelt it alike: ``sst2`` for ``SST-2``.
        """
        return other.rows_in(self) == list(range(len(self.labels))) and self.labels == other.labels

    def to_dict(self) -> dict[str, Any]:
        """The head as JSON values, without empty names and columns and the usual embedding."""
        more = {'names': list(self.names), 'columns': list(self.columns)}
        more['embedding'] = {} if self.embedding == Embedding() else self.embedding.to_dict()
        return {
            'kind': self.kind,
            'labels': list(self.labels),
            'task': self.task,
            **{name: value for name, value in more.items() if value},
        }

    @classmethod
    def from_dict(cls, values: Any, *, source: str = 'head') -> Head:
        """The inverse of `to_dict`; raises ValueError if the values are something else."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not {'kind', 'labels', 'task'} <= set(values) <= names:
            raise ValueError(
                f'{source}: wanted kind, labels and task, perhaps names, columns and embedding, found '
                f'{values!r:.200}'
            )
        embedding = Embedding.from_dict(values.get('embedding', {}), source=f'{source}: embedding')
        return checked(cls, {**values, 'embedding': embedding}, source=source)


PRETRAINING = Head()
