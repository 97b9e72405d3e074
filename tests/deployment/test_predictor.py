"""Predictions: text in, labels, values or answers out, whatever the batches."""

import concurrent.futures
import dataclasses
import json
import math
import os

import numpy as np
import pytest
from helpers.commands import call, refused, succeed
from helpers.exported import HEADS, UNEVEN, load_deployment, with_head
from helpers.questions import write_squad
from helpers.tiny import ROOT, network, saved_model, vocabulary

from gluon_optbert.architecture.embedding import POOLINGS
from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.description import Deployment
from gluon_optbert.deployment.export import deployment_of, export, kind_of
from gluon_optbert.deployment.instances import Instance
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

MINILM = ROOT.parent / 'shared' / 'models' / 'minilm-l6-h384'
TEXTS = ['a b c', ('d e f. g', 'h i'), 'j', 'k l m n o p q r s t u v w x y z a b c', ('x y', '')]
PAIRS = [('a b', 'c d e f. g h. i j k l m n o p q r s t u v w x y z'), ('c', 'a b.'), ('d', '')]
NAN = float('nan')


def plain(prediction):
    """The numbers of a prediction."""
    return [value for value in vars(prediction).values() if isinstance(value, float)] or list(
        prediction.probabilities.values()
    )


@pytest.mark.parametrize('kind', ['classification', 'regression', 'question_answering'])
def test_batches_and_order_do_not_matter(exports, kind):
    predictor = Predictor(exports / kind, engine='mxnet')
    items = PAIRS if kind == 'question_answering' else TEXTS
    wanted = [next(predictor.predict([item])) for item in items]
    for batch_size, ahead in ((2, 1), (3, 2), (32, 16)):
        predictions = list(predictor.predict(iter(items * 2), batch_size=batch_size, ahead=ahead))
        assert len(predictions) == 2 * len(items)
        for one, other in zip(predictions, wanted * 2):
            # float32, other paddings
            np.testing.assert_allclose(plain(one), plain(other), rtol=1e-4, atol=1e-6)


def test_probabilities_are_the_softmax_of_the_networks_scores(exports):
    predictor = Predictor(exports / 'classification', engine='mxnet')
    batch = next(sorted_batches(predictor._encoder.features([Instance('a b', 'c')]), 1))
    block, _ = load_deployment(exports / 'classification')
    scores = running.run(block, batch, TOKEN_INPUTS)[0][0].astype(float)
    prediction = next(predictor.predict([('a b', 'c')]))
    wanted = dict(zip(['no', 'yes'], np.exp(scores) / np.exp(scores).sum()))
    assert prediction.probabilities == pytest.approx(wanted, rel=1e-5)
    assert prediction.label == max(wanted, key=wanted.get)


def test_instances_are_read_as_they_are_needed(exports):
    taken = []

    def endless():
        while True:
            taken.append('a b')
            yield 'a b'

    next(Predictor(exports / 'regression').predict(endless(), batch_size=2, ahead=3))
    assert len(taken) == 6


@pytest.mark.parametrize(
    'texts, says',
    [
        ('a fine film', "found str 'a fine film'"),
        (np.array([['a', 'b']]), 'found ndarray'),
        (['a', NAN], 'text number 1 is nan'),
        ([Instance('a', NAN)], 'text number 0 is Instance'),
        ([('a', 'b', 'c')], 'text number 0 has 3 parts'),
        (['a', 'b \ud800'], 'text number 1: half of a character'),
    ],
)
def test_what_are_no_texts_is_refused_with_what_is_wanted(exports, texts, says):
    with pytest.raises((TypeError, ValueError), match=f'(?=.*{says})(?=.*(a str, a pair|whole ones))'):
        list(Predictor(exports / 'regression').predict(texts))


def test_texts_of_any_collection_are_read_and_counts_are_whole(exports):
    predictor = Predictor(exports / 'regression')
    wanted = list(predictor.predict(['a', 'b']))
    for texts in (iter('ab'), {'a': 1, 'b': 2}.keys(), np.array(['a', 'b']), [['a'], Instance('b')]):
        assert list(predictor.predict(texts)) == wanted
    for name in ('batch_size', 'ahead'):
        with pytest.raises(ValueError, match=f'{name} must be at least 1, found 0'):
            predictor.predict(['a b'], **{name: 0})
    with pytest.raises(TypeError, match='must be a whole number'):
        predictor.predict(['a'], batch_size=2.5)


def test_sentences_fill_the_positions_that_the_network_has():
    encoder = Encoder(Deployment(UNEVEN, vocabulary(), HEADS['classification'], 'task'))
    long, other = ' '.join('a' * 30), ' '.join('b' * 30)
    features = encoder.features([Instance(long), Instance(long, other), Instance('a', 'b')])
    assert features.lengths.tolist() == [UNEVEN.max_length] * 2 + [5]


def test_text_is_cut_as_in_fine_tuning_or_predicted_by_windows(tmp_path):
    recipe = to_dict(GlueRecipe(model='m', output='o', data='d', task='SST-2', max_length=8))
    saved = with_head(UNEVEN, HEADS['classification'])
    export(saved, tmp_path / 'whole')
    saved = dataclasses.replace(saved, recipe=recipe)
    export(saved, tmp_path / 'cut')
    export(saved, tmp_path / 'split', long='split')
    whole, cut, split = (Predictor(tmp_path / name) for name in ('whole', 'cut', 'split'))
    text, parts = ' '.join('abcdefghij'), [' '.join('abcdef'), ' '.join('efghij')]
    predicted = list(cut.predict([text, 'a', *parts]))
    assert [one.cut for one in predicted] == [True, False, False, False]
    assert cut.cut_note == '1 of 4 texts were cut to 8 tokens; --long split'
    np.testing.assert_allclose(plain(predicted[0]), plain(next(whole.predict(parts[:1]))), rtol=1e-6)
    assert not np.allclose(plain(predicted[0]), plain(next(whole.predict([text]))), rtol=1e-4)
    (one, other) = split.predict([text, 'a'])
    wanted = np.mean([np.log(plain(part)) for part in predicted[2:]], axis=0)
    wanted = np.exp(wanted) / np.exp(wanted).sum()  # of the mean of the scores
    np.testing.assert_allclose(plain(one), wanted, rtol=1e-4)
    np.testing.assert_allclose(plain(other), plain(predicted[1]), rtol=1e-5)
    assert not one.cut and split.cut_note == '' and split.texts == 2
    stated = Predictor(tmp_path / 'cut', long='split')
    assert plain(next(stated.predict([text]))) == plain(next(split.predict([text])))
    with pytest.raises(ValueError, match="long is 'split', wanted 'cut': the network has no scores of a"):
        export(with_head(UNEVEN, HEADS['question_answering']), tmp_path / 'answers', long='split')


def test_the_command_says_what_was_cut(tmp_path, caplog):
    saved = dataclasses.replace(with_head(UNEVEN, HEADS['classification']), recipe={'max_length': 8})
    text = ' '.join('abcdefghij')
    export(saved, tmp_path / 'cut', labelled=[Instance(text, label='no'), Instance('a', label='no')])
    assert '1 of 2 texts were cut to 8 tokens' in caplog.text
    (tmp_path / 'texts.csv').write_text(f'id,body,label\n1,{text},no\n')
    words = ('tools/predict.py', tmp_path / 'cut', '--input', tmp_path / 'texts.csv', '--text', 'body')
    done = call(*words)
    line = json.loads(done.stdout)
    assert (done.returncode, line['text'], line['cut']) == (0, text, True)
    assert '1 of 1 texts were cut to 8 tokens; --long split' in done.stderr


@pytest.mark.parametrize('length', [17, True])
def test_length_of_text_that_no_fine_tuning_has_is_refused(tmp_path, length):
    saved = dataclasses.replace(with_head(UNEVEN, HEADS['classification']), recipe={'max_length': length})
    with pytest.raises(ValueError, match='max_length of the fine-tuning run is .*from 5 to 16'):
        export(saved, tmp_path / 'deploy')
    assert not (tmp_path / 'deploy').exists()
    for kind in ('encoder', 'question_answering'):  # which cut no text
        saved = dataclasses.replace(with_head(UNEVEN, HEADS[kind]), recipe={'max_length': length})
        assert deployment_of(saved, kind_of(saved)).text_length is None


def test_answers_are_passages_of_the_context_unless_the_threshold_is_low(exports):
    predictor = Predictor(exports / 'question_answering')
    for (_, context), answer in zip(PAIRS, predictor.predict(PAIRS)):
        assert context[answer.start : answer.end] == answer.text
        assert bool(answer.text) == bool(context) and math.isfinite(answer.score)
    with pytest.raises(ValueError, match='without a context'):
        list(predictor.predict(['who?']))
    reluctant = Predictor(exports / 'question_answering', null_threshold=-1000)
    assert next(reluctant.predict(PAIRS)).text == ''
    with pytest.raises(ValueError, match='null_threshold must be finite'):
        Predictor(exports / 'question_answering', null_threshold=NAN)
    with pytest.raises(ValueError, match="long is 'cut'.* in windows .* leave out --long"):
        Predictor(exports / 'question_answering', long='cut')
    with pytest.raises(ValueError, match='this is an export of classification'):
        Predictor(exports / 'classification', null_threshold=0.0)


SENTENCES = ['a b c', 'd e f. g', 'j', 'k l m n o p q r s t u v w x y z']


@pytest.fixture(scope='module', params=['encoder', 'pretraining'])
def encoder(request, exports, tmp_path_factory):
    """An export with encoded tokens."""
    if request.param == 'encoder':
        return Predictor(exports / 'encoder')
    place = tmp_path_factory.mktemp('encoder') / 'deploy'
    export(saved_model(UNEVEN), place, head='pretraining')
    return Predictor(place)


def test_embedding_is_of_the_real_tokens(encoder):
    network = build(UNEVEN, saved_model(UNEVEN).parameters, use_classifier=False, use_decoder=False)
    words, tokens = vocabulary(), []
    for sentence in SENTENCES:
        ids = words[['[CLS]', *sentence.replace('.', ' .').split()[:14], '[SEP]']]
        feed = {'input_ids': [ids], 'token_types': [[0] * len(ids)], 'valid_length': [len(ids)]}
        feed = {name: np.array(values) for name, values in feed.items()}
        tokens.append(running.run(network, feed, TOKEN_INPUTS)[0][0])  # of one sentence, without padding
    poolings = {
        'mean': lambda one: one.mean(axis=0),
        'cls': lambda one: one[0],
        'max': lambda one: one.max(axis=0),
        'mean_sqrt_len': lambda one: one.sum(axis=0) / np.sqrt(len(one)),
    }
    assert poolings.keys() == set(POOLINGS)
    for name, pooled in poolings.items():
        embeddings = encoder.encode(SENTENCES, pooling=name, normalise=False, batch_size=3)
        wanted = np.array(list(map(pooled, tokens)))
        assert embeddings.dtype == np.float32 and embeddings.shape == (4, UNEVEN.h)
        np.testing.assert_allclose(embeddings, wanted, rtol=1e-4, atol=1e-5)  # float32, other paddings
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        embeddings = encoder.encode(SENTENCES, pooling=name, normalise=True)
        np.testing.assert_allclose(embeddings, wanted, rtol=1e-4, atol=1e-5)


def test_embeddings_have_one_row_for_each_text(exports):
    predictor = Predictor(exports / 'encoder')
    assert predictor.encode([]).shape == (0, UNEVEN.h)
    pair = predictor.encode([('a b', 'c')])
    assert pair.shape == (1, UNEVEN.h) and not np.allclose(pair, predictor.encode(['a b']))
    with pytest.raises(ValueError, match="pooling must be 'mean', 'cls'"):
        predictor.encode(['a'], pooling='last')
    with pytest.raises(ValueError, match='has no embeddings'):
        Predictor(exports / 'classification').encode(['a'])
    with pytest.raises(ValueError, match='export a fine-tuned model'):
        predictor.predict(['a'])


@pytest.mark.parametrize(
    'changes, says',
    [
        ({'input_ids': np.zeros((1, 17), int)}, 'sequences of 17 tokens, and the network has 16 positions'),
        ({'input_ids': np.array([[1, 32]])}, 'input_ids from 1 to 32, and they must lie between 0 and 31'),
        ({'input_ids': [[2, NAN, 3]]}, 'input_ids from nan to nan'),
        ({'input_ids': [[2, 1.7]]}, 'input_ids must be whole numbers, found 1.7'),
        ({'valid_length': np.array([1.5])}, 'valid_length must be whole numbers, found 1.5'),
        ({'valid_length': np.array([3])}, 'valid_length'),
        ({'input_ids': np.array(2)}, 'shapes'),
        ({'input_ids': np.zeros((0, 2), int)}, 'shapes'),
    ],
)
def test_tokens_that_the_network_has_no_row_for_are_refused(exports, changes, says):
    with pytest.raises(ValueError, match=says):
        Predictor(exports / 'encoder').outputs(**{'input_ids': np.array([[2, 3]]), **changes})


def test_command_writes_embeddings(exports, tmp_path):
    words = ['tools/predict.py', exports / 'encoder', '--embed', tmp_path / 'out.npy']
    result = call(*words, '--normalise', 'false', '--batch-size', 2, '--ahead', 1, input='a b\nc\nd e f\n')
    assert result.returncode == 0 and '3 embeddings of 8 numbers' in result.stdout, result.stderr
    wanted = Predictor(exports / 'encoder').encode(['a b', 'c', 'd e f'], normalise=False)
    np.testing.assert_allclose(np.load(tmp_path / 'out.npy'), wanted, atol=1e-5)  # float32, other paddings
    again = call(*words, input='a b\n')
    assert again.returncode == 2 and 'give another --embed' in again.stderr


@pytest.mark.slow
@pytest.mark.skipif(not MINILM.is_dir(), reason='no MiniLM checkpoint beside the project')
def test_close_sentences_have_close_embeddings(tmp_path):
    """The checkpoint was trained for sentence similarity, with the mean of the tokens."""
    import_checkpoint(ImportRecipe(source=str(MINILM), output=tmp_path / 'model'))
    export(read_model(tmp_path / 'model'), tmp_path / 'deploy', onnx=True)
    pairs = [
        ('A man is eating food.', 'A man eats a meal.'),
        ('The stock market fell sharply.', 'Share prices dropped a lot.'),
        ('The cat sleeps on the sofa.', 'A kitten is napping on the couch.'),
    ]
    runtime, mxnet = (Predictor(tmp_path / 'deploy', engine=name) for name in ('onnxruntime', 'mxnet'))
    one, other = (mxnet.encode([pair[i] for pair in pairs]) for i in (0, 1))
    np.testing.assert_allclose(runtime.encode([pair[0] for pair in pairs]), one, atol=1e-5)
    cosines = one @ other.T
    assert np.diag(cosines).min() > 0.5 > 0.2 > (cosines - np.diag(np.diag(cosines))).max()


def answered(*words, **options):
    """Output of the command for texts, a line of JSON for each."""
    return [json.loads(line) for line in succeed('tools/predict.py', *words, **options).splitlines()]


def test_command_answers_every_line_and_repeats_its_text(exports):
    lines = answered(exports / 'classification', input='a b\nc\td e\nf.\rg\r\nh')
    texts = [(line['text'], line.get('pair')) for line in lines]
    assert texts == [('a b', None), ('c', 'd e'), ('f.\rg', None), ('h', None)]
    for line in lines:
        assert set(line['probabilities']) == {'no', 'yes'} and line['name'] == line['label']


def test_command_refuses_a_bad_line_before_it_answers_one(exports, tmp_path):
    (tmp_path / 'text').write_text('a\n' * 600 + 'a\tb\tc\n')
    result = call('tools/predict.py', exports / 'classification', '--input', tmp_path / 'text')
    assert result.returncode == 2 and 'text: line 601: 3 columns' in result.stderr and result.stdout == ''
    result = call('tools/predict.py', exports / 'classification', input='a\n\n')
    assert result.returncode == 2 and 'standard input: line 2: is blank' in result.stderr


@pytest.mark.parametrize(
    'words, says',
    [
        (['--input', ROOT / 'docs'], 'docs is a directory; give a file of lines'),
        (['--text', 'a,b,c'], '--text must be one column or two'),
        (['--pooling', 'cls'], '--pooling goes with --embed'),
    ],
)
def test_command_refuses_a_directory_and_flags_that_nothing_reads(exports, words, says):
    assert says in refused('tools/predict.py', exports / 'classification', *words)


def test_command_says_of_an_input_without_lines_that_it_has_none(exports, tmp_path):
    (tmp_path / 'empty').write_text('')
    for path in (tmp_path / 'empty', '/dev/null'):
        done = call('tools/predict.py', exports / 'classification', '--input', path)
        assert (done.returncode, done.stdout) == (0, '')
        assert done.stderr.endswith(f'{path}: has no lines, so there are no predictions\n')


def test_command_reads_a_pipe_that_is_named_as_the_input(exports, tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / 'pipe').write_text, '{"text": "a b"}\n{"text": "c"}\n')
        lines = answered(exports / 'classification', '--input', tmp_path / 'pipe', '--format', 'jsonl')
    assert [line['text'] for line in lines] == ['a b', 'c']


def test_questions_of_squads_file_are_answered_by_their_ids(exports, tmp_path):
    asked = [Question('q1', 'a b', 'c d\ne f. g', ()), Question('q2', 'h', 'i j k', (('j', 2),))]
    lines = [{'id': one.id, 'question': one.text, 'context': one.context} for one in asked]
    (tmp_path / 'dev.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    sources = write_squad(tmp_path / 'dev.json', asked), tmp_path / 'dev.jsonl'
    answers, same = (answered(exports / 'question_answering', '--input', source) for source in sources)
    assert answers == same and len(answers) == 2
    for one, line in zip(asked, answers):
        assert (line['id'], line['question']) == (one.id, one.text)
        assert one.context[line['start'] : line['end']] == line['text']


def test_a_network_with_one_token_type_reads_no_pairs():
    architecture = dataclasses.replace(network(), token_types=1)
    encoder = Encoder(Deployment(architecture, vocabulary(), Head(), 'encoder'))
    assert encoder.features([Instance('a')]).lengths.tolist() == [3]
    with pytest.raises(ValueError, match="pair: two texts, and the network has one token type.*'a' and 'b'"):
        encoder.features([Instance('a', 'b')])
