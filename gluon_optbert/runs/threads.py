"""How many threads MXNet uses, and how they wait: what suits its CPU kernels, unless the user decides."""

from __future__ import annotations

import os

import psutil


def physical_cores() -> int:
    """Physical cores that this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else psutil.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def use_physical_cores() -> None:
    """Set what OpenMP and MXNet read when MXNet is imported, where it is not set.

    ``OMP_NUM_THREADS`` becomes the physical cores over the workers of this host (``HOROVOD_LOCAL_SIZE``, or
    Open MPI's ``OMPI_COMM_WORLD_LOCAL_SIZE``), of those that this process may run on; MXNet's own default is
    half the logical processors. ``GOMP_SPINCOUNT`` becomes 5,000, some ten microseconds: threads that spin
    long at the end of a kernel slow everything down many times over on a machine that has other work, and
    threads that sleep at once (``OMP_WAIT_POLICY=passive``, or 2,000) double the time of the many small
    products of attention on one that has none.

    ``MXNET_USE_OPERATOR_TUNING=0`` shares products and differences of tensors, element by element, among the
    threads. While it is imported MXNet times whether that pays, and on a machine that is busy in that moment
    they stay with one for the whole process."""
    workers = os.environ.get('HOROVOD_LOCAL_SIZE') or os.environ.get('OMPI_COMM_WORLD_LOCAL_SIZE', '1')
    workers = int(workers) if workers.isdigit() else 1
    os.environ.setdefault('OMP_NUM_THREADS', str(max(1, physical_cores() // max(1, workers))))
    os.environ.setdefault('GOMP_SPINCOUNT', '5000')
    os.environ.setdefault('MXNET_USE_OPERATOR_TUNING', '0')
