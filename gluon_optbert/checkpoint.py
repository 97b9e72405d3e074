"""Model directories: an architecture, its parameters and vocabulary, and how they were made.

    architecture.json  model.params  vocab.txt  recipe.yaml  progress.json  manifest.json  (head.json)

``model.params`` is MXNet's own format with GluonNLP's names. The manifest has the size and SHA-256 of every
other file, and nothing is parsed before it is checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import numpy as np
import yaml
from gluonnlp.vocab import BERTVocab

from . import __version__
from .architecture import Architecture
from .arrays import read_arrays, write_arrays
from .heads import PRETRAINING, Head
from .recipe import load_yaml
from .selection import Alphas
from .shrink import Parameters, check_alphas, check_parameters
from .staging import new_directory
from .vocabulary import read_vocabulary, write_vocabulary

FORMAT = 'gluon_optbert model'
VERSION = 1
GATE = '.alpha'  # how the name of a gate ends
HEAD = 'head.json'
_LONGEST_NAME = 255  # bytes that file systems take
_FILES = ('architecture.json', 'model.params', 'vocab.txt', 'recipe.yaml', 'progress.json')


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """What a model directory holds.

    Parameters
    ----------
    architecture : Architecture
    parameters : dict of name to np.ndarray
        As `network_shapes` lists them.
    vocabulary : BERTVocab
    recipe : dict
        The recipe that made it.
    progress : dict
        Where training stood, and what it had measured.
    alphas : dict of width key to np.ndarray, optional
        The gates, of a network that has not been folded yet.
    head : Head
        Those of pre-training unless given; only a task's is written, to ``head.json``.
    """

    architecture: Architecture
    parameters: Parameters
    vocabulary: BERTVocab
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progress: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    alphas: Optional[Alphas] = None
    head: Head = PRETRAINING


def gate_name(key: str) -> str:
    """The parameter name of a gate, e.g. ``encoder.transformer_cells.3.gate_f.alpha`` for the width ``f3``."""
    if key == 'h':
        return 'encoder.gate_h' + GATE
    return f'encoder.transformer_cells.{key[1:]}.gate_{key[0]}{GATE}'


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for block in iter(lambda: file.read(1 << 22), b''):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(directory: Path, *, form: str, version: int, **more: Any) -> None:
    """Vouch for every file of a directory in its ``manifest.json``."""
    files = {
        file.name: {'bytes': file.stat().st_size, 'sha256': sha256(file)}
        for file in sorted(directory.iterdir())
        if file.is_file() and file.name != 'manifest.json'
    }
    manifest = {'format': form, 'version': version, 'gluon_optbert': __version__, **more, 'files': files}
    (directory / 'manifest.json').write_text(json.dumps(manifest, indent=1) + '\n', encoding='utf-8')


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
        raise FileNotFoundError(f'{directory}: no manifest.json, so this is not a finished {form} directory')
    try:
        manifest = json.loads(path.read_text(encoding='utf-8'))
        files = dict(manifest['files'])
        found = manifest['format'], manifest['version']
        stated = {str(name): (int(entry['bytes']), str(entry['sha256'])) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f'{path}: not a manifest ({type(error).__name__}: {error!s:.200})') from error
    if found != (form, version):
        raise ValueError(
            f'{path}: this is {found[0]!r:.80} version {found[1]!r:.80}, wanted {form!r} version {version}'
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


def write_model(
    directory: Path, model: SavedModel, *, replace: bool = False, extra: Optional[Mapping[str, bytes]] = None
) -> None:
    """Write a model directory, whole or not at all.

    Parameters
    ----------
    directory : Path
    model : SavedModel
    replace : bool
        Whether a directory that is there gives way.
    extra : mapping of file name to bytes, optional
        What else goes in, such as ``metrics.jsonl``.

    Raises
    ------
    ValueError, FileExistsError
        If parameters or gates do not fit the architecture; if `directory` exists and may not be replaced.
    """
    check_parameters(model.parameters, model.architecture, model.head)
    if model.alphas:
        check_alphas(model.alphas, model.architecture)
    arrays = dict(model.parameters)
    arrays.update({gate_name(key): alpha for key, alpha in (model.alphas or {}).items() if len(alpha)})
    with new_directory(directory, replace=replace) as staged:
        (staged / 'architecture.json').write_text(model.architecture.to_json(), encoding='utf-8')
        write_arrays(
            staged / 'model.params', {name: np.asarray(value, np.float32) for name, value in arrays.items()}
        )
        write_vocabulary(model.vocabulary, staged / 'vocab.txt')
        (staged / 'recipe.yaml').write_text(
            yaml.safe_dump(dict(model.recipe), sort_keys=False), encoding='utf-8'
        )
        (staged / 'progress.json').write_text(json.dumps(model.progress, indent=1) + '\n', encoding='utf-8')
        if model.head != PRETRAINING:
            (staged / HEAD).write_text(json.dumps(model.head.to_dict(), indent=1) + '\n', encoding='utf-8')
        for name, content in (extra or {}).items():
            (staged / name).write_bytes(content)
        write_manifest(staged, form=FORMAT, version=VERSION)


def read_model(directory: Path) -> SavedModel:
    """Read a model directory.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is incomplete, was changed, or its parts do not fit each other.
    """
    directory = Path(directory)
    manifest = check_manifest(directory, form=FORMAT, version=VERSION)
    missing = [name for name in _FILES if name not in manifest['files']]
    if missing:
        raise ValueError(f'{directory}: the model directory lacks {", ".join(missing)}')
    architecture = Architecture.from_json(
        (directory / 'architecture.json').read_text(encoding='utf-8', errors='replace'),
        source=str(directory / 'architecture.json'),
    )
    arrays = read_arrays(directory / 'model.params')
    gates = {gate_name(key): key for key in architecture.widths()}
    alphas = {gates[name]: arrays.pop(name) for name in list(arrays) if name in gates}
    try:
        head = (
            PRETRAINING
            if HEAD not in manifest['files']
            else Head.from_dict(json.loads((directory / HEAD).read_text(encoding='utf-8')), source=HEAD)
        )
        check_parameters(arrays, architecture, head)
        if alphas:
            check_alphas(alphas, architecture)
        progress = json.loads((directory / 'progress.json').read_text(encoding='utf-8'))
        recipe = load_yaml((directory / 'recipe.yaml').read_bytes(), source='recipe.yaml') or {}
        if (
            not isinstance(progress, dict)
            or not isinstance(recipe, dict)
            or any(type(progress.get(name, 0)) is not int for name in ('step', 'earlier_steps'))
        ):
            raise ValueError('progress.json and recipe.yaml are mappings, and steps are whole numbers')
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{directory}: {error}') from error
    vocabulary = read_vocabulary(directory / 'vocab.txt')
    if len(vocabulary) != architecture.vocab_size:
        raise ValueError(
            f'{directory}: the vocabulary has {len(vocabulary)} tokens, the architecture '
            f'{architecture.vocab_size}'
        )
    return SavedModel(architecture, arrays, vocabulary, recipe, progress, alphas or None, head)
