"""The load tool asks a service on this machine, so many clients at once, and says what was refused."""

import http.server
import importlib.util
import json
import threading

import pytest
from helpers.commands import call
from helpers.tiny import network, saved_model

from gluon_optbert.deployment.export import export

import load_service as tool  # isort: skip

FACTS = {'model': 'tiny', 'engine': {}, 'computes': 'classification', 'texts': 'one', 'limits': {}}


class StandIn(http.server.BaseHTTPRequestHandler):
    """A service that answers each request, but for every tenth one, which it refuses."""

    protocol_version = 'HTTP/1.1'
    most, now, bodies, texts, lock = 0, 0, [], 0, threading.Lock()

    def do_GET(self):
        self.answer(200, {**FACTS, 'computed': {'texts': self.texts, 'batches': self.texts // 2}})

    def do_POST(self):
        cls = type(self)
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        with self.lock:
            cls.now += 1
            cls.most = max(cls.most, cls.now)
            cls.bodies.append((self.path, body))
            refused = len(cls.bodies) % 10 == 0
            cls.texts += 0 if refused else len(body['instances'])
        threading.Event().wait(0.01)
        with self.lock:
            cls.now -= 1
        self.answer(503 if refused else 200, {'predictions': []})

    def answer(self, status, values):
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words):
        pass


@pytest.fixture
def stand_in():
    """The class of a service that runs, with its address."""

    class Fresh(StandIn):
        bodies = []

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Fresh)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with server:
        yield Fresh, f'http://127.0.0.1:{server.server_port}'
        server.shutdown()
        thread.join()


def test_clients_ask_at_the_same_time_as_often_as_told(stand_in, tmp_path):
    service, address = stand_in
    words = ['--concurrency', '1,4', '--requests', 40, '--texts', 3, '--output', tmp_path / 'load.json']
    done = call('tools/load_service.py', address, *words)
    assert done.returncode == 0, done.stderr
    assert len(service.bodies) == tool.WARM_UP + 80 and service.most == 4
    assert {path for path, _ in service.bodies} == {'/predict'}
    assert all(len(body['instances']) == 3 for _, body in service.bodies)
    result = json.loads((tmp_path / 'load.json').read_text())
    one, four = result['levels']
    assert (one['clients'], four['clients']) == (1, 4)
    for level in (one, four):
        assert level['requests'] == 36 and level['failed'] == {'503': 4}
        assert 10 <= level['p50_ms'] <= level['p90_ms'] <= level['p99_ms'] <= level['largest_ms']
        assert level['texts_per_second'] == pytest.approx(3 * level['requests_per_second'])
        assert level['texts_of_a_batch'] == pytest.approx(2, abs=0.1)
    assert four['requests_per_second'] > one['requests_per_second']
    assert {'commit', 'versions', 'machine', 'load', 'recipe', 'service'} <= set(result)
    shown = (tmp_path / 'load.md').read_text()
    assert '4 × 503' in shown and shown in done.stdout


def test_time_ends_a_measurement(stand_in):
    service, address = stand_in
    done = call('tools/load_service.py', address, '--concurrency', 1, '--requests', 10_000, '--seconds', 0.3)
    assert done.returncode == 0 and 5 < len(service.bodies) < 100


@pytest.mark.parametrize(
    'words, message',
    [
        (['http://192.0.2.1:8000'], 'only a service on this machine'),
        (['http://example.org'], 'only a service on this machine'),
        (['http://127.0.0.1:99999'], 'only a service on this machine'),
        (['nowhere'], 'neither an address with http:// nor a directory'),
        (['http://127.0.0.1:1', '--wait', '3'], 'give its directory'),
        (['http://127.0.0.1:1', '--concurrency', '0'], 'numbers from 1 to 256'),
        (['http://127.0.0.1:1', '--requests', '0'], 'requests must be at least 1'),
        (
            ['http://127.0.0.1:1', '--output', 'load.md'],
            'load.md: the table beside the JSON file has this name',
        ),
        (['http://127.0.0.1:1', '--input', 'nowhere'], 'no such file'),
    ],
)
def test_what_cannot_be_loaded_is_refused(words, message):
    done = call('tools/load_service.py', *words)
    assert done.returncode == 2 and message in done.stderr


def test_no_service_is_a_failure_in_one_line():
    done = call('tools/load_service.py', 'http://127.0.0.1:1')
    assert done.returncode == 1 and done.stderr.startswith('error: 127.0.0.1 port 1: no service answers')


@pytest.mark.parametrize(
    'texts, wanted',
    [
        ('one', [{'text': 'a'}, {'text': 'b'}]),
        ('two', [{'text': 'a', 'pair': 'a'}, {'text': 'b', 'pair': 'a'}]),
        ('question', [{'question': tool.QUESTION, 'context': text} for text in 'ab']),
    ],
)
def test_requests_have_the_texts_that_the_network_reads(texts, wanted):
    bodies = tool.request_of({'texts': texts}, ['a', 'b'], 2)
    assert json.loads(next(bodies)) == json.loads(next(bodies)) == {'instances': wanted}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec('fastapi') is None, reason='FastAPI is not installed')
def test_a_service_is_started_for_a_directory(tmp_path):
    export(saved_model(network((2, 3, 5, 7))), tmp_path / 'deploy')
    words = ['--concurrency', '8', '--requests', 80, '--wait', 5, '--batch-size', 4]
    done = call('tools/load_service.py', tmp_path / 'deploy', *words, '--output', tmp_path / 'load.json')
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / 'load.json').read_text())
    assert result['service']['computes'] == 'embeddings' and result['recipe']['service'] == 'deploy'
    (level,) = result['levels']
    assert level['requests'] == 80 and level['failed'] == {} and 1 < level['texts_of_a_batch'] <= 4
