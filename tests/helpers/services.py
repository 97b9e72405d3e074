"""A predictor without a network, and a service in a process of its own, for tests of the service.

These are skipped where a library of the service or its client is not installed."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.deployment.predictor import Label, Value
from gluon_optbert.tasks.squad import Answer

for _library in ('fastapi', 'httpx', 'markdown_it', 'uvicorn'):
    pytest.importorskip(_library)

SOON = 60  # seconds
FAKE = 'import sys, json; from helpers.services import serve_fake; serve_fake(**json.loads(sys.argv[1]))'
HEADS = {
    'sentences': Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'), ('sentence', 'label')),
    'pairs': Head('regression', (), 'STS-B', (), ('sentence1', 'sentence2', 'score')),
    'questions': Head('question_answering', task='SQuAD2.0'),
    'embeddings': PRETRAINING,
}


class FakePredictor:
    """Answers by the lengths of texts; `batches` has the texts of every pass, which waits for `let_go`."""

    def __init__(self, head=HEADS['sentences'], *, failing=None):
        self.head, self.failing, self.batches = head, failing, []
        self.engine = types.SimpleNamespace(name='none', version='1', precision='float32')
        self.threads, self.problem, self.pairs, self.cut = 1, None, True, 0
        self.max_length, self.long = 128, 'cut'
        self.let_go, self.began = threading.Event(), threading.Event()
        self.let_go.set()

    def _pass(self, instances):
        texts = [instance.first for instance in instances]
        self.batches.append(texts)
        self.began.set()
        assert self.let_go.wait(30)
        if self.failing is not None and self.failing in texts:
            raise RuntimeError('a secret of the server')

    def predict(self, instances, *, batch_size):
        """A prediction of each instance."""
        self._pass(instances)
        assert len(instances) <= batch_size
        for instance in instances:
            share = 1 / (1 + len(instance.first))
            if self.head.kind == 'question_answering':
                yield Answer(instance.second[:3], 1.5, 0, 3)
            elif self.head.kind == 'regression':
                yield Value(float(len(instance.first) + len(instance.second)))
            else:
                yield Label('1', {'0': share, '1': 1 - share}, 'positive')

    def encode(self, instances, *, pooling, normalise, batch_size):
        """An embedding of each instance."""
        self._pass(instances)
        return np.array([[len(instance.first), 1.0] for instance in instances], np.float32)


def serve_fake(*, kind='sentences', delay=0.0, name='fake', card='', **settings):
    """Serve a predictor that takes some seconds for a pass, and print the address, until a signal."""
    from gluon_optbert.serving import server
    from gluon_optbert.serving.app import make_app
    from gluon_optbert.serving.settings import ServiceSettings

    class Slow(FakePredictor):
        def _pass(self, instances):
            time.sleep(delay)
            super()._pass(instances)

    listener, settings = server.listen('127.0.0.1', 0), ServiceSettings(**settings)
    app = make_app(Slow(HEADS[kind]), name=name, card=card, settings=settings)
    server.serve(app, listener, settings=settings, ready=lambda address: print(address, flush=True))
    print('stopped')


class Running:
    """A service in a process of its own, and its address."""

    def __init__(self, *words):
        from helpers.tiny import ROOT, environment  # which a service need not load

        self.process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', *map(str, words)],
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

    @classmethod
    def fake(cls, **options):
        """The service of `serve_fake`."""
        return cls('-c', FAKE, json.dumps(options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def socket(self, sent=b''):
        """A connection that has sent some bytes."""
        connection = socket.create_connection(('127.0.0.1', self.port), timeout=SOON)
        connection.sendall(sent)
        return connection

    def connection(self):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=SOON)

    def health(self, **headers):
        """The status and the body of an answer to GET /health."""
        connection = self.connection()
        connection.request('GET', '/health', headers=headers)
        answer = connection.getresponse()
        status, values = answer.status, json.loads(answer.read())
        connection.close()
        return status, values

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
