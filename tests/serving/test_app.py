"""The service answers texts, keeps to its limits, and tells a client what is wrong and nothing else."""

import asyncio
import concurrent.futures
import contextlib
import json
import time

import pytest
from helpers.examples import examples
from helpers.services import HEADS, FakePredictor
from hypothesis import given, strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from gluon_optbert.serving.app import make_app, read_body
from gluon_optbert.serving.bodies import LONGEST_ID
from gluon_optbert.serving.settings import ServiceSettings

SOON = 20  # seconds
JSON = {'Content-Type': 'application/json'}


def client_of(predictor=None, **settings):
    app = make_app(predictor or FakePredictor(), name='tiny', settings=ServiceSettings(**settings))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope='module')
def clients():
    """A client of a service of each kind of network, for three texts of 20 characters; by the kind."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(client_of(FakePredictor(head), max_texts=3, max_characters=20))
            for name, head in HEADS.items()
        }


def test_settings_of_embeddings_are_refused_for_a_network_that_gives_none():
    for setting in ({'pooling': 'cls'}, {'normalise': False}):
        with pytest.raises(ValueError, match='tiny gives no embeddings'):
            client_of(**setting)
        client_of(FakePredictor(HEADS['embeddings']), **setting)


@pytest.fixture(scope='module')
def client(clients):
    return clients['sentences']


@pytest.mark.parametrize(
    'head, request_body, wanted',
    [
        (
            'sentences',
            {'text': 'abc', 'id': 5},
            {'id': 5, 'text': 'abc', 'label': '1', 'name': 'positive'}
            | {'probabilities': {'0': 0.25, '1': 0.75}},
        ),
        ('pairs', {'text': 'ab', 'pair': 'c'}, {'text': 'ab', 'pair': 'c', 'value': 3.0}),
        (
            'questions',
            {'question': 'who?', 'context': 'Ann did'},
            {'question': 'who?', 'text': 'Ann', 'score': 1.5, 'start': 0, 'end': 3, 'probability': 0.0},
        ),
    ],
)
def test_predictions_are_those_of_the_predictor(clients, head, request_body, wanted):
    one = clients[head].post('/predict', json=request_body)
    several = clients[head].post('/predict', json={'instances': [request_body, request_body]})
    assert one.status_code == several.status_code == 200
    assert one.json() == {'predictions': [wanted]} and several.json() == {'predictions': [wanted, wanted]}


def test_an_encoder_gives_embeddings(clients):
    answer = clients['embeddings'].post('/embed', json={'instances': ['a', 'abc']})
    assert answer.json() == {'embeddings': [[1, 1], [3, 1]], 'pooling': 'mean', 'normalised': True}
    wrong = clients['embeddings'].post('/predict', json={'text': 'a'})
    assert wrong.status_code == 404 and 'POST /embed' in wrong.json()['error']
    predictor = FakePredictor(HEADS['embeddings'])
    predictor.pairs = False  # it has one token type
    with client_of(predictor) as client:
        answer = client.post('/embed', json={'text': 'a', 'pair': 'b'})
    assert (answer.status_code, 'pair' in answer.json()['error']) == (422, True)


def test_health_says_what_is_served_and_that_a_network_cannot_be_trusted(client):
    predictor = FakePredictor()
    with client_of(predictor) as other:
        predictor.problem = 'computes NaN'
        failed = other.get('/health')
    assert failed.status_code == 503
    assert (failed.json()['status'], failed.json()['problem']) == ('failed', 'computes NaN')
    values = client.get('/health').json()
    assert values['status'] == 'ok' and values['waiting'] == 0 and values['model'] == 'tiny'
    assert values['computes'] == 'classification' and values['texts'] == 'one'
    assert values['engine'] == {'name': 'none', 'version': '1', 'precision': 'float32', 'threads': 1}
    assert values['labels'][0] == {'label': '0', 'name': 'negative'}


def test_requests_at_the_same_time_share_passes_and_one_too_many_is_told_when_to_try_again():
    predictor = FakePredictor()
    predictor.let_go.clear()
    with (
        client_of(predictor, batch_size=8, queue=12, max_texts=2) as client,
        concurrent.futures.ThreadPoolExecutor(13) as clients,
    ):
        first = clients.submit(client.post, '/predict', json={'text': 'first'})
        assert predictor.began.wait(SOON)
        others = [clients.submit(client.post, '/predict', json={'text': 'a' * n}) for n in range(1, 13)]
        until = time.monotonic() + SOON
        while client.get('/health').json()['waiting'] < 12 and time.monotonic() < until:
            time.sleep(0.01)
        refused = client.post('/predict', json={'text': 'c'})
        predictor.let_go.set()
        answers = [future.result(SOON).json() for future in (first, *others)]
        assert client.get('/health').json()['computed'] == {'texts': 13, 'batches': 3, 'cut': 0}
    assert [len(batch) for batch in predictor.batches] == [1, 8, 4]
    assert [one['predictions'][0]['text'] for one in answers[1:]] == ['a' * n for n in range(1, 13)]
    assert refused.status_code == 503 and int(refused.headers['Retry-After']) >= 1
    assert 'wait already' in refused.json()['error']


def test_an_answer_that_takes_too_long_is_given_up():
    predictor = FakePredictor()
    predictor.let_go.clear()
    with client_of(predictor, timeout=0.2) as client:
        slow = client.post('/predict', json={'text': 'a'})
        queued = client.post('/predict', json={'text': 'b'})
        assert client.get('/health').status_code == 200
        predictor.let_go.set()
        assert client.post('/predict', json={'text': 'c'}).status_code == 200
    assert slow.status_code == queued.status_code == 504 and '0.2 seconds' in slow.json()['error']
    assert predictor.batches == [['a'], ['c']]  # nobody waits for b any more


def test_a_body_that_is_too_large_is_refused_and_not_read_to_its_end():
    with client_of(max_body=1000) as client:
        stated = client.post('/predict', content=b' ' * 1001, headers=JSON)
        chunked = client.post('/predict', content=(b' ' * 100 for _ in range(20)), headers=JSON)
        fitting = client.post('/predict', content=b'{"text": "a"}'.ljust(1000), headers=JSON)
    assert stated.status_code == chunked.status_code == 413 and fitting.status_code == 200
    assert 'more than 1000 bytes' in chunked.json()['error'] and stated.headers['Connection'] == 'close'
    read = []

    async def receive():
        read.append(1)
        return {'type': 'http.request', 'body': b' ' * 100, 'more_body': len(read) < 1000}

    request = Request({'type': 'http', 'headers': []}, receive)
    with pytest.raises(HTTPException, match='more than 1000 bytes'):
        asyncio.run(read_body(request, 1000))
    assert len(read) == 11


@pytest.mark.parametrize(
    'method, path, options, status, words',
    [
        ('GET', '/docs', {}, 404, 'there is no /docs'),
        ('POST', '/predict/', {'json': {'text': 'a'}, 'follow_redirects': False}, 404, '/predict/'),
        ('POST', '/nowhere', {'headers': {'Host': '['}}, 404, 'there is no /nowhere'),
        ('DELETE', '/health', {}, 405, 'no such method'),
        ('POST', '/embed', {'json': {'text': 'a'}}, 404, 'POST /predict'),
        ('POST', '/predict', {'data': {'text': 'a'}}, 415, 'x-www-form-urlencoded'),
        ('POST', '/predict', {'content': b'{"text": "a"}'}, 415, 'found no type'),
        ('POST', '/predict', {'content': b'{}', 'headers': {**JSON, 'Content-Encoding': 'X'}}, 415, "'x'"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(client, method, path, options, status, words):
    answer = client.request(method, path, **options)
    assert answer.status_code == status and list(answer.json()) == ['error']
    assert words in answer.json()['error'] and answer.headers['Content-Type'] == 'application/json'
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'


def test_head_is_answered_as_get_without_a_body(client):
    for path in ('/health', '/'):
        asked, got = client.head(path), client.get(path)
        assert asked.status_code == got.status_code == 200
        assert asked.headers['Content-Type'] == got.headers['Content-Type']


@pytest.mark.parametrize('names', [None, (), ('a.example', 'b.example')])
def test_hosts_are_answered_by_name(names):
    client = TestClient(make_app(FakePredictor(), host_names=names))
    own = ['localhost', 'LOCALHOST:80', 'localhost.', '127.0.0.1', '127.8.9.1:8000', '[::1]', '[::1]:9']
    others = ['evil.example', '192.168.0.7', 'localhost.evil.example', '', '[', '[::2]', 'a', '127.0.0.1.x']
    named = ['a.example', 'B.example:80']
    for host in own + others + named:
        answer = client.get('/openapi.json', headers={'Host': host})
        expected = host in own or names is None or (bool(names) and host in named)
        assert answer.status_code == (200 if expected else 421), host
        assert expected or '--host-names' in answer.json()['error']


@pytest.mark.parametrize(
    'values, head, status, words',
    [
        (b'{"text": "a"', 'sentences', 400, 'not JSON'),
        (b'[' * 100_000, 'sentences', 400, 'not JSON that can be read'),
        ({'text': '\ud800'}, 'sentences', 422, 'surrogate'),
        ({'text': 'a', 'x\n<b>': 'a'}, 'sentences', 422, "'x\\n<b>': is not read"),
        ({'text': 'a', '#x': 'a'}, 'sentences', 422, "'#x': is not read"),
        ({'text': ' \n\t'}, 'sentences', 422, 'text: is empty'),
        ({'text': 'a' * 21}, 'sentences', 413, 'at most 20'),
        ({'text': 'a', 'id': 'b' * (LONGEST_ID + 1)}, 'sentences', 413, 'id: '),
        ({'text': 'a'}, 'pairs', 422, 'pair: is missing'),
        ({'question': 'a', 'context': 'b'}, 'pairs', 422, 'text: is missing'),
        ({'instances': ['a', 3]}, 'sentences', 422, 'instances[1]: must be an object'),
        ({'instances': ['a', {'text': ''}]}, 'sentences', 422, 'instances[1].text: is empty'),
        ({'instances': ['a'] * 4}, 'sentences', 413, 'at most 3'),
    ],
)
def test_bodies_that_do_not_fit_are_refused_in_words(clients, values, head, status, words):
    body = values if isinstance(values, bytes) else json.dumps(values).encode()
    answer = clients[head].post('/predict', content=body, headers=JSON)
    assert answer.status_code == status and words in answer.json()['error'], answer.text
    assert len(answer.json()['error']) < 400 and answer.json()['error'].isprintable()


def test_forms_of_texts_are_read(clients):
    def texts(head, values, path='/predict'):
        answer = clients[head].post(path, json=values)
        assert answer.status_code == 200, answer.text
        return answer.json()

    largest = {'text': 'a' * 20, 'id': 'b' * LONGEST_ID}
    answers = texts('sentences', {'instances': ['a', largest, {'text': 'b', 'pair': None, 'id': 7}]})
    assert [one['text'] for one in answers['predictions']] == ['a', largest['text'], 'b']
    assert [one.get('id') for one in answers['predictions']] == [None, largest['id'], 7]
    question = texts('questions', {'question': 'a', 'context': 'bc'})
    assert texts('questions', {'text': 'a', 'pair': 'bc'}) == question
    pair = texts('embeddings', {'instances': ['abc', {'text': 'b', 'pair': 'c'}]}, '/embed')
    assert pair['embeddings'] == [[3, 1], [1, 1]]
    headers = {'Content-Type': 'Application/JSON; charset=utf-8'}
    answer = clients['sentences'].post('/predict', content='{"text": "schön 🌍"}'.encode(), headers=headers)
    assert answer.status_code == 200 and answer.json()['predictions'][0]['text'] == 'schön 🌍'


def test_a_failure_is_told_to_the_log_and_not_to_the_client(caplog):
    with client_of(FakePredictor(failing='bad')) as client:
        answer = client.post('/predict', json={'text': 'bad'})
        assert client.post('/predict', json={'text': 'good'}).status_code == 200
    assert answer.status_code == 500 and answer.json() == {'error': 'the service failed; its log says why'}
    assert 'a secret of the server' in caplog.text and answer.headers['X-Content-Type-Options'] == 'nosniff'

    class Broken(FakePredictor):
        def encode(self, instances, **options):
            return super().encode(instances, **options) * float('nan')

    with client_of(Broken(HEADS['embeddings'])) as client:
        answer = client.post('/embed', json={'text': 'a'})  # whose numbers JSON lacks
    assert answer.status_code == 500 and 'log' in answer.json()['error']


@pytest.mark.parametrize('name', [name for name in HEADS if name != 'embeddings'])
def test_the_description_has_the_routes_and_the_keys_that_the_network_reads(clients, name):
    text = clients[name].get('/openapi.json').text
    described = json.loads(text)
    assert set(described['paths']) == {'/predict', '/health'} and '://' not in text
    models = described['components']['schemas']
    forms = [set(models[one]['required']) for one in ('Sentence', 'Pair', 'Question') if one in models]
    wanted = {'sentences': [{'text'}], 'pairs': [{'text', 'pair'}]}
    assert forms == wanted.get(name, [{'text', 'pair'}, {'question', 'context'}])
    assert models['Several']['properties']['instances']['maxItems'] == 3
    for form in forms:
        assert clients[name].post('/predict', json=dict.fromkeys(form, 'a')).status_code == 200


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)
LIKELY = st.dictionaries(st.sampled_from(['text', 'pair', 'question', 'context', 'id', 'instances']), ANY)


@examples(40)
@given(ANY | LIKELY | st.fixed_dictionaries({'instances': st.lists(LIKELY | st.text(), max_size=4)}))
def test_no_json_makes_the_service_fail(client, values):
    body = json.dumps(values).encode()  # with NaN, Infinity and lone surrogates, as Python writes them
    answer = client.post('/predict', content=body, headers=JSON)
    assert answer.status_code in (200, 400, 413, 422)
    assert list(answer.json()) == ['predictions' if answer.status_code == 200 else 'error']


@examples(40)
@given(st.binary(max_size=100), st.sampled_from(['/predict', '/embed', '/', '/health', '/x']), st.booleans())
def test_no_bytes_make_the_service_fail(client, body, path, is_json):
    answer = client.post(path, content=body, headers=JSON if is_json else {})
    assert 400 <= answer.status_code < 500 and list(answer.json()) == ['error']
