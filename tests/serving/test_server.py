"""The service on a real port: what it prints, what it refuses, and how it stops."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from helpers.commands import call
from helpers.tiny import ROOT, environment, network, vocabulary

pytest.importorskip('uvicorn', reason='the service needs uvicorn, which is not installed')
pytest.importorskip('fastapi', reason='the service needs FastAPI, which is not installed')
pytest.importorskip('markdown_it', reason='the page needs markdown-it-py, which is not installed')

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.export import export
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.saved_model import SavedModel
from gluon_optbert.serving import server

SOON = 60  # seconds
SLOW = """
import sys, time
from helpers.services import FakePredictor
from gluon_optbert.serving import server
from gluon_optbert.serving.app import make_app
from gluon_optbert.serving.settings import ServiceSettings

class Slow(FakePredictor):
    def predict(self, instances, **options):
        time.sleep(1.5)
        yield from super().predict(instances, **options)

listener = server.listen('127.0.0.1', 0)
settings = ServiceSettings(timeout=float(sys.argv[1]), max_connections=3)
app = make_app(Slow(), name='slow', settings=settings)
server.serve(app, listener, settings=settings, ready=lambda address: print(address, flush=True))
print('stopped')
"""


class Running:
    """A service in a process of its own, and its address."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            cwd=str(ROOT),
            env=environment(PYTHONPATH=f'{ROOT}:{ROOT / "tests"}', OMP_NUM_THREADS='1'),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = self.process.stdout.readline()
        match = re.search(r'http://127\.0\.0\.1:(\d+)', self.said)
        assert match, self.process.communicate()[1]
        self.port = int(match.group(1))

    def connection(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=SOON)

    def begin(self, values):
        """A connection that has sent a request for predictions."""
        connection = self.connection()
        connection.request('POST', '/predict', json.dumps(values), {'Content-Type': 'application/json'})
        return connection

    def post(self, values):
        answer = self.begin(values).getresponse()
        return answer.status, json.loads(answer.read())

    def end(self, number=signal.SIGTERM):
        """Send a signal; the exit status, standard output and standard error."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SOON)
        return self.process.returncode, out, err


@pytest.fixture
def running():
    """Starts services, which are ended after the test."""
    services = []

    def start(*words):
        services.append(Running(*words))
        return services[-1]

    yield start
    for service in services:
        service.process.kill()
        service.process.communicate()


@pytest.fixture(scope='module')
def deployment(tmp_path_factory):
    """The export of a classifier."""
    directory = tmp_path_factory.mktemp('serve') / 'deploy'
    architecture, head = network((2, 3, 5, 7), (1, 4, 2, 0)), Head('classification', ('no', 'yes'))
    parameters = read_parameters(build(architecture, head=head, initial_std=0.5))
    export(SavedModel(architecture, parameters, vocabulary(), head=head), directory)
    return directory


def test_the_command_answers_as_the_command_that_predicts(running, deployment):
    service = running('tools/serve.py', deployment, '--port', 0, '--host-names', 'proxy.example')
    assert f'serving {deployment} at http://127.0.0.1:{service.port}' in service.said
    status, values = service.post({'instances': ['a b c', 'x y', {'text': 'd', 'pair': 'e f'}]})
    predicted = call('tools/predict.py', deployment, input='a b c\nx y\nd\te f\n')
    wanted = [json.loads(line) for line in predicted.stdout.splitlines()]
    assert status == 200 and [one['text'] for one in values['predictions']] == ['a b c', 'x y', 'd']
    for one, other in zip(values['predictions'], wanted):
        assert one['label'] == other['label']
        assert one['probabilities'] == pytest.approx(other['probabilities'], abs=1e-6)  # other batches
    for host, status in (('localhost', 200), ('proxy.example', 200), ('evil.example', 421)):
        connection = service.connection()
        connection.request('GET', '/health', headers={'Host': host})
        assert connection.getresponse().status == status
    check_long_text(service, 'cut')
    status, out, err = service.end()
    assert (status, out) == (0, 'stopped\n') and err.startswith('engine: ') and len(err.splitlines()) == 2
    assert '1 of 4 texts were cut to 16 tokens' in err


def check_long_text(service, long):
    """A long text is cut, or read in windows, and the service says which."""
    (one,) = service.post({'text': 'a b ' * 40})[1]['predictions']
    connection = service.connection()
    connection.request('GET', '/health')
    health = json.loads(connection.getresponse().read())
    assert health['reads'] == {'tokens': 16, 'long': long}
    assert one.get('cut', False) == health['computed']['cut'] == (long == 'cut')


def test_long_texts_are_read_in_windows_on_request(running, deployment):
    service = running('tools/serve.py', deployment, '--port', 0, '--long', 'split')
    check_long_text(service, 'split')
    assert 'were cut' not in service.end()[2]


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_request_finish(running, number):
    service = running('-c', SLOW, 30)
    connection = service.begin({'text': 'abc'})
    time.sleep(0.5)
    service.process.send_signal(number)
    time.sleep(0.3)
    with pytest.raises(OSError):  # nobody else is let in
        socket.create_connection(('127.0.0.1', service.port), timeout=1).close()
    answer = connection.getresponse()
    assert answer.status == 200 and json.loads(answer.read())['predictions'][0]['text'] == 'abc'
    connection.close()
    out, err = service.process.communicate(timeout=SOON)
    assert (service.process.returncode, out, err) == (0, 'stopped\n', '')


def test_a_body_that_does_not_arrive_is_given_up(running):
    service = running('-c', SLOW, 0.3)
    with socket.create_connection(('127.0.0.1', service.port), timeout=SOON) as connection:
        head = ['POST /predict HTTP/1.1', 'Host: a', 'Content-Type: application/json', 'Content-Length: 99']
        connection.sendall('\r\n'.join([*head, '', '{']).encode())
        assert connection.recv(1000).startswith(b'HTTP/1.1 408 ')
    assert service.end()[0] == 0


def test_answers_are_sent_without_waiting_for_acknowledgements():
    """asyncio sets TCP_NODELAY where a socket names its protocol, which is that of its listener."""
    with server.listen('127.0.0.1', 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_connections_are_bounded(running):
    service = running('-c', SLOW, 30)
    idle = [socket.create_connection(('127.0.0.1', service.port), timeout=SOON) for _ in range(3)]
    connection = service.connection()
    connection.request('GET', '/health')
    answer = connection.getresponse()
    assert answer.status == 503 and '3 connections' in json.loads(answer.read())['error']
    connection.close()
    idle.pop().close()
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        connection = service.connection()
        connection.request('GET', '/health')
        status = connection.getresponse().status
        connection.close()
        if status == 200:
            break
    assert status == 200
    for one in idle:
        one.close()


def test_connections_that_send_no_whole_headers_are_closed(running):
    service = running('-c', SLOW, 1)
    with contextlib.ExitStack() as stack:
        silent = []
        for sent in (b'', b'P', b'POST /predict HTTP/1.1\r\nHost: a\r\n'):
            connection = socket.create_connection(('127.0.0.1', service.port), timeout=SOON)
            silent.append(stack.enter_context(connection))
            connection.sendall(sent)
        for connection in silent:
            assert connection.recv(1000) == b''
    connection = service.connection()
    for _ in range(2):  # the headers of a second request may stay away as well
        connection.request('GET', '/health')
        assert json.loads(connection.getresponse().read())['status'] == 'ok'
    connection.sock.sendall(b'GET /hea')
    assert connection.sock.recv(1000) == b''
    assert service.end()[0] == 0


@pytest.mark.parametrize('given_up', [False, True], ids=['awaited', 'given up'])
def test_a_second_signal_ends_it_at_once(running, given_up):
    service = running('-c', SLOW.replace('1.5', '20'), 1 if given_up else 30)
    connection = service.begin({'text': 'abc'})
    if given_up:
        assert connection.getresponse().status == 504  # the pass goes on
    time.sleep(0.5)
    service.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    began = time.monotonic()
    _, _, err = service.end()
    assert time.monotonic() - began < 5 and 'Traceback' not in err


def test_what_is_no_http_is_refused_and_the_service_goes_on(running):
    service = running('-c', SLOW, 5)
    head = b'POST /predict HTTP/1.1\r\nContent-Type: application/json\r\n'
    chunked = head + b'Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnothing\r\n'
    for nonsense in (
        *(b'\x16\x03\x01\x00\xa5\r\n', b'GET / HTTP\r\n\r\n', b'A' * 200_000 + b'\r\n\r\n', head + b'\r\n'),
        *(chunked, head + b'Host: a\r\nContent-Length: -1\r\n\r\n', head + b'Host: a\r\nHost: b\r\n\r\n'),
    ):
        with socket.create_connection(('127.0.0.1', service.port), timeout=SOON) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            start, _, body = connection.recv(10_000).partition(b'\r\n\r\n')
        assert start.startswith(b'HTTP/1.1 400 ') and b'nosniff' in start, nonsense[:90]
        assert 'not HTTP/1.1' in json.loads(body)['error']
    assert service.post({'text': 'abc'})[0] == 200
    status, _, err = service.end()
    assert status == 0 and 'Traceback' not in err


def test_a_port_in_use_is_bad_input(deployment):
    with server.listen('127.0.0.1', 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        done = call('tools/serve.py', deployment, '--port', port)
    assert done.returncode == 2 and 'Address already in use' in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--port', 70000], '--port must be '),
        (['--queue', 10], 'queue must be at least max_texts'),
        (['--host', 'no such host'], 'cannot be listened on'),
        (['--pooling', 'last'], 'must be one of mean, cls'),
    ],
)
def test_bad_flags_are_one_line(deployment, flags, words):
    done = call('tools/serve.py', deployment, *flags)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_model_directory_is_refused_with_the_command_that_exports_it(model_directory):
    done = call('tools/serve.py', model_directory)
    assert done.returncode == 2 and 'export it first' in done.stderr


def test_an_address_of_ipv6_is_written_as_browsers_take_it():
    try:
        with server.listen('::1', 0) as listener:
            assert re.fullmatch(r'http://\[::1\]:\d+', server.address_of(listener))
    except ValueError:
        pytest.skip('this machine has no IPv6')
