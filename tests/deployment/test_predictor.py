"""Predictions: text in, labels, values or answers out, whatever the batches."""

import concurrent.futures
import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import call
from helpers.exported import with_head
from helpers.questions import write_squad
from helpers.tiny import network, saved_model, vocabulary, write_saved_model

from gluon_optbert.architecture.embedding import POOLINGS
from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.description import Deployment, check_text_length, read_description
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.mxnet_network import load_deployment
from gluon_optbert.deployment.predictor import Encoder, Predictor
from gluon_optbert.finetuning.recipes import GlueRecipe
from gluon_optbert.importing.convert import ImportRecipe, import_checkpoint
from gluon_optbert.network import running
from gluon_optbert.network.inputs import TOKEN_INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.runs.recipe import to_dict
from gluon_optbert.tasks.features import sorted_batches
from gluon_optbert.tasks.squad import Question

MINILM = Path(__file__).parents[3] / 'shared' / 'models' / 'minilm-l6-h384'
ARCHITECTURE = network((2, 3, 5, 7), (1, 4, 2, 0))
HEADS = {
    'classification': Head('classification', ('no', 'yes')),
    'regression': Head('regression'),
    'question_answering': Head('question_answering'),
}
TEXTS = ['a b c', ('d e f. g', 'h i'), 'j', 'k l m n o p q r s t u v w x y z a b c', ('x y', '')]
PAIRS = [('a b', 'c d e f. g h. i j k l m n o p q r s t u v w x y z'), ('c', 'a b.'), ('d', '')]


def tuned_model(kind):
    """A model with a head, of weights of their own."""
    return with_head(ARCHITECTURE, HEADS[kind])


@pytest.fixture(scope='module')
def directories(tmp_path_factory):
    """An export of each head."""
    place = tmp_path_factory.mktemp('predict')
    for kind in HEADS:
        export(tuned_model(kind), place / kind)
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
        predictions = list(predictor.predict(iter(items * 2), batch_size=batch_size, ahead=ahead))
        assert len(predictions) == 2 * len(items)
        for one, other in zip(predictions, wanted * 2):
            # float32, other paddings
            np.testing.assert_allclose(plain(one), plain(other), rtol=1e-4, atol=1e-6)


def test_probabilities_are_the_softmax_of_the_networks_scores(directories):
    predictor = Predictor(directories / 'classification')
    batch = next(sorted_batches(predictor._encoder.features([Instance('a b', 'c')]), 1))
    block, _ = load_deployment(directories / 'classification')
    scores = running.run(block, batch, TOKEN_INPUTS)[0][0].astype(float)
    prediction = next(predictor.predict([('a b', 'c')]))
    assert list(prediction.probabilities) == ['no', 'yes'] and math.isclose(
        sum(prediction.probabilities.values()), 1
    )
    np.testing.assert_allclose(
        list(prediction.probabilities.values()), np.exp(scores) / np.exp(scores).sum(), rtol=1e-5
    )
    assert prediction.label == ['no', 'yes'][int(scores.argmax())]


def test_instances_are_read_as_they_are_needed(directories):
    taken = []

    def endless():
        while True:
            taken.append('a b')
            yield 'a b'

    results = Predictor(directories / 'regression').predict(endless(), batch_size=2, ahead=3)
    next(results)
    assert len(taken) == 6


NAN = float('nan')


@pytest.mark.parametrize(
    'texts, says',
    [
        ('a fine film', "found str 'a fine film'"),
        ({'text': 'a'}, "found dict {'text': 'a'}"),
        (Instance('a'), 'found Instance'),
        (None, 'found NoneType None'),
        (np.array('a fine film'), 'found ndarray'),
        (np.array([['a', 'b']]), 'found ndarray'),
        (['a', NAN], 'text number 1 is nan'),
        ([('a', None)], "text number 0 is .'a', None"),
        ([Instance('a', NAN)], 'text number 0 is Instance'),
        ([('a', 'b', 'c')], 'text number 0 has 3 parts'),
        (['a', 'b \ud800'], 'text number 1: half of a character'),
    ],
)
def test_what_are_no_texts_is_refused_with_what_is_wanted(directories, texts, says):
    with pytest.raises((TypeError, ValueError), match=f'(?=.*{says})(?=.*(a str, a pair|whole ones))'):
        list(Predictor(directories / 'regression').predict(texts))


def test_texts_of_any_collection_are_read(directories):
    predictor = Predictor(directories / 'regression')
    wanted = list(predictor.predict(['a', 'b']))
    for texts in (iter('ab'), {'a': 1, 'b': 2}.keys(), np.array(['a', 'b']), [['a'], Instance('b')]):
        assert list(predictor.predict(texts)) == wanted


@pytest.mark.parametrize('name', ['batch_size', 'ahead'])
def test_counts_that_are_none_are_refused(directories, name):
    predictor = Predictor(directories / 'regression')
    with pytest.raises(ValueError, match=f'{name} must be at least 1, found 0'):
        predictor.predict(['a b'], **{name: 0})
    for value in ('8', 2.5, None, NAN):
        with pytest.raises(TypeError, match='must be a whole number'):
            predictor.predict(['a'], **{name: value})


def test_nan_is_no_token_and_no_threshold(directories):
    with pytest.raises(ValueError, match='input_ids from nan to nan'):
        Predictor(directories / 'regression').outputs([[2, NAN, 3]])
    with pytest.raises(ValueError, match='null_threshold must be finite'):
        Predictor(directories / 'question_answering', null_threshold=NAN)


def test_sentences_fill_the_positions_that_the_network_has():
    encoder = Encoder(Deployment(ARCHITECTURE, vocabulary(), HEADS['classification'], 'task'))
    features = encoder.features(
        [Instance(' '.join('a' * 30)), Instance(' '.join('a' * 30), ' '.join('b' * 30)), Instance('a', 'b')]
    )
    assert features.lengths.tolist() == [ARCHITECTURE.max_length] * 2 + [5]


def test_long_texts_are_counted_or_predicted_by_windows(tmp_path, caplog):
    recipe = to_dict(GlueRecipe(model='m', output='o', data='d', task='SST-2', max_length=8))
    saved = dataclasses.replace(tuned_model('classification'), recipe=recipe)
    export(saved, tmp_path / 'cut')
    export(saved, tmp_path / 'split', long='split')
    cut, split = (Predictor(tmp_path / name) for name in ('cut', 'split'))
    text, parts = ' '.join('abcdefghij'), [' '.join('abcdef'), ' '.join('efghij')]
    whole = list(cut.predict([text, 'a', *parts]))
    assert [one.cut for one in whole] == [True, False, False, False]
    assert cut.cut_note == '1 of 4 texts were cut to 8 tokens; --long split'
    (one, other) = split.predict([text, 'a'])
    wanted = np.mean([np.log(list(part.probabilities.values())) for part in whole[2:]], axis=0)
    wanted = np.exp(wanted) / np.exp(wanted).sum()  # of the mean of the scores
    np.testing.assert_allclose(list(one.probabilities.values()), wanted, rtol=1e-4)
    np.testing.assert_allclose(plain(other), plain(whole[1]), rtol=1e-5)
    assert not one.cut and split.cut_note == '' and split.texts == 2
    labelled = [Instance(text, label=saved.head.labels[0]), Instance('a', label=saved.head.labels[0])]
    export(saved, tmp_path / 'scored', labelled=labelled)
    assert '1 of 2 texts were cut to 8 tokens' in caplog.text
    stated = Predictor(tmp_path / 'cut', long='split')
    assert plain(next(stated.predict([text]))) == plain(next(split.predict([text])))
    assert 'tokens is read in windows' in (tmp_path / 'split' / 'README.md').read_text()
    (tmp_path / 'texts.csv').write_text(f'id,body,label\n1,{text},no\n')
    words = ('tools/predict.py', tmp_path / 'cut', '--input', tmp_path / 'texts.csv', '--text', 'body')
    done = call(*words)
    line = json.loads(done.stdout)
    assert (done.returncode, line['text'], line['cut']) == (0, text, True)
    assert '1 of 1 texts were cut to 8 tokens; --long split' in done.stderr
    with pytest.raises(ValueError, match="long is 'split', wanted one of cut, split; only the scores of a"):
        export(tuned_model('question_answering'), tmp_path / 'answers', long='split')


LONG = [' '.join('abcdefghijkl'), (' '.join('abcdefgh'), ' '.join('ijkl')), 'a']
CUT = [' '.join('abcdef'), ('a b c', 'i j'), 'a']  # to eight tokens


@pytest.mark.parametrize('kind', ['classification', 'regression'])
def test_text_is_cut_as_in_fine_tuning(tmp_path, kind):
    saved = tuned_model(kind)
    recipe = to_dict(GlueRecipe(model='m', output='o', data='d', task='SST-2', max_length=8))
    export(dataclasses.replace(saved, recipe=recipe), tmp_path / 'tuned')
    export(saved, tmp_path / 'whole')
    tuned, whole = (Predictor(tmp_path / name) for name in ('tuned', 'whole'))
    numbers = [plain(one) for one in tuned.predict(LONG)]
    assert numbers == [plain(one) for one in whole.predict(CUT)]
    assert numbers[:2] != [plain(one) for one in whole.predict(LONG)][:2]
    assert 'Text is cut to 8 tokens, as in fine-tuning' in (tmp_path / 'tuned' / 'README.md').read_text()


@pytest.mark.parametrize('length', [4, 17, 8.0, '8', True])
def test_length_of_text_that_no_fine_tuning_has_is_refused(tmp_path, length):
    for right in (5, 16):
        assert check_text_length(right, HEADS['classification'], 16, source='max_length') == right
    saved = dataclasses.replace(tuned_model('classification'), recipe={'max_length': length})
    with pytest.raises(ValueError, match='max_length of the fine-tuning run is .*from 5 to 16'):
        export(saved, tmp_path / 'deploy')
    assert not (tmp_path / 'deploy').exists()


@pytest.mark.parametrize('case', ['encoder', 'question_answering'])
def test_only_classifiers_and_regressors_cut_text(tmp_path, case):
    saved = saved_model(ARCHITECTURE) if case == 'encoder' else tuned_model(case)
    export(dataclasses.replace(saved, recipe={'max_length': 8}), tmp_path / 'deploy')
    assert read_description(tmp_path / 'deploy').text_length is None


def test_answers_are_passages_of_the_context_and_questions_need_one(directories):
    predictor = Predictor(directories / 'question_answering')
    for (_, context), answer in zip(PAIRS, predictor.predict(PAIRS)):
        assert context[answer.start : answer.end] == answer.text
        assert bool(answer.text) == bool(context) and math.isfinite(answer.score)
    with pytest.raises(ValueError, match='without a context'):
        list(predictor.predict(['who?']))


def test_null_threshold_is_for_questions(directories):
    with pytest.raises(ValueError, match='this is an export of classification'):
        Predictor(directories / 'classification', null_threshold=0.0)
    words = [directories / 'question_answering', '--null-threshold', '-1000']
    result = call('tools/predict.py', *words, input='a b\tc d e\n')
    assert result.returncode == 0, result.stderr
    line = json.loads(result.stdout)
    assert set(line) == {'question', 'text', 'score', 'start', 'end', 'probability'}
    assert line['text'] == '' and line['probability'] < 1


SENTENCES = ['a b c', 'd e f. g', 'j', 'k l m n o p q r s t u v w x y z']


@pytest.fixture(scope='module', params=['encoder', 'pretraining'])
def encoder(request, tmp_path_factory):
    """An export with encoded tokens, and every encoded token of each sentence, without any padding."""
    place = tmp_path_factory.mktemp('encoder') / 'deploy'
    saved = saved_model(ARCHITECTURE)
    export(saved, place, head=request.param)
    network = build(ARCHITECTURE, saved.parameters, use_classifier=False, use_decoder=False)
    words = vocabulary()
    tokens = []
    for sentence in SENTENCES:
        ids = words[['[CLS]', *sentence.replace('.', ' .').split()[:14], '[SEP]']]
        feed = {'input_ids': [ids], 'token_types': [[0] * len(ids)], 'valid_length': [len(ids)]}
        feed = {name: np.array(values) for name, values in feed.items()}
        tokens.append(running.run(network, feed, TOKEN_INPUTS)[0][0])
    return Predictor(place), tokens


@pytest.mark.parametrize('pooling', POOLINGS)
@pytest.mark.parametrize('normalise', [True, False])
def test_embedding_is_of_the_real_tokens(encoder, pooling, normalise):
    predictor, tokens = encoder
    embeddings = predictor.encode(SENTENCES, pooling=pooling, normalise=normalise, batch_size=3)
    poolings = {
        'mean': lambda one: one.mean(axis=0),
        'cls': lambda one: one[0],
        'max': lambda one: one.max(axis=0),
        'mean_sqrt_len': lambda one: one.sum(axis=0) / np.sqrt(len(one)),
    }
    wanted = np.array(list(map(poolings[pooling], tokens)))
    if normalise:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert embeddings.dtype == np.float32 and embeddings.shape == (4, ARCHITECTURE.h)
    np.testing.assert_allclose(embeddings, wanted, rtol=1e-4, atol=1e-5)  # float32, other paddings


def test_embeddings_have_one_row_for_each_text(encoder, directories):
    predictor, _ = encoder
    assert predictor.encode([]).shape == (0, ARCHITECTURE.h)
    pair = predictor.encode([('a b', 'c')])
    assert pair.shape == (1, ARCHITECTURE.h) and not np.allclose(pair, predictor.encode(['a b']))
    with pytest.raises(ValueError, match='batch_size must be at least 1'):
        predictor.encode(['a'], batch_size=0)
    with pytest.raises(ValueError, match='pooling must be one of mean, cls'):
        predictor.encode(['a'], pooling='last')
    with pytest.raises(ValueError, match='has no embeddings'):
        Predictor(directories / 'classification').encode(['a'])
    with pytest.raises(ValueError, match='export a fine-tuned model'):
        predictor.predict(['a'])


@pytest.mark.parametrize(
    'changes, says',
    [
        ({'input_ids': np.zeros((1, 17), int)}, 'sequences of 17 tokens, and the network has 16 positions'),
        ({'input_ids': np.array([[1, 32]])}, 'input_ids from 1 to 32, and they must lie between 0 and 31'),
        ({'token_types': np.array([[0, 2]])}, 'token_types'),
        ({'valid_length': np.array([3])}, 'valid_length'),
        ({'valid_length': np.array([1, 1])}, 'shapes'),
        ({'token_types': np.array([[0, 0, 0]])}, 'shapes'),
        ({'input_ids': np.zeros((0, 2), int)}, 'shapes'),
    ],
)
def test_tokens_that_the_network_has_no_row_for_are_refused(encoder, changes, says):
    with pytest.raises(ValueError, match=says):
        encoder[0].outputs(**{'input_ids': np.array([[2, 3]]), **changes})


def test_command_writes_embeddings(tmp_path):
    export(saved_model(ARCHITECTURE), tmp_path / 'deploy')
    words = ['tools/predict.py', tmp_path / 'deploy', '--embed', tmp_path / 'out.npy']
    result = call(*words, '--normalise', 'false', '--batch-size', 2, '--ahead', 1, input='a b\nc\nd e f\n')
    assert result.returncode == 0 and '3 embeddings of 8 numbers' in result.stdout, result.stderr
    wanted = Predictor(tmp_path / 'deploy').encode(['a b', 'c', 'd e f'], normalise=False)
    np.testing.assert_allclose(np.load(tmp_path / 'out.npy'), wanted, atol=1e-5)  # float32, other paddings
    again = call(*words, input='a b\n')
    assert again.returncode == 2 and 'give another --embed' in again.stderr


@pytest.mark.skipif(not MINILM.is_dir(), reason='no MiniLM checkpoint beside the project')
def test_close_sentences_have_close_embeddings(tmp_path):
    """The checkpoint was trained for sentence similarity, with the mean of the tokens."""
    import_checkpoint(ImportRecipe(source=str(MINILM), output=tmp_path / 'model'))
    export(read_model(tmp_path / 'model'), tmp_path / 'deploy')
    pairs = [
        ('A man is eating food.', 'A man eats a meal.'),
        ('The stock market fell sharply.', 'Share prices dropped a lot.'),
        ('The cat sleeps on the sofa.', 'A kitten is napping on the couch.'),
    ]
    one, other = (Predictor(tmp_path / 'deploy').encode([pair[i] for pair in pairs]) for i in (0, 1))
    cosines = one @ other.T
    assert np.diag(cosines).min() > 0.5 > 0.2 > (cosines - np.diag(np.diag(cosines))).max()


@pytest.mark.parametrize(
    'places, wanted',
    [(['.'], '.'), (['round-2/model', 'round-10/model'], 'round-10/model'), (['seed-1', 'seed-2'], 'seed-1')],
)
def test_directory_that_is_no_export_is_answered_with_the_command_that_makes_one(tmp_path, places, wanted):
    for place in places:
        write_saved_model(tmp_path / 'my runs' / place)
    result = call('tools/predict.py', tmp_path / 'my runs', input='a\n')
    command = f"python tools/export_model.py '{tmp_path / 'my runs' / wanted}' --output deploy"
    assert result.returncode == 2 and result.stderr.rstrip().endswith(command), result.stderr
    assert result.stderr.count('\n') == 1


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
    texts = [(line['text'], line.get('pair')) for line in lines]
    assert texts == [('a b', None), ('c', 'd e'), ('f.\rg', None), ('h', None)]
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
        assert result.stderr.splitlines()[-1].startswith('error: ') and 'Traceback' not in result.stderr
    result = call('tools/predict.py', directories / 'classification', input='a\n\n')
    assert result.returncode == 2 and 'standard input: line 2: is blank' in result.stderr


def test_command_reads_a_pipe_that_is_named_as_the_input_and_names_it_in_messages(directories, tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    words = ['tools/predict.py', directories / 'classification', '--input', tmp_path / 'pipe']
    for text, format, status in (
        ('a b\nc\n', 'lines', 0),
        ('{"text": "a b"}\n{"text": "c"}\n', 'jsonl', 0),
        ('a\n\nb\n', 'lines', 2),
    ):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit((tmp_path / 'pipe').write_text, text)
            result = call(*words, '--format', format)
        assert result.returncode == status, result.stderr
        if status:
            assert f'error: {tmp_path}/pipe: line 2: is blank' in result.stderr
        else:
            assert [json.loads(line)['text'] for line in result.stdout.splitlines()] == ['a b', 'c']


def test_labels_have_the_names_of_their_task(tmp_path):
    export(with_head(ARCHITECTURE, Head('classification', ('0', '1'), 'SST-2')), tmp_path / 'deploy')
    manifest = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())
    assert manifest['head']['names'] == ['negative', 'positive']
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


def test_a_network_with_one_token_type_reads_no_pairs(tmp_path):
    architecture = dataclasses.replace(network(), token_types=1)
    export(saved_model(architecture), tmp_path / 'one')
    predictor = Predictor(tmp_path / 'one', engine='mxnet')
    assert predictor.encode(['a']).shape == (1, architecture.h)
    with pytest.raises(
        ValueError, match="text number 0: two texts, and the network has one token type.*'a' and 'b'"
    ):
        predictor.encode([('a', 'b')])
