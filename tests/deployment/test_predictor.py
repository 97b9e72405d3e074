"""Predictions: text in, labels, values or answers out, whatever the batches."""

import json
import math

import numpy as np
import pytest
from helpers.commands import call
from helpers.questions import write_squad
from helpers.tiny import network, saved_model, vocabulary

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.directory import Deployment
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.predictor import Encoder, Predictor, score
from gluon_optbert.network import running
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import TOKEN_INPUTS
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.tasks.features import sorted_batches
from gluon_optbert.tasks.squad import Question

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
        set(found) == {'question', 'text', 'score', 'start', 'end', 'probability'}
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


@pytest.mark.parametrize('by_file', [True, False])
def test_command_answers_every_line_and_repeats_its_text(directories, tmp_path, by_file):
    content = 'a b\nc\td e\nf.\rg\r\nh'
    (tmp_path / 'text').write_bytes(content.encode())
    words = ['--input', tmp_path / 'text'] if by_file else []
    result = call(
        'tools/predict.py', directories / 'classification', *words, input='' if by_file else content
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line['text'], line.get('pair')) for line in lines] == [
        ('a b', None),
        ('c', 'd e'),
        ('f.\rg', None),
        ('h', None),
    ]
    for line in lines:
        assert set(line['probabilities']) == {'no', 'yes'} and line['name'] == line['label']


def test_command_refuses_a_bad_line_before_it_answers_one(directories, tmp_path):
    for content, says in (
        ('a\nb\n\nc\n', 'text: line 3: is blank'),
        ('a\n' * 600 + 'a\tb\tc\n', 'text: line 601: 3 columns'),
    ):
        (tmp_path / 'text').write_text(content)
        result = call('tools/predict.py', directories / 'classification', '--input', tmp_path / 'text')
        assert result.returncode == 2 and says in result.stderr and result.stdout == ''
        assert result.stderr.count('\n') == 1
    result = call('tools/predict.py', directories / 'classification', input='a\n\n')
    assert result.returncode == 2 and 'standard input: line 2: is blank' in result.stderr


def test_labels_have_the_names_of_their_task(tmp_path):
    """An export of an earlier version has no names in its manifest."""
    head = Head('classification', ('0', '1'), 'SST-2')
    parameters = read_parameters(build(ARCHITECTURE, head=head, initial_std=0.5))
    export(SavedModel(ARCHITECTURE, parameters, vocabulary(), head=head), tmp_path / 'deploy')
    manifest = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())
    assert manifest['head']['names'] == ['negative', 'positive']
    del manifest['head']['names'], manifest['head']['columns']
    (tmp_path / 'deploy' / 'manifest.json').write_text(json.dumps(manifest))
    prediction = next(Predictor(tmp_path / 'deploy').predict(['a b']))
    assert prediction.name == {'0': 'negative', '1': 'positive'}[prediction.label]
    with pytest.raises(ValueError, match='two texts, and SST-2 is a task on one sentence'):
        next(Predictor(tmp_path / 'deploy').predict([('a b', 'c')]))


def test_questions_of_squads_file_are_answered_by_their_ids(directories, tmp_path):
    asked = [Question('q1', 'a b', 'c d\ne f. g', ()), Question('q2', 'h', 'i j k', (('j', 2),))]
    path = write_squad(tmp_path / 'dev.json', asked)
    (tmp_path / 'dev.jsonl').write_text(
        ''.join(
            json.dumps({'id': one.id, 'question': one.text, 'context': one.context}) + '\n' for one in asked
        )
    )
    results = [
        call('tools/predict.py', directories / 'question_answering', '--input', source)
        for source in (path, tmp_path / 'dev.jsonl')
    ]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr + results[1].stderr
    assert results[0].stdout == results[1].stdout
    for one, line in zip(asked, map(json.loads, results[0].stdout.splitlines())):
        assert (line['id'], line['question']) == (one.id, one.text)
        assert one.context[line['start'] : line['end']] == line['text']
