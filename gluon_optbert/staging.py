"""Files and directories that are whole or absent: written under a temporary name, then renamed."""
from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Iterator

import psutil

MARK = '.unfinished-'


def _temporary(path: Path) -> Path:
    return path.with_name(f'.{path.name}{MARK}{os.getpid()}')


def _sync(path: Path) -> None:
    handle = os.open(str(path), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_unfinished(path: Path) -> None:
    """Remove what dead processes left of an attempt to write `path`."""
    for left in path.parent.glob(f'.{path.name}{MARK}*'):
        owner = left.name.rsplit('-', 1)[1]
        if owner.isdigit() and (int(owner) == os.getpid() or not psutil.pid_exists(int(owner))):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


def refuse_existing(path: Path, *, remedy: str = 'choose another path or remove it') -> None:
    """Raise FileExistsError if there is something at `path`."""
    if Path(path).exists():
        raise FileExistsError(f'{path} exists; {remedy}')


@contextlib.contextmanager
def new_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A directory to fill; it appears as `path` when the block ends, and not at all if it raises.

    Parameters
    ----------
    path : Path
    replace : bool
        Whether a directory that is there gives way.

    Raises
    ------
    FileExistsError
        If there is something at `path` that may not be replaced.
    """
    path = Path(path)
    if not replace:
        refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_unfinished(path)
    staged = _temporary(path)
    staged.mkdir()
    try:
        yield staged
        for file in staged.rglob('*'):
            if file.is_file():
                _sync(file)
        if replace and path.exists():
            shutil.rmtree(path)
        else:
            refuse_existing(path)
        os.replace(staged, path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def write_file(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds the old bytes or the new ones, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = _temporary(path)
    try:
        with open(staged, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        staged.unlink() if staged.exists() else None
        raise
