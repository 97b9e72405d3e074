"""Measurements of an export on texts: scores by hand, and the agreement with float32."""

import math
import types

import numpy as np
import pytest

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.measures import agreement, check_labels, measured_on_texts, score
from gluon_optbert.deployment.predictor import Label, Value
from gluon_optbert.tasks.squad import Answer

CLASSES, VALUES = Head('classification', ('no', 'yes')), Head('regression')
ANSWERS = Head('question_answering')


def labels(*words):
    return [Label(word, {'no': 0.5, 'yes': 0.5}) for word in words]


def labelled(*words):
    return [Instance('a', None, word, source=f'dev.tsv: line {i}') for i, word in enumerate(words, 1)]


def test_scores_by_hand():
    assert score(CLASSES, labelled('yes', 'no', 'no', 'no'), labels('yes', 'no', 'yes', 'no')) == 0.75
    values = [Value(1.0), Value(2.0), Value(4.0)]
    assert score(VALUES, labelled('3', '5', '9'), values) == pytest.approx(1)
    assert score(VALUES, labelled('3', '5', '9'), [Value(1.0)] * 3) == 0  # a constant has none
    questions = [
        Instance('a', 'b', 'cat', ('cat', 'red cat')),
        Instance('a', 'b', 'dog'),
        Instance('a', 'b', ''),
    ]
    answers = [Answer('The red cat', 1.0), Answer('cat', 1.0), Answer('', 1.0)]
    assert score(ANSWERS, questions, answers) == pytest.approx(2 / 3)  # any right one counts, and none


@pytest.mark.parametrize(
    'head, good, words, says',
    [
        (CLASSES, ['yes'], ['yes', 'perhaps'], "line 2: .*'perhaps'"),
        (VALUES, ['1', '1'], ['1', 'nan'], "line 2: .*'nan'"),
        (VALUES, ['1', '2'], ['1'], 'line 1: a correlation needs at least two labelled texts, found 1'),
    ],
)
def test_label_that_cannot_be_scored_is_named_with_its_line(head, good, words, says):
    check_labels(labelled(*good), head)
    with pytest.raises(ValueError, match=f'dev.tsv: {says}'):
        check_labels(labelled(*words), head)


def test_agreement_by_hand():
    assert agreement(CLASSES, labels('yes', 'no'), labels('yes', 'yes')) == {'texts': 2, 'same_label': 0.5}
    values = agreement(VALUES, [Value(1.0), Value(3.0)], [Value(1.5), Value(3.0)])
    assert values == {'texts': 2, 'mean_difference': 0.25}
    answers = [Answer('a', 1.0), Answer('', 1.0)]
    shared = agreement(ANSWERS, answers, [Answer('a', 2.0), Answer('b', 1.0)])
    assert shared == {'texts': 2, 'same_answer': 0.5}


def test_agreement_of_embeddings_is_their_cosine():
    def network(*rows):
        return types.SimpleNamespace(head=Head(), encode=lambda _: np.array(rows))

    whole, low = network([1.0, 0.0], [0.0, 1.0]), network([1.0, 0.0], [math.sqrt(0.5), math.sqrt(0.5)])
    measured = measured_on_texts(whole, low, calibration=('a', 'b'), labelled=(), reduced=True)
    wanted = {'texts': 2, 'mean_cosine': (1 + math.sqrt(0.5)) / 2, 'smallest_cosine': math.sqrt(0.5)}
    assert measured == {'agreement': pytest.approx(wanted)}
