"""What a page says of runs, models, searches, results and tables: a chapter for each, section by section."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .. import __version__
from ..runs.machine import ORIGIN, origin_warnings, processors
from ..runs.recipe import load_yaml
from ..runs.run_directory import UNFINISHED, work_directory
from .page import Chapter, Html, Section, details, joined, picture, table, tag, values
from .pruned import read_run
from .result_sections import of_finetuning, of_results
from .run_sections import RESULT, of_begun_finetuning, of_metrics, of_model, of_rounds
from .score_tables import TIMES

# Files that are shown otherwise, or not at all.
KNOWN = (
    'rounds.json',
    'pruning.md',
    'architecture.json',
    'progress.json',
    'latency.json',
    'manifest.json',
    ORIGIN,
)
PACKAGES = ('gluon_optbert', 'mxnet', 'gluonnlp', 'horovod', 'numpy')
_REPORTED = 'a run, a model, a search, a comparison or a table'  # directories, as messages call them


class Reader(NamedTuple):
    """What another room reads of a directory.

    Parameters
    ----------
    file : str
        The directory may be of this kind if it has this file.
    read : callable
        The directory → its sections; none if the file is somebody else's.
    known : tuple of str
        Files that these sections show, so that they are not shown again.
    """

    file: str
    read: Callable[[Path], List[Section]]
    known: Tuple[str, ...]


def read_json(path: Path) -> Any:
    """The values of a JSON file; ValueError if it is none."""
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error


def of_latency(path: Path) -> List[Section]:
    """Latency as the model predicts it and as it was measured."""
    return [('Latency', values(read_json(path)))]


def of_recipe(path: Path) -> List[Section]:
    """The resolved recipe of a run."""
    return [('Recipe', values(load_yaml(path.read_bytes(), source=str(path))))]


def of_csv(path: Path) -> Html:
    """A table on disk; a column of numbers stands at the right. ValueError if it is none."""
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding='utf-8', errors='replace'))))
    except csv.Error as error:
        raise ValueError(f'{path}: not readable as CSV ({error})') from error

    def number(cell: str) -> Any:
        for kind in (int, float):
            try:
                return kind(cell)
            except ValueError:
                pass
        return cell or None

    return table(rows[0], [[number(cell) for cell in row] for row in rows[1:]]) if rows else Html()


def of_files(path: Path, known: Tuple[str, ...]) -> List[Section]:
    """What else lies in a directory: tables, pictures, notes and values, each under its name."""
    readers: Dict[str, Callable[[Path], Html]] = {
        '.csv': of_csv,
        '.md': lambda file: tag('pre', file.read_text(encoding='utf-8', errors='replace')),
        '.json': lambda file: values(read_json(file)),
        '.svg': lambda file: picture(file.read_bytes(), 'svg', file.stem),
        '.png': lambda file: picture(file.read_bytes(), 'png', file.stem),
    }
    files = sorted(
        file
        for file in path.iterdir()
        if file.is_file() and file.suffix in readers and file.name not in known
    )
    better = {'.png': '.svg', '.md': '.csv'}
    return [
        (file.name, readers[file.suffix](file))
        for file in sorted(files, key=lambda file: list(readers).index(file.suffix))
        if file.with_suffix(better.get(file.suffix, '.none')) not in files
    ]


def of_environment(path: Path) -> List[Section]:
    """What a directory says of the programs that made it."""
    if (path / ORIGIN).is_file():
        warned = [tag('p', f'Warning: {sentence}.', class_='note') for sentence in origin_warnings(path)]
        return [('Where it was made', joined([*warned, values(read_json(path / ORIGIN))]))]
    for file in (path / 'manifest.json', path / 'round-0' / 'model' / 'manifest.json'):
        if file.is_file():
            manifest = read_json(file)
            named = ('format', 'version', 'gluon_optbert') if isinstance(manifest, dict) else ()
            return [('Environment', values({name: manifest[name] for name in named if name in manifest}))]
    return []


def environment() -> Html:
    """The versions and the machine where the page is made."""
    here: Dict[str, Any] = {}
    for name in PACKAGES:
        try:
            here[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here[name] = __version__ if name == 'gluon_optbert' else 'not installed'
    here.update(
        python=platform.python_version(),
        machine=f'{platform.system()} {platform.machine()}',
        processors=processors(),
    )
    return details('Where this page was made', values(here))


def _is_result(data: Any, finetuning: Optional[str]) -> bool:
    """Whether the values of a file are those of a result of fine-tuning."""
    return finetuning is not None and isinstance(data, dict) and data.get('format') == finetuning


def chapter(
    path: Path, label: str, *, readers: Sequence[Reader] = (), finetuning: Optional[str] = None
) -> Chapter:
    """All that a directory or a file of results tells.

    Parameters
    ----------
    path : Path
    label : str
        The title.
    readers : sequence of Reader
        Of the directories that other rooms know.
    finetuning : str, optional
        The ``format`` that a result of fine-tuning names.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is nothing to report, or a file of it is damaged.
    """
    if path.is_file() and path.suffix == '.json':
        data = read_json(path)
        tuned = _is_result(data, finetuning)
        return Chapter(label, tuple(of_finetuning(data, path) if tuned else of_results(data)))
    if not path.is_dir():
        unfinished = path.name and work_directory(path)
        if unfinished and unfinished.is_dir():
            raise FileNotFoundError(f'{path}: is not finished; to see how far it is, give {unfinished}')
        what = 'a file, but not JSON' if path.exists() else 'not found'
        raise FileNotFoundError(f'{path}: {what}; give {_REPORTED}, or a JSON file of results')
    result = path / RESULT
    if result.is_file() and _is_result(read_json(result), finetuning):
        return Chapter(label, tuple(of_finetuning(read_json(result), result)))
    sections = _of_directory(path, label, readers)
    if not sections:
        raise ValueError(f'{path}: nothing to report in it; give {_REPORTED}')
    return Chapter(label, (*sections, *of_environment(path)))


def _of_directory(path: Path, label: str, readers: Sequence[Reader]) -> List[Section]:
    """What a directory tells: of a run, of a model, of other rooms, and of any other file."""
    sections: List[Section] = []
    if (path / 'rounds.json').is_file():
        sections += of_rounds(read_run(path, label))
    elif list(path.glob('round-*')):
        sections.append(
            ('Unfinished', tag('p', 'This pruning run is not finished: it has no rounds.json yet.'))
        )
    if (path / 'architecture.json').is_file():
        progress = path / 'progress.json'
        sections += of_model(path, read_json(progress) if progress.is_file() else None)
    if (path / 'latency.json').is_file():
        sections += of_latency(path / 'latency.json')
    if (path / 'metrics.jsonl').is_file():
        sections += of_metrics(path / 'metrics.jsonl', label)
    if path.suffix == UNFINISHED:
        sections += of_begun_finetuning(path, label)
    known = KNOWN + ((TIMES,) if (path / 'rounds.json').is_file() else ())
    for reader in readers:
        read = reader.read(path) if (path / reader.file).is_file() else []
        if read:
            sections += read
            known += (reader.file, *reader.known)
    sections += of_files(path, known)
    return sections + (of_recipe(path / 'recipe.yaml') if (path / 'recipe.yaml').is_file() else [])
