"""The widths of a BERT, layer by layer, the lengths of its tensors' sides, and its LayerNorm epsilon."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runs.display import number_of
from ..runs.files import parse_json, read_json
from ..runs.limits import MOST_LAYERS, MOST_WIDTH, within

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


@dataclasses.dataclass(frozen=True, repr=False)
class Architecture:
    """Everything that decides what a BERT computes from its parameters: widths and the LayerNorm epsilon.

    Parameters
    ----------
    h : int
        Hidden size.
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
        within(len(self.layers), MOST_LAYERS, 'layers', source='architecture')
        least = {name: (getattr(self, name), 1) for name in ('h', 'vocab_size', 'max_length', 'token_types')}
        if self.e is not None:
            least['e'] = self.e, 1
        for i, layer in enumerate(self.layers):
            for letter in 'akvf':
                least[f'{letter} of layer {i}'] = getattr(layer, letter), 0 if letter == 'f' else 1
        problems = [
            f'{name} must be a whole number from {bound} to {MOST_WIDTH}, found {value!r:.80}'
            + ('' if isinstance(value, int) else f' of type {type(value).__name__}')
            for name, (value, bound) in least.items()
            if not isinstance(value, int) or isinstance(value, bool) or not bound <= value <= MOST_WIDTH
        ]
        eps = self.layer_norm_eps
        if type(eps) not in (int, float) or not 0 <= eps < 1:
            problems.append(f'layer_norm_eps must be a number from 0 to below 1, found {eps!r:.80}')
        if problems:
            raise ValueError('architecture: ' + '; '.join(problems))

    def __repr__(self) -> str:
        from .cost import ParameterCost, count_flops  # which prices architectures

        size, flops = ParameterCost().cost(self), sum(count_flops(self, 128).values())
        return (
            f'{number_of(len(self.layers), "layer")}, {self.widths_line}\n'
            f'{size / 1e6:.4g} M parameters of embeddings and encoder, {flops / 1e9:.3g} GFLOPs of 128 '
            'tokens\n'
            f'{self.vocab_size:,} tokens, {self.max_length:,} positions, '
            f'{number_of(self.token_types, "token type")}'
        )

    def _repr_html_(self) -> str:
        return described_html(self, self)

    @property
    def widths_line(self) -> str:
        """The widths on one line, from the smallest to the largest of all layers: ``h=756 a=11-12 k=64``."""
        words = [f'h={self.h}'] + ([] if self.e is None else [f'e={self.e}'])
        for letter in 'akvf' if self.layers else '':
            least, most = (bound(getattr(layer, letter) for layer in self.layers) for bound in (min, max))
            words.append(f'{letter}={least}' + (f'-{most}' if most > least else ''))
        return ' '.join(words)

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
        own = self.widths()
        unknown = sorted(set(widths) - set(own))
        if unknown:
            raise ValueError(f'architecture: no width named {", ".join(unknown)}')
        own.update({key: int(width) for key, width in widths.items()})
        layers = tuple(
            LayerDims(**{letter: own[f'{letter}{i}'] for letter in 'akvf'}) for i in range(len(self.layers))
        )
        return dataclasses.replace(self, h=own['h'], layers=layers)

    def sizes(self) -> dict[str, int]:
        """The length of what a side of a tensor runs through: the widths, and what is not pruned."""
        return {
            'vocab_size': self.vocab_size,
            'max_length': self.max_length,
            'token_types': self.token_types,
            'e': self.embedding_width,
            'nsp': 2,
            **self.widths(),
        }

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
        optional = {'layer_norm_eps'}
        wanted = {'format', *(field.name for field in dataclasses.fields(cls))} - optional
        problems = [f'missing {name}' for name in sorted(wanted - set(values))]
        problems += [f'unknown {name!r:.80}' for name in sorted(set(values) - wanted - optional)]
        if not problems and values['format'] != FORMAT:
            problems.append(f'format {values["format"]!r:.80}, this version reads {FORMAT}')
        rows = values.get('layers')
        if not isinstance(rows, list) or not all(
            isinstance(row, dict) and set(row) == set('akvf') for row in rows
        ):
            problems.append('layers must be a list, each with a, k, v and f, and nothing else')
        if problems:
            raise ValueError(f'{source}: ' + '; '.join(problems))
        fields = {name: value for name, value in values.items() if name != 'format'}
        try:
            return cls(**{**fields, 'layers': [LayerDims(**row) for row in rows]})
        except ValueError as error:
            raise ValueError(f'{source}: {error}') from error

    @classmethod
    def from_json(cls, text: str, *, source: str = 'architecture') -> Architecture:
        """The inverse of `to_json`; raises ValueError like `from_dict`."""
        return cls.from_dict(parse_json(text, source=source), source=source)

    @classmethod
    def read(cls, path: Path) -> Architecture:
        """The architecture of a JSON file; raises ValueError like `from_dict`, or FileNotFoundError."""
        return cls.from_dict(read_json(path), source=str(path))


def described_html(value: Any, architecture: Architecture) -> str:
    """The `repr` of a value as HTML, above the widths of an architecture by layer."""
    rows = [
        f'<th>{i}</th>' + ''.join(f'<td>{width}</td>' for width in dataclasses.astuple(layer))
        for i, layer in enumerate(architecture.layers, 1)
    ]
    head = '<th>layer</th><th>a (heads)</th><th>k (keys)</th><th>v (values)</th><th>f (filters)</th>'
    body = ''.join(f'<tr>{row}</tr>' for row in [head, *rows])
    return f'<pre>{html.escape(repr(value))}</pre><table>{body}</table>'
