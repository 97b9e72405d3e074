"""Origin of a measured number: the commit, the versions and the machine of a run."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib
import logging
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from .. import __version__
from .display import number_of
from .files import parse_json, read_small, write_json

PROC, SYSTEM = Path('/proc/self'), Path('/sys/devices/system/cpu')


def _control_groups(proc: Path) -> Iterator[Path]:
    """The control groups that may limit the processors of this process, up to their mount points."""
    mounts = {}
    for line in (proc / 'mountinfo').read_text(encoding='utf-8').splitlines():
        before, after = (part.split() for part in line.split(' - ', 1))
        kind, options = after[0], after[-1].split(',')
        if kind == 'cgroup2' or (kind == 'cgroup' and 'cpu' in options):
            mounts[kind] = before[3], Path(before[4])
    for line in (proc / 'cgroup').read_text(encoding='utf-8').splitlines():
        _, controllers, path = line.split(':', 2)
        kind = 'cgroup' if controllers else 'cgroup2'
        if kind in mounts and (not controllers or 'cpu' in controllers.split(',')):
            root, point = mounts[kind]
            below = os.path.relpath(path, root)
            group = point if below.startswith('..') else point / below
            yield from (group, *(parent for parent in group.parents if point in (parent, *parent.parents)))


def _quota_of(group: Path) -> float:
    """The quota of one control group, in processors; inf if it has none."""
    if (group / 'cpu.max').is_file():  # version 2
        quota, period = (group / 'cpu.max').read_text(encoding='ascii').split()
    elif (group / 'cpu.cfs_quota_us').is_file():  # version 1
        quota = (group / 'cpu.cfs_quota_us').read_text(encoding='ascii').strip()
        period = (group / 'cpu.cfs_period_us').read_text(encoding='ascii')
    else:
        return float('inf')
    return float('inf') if quota in ('max', '-1') else int(quota) / int(period)


def cpu_quota(proc: Path = PROC) -> float:
    """The smallest quota of the control groups of this process, in processors; inf without one.

    Versions 1 and 2 of control groups are read. Files that cannot be read limit nothing.
    """
    try:
        return min(map(_quota_of, _control_groups(proc)), default=float('inf'))
    except (OSError, ValueError, IndexError):
        return float('inf')


def _limited(count: int) -> int:
    """A number of processors, within the quota and at least 1."""
    return max(1, int(min(count, cpu_quota())))


def processors() -> int:
    """Logical processors that this process may use."""
    return _limited(len(os.sched_getaffinity(0)))


def physical_cores(system: Path = SYSTEM) -> int:
    """Physical cores that this process may use."""
    allowed = os.sched_getaffinity(0)
    try:
        topology = [system / f'cpu{number}' / 'topology' / 'thread_siblings_list' for number in allowed]
        return _limited(len({path.read_text(encoding='ascii') for path in topology}))
    except OSError:
        return _limited(min(len(allowed), psutil.cpu_count(logical=False) or len(allowed)))


def cpu_flags() -> str:
    """The processor and its instructions, as Linux names them; empty elsewhere."""
    cpuinfo = Path('/proc/cpuinfo')
    return cpuinfo.read_text(encoding='utf-8', errors='replace') if cpuinfo.is_file() else ''


KERNELS = {'OPENBLAS_CORETYPE': 'Haswell'}  # what MXNet's OpenBLAS reads while it is loaded
AMX = {'DNNL_MAX_CPU_ISA': 'AVX512_CORE_AMX'}  # what oneDNN 2.4, within MXNet, reads at its first operator
# From Linux's arch/x86/include/uapi/asm/prctl.h and Documentation/arch/x86/xstate.rst.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def amx_is_granted() -> bool:
    """Whether this processor multiplies bfloat16 in tiles (amx_bf16) and Linux lets this process do so.

    Linux 5.16 and later wait to be asked; the permission holds for all threads of the process.
    """
    if 'amx_bf16' not in cpu_flags():
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def bfloat16_is_fast() -> bool:
    """Whether products in bfloat16 are faster here than in float32: in tiles (see `amx_is_granted`), or with
    avx512_bf16 on a processor that has no tiles.
    """
    flags = cpu_flags()
    return amx_is_granted() if 'amx_bf16' in flags else 'avx512_bf16' in flags


def gpu_names() -> list[str]:
    """A name for each GPU, in MXNet's order; none where MXNet is the one for CPUs, or not installed."""
    try:
        import mxnet as mx
    except ImportError:
        return []
    if not mx.runtime.Features().is_enabled('CUDA'):
        return []
    driver, count, names = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(), []
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    for number in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(device), number)
        failed = driver.cuDeviceGetName(name, len(name), device)
        names.append('unknown' if failed else name.value.decode(errors='replace'))
    return names


SETTINGS = ('OMP_NUM_THREADS', 'GOMP_SPINCOUNT', 'MXNET_USE_OPERATOR_TUNING')  # all that are made here
SPINS, NO_SPINS = '1000', '0'
LOAD = Path('/proc/loadavg')
LOG = logging.getLogger(__name__)


def of_launcher(word: str, default: str) -> str:
    """RANK, SIZE or LOCAL_SIZE of this worker as its launcher has it: horovodrun with Gloo, or Open MPI."""
    return os.environ.get(f'HOROVOD_{word}') or os.environ.get(f'OMPI_COMM_WORLD_{word}', default)


def workers_of_host() -> int:
    """Workers of this job on this host: as Horovod or Open MPI say, else 1."""
    text = of_launcher('LOCAL_SIZE', '1')
    return max(1, int(text)) if text.isdigit() else 1


def share_of_cores() -> int:
    """The threads of each worker: the physical cores over the workers of this host."""
    return max(1, physical_cores() // workers_of_host())


def stated_threads() -> int | None:
    """The threads that OMP_NUM_THREADS asks for; None if it asks for none."""
    text = os.environ.get('OMP_NUM_THREADS', '')
    return int(text) or None if text.isdigit() else None


def other_programs(load: Path = LOAD, *, pause: float = 0.002) -> int:
    """Number of threads of other programs that compute now: the median of five samples of ``/proc/loadavg``,
    `pause` seconds apart; 0 without that file.
    """
    running = []
    for _ in range(5):
        try:
            running.append(int(load.read_text(encoding='ascii').split()[3].split('/')[0]))
        except (OSError, ValueError, IndexError):
            return 0
        time.sleep(pause)
    return max(0, int(statistics.median(running)) - workers_of_host())


def settings() -> dict[str, str]:
    """Environment variables that are set while MXNet is loaded: the following, without what the user has set.

    ``OMP_NUM_THREADS`` is `share_of_cores`; MXNet's own default is half the logical processors.

    ``GOMP_SPINCOUNT`` is 1,000: at the end of a kernel a thread spins some 50 microseconds for the next one,
    and then sleeps. To sleep earlier makes networks slower on an idle machine, to spin longer does not make
    them faster. Beside other programs the threads of a pass share a core, and each spins while the other one
    could compute. So it is 0 where the programs that compute now and the threads of this job are more than
    the processors. How threads wait changes no number.

    ``MXNET_USE_OPERATOR_TUNING=0`` shares products and differences of tensors, element by element, among the
    threads. While it is loaded MXNet times whether that pays, and on a machine that is busy in that moment
    they stay with one for the whole process.
    """
    wanted = {'OMP_NUM_THREADS': str(share_of_cores()), 'MXNET_USE_OPERATOR_TUNING': '0'}
    if 'OMP_WAIT_POLICY' not in os.environ:
        own = workers_of_host() * (stated_threads() or share_of_cores())
        crowded = other_programs() + own > (os.cpu_count() or 1)
        wanted['GOMP_SPINCOUNT'] = NO_SPINS if crowded else SPINS
    return {name: value for name, value in wanted.items() if name not in os.environ}


@dataclasses.dataclass(frozen=True)
class ThreadChoice:
    """The threads of a network that predicts, and why there are so many."""

    threads: int
    cores: int  # that this process may use: its affinity and the quota of its control groups count
    others: int  # threads of other programs that computed when the choice was made
    spinning: bool  # whether a thread may spin while it waits: not where threads outnumber the processors

    def __str__(self) -> str:
        busy = f', and other programs compute with {number_of(self.others, "thread")}' if self.others else ''
        return f'{number_of(self.threads, "thread")} ({number_of(self.cores, "core")} to use{busy})'


def threads_to_predict(threads: int | None = None) -> ThreadChoice:
    """The threads of a network that predicts: as many as asked for, or as OMP_NUM_THREADS says; else one for
    each core that this process may use and no other program uses now, and at least one. ValueError if a
    number below 1 is asked for.
    """
    if threads is not None and threads < 1:
        raise ValueError(f'threads must be at least 1, found {threads}')
    cores, others, processors = share_of_cores(), other_programs(), os.cpu_count() or 1
    threads = threads or stated_threads() or max(1, min(cores, processors - others))
    return ThreadChoice(threads, cores, others, threads > 1 and threads + others <= processors)


def load_mxnet() -> None:
    """Load MXNet with `settings`, which it and NumPy read while they are loaded.

    Children of this process inherit none of them. It is too late if MXNet is loaded: a warning says so if it
    has another number of threads.

    oneDNN reads `AMX` at its first operator. So one runs here where this process may use AMX, lest a child
    inherits what it may not use. Tiles change products in bfloat16 alone, by their rounding.

    The OpenBLAS of MXNet 1.9.1, which multiplies within attention, took its kernels for SSE3 (Prescott) on an
    Intel Xeon with AMX, which it does not know. Those for AVX2 are asked for wherever they run. NumPy has an
    OpenBLAS of its own, which knows that processor, and is loaded first.
    """
    if 'mxnet' in sys.modules:
        if 'OMP_NUM_THREADS' not in os.environ and threads_here() != share_of_cores():
            LOG.warning(
                'MXNet was imported before gluon_optbert, so it has %d threads instead of %d; import '
                'gluon_optbert.runs.loading first, or set OMP_NUM_THREADS',
                threads_here(),
                share_of_cores(),
            )
        return
    wanted, tiles = settings(), amx_is_granted()
    os.environ.update(wanted)
    try:
        importlib.import_module('numpy')
        kernels = KERNELS if {'avx2', 'fma'} <= set(cpu_flags().split()) else {}
        for name, value in {**kernels, **(AMX if tiles else {})}.items():
            if name not in os.environ:
                wanted[name] = os.environ[name] = value
        mx = importlib.import_module('mxnet')
        if tiles:
            mx.nd.softmax(mx.nd.zeros((1, 1))).wait_to_read()
    finally:
        for name in wanted:
            os.environ.pop(name, None)


def threads_here() -> int:
    """The threads of MXNet in this process, as OpenMP says; those that it will have, if it is not loaded."""
    if 'mxnet' in sys.modules:
        with contextlib.suppress(OSError, AttributeError):
            return int(ctypes.CDLL('libgomp.so.1', mode=os.RTLD_NOLOAD).omp_get_max_threads())
    return stated_threads() or share_of_cores()


ORIGIN = 'origin.json'
LIBRARIES = ('mxnet', 'gluonnlp', 'numpy')


@functools.cache
def commit() -> str | None:
    """The commit of the working tree that the package runs from, ending in ``+`` if it has changes; None if
    there is none. It is that of the first call, for a process keeps the code that it has loaded.
    """

    def git(*words: str) -> str:
        command = ['git', '-C', str(Path(__file__).resolve().parent), *words]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()

    try:
        if git('ls-files', Path(__file__).name) == '':
            return None  # installed below somebody else's repository
        return git('describe', '--always', '--exclude=*', '--abbrev=40', '--dirty=+')
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> dict[str, str]:
    """Of what a result depends on; a library that is not installed is left out."""
    libraries = {}
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            libraries[name] = str(importlib.import_module(name).__version__)
    return {'gluon_optbert': __version__, **libraries, 'python': platform.python_version()}


INSTRUCTIONS = {'avx512f': 'AVX-512', 'avx2': 'AVX2'}  # by their flag, the widest first
# by which users choose the instructions of oneDNN, OpenBLAS and NumPy, and with them how results are rounded
KERNEL_SETTINGS = ('DNNL_MAX_CPU_ISA', 'OPENBLAS_CORETYPE', 'NPY_DISABLE_CPU_FEATURES')


def machine() -> dict[str, Any]:
    """The processor, its widest vector instructions and its cores that may be used, threads, workers of the
    host, AMX, `KERNEL_SETTINGS` and GPUs if any, the system.
    """
    lines = cpu_flags().splitlines()
    flags = {flag for line in lines if line.startswith('flags') for flag in line.split()}
    widest = [name for flag, name in INSTRUCTIONS.items() if flag in flags]
    kernels = {name: os.environ[name] for name in KERNEL_SETTINGS if name in os.environ}
    models = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
    gpus = gpu_names()
    return {
        'cpu': models[0] if models else platform.processor(),
        **({'instructions': widest[0]} if widest else {}),
        'cores': physical_cores(),
        'threads': str(threads_here()),
        'workers_of_host': workers_of_host(),
        **({'amx': True} if amx_is_granted() else {}),
        **({'kernels': kernels} if kernels else {}),
        **({'gpus': gpus} if gpus else {}),
        'system': platform.platform(),
    }


def origin_here() -> dict[str, Any]:
    """Origin of a number that is measured here: ``commit``, ``versions``, ``machine``."""
    return {'commit': commit(), 'versions': versions(), 'machine': machine()}


def _entries(directory: Path) -> list[dict[str, Any]]:
    """The entries of a directory's `ORIGIN`; none if it is missing or no list."""
    try:
        entries = parse_json(read_small(Path(directory) / ORIGIN), source=ORIGIN)
    except (OSError, ValueError):
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def commits_of(directory: Path) -> list[str]:
    """The commits that computed the run of a directory, as its `ORIGIN` says: each once, the first first."""
    commits = [entry.get('commit') for entry in _entries(directory)]
    return list(dict.fromkeys(commit for commit in commits if isinstance(commit, str)))


def origin_warnings(directory: Path) -> list[str]:
    """Reasons why the run of a directory was slow, as its `ORIGIN` says: each sentence once."""
    sentences = []
    for entry in _entries(directory):
        try:
            counts = (entry['machine'][name] for name in ('threads', 'workers_of_host', 'cores'))
            threads, workers, cores = map(int, counts)
        except (KeyError, TypeError, ValueError):  # it is a file that people can change
            continue
        if threads * workers > cores:
            sentences.append(
                f'{workers} workers of a host had {threads} threads each, but {cores} cores: they waited for '
                'each other; leave OMP_NUM_THREADS unset, or set it to the cores over the workers'
            )
    return list(dict.fromkeys(sentences))


def note_origin(directory: Path, *, workers: int) -> None:
    """Write into a run's directory what computes it: an entry of `ORIGIN` when it begins, and one more
    whenever it goes on with another commit, version, machine, or number of workers."""
    entries = _entries(directory)
    now = {**origin_here(), 'workers': workers}
    if now not in entries[-1:]:
        write_json(Path(directory) / ORIGIN, [*entries, now])
