"""Predictions: text in, labels, values or answers out, whatever the batches."""
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluon_optbert.answers import Window, best_answer, tokens_and_places, windows
from gluon_optbert.checkpoint import SavedModel
from gluon_optbert.deploy import Predictor, export
from gluon_optbert.deployment import Deployment
from gluon_optbert.heads import Head
from gluon_optbert.model import build, read_parameters
from gluon_optbert.predictor import Encoder, Instance, instance_of, read_instances, score
from gluon_optbert.vocabulary import make_tokenizer
from tiny import network, run, saved_model, vocabulary

ARCHITECTURE = network((2, 3, 5, 7), (1, 4, 2, 0))
HEADS = {'classification': Head('classification', ('no', 'yes')), 'regression': Head('regression'),
         'question_answering': Head('question_answering')}
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
        prediction.probabilities.values())


@pytest.mark.parametrize('kind', HEADS)
def test_batches_and_order_do_not_matter(directories, kind):
    predictor = Predictor(directories / kind)
    items = PAIRS if kind == 'question_answering' else TEXTS
    wanted = [next(predictor.predict([item])) for item in items]
    for batch_size, ahead in ((2, 1), (3, 2), (32, 16)):
        found = list(predictor.predict(iter(items * 2), batch_size=batch_size, ahead=ahead))
        assert len(found) == 2 * len(items)
        for one, other in zip(found, wanted * 2):
            np.testing.assert_allclose(plain(one), plain(other), rtol=1e-4, atol=1e-6)  # float32, other paddings


def test_probabilities_are_the_softmax_of_the_networks_scores(directories):
    import mxnet as mx
    predictor = Predictor(directories / 'classification')
    feed = predictor._encoder.feed(predictor._encoder.windows(Instance('a b', 'c')))
    scores = predictor._block(*map(mx.nd.array, feed.values())).asnumpy()[0].astype(float)
    found = next(predictor.predict([('a b', 'c')]))
    assert list(found.probabilities) == ['no', 'yes'] and math.isclose(sum(found.probabilities.values()), 1)
    np.testing.assert_allclose(list(found.probabilities.values()), np.exp(scores) / np.exp(scores).sum(), rtol=1e-5)
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


@given(first=st.integers(0, 30), second=st.one_of(st.none(), st.integers(0, 30)))
def test_sentences_that_are_too_long_lose_their_ends_the_longer_one_first(first, second):
    encoder = Encoder(Deployment(ARCHITECTURE, vocabulary(), HEADS['classification'], 'task'))
    instance = Instance(' '.join('a' * first), None if second is None else ' '.join('b' * second))
    window, = encoder.windows(instance)
    assert len(window.ids) == len(window.types) <= ARCHITECTURE.max_length
    a, b = (vocabulary().token_to_idx[token] for token in 'ab')
    left = window.ids.count(a), window.ids.count(b)
    room = ARCHITECTURE.max_length - 2 - (second is not None)
    assert sum(left) == min(room, first + (second or 0))
    assert window.types.count(1) == (0 if second is None else left[1] + 1)
    if sum(left) == room and second is not None:
        assert left[0] in (first, (room + 1) // 2) or left[1] == second


@given(st.text(alphabet='ab é.-_\'\t\u4e00\u4e8c\u0301Z', max_size=30))
def test_tokens_by_word_are_the_tokens_of_the_text(text):
    tokenize = make_tokenizer(vocabulary())
    ids, places = tokens_and_places(text, tokenize)
    assert ids == tokenize(text)
    assert all(text[begin:end].strip() == text[begin:end] != '' for begin, end in places)
    assert places == sorted(places)


@given(count=st.integers(0, 60), question=st.integers(0, 20), length=st.integers(5, 24))
def test_windows_cover_the_context(count, question, length):
    places = [(i, i + 1) for i in range(count)]
    made = windows(list(range(100, 100 + question)), (list(range(count)), places), first=-1, separator=-2, max_length=length)
    assert {place for window in made for place in window.places} == set(places)
    for window in made:
        assert len(window.ids) == len(window.types) <= length
        assert window.ids[len(window.ids) - 1 - len(window.places):-1] == [begin for begin, _ in window.places]


def test_best_answer_is_the_best_ordered_pair_in_any_window():
    context = 'aa bb cc dd'
    places = [(0, 2), (3, 5), (6, 8), (9, 11)]
    one = Window([1, 2, 3, 4, 3], [0, 0, 1, 1, 1], places[:2])
    two = Window([1, 2, 3, 4, 3], [0, 0, 1, 1, 1], places[2:])
    scores = np.zeros((5, 2))
    scores[3, 0], scores[2, 1] = 5, 5  # the last before the first: no answer
    assert best_answer(context, [(one, scores)]).score == 5
    other = np.zeros((5, 2))
    other[0] = 99  # not of the context
    other[2, 0], other[3, 1] = 3, 4
    found = best_answer(context, [(one, scores), (two, other)])
    assert (found.text, found.start, found.end, found.score) == ('cc dd', 6, 11, 7)


def test_answers_are_passages_of_the_context(directories):
    for (_, context), found in zip(PAIRS, Predictor(directories / 'question_answering').predict(PAIRS)):
        assert context[found.start:found.end] == found.text
        assert bool(found.text) == bool(context) and math.isfinite(found.score)


def test_questions_need_a_context(directories):
    with pytest.raises(ValueError, match='without a context'):
        list(Predictor(directories / 'question_answering').predict(['who?']))


def test_exports_without_labels_are_refused(tmp_path):
    export(saved_model(), tmp_path / 'encoder')
    with pytest.raises(ValueError, match='export a fine-tuned model'):
        Predictor(tmp_path / 'encoder')


@pytest.mark.parametrize('line, labelled, wanted', [
    ('a b\n', False, Instance('a b')), ('a\tb\r\n', False, Instance('a', 'b')), ('', False, Instance('')),
    ('a\tyes', True, Instance('a', None, 'yes')), ('a\tb\tno\n', True, Instance('a', 'b', 'no'))])
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
    assert score(classify, [Instance(i.first, i.second, wrong[label] if place else label)
                            for place, (i, label) in enumerate(zip(labelled, right))]) == 0.25
    with pytest.raises(ValueError, match='perhaps'):
        score(classify, [Instance('a', None, 'perhaps')])
    regress = Predictor(directories / 'regression')
    values = [found.value for found in regress.predict(labelled)]
    assert score(regress, [Instance(i.first, i.second, str(2 * value + 1)) for i, value in zip(labelled, values)]) > 0.9999


def test_command_answers_every_line(directories, tmp_path):
    (tmp_path / 'text').write_text('a b\nc\td e\n\nf.\n')
    for options, more in ((['--input', tmp_path / 'text'], {}), ([], {'input': (tmp_path / 'text').read_text()})):
        result = run('tools/predict.py', directories / 'classification', *options, **more)
        assert result.returncode == 0, result.stderr
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert len(lines) == 4 and all(set(line['probabilities']) == {'no', 'yes'} for line in lines)
    result = run('tools/predict.py', directories / 'classification', input='a\tb\tc\n')
    assert result.returncode == 2 and 'line 1: 3 columns' in result.stderr
