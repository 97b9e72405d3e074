"""Metrics: against the libraries' values by hand, and SQuAD's against the published definition."""

import math

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from gluon_optbert.tasks.metrics import (
    METRICS,
    OF_HEADS,
    majority_score,
    normalised,
    score,
    squad_v1,
    squad_v2,
    token_f1,
)


@pytest.mark.parametrize(
    'name, predictions, labels, wanted',
    [
        ('accuracy', [1, 0, 1, 1], [1, 0, 0, 1], 75),
        ('f1', [1, 0, 1, 1], [1, 0, 0, 1], 80),  # precision 2/3, recall 1
        ('f1', [0, 0], [1, 1], 0),
        ('matthews', [1, 0, 1, 1], [1, 0, 0, 1], 100 * 2 / math.sqrt(12)),  # tp 2, tn 1, fp 1, fn 0
        ('matthews', [1, 1], [1, 0], 0),
        ('spearman', [0.1, 0.2, 9.0, 0.4], [1, 2, 3, 4], 80),
        ('pearson', [0, 1, 2, 3], [1, 3, 5, 7], 100),
        ('spearman', [1, 1, 1], [1, 2, 3], 0),
        # of three labels; one each right, given and not right, and missed
        ('f1_micro', [[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 0, 1]], 200 / 3),
        ('f1_macro', [[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 0, 1]], 100 / 3),
        ('exact_match', [[1, 1, 0], [1, 0, 1]], [[1, 0, 0], [1, 0, 1]], 50),
    ],
)
def test_metric_by_hand(name, predictions, labels, wanted):
    assert score([name], np.array(predictions), np.array(labels)) == {name: pytest.approx(wanted)}


def test_all_metrics_come_together_and_nothing_scores_nothing():
    plain = [name for kind in ('classification', 'regression') for name in OF_HEADS[kind]]
    assert set(score(plain, np.array([0, 1, 1]), np.array([0, 1, 0]))) == set(plain) < set(METRICS)
    for names, predictions, labels in ((['f1'], [], []), (['f1'], [1], [1, 0]), (['pearson'], [1.0], [2.0])):
        with pytest.raises(ValueError):
            score(names, np.array(predictions), np.array(labels))
    with pytest.raises(ValueError, match='no labels'):
        majority_score(['accuracy'], np.array([], np.int64))


@pytest.mark.parametrize(
    'labels, wanted',
    [
        ([1, 0, 1, 1], {'accuracy': 75, 'f1': 600 / 7, 'matthews': 0}),  # precision 3/4, recall 1
        ([0, 0, 1], {'accuracy': 200 / 3, 'f1': 0, 'matthews': 0}),  # class 1 is never given
        ([2, 0, 2, 1], {'accuracy': 50, 'matthews': 0}),
        ([1, 0], {'accuracy': 50, 'f1': 0}),
        ([0.0, 2.5, 5.0], {'pearson': 0, 'spearman': 0}),  # a constant has no correlation
        ([[1, 0], [1, 0], [0, 1]], {'exact_match': 200 / 3, 'f1_micro': 200 / 3}),  # the first label alone
    ],
)
def test_majority_is_the_score_of_one_answer_for_all(labels, wanted):
    assert majority_score(list(wanted), np.array(labels)) == pytest.approx(wanted)


def test_majority_of_tags_is_the_commonest_for_every_word():
    tags = [['O', 'B-a'], ['O']]
    assert majority_score(['tag_accuracy', 'entity_f1'], tags) == {
        'tag_accuracy': pytest.approx(200 / 3),
        'entity_f1': 0,
    }


@pytest.mark.parametrize(
    'text, wanted',
    [
        ('The  Cat, a hat!', 'cat hat'),
        ('A.N. Other', 'other'),
        ('the-end theatre', 'theend theatre'),
        ('an\tapple\n', 'apple'),
        ('«été»', '«été»'),
        ('The', ''),
        ('10,000', '10000'),
    ],
)
def test_normalised_answers_lose_capitals_punctuation_articles_and_spaces(text, wanted):
    """A.N. loses its dots first and is the article an; quotes beyond ASCII stay."""
    assert normalised(text) == wanted


@pytest.mark.parametrize(
    'prediction, answer, wanted',
    [
        ('the cat sat', 'cat', 2 / 3),
        ('dog', 'cat', 0.0),
        ('cat cat dog', 'cat dog dog', 2 / 3),
        ('cat cat dog', 'cat cat', 0.8),
        ('', '', 1.0),
        ('the', 'a', 1.0),
        ('cat', 'the', 0.0),
    ],
)
def test_f1_by_hand(prediction, answer, wanted):
    assert token_f1(prediction, answer) == pytest.approx(wanted, abs=1e-15)


def test_version_1_takes_the_best_answer_and_counts_missing_predictions_as_wrong():
    answers = {'a': ['red cat', 'cat'], 'b': ['blue'], 'c': ['x']}
    scores = squad_v1(answers, {'a': 'the cat', 'b': 'dark blue', 'more': 'ignored'})
    assert scores == {'exact_match': 100 / 3, 'f1': 100 * (1 + 2 / 3) / 3}
    # empty texts share no words
    assert squad_v1({'a': ['the']}, {'a': '!'}) == {'exact_match': 100.0, 'f1': 0.0}
    for measure in (squad_v1, squad_v2):
        with pytest.raises(ValueError, match='no questions'):
            measure({}, {})


ANSWERS = {'h1': ['red cat'], 'h2': ['dog', 'the big dog'], 'n1': [], 'n2': []}
PREDICTIONS = {'h1': 'cat', 'h2': 'big dog', 'n1': '', 'n2': 'hat'}


def test_version_2_by_hand():
    cat = 2 / 3
    assert squad_v2(ANSWERS, PREDICTIONS) == {
        'exact': 50.0,
        'f1': 100 * (cat + 1 + 1) / 4,
        'total': 4,
        'HasAns_exact': 50.0,
        'HasAns_f1': 100 * (cat + 1) / 2,
        'HasAns_total': 2,
        'NoAns_exact': 50.0,
        'NoAns_f1': 50.0,
        'NoAns_total': 2,
    }
    without_words = squad_v2({'h1': ['the', 'cat'], 'h2': ['!']}, {'h1': '', 'h2': ''})
    assert [without_words[name] for name in ('exact', 'f1', 'HasAns_total')] == [50.0, 50.0, 2]


def withheld(name, threshold, answers, predictions, odds):
    """A score in percent where no question above a threshold is answered."""
    alone = {key: squad_v2({key: answers[key]}, {key: predictions[key]})[name] for key in answers}
    scores = [100 * (not answers[key]) if odds[key] > threshold else alone[key] for key in answers]
    return sum(scores) / len(scores)


def test_exact_match_is_that_of_the_threshold_with_the_best_f1():
    """In the order n (-1), h1 and h2 (2/3 of F1 each): the best F1 answers all, the best exact match none."""
    answers = {'h1': ['red cat'], 'h2': ['red dog'], 'n': []}
    predictions, odds = {'h1': 'cat', 'h2': 'dog', 'n': 'hat'}, {'h1': 0.5, 'h2': 0.7, 'n': -3.0}
    scores = squad_v2(answers, predictions, odds)
    assert (scores['best_f1_thresh'], scores['best_exact_thresh']) == (0.7, 0.0)
    assert withheld('f1', 0.7, answers, predictions, odds) == pytest.approx(scores['best_f1'])
    assert scores['exact_at_best_f1'] == withheld('exact', 0.7, answers, predictions, odds) == 0.0
    empty = squad_v2(answers, dict.fromkeys(answers, ''), odds)
    assert empty['exact_at_best_f1'] == pytest.approx(100 / 3)


@examples(50)
@given(
    st.dictionaries(
        st.integers(-9, 9),
        st.tuples(
            st.lists(st.sampled_from(['cat', 'red cat', 'the']), max_size=2),
            st.sampled_from(['', 'cat', 'red hat']),
        ),
        min_size=1,
    )
)
def test_best_threshold_is_the_best_of_all(cases):
    """The odds are the keys, all different: between equal ones the search may stop, a threshold may not."""
    answers, predictions = ({str(key): value[i] for key, value in cases.items()} for i in (0, 1))
    odds = {str(key): float(key) for key in cases}
    scores = squad_v2(answers, predictions, odds)
    for name in ('exact', 'f1'):
        tried = {
            threshold: withheld(name, threshold, answers, predictions, odds)
            for threshold in (-10.0, *odds.values())
        }
        assert scores['best_' + name] == pytest.approx(max(tried.values()))
        if scores['best_' + name] > tried[-10.0]:
            assert tried[scores[f'best_{name}_thresh']] == pytest.approx(max(tried.values()))


def test_version_2_wants_every_question():
    for predictions, odds, what in (
        ({'h1': 'x'}, None, '3 of 4 questions have no prediction, the first is h2'),
        (PREDICTIONS, {'h1': 0.0, 'h2': 0.0, 'n2': 1.0}, '1 of 4 questions have no odds'),
    ):
        with pytest.raises(ValueError, match=what):
            squad_v2(ANSWERS, predictions, odds)
