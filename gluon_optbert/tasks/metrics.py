"""Scores of predictions, in percent: classification, regression, and question answering as SQuAD's official
scripts count it.
"""

from __future__ import annotations

import collections
import itertools
import re
import string
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..architecture.heads import Head

# question id → the texts of its answers in the data; none if it has no answer
Answers = Mapping[str, Sequence[str]]
_PUNCTUATION = str.maketrans('', '', string.punctuation)
_ARTICLE = re.compile(r'\b(a|an|the)\b')


def _correlation(measure: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """A coefficient of SciPy by the name of its function."""

    def score(predictions: np.ndarray, labels: np.ndarray) -> float:
        if len(labels) < 2:
            raise ValueError(f'a correlation needs at least two rows, found {len(labels)}')
        from scipy import stats  # predicting needs no scores, and neither SciPy nor scikit-learn

        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # constant predictions have no correlation; it counts as none
            correlation = getattr(stats, measure)(predictions, labels)[0]
        return 0.0 if np.isnan(correlation) else float(correlation)

    return score


def _of_classes(measure: str, **options: Any) -> Callable[[np.ndarray, np.ndarray], float]:
    """A score of scikit-learn by the name of its function."""

    def score(predictions: np.ndarray, labels: np.ndarray) -> float:
        from sklearn import metrics

        return getattr(metrics, measure)(labels, predictions, **options)

    return score


MARKS = frozenset('BIMOESLU')  # of a tag such as B-PER: begins an entity, goes on, is its end or all of it


def entities(tags: Sequence[str], every: Iterable[str] = ()) -> list[tuple[str, int, int]]:
    """The entities in the tags of a sentence: kind, first word, and the word behind the last one.

    Tags are those of IOB1, IOB2, IOBES, BMES or BILOU, and an entity that a tag goes on with begins there if
    none of its kind stands before it, as the script of CoNLL-2000 counts. The kind is empty where all tags,
    also those that others may have, `every`, are marks alone, such as B and I. Words in a row with one other
    tag than O are an entity, too.
    """
    found, kind, first, ends = [], None, 0, False
    alone = MARKS.issuperset({*tags, *every})
    for i, tag in enumerate([*tags, 'O']):
        mark, dash, own = tag.partition('-')
        if not (dash or alone) or mark not in MARKS:
            mark, own = ('O', '') if tag == 'O' else ('I', tag)
        begins = mark != 'O' and (mark in 'BSU' or own != kind or ends)
        if kind is not None and (begins or mark == 'O'):
            found.append((kind, first, i))
            kind = None
        if begins:
            kind, first = own, i
        ends = mark in 'ESLU'
    return found


def _of_entities(measure: str) -> Callable[[Sequence[Sequence[str]], Sequence[Sequence[str]]], float]:
    """``precision``, ``recall`` or ``f1`` of the entities of all sentences; right are those with the same
    words and kind.
    """

    def score(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
        every = set(itertools.chain(*predictions, *labels))
        both = zip(predictions, labels)
        pairs = [(set(entities(one, every)), set(entities(other, every))) for one, other in both]
        right = sum(len(one & other) for one, other in pairs)
        sizes = {'precision': sum(len(one) for one, _ in pairs), 'recall': sum(len(own) for _, own in pairs)}
        sizes['f1'] = sum(sizes.values()) / 2
        return right / sizes[measure] if sizes[measure] else 0.0

    return score


def _share_of_tags(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    pairs = [one == other for two in zip(predictions, labels) for one, other in zip(*two)]
    return sum(pairs) / max(1, len(pairs))


METRICS: dict[str, Callable[[Any, Any], float]] = {
    'accuracy': _of_classes('accuracy_score'),
    'f1': _of_classes('f1_score', zero_division=0),  # of class 1
    'matthews': _of_classes('matthews_corrcoef'),
    'pearson': _correlation('pearsonr'),
    'spearman': _correlation('spearmanr'),
    'f1_micro': _of_classes('f1_score', average='micro', zero_division=0),
    'f1_macro': _of_classes('f1_score', average='macro', zero_division=0),
    'exact_match': _of_classes('accuracy_score'),  # all labels of an instance are right
    'entity_f1': _of_entities('f1'),
    'entity_precision': _of_entities('precision'),
    'entity_recall': _of_entities('recall'),
    'tag_accuracy': _share_of_tags,
}
OF_HEADS = {  # by the kind of a head, the usual ones first
    'classification': ('accuracy', 'f1', 'matthews'),
    'regression': ('pearson', 'spearman'),
    'multi_label': ('f1_micro', 'f1_macro', 'exact_match'),
    'token_classification': ('entity_f1', 'entity_precision', 'entity_recall', 'tag_accuracy'),
}


def usual_metrics(head: Head) -> tuple[str, ...]:
    """The scores of a user's own task by its head; the first one decides. ValueError for a head that no task
    of a table has.
    """
    if head.kind not in OF_HEADS:
        raise ValueError(f'a task of a table has a head of {", ".join(OF_HEADS)}, found {head.kind}')
    if head.kind == 'token_classification':
        marked = any(label[:1] in MARKS and label[1:2] == '-' for label in head.labels)
        return OF_HEADS[head.kind] if marked or MARKS.issuperset(head.labels) else ('tag_accuracy',)
    return OF_HEADS[head.kind][:1] if head.kind == 'classification' else OF_HEADS[head.kind]


def score(names: Sequence[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Some of `METRICS`, in percent; ValueError if there is nothing to score, or a single row for a
    correlation.

    Predictions and labels are numbers of classes or values of a regression, shape (instances,); zeros and
    ones of labels, (instances, labels); or sequences of the tags of sentences.
    """
    if len(predictions) != len(labels) or not len(labels):
        raise ValueError(
            f'{len(predictions)} predictions for {len(labels)} labels; there must be as many, and some'
        )
    return {name: 100.0 * float(METRICS[name](predictions, labels)) for name in names}


def majority_score(names: Sequence[str], labels: np.ndarray) -> dict[str, float]:
    """The score of always giving the commonest answer, in percent: what a network must exceed.

    The answer is the commonest class of the labels, the smallest of equally common ones. For a regression,
    whose labels are floating-point numbers, it is their mean. A constant has no correlation with anything:
    scipy's is nan, and it counts as 0 here. Labels are as in `score`; ValueError if there are none.
    """
    if not len(labels):
        raise ValueError('no labels: there is no commonest one')
    if not isinstance(labels, np.ndarray) or labels.dtype == object:
        common, _ = collections.Counter(tag for tags in labels for tag in tags).most_common(1)[0]
        return score(names, [[common] * len(tags) for tags in labels], labels)
    if labels.ndim == 2:
        return score(names, np.tile(labels.mean(axis=0) > 0.5, (len(labels), 1)).astype(np.int64), labels)
    commonest = labels.mean() if labels.dtype.kind == 'f' else np.bincount(labels).argmax()
    return score(names, np.full(len(labels), commonest), labels)


def normalised(text: str) -> str:
    """An answer without capitals, ASCII punctuation, articles and spare whitespace (Rajpurkar et al., 2016,
    section 6.1).
    """
    return ' '.join(_ARTICLE.sub(' ', text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> bool:
    """Whether two answers are the same when normalised."""
    return normalised(prediction) == normalised(answer)


def token_f1(prediction: str, answer: str) -> float:
    """The harmonic mean of precision and recall over the bags of normalised words.

    If one text has no words, it is 1 if the other has none either, and else 0.
    """
    predicted, wanted = normalised(prediction).split(), normalised(answer).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    common = sum((collections.Counter(predicted) & collections.Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def squad_v1(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
    """``exact_match`` and ``f1`` in percent, as SQuAD 1.1's script: the best answer of each question counts.

    A question without a prediction counts as wrong, and empty texts share no words. Every question has an
    answer; ValueError if there is no question.
    """
    if not answers:
        raise ValueError('no questions to score')
    exact, f1 = _by_question(answers, predictions, '1.1')
    return {'exact_match': 100.0 * sum(exact.values()) / len(exact), 'f1': 100.0 * sum(f1.values()) / len(f1)}


def f1_by_question(answers: Answers, predictions: Mapping[str, str], version: str) -> np.ndarray:
    """The F1 of every question, from 0 to 1, shape (questions,): their mean is that of `squad_v1`, or of
    `squad_v2` without odds.
    """
    return np.array([*_by_question(answers, predictions, version)[1].values()])


def squad_v2(
    answers: Answers, predictions: Mapping[str, str], null_odds: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Scores of SQuAD 2.0's script under its names: percents, counts, and the best thresholds if there are
    odds; with these also ``exact_at_best_f1``, the exact match at the threshold of the best F1, as BERT's
    authors chose it (Devlin et al., section 4.3).

    A prediction is empty where there is no answer. The odds say how much speaks for no answer; a question
    above a threshold counts as not answered. ValueError if there is no question, or one has no prediction or
    no odds.
    """
    if not answers:
        raise ValueError('no questions to score')
    for what, values in (('prediction', predictions), ('odds', null_odds)):
        missing = [] if values is None else [question for question in answers if question not in values]
        if missing:
            raise ValueError(
                f'{len(missing)} of {len(answers)} questions have no {what}, the first is {missing[0]}'
            )
    exact, f1 = _by_question(answers, predictions, '2.0')
    measured = {}
    for name, raw in (('exact', exact), ('f1', f1)):
        for part, wanted in (('', (True, False)), ('HasAns_', (True,)), ('NoAns_', (False,))):
            values = [value for question, value in raw.items() if bool(answers[question]) in wanted]
            if values:
                measured.update({part + name: 100.0 * sum(values) / len(values), part + 'total': len(values)})
    if null_odds:
        order = sorted((question for question in null_odds if question in answers), key=null_odds.__getitem__)
        courses = {
            name: _course(raw, order, answers, predictions) for name, raw in (('exact', exact), ('f1', f1))
        }
        best = {name: int(np.argmax(course)) for name, course in courses.items()}
        for name, place in best.items():
            measured['best_' + name] = 100.0 * courses[name][place] / len(answers)
            measured[f'best_{name}_thresh'] = null_odds[order[place - 1]] if place else 0.0
        measured['exact_at_best_f1'] = 100.0 * courses['exact'][best['f1']] / len(answers)
    return measured


def _by_question(
    answers: Answers, predictions: Mapping[str, str], version: str
) -> tuple[dict[str, float], dict[str, float]]:
    """The exact match and the F1 of every question, from 0 to 1; the best answer counts.

    Where the scripts differ: in 2.0 answers without words are none.
    """
    exact, f1 = {}, {}
    for question, texts in answers.items():
        with_words = [text for text in texts if normalised(text)]
        if version != '1.1':
            texts = with_words = with_words or ['']
        prediction = predictions.get(question)
        if prediction is None:
            texts = with_words = []
        exact[question] = float(any(exact_match(prediction, text) for text in texts))
        f1[question] = max((token_f1(prediction, text) for text in with_words), default=0.0)
    return exact, f1


def _course(
    scores: Mapping[str, float], order: Sequence[str], answers: Answers, predictions: Mapping[str, str]
) -> list[float]:
    """The sum of the scores before the first question of an order is answered, and after each.

    Before the first, those without an answer are right. A question with an answer then adds its score. A
    question without one loses its point if there is a prediction for it.
    """
    gains = (scores[one] if answers[one] else -bool(predictions[one]) for one in order)
    without_any = float(sum(not texts for texts in answers.values()))
    return list(itertools.accumulate(gains, initial=without_any))


def unanswered(answers: Answers, version: str) -> dict[str, float]:
    """The exact match and F1 of answering no question at all, in percent; in 2.0 with any threshold."""
    if version == '1.1':
        return squad_v1(answers, dict.fromkeys(answers, ''))
    scores = squad_v2(answers, dict.fromkeys(answers, ''))
    exact, f1 = scores['exact'], scores['f1']
    return {'exact': exact, 'f1': f1, 'best_exact': exact, 'best_f1': f1, 'exact_at_best_f1': exact}
