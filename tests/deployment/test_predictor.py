"""Predictions: text in, labels, values or answers out, whatever the batches."""

import json
import math

import numpy as np
import pytest
from helpers.commands import call
from helpers.tiny import network, saved_model, vocabulary

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.directory import Deployment
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.predictor import (
    Encoder,
    Instance,
    Predictor,
    instance_of,
    read_instances,
    score,
)
from gluon_optbert.network import running
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import TOKEN_INPUTS
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.tasks.features import sorted_batches

ARCHITECTURE = network((2, 3, 5, 7), (1, 4, 2, 0))
HEADS = {
    'classification': Head('classification', ('no', 'yes')),
    'regression': Head('regression'),
    'question_answering': Head('question_answering'),
}
TEXTS = ['a b c', ('d e f. g', 'h i'), 'j', 'k l m n o p q r s t u v w x y z a b c', ('x y', '')]
PAIRS = [('a b', 'c d e f. g h. i j k l m n o p q r s t u v w x y z'), ('c', 'a b.'), ('d', '')]


@pytest.fixture(scope='module')
def directories(tmp_path_factory):
    """An export of each head."""
    place = tmp_path_factory.mktemp('predict')
    for kind, head in HEADS.items():
        parameters = read_parameters(build(ARCHITECTURE, head=head, initial_std=0.5))
        export(SavedModel(ARCHITECTURE, parameters, vocabulary(), head=head), place / kind)
    return place


def plain(prediction):
    """The numbers of a prediction."""
    return [value for value in vars(prediction).values() if isinstance(value, float)] or list(
        prediction.probabilities.values()
    )


@pytest.mark.parametrize('kind', HEADS)
def test_batches_and_order_do_not_matter(directories, kind):
    predictor = Predictor(directories / kind)
    items = PAIRS if kind == 'question_answering' else TEXTS
    wanted = [next(predictor.predict([item])) for item in items]
    for batch_size, ahead in ((2, 1), (3, 2), (32, 16)):
        found = list(predictor.predict(iter(items * 2), batch_size=batch_size, ahead=ahead))
        assert len(found) == 2 * len(items)
        for one, other in zip(found, wanted * 2):
            np.testing.assert_allclose(
                plain(one), plain(other), rtol=1e-4, atol=1e-6
            )  # float32, other paddings


def test_probabilities_are_the_softmax_of_the_networks_scores(directories):
    predictor = Predictor(directories / 'classification')
    batch = next(sorted_batches(predictor._encoder.features([Instance('a b', 'c')]), 1))
    scores = running.run(predictor._block, batch, TOKEN_INPUTS)[0][0].astype(float)
    found = next(predictor.predict([('a b', 'c')]))
    assert list(found.probabilities) == ['no', 'yes'] and math.isclose(sum(found.probabilities.values()), 1)
    np.testing.assert_allclose(
        list(found.probabilities.values()), np.exp(scores) / np.exp(scores).sum(), rtol=1e-5
    )
    assert found.label == ['no', 'yes'][int(scores.argmax())]


def test_instances_are_read_as_they_are_needed(directories):
    taken = []

    def endless():
        while True:
            taken.append('a b')
            yield 'a b'

    results = Predictor(directories / 'regression').predict(endless(), batch_size=2, ahead=3)
    next(results)
    assert len(taken) == 6


def test_sentences_fill_the_positions_that_the_network_has():
    encoder = Encoder(Deployment(ARCHITECTURE, vocabulary(), HEADS['classification'], 'task'))
    made = encoder.features(
        [Instance(' '.join('a' * 30)), Instance(' '.join('a' * 30), ' '.join('b' * 30)), Instance('a', 'b')]
    )
    assert made.lengths.tolist() == [ARCHITECTURE.max_length] * 2 + [5]


def test_answers_are_passages_of_the_context(directories):
    for (_, context), found in zip(PAIRS, Predictor(directories / 'question_answering').predict(PAIRS)):
        assert context[found.start : found.end] == found.text
        assert bool(found.text) == bool(context) and math.isfinite(found.score)


def test_null_threshold_is_for_questions(directories):
    with pytest.raises(ValueError, match='this is an export of classification'):
        Predictor(directories / 'classification', null_threshold=0.0)
    result = call(
        'tools/predict.py',
        directories / 'question_answering',
        '--null-threshold',
        '-1000',
        input='a b\tc d e\n',
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (
        set(found) == {'text', 'score', 'start', 'end', 'probability'}
        and found['text'] == ''
        and found['probability'] < 1
    )


def test_questions_need_a_context(directories):
    with pytest.raises(ValueError, match='without a context'):
        list(Predictor(directories / 'question_answering').predict(['who?']))


def test_exports_without_labels_are_refused(tmp_path):
    export(saved_model(), tmp_path / 'encoder')
    with pytest.raises(ValueError, match='export a fine-tuned model'):
        Predictor(tmp_path / 'encoder')


@pytest.mark.parametrize(
    'line, labelled, wanted',
    [
        ('a b\n', False, Instance('a b')),
        ('a\tb\r\n', False, Instance('a', 'b')),
        ('', False, Instance('')),
        ('a\tyes', True, Instance('a', None, 'yes')),
        ('a\tb\tno\n', True, Instance('a', 'b', 'no')),
    ],
)
def test_lines_are_instances(line, labelled, wanted):
    assert instance_of(line, labelled=labelled) == wanted


@pytest.mark.parametrize('line, labelled', [('a\tb\tc', False), ('a', True), ('a\tb\tc\td', True)])
def test_lines_of_other_columns_are_refused(line, labelled):
    with pytest.raises(ValueError, match='columns'):
        instance_of(line, labelled=labelled)


def test_files_that_are_no_text_are_refused(tmp_path):
    for content, message in ((b'\n \n', 'no text'), (b'a\n\xff', 'UTF-8')):
        (tmp_path / 'text').write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_instances(tmp_path / 'text')
    with pytest.raises(FileNotFoundError):
        read_instances(tmp_path / 'other')


def test_score_counts_what_is_right(directories):
    classify = Predictor(directories / 'classification')
    right = [found.label for found in classify.predict(TEXTS[:4])]
    labelled = [Instance(*([text] if isinstance(text, str) else text)) for text in TEXTS[:4]]
    wrong = {'no': 'yes', 'yes': 'no'}
    assert score(classify, [Instance(i.first, i.second, label) for i, label in zip(labelled, right)]) == 1
    assert (
        score(
            classify,
            [
                Instance(i.first, i.second, wrong[label] if place else label)
                for place, (i, label) in enumerate(zip(labelled, right))
            ],
        )
        == 0.25
    )
    with pytest.raises(ValueError, match='perhaps'):
        score(classify, [Instance('a', None, 'perhaps')])
    regress = Predictor(directories / 'regression')
    values = [found.value for found in regress.predict(labelled)]
    assert (
        score(
            regress, [Instance(i.first, i.second, str(2 * value + 1)) for i, value in zip(labelled, values)]
        )
        > 0.9999
    )


def test_command_answers_every_line(directories, tmp_path):
    (tmp_path / 'text').write_text('a b\nc\td e\n\nf.\n')
    for options, more in (
        (['--input', tmp_path / 'text'], {}),
        ([], {'input': (tmp_path / 'text').read_text()}),
    ):
        result = call('tools/predict.py', directories / 'classification', *options, **more)
        assert result.returncode == 0, result.stderr
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(lines) == 4 and all(set(line['probabilities']) == {'no', 'yes'} for line in lines)
    result = call('tools/predict.py', directories / 'classification', input='a\tb\tc\n')
    assert result.returncode == 2 and 'line 1: 3 columns' in result.stderr
