"""A worker that dies, stops or hangs ends the job, which names it and can be resumed."""

import http.server
import importlib.util
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.pretrained import recipe_for, values_for
from helpers.stricken import STRICKEN, living
from helpers.tiny import ROOT, environment

from gluon_optbert.training import distributed as liveness
from gluon_optbert.training.distributed import PATIENCE, PATIENCE_SECONDS, SCOPE, Watch, patience
from gluon_optbert.training.pretrain import pretrain

HOROVODRUN = Path(sys.executable).with_name('horovodrun')
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec('horovod') is None or not HOROVODRUN.exists(),
    reason='Horovod is not installed here; make install builds it',
)


def strike(shards_directory, place, rank, what):
    """A job of two workers in which `what` happens to a rank.

    Returns
    -------
    processes, lines, seconds
        Of the ranks; on its standard error; until the end since it happened.
    """
    values = values_for(shards_directory, place / 'model', evaluate_every=0)
    words = [
        str(HOROVODRUN),
        '--gloo',
        '-np',
        '2',
        sys.executable,
        '-W',
        'ignore',
        '-c',
        STRICKEN,
        json.dumps(values),
        str(place),
        str(rank),
        what,
    ]
    done = subprocess.run(
        words, cwd=str(ROOT), env=environment(**{PATIENCE: '10'}), timeout=120, capture_output=True, text=True
    )
    seconds = time.time() - (place / 'struck').stat().st_mtime
    assert done.returncode != 0
    return [int((place / f'pid-{rank}').read_text()) for rank in (0, 1)], done.stderr.splitlines(), seconds


STOP = 'os.kill(os.getpid(), signal.SIGSTOP)'


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize(
    'rank, what, said',
    [
        pytest.param(0, 'os.kill(os.getpid(), signal.SIGKILL)', 'has ended', id='killed'),
        pytest.param(1, STOP, 'is silent', id='stopped'),
        pytest.param(1, f'Workers.barrier = lambda *_: {STOP}', 'is silent', id='stopped at a barrier'),
        pytest.param(1, 'time.sleep(1000)', 'did not come', id='hanging'),
    ],
)
def test_lost_worker_ends_the_job_which_names_it_and_resumes(shards_directory, tmp_path, rank, what, said):
    processes, lines, seconds = strike(shards_directory, tmp_path, rank, what)
    errors = [line for line in lines if 'error: ' in line]
    named = any(f'rank {rank} (host localhost, process {processes[rank]}) {said}' in line for line in errors)
    killed_first = said == 'has ended' and f'Process name: {rank}' in lines
    assert named or killed_first, lines  # horovodrun may end the others before they speak, and says the rank
    assert all('--resume' in line for line in errors)
    if 'barrier' in what:  # where we wait for half an hour, and Gloo only as long as it has been told
        assert any('Timed out waiting 10000ms' in line for line in lines)
    assert not any(map(living, processes))
    assert seconds < 60
    assert not (tmp_path / 'model').exists()
    assert pretrain(recipe_for(shards_directory, tmp_path / 'model', evaluate_every=0, resume=True)).step == 6


class Store(http.server.BaseHTTPRequestHandler):
    """A key-value store as horovodrun's."""

    lines: dict = {}

    def do_PUT(self):
        self.lines[self.path] = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        self.end_headers()

    def do_GET(self):
        self.send_response(200 if self.path in self.lines else 404)
        self.end_headers()
        self.wfile.write(self.lines.get(self.path, b''))

    def log_message(self, *_):
        pass


@pytest.fixture
def watches():
    """The watches of a job of two, whose threads do not run."""
    Store.lines = {}
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pair = [Watch(rank, 2, f'127.0.0.1:{server.server_port}') for rank in (0, 1)]
        for watch in pair * 2:
            watch._speak()
            watch._listen()
        yield pair
        server.shutdown()


def late(watch, seconds=0.0):
    """What a watch would say if that much time went by in which nobody spoke or came."""
    watch._since -= seconds
    for peer in watch._peers.values():
        peer.at -= seconds
    return watch._late()


def test_job_that_works_has_nothing_said_of_it(watches):
    assert [late(watch, 10000) for watch in watches] == [None, None]


def test_worker_in_the_same_operation_is_waited_for(watches):
    """How long is for Gloo to say."""
    with watches[0].waiting('gradient'), watches[1].waiting('gradient'):
        watches[0]._since -= 10000
        watches[1]._speak()
        watches[0]._listen()
        assert late(watches[0]) is None


def test_worker_that_is_silent_in_the_same_operation_is_named(watches):
    """As one that hangs with the interpreter's lock: Horovod's threads go on, and ours do not."""
    with watches[0].waiting('gradient'), watches[1].waiting('gradient'):
        watches[1]._speak()
        watches[0]._listen()
        assert late(watches[0], 29) is None
        assert f'in the operation gradient: {watches[1]} is silent' in late(watches[0], 2)


def test_worker_that_does_not_come_to_an_operation_is_named(watches):
    first, second = watches
    with first.waiting('gradient'):
        first._since -= 31
        assert first._late().endswith(f'has waited for 31 s in the operation gradient: {second} did not come')
        first._gap = 11.0  # its own work takes so long that the other one may be as late as three times of it
        assert first._late() is None
        first._since -= 3
        assert first._late().endswith('did not come')
        first._unreached = time.monotonic()  # what the other one says now does not arrive
        assert first._late() is None
    assert first._late() is None


def test_barrier_is_waited_at_for_half_an_hour(watches):
    with watches[1].waiting('barrier.written'):
        watches[1]._since -= 1700
        assert watches[1]._late() is None
        watches[1]._since -= 200
        assert watches[1]._late().endswith('did not come')


def test_failed_operation_is_laid_to_the_worker_whose_process_is_gone(watches):
    ended = subprocess.Popen(['true'])
    ended.wait()
    watches[0]._peers[1].said = {**watches[0]._peers[1].said, 'process': ended.pid}
    assert watches[0].explain() == f'rank 1 (host {socket.gethostname()}, process {ended.pid}) has ended'


@pytest.mark.parametrize('speaks', [True, False])
def test_failed_operation_is_laid_to_the_worker_that_is_silent(watches, monkeypatch, speaks):
    monkeypatch.setattr(liveness, 'HEARING_SECONDS', 1)
    monkeypatch.setattr(liveness, 'SILENCE_SECONDS', 2)

    def listen():
        time.sleep(0.3)
        watches[1]._speak()  # its last word from before the operation failed may be heard after it
        watches[0]._listen()
        time.sleep(1.2)
        if speaks:
            watches[1]._speak()
        watches[0]._listen()

    thread = threading.Thread(target=listen)
    thread.start()
    trouble = watches[0].explain()
    thread.join()
    assert trouble == (None if speaks else f'{watches[1]} is silent: it is stopped, hanging, cut off or dead')


def test_failed_operation_is_laid_to_horovodrun_if_it_does_not_answer(watches):
    watches[1]._unreached = time.monotonic()
    assert 'cannot reach horovodrun at 127.0.0.1' in watches[1]._alone(0)
    assert watches[1]._alone(10) is None


class Silent(Store):
    """A store that takes three lines, then only the connection: a network that swallows packets."""

    taken = 0

    def do_PUT(self):
        Silent.taken += 1
        if Silent.taken > 3:
            time.sleep(60)
        super().do_PUT()


@pytest.mark.slow
def test_worker_whose_words_are_swallowed_ends():
    """An answer is waited for during five seconds, which are no standing still of its own."""
    Silent.taken = 0
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Silent) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = (
            'import time\nfrom gluon_optbert.training.distributed import Watch\n'
            f'Watch(1, 2, "127.0.0.1:{server.server_port}").start()\ntime.sleep(40)'
        )
        done = subprocess.run(
            [sys.executable, '-c', program],
            cwd=str(ROOT),
            timeout=60,
            stderr=subprocess.PIPE,
            env=environment(**{PATIENCE: '6'}),
            text=True,
        )
        server.shutdown()
    assert done.returncode == 1
    assert 'rank 1 (host' in done.stderr and 'cannot reach horovodrun at 127.0.0.1' in done.stderr


def test_what_is_no_line_of_a_worker_counts_as_silence(watches):
    for content in (b'', b'[1]', b'\xff', b'{"process": "all", "host": 7}', b'[' * 5000):
        Store.lines[f'/{SCOPE}/1'] = content
        watches[0]._listen()
        began = time.monotonic()
        watches[0]._listen()
        assert 'is silent' in watches[0]._troubles(began)


@pytest.mark.parametrize('text', ['', 'long', '-1', '4', 'nan', 'inf'])
def test_patience_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv(PATIENCE, text)
    with pytest.raises(ValueError, match='GLUON_OPTBERT_PATIENCE must be a number of seconds, at least 5'):
        patience()


def test_patience_is_half_a_minute_unless_given(monkeypatch):
    monkeypatch.delenv(PATIENCE, raising=False)
    assert patience() == PATIENCE_SECONDS == 30
    monkeypatch.setenv(PATIENCE, '7.5')
    assert patience() == 7.5
