"""The service answers texts, keeps to its limits, and tells a client what is wrong and nothing else."""

import asyncio
import concurrent.futures
import json
import threading
import time

import pytest
from helpers.services import HEADS, FakePredictor
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip('fastapi', reason='the service needs FastAPI, which is not installed')
pytest.importorskip('httpx', reason='the client of these tests needs httpx, which is not installed')
pytest.importorskip('markdown_it', reason='the page needs markdown-it-py, which is not installed')

from starlette.requests import Request
from starlette.testclient import TestClient

from gluon_optbert.serving.app import make_app, read_body
from gluon_optbert.serving.requests import BadRequest
from gluon_optbert.serving.settings import ServiceSettings

SOON = 20  # seconds
JSON = {'Content-Type': 'application/json'}


def client_of(predictor=None, **settings):
    app = make_app(predictor or FakePredictor(), name='tiny', settings=ServiceSettings(**settings))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope='module')
def client():
    with client_of() as client:
        yield client


@pytest.mark.parametrize(
    'head, request_body, wanted',
    [
        (
            'sentences',
            {'text': 'abc', 'id': 5},
            {
                'id': '5',
                'text': 'abc',
                'label': '1',
                'name': 'positive',
                'probabilities': {'0': 0.25, '1': 0.75},
            },
        ),
        ('pairs', {'text': 'ab', 'pair': 'c'}, {'text': 'ab', 'pair': 'c', 'value': 3.0}),
        (
            'questions',
            {'question': 'who?', 'context': 'Ann did'},
            {'question': 'who?', 'text': 'Ann', 'score': 1.5, 'start': 0, 'end': 3, 'probability': 0.0},
        ),
    ],
)
def test_predictions_are_those_of_the_predictor(head, request_body, wanted):
    with client_of(FakePredictor(HEADS[head])) as client:
        one = client.post('/predict', json=request_body)
        several = client.post('/predict', json={'instances': [request_body, request_body]})
    assert one.status_code == several.status_code == 200
    assert one.json() == {'predictions': [wanted]} and several.json() == {'predictions': [wanted, wanted]}


def test_an_encoder_gives_embeddings():
    with client_of(FakePredictor(HEADS['embeddings'])) as client:
        answer = client.post('/embed', json={'instances': ['a', 'abc']})
        assert answer.json() == {'embeddings': [[1, 1], [3, 1]], 'pooling': 'mean', 'normalised': True}
        wrong = client.post('/predict', json={'text': 'a'})
    assert wrong.status_code == 404 and 'POST /embed' in wrong.json()['error']


def test_a_classifier_gives_no_embeddings(client):
    answer = client.post('/embed', json={'text': 'a'})
    assert answer.status_code == 404 and 'POST /predict' in answer.json()['error']


def test_health_says_what_is_served(client):
    values = client.get('/health').json()
    assert values['status'] == 'ok' and values['waiting'] == 0 and values['model'] == 'tiny'
    assert values['computes'] == 'classification' and values['texts'] == 'one'
    assert values['engine'] == {'name': 'none', 'version': '1', 'precision': 'float32', 'threads': 1}
    assert values['labels'][0] == {'label': '0', 'name': 'negative'}


def test_requests_at_the_same_time_share_forward_passes():
    predictor = FakePredictor()
    predictor.let_go.clear()
    with client_of(predictor, batch_size=8) as client, concurrent.futures.ThreadPoolExecutor(13) as clients:
        first = clients.submit(client.post, '/predict', json={'text': 'first'})
        assert predictor.began.wait(SOON)
        others = [clients.submit(client.post, '/predict', json={'text': 'a' * n}) for n in range(1, 13)]
        until = time.monotonic() + SOON
        while client.get('/health').json()['waiting'] < 12 and time.monotonic() < until:
            time.sleep(0.01)
        predictor.let_go.set()
        answers = [future.result(SOON).json() for future in (first, *others)]
        assert client.get('/health').json()['computed'] == {'texts': 13, 'batches': 3}
    assert [len(batch) for batch in predictor.batches] == [1, 8, 4]
    assert [one['predictions'][0]['text'] for one in answers[1:]] == ['a' * n for n in range(1, 13)]


def test_a_full_queue_is_said_with_the_time_to_try_again():
    predictor = FakePredictor()
    predictor.let_go.clear()
    with client_of(predictor, queue=2, max_texts=2) as client, concurrent.futures.ThreadPoolExecutor(
        3
    ) as clients:
        first = clients.submit(client.post, '/predict', json={'text': 'first'})
        assert predictor.began.wait(SOON)
        waiting = clients.submit(client.post, '/predict', json={'instances': ['a', 'b']})
        until = time.monotonic() + SOON
        while client.get('/health').json()['waiting'] < 2 and time.monotonic() < until:
            time.sleep(0.01)
        refused = client.post('/predict', json={'text': 'c'})
        predictor.let_go.set()
        assert first.result(SOON).status_code == waiting.result(SOON).status_code == 200
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


def test_a_body_that_is_too_large_is_refused():
    with client_of(max_body=1000) as client:
        stated = client.post('/predict', content=b' ' * 1001, headers=JSON)
        chunked = client.post('/predict', content=(b' ' * 100 for _ in range(20)), headers=JSON)
        fitting = client.post('/predict', content=b'{"text": "a"}'.ljust(1000), headers=JSON)
    assert stated.status_code == chunked.status_code == 413 and fitting.status_code == 200
    assert 'more than 1000 bytes' in chunked.json()['error'] and stated.headers['Connection'] == 'close'


def test_a_body_that_is_too_large_is_not_read_to_its_end():
    read = []

    async def receive():
        read.append(1)
        return {'type': 'http.request', 'body': b' ' * 100, 'more_body': len(read) < 1000}

    request = Request({'type': 'http', 'headers': []}, receive)
    with pytest.raises(BadRequest, match='more than 1000 bytes'):
        asyncio.run(read_body(request, 1000))
    assert len(read) == 11


@pytest.mark.parametrize(
    'method, path, options, status, words',
    [
        ('GET', '/nowhere', {}, 404, 'there is no /nowhere'),
        ('GET', '/docs', {}, 404, 'there is no /docs'),
        (
            'POST',
            '/predict/',
            {'json': {'text': 'a'}, 'follow_redirects': False},
            404,
            'there is no /predict/',
        ),
        ('POST', '/nowhere', {'headers': {'Host': '['}}, 404, 'there is no /nowhere'),
        ('GET', '/predict', {}, 405, '/predict has no method GET'),
        ('DELETE', '/health', {}, 405, 'no method DELETE'),
        ('POST', '/predict', {'data': {'text': 'a'}}, 415, 'x-www-form-urlencoded'),
        ('POST', '/predict', {'content': b'{"text": "a"}'}, 415, 'found no type'),
        (
            'POST',
            '/predict',
            {'content': b'{"text": "a"}', 'headers': {'Content-Type': 'text/plain'}},
            415,
            'plain',
        ),
        ('POST', '/predict', {'content': b'[' * 200_000, 'headers': JSON}, 400, 'nested too deeply'),
        ('POST', '/predict', {'content': b'{"text": NaN}', 'headers': JSON}, 400, 'NaN'),
        ('POST', '/predict', {'content': b'{"text": "\\udc80"}', 'headers': JSON}, 422, 'surrogate'),
        ('POST', '/predict', {'content': b'\x00\xff', 'headers': JSON}, 400, 'UTF-8'),
        ('POST', '/predict', {'json': {'instances': ['a'] * 65}}, 413, '65 instances'),
        ('POST', '/predict', {'json': {'text': 'a', 'pair': 'b'}}, 422, 'a task on one sentence'),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(client, method, path, options, status, words):
    answer = client.request(method, path, **options)
    assert answer.status_code == status and list(answer.json()) == ['error']
    assert words in answer.json()['error'] and answer.headers['Content-Type'] == 'application/json'
    assert answer.headers['X-Content-Type-Options'] == 'nosniff'


def test_json_with_a_character_set_is_json(client):
    headers = {'Content-Type': 'Application/JSON; charset=utf-8'}
    answer = client.post('/predict', content='{"text": "schön 🌍"}'.encode(), headers=headers)
    assert answer.status_code == 200 and answer.json()['predictions'][0]['text'] == 'schön 🌍'


def test_a_failure_is_told_to_the_log_and_not_to_the_client(caplog):
    with client_of(FakePredictor(failing='bad')) as client:
        answer = client.post('/predict', json={'text': 'bad'})
        assert client.post('/predict', json={'text': 'good'}).status_code == 200
    assert answer.status_code == 500 and answer.json() == {'error': 'the service failed; its log says why'}
    assert 'a secret of the server' in caplog.text and answer.headers['X-Content-Type-Options'] == 'nosniff'


def test_numbers_that_json_lacks_are_a_failure_and_no_answer():
    class Broken(FakePredictor):
        def encode(self, instances, **options):
            return super().encode(instances, **options) * float('nan')

    with client_of(Broken(HEADS['embeddings'])) as client:
        answer = client.post('/embed', json={'text': 'a'})
    assert answer.status_code == 500 and 'log' in answer.json()['error']


def test_settings_out_of_range_are_refused_together():
    with pytest.raises(ValueError, match='batch_size must be at least 1.*timeout.*queue must be at least'):
        make_app(FakePredictor(), settings=ServiceSettings(batch_size=0, timeout=0.0, queue=3))


def test_the_description_names_the_routes_and_no_other_host(client):
    text = client.get('/openapi.json').text
    assert set(json.loads(text)['paths']) == {'/predict', '/health'} and '://' not in text


@pytest.mark.parametrize('name, path', [(name, '/predict') for name in HEADS if name != 'embeddings'])
def test_the_description_has_the_keys_that_the_network_reads(name, path):
    with client_of(FakePredictor(HEADS[name]), max_texts=5) as client:
        described = client.get('/openapi.json').json()['paths'][path]['post']
        body = described['requestBody']['content']['application/json']['schema']
        *forms, several = body['anyOf']
        for form in forms:
            values = dict.fromkeys(form['required'], 'a')
            assert client.post(path, json=values).status_code == 200
            assert client.post(path, json={'instances': [values] * 5}).status_code == 200
    assert several['properties']['instances']['maxItems'] == 5
    wanted = {'sentences': [['text']], 'pairs': [['text', 'pair']]}
    assert [form['required'] for form in forms] == wanted.get(
        name, [['question', 'context'], ['text', 'pair']]
    )


def test_the_thread_ends_with_the_service():
    def threads():
        return {thread for thread in threading.enumerate() if thread.name == 'model'}

    before = threads()
    with client_of() as client:
        assert client.get('/health').status_code == 200
        assert len(threads() - before) == 1
    assert threads() <= before


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)
LIKELY = st.dictionaries(st.sampled_from(['text', 'pair', 'question', 'context', 'id', 'instances']), ANY)


@given(ANY | LIKELY | st.fixed_dictionaries({'instances': st.lists(LIKELY | st.text(), max_size=4)}))
def test_no_json_makes_the_service_fail(client, values):
    body = json.dumps(values).encode()  # with NaN, Infinity and lone surrogates, as Python writes them
    answer = client.post('/predict', content=body, headers=JSON)
    assert answer.status_code in (200, 400, 413, 422)
    assert list(answer.json()) == ['predictions' if answer.status_code == 200 else 'error']


@given(st.binary(max_size=100), st.sampled_from(['/predict', '/embed', '/', '/health', '/x']), st.booleans())
def test_no_bytes_make_the_service_fail(client, body, path, is_json):
    answer = client.post(path, content=body, headers=JSON if is_json else {})
    assert 400 <= answer.status_code < 500 and list(answer.json()) == ['error']
