"""Linear probes: linear classifiers on the states behind each attention block and each layer of a frozen
network.

The accuracy of a probe is compared with the share of the most frequent label, with the same probe on random
weights, and for words with the control task of Hewitt & Liang (2019), "Designing and Interpreting Probes with
Control Tasks". A control task has a random label for every word type, so a probe can only memorise it.
Selectivity is the accuracy minus that on the control task."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..network.model import OptBERTModel
from ..tasks.features import sorted_batches
from .sample import BEHIND, Sample, residuals

BANDS = ('frequent', 'middling', 'rare')
TEST_SHARE = 0.2  # of the sequences
LEAST = 20  # examples; a label with fewer is left out
MEAN = -1  # stands for a position: the mean over the sequence


@dataclasses.dataclass(frozen=True)
class ProbeTask:
    """The labels that a probe predicts from the states of n places.

    Parameters
    ----------
    places : np.ndarray of int, shape (n, 2)
        Sequence and position; `MEAN` for the mean over the tokens of the sequence.
    labels : np.ndarray of int, shape (n,)
    classes : tuple of str
        The names of the labels.
    test : np.ndarray of bool, shape (n,)
        Which places are held out for the test; a sequence is held out as a whole.
    control : np.ndarray of int, shape (n,), optional
        Labels of the control task.
    """

    places: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    test: np.ndarray
    control: np.ndarray | None = None

    @property
    def majority(self) -> float:
        """The share among the test places of the label that is most frequent in training."""
        return float((self.labels[self.test] == np.bincount(self.labels[~self.test]).argmax()).mean())


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """Accuracies of the probes of one task on one network, one for each state of `residuals`."""

    accuracy: tuple[float, ...]
    control: tuple[float, ...] = ()

    def behind(self, place: str) -> ProbeResult:
        """Those behind every ``attention`` block, or behind every ``layer``; layer 0 is the embedding."""
        return ProbeResult(self.accuracy[BEHIND[place]], self.control[BEHIND[place]])

    @property
    def selectivity(self) -> tuple[float, ...]:
        """Accuracy minus that on the control task; empty without one."""
        return tuple(accuracy - control for accuracy, control in zip(self.accuracy, self.control))


def casing(words: Sequence[str]) -> dict[str, str]:
    """The casing of each word: ``lower``, ``title`` or ``upper``; words such as ``iPod`` have none."""
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


def frequency_bands(words: Sequence[str]) -> dict[str, str]:
    """The frequency band of each word, counted without regard to case; only alphabetic words have one.

    Word types are sorted by frequency. The first ones, up to a third of the text, are ``frequent``, the next
    third ``middling``, the rest ``rare``."""
    counts = collections.Counter(word.lower() for word in words if word.isalpha())
    total, before, bands = sum(counts.values()), 0, {}
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        bands[word] = BANDS[min(2, 3 * before // total)]
        before += count
    return {word: bands[word.lower()] for word in words if word.lower() in bands}


def _task(
    places: np.ndarray,
    named: Sequence[str],
    *,
    sequences: int,
    generator: np.random.RandomState,
    types: Sequence[str] | None = None,
) -> ProbeTask | None:
    """The task of these labels; None if fewer than two labels are frequent enough, or none is held out."""
    counts = collections.Counter(named)
    classes = tuple(sorted(label for label, count in counts.items() if count >= LEAST))
    kept = np.array([label in classes for label in named], dtype=bool)
    places = places[kept]
    labels = np.array([classes.index(label) for label in named if label in classes], dtype=int)
    held_out = generator.permutation(sequences) < max(1, round(TEST_SHARE * sequences))
    test = held_out[places[:, 0]]
    if len(set(labels[~test])) < 2 or not test.any():
        return None
    control = None
    if types is not None:
        drawn = {word: generator.choice(labels) for word in sorted(set(types))}
        control = np.array([drawn[word] for word, keep in zip(types, kept) if keep])
        if len(set(control[~test])) < 2:  # few words, all of which drew the same label
            control = None
    return ProbeTask(places, labels, classes, test, control)


def word_tasks(sample: Sample, *, words: int = 4000, seed: int = 0) -> dict[str, ProbeTask | None]:
    """Casing and frequency band of words, from the text itself; a word's place is its first token.

    The tokens of an uncased vocabulary do not show the casing; a probe can read it from the context alone.

    Parameters
    ----------
    words : int
        The most places of a task, drawn at random with the same limit for each label. A task that the text
        does not allow is None, such as casing where everything is lower case.
    """
    positions = [(number, *place) for number, row in enumerate(sample.words) for place in row]
    tasks: dict[str, ProbeTask | None] = {}
    for name, labelling in (('casing', casing), ('frequency band', frequency_bands)):
        generator = np.random.RandomState(seed)
        label_of = labelling([word for *_, word in positions])
        labels = [label_of.get(word) for *_, word in positions]
        classes = sorted(set(labels) - {None})
        drawn = []
        for label in classes:
            indices = [i for i, other in enumerate(labels) if other == label]
            drawn += [indices[i] for i in generator.permutation(len(indices))[: words // len(classes)]]
        places = [positions[i] for i in sorted(drawn)]
        tasks[name] = _task(
            np.array([place[:2] for place in places], dtype=int).reshape(-1, 2),
            [label_of[word] for *_, word in places],
            sequences=len(sample),
            generator=generator,
            types=[word.lower() for *_, word in places],
        )
    return tasks


def sentence_task(sample: Sample, *, seed: int = 0) -> ProbeTask | None:
    """The labels of the sequences, predicted from the mean over their tokens; None if fewer than two labels
    are frequent enough.
    """
    places = np.array([(number, MEAN) for number in range(len(sample.labels))], dtype=int).reshape(-1, 2)
    return _task(places, sample.labels, sequences=len(sample), generator=np.random.RandomState(seed))


def layer_features(
    network: OptBERTModel, sample: Sample, places: np.ndarray, *, batch_size: int = 16
) -> list[np.ndarray]:
    """The states of places: behind the embedding, then behind the attention block and the end of each layer.

    A layer without an intermediate block ends where its attention does, so its two states are the same.

    Parameters
    ----------
    places : np.ndarray of int, shape (n, 2)
        As in `ProbeTask`.

    Returns
    -------
    list of np.ndarray, 1 + 2 per layer, shape (n, h), float32
    """
    shape = 1 + 2 * len(network.architecture.layers), len(places), network.architecture.h
    features = list(np.zeros(shape, dtype=np.float32))
    for batch in sorted_batches(sample.features, batch_size):
        row_of = {number: row for row, number in enumerate(batch.rows)}
        wanted = np.flatnonzero(np.isin(places[:, 0], batch.rows))
        if not len(wanted):
            continue
        rows, positions = np.array([row_of[number] for number in places[wanted, 0]]), places[wanted, 1]
        whole = (positions == MEAN)[:, np.newaxis]
        for feature, state in zip(features, residuals(network, batch)):
            means = state.sum(axis=1) / batch.valid_length[:, np.newaxis]  # the padding is zero
            feature[wanted] = np.where(whole, means[rows], state[rows, positions])
    return features


def linear_accuracy(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> float:
    """The test accuracy of a logistic regression on standardised features, fitted to the other places."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    probe.fit(features[~test], labels[~test])
    return float(probe.score(features[test], labels[test]))


def probe(
    network: OptBERTModel, sample: Sample, tasks: Mapping[str, ProbeTask], *, batch_size: int = 16
) -> dict[str, ProbeResult]:
    """Probe every state of a network for every task, in one pass over the sample."""
    if not tasks:
        return {}
    borders = np.cumsum([0, *(len(task.labels) for task in tasks.values())])
    places = np.concatenate([task.places for task in tasks.values()])
    features = layer_features(network, sample, places, batch_size=batch_size)
    results = {}
    for (name, task), start, end in zip(tasks.items(), borders, borders[1:]):
        rows = [feature[start:end] for feature in features]
        accuracy, control = (
            tuple(linear_accuracy(row, labels, task.test) for row in rows if labels is not None)
            for labels in (task.labels, task.control)
        )
        results[name] = ProbeResult(accuracy, control)
    return results
