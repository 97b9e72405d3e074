"""Linear probes: what a linear classifier can read from each layer of a network that is not trained for it.

A probe says little by itself. Beside it stand the share of the commonest label, the same probe on random
weights, and for words the control task of Hewitt & Liang (2019), "Designing and Interpreting Probes with
Control Tasks": labels drawn at random for every word type, which only memory can learn. Selectivity is the
accuracy less that on the control task."""

from __future__ import annotations

import collections
import dataclasses
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..network.model import OptBERTModel
from ..tasks.features import sorted_batches
from .sample import Sample, stream

BANDS = ('frequent', 'middling', 'rare')
TEST_SHARE = 0.2  # of the sequences
LEAST = 20  # examples of a label, or it is left out
MEAN = -1  # instead of a position: the mean over the sequence


@dataclasses.dataclass(frozen=True)
class ProbeTask:
    """What is to be read from the states of n places.

    Parameters
    ----------
    name : str
    places : np.ndarray of int, shape (n, 2)
        Sequence and position; `MEAN` for the mean over the tokens of the sequence.
    labels : np.ndarray of int, shape (n,)
    classes : tuple of str
        What the labels stand for.
    test : np.ndarray of bool, shape (n,)
        Which places are kept for measuring; whole sequences are.
    control : np.ndarray of int, shape (n,), optional
        Labels of the control task.
    """

    name: str
    places: np.ndarray
    labels: np.ndarray
    classes: Tuple[str, ...]
    test: np.ndarray
    control: Optional[np.ndarray] = None

    @property
    def majority(self) -> float:
        """The share, among the test places, of the label that is commonest in training."""
        return float((self.labels[self.test] == np.bincount(self.labels[~self.test]).argmax()).mean())


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """Accuracies of the probes of one task on one network: on the embedding, then on the output of every
    layer.
    """

    accuracy: Tuple[float, ...]
    control: Tuple[float, ...] = ()

    @property
    def selectivity(self) -> Tuple[float, ...]:
        """Accuracy less that on the control task; empty without one."""
        return tuple(accuracy - control for accuracy, control in zip(self.accuracy, self.control))


def casing(words: Sequence[str]) -> Dict[str, str]:
    """How words are written, by word: ``lower``, ``title`` or ``upper``; others, such as ``iPod``, and digits
    are left out.
    """
    kinds = {}
    for word in words:
        if not word.isalpha():
            continue
        if word.islower():
            kinds[word] = 'lower'
        elif word[0].isupper() and (len(word) == 1 or word[1:].islower()):
            kinds[word] = 'title'
        elif word.isupper():
            kinds[word] = 'upper'
    return kinds


def frequency_bands(words: Sequence[str]) -> Dict[str, str]:
    """Thirds of a text by how common its words are in it, by word; capitals do not count, nor does what is no
    word.

    The commonest word types that make up a third of the text are ``frequent``, the next third ``middling``,
    the rest ``rare``."""
    counts = collections.Counter(word.lower() for word in words if word.isalpha())
    total, before, bands = sum(counts.values()), 0, {}
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        bands[word] = BANDS[min(2, 3 * before // total)]
        before += count
    return {word: bands[word.lower()] for word in words if word.lower() in bands}


def _task(
    name: str,
    places: np.ndarray,
    named: Sequence[str],
    *,
    sequences: int,
    generator: np.random.RandomState,
    types: Optional[Sequence[str]] = None,
) -> Optional[ProbeTask]:
    """The task of these labels; None if less than two of them are common enough to be learnt and measured."""
    counts = collections.Counter(named)
    classes = tuple(sorted(label for label, count in counts.items() if count >= LEAST))
    kept = np.array([label in classes for label in named], dtype=bool)
    places, labels = (
        places[kept],
        np.array([classes.index(label) for label in named if label in classes], dtype=int),
    )
    aside = generator.permutation(sequences) < max(1, round(TEST_SHARE * sequences))
    test = aside[places[:, 0]]
    if len(set(labels[~test])) < 2 or not test.any():
        return None
    control = None
    if types is not None:
        drawn = {word: generator.choice(labels) for word in sorted(set(types))}
        control = np.array([drawn[word] for word, keep in zip(types, kept) if keep])
    return ProbeTask(name, places, labels, classes, test, control)


def _balanced(named: Sequence[Optional[str]], most: int, generator: np.random.RandomState) -> List[int]:
    """Which of the labels to take, so that no label has more than its equal part of `most`; None is no label."""
    classes = sorted(set(named) - {None})
    taken: List[int] = []
    for label in classes:
        having = [i for i, other in enumerate(named) if other == label]
        taken += [having[i] for i in generator.permutation(len(having))[: most // len(classes)]]
    return sorted(taken)


def word_tasks(sample: Sample, *, words: int = 4000, seed: int = 0) -> Dict[str, Optional[ProbeTask]]:
    """Casing and frequency band of words, from the text itself; a word's place is its first token.

    Casing asks what the context tells of capitals that an uncased vocabulary takes away.

    Parameters
    ----------
    sample : Sample
    words : int
        The most places of a task, drawn by chance; no label has more than its equal part of them.
    seed : int

    Returns
    -------
    dict of name to ProbeTask
        None for a task that the text does not allow, such as casing where everything is in small letters.
    """
    found = [(number, position, word) for number, row in enumerate(sample.words) for position, word in row]
    tasks: Dict[str, Optional[ProbeTask]] = {}
    for name, labelling in (('casing', casing), ('frequency band', frequency_bands)):
        generator = np.random.RandomState(seed)
        label_of = labelling([word for *_, word in found])
        places = [found[i] for i in _balanced([label_of.get(word) for *_, word in found], words, generator)]
        tasks[name] = _task(
            name,
            np.array([place[:2] for place in places], dtype=int).reshape(-1, 2),
            [label_of[word] for *_, word in places],
            sequences=len(sample),
            generator=generator,
            types=[word.lower() for *_, word in places],
        )
    return tasks


def sentence_task(sample: Sample, *, name: str = 'label', seed: int = 0) -> Optional[ProbeTask]:
    """The labels of the sequences, read from the mean over their tokens; None without two labels that are
    common enough.
    """
    places = np.array([(number, MEAN) for number in range(len(sample.labels))], dtype=int).reshape(-1, 2)
    return _task(name, places, sample.labels, sequences=len(sample), generator=np.random.RandomState(seed))


def layer_features(
    network: OptBERTModel, sample: Sample, places: np.ndarray, *, batch_size: int = 16
) -> List[np.ndarray]:
    """The states of some places: the embedding, then the output of every layer.

    Parameters
    ----------
    places : np.ndarray of int, shape (n, 2)
        As in `ProbeTask`.

    Returns
    -------
    list of np.ndarray, shape (n, h), float32
    """
    features = [
        np.zeros((len(places), network.architecture.h), dtype=np.float32)
        for _ in range(1 + len(network.architecture.layers))
    ]
    for batch in sorted_batches(sample.features, batch_size):
        row_of = {number: row for row, number in enumerate(batch.rows)}
        wanted = np.flatnonzero(np.isin(places[:, 0], batch.rows))
        if not len(wanted):
            continue
        rows, positions = np.array([row_of[number] for number in places[wanted, 0]]), places[wanted, 1]
        whole = (positions == MEAN)[:, np.newaxis]
        for feature, state in zip(features, stream(network, batch)[::2]):
            means = state.sum(axis=1) / batch.valid_length[:, np.newaxis]  # the padding is zero
            feature[wanted] = np.where(whole, means[rows], state[rows, positions])
    return features


def linear_accuracy(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> float:
    """The accuracy at the test places of logistic regression on the other ones, features standardised."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(features[~test], labels[~test])
    return float(probe.score(features[test], labels[test]))


def probe(
    network: OptBERTModel, sample: Sample, tasks: Mapping[str, ProbeTask], *, batch_size: int = 16
) -> Dict[str, ProbeResult]:
    """Probe every layer of a network for every task, in one pass over the sample."""
    if not tasks:
        return {}
    borders = np.cumsum([0, *(len(task.labels) for task in tasks.values())])
    features = layer_features(
        network, sample, np.concatenate([task.places for task in tasks.values()]), batch_size=batch_size
    )
    results = {}
    for (name, task), start, end in zip(tasks.items(), borders, borders[1:]):
        rows = [feature[start:end] for feature in features]
        results[name] = ProbeResult(
            tuple(linear_accuracy(row, task.labels, task.test) for row in rows),
            ()
            if task.control is None
            else tuple(linear_accuracy(row, task.control, task.test) for row in rows),
        )
    return results
