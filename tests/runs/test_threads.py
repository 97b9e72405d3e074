"""How many threads a process takes: its share of the cores, unless the user said otherwise."""

import os
import subprocess
import sys

import pytest
from helpers.tiny import ROOT, environment

from gluon_optbert.runs import machine as threads
from gluon_optbert.runs.machine import physical_cores

NAMES = set(threads.SETTINGS)
UNSET = ['env', *(word for name in (*threads.SETTINGS, 'OMP_WAIT_POLICY') for word in ('-u', name))]


def said_by(program):
    """What a program prints, started without settings."""
    words = [*UNSET, sys.executable, '-c', program]
    return subprocess.run(
        words, env=environment(), cwd=str(ROOT), check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def idle(monkeypatch):
    """No other programs on six cores, and an environment to fill."""
    monkeypatch.setattr(threads, 'physical_cores', lambda: 6)
    monkeypatch.setattr(threads, 'other_programs', lambda: 0)
    monkeypatch.setattr(os, 'cpu_count', lambda: 6)
    monkeypatch.setattr(os, 'environ', {})


@pytest.mark.parametrize(
    'variables, wanted',
    [
        ({}, '6'),
        ({'HOROVOD_LOCAL_SIZE': '2'}, '3'),
        ({'OMPI_COMM_WORLD_LOCAL_SIZE': '3'}, '2'),
        ({'HOROVOD_LOCAL_SIZE': '12'}, '1'),
        ({'HOROVOD_LOCAL_SIZE': '0'}, '6'),
        ({'HOROVOD_LOCAL_SIZE': '2', 'OMP_NUM_THREADS': '5'}, '5'),
    ],
)
def test_workers_of_a_host_share_its_cores(idle, variables, wanted):
    os.environ.update(variables)
    assert {**threads.settings(), **variables}['OMP_NUM_THREADS'] == wanted
    assert set(threads.settings()) == NAMES - set(variables)  # what the user has set stays


@pytest.mark.parametrize(
    'asked, stated, others, wanted, spinning',
    [
        (None, None, 0, 6, True),
        (None, None, 2, 4, True),
        (None, None, 9, 1, False),
        (None, '3', 2, 3, True),
        (2, '3', 5, 2, False),
    ],
)
def test_threads_to_predict_leave_other_programs_their_processors(
    idle, monkeypatch, asked, stated, others, wanted, spinning
):
    monkeypatch.setattr(threads, 'other_programs', lambda: others)
    os.environ.update({} if stated is None else {'OMP_NUM_THREADS': stated})
    choice = threads.threads_to_predict(asked)
    assert (choice.threads, choice.spinning) == (wanted, spinning)
    assert f'{wanted} thread' in str(choice) and '6 cores to use' in str(choice)
    assert ('other programs compute' in str(choice)) == (others > 0)


def test_threads_to_predict_are_within_the_quota_of_the_control_group(idle, monkeypatch):
    monkeypatch.setattr(threads, 'physical_cores', physical_cores)
    monkeypatch.setattr(threads, 'cpu_quota', lambda: 1.5)
    assert threads.threads_to_predict().threads == 1
    with pytest.raises(ValueError, match='at least 1, found 0'):
        threads.threads_to_predict(0)


@pytest.mark.parametrize(
    'others, variables, spins',
    [
        (0, {}, threads.SPINS),
        (1, {}, threads.NO_SPINS),
        (1, {'HOROVOD_LOCAL_SIZE': '2', 'OMP_NUM_THREADS': '2'}, threads.SPINS),
        (1, {'HOROVOD_LOCAL_SIZE': '2'}, threads.NO_SPINS),
    ],
)
def test_threads_sleep_at_once_where_programs_want_more_processors(
    idle, monkeypatch, others, variables, spins
):
    monkeypatch.setattr(threads, 'other_programs', lambda: others)
    os.environ.update(variables)
    assert threads.settings()['GOMP_SPINCOUNT'] == spins
    os.environ['OMP_WAIT_POLICY'] = 'active'
    assert 'GOMP_SPINCOUNT' not in threads.settings()


@pytest.mark.parametrize(
    'text, workers, others',
    [
        ('0.1 0.2 0.3 3/300 77', '1', 2),
        ('0.1 0.2 0.3 3/300 77', '2', 1),  # the workers of this job are no others
        ('0.1 0.2 0.3 0/300 77', '1', 0),
        ('', '1', 0),
    ],
)
def test_other_programs_are_those_that_run_beside_the_workers(tmp_path, monkeypatch, text, workers, others):
    (tmp_path / 'loadavg').write_text(text)
    monkeypatch.setenv('HOROVOD_LOCAL_SIZE', workers)
    assert threads.other_programs(tmp_path / 'loadavg', pause=0) == others
    assert threads.other_programs(tmp_path / 'nowhere', pause=0) == 0


def test_threads_are_what_openmp_says_and_children_inherit_nothing_that_the_package_has_set():
    """As the quickstart starts Horovod: the child has another number of workers, and its own share."""
    child = (
        'from gluon_optbert.runs.machine import settings; print(settings()["OMP_NUM_THREADS"], flush=True)'
    )
    program = (
        'import os, subprocess, sys, gluon_optbert as opt\n'
        'def shown(): return subprocess.run(["env"], capture_output=True, text=True).stdout\n'
        'before = shown(); opt.prune; import mxnet; mxnet.nd.ones(3).asnumpy(); after = shown()\n'
        f'assert not any(name in text for name in {threads.SETTINGS} for text in (before, after))\n'
        'os.environ["HOROVOD_LOCAL_SIZE"] = "64"\n'
        f'subprocess.run([sys.executable, "-c", {child!r}])\n'
        'os.environ["OMP_NUM_THREADS"] = "7"\n'
        'from gluon_optbert.runs.machine import threads_here; print(threads_here())\n'
    )
    assert said_by(program) == f'1\n{threads.share_of_cores()}\n'


def test_mxnet_that_was_imported_first_is_warned_of(idle, caplog, monkeypatch):
    monkeypatch.setattr(threads, 'threads_here', lambda: 3)
    threads.load_mxnet()
    assert 'it has 3 threads instead of 6' in caplog.text


BENCHMARKS = [path for path in ROOT.joinpath('benchmarks').glob('*.py') if 'import mxnet' in path.read_text()]


@pytest.mark.parametrize('path', BENCHMARKS, ids=lambda path: path.name)
def test_benchmarks_have_the_package_load_mxnet(path):
    lines = path.read_text(encoding='utf-8').splitlines()
    imports = [line.split()[1] for line in lines if line.startswith('import ')]
    assert 'mxnet' not in imports or imports.index('gluon_optbert.runs.loading') < imports.index('mxnet')


@pytest.mark.parametrize(
    'machine, warned',
    [
        ({'threads': '2', 'workers_of_host': 2, 'cores': 2}, True),
        ({'threads': '1', 'workers_of_host': 2, 'cores': 2}, False),
        ({'threads': None, 'workers_of_host': 2, 'cores': 2}, False),
        ({}, False),  # an earlier version's
    ],
)
def test_more_threads_than_cores_are_warned_of(machine, warned):
    sentence = threads.more_threads_than_cores(machine)
    assert bool(sentence) == warned and (not warned or '2 workers of a host had 2 threads each' in sentence)
