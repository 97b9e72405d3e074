"""The processors of a process: its affinity, and the smallest quota of its control groups."""

import os

import pytest

from gluon_optbert.runs import machine as processors

V1 = '32 31 0:29 {root} {point} rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n'
V2 = '41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n'
MEMORY = '35 31 0:32 / /elsewhere rw,relatime - cgroup cgroup rw,memory\n'


def write_groups(place, *, mount, line, files, root='/'):
    """A directory like ``/proc/self``, and control groups with these files below a mount point."""
    proc, point = place / 'proc', place / 'cgroup'
    proc.mkdir()
    (proc / 'mountinfo').write_text(MEMORY + mount.format(root=root, point=point))
    (proc / 'cgroup').write_text(f'4:memory:/other\n{line}\n')
    for name, text in files.items():
        (point / name).parent.mkdir(parents=True, exist_ok=True)
        (point / name).write_text(text + '\n')
    return proc


@pytest.mark.parametrize(
    'line, files, quota',
    [
        ('0::/job', {'job/cpu.max': '150000 100000'}, 1.5),
        ('0::/slice/job', {'slice/cpu.max': '200000 100000', 'slice/job/cpu.max': 'max 100000'}, 2.0),
        ('0::/', {'cpu.max': '50000 100000'}, 0.5),
        ('0::/job', {'job/cpu.max': 'nonsense'}, float('inf')),
        ('0::/', {}, float('inf')),
    ],
)
def test_quota_of_version_2_is_the_smallest_up_to_the_root(tmp_path, line, files, quota):
    assert processors.cpu_quota(write_groups(tmp_path, mount=V2, line=line, files=files)) == quota


@pytest.mark.parametrize(
    'root, line, limit, quota',
    [
        ('/', '2:cpu,cpuacct:/job', '250000', 2.5),
        ('/', '2:cpu,cpuacct:/job', '-1', float('inf')),
        ('/docker/1', '2:cpu,cpuacct:/docker/1/job', '100000', 1.0),  # a container that sees the host's paths
        ('/', '2:cpuset:/job', '250000', float('inf')),
    ],
)
def test_quota_of_version_1_is_read(tmp_path, root, line, limit, quota):
    files = {'job/cpu.cfs_quota_us': limit, 'job/cpu.cfs_period_us': '100000'}
    proc = write_groups(tmp_path, mount=V1, line=line, files=files, root=root)
    assert processors.cpu_quota(proc) == quota


def test_path_outside_of_the_mount_is_its_root(tmp_path):
    files = {'cpu.cfs_quota_us': '100000', 'cpu.cfs_period_us': '50000'}
    proc = write_groups(tmp_path, mount=V1, line='2:cpu:/other', files=files, root='/docker/1')
    assert processors.cpu_quota(proc) == 2.0 and processors.cpu_quota(tmp_path / 'nowhere') == float('inf')


@pytest.mark.parametrize('quota, count', [(0.5, 1), (1.9, 1), (2.0, 2), (float('inf'), 6)])
def test_processors_and_cores_stay_within_the_quota(monkeypatch, tmp_path, quota, count):
    monkeypatch.setattr(processors, 'cpu_quota', lambda: quota)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(6)))
    monkeypatch.setattr(processors.psutil, 'cpu_count', lambda logical: 6)
    assert processors.processors() == processors.physical_cores(tmp_path) == count


def test_processors_that_share_a_core_count_once(monkeypatch, tmp_path):
    monkeypatch.setattr(processors, 'cpu_quota', lambda: float('inf'))
    for number, siblings in enumerate(['0,2', '1,3', '0,2', '1,3']):
        (tmp_path / f'cpu{number}' / 'topology').mkdir(parents=True)
        (tmp_path / f'cpu{number}' / 'topology' / 'thread_siblings_list').write_text(siblings + '\n')
    for allowed, cores in (({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1)):
        monkeypatch.setattr(os, 'sched_getaffinity', lambda process, allowed=allowed: allowed)
        assert processors.physical_cores(tmp_path) == cores
    monkeypatch.undo()
    assert 1 <= processors.physical_cores() <= processors.processors() <= len(os.sched_getaffinity(0))
