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
from gluon_optbert.analysis.sample import BEHIND, network_of, residuals, sample_of_texts
from gluon_optbert.tasks.features import sorted_batches

ARCHITECTURE = network((2, 4, 4, 16), (2, 4, 4, 0))


def sample(count=200, seed=0):
    """Letters as words: a, b, c often, the others seldom; A and B begin sentences; the label says whether
    there is a z.
    """
    generator = np.random.RandomState(seed)
    texts, labels = [], []
    for _ in range(count):
        words = [
            *generator.choice(list('ab')).upper(),
            *generator.choice(list('abc'), 4),
            *generator.choice(list('defghij'), 3),
        ]
        labels.append('with' if generator.randint(2) else 'without')
        texts.append([' '.join(words + (['z'] * 2 if labels[-1] == 'with' else ['y'] * 2))])
    return sample_of_texts(texts, vocabulary(), length=LENGTH, labels=labels)


def test_casing_is_that_of_whole_words():
    words = ['the', 'The', 'I', 'NATO', 'iPod', '1990', 'naïve', "'", 'Éire']
    assert casing(words) == {
        'the': 'lower',
        'The': 'title',
        'I': 'title',
        'NATO': 'upper',
        'naïve': 'lower',
        'Éire': 'title',
    }


def test_frequency_bands_are_thirds_of_the_text():
    words = ['a'] * 4 + ['B', 'b', 'b', '.', '.'] + ['c', 'd', 'e', 'f', 'g']
    assert frequency_bands(words) == {
        'a': 'frequent',
        **dict.fromkeys('Bbc', 'middling'),
        **dict.fromkeys('defg', 'rare'),
    }


def test_features_are_the_states_of_the_places():
    one, text = network_of(saved_model(ARCHITECTURE)), sample(9)
    places = np.array([[3, 1], [0, 4], [7, MEAN], [3, MEAN]])
    features = layer_features(one, text, places, batch_size=2)
    assert [feature.shape for feature in features] == [(4, 8)] * 5
    states = {
        number: [state[row, :valid] for state in residuals(one, batch)]
        for batch in sorted_batches(text.features, 4)
        for row, (number, valid) in enumerate(zip(batch.rows, batch.valid_length.astype(int)))
    }
    for place, feature in enumerate(features):
        wanted = [
            states[3][place][1],
            states[0][place][4],
            states[7][place].mean(axis=0),
            states[3][place].mean(axis=0),
        ]
        np.testing.assert_allclose(feature, wanted, atol=1e-5)  # float32, another batch


def test_accuracy_is_that_on_places_that_were_not_learnt():
    """A hundred features tell sixty places apart, whatever the labels are."""
    generator = np.random.RandomState(0)
    features, labels = generator.standard_normal((120, 100)), generator.randint(2, size=120)
    assert linear_accuracy(features, labels, np.arange(120) >= 60) < 0.7


def test_control_task_has_probes_of_its_own():
    text = sample()
    (first, *_) = text.ids
    places = np.array([(number, len(first) - 2) for number in range(len(text))])
    labels = np.array([label == 'with' for label in text.labels]).astype(int)  # the last word, z or y
    control = np.random.RandomState(0).randint(2, size=len(text))
    task = ProbeTask('last', places, labels, ('y', 'z'), np.arange(len(text)) % 5 == 0, control)
    result = probe(network_of(saved_model(ARCHITECTURE)), text, {'last': task})['last']
    assert min(result.accuracy) > 0.95 and max(result.control) < 0.8


def test_probes_are_measured_on_other_sequences():
    for task in (*word_tasks(sample()).values(), sentence_task(sample())):
        sequences = [set(task.places[rows, 0]) for rows in (task.test, ~task.test)]
        assert sequences[0].isdisjoint(sequences[1]) and len(sequences[0]) <= 40


def test_control_labels_belong_to_the_word_type():
    text = sample()
    for task in word_tasks(text).values():
        written = {
            (number, position): word.lower()
            for number, row in enumerate(text.words)
            for position, word in row
        }
        by_type = {}
        for place, label in zip(task.places, task.control):
            by_type.setdefault(written[tuple(place)], set()).add(label)
        assert all(len(labels) == 1 for labels in by_type.values())
        assert set(task.control) <= set(task.labels)


def test_no_label_has_more_than_its_part():
    task = word_tasks(sample(), words=120)['frequency band']
    assert len(task.classes) >= 2 and np.bincount(task.labels).max() <= 120 // len(task.classes)
    assert len({tuple(place) for place in task.places}) == len(task.places)


def test_labels_of_words_and_sentences_are_read_from_the_layers():
    text = sample()
    tasks = {**word_tasks(text, words=400), 'label': sentence_task(text)}
    results = probe(network_of(saved_model(ARCHITECTURE)), text, tasks)
    assert set(results) == {'casing', 'frequency band', 'label'}
    assert all(len(result.accuracy) == 5 for result in results.values())
    assert results['label'].accuracy[0] > 0.9 > tasks['label'].majority and results['label'].control == ()
    written = results['casing']
    assert max(written.accuracy) > tasks['casing'].majority + 0.1  # capitals are at the first place
    assert written.selectivity == pytest.approx(np.subtract(written.accuracy, written.control))


def test_probes_read_behind_attention_what_they_read_behind_a_layer_without_a_block():
    text = sample(60)
    tasks = word_tasks(text, words=200)
    for result in probe(network_of(saved_model(ARCHITECTURE)), text, tasks).values():
        attention, layers = (result.behind(place) for place in ('attention', 'layer'))
        assert len(attention.accuracy) == 2 and len(layers.accuracy) == 3
        assert len(attention.control) == 2 and len(layers.control) == 3
        assert attention.accuracy[1] == layers.accuracy[2]
    states = residuals(network_of(saved_model(ARCHITECTURE)), next(sorted_batches(text.features, 4)))
    attended, layers = (states[BEHIND[place]] for place in ('attention', 'layer'))
    assert np.array_equal(attended[1], layers[2]) and not np.array_equal(attended[0], layers[1])


def test_label_of_fewer_than_twenty_examples_is_left_out():
    text = sample_of_texts([['a']] * 59, vocabulary(), labels=['x'] * 20 + ['y'] * 20 + ['z'] * 19)
    assert sentence_task(text).classes == ('x', 'y') and len(sentence_task(text).labels) == 40
    small = sample_of_texts([['a b c d']] * 50, vocabulary(), length=LENGTH)
    assert word_tasks(small)['casing'] is None and sentence_task(small) is None
    assert probe(network_of(saved_model(ARCHITECTURE)), small, {}) == {}


def test_words_of_one_control_label_leave_the_task_without_control():
    """Few words may all draw the same label, and no classifier can be fitted to one label."""
    text = sample_of_texts([['A a a']] * 60, vocabulary(), length=LENGTH, labels=['one'] * 60)
    found = []
    for seed in range(10):
        tasks = {name: task for name, task in word_tasks(text, seed=seed).items() if task is not None}
        found += [task.control is None for task in tasks.values()]
        for task in tasks.values():
            assert task.control is None or len(set(task.control[~task.test])) > 1
    assert True in found
