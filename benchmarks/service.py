"""Load a service with requests: latency and throughput against the number of clients that ask at once.

Each client sends its next request when the last one is answered. The service is one that runs on this machine
already, given by its address; or one that is started for the measurement, given by its deployment directory.
Run nothing else meanwhile: the clients and the service share the processors.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import itertools
import json
import re
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from measured import ROOT, Measured, load_average, parsed, write
from pydantic import Field, PositiveFloat, PositiveInt

from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.recipe import option

SERVE = ROOT / 'tools' / 'serve.py'
WARM_UP = 5  # requests before those that are counted
PATIENCE = 120  # seconds for a service to start, or to answer one request
TEXTS = (
    'A fine film.',
    'The plot takes an hour to begin, and then it ends.',
    'Warm, funny and beautifully played by everyone on the screen.',
    'It rained all day in the north of the country, while the south stayed dry until the evening.',
    'The committee met on Tuesday to discuss the budget for the coming year, but it could not agree on how '
    'much should be spent on roads, and the decision was put off until the next meeting.',
)
QUESTION = 'When was the bridge opened?'
FACTS = ('model', 'engine', 'computes', 'texts', 'limits', 'computed')  # what the result says of a service
Item = dict[str, str]


class LoadRecipe(Measured):
    """What is asked, and how often."""

    service: str = option('address of a service, as http://127.0.0.1:8000, or a deployment directory')
    concurrency: tuple[Annotated[int, Field(ge=1, le=256)], ...] = option(
        'numbers of clients, one after the other', (1, 2, 4, 8, 16)
    )
    requests: PositiveInt = option('requests at each number of clients', 400)
    seconds: PositiveFloat = option('seconds at each number of clients at most', 30.0)
    texts: PositiveInt = option('texts of a request', 1)

    def problems(self) -> list[str]:
        """What is contradictory."""
        return [] if self.concurrency else ['concurrency: give a number of clients']


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address of this machine; ValueError for any other."""
    parts = urllib.parse.urlsplit(address)
    host = parts.hostname or ''
    try:
        local = host == 'localhost' or ipaddress.ip_address(host).is_loopback
        port = parts.port or 80
    except ValueError:
        local, port = False, 0
    if not local:
        raise ValueError(f'{address}: only a service on this machine is loaded, as http://127.0.0.1:8000')
    return host, port


@contextlib.contextmanager
def started(service: str) -> Iterator[str]:
    """The address of the service; one that is started here is stopped at the end."""
    if service.startswith('http://'):
        yield service
        return
    words = [sys.executable, str(SERVE), service, '--port', '0']
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r'http://\S+:\d+', process.stdout.readline())
        if address is None:
            raise RunFailed(f'{service}: the service did not start')
        yield address.group()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def request_of(facts: dict[str, Any], count: int) -> Iterator[bytes]:
    """Endless bodies of requests, of so many texts each, that a service reads."""

    def item(text: str) -> Item:
        if facts['texts'] == 'question':
            return {'question': QUESTION, 'context': text}
        return {'text': text, 'pair': TEXTS[0]} if facts['texts'] == 'two' else {'text': text}

    turn = itertools.cycle(TEXTS)
    while True:
        yield json.dumps({'instances': [item(next(turn)) for _ in range(count)]}).encode()


class Load:
    """Clients of one service.

    Parameters
    ----------
    address : str
    count : int
        Texts of a request.
    """

    def __init__(self, address: str, count: int):
        self._host, self._port = host_and_port(address)
        self.facts = self.health()
        self._path = '/embed' if self.facts['computes'] == 'embeddings' else '/predict'
        self._bodies, self._lock = request_of(self.facts, count), threading.Lock()
        self._count = count

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)

    def health(self) -> dict[str, Any]:
        """What the service says of itself; RunFailed if nothing does."""
        connection = self._connection()
        try:
            connection.request('GET', '/health')
            values = json.loads(connection.getresponse().read())
            return {name: values[name] for name in FACTS}
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise RunFailed(f'{self._host} port {self._port}: no service answers ({error!r:.100})') from error
        finally:
            connection.close()

    def run(self, clients: int, requests: int, seconds: float) -> dict[str, Any]:
        """The measurements with so many clients."""
        answers: list[tuple[int, float]] = []  # status and milliseconds of each request
        begun, left = time.perf_counter(), itertools.count(requests, -1)
        computed = self.health()['computed']

        def client() -> None:
            connection = self._connection()
            try:
                while time.perf_counter() < begun + seconds and next(left) > 0:
                    with self._lock:
                        body = next(self._bodies)
                    sent = time.perf_counter()
                    connection.request('POST', self._path, body, {'Content-Type': 'application/json'})
                    answer = connection.getresponse()
                    answer.read()
                    answers.append((answer.status, 1e3 * (time.perf_counter() - sent)))
            except (OSError, http.client.HTTPException):
                answers.append((0, 0.0))
            finally:
                connection.close()

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self._summary(clients, answers, time.perf_counter() - begun, computed)

    def _summary(
        self, clients: int, answers: list[tuple[int, float]], seconds: float, before: dict[str, int]
    ) -> dict[str, Any]:
        """Percentiles of the requests that were answered, and how many were not, by status."""
        times = [milliseconds for status, milliseconds in answers if status == 200]
        failed = [str(status or 'no answer') for status, _ in answers if status != 200]
        if not times:
            raise RunFailed(f'{clients} clients: nothing was answered, but {", ".join(sorted(set(failed)))}')
        after = self.health()['computed']
        batches = after['batches'] - before['batches']
        p50, p90, p99 = np.percentile(times, [50, 90, 99])
        return {
            'clients': clients,
            'requests': len(times),
            'failed': {status: failed.count(status) for status in sorted(set(failed))},
            'seconds': seconds,
            'requests_per_second': len(times) / seconds,
            'texts_per_second': len(times) * self._count / seconds,
            'texts_of_a_batch': (after['texts'] - before['texts']) / max(1, batches),
            'p50_ms': float(p50),
            'p90_ms': float(p90),
            'p99_ms': float(p99),
            'largest_ms': max(times),
        }


def table(levels: Sequence[dict[str, Any]]) -> str:
    """The measurements as Markdown."""
    rows = [
        (
            one['clients'],
            *(f'{one[name]:.1f} ms' for name in ('p50_ms', 'p90_ms', 'p99_ms')),
            f'{one["requests_per_second"]:.1f}',
            f'{one["texts_per_second"]:.1f}',
            f'{one["texts_of_a_batch"]:.1f}',
            one['requests'],
            ', '.join(f'{count} × {status}' for status, count in one['failed'].items()) or 'none',
        )
        for one in levels
    ]
    header = ['clients', 'p50', 'p90', 'p99', 'requests/s', 'texts/s', 'texts of a batch']
    return markdown_table([*header, 'requests', 'failed'], rows, align='r' * 8 + 'l')


@command
def main(argv=None):
    """Load a service with more and more clients, and print the table."""
    recipe = parsed(
        LoadRecipe,
        argv,
        description=__doc__,
        positional='service',
        example='python benchmarks/service.py deploy --concurrency 1,8 --output load.json',
    )
    if recipe.service.startswith('http://'):
        host_and_port(recipe.service)
    elif not Path(recipe.service).is_dir():
        raise FileNotFoundError(f'{recipe.service}: neither an address with http:// nor a directory')
    before = load_average()
    with started(recipe.service) as address:
        load = Load(address, recipe.texts)
        load.run(1, WARM_UP, recipe.seconds)
        levels = [load.run(clients, recipe.requests, recipe.seconds) for clients in recipe.concurrency]
    averages = {'before': before, 'after': load_average()}
    text = (
        f'{table(levels)}\n\n{recipe.texts} texts in a request; clients and service on one machine, load '
        f'average {averages["before"]:.1f} before and {averages["after"]:.1f} after'
    )
    print(text)
    facts = {name: value for name, value in load.facts.items() if name != 'computed'}
    write(recipe, text, service=facts, levels=levels, load=averages)


if __name__ == '__main__':
    sys.exit(main())
