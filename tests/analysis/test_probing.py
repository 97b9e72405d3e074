"""Probes find what is there, do not find what is not, and are measured on sequences that they were not
trained on.
"""

import numpy as np
import pytest
from helpers.tiny import LENGTH, network, saved_model, vocabulary

from gluon_optbert.analysis.probing import (
    MEAN,
    ProbeTask,
    casing,
    frequency_bands,
    layer_features,
    linear_accuracy,
    probe,
    sentence_task,
    word_tasks,
)
from gluon_optbert.analysis.sample import network_of, residuals, sample_of_texts
from gluon_optbert.tasks.features import sorted_batches


@pytest.fixture(scope='module')
def one():
    return network_of(saved_model(network((2, 4, 4, 16), (2, 4, 4, 0))))


def sample(count):
    """Letters as words: a, b, c often, the others seldom; A and B begin sentences; the label says whether
    there is a z.
    """
    generator = np.random.RandomState(0)
    texts, labels = [], []
    for _ in range(count):
        words = [
            *generator.choice(list('ab')).upper(),
            *generator.choice(list('abc'), 4),
            *generator.choice(list('defghij'), 3),
        ]
        labels.append('with' if generator.randint(2) else 'without')
        texts.append([' '.join([*words, *('zz' if labels[-1] == 'with' else 'yy')])])
    return sample_of_texts(texts, vocabulary(), length=LENGTH, labels=labels)


@pytest.fixture(scope='module')
def text():
    return sample(200)


def test_casing_is_that_of_whole_words():
    words = ['the', 'The', 'I', 'NATO', 'iPod', '1990', 'naïve', "'", 'Éire']
    kinds = {'lower': ('the', 'naïve'), 'title': ('The', 'I', 'Éire'), 'upper': ('NATO',)}
    assert casing(words) == {word: kind for kind, own in kinds.items() for word in own}


def test_frequency_bands_are_thirds_of_the_text():
    words = ['a'] * 4 + ['B', 'b', 'b', '.', '.'] + ['c', 'd', 'e', 'f', 'g']
    bands = {'frequent': 'a', 'middling': 'Bbc', 'rare': 'defg'}
    assert frequency_bands(words) == {word: band for band, own in bands.items() for word in own}


def test_features_are_the_states_of_the_places(one):
    few = sample(9)
    places = np.array([[3, 1], [0, 4], [7, MEAN], [3, MEAN]])
    features = layer_features(one, few, places, batch_size=2)
    assert [feature.shape for feature in features] == [(4, 8)] * 5
    states = {
        number: [state[row, :valid] for state in residuals(one, batch)]
        for batch in sorted_batches(few.features, 4)
        for row, (number, valid) in enumerate(zip(batch.rows, batch.valid_length.astype(int)))
    }
    for place, feature in enumerate(features):
        third = states[3][place]
        wanted = [third[1], states[0][place][4], states[7][place].mean(axis=0), third.mean(axis=0)]
        np.testing.assert_allclose(feature, wanted, atol=1e-5)  # float32, another batch


def test_accuracy_is_that_on_places_that_were_not_learnt():
    """A hundred features tell sixty places apart, whatever the labels are."""
    generator = np.random.RandomState(0)
    features, labels = generator.standard_normal((120, 100)), generator.randint(2, size=120)
    assert linear_accuracy(features, labels, np.arange(120) >= 60) < 0.7


def test_control_task_has_probes_of_its_own(one, text):
    places = np.array([(number, len(text.ids[0]) - 2) for number in range(len(text))])
    labels = np.array([label == 'with' for label in text.labels]).astype(int)  # the last word, z or y
    control = np.random.RandomState(0).randint(2, size=len(text))
    task = ProbeTask(places, labels, ('y', 'z'), np.arange(len(text)) % 5 == 0, control)
    result = probe(one, text, {'last': task})['last']
    assert min(result.accuracy) > 0.95 and max(result.control) < 0.8


def test_probes_are_measured_on_other_sequences_and_control_labels_belong_to_the_word_type(text):
    tasks = word_tasks(text)
    for task in (*tasks.values(), sentence_task(text)):
        sequences = [set(task.places[rows, 0]) for rows in (task.test, ~task.test)]
        assert sequences[0].isdisjoint(sequences[1]) and len(sequences[0]) <= 40
    written = {
        (number, position): word.lower() for number, row in enumerate(text.words) for position, word in row
    }
    for task in tasks.values():
        drawn = {(written[tuple(place)], label) for place, label in zip(task.places, task.control)}
        assert len(dict(drawn)) == len(drawn) and set(task.control) <= set(task.labels)
    few = word_tasks(text, words=120)['frequency band']
    assert len(few.classes) >= 2 and np.bincount(few.labels).max() <= 120 // len(few.classes)
    assert len({tuple(place) for place in few.places}) == len(few.places)


def test_labels_of_words_and_sentences_are_read_from_the_layers(one, text):
    """Behind the attention of a layer without a block as behind the layer."""
    tasks = {**word_tasks(text, words=400), 'label': sentence_task(text)}
    results = probe(one, text, tasks)
    assert set(results) == {'casing', 'frequency band', 'label'}
    assert all(len(result.accuracy) == 5 for result in results.values())
    assert results['label'].accuracy[0] > 0.9 > tasks['label'].majority and results['label'].control == ()
    written = results['casing']
    assert max(written.accuracy) > tasks['casing'].majority + 0.1  # capitals are at the first place
    assert written.selectivity == pytest.approx(np.subtract(written.accuracy, written.control))
    attention, layers = (written.behind(place) for place in ('attention', 'layer'))
    assert len(attention.accuracy) == len(attention.control) == 2
    assert len(layers.accuracy) == len(layers.control) == 3 and attention.accuracy[1] == layers.accuracy[2]


def test_label_of_fewer_than_twenty_examples_is_left_out(one):
    text = sample_of_texts([['a']] * 59, vocabulary(), labels=['x'] * 20 + ['y'] * 20 + ['z'] * 19)
    assert sentence_task(text).classes == ('x', 'y') and len(sentence_task(text).labels) == 40
    small = sample_of_texts([['a b c d']] * 50, vocabulary(), length=LENGTH)
    assert word_tasks(small)['casing'] is None and sentence_task(small) is None
    assert probe(one, small, {}) == {}


def test_words_of_one_control_label_leave_the_task_without_control():
    """Few words may all draw the same label, and no classifier can be fitted to one label."""
    text = sample_of_texts([['A a a']] * 60, vocabulary(), length=LENGTH, labels=['one'] * 60)
    tasks = [task for seed in range(10) for task in word_tasks(text, seed=seed).values() if task is not None]
    assert any(task.control is None for task in tasks)
    assert all(task.control is None or len(set(task.control[~task.test])) > 1 for task in tasks)
