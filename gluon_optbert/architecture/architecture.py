"""The widths of a BERT, layer by layer, the lengths of its tensors' sides, and its LayerNorm epsilon."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Axis = tuple[str, ...]  # the widths whose product is the length of one side of a tensor, outermost first
FORMAT = 1
LAYER_NORM_EPS = 1e-12  # BERT's, and that of a file that names none


@dataclasses.dataclass(frozen=True)
class LayerDims:
    """The widths of one encoder layer (optBERT, Table 3).

    Parameters
    ----------
    a : int
        Attention heads.
    k : int
        Width of a head's keys and queries.
    v : int
        Width of a head's values.
    f : int
        Filter size; 0 means that the layer has no intermediate block at all.
    """

    a: int
    k: int
    v: int
    f: int


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Everything that decides what a BERT computes from its parameters: widths and the LayerNorm epsilon.

    Parameters
    ----------
    h : int
        Hidden size.
    layers : tuple of LayerDims
    vocab_size : int
    e : int, optional
        Embedding width of a factorised embedding (ALBERT-e); None means that the embedding has width h.
    max_length : int
        Positions that have an embedding.
    token_types : int
        Segments that have an embedding.
    layer_norm_eps : float
        What every LayerNorm adds to the variance.

    Raises
    ------
    ValueError
        If a width is not a whole number in its range, or the epsilon is not a number from 0 to below 1.
    """

    h: int
    layers: tuple[LayerDims, ...]
    vocab_size: int
    e: int | None = None
    max_length: int = 512
    token_types: int = 2
    layer_norm_eps: float = LAYER_NORM_EPS

    def __post_init__(self):
        object.__setattr__(self, 'layers', tuple(self.layers))
        problems = []
        named = [
            ('h', self.h),
            ('vocab_size', self.vocab_size),
            ('max_length', self.max_length),
            ('token_types', self.token_types),
        ] + ([] if self.e is None else [('e', self.e)])
        for name, value in named:
            problems += _below(name, value, 1)
        for i, layer in enumerate(self.layers):
            for letter in 'akvf':
                problems += _below(
                    f'{letter} of layer {i}', getattr(layer, letter), 0 if letter == 'f' else 1
                )
        problems += epsilon_problems(self.layer_norm_eps)
        if problems:
            raise ValueError('architecture: ' + '; '.join(problems))

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables: e where the embedding is factorised, else h."""
        return self.h if self.e is None else self.e

    def widths(self) -> dict[str, int]:
        """The prunable widths by key: ``h``, then ``a0 k0 v0 f0`` for the first layer, and so on."""
        widths = {'h': self.h}
        for i, layer in enumerate(self.layers):
            widths.update({f'{letter}{i}': getattr(layer, letter) for letter in 'akvf'})
        return widths

    def with_widths(self, widths: Mapping[str, int]) -> Architecture:
        """This architecture with the given widths (keys as in `widths`) instead of its own."""
        unknown = sorted(set(widths) - set(self.widths()))
        if unknown:
            raise ValueError(f'architecture: no width named {", ".join(unknown)}')
        layers = tuple(
            LayerDims(
                **{letter: int(widths.get(f'{letter}{i}', getattr(layer, letter))) for letter in 'akvf'}
            )
            for i, layer in enumerate(self.layers)
        )
        return dataclasses.replace(self, h=int(widths.get('h', self.h)), layers=layers)

    def size(self, axis: Axis) -> int:
        """The length of one side of a tensor, e.g. of ``('a0', 'k0')``, the rows of the first layer's
        queries.
        """
        fixed = {
            'vocab_size': self.vocab_size,
            'max_length': self.max_length,
            'token_types': self.token_types,
            'e': self.embedding_width,
            'nsp': 2,
            'h': self.h,
        }
        size = 1
        for name in axis:
            if name in fixed:
                size *= fixed[name]
            else:
                size *= getattr(self.layers[int(name[1:])], name[0])
        return size

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the inverse of `from_dict`. BERT's own epsilon is left away."""
        own = self.layer_norm_eps == LAYER_NORM_EPS
        return {
            'format': FORMAT,
            'h': self.h,
            'e': self.e,
            'vocab_size': self.vocab_size,
            'max_length': self.max_length,
            'token_types': self.token_types,
            **({} if own else {'layer_norm_eps': self.layer_norm_eps}),
            'layers': [dataclasses.asdict(layer) for layer in self.layers],
        }

    def to_json(self) -> str:
        """JSON with one line per layer."""
        values = self.to_dict()
        layers = values.pop('layers')
        head = ',\n'.join(f'  {json.dumps(name)}: {json.dumps(value)}' for name, value in values.items())
        rows = ',\n'.join('    ' + json.dumps(layer) for layer in layers)
        return '{\n' + head + ',\n  "layers": [' + ('\n' + rows + '\n  ' if rows else '') + ']\n}\n'

    @classmethod
    def from_dict(cls, values: Any, *, source: str = 'architecture') -> Architecture:
        """The architecture that JSON values describe.

        Raises
        ------
        ValueError
            Naming every field that is missing, unknown or of the wrong kind.
        """
        if not isinstance(values, dict):
            raise ValueError(f'{source}: an architecture is a JSON object, found {type(values).__name__}')
        wanted = {'format', 'h', 'e', 'vocab_size', 'max_length', 'token_types', 'layers'}
        problems = [f'missing {name}' for name in sorted(wanted - set(values))]
        problems += [f'unknown {name!r:.80}' for name in sorted(set(values) - wanted - {'layer_norm_eps'})]
        if not problems and values['format'] != FORMAT:
            problems.append(f'format {values["format"]!r:.80}, this version reads {FORMAT}')
        rows = values.get('layers')
        if not isinstance(rows, list):
            problems.append('layers must be a list')
        elif not all(isinstance(row, dict) and set(row) == set('akvf') for row in rows):
            problems.append('every layer must have a, k, v and f, and nothing else')
        if problems:
            raise ValueError(f'{source}: ' + '; '.join(problems))
        try:
            return cls(
                h=values['h'],
                e=values['e'],
                vocab_size=values['vocab_size'],
                max_length=values['max_length'],
                token_types=values['token_types'],
                layer_norm_eps=values.get('layer_norm_eps', LAYER_NORM_EPS),
                layers=tuple(LayerDims(**row) for row in rows),
            )
        except ValueError as error:
            raise ValueError(f'{source}: {error}') from error

    @classmethod
    def from_json(cls, text: str, *, source: str = 'architecture') -> Architecture:
        """The inverse of `to_json`; raises ValueError like `from_dict`."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{source}: not JSON ({error})') from error
        return cls.from_dict(values, source=source)

    @classmethod
    def read(cls, path: Path) -> Architecture:
        """The architecture of a JSON file; ValueError as `from_dict`, OSError if it cannot be read."""
        return cls.from_json(path.read_text(encoding='utf-8', errors='replace'), source=str(path))


def epsilon_problems(value: Any) -> list[str]:
    """What is wrong with a LayerNorm epsilon; nothing if it is a number from 0 to below 1."""
    right = type(value) in (int, float) and 0 <= value < 1
    return [] if right else [f'layer_norm_eps must be a number from 0 to below 1, found {value!r:.80}']


def _below(name: str, value: Any, least: int) -> list[str]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (
        []
        if whole and value >= least
        else [f'{name} must be a whole number of at least {least}, found {value!r:.80}']
    )
