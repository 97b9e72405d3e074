"""What a model directory says of the vocabulary that was trimmed: ``trim.json``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

from .trimming import Splits

TRIM = 'trim.json'
FORMAT = 'gluon_optbert trimmed vocabulary'
VERSION = 1


@dataclasses.dataclass(frozen=True)
class TrimRecord:
    """How a vocabulary was trimmed.

    Parameters
    ----------
    recipe : mapping
        The settings: among them ``model``, the directory of the whole network, and ``text``.
    model_sha256 : str
        Of the ``model.params`` of the whole network.
    tokens, parameters : tuple of (int, int)
        Before and after. Parameters are those of embeddings and encoder.
    splits : mapping
        Of the text, as `Splits` has it, and the ``share`` of its tokens that split.
    origin : mapping
        The commit and the versions of what trimmed it.
    """

    recipe: Mapping[str, Any]
    model_sha256: str
    tokens: Tuple[int, int]
    parameters: Tuple[int, int]
    splits: Mapping[str, Any]
    origin: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """The file."""
        values = {'format': FORMAT, 'version': VERSION, **dataclasses.asdict(self)}
        return (json.dumps(values, indent=1, ensure_ascii=False) + '\n').encode('utf-8', 'backslashreplace')

    @property
    def model(self) -> Path:
        """Where the whole network was."""
        return Path(self.recipe['model'])

    @property
    def text(self) -> Tuple[Path, ...]:
        """The files and directories of text."""
        return tuple(map(Path, self.recipe['text']))


def splits_to_dict(splits: Splits) -> Dict[str, Any]:
    """JSON values."""
    return {**dataclasses.asdict(splits), 'share': splits.share}


def read_trim_record(directory: Path) -> TrimRecord:
    """The record in a model directory.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is none, or it is something else.
    """
    path = Path(directory) / TRIM
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
        if (values.pop('format'), values.pop('version')) != (FORMAT, VERSION):
            raise ValueError('another format or version')
        pairs = {name: tuple(map(int, values[name])) for name in ('tokens', 'parameters')}
        record = TrimRecord(**{**values, **pairs})
        if not (record.model and record.text and isinstance(record.model_sha256, str)):
            raise ValueError('without model, text or checksum')
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f'{path}: not the record of a trimmed vocabulary ({error!s:.100})') from error
    return record
