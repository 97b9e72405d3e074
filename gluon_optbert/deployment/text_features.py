"""Text to the features that the network of an export reads."""

from __future__ import annotations

from typing import List, Sequence

from ..architecture.heads import Head
from ..tasks.features import Features, make_reader
from ..tasks.squad import Question, Windows, make_windows
from ..text.tokenizer import make_aligner
from .description import SHORTEST, Deployment
from .instances import Instance, check_texts


class Encoder:
    """Text to the features that a network reads.

    Parameters
    ----------
    deployment : Deployment

    Raises
    ------
    ValueError
        If the network has fewer than five positions.
    """

    def __init__(self, deployment: Deployment):
        length = deployment.architecture.max_length
        if length < SHORTEST:
            raise ValueError(f'the network reads {length} tokens, too few for a pair of sentences')
        vocabulary, self._reading = deployment.vocabulary, deployment.reading
        self._head = deployment.head
        self._read = make_reader(vocabulary, max_length=deployment.text_length or length)
        self._align = make_aligner(vocabulary)
        self._ids = {'cls_id': vocabulary[vocabulary.cls_token], 'sep_id': vocabulary[vocabulary.sep_token]}

    def features(self, instances: Sequence[Instance]) -> Features:
        """The features of sentences and pairs; of questions, those of all windows of their contexts.

        Raises
        ------
        ValueError
            If an instance has another number of texts than the task.
        """
        for instance in instances:
            check_texts(instance, self._head)
        if self._reading is not None:
            return self.windows(questions_of(instances)).features
        return self._read(
            [
                (instance.first,) if instance.second is None else (instance.first, instance.second)
                for instance in instances
            ]
        )

    def windows(self, questions: Sequence[Question]) -> Windows:
        """The windows of questions."""
        assert self._reading is not None
        return make_windows(questions, self._align, self._reading, labelled=False, **self._ids)


def questions_of(instances: Sequence[Instance]) -> List[Question]:
    """Instances as questions; raises ValueError if one has no context."""
    questions = []
    for i, instance in enumerate(instances):
        check_texts(instance, Head('question_answering'))
        questions.append(Question(str(i), instance.first, str(instance.second), ()))
    return questions
