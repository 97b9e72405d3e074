"""How many threads a network uses, and how they wait. Nothing else in the package decides this.

MXNet and NumPy read the settings once, while they are loaded. They are in the environment only for that time,
so no child process inherits them: it decides for itself. What the user has set stays, and is inherited.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.abc
import logging
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional

from .processors import physical_cores

READERS = ('mxnet', 'numpy')  # the libraries that read the settings
SETTINGS = ('OMP_NUM_THREADS', 'GOMP_SPINCOUNT', 'MXNET_USE_OPERATOR_TUNING')  # all that are made here
SPINS, NO_SPINS = '1000', '0'
LOAD = Path('/proc/loadavg')
log = logging.getLogger(__name__)


def workers_of_host() -> int:
    """Workers of this job on this host: as Horovod or Open MPI say, else 1."""
    text = os.environ.get('HOROVOD_LOCAL_SIZE') or os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE', '1')
    return max(1, int(text)) if text.isdigit() else 1


def share_of_cores() -> int:
    """The threads of each worker: the physical cores over the workers of this host."""
    return max(1, physical_cores() // workers_of_host())


def other_programs(load: Path = LOAD, *, samples: int = 5, pause: float = 0.002) -> int:
    """How many threads of other programs compute now: the median of some samples in 10 ms.

    Parameters
    ----------
    load : Path
        A file as ``/proc/loadavg``; without it, 0.
    samples : int
    pause : float
        Seconds between two.
    """
    running = []
    for _ in range(samples):
        try:
            running.append(int(load.read_text(encoding='ascii').split()[3].split('/')[0]))
        except (OSError, ValueError, IndexError):
            return 0
        time.sleep(pause)
    return max(0, int(statistics.median(running)) - workers_of_host())


def settings(reader: str = 'mxnet') -> Dict[str, str]:
    """What is set while a library is loaded: the following, without what the user has set.

    NumPy reads the first one only.

    ``OMP_NUM_THREADS`` is `share_of_cores`; MXNet's own default is half the logical processors.

    ``GOMP_SPINCOUNT`` is 1,000: at the end of a kernel a thread spins some 50 microseconds for the next one,
    and then sleeps. To sleep earlier makes networks slower on an idle machine, to spin longer does not make
    them faster. Beside other programs the threads of a pass share a core, and each spins while the other one
    could compute. So it is 0 where the programs that compute now and the threads of this job are more than
    the processors. ``tools/benchmark_waiting.py`` measures this. How threads wait changes no number.

    ``MXNET_USE_OPERATOR_TUNING=0`` shares products and differences of tensors, element by element, among the
    threads. While it is loaded MXNet times whether that pays, and on a machine that is busy in that moment
    they stay with one for the whole process.
    """
    threads = os.environ.get('OMP_NUM_THREADS', str(share_of_cores()))
    wanted = {'OMP_NUM_THREADS': threads}
    if reader == 'mxnet':
        wanted['MXNET_USE_OPERATOR_TUNING'] = '0'
        if 'OMP_WAIT_POLICY' not in os.environ:
            own = workers_of_host() * (int(threads) if threads.isdigit() else share_of_cores())
            crowded = other_programs() + own > (os.cpu_count() or 1)
            wanted['GOMP_SPINCOUNT'] = NO_SPINS if crowded else SPINS
    return {name: value for name, value in wanted.items() if name not in os.environ}


@dataclasses.dataclass(frozen=True)
class ThreadChoice:
    """The threads of a network that predicts, and why there are so many.

    Parameters
    ----------
    threads : int
    cores : int
        Physical cores that this process may use: its affinity and the quota of its control groups count.
    others : int
        Threads of other programs that computed when the choice was made.
    spinning : bool
        Whether a thread may spin while it waits: not where threads would outnumber the processors.
    """

    threads: int
    cores: int
    others: int
    spinning: bool

    def __str__(self) -> str:
        def counted(number: int, what: str) -> str:
            return f'{number} {what}{"" if number == 1 else "s"}'

        busy = f', and other programs compute with {counted(self.others, "thread")}' if self.others else ''
        return f'{counted(self.threads, "thread")} ({counted(self.cores, "core")} to use{busy})'


def threads_to_predict(threads: Optional[int] = None) -> ThreadChoice:
    """The threads of a network that predicts: as many as asked for, or as OMP_NUM_THREADS says; else one for
    each core that this process may use and no other program uses now, and at least one.

    Raises
    ------
    ValueError
        If a number below 1 is asked for.
    """
    if threads is not None and threads < 1:
        raise ValueError(f'threads must be at least 1, found {threads}')
    cores, others, processors = share_of_cores(), other_programs(), os.cpu_count() or 1
    stated = os.environ.get('OMP_NUM_THREADS', '')
    if threads is None:
        free = max(1, min(cores, processors - others))
        threads = int(stated) if stated.isdigit() and int(stated) else free
    return ThreadChoice(threads, cores, others, threads > 1 and threads + others <= processors)


@contextlib.contextmanager
def in_environment(values: Mapping[str, str]) -> Iterator[None]:
    """While some variables are set; none of them may be set before."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `READERS` as the other finders do, and puts the settings around the loading of one."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[Any]:
        if fullname not in READERS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                with in_environment(settings(fullname)):
                    load(module)

            spec.loader.exec_module = exec_module
        return spec


def set_at_load() -> None:
    """See to it that MXNet has the settings when it is loaded; nothing is loaded here.

    It is too late if MXNet is loaded already: a warning says so if it has another number of threads.
    """
    if 'mxnet' in sys.modules and 'OMP_NUM_THREADS' not in os.environ and threads_here() != share_of_cores():
        log.warning(
            'MXNet was imported before gluon_optbert, so it has %d threads instead of %d; import '
            'gluon_optbert first, or set OMP_NUM_THREADS',
            threads_here(),
            share_of_cores(),
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def threads_here() -> int:
    """The threads of MXNet in this process, as OpenMP says; those that it will have, if it is not loaded."""
    if 'mxnet' in sys.modules:
        with contextlib.suppress(OSError, AttributeError):
            return int(ctypes.CDLL('libgomp.so.1', mode=os.RTLD_NOLOAD).omp_get_max_threads())
    text = os.environ.get('OMP_NUM_THREADS', '')
    return int(text) if text.isdigit() and int(text) else share_of_cores()


def more_threads_than_cores(machine: Mapping[str, Any]) -> Optional[str]:
    """A sentence if the workers of a host had more threads than it has cores.

    Parameters
    ----------
    machine : mapping
        As `provenance.machine` gives it; what lacks a number gives None.
    """
    try:
        threads, workers, cores = (int(machine[name]) for name in ('threads', 'workers_of_host', 'cores'))
    except (KeyError, TypeError, ValueError):
        return None
    if threads * workers <= cores:
        return None
    return (
        f'{workers} workers of a host had {threads} threads each, but {cores} cores: they waited for each '
        'other; leave OMP_NUM_THREADS unset, or set it to the cores over the workers'
    )
