"""Files: written whole or not at all, by one process at a time, vouched for by size and SHA-256; JSON that is
not trusted.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import io
import json
import logging
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pydantic
from filelock import FileLock, Timeout

from .. import __version__
from .failures import Interrupted
from .limits import DEEPEST, MOST_BYTES, MOST_VALUES, fits_memory, within
from .starting import what_it_is

Values = TypeVar('Values')
LOG = logging.getLogger(__name__)
_LONGEST_REASON = 160  # characters of a reason
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # from file systems without locks
_LOCK = '.lock'  # behind the name of a staged directory
_READ_ONLY = (errno.EACCES, errno.EROFS)
_LONGEST_HOLDER = 1000  # bytes that are read of a lock file


@contextlib.contextmanager
def fetching(what: object) -> Iterator[None]:
    """While a library fetches something: say what, and leave out the library's words on every attempt."""
    print(f'fetching {what}', file=sys.stderr, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def reason(error: BaseException) -> str:
    """Reason why something could not be fetched, in a short line: of a connection that failed, the host
    alone.
    """
    host = re.search(r"HTTPS?ConnectionPool\(host='([^']+)'", str(error))
    if host:
        return f'no connection to {host.group(1)}'
    return f'{type(error).__name__}: {str(error).strip()}'.split('\n')[0][:_LONGEST_REASON]


def refuse_existing(output: Path, *, remedy: str = 'give another --output') -> None:
    """Raise FileExistsError if there is anything at `output`, FileNotFoundError if it can have no place."""
    if os.path.lexists(output):
        raise FileExistsError(f'{output}: exists, and nothing is overwritten; {remedy}')
    check_place(output, remedy=remedy)


def check_place(output: Path, *, remedy: str = 'give another --output') -> None:
    """Raise FileNotFoundError if `output` can have no place, because a file is where it needs a directory."""
    for parent in Path(output).absolute().parents:
        if parent.exists():
            if not parent.is_dir():
                raise FileNotFoundError(f'{output}: {parent} is a file; {remedy}')
            return


def check_room(output: Path, needed: float) -> None:
    """Raise OSError if the disk of `output` has fewer free bytes than it will need."""
    place = next(parent for parent in Path(output).absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            f'{output} will need about {needed / 1e9:.2g} GB, and {place} has {free / 1e9:.2g} GB free; make '
            'room, or give another --output'
        )


@contextlib.contextmanager
def new_directory(output: Path, *, replace: bool = False, needed: float = 0) -> Iterator[Path]:
    """A directory to write into, which becomes `output` at the end and vanishes if there is an error.

    A killed run leaves a hidden directory and its lock beside `output`; the next run for the same output
    removes them. Those of a living run are locked, and stay. With `replace` a directory that is there gives
    way; anything else at `output`, before or after, is a FileExistsError, and fewer free bytes than `needed`
    are an OSError.
    """
    output = Path(output)
    if not replace:
        refuse_existing(output)
    prefix = f'.{output.name}.partial-'
    for stale in output.parent.glob(f'{glob.escape(prefix)}*'):
        with _lock_of(stale) as is_ours:
            if is_ours:
                shutil.rmtree(stale, ignore_errors=True)
    check_room(output, needed)
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f'{prefix}{secrets.token_hex(4)}')
    with _lock_of(partial):
        try:
            partial.mkdir()
            yield partial
            for folder, _, names in os.walk(partial):
                for name in (*names, '.'):
                    _flush(Path(folder, name))
            if replace and output.exists():
                shutil.rmtree(output)
            refuse_existing(output)
            os.rename(partial, output)
            _flush(output.parent)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            _name_if_full(error, output)
            raise


def remove_directory(output: Path) -> None:
    """Remove a directory, if it is there, whole or not at all: a killed run leaves a hidden one as of
    `new_directory`.
    """
    if output.exists():
        gone = output.with_name(f'.{output.name}.partial-{secrets.token_hex(4)}')
        os.rename(output, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _name_if_full(error: BaseException, output: Path) -> None:
    """Have the error of a full disk name what was being written, where it names no file."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        error.filename = str(output)


@contextlib.contextmanager
def _lock_of(partial: Path) -> Iterator[bool]:
    """Whether this process has locked a staged directory, until the end of the block."""
    path = partial if partial.suffix == _LOCK else partial.with_name(partial.name + _LOCK)
    try:
        lock = _try_lock(path)
    except OSError:  # a file system without locks
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            path.unlink(missing_ok=True)
            lock.release()


def _try_lock(path: Path) -> FileLock | None:
    """The lock on a file, without waiting; None if another process has it, or the file cannot be made."""
    lock = FileLock(path, timeout=0)
    for _ in range(3):  # for its holder may have removed the file before it was locked here
        with contextlib.suppress(Timeout):
            lock.acquire()
            return lock
        if path.exists():
            break
    return None


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
    except BaseException as error:
        staged.unlink(missing_ok=True)
        _name_if_full(error, path)
        raise


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON for people, too, as `write_file` writes."""
    write_file(path, (json.dumps(values, indent=1) + '\n').encode())


def _flush(path: Path) -> None:
    """Have the disk hold what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class InUse(FileExistsError):
    """Another process is writing the output."""


def lock_file(output: Path) -> Path:
    """The file that is locked while an output is written: hidden, beside the output. It names the holder.
    ValueError for the root of the file system.
    """
    output = Path(output).resolve()
    if not output.name:
        raise ValueError(f'{output} is the root of the file system; give another --output')
    return output.with_name(f'.{output.name}.writing')


class Ranks(Protocol):
    """The workers of a job, as far as files are concerned."""

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""

    def barrier(self, name: str) -> None:
        """Wait until every worker is here."""

    def sum(self, values: Iterable[float], *, name: str) -> list[float]:
        """Sums over the workers."""


@contextlib.contextmanager
def locked(output: Path, ranks: Ranks | None = None) -> Iterator[None]:
    """While an output is written: no other process may write it. InUse on every rank if one does; errors also
    as of `check_place` and `lock_file`.

    The lock is on a file beside the output, for the output may not exist yet. The first of the `ranks` takes
    it for all. The file is removed at the end. That of a killed process stays, but its lock does not.
    """
    output, held, problem = Path(output), None, None
    path = lock_file(output)
    missing = [parent for parent in path.parents if not parent.exists()]
    if ranks is None or ranks.first:
        try:
            check_place(output)
            held = _acquired(path, output)
        except OSError as error:
            problem = error
    try:
        if ranks is not None and ranks.sum([problem is not None], name='lock')[0] and not problem:
            raise InUse(f'{output}: rank 0 could not lock it')
        if problem:
            raise problem
        yield
    finally:
        if held is not None:
            path.unlink(missing_ok=True)  # while it is locked
            held.release()
            for parent in missing:
                with contextlib.suppress(OSError):
                    parent.rmdir()  # unless something was written there


@contextlib.contextmanager
def new_output(output: Path, *, remedy: str = 'give another --output') -> Iterator[None]:
    """While an output is made that is not there yet: `locked`, and FileExistsError if it is there."""
    with locked(output):
        refuse_existing(output, remedy=remedy)
        yield


@contextlib.contextmanager
def running(output: Path, ranks: Ranks) -> Iterator[None]:
    """While a run that can be resumed writes its output: `locked`, and a KeyboardInterrupt becomes
    Interrupted, which says how to go on.
    """
    with locked(output, ranks):
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt as error:
            raise Interrupted('asked to stop; what is done is saved, go on with --resume') from error


def _acquired(path: Path, output: Path) -> FileLock | None:
    """The lock of an output, signed; None, with a warning, on a file system without locks or where a finished
    output lies in a place that cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _try_lock(path)
    except OSError as error:
        if error.errno not in _NO_LOCKS and not (error.errno in _READ_ONLY and output.exists()):
            raise
        if error.errno in _NO_LOCKS:
            path.unlink(missing_ok=True)
        LOG.warning('%s: cannot be locked (%s); let no other process write it', output, error.strerror)
        return None
    if lock is None:
        if not path.exists():  # not another process, but a place where no file can be made
            raise FileNotFoundError(f'{output}: no file can be made beside it; give another --output')
        raise InUse(
            f'{output}: {_holder(path)} is writing it; wait until it has ended, or give another --output'
        )
    since = time.strftime('%Y-%m-%d %H:%M:%S')
    holder = {'host': socket.gethostname(), 'process': os.getpid(), 'since': since}
    try:
        path.write_text(json.dumps(holder) + '\n')
    except OSError:  # such as a full disk
        lock.release()
        raise
    return lock


def _holder(path: Path) -> str:
    """Who holds a lock, for people."""
    try:
        holder = json.loads(path.read_bytes()[:_LONGEST_HOLDER])
        since = f'since {holder["since"]!s:.40}'
        return f'process {int(holder["process"])} on host {holder["host"]!s:.80} ({since})'
    except (OSError, ValueError, KeyError, TypeError):
        return 'another process'  # which has locked the file and not signed it yet


_LFS_POINTER = b'version https://git-lfs.github.com/spec/'  # begins what stands for a file in Git LFS
_LONGEST_NAME = 255  # bytes that file systems take
MANIFEST = 'manifest.json'
_NOT_VOUCHED_FOR = (MANIFEST, 'README.md')
_SEAL = ',\n "sha256": "'  # in front of the digest of all that stands before it, the last value of a manifest


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for block in iter(lambda: file.read(1 << 22), b''):
            digest.update(block)
    return digest.hexdigest()


def write_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """Write the values of a manifest, and last the SHA-256 of the bytes before it."""
    body = json.dumps(values, indent=1).removesuffix('\n}').encode()
    path.write_bytes(body + f'{_SEAL}{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode())


def read_sealed(path: Path, **limits: int) -> dict[str, Any]:
    """The values that `write_sealed` wrote; ValueError if a bit of them has changed."""
    content = read_small(path, **limits)
    values = json_object(content, source=path)
    body, _, end = content.rpartition(_SEAL.encode())
    if end != f'{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode():
        raise ValueError(
            f'{path}: has changed since it was written; copy the directory again or make it anew'
        )
    return {name: value for name, value in values.items() if name != 'sha256'}


def write_manifest(directory: Path, *, form: str, version: int, **more: Any) -> None:
    """Vouch for every file of a directory in its ``manifest.json``, but for its page for people, which may be
    edited.
    """
    files = {
        file.name: {'bytes': file.stat().st_size, 'sha256': sha256(file)}
        for file in sorted(directory.iterdir())
        if file.is_file() and file.name not in _NOT_VOUCHED_FOR
    }
    manifest = {'format': form, 'version': version, 'gluon_optbert': __version__, **more, 'files': files}
    write_sealed(directory / MANIFEST, manifest)


def _inside(directory: Path) -> str:
    """Place in a directory that has manifests; of a run, that of its last network."""
    found = [path.parent for place in ('*', '*/*') for path in directory.glob(f'{place}/manifest.json')]
    if not found:
        return ''
    last = max(found, key=lambda path: (path.name == 'model', path))
    return f'; there are {len(found)} inside, such as {last}'


def check_manifest(directory: Path, *, form: str, version: int) -> dict[str, Any]:
    """The manifest of a directory, all of whose files are as it says; FileNotFoundError if there is none,
    ValueError if it is of another kind or version, or with the files that are missing or changed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        found = 'is a file, and a directory is wanted' if directory.exists() else 'no such directory'
        raise FileNotFoundError(f'{directory}: {found}')
    path = directory / MANIFEST
    if not path.is_file():
        found = what_it_is(directory)
        raise FileNotFoundError(
            f'{directory}: no manifest.json, so this is not a finished {form} directory'
            f'{_inside(directory) if found is None else f"; {found}"}'
        )
    manifest = read_sealed(path)
    try:
        kind = manifest['format'], manifest['version']
        files = dict(manifest['files']) if kind == (form, version) else {}
        stated = {str(name): (int(entry['bytes']), str(entry['sha256'])) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f'{path}: not a manifest ({type(error).__name__}: {error!s:.200})') from error
    if kind != (form, version):
        found = None if kind[0] == form else what_it_is(directory)
        raise ValueError(
            f'{path}: this is {kind[0]!r:.80} version {kind[1]!r:.80}, wanted {form!r} version {version}'
            f'{"" if found is None else f"; {found}"}'
        )
    problems = []
    for name, (size, digest) in stated.items():
        file = directory / name
        if (
            Path(name).name != name
            or len(name.encode('utf-8', 'replace')) > _LONGEST_NAME
            or not name.isprintable()
        ):
            problems.append(f'{name[:80]!r} is not a plain file name')
        elif not file.is_file():
            problems.append(f'{name} is missing')
        elif file.stat().st_size != size:
            problems.append(f'{name} has {file.stat().st_size} bytes, wanted {size}')
        elif sha256(file) != digest:
            problems.append(f'{name} has changed since it was written')
    if problems:
        raise ValueError(f'{directory}: {"; ".join(problems)}; copy it again or make it anew')
    return manifest


def parse_json(text: str | bytes, *, source: object) -> Any:
    """The value that JSON of any origin holds; ValueError, with the source, if it is not JSON, has too many
    values, or is nested deeper than `DEEPEST`.
    """
    marks = (b',', b'[', b'{') if isinstance(text, bytes) else ',[{'  # all values but the first follow one
    within(sum(map(text.count, marks)), MOST_VALUES, 'values', source=source)
    try:
        value = json.loads(text.decode('utf-8-sig') if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{source}: not JSON ({error!s:.200})') from error
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if any(isinstance(inner, (dict, list)) for inner in level):
        raise ValueError(f'{source}: nested deeper than {DEEPEST}')
    return value


def existing(path: Path) -> Path:
    """The path of a file with content of its own; FileNotFoundError if there is none, ValueError if it is
    only the pointer that Git LFS leaves in its place, or larger than the memory of this machine.
    """
    path = Path(path)
    if not path.is_file():
        found = 'is a directory, and a file is wanted' if path.is_dir() else 'no such file'
        raise FileNotFoundError(f'{path}: {found}')
    fits_memory(path)
    with open(path, 'rb') as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ValueError(
                f'{path}: a pointer of Git LFS instead of the content; run git lfs pull there, or download it'
            )
    return path


def read_small(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file of any origin that is read whole; ValueError if it is too large for its kind."""
    path = existing(path)
    within(path.stat().st_size, most_bytes, 'bytes', source=path)
    return path.read_bytes()


def decoded(path: Path) -> str:
    """The text of a file, without a byte order mark; errors as of `existing`, and ValueError if it is not
    UTF-8.
    """
    content = existing(path).read_bytes()
    try:
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b'\n') + 1
        raise ValueError(f'{path}: not UTF-8 at byte {error.start}, in line {line}; convert it') from error


def read_json(path: Path, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The object in a JSON file of any origin; errors as of `read_small` and `json_object`."""
    return json_object(read_small(path, most_bytes=most_bytes), source=path)


def json_object(text: str | bytes, *, source: object) -> dict[str, Any]:
    """The object that JSON of any origin holds; ValueError as `parse_json`, and if it holds anything else."""
    values = parse_json(text, source=source)
    if not isinstance(values, dict):
        raise ValueError(f'{source}: wanted a JSON object, found {type(values).__name__}')
    return values


_adapter_of = functools.cache(pydantic.TypeAdapter)  # which takes milliseconds to make


def checked(cls: type[Values], values: Mapping[str, Any], *, source: object) -> Values:
    """The values of a file as a model or dataclass of pydantic's; ValueError that names the source and what
    is wrong.
    """
    try:
        return _adapter_of(cls).validate_python(values)
    except pydantic.ValidationError as error:
        problems = []
        for one in error.errors(include_url=False)[:8]:
            place = repr('.'.join(map(str, one['loc'])))[1:-1][:80]  # in one line, whatever a key holds
            wrong = one['msg'].removeprefix('Value error, ').replace('Input should', 'must')
            problems.append(f'{place} {wrong:.300}, found {one["input"]!r:.80}' if place else wrong)
        raise ValueError(f'{source}: {"; ".join(problems)}') from None
