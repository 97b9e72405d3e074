"""Files and directories that are whole or absent: written under another name, renamed when complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Iterator


def refuse_existing(output: Path, *, remedy: str = 'give another --output') -> None:
    """Raise FileExistsError if there is anything at `output`, FileNotFoundError if it can have no place."""
    if os.path.lexists(output):
        raise FileExistsError(f'{output}: exists, and nothing is overwritten; {remedy}')
    check_place(output, remedy=remedy)


def table_beside(output: Path) -> Path:
    """The Markdown file of a table that goes beside a JSON file; neither may be there yet.

    Raises
    ------
    ValueError
        If the JSON file has that name itself.
    FileExistsError, FileNotFoundError
        As `refuse_existing`, of both.
    """
    table = output.with_suffix('.md')
    if table == output:
        raise ValueError(
            f'{output}: the table beside the JSON file has this name; give output another suffix'
        )
    refuse_existing(output)
    refuse_existing(table)
    return table


def refuse_file(output: Path) -> None:
    """Raise NotADirectoryError if there is a file at `output`, which is to be a directory."""
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(f'{output} is a file; give another --output')


def check_place(output: Path, *, remedy: str = 'give another --output') -> None:
    """Raise FileNotFoundError if `output` can have no place, because a file is where it needs a directory."""
    for parent in Path(output).absolute().parents:
        if parent.exists():
            if not parent.is_dir():
                raise FileNotFoundError(f'{output}: {parent} is a file; {remedy}')
            return


@contextlib.contextmanager
def new_directory(output: Path, *, replace: bool = False) -> Iterator[Path]:
    """A directory to write into, which becomes `output` at the end and vanishes if there is an error.

    A killed run leaves a hidden directory beside `output`; the next run for the same output removes it. One
    that a living run writes to is locked, and stays.

    Parameters
    ----------
    output : Path
    replace : bool
        Whether a directory that is there gives way.

    Raises
    ------
    FileExistsError
        If there is something at `output`, before or after, that may not be replaced.
    """
    output = Path(output)
    if not replace:
        refuse_existing(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    prefix = f'.{output.name}.partial-'
    for stale in output.parent.glob(f'{_escaped(prefix)}*'):
        lock = _lock(stale)
        if lock is not None:
            shutil.rmtree(stale, ignore_errors=True)
            os.close(lock)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
    lock = _lock(partial)
    try:
        yield partial
        os.chmod(partial, 0o777 & ~_umask())
        for folder, _, names in os.walk(partial):
            for name in (*names, '.'):
                _flush(Path(folder, name))
        if replace and output.exists():
            shutil.rmtree(output)
        refuse_existing(output)
        os.rename(partial, output)
        _flush(output.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)


def write_file(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds the old bytes or the new ones, never a part.

    A device or a pipe, such as ``/dev/null``, is written to and stays what it is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    staged = path.with_name(f'.{path.name}.partial')
    try:
        with open(staged, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except BaseException:
        if staged.exists():
            staged.unlink()
        raise


def _escaped(name: str) -> str:
    return ''.join(f'[{character}]' if character in '*?[' else character for character in name)


def _lock(directory: Path):
    """A locked descriptor of a directory, or None if another process has the lock or the file system has
    none.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """Have the disk hold what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
