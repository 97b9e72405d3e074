"""A worker that dies, stops or hangs ends the job, which names it and can be resumed."""

import http.server
import importlib.util
import json
import os
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

from gluon_optbert.training.liveness import PATIENCE, PATIENCE_SECONDS, SCOPE, Watch, patience
from gluon_optbert.training.pretrain import pretrain

HOROVODRUN = Path(sys.executable).with_name('horovodrun')
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec('horovod') is None or not HOROVODRUN.exists(),
    reason='Horovod is not installed here; make install builds it',
)


def strike(shards_directory, place, rank, what):
    """A job of two workers in which `what` happens to a rank: its processes, its lines of error, the seconds
    that it lived on.
    """
    values = values_for(shards_directory, place / 'model', evaluate_every=0)
    done = subprocess.run(
        [
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
        ],
        cwd=str(ROOT),
        env=environment(**{PATIENCE: '6'}),
        timeout=120,
        capture_output=True,
        text=True,
    )
    seconds = time.time() - (place / 'struck').stat().st_mtime
    assert done.returncode != 0
    processes = [int((place / f'pid-{rank}').read_text()) for rank in (0, 1)]
    return (
        processes,
        [line for line in done.stderr.splitlines() if 'error: ' in line or 'Process name: ' in line],
        seconds,
    )


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize(
    'rank, what, said',
    [
        pytest.param(0, 'os.kill(os.getpid(), signal.SIGKILL)', 'has died', id='killed'),
        pytest.param(1, 'os.kill(os.getpid(), signal.SIGSTOP)', 'has not been heard of for', id='stopped'),
        pytest.param(1, 'time.sleep(1000)', 'in the operation gradient', id='hanging'),
    ],
)
def test_lost_worker_ends_the_job_which_names_it_and_resumes(shards_directory, tmp_path, rank, what, said):
    processes, errors, seconds = strike(shards_directory, tmp_path, rank, what)
    named = any(
        f'rank {rank} (host localhost, process {processes[rank]})' in line and said in line for line in errors
    )
    killed_first = said == 'has died' and any(f'Process name: {rank}' in line for line in errors)
    assert named or killed_first, (
        errors
    )  # horovodrun names a dead worker too, and may end the others before they speak
    assert all('--resume' in line for line in errors if 'error: ' in line)
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
        found = [Watch(rank, 2, f'127.0.0.1:{server.server_port}') for rank in (0, 1)]
        for watch in found * 2:
            watch._speak()
            watch._listen()
        yield found
        server.shutdown()


def lost(watch, *, after=0.0):
    """What a watch would say so many seconds from now, if it had reached the store until then."""
    watch._reached = time.monotonic() + after
    return watch._lost(time.monotonic() + after)


def test_job_that_lives_has_nothing_said_of_it(watches):
    assert [lost(watch) for watch in watches] == [None, None]


def test_silent_worker_is_named(watches):
    assert f'rank 1 (host {socket.gethostname()}, process {os.getpid()}) has not been heard of for' in lost(
        watches[0], after=31
    )
    assert 'rank 0 (' in lost(watches[1], after=31)


def test_worker_that_speaks_is_not_silent(watches):
    watches[0]._peers[1].at -= 29
    watches[1]._speak()
    watches[0]._listen()
    assert lost(watches[0], after=29) is None


def test_worker_that_has_left_is_not_missed(watches):
    watches[1]._leave()
    watches[0]._listen()
    assert lost(watches[0], after=1000) is None
    assert watches[0].explain() == f'{watches[1]} has ended'


def test_worker_whose_process_is_gone_has_died(watches):
    ended = subprocess.Popen(['true'])
    ended.wait()
    watches[0]._peers[1].said = {**watches[0]._peers[1].said, 'process': ended.pid}
    assert (
        lost(watches[0])
        == watches[0].explain()
        == f'rank 1 (host {socket.gethostname()}, process {ended.pid}) has died'
    )


def test_worker_that_cannot_reach_horovodrun_ends(watches):
    assert 'cannot reach horovodrun at 127.0.0.1' in watches[1]._lost(time.monotonic() + 16)


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
            f'import time\nfrom gluon_optbert.training.liveness import Watch\nWatch(1, 2, '
            f'"127.0.0.1:{server.server_port}").start()\n'
            'time.sleep(40)'
        )
        done = subprocess.run(
            [sys.executable, '-c', program],
            cwd=str(ROOT),
            env=environment(**{PATIENCE: '11'}),
            timeout=60,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.shutdown()
    assert (
        done.returncode == 1
        and 'rank 1 (host' in done.stderr
        and 'cannot reach horovodrun at 127.0.0.1' in done.stderr
    )


def test_worker_that_does_not_come_to_an_operation_is_named(watches):
    first, second = watches
    with first.waiting('gradient'):
        first._since -= 31
        assert lost(first).endswith(f's in the operation gradient, {second} did not come')
        first._gap = 11.0  # its own work takes so long that the other one may be as late as three times of it
        assert lost(first) is None
        first._since -= 3
        with second.waiting('gradient'):
            second._speak()
            first._listen()
            assert 'though every worker is in it: the network' in lost(first)
    assert lost(first) is None


def test_barrier_is_waited_at_for_half_an_hour(watches):
    with watches[1].waiting('barrier.written'):
        watches[1]._since -= 1700
        assert lost(watches[1]) is None
        watches[1]._since -= 200
        assert 'did not come' in lost(watches[1])


def test_what_is_no_line_of_a_worker_counts_as_silence(watches):
    for content in (b'', b'[1]', b'\xff', b'{"process": "all", "host": 7}', b'[' * 5000):
        Store.lines[f'/{SCOPE}/1'] = content
        watches[0]._listen()
        assert lost(watches[0]) is None and 'rank 1 (host' in lost(watches[0], after=61)


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
