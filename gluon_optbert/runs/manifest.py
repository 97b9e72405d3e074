"""The manifest that vouches for every file of a directory by its size and SHA-256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict

from .. import __version__

_LONGEST_NAME = 255  # bytes that file systems take
_NOT_VOUCHED_FOR = ('manifest.json', 'README.md')


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for block in iter(lambda: file.read(1 << 22), b''):
            digest.update(block)
    return digest.hexdigest()


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
    (directory / 'manifest.json').write_text(json.dumps(manifest, indent=1) + '\n', encoding='utf-8')


def _inside(directory: Path) -> str:
    """Where in a directory there are manifests; of a run, where its last network is."""
    found = [path.parent for place in ('*', '*/*') for path in directory.glob(f'{place}/manifest.json')]
    if not found:
        return ''
    last = max(found, key=lambda path: (path.name == 'model', path))
    return f'; there are {len(found)} inside, such as {last}'


def check_manifest(directory: Path, *, form: str, version: int) -> Dict[str, Any]:
    """The manifest of a directory, all of whose files are as it says.

    Raises
    ------
    FileNotFoundError
        If the directory or its manifest is not there.
    ValueError
        If it is of another kind or version, or a file is missing, cut short or changed; all of them are
        named.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f'{directory}: no such directory')
    path = directory / 'manifest.json'
    if not path.is_file():
        raise FileNotFoundError(
            f'{directory}: no manifest.json, so this is not a finished {form} directory{_inside(directory)}'
        )
    try:
        manifest = json.loads(path.read_text(encoding='utf-8'))
        kind = manifest['format'], manifest['version']
        files = dict(manifest['files']) if kind == (form, version) else {}
        stated = {str(name): (int(entry['bytes']), str(entry['sha256'])) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f'{path}: not a manifest ({type(error).__name__}: {error!s:.200})') from error
    if kind != (form, version):
        raise ValueError(
            f'{path}: this is {kind[0]!r:.80} version {kind[1]!r:.80}, wanted {form!r} version {version}'
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
