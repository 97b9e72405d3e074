"""The machine of a run: its processors, threads and GPUs, and what is noted of what computes the run."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import mxnet as mx
import pytest
from helpers.tiny import ROOT, environment

from gluon_optbert.runs import machine
from gluon_optbert.runs.machine import ORIGIN, note_origin

V1 = '32 31 0:29 {root} {point} rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct\n'
V2 = '41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n'
MEMORY = '35 31 0:32 / /elsewhere rw,relatime - cgroup cgroup rw,memory\n'


def write_groups(place, *, mount, root, line, files):
    """A directory like ``/proc/self``, and control groups with these files below a mount point."""
    proc, point = place / 'proc', place / 'cgroup'
    proc.mkdir()
    (proc / 'mountinfo').write_text(MEMORY + mount.format(root=root, point=point))
    (proc / 'cgroup').write_text(f'4:memory:/other\n{line}\n')
    for name, text in files.items():
        (point / name).parent.mkdir(parents=True, exist_ok=True)
        (point / name).write_text(text + '\n')
    return proc


def version_1(place, quota, period=100000):
    """The files of a control group of version 1."""
    return {f'{place}cpu.cfs_quota_us': str(quota), f'{place}cpu.cfs_period_us': str(period)}


@pytest.mark.parametrize(
    'mount, root, line, files, quota',
    [
        (V2, '/', '0::/job', {'job/cpu.max': '150000 100000'}, 1.5),
        (V2, '/', '0::/a/job', {'a/cpu.max': '200000 100000', 'a/job/cpu.max': 'max 100000'}, 2.0),
        (V2, '/', '0::/', {'cpu.max': '50000 100000'}, 0.5),
        (V2, '/', '0::/job', {'job/cpu.max': 'nonsense'}, float('inf')),
        (V2, '/', '0::/', {}, float('inf')),
        (V1, '/', '2:cpu,cpuacct:/job', version_1('job/', 250000), 2.5),
        (V1, '/', '2:cpu,cpuacct:/job', version_1('job/', -1), float('inf')),
        (V1, '/', '2:cpuset:/job', version_1('job/', 250000), float('inf')),
        # a container that sees the host's paths, and a path outside of the mount
        (V1, '/docker/1', '2:cpu,cpuacct:/docker/1/job', version_1('job/', 100000), 1.0),
        (V1, '/docker/1', '2:cpu:/other', version_1('', 100000, 50000), 2.0),
    ],
)
def test_quota_is_the_smallest_of_the_groups_up_to_the_root(tmp_path, mount, root, line, files, quota):
    assert machine.cpu_quota(write_groups(tmp_path, mount=mount, line=line, files=files, root=root)) == quota
    assert machine.cpu_quota(tmp_path / 'nowhere') == float('inf')


@pytest.mark.parametrize('quota, count', [(0.5, 1), (1.9, 1), (2.0, 2), (float('inf'), 6)])
def test_processors_and_cores_stay_within_the_quota(monkeypatch, tmp_path, quota, count):
    monkeypatch.setattr(machine, 'cpu_quota', lambda: quota)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(6)))
    monkeypatch.setattr(machine.psutil, 'cpu_count', lambda logical: 6)
    assert machine.processors() == machine.physical_cores(tmp_path) == count


def test_processors_that_share_a_core_count_once(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, 'cpu_quota', lambda: float('inf'))
    for number, siblings in enumerate(['0,2', '1,3', '0,2', '1,3']):
        (tmp_path / f'cpu{number}' / 'topology').mkdir(parents=True)
        (tmp_path / f'cpu{number}' / 'topology' / 'thread_siblings_list').write_text(siblings + '\n')
    for allowed, cores in (({0, 1, 2, 3}, 2), ({0, 2}, 1), ({0, 1}, 2), ({3}, 1)):
        monkeypatch.setattr(os, 'sched_getaffinity', lambda process, allowed=allowed: allowed)
        assert machine.physical_cores(tmp_path) == cores
    monkeypatch.undo()
    assert 1 <= machine.physical_cores() <= machine.processors() <= len(os.sched_getaffinity(0))


# GPUs


def driver_of(*names, status=0, without=0):
    """Stands in for libcuda.so.1, with some GPUs."""

    def count(found):
        found._obj.value = len(names)
        return 0

    def get(device, number):
        device._obj.value = number + 10

    def get_name(name, size, device):
        name.value = names[device.value - 10]
        return status

    return SimpleNamespace(
        cuInit=lambda flags: without, cuDeviceGetCount=count, cuDeviceGet=get, cuDeviceGetName=get_name
    )


@pytest.mark.parametrize(
    'driver, names',
    [
        (driver_of(b'V100', b'T4'), ['V100', 'T4']),
        (driver_of(b'V100', status=101), ['unknown']),
        (driver_of(b'V100', without=100), []),
        (None, []),  # MXNet for CPUs asks no driver
    ],
)
def test_gpus_that_mxnet_sees_are_named(monkeypatch, driver, names):
    if driver:
        enabled = SimpleNamespace(is_enabled=lambda name: name == 'CUDA')
        monkeypatch.setattr(mx.runtime, 'Features', lambda: enabled)
    monkeypatch.setattr(machine.ctypes, 'CDLL', driver and (lambda name: driver))
    assert machine.gpu_names() == names
    monkeypatch.undo()
    monkeypatch.setattr(machine, 'gpu_names', lambda: names)
    assert ('gpus' in machine.machine()) == bool(names)


# Threads

NAMES = set(machine.SETTINGS)
UNSET = ['env', *(word for name in (*machine.SETTINGS, 'OMP_WAIT_POLICY') for word in ('-u', name))]


def said_by(program, **variables):
    """Output of a program, started without settings but for these environment variables."""
    words = [*UNSET, sys.executable, '-c', program]
    return subprocess.run(
        words, env=environment(**variables), cwd=str(ROOT), check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def idle(monkeypatch):
    """No other programs on six cores, and an environment to fill."""
    monkeypatch.setattr(machine, 'physical_cores', lambda: 6)
    monkeypatch.setattr(machine, 'other_programs', lambda: 0)
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
    assert {**machine.settings(), **variables}['OMP_NUM_THREADS'] == wanted
    assert set(machine.settings()) == NAMES - set(variables)  # what the user has set stays


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
    monkeypatch.setattr(machine, 'other_programs', lambda: others)
    os.environ.update({} if stated is None else {'OMP_NUM_THREADS': stated})
    choice = machine.threads_to_predict(asked)
    assert (choice.threads, choice.spinning) == (wanted, spinning)
    assert f'{wanted} thread' in str(choice) and '6 cores to use' in str(choice)
    assert ('other programs compute' in str(choice)) == (others > 0)
    with pytest.raises(ValueError, match='at least 1, found 0'):
        machine.threads_to_predict(0)


@pytest.mark.parametrize(
    'others, variables, spins',
    [
        (0, {}, machine.SPINS),
        (1, {}, machine.NO_SPINS),
        (1, {'HOROVOD_LOCAL_SIZE': '2', 'OMP_NUM_THREADS': '2'}, machine.SPINS),
        (1, {'HOROVOD_LOCAL_SIZE': '2'}, machine.NO_SPINS),
    ],
)
def test_threads_sleep_at_once_where_programs_want_more_processors(
    idle, monkeypatch, others, variables, spins
):
    monkeypatch.setattr(machine, 'other_programs', lambda: others)
    os.environ.update(variables)
    assert machine.settings()['GOMP_SPINCOUNT'] == spins
    os.environ['OMP_WAIT_POLICY'] = 'active'
    assert 'GOMP_SPINCOUNT' not in machine.settings()


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
    assert machine.other_programs(tmp_path / 'loadavg', pause=0) == others
    assert machine.other_programs(tmp_path / 'nowhere', pause=0) == 0


def test_threads_are_what_openmp_says_and_children_inherit_nothing_that_the_package_has_set():
    """As the quickstart starts Horovod: the child has another number of workers, and its own share."""
    child = (
        'from gluon_optbert.runs.machine import settings; print(settings()["OMP_NUM_THREADS"], flush=True)'
    )
    program = (
        'import os, subprocess, sys\n'
        'def shown(): return subprocess.run(["env"], capture_output=True, text=True).stdout\n'
        'before = shown(); import gluon_optbert.runs.loading, mxnet; mxnet.nd.ones(3).asnumpy()\n'
        'after = shown()\n'
        f'names = {(*machine.SETTINGS, *machine.KERNELS, *machine.AMX)}\n'
        'assert not any(name in text for name in names for text in (before, after))\n'
        'os.environ["HOROVOD_LOCAL_SIZE"] = "64"\n'
        f'subprocess.run([sys.executable, "-c", {child!r}])\n'
        'os.environ["OMP_NUM_THREADS"] = "7"\n'
        'from gluon_optbert.runs.machine import threads_here; print(threads_here())\n'
    )
    assert said_by(program) == f'1\n{machine.share_of_cores()}\n'


@pytest.mark.skipif(not machine.amx_is_granted(), reason='this process may not use AMX')
@pytest.mark.parametrize('own, used', [({}, True), ({'DNNL_MAX_CPU_ISA': 'AVX512_CORE_BF16'}, False)])
def test_onednn_uses_amx_unless_the_user_has_said_otherwise(own, used):
    program = (
        'import gluon_optbert.runs.loading, mxnet\n'
        'from gluon_optbert.runs.mxnet_arrays import BFLOAT16\n'
        'data = mxnet.nd.amp_cast(mxnet.nd.ones((64, 64)), dtype=BFLOAT16)\n'
        'total = mxnet.nd.FullyConnected(data, data, no_bias=True, num_hidden=64)\n'
        'print(mxnet.nd.amp_cast(total, dtype="float32").sum().asscalar())\n'
    )
    printed = said_by(program, DNNL_VERBOSE='1', **own)
    assert ('AMX with bfloat16' in printed) == used and '262144.0' in printed


def test_mxnet_that_was_imported_first_is_warned_of(idle, caplog, monkeypatch):
    monkeypatch.setattr(machine, 'threads_here', lambda: 3)
    machine.load_mxnet()
    assert 'it has 3 threads instead of 6' in caplog.text


BENCHMARKS = [path for path in ROOT.joinpath('benchmarks').glob('*.py') if 'import mxnet' in path.read_text()]


@pytest.mark.parametrize('path', BENCHMARKS, ids=lambda path: path.name)
def test_benchmarks_have_the_package_load_mxnet(path):
    lines = path.read_text(encoding='utf-8').splitlines()
    imports = [line.split()[1] for line in lines if line.startswith('import ')]
    assert 'mxnet' not in imports or imports.index('gluon_optbert.runs.loading') < imports.index('mxnet')


# Provenance


def entries(directory):
    return json.loads((directory / ORIGIN).read_text())


def test_run_notes_what_computes_it_once_until_something_else_does(tmp_path, monkeypatch):
    for _ in range(2):
        note_origin(tmp_path, workers=2)
    [result] = entries(tmp_path)
    assert set(result) == {'commit', 'versions', 'machine', 'workers'} and result['workers'] == 2
    assert result['machine'] == machine.machine() and result['versions']['mxnet'] == '1.9.1'
    monkeypatch.setattr(machine, 'commit', lambda: 'another')
    note_origin(tmp_path, workers=2)
    assert entries(tmp_path) == [result, {**result, 'commit': 'another'}]


@pytest.mark.parametrize(
    ('flags', 'widest'), [('sse2', None), ('sse2 avx avx2', 'AVX2'), ('avx2 avx512f', 'AVX-512')]
)
def test_machine_has_what_decides_the_rounding_of_its_results(monkeypatch, flags, widest):
    cpuinfo = f'model name\t: avx512f\nflags\t\t: fpu {flags}\nbugs\t\t: none\n'
    monkeypatch.setattr(machine, 'cpu_flags', lambda: cpuinfo)
    for name in machine.KERNEL_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    result = machine.machine()
    assert result.get('instructions') == widest and 'kernels' not in result
    monkeypatch.setenv('DNNL_MAX_CPU_ISA', 'AVX2')
    assert machine.machine() == {**result, 'kernels': {'DNNL_MAX_CPU_ISA': 'AVX2'}}


def test_versions_are_those_of_the_libraries_that_are_there(monkeypatch):
    for name in ('mxnet', 'gluonnlp'):
        monkeypatch.setitem(sys.modules, name, None)
    assert sorted(machine.versions()) == ['gluon_optbert', 'numpy', 'python']


@pytest.mark.parametrize('content', ['', '{}', '[' * 100000, '\udcff'])
def test_what_is_no_list_of_origins_gives_way(tmp_path, content):
    (tmp_path / ORIGIN).write_bytes(content.encode(errors='surrogateescape'))
    note_origin(tmp_path, workers=3)
    assert [entry['workers'] for entry in entries(tmp_path)] == [3]


def test_run_with_more_threads_than_cores_is_warned_of_once(tmp_path):
    crowded = {'threads': '2', 'workers_of_host': 2, 'cores': 2}
    sound = [{**crowded, 'threads': '1'}, {**crowded, 'threads': None}, {}]  # the last says nothing
    for machines, said in (([crowded, *sound, crowded], 1), (sound, 0)):
        (tmp_path / ORIGIN).write_text(json.dumps([{'machine': values} for values in machines]))
        sentences = machine.origin_warnings(tmp_path)
        assert len(sentences) == said
        assert all(one.startswith('2 workers of a host had 2 threads each') for one in sentences)


def test_commits_are_those_that_computed_the_run_each_once(tmp_path):
    origins = [{'commit': 'a'}, {'commit': 'b+', 'workers': 2}, {'commit': 'a'}, {'commit': None}, 7]
    (tmp_path / ORIGIN).write_text(json.dumps(origins))
    assert machine.commits_of(tmp_path) == ['a', 'b+']
    assert machine.commits_of(tmp_path / 'nowhere') == []
