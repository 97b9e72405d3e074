"""Export for Transformers: ``config.json``, ``model.safetensors`` and the tokenizer's files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

import numpy as np
from safetensors.numpy import load_file, save_file

from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import parameter_table
from ..cutting.shrink import without_gates
from ..importing.name_maps import PREFIX, names_in
from ..network.saved_model import SavedModel
from ..runs.files import locked, new_directory
from ..tasks.task import known_head
from ..text.tokenizer import is_cased
from .export import NotEqual, kind_of, untrained_parts
from .hub_files import CODE, is_plain, transformers_config, write_hub_files
from .model_card import check_license, write_card
from .story import Story

WEIGHTS = 'model.safetensors'
_FORM = 'Hugging Face'
_SCORES = {'decoder.3.bias': 'cls.predictions.bias'}  # the one of its names that Transformers saves
_SPANS = {'task.weight': 'qa_outputs.weight', 'task.bias': 'qa_outputs.bias'}


def names_there(saved: SavedModel, kind: str) -> Dict[str, str]:
    """What Transformers calls the parameters of an export, by their names here.

    Parameters
    ----------
    saved : SavedModel
    kind : str
        What is computed: ``encoder``, ``pretraining`` or ``task``.
    """
    parts = {'mlm', 'nsp'} if kind == 'encoder' else set()
    names = {**names_in(_FORM, len(saved.architecture.layers)), **_SCORES}
    if saved.head.kind == 'question_answering':
        names.update(_SPANS)
    bare = kind == 'encoder'
    return {
        name: names[name] if bare or _on_top(spec.part) else PREFIX[_FORM] + names[name]
        for name, spec in parameter_table(saved.architecture, saved.head).items()
        if spec.part not in parts
    }


def _on_top(part: str) -> bool:
    """Whether a part of the network stands on the model that Transformers calls `bert`."""
    return part in ('mlm', 'nsp', 'task')


def export_transformers(
    saved: SavedModel,
    output: Path,
    *,
    head: Optional[str] = None,
    story: Optional[Story] = None,
    license: str = '',
) -> Dict[str, Any]:
    """Write a directory that Transformers loads.

    Parameters
    ----------
    saved : SavedModel
        Its gates, if it has them, are folded into the export and their zeros cut.
    output : Path
    head : str, optional
        What it computes; see `export.kind_of`.
    story, license
        For the model card, as of `export.export`.

    Returns
    -------
    dict
        Empty: the arrays are the network's own, bit for bit.

    Raises
    ------
    FileExistsError, ValueError
        Bad input.
    UntrainedHeads
        If the scores of a head would be random.
    NotEqual
        If the arrays that were written are not the network's.
    """
    check_license(license)
    saved = without_gates(saved)
    kind = kind_of(saved, head)
    untrained = untrained_parts(saved, kind)
    names = names_there(saved, kind)
    arrays = {
        there: np.ascontiguousarray(saved.parameters[here], np.float32) for here, there in names.items()
    }
    config = transformers_config(saved.architecture, _known(saved), kind, untrained=untrained)
    with locked(output), new_directory(output) as staged:
        write_hub_files(
            staged,
            config,
            saved.vocabulary.idx_to_token,
            lower_case=not is_cased(saved.vocabulary),
            max_length=saved.architecture.max_length,
        )
        if not is_plain(saved.architecture):
            shutil.copyfile(CODE, staged / CODE.name)
        save_file(arrays, str(staged / WEIGHTS), metadata={'format': 'pt'})
        _compare(staged / WEIGHTS, arrays)
        write_card(
            staged, saved, kind, format='transformers', untrained=untrained, story=story, license=license
        )
    return {}


def _known(saved: SavedModel) -> Head:
    return known_head(saved.head) if saved.head.outputs else PRETRAINING


def _compare(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise NotEqual unless a file has these arrays and no others."""
    written = load_file(str(path))
    wrong = sorted(written.keys() ^ arrays.keys())
    wrong += [
        name
        for name in written.keys() & arrays.keys()
        if not np.array_equal(written[name], arrays[name], equal_nan=True)
    ]
    if wrong:
        raise NotEqual(f'{path}: not the arrays of the network: {", ".join(wrong)}; nothing was written')
