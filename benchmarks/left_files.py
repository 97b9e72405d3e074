"""What survive.py looks at in the files of a run that was killed: where it stood, what is left, what it
lost."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping

from gluon_optbert.runs.files import check_manifest

# In records and results; no two runs share them.
TIMES = 'tokens_per_second', 'data_wait', 'seconds', 'resumed_at', 'milliseconds'
# Files with times, whose digests in manifests differ; they are compared themselves.
TIMED = 'metrics.jsonl', 'progress.json'


def names_below(place: Path) -> FrozenSet[str]:
    """Every path below a directory; paths that go meanwhile are left out."""
    return frozenset(
        os.path.join(folder, name) for folder, folders, files in os.walk(place) for name in (*folders, *files)
    )


def moment(place: Path, stale: FrozenSet[str], began: int) -> str:
    """Where a run stood when it was killed: the file that was being written, or the last step that it logged.

    Paths in `stale` were there when it began, left by an earlier kill, and logs that were not written to
    since `began`, in nanoseconds, are as old."""
    partial = [
        path
        for path in place.rglob('*')
        if '.partial' in str(path.relative_to(place)) and path.is_file() and str(path) not in stale
    ]
    if partial:
        newest = max(partial, key=lambda path: path.stat().st_mtime_ns).relative_to(place)
        parts = [
            '.'.join(part.split('.partial')[0].split('.')[1:]) if '.partial' in part else part
            for part in newest.parts
        ]
        return 'writing ' + '/'.join(parts)
    times = {path: path.stat().st_mtime_ns for path in place.rglob('*.jsonl')}
    logs = sorted((path for path in times if times[path] >= began), key=times.__getitem__)
    lines = [
        line for path in logs for line in path.read_text(encoding='utf-8').splitlines() if line.endswith('}')
    ]
    if lines:
        record = json.loads(lines[-1])
        which = [f' of {name} {record[name]}' for name in ('round', 'seed') if name in record]
        return f'{record["phase"]}{"".join(which)}, after step {record["step"]}'
    return 'between two files' if names_below(place) - stale else 'before the first file'


def without_times(value: Any) -> Any:
    """A JSON value without the members that are times, at any depth."""
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if name not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def contents(place: Path) -> Dict[str, str]:
    """A digest of every file below a directory, without what differs between any two runs: times."""
    digests = {}
    for path in sorted(place.rglob('*')):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.name == 'metrics.jsonl':
            content = json.dumps(
                [
                    without_times(json.loads(line))
                    for line in content.decode().splitlines()
                    if line.endswith('}')
                ]
            ).encode()
        elif path.name == 'pruning.md':
            content = b'\n'.join(line for line in content.split(b'\n') if b' ms (' not in line)
        elif path.suffix == '.json':
            with contextlib.suppress(ValueError):  # half a file of a killed run
                values = json.loads(content)
                if path.name == 'manifest.json':
                    for name in TIMED:
                        values.get('files', {}).pop(name, None)
                content = json.dumps(without_times(values)).encode()
        digests[str(path.relative_to(place))] = hashlib.sha256(content).hexdigest()
    return digests


def losses(place: Path, wanted: Mapping[str, str], before: FrozenSet[str]) -> List[str]:
    """What a kill has cost, of what was finished before it; and finished things that are not what they should
    be.

    Parameters
    ----------
    wanted : mapping of path to digest
        Of the uninterrupted run.
    before : set of str
        The manifests of whole directories that were seen before the kill.
    """
    problems = [f'{name} is gone' for name in sorted(before) if not os.path.exists(name)]
    for manifest in place.rglob('manifest.json'):
        directory = manifest.parent
        if any('.partial' in part for part in directory.relative_to(place).parts):
            continue
        form = json.loads(manifest.read_text(encoding='utf-8'))
        if 'files' in form:
            try:
                check_manifest(directory, form=form['format'], version=form['version'])
            except (ValueError, FileNotFoundError) as error:
                if not directory.name.startswith('step-') or directory == max(
                    directory.parent.glob('step-*')
                ):
                    problems.append(f'half-written: {error}')  # old checkpoints may be on their way out
        if str(manifest.relative_to(place)) in wanted:
            there = {
                str(directory.relative_to(place) / name): digest
                for name, digest in contents(directory).items()
            }
            problems += [f'{name} differs' for name, digest in there.items() if wanted.get(name) != digest]
    return problems


def finished(place: Path, wanted: Mapping[str, str]) -> FrozenSet[str]:
    """The manifests below a directory that the uninterrupted run leaves as well: what has to stay once it is
    there.
    """
    return frozenset(
        str(place / name) for name in wanted if name.endswith('manifest.json') and (place / name).exists()
    )
