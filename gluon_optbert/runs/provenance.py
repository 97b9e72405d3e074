"""Where a measured number comes from: the commit, the versions and the machine of a run."""

from __future__ import annotations

import contextlib
import importlib
import json
import platform
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional

from .. import __version__
from .gpus import gpu_names
from .processors import physical_cores
from .staging import write_file
from .threads import more_threads_than_cores, threads_here, workers_of_host

ORIGIN = 'origin.json'
LIBRARIES = ('mxnet', 'gluonnlp', 'numpy')


def commit() -> Optional[str]:
    """The commit of the working tree that the package runs from, ending in ``+`` if it has changes; None if
    there is none.
    """

    def git(*words: str) -> str:
        return subprocess.run(
            ['git', *words],
            cwd=str(Path(__file__).resolve().parent),
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ).stdout.strip()

    try:
        if git('ls-files', Path(__file__).name) == '':
            return None  # installed below somebody else's repository
        return git('rev-parse', 'HEAD') + (
            '+' if git('status', '--porcelain', '--untracked-files=no') else ''
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def versions() -> Dict[str, str]:
    """Of what a result depends on; a library that is not installed is left out."""
    libraries = {}
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            libraries[name] = str(importlib.import_module(name).__version__)
    return {'gluon_optbert': __version__, **libraries, 'python': platform.python_version()}


def machine() -> Dict[str, Any]:
    """The processor and its cores that may be used, threads, workers of the host, GPUs if any, the system."""
    try:
        lines = Path('/proc/cpuinfo').read_text(encoding='utf-8', errors='replace').splitlines()
    except OSError:
        lines = []
    models = [line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')]
    gpus = gpu_names()
    return {
        'cpu': models[0] if models else platform.processor(),
        'cores': physical_cores(),
        'threads': str(threads_here()),
        'workers_of_host': workers_of_host(),
        **({'gpus': gpus} if gpus else {}),
        'system': platform.platform(),
    }


def origin_here() -> Dict[str, Any]:
    """What goes with a number that is measured here: ``commit``, ``versions``, ``machine``."""
    return {'commit': commit(), 'versions': versions(), 'machine': machine()}


def _entries(directory: Path) -> List[Any]:
    """The entries of a directory's `ORIGIN`; none if it is missing or no list."""
    try:
        entries = json.loads((Path(directory) / ORIGIN).read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        return []
    return entries if isinstance(entries, list) else []


def commits_of(directory: Path) -> List[str]:
    """The commits that computed the run of a directory, as its `ORIGIN` says: each once, the first first."""
    commits = [entry.get('commit') for entry in _entries(directory) if isinstance(entry, dict)]
    return list(dict.fromkeys(commit for commit in commits if isinstance(commit, str)))


def origin_warnings(directory: Path) -> List[str]:
    """What made the run of a directory slow, as its `ORIGIN` says: each sentence once."""
    machines = [entry.get('machine') for entry in _entries(directory) if isinstance(entry, dict)]
    sentences = [more_threads_than_cores(machine) for machine in machines if isinstance(machine, dict)]
    return list(dict.fromkeys(filter(None, sentences)))


def note_origin(directory: Path, *, workers: int) -> None:
    """Write into a run's directory what computes it: an entry of `ORIGIN` when it begins, and one more
    whenever it goes on with another commit, version, machine, or number of workers."""
    entries = _entries(directory)  # none in a new run, and in one that an earlier version began
    now = {**origin_here(), 'workers': workers}
    if now not in entries[-1:]:
        write_file(Path(directory) / ORIGIN, (json.dumps([*entries, now], indent=1) + '\n').encode())
