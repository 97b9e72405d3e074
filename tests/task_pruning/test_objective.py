"""What gates and weights learn of a teacher of a task."""

import mxnet as mx
import numpy as np
import pytest
from scipy.special import log_softmax

from gluon_optbert.architecture.heads import Head
from gluon_optbert.task_pruning.objective import HeadDivergence

WEIGHTS, LENGTHS = np.array([1.0, 0.0, 1.0]), np.array([4, 2, 3])

ROUNDING = 1e-4  # oneDNN's log_softmax is off by 4e-6, and T squared is 4


def value(head, *scores):
    return float(HeadDivergence(head, 2.0)(*map(mx.nd.array, (*scores, WEIGHTS, LENGTHS))).asscalar())


def divergence(student, teacher):
    """At a temperature of two, over the last axis."""
    student, teacher = (log_softmax(scores / 2, axis=-1) for scores in (student, teacher))
    return 4 * (np.exp(teacher) * (teacher - student)).sum(axis=-1)


def test_labels_are_compared_by_their_divergence():
    student, teacher = np.random.RandomState(1).normal(size=(2, 3, 3))
    found = value(Head('classification', ('no', 'maybe', 'yes')), student, teacher)
    assert found == pytest.approx(divergence(student, teacher)[[0, 2]].sum(), abs=ROUNDING)


def test_numbers_are_compared_by_their_squared_difference():
    student, teacher = np.random.RandomState(1).normal(size=(2, 3, 1))
    wanted = (student - teacher)[[0, 2]] ** 2
    assert value(Head('regression'), student, teacher) == pytest.approx(wanted.sum(), rel=1e-4)


def test_ends_of_answers_are_compared_by_their_mean_divergence_over_real_tokens():
    student, teacher = np.random.RandomState(1).normal(size=(2, 3, 4, 2))
    found = value(Head('question_answering'), student, teacher)
    wanted = sum(divergence(student[i, : LENGTHS[i]].T, teacher[i, : LENGTHS[i]].T).mean() for i in (0, 2))
    assert found == pytest.approx(wanted, abs=ROUNDING)
