"""How many threads a process takes: its share of the cores, unless the user said otherwise."""

import os

import pytest

from gluon_optbert.runs import threads


@pytest.mark.parametrize(
    'given, wanted',
    [
        ({}, '6'),
        ({'HOROVOD_LOCAL_SIZE': '2'}, '3'),
        ({'OMPI_COMM_WORLD_LOCAL_SIZE': '3'}, '2'),
        ({'HOROVOD_LOCAL_SIZE': '12'}, '1'),
        ({'HOROVOD_LOCAL_SIZE': 'two'}, '6'),
        ({'HOROVOD_LOCAL_SIZE': '0'}, '6'),
        ({'HOROVOD_LOCAL_SIZE': '2', 'OMP_NUM_THREADS': '5'}, '5'),
    ],
)
def test_workers_of_a_host_share_its_cores(monkeypatch, given, wanted):
    monkeypatch.setattr(threads, 'physical_cores', lambda: 6)
    monkeypatch.setattr(os, 'environ', dict(given))
    threads.use_physical_cores()
    assert os.environ['OMP_NUM_THREADS'] == wanted and int(os.environ['GOMP_SPINCOUNT']) > 0


def test_cores_are_those_that_the_process_may_run_on():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads.physical_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
