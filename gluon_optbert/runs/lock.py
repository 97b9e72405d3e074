"""One process at a time writes an output: a lock that the system releases when its holder ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from pathlib import Path
from typing import Iterator, List, Optional, Set

from .failures import Interrupted
from .run_directory import Ranks
from .staging import check_place

LOG = logging.getLogger(__name__)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # from file systems without locks
_LONGEST = 1000  # bytes that are read of a lock file
_held: Set[int] = set()  # descriptors of the locks of this process


def _release_in_child() -> None:
    """Give up what a forked child inherits: it must not hold a lock longer than its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


class InUse(FileExistsError):
    """Another process is writing the output."""


def lock_file(output: Path) -> Path:
    """The file that is locked while an output is written: hidden, beside the output."""
    output = Path(output).resolve()
    if not output.name:
        raise ValueError(f'{output} is the root of the file system; give another --output')
    return output.with_name(f'.{output.name}.writing')


@contextlib.contextmanager
def locked(output: Path, ranks: Optional[Ranks] = None) -> Iterator[None]:
    """While an output is written: no other process may write it.

    The lock is on a file beside the output, for the output may not exist yet. The file names the holder, and
    is removed at the end. The file of a killed process stays, but its lock does not.

    Parameters
    ----------
    output : Path
    ranks : Ranks, optional
        The workers of a job; the first one takes the lock for all.

    Raises
    ------
    InUse
        If another process holds the lock, on every rank. The message of the first one names the process.
    FileNotFoundError
        If the output can have no place.
    ValueError
        If it is the root of the file system.
    """
    missing, descriptor, problem = _missing_parents(output), None, None
    if ranks is None or ranks.first:
        try:
            check_place(output)
            descriptor = _acquire(output)
        except OSError as error:
            problem = error
    try:
        if ranks is not None and ranks.sum([problem is not None], name='lock')[0] and not problem:
            raise InUse(f'{output}: rank 0 could not lock it')
        if problem:
            raise problem
        yield
    finally:
        if descriptor is not None:
            _release(descriptor, lock_file(output))
            for parent in missing:
                with contextlib.suppress(OSError):
                    parent.rmdir()  # unless something was written there


@contextlib.contextmanager
def running(output: Path, ranks: Ranks) -> Iterator[None]:
    """While a run that can be resumed writes its output: `locked`, and an interruption says how to go on.

    Raises
    ------
    InUse, FileNotFoundError
        As `locked`.
    Interrupted
        If there was a KeyboardInterrupt.
    """
    with locked(output, ranks):
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt as error:
            raise Interrupted('interrupted; go on with --resume') from error


def _missing_parents(output: Path) -> List[Path]:
    """The directories above an output that are not there, the lowest first."""
    return [parent for parent in lock_file(output).parents if not parent.exists()]


def _acquire(output: Path) -> Optional[int]:
    """The descriptor of the lock of an output; None, with a warning, where there can be no lock."""
    path = lock_file(output)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # another process has just removed the empty directory
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EROFS) and output.exists():
                return _without(output, error)  # a finished run may lie where nothing can be written
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                _remove(path)
                return _without(output, error)
            raise InUse(
                f'{output}: {_holder(path)} is writing it; wait until it has ended, or give another --output'
            ) from error
        if _is_at(descriptor, path):
            _sign(descriptor)
            _held.add(descriptor)
            return descriptor
        os.close(descriptor)  # its holder removed the file before we locked it


def _without(output: Path, error: OSError) -> None:
    LOG.warning('%s: cannot be locked (%s); let no other process write it', output, error.strerror)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write who holds the lock."""
    line = json.dumps({'host': socket.gethostname(), 'process': os.getpid()}) + '\n'
    os.ftruncate(descriptor, 0)
    os.write(descriptor, line.encode())
    os.fsync(descriptor)


def _holder(path: Path) -> str:
    """Who holds the lock, for people."""
    try:
        with open(path, 'rb') as file:
            holder = json.loads(file.read(_LONGEST))
        return f'process {int(holder["process"])} on host {holder["host"]!s:.80}'
    except (OSError, ValueError, KeyError, TypeError):
        return 'another process'  # which has locked the file and not signed it yet


def _release(descriptor: int, path: Path) -> None:
    """Remove the file while it is locked, and then give up the lock."""
    _remove(path)
    _held.discard(descriptor)
    os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
