"""Model directories: an architecture, its parameters and vocabulary, and their recipe.

    architecture.json  model.params  vocab.txt  recipe.yaml  progress.json  manifest.json
    (head.json  tokenizer_settings.json)

``model.params`` has MXNet's own format and GluonNLP's names. The manifest has the size and SHA-256 of every
other file; both are checked before a file is parsed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..architecture.architecture import Architecture, described_html
from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import TIED, Alphas, Parameters, check_alphas, check_parameters, gate_name
from ..runs.files import check_manifest, new_directory, read_json, read_small, write_manifest
from ..runs.mxnet_arrays import read_arrays, write_arrays
from ..runs.programs import named
from ..runs.progress import Progress
from ..runs.recipe import load_yaml
from ..text.tokenizer import Vocabulary, read_vocabulary, write_vocabulary

FORMAT = 'gluon_optbert model'
VERSION = 1
HEAD = 'head.json'
WEIGHTS = 'model.params'
FILES = ('architecture.json', WEIGHTS, 'vocab.txt', 'recipe.yaml', 'progress.json')


@dataclasses.dataclass(frozen=True, repr=False)
class SavedModel:
    """The content of a model directory.

    Parameters
    ----------
    parameters : dict of name to np.ndarray
        As `network_shapes` lists them.
    recipe : dict
        The recipe of the run that wrote it.
    progress : Progress
        The step that training had reached, and its measurements.
    alphas : dict of width key to np.ndarray, optional
        The gates, if they are not folded into the parameters yet.
    head : Head
        The heads of pre-training unless given, which ``head.json`` is not written for; but for an embedding
        that is not the usual one.
    """

    architecture: Architecture
    parameters: Parameters
    vocabulary: Vocabulary
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progress: Progress = Progress()
    alphas: Alphas | None = None
    head: Head = PRETRAINING

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return sum(values.nbytes for values in self.parameters.values())

    def __repr__(self) -> str:
        what = 'encoder' if self.progress.untrained else f'network for {self.head.described}'
        lines = [f'{what}{", with gates" if self.alphas else ""}']
        scores, measured = self.progress.more.get('scores'), self.progress.measured
        if isinstance(scores, Mapping):  # of fine-tuning
            lines.append(', '.join(f'{name} {value:.2f}' for name, value in scores.items()))
        elif measured is not None:
            lines.append(measured.described)
        return '\n'.join([lines[0], repr(self.architecture), *lines[1:]])

    def _repr_html_(self) -> str:
        return described_html(self, self.architecture)


def check_folded(model: SavedModel, name: object) -> None:
    """Refuse a network that still has gates; ValueError with its name."""
    if model.alphas:
        raise ValueError(f'{name} still has its gates; fold them with {named("optbert-export")} first')


def _check(model: SavedModel) -> None:
    """Refuse a model whose parts do not fit each other; ValueError."""
    check_parameters(model.parameters, model.architecture, model.head)
    if model.alphas:
        check_alphas(model.alphas, model.architecture)
    tokens, rows = len(model.vocabulary), model.architecture.vocab_size
    if tokens != rows:
        raise ValueError(f'the vocabulary has {tokens} tokens, the architecture {rows}')


def write_model(
    directory: Path, model: SavedModel, *, replace: bool = False, extra: Mapping[str, bytes] | None = None
) -> None:
    """Write a model directory, whole or not at all.

    Parameters
    ----------
    replace : bool
        Whether to replace an existing directory.
    extra : mapping of file name to bytes, optional
        Further files, such as ``metrics.jsonl``.

    Raises
    ------
    ValueError, FileExistsError
        If parameters, gates or vocabulary do not fit the architecture; if `directory` exists and may not be
        replaced.
    """
    parameters, alphas = (
        {name: np.asarray(values, np.float32) for name, values in (arrays or {}).items()}
        for arrays in (model.parameters, model.alphas)
    )
    _check(dataclasses.replace(model, parameters=parameters, alphas=alphas))
    gates = {gate_name(key): alpha for key, alpha in alphas.items() if len(alpha)}
    texts = {
        'architecture.json': model.architecture.to_json(),
        'recipe.yaml': yaml.safe_dump(dict(model.recipe), sort_keys=False),
        'progress.json': json.dumps(model.progress.to_dict(), indent=1) + '\n',
    }
    if model.head.to_dict() != PRETRAINING.to_dict():
        texts[HEAD] = json.dumps(model.head.to_dict(), indent=1) + '\n'
    with new_directory(directory, replace=replace, needed=model.nbytes) as staged:
        write_arrays(staged / WEIGHTS, {**parameters, **gates})
        write_vocabulary(model.vocabulary, staged / 'vocab.txt')
        for name, text in texts.items():
            (staged / name).write_text(text, encoding='utf-8')
        for name, content in (extra or {}).items():
            (staged / name).write_bytes(content)
        write_manifest(staged, form=FORMAT, version=VERSION)


def read_model(directory: Path) -> SavedModel:
    """Read a model directory; FileNotFoundError or ValueError if it is incomplete, was changed, or its parts
    do not fit each other.
    """
    directory = Path(directory)
    manifest = check_manifest(directory, form=FORMAT, version=VERSION)
    missing = [name for name in FILES if name not in manifest['files']]
    if missing:
        raise ValueError(f'{directory}: the model directory lacks {", ".join(missing)}')
    architecture = Architecture.read(directory / 'architecture.json')
    parameters = read_arrays(directory / WEIGHTS)
    parameters.pop(TIED, None)
    vocabulary = read_vocabulary(directory / 'vocab.txt', files=manifest['files'])
    gates = {key: gate_name(key) for key in architecture.widths()}
    alphas = {key: parameters.pop(name) for key, name in gates.items() if name in parameters}
    head = PRETRAINING
    try:
        if HEAD in manifest['files']:
            head = Head.from_dict(read_json(directory / HEAD), source=HEAD)
        recipe = load_yaml(read_small(directory / 'recipe.yaml'), source='recipe.yaml') or {}
        if not isinstance(recipe, dict):
            raise ValueError('recipe.yaml must be a mapping')
        progress = Progress.from_dict(read_json(directory / 'progress.json'))
        model = SavedModel(architecture, parameters, vocabulary, recipe, progress, alphas or None, head)
        _check(model)
    except ValueError as error:
        raise ValueError(f'{directory}: {error}') from error
    return model
