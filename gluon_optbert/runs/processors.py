"""The processors that this process may use: its affinity, and the quota of its control groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import psutil

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
    """What Linux says of the processor and its instructions; empty elsewhere."""
    cpuinfo = Path('/proc/cpuinfo')
    return cpuinfo.read_text(encoding='utf-8', errors='replace') if cpuinfo.is_file() else ''


def bfloat16_is_native() -> bool:
    """Whether this processor multiplies bfloat16 natively (avx512_bf16 or amx_bf16), not in emulation."""
    flags = cpu_flags()
    return 'avx512_bf16' in flags or 'amx_bf16' in flags
