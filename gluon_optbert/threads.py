"""How many threads MXNet uses: the physical cores over the workers of this host, unless the user said otherwise."""
from __future__ import annotations

import os

import psutil


def physical_cores() -> int:
    """Physical cores that this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else psutil.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def use_physical_cores() -> None:
    """Set ``OMP_NUM_THREADS`` where it is not set; MXNet's own default is half the logical processors.

    The number of workers on this host is Horovod's ``HOROVOD_LOCAL_SIZE``.
    """
    workers = os.environ.get('HOROVOD_LOCAL_SIZE', '1')
    workers = int(workers) if workers.isdigit() else 1
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, physical_cores() // max(1, workers))))
