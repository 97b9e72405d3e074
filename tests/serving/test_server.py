"""The service on a real port: what it prints, what it refuses, and how it stops."""

import contextlib
import json
import re
import signal
import socket
import time

import pytest
from helpers.commands import refused, succeed
from helpers.exported import with_head
from helpers.services import SOON, Running
from helpers.tiny import network

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment.export import export
from gluon_optbert.serving import server


@pytest.fixture
def running():
    """Gives the services that it is given, which are ended after the test."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture(scope='module')
def strict():
    """A service that waits three seconds for a request, on eight connections; nothing makes it fail."""
    service = Running.fake(timeout=3, max_connections=8)
    yield service
    status, _, err = service.end()
    assert status == 0 and 'Traceback' not in err


@pytest.fixture(scope='module')
def deployment(tmp_path_factory):
    """The export of a classifier."""
    directory = tmp_path_factory.mktemp('serve') / 'deploy'
    export(with_head(network((2, 3, 5, 7), (1, 4, 2, 0)), Head('classification', ('no', 'yes'))), directory)
    return directory


def test_the_command_answers_as_the_command_that_predicts(running, deployment):
    service = running(Running('tools/serve.py', deployment, '--port', 0, '--host-names', 'proxy.example'))
    assert f'serving {deployment} at http://127.0.0.1:{service.port}' in service.said
    status, values = service.post({'instances': ['a b c', 'x y', {'text': 'd', 'pair': 'e f'}]})
    predicted = succeed('tools/predict.py', deployment, input='a b c\nx y\nd\te f\n')
    wanted = [json.loads(line) for line in predicted.splitlines()]
    assert status == 200 and [one['text'] for one in values['predictions']] == ['a b c', 'x y', 'd']
    for one, other in zip(values['predictions'], wanted):
        assert one['label'] == other['label']
        assert one['probabilities'] == pytest.approx(other['probabilities'], abs=1e-6)  # other batches
    hosts = ('localhost', 'proxy.example', 'evil.example')
    assert [service.health(Host=host)[0] for host in hosts] == [200, 200, 421]
    (one,) = service.post({'text': 'a b ' * 40})[1]['predictions']
    health = service.health()[1]
    assert health['reads'] == {'tokens': 16, 'long': 'cut'} and one['cut'] and health['computed']['cut'] == 1
    status, out, err = service.end()
    assert (status, out) == (0, 'stopped\n') and err.startswith('engine: ') and len(err.splitlines()) == 2
    assert '1 of 4 texts were cut to 16 tokens' in err


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_request_finish(running, number):
    service = running(Running.fake(delay=1.5))
    connection = service.begin({'text': 'abc'})
    time.sleep(0.5)
    service.process.send_signal(number)
    time.sleep(0.3)
    with pytest.raises(OSError):  # nobody else is let in
        service.socket().close()
    answer = connection.getresponse()
    assert answer.status == 200 and json.loads(answer.read())['predictions'][0]['text'] == 'abc'
    connection.close()
    out, err = service.process.communicate(timeout=SOON)
    assert (service.process.returncode, out, err) == (0, 'stopped\n', '')


def test_a_second_signal_ends_it_at_once(running):
    """One request has been given up while its pass goes on, another one is awaited."""
    service = running(Running.fake(timeout=10, delay=60))
    assert service.post({'text': 'abc'})[0] == 504
    awaited = service.begin({'text': 'def'})
    service.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    began = time.monotonic()
    _, _, err = service.end()
    assert time.monotonic() - began < 9 and 'Traceback' not in err  # less than an answer may take
    awaited.close()


def test_answers_are_sent_without_waiting_for_acknowledgements():
    """asyncio sets TCP_NODELAY where a socket names its protocol, which is that of its listener."""
    with server.listen('127.0.0.1', 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.proto == socket.IPPROTO_TCP


def test_connections_are_bounded_and_those_that_send_no_whole_request_are_closed(strict):
    head = ['POST /predict HTTP/1.1', 'Host: a', 'Content-Type: application/json', 'Content-Length: 99']
    late = strict.socket('\r\n'.join([*head, '', '{']).encode())
    silent = [strict.socket(sent) for sent in (b'', b'P', b'POST /predict HTTP/1.1\r\nHost: a\r\n')]
    silent += [strict.socket() for _ in range(4)]
    status, values = strict.health()
    assert status == 503 and '8 connections' in values['error']
    assert [connection.recv(1000) for connection in silent] == [b''] * 7
    assert late.recv(1000).startswith(b'HTTP/1.1 408 ')
    for one in (late, *silent):
        one.close()
    connection = strict.connection()
    for _ in range(2):  # the headers of a second request may stay away as well
        connection.request('GET', '/health')
        assert json.loads(connection.getresponse().read())['status'] == 'ok'
    connection.sock.sendall(b'GET /hea')
    assert connection.sock.recv(1000) == b''


def test_what_is_no_http_is_refused_and_the_service_goes_on(strict):
    head = b'POST /predict HTTP/1.1\r\nContent-Type: application/json\r\n'
    chunked = head + b'Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnothing\r\n'
    for nonsense in (
        *(b'\x16\x03\x01\x00\xa5\r\n', b'GET / HTTP\r\n\r\n', b'A' * 200_000 + b'\r\n\r\n', head + b'\r\n'),
        *(chunked, head + b'Host: a\r\nContent-Length: -1\r\n\r\n', head + b'Host: a\r\nHost: b\r\n\r\n'),
    ):
        with strict.socket(nonsense) as connection:
            with contextlib.suppress(OSError):  # the service may have closed it already
                connection.shutdown(socket.SHUT_WR)
            start, _, body = connection.recv(10_000).partition(b'\r\n\r\n')
        assert start.startswith(b'HTTP/1.1 400 ') and b'nosniff' in start, nonsense[:90]
        assert 'not HTTP/1.1' in json.loads(body)['error']
    assert strict.post({'text': 'abc'})[0] == 200


def test_bad_flags_and_a_port_in_use_are_one_line(deployment):
    with server.listen('127.0.0.1', 0) as taken:
        taken.listen()
        for *flags, words in (
            ('--port', taken.getsockname()[1], 'Address already in use'),
            ('--queue', 10, 'queue must be at least max_texts'),
            ('--host', 'no such host', 'cannot be listened on'),
        ):
            assert words in refused('tools/serve.py', deployment, *flags)


def test_an_address_of_ipv6_is_written_as_browsers_take_it():
    try:
        with server.listen('::1', 0) as listener:
            assert re.fullmatch(r'http://\[::1\]:\d+', server.address_of(listener))
    except ValueError:
        pytest.skip('this machine has no IPv6')
