"""The widths of a BERT, layer by layer, and the names and axes of the tensors that follow from them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

Axis = Tuple[str, ...]  # the widths whose product is the length of one side of a tensor, outermost first
FORMAT = 1


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
    """Everything that decides the shapes of a BERT.

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

    Raises
    ------
    ValueError
        If a width is not a whole number in its range.
    """

    h: int
    layers: Tuple[LayerDims, ...]
    vocab_size: int
    e: Optional[int] = None
    max_length: int = 512
    token_types: int = 2

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
        if problems:
            raise ValueError('architecture: ' + '; '.join(problems))

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables: e where the embedding is factorised, else h."""
        return self.h if self.e is None else self.e

    def widths(self) -> Dict[str, int]:
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

    def to_dict(self) -> Dict[str, Any]:
        """Plain JSON values; the inverse of `from_dict`."""
        return {
            'format': FORMAT,
            'h': self.h,
            'e': self.e,
            'vocab_size': self.vocab_size,
            'max_length': self.max_length,
            'token_types': self.token_types,
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
        problems += [f'unknown {name!r:.80}' for name in sorted(set(values) - wanted)]
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


def _below(name: str, value: Any, least: int) -> List[str]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (
        []
        if whole and value >= least
        else [f'{name} must be a whole number of at least {least}, found {value!r:.80}']
    )


def uniform(
    *,
    layers: int,
    h: int,
    a: int,
    vocab_size: int,
    k: Optional[int] = None,
    v: Optional[int] = None,
    f: Optional[int] = None,
    e: Optional[int] = None,
    max_length: int = 512,
) -> Architecture:
    """A BERT with equal layers; k and v are h/a and f is 4h unless given (optBERT, Table 2).

    Raises
    ------
    ValueError
        If k or v has to be derived and a does not divide h.
    """
    if (k is None or v is None) and (a < 1 or h % a):
        raise ValueError(f'architecture: h={h} is not a multiple of a={a}, so k and v have to be given')
    dims = LayerDims(
        a=a, k=h // a if k is None else k, v=h // a if v is None else v, f=4 * h if f is None else f
    )
    return Architecture(h=h, layers=(dims,) * layers, vocab_size=vocab_size, e=e, max_length=max_length)


def bert_base(layers: int = 12) -> Architecture:
    """BERT-base uncased (Devlin et al., 2018), or BERT-l with fewer layers."""
    return uniform(layers=layers, h=768, a=12, vocab_size=30522)


def resolve(name: Union[str, Path], *, vocab_size: Optional[int] = None) -> Architecture:
    """The architecture that a name, a file, a model directory or inline JSON stands for.

    Names are ``bert_base``, ``bert_9``, ``optbert_99m`` to ``optbert_33m``, ``uniform_66m``, ``albert_e128``,
    ``l4_h256_a4`` (also with ``_k _v _f _e``), ``undivided_every_2``, ``undivided_keep_0_5_11`` and their
    like; module `named` makes them.

    Parameters
    ----------
    name : str or Path
    vocab_size : int, optional
        Replaces the vocabulary size of a named architecture, whose widths stay what they are with BERT's
        vocabulary; one read from JSON keeps its own.

    Raises
    ------
    ValueError
        If it is none of them; the message says which names there are.
    """
    from .named import from_name, unknown_name  # here, because that module is built on this one

    text = str(name).strip()
    if text.startswith('{'):
        return Architecture.from_json(text, source='inline architecture')
    found = from_name(text)
    if found is not None:
        return found if vocab_size is None else dataclasses.replace(found, vocab_size=vocab_size)
    path = os.path.join(text, 'architecture.json') if os.path.isdir(text) else text
    if not os.path.isfile(path):
        raise ValueError(
            unknown_name(text) if path == text else f'{text} is a directory without an architecture.json'
        )
    return Architecture.from_json(Path(path).read_text(encoding='utf-8', errors='replace'), source=path)


def parameter_axes(architecture: Architecture, *, heads: bool = True) -> Dict[str, Tuple[Axis, ...]]:
    """Every parameter of the pre-training network with the widths along its sides.

    At base widths these are the names of GluonNLP 0.10's ``BERTModel.save_parameters``. Rows of the attention
    projections run through the heads first and through a head's units second, as there.

    Parameters
    ----------
    architecture : Architecture
    heads : bool
        Whether to count the pooler and the MLM and NSP heads in.

    Returns
    -------
    dict of name to tuple of Axis
        Tied tensors appear once, under the name of the embedding.
    """
    e: Axis = ('h',) if architecture.e is None else ('e',)
    h: Axis = ('h',)
    axes: Dict[str, Tuple[Axis, ...]] = {
        'word_embed.0.weight': (('vocab_size',), e),
        'token_type_embed.0.weight': (('token_types',), e),
        'encoder.position_weight': (('max_length',), e),
        'encoder.layer_norm.gamma': (e,),
        'encoder.layer_norm.beta': (e,),
    }
    if architecture.e is not None:
        axes.update({'encoder.embed_proj.weight': (h, e), 'encoder.embed_proj.bias': (h,)})
    for i, layer in enumerate(architecture.layers):
        cell = f'encoder.transformer_cells.{i}.'
        keys, values, filters = (f'a{i}', f'k{i}'), (f'a{i}', f'v{i}'), (f'f{i}',)
        for name, rows in (('query', keys), ('key', keys), ('value', values)):
            axes[f'{cell}attention_cell.proj_{name}.weight'] = (rows, h)
            axes[f'{cell}attention_cell.proj_{name}.bias'] = (rows,)
        axes.update(
            {
                cell + 'proj.weight': (h, values),
                cell + 'proj.bias': (h,),
                cell + 'layer_norm.gamma': (h,),
                cell + 'layer_norm.beta': (h,),
            }
        )
        if layer.f:
            axes.update(
                {
                    cell + 'ffn.ffn_1.weight': (filters, h),
                    cell + 'ffn.ffn_1.bias': (filters,),
                    cell + 'ffn.ffn_2.weight': (h, filters),
                    cell + 'ffn.ffn_2.bias': (h,),
                    cell + 'ffn.layer_norm.gamma': (h,),
                    cell + 'ffn.layer_norm.beta': (h,),
                }
            )
    if heads:
        axes.update(
            {
                'pooler.weight': (h, h),
                'pooler.bias': (h,),
                'classifier.weight': (('nsp',), h),
                'classifier.bias': (('nsp',),),
                'decoder.0.weight': (e, h),
                'decoder.0.bias': (e,),
                'decoder.2.gamma': (e,),
                'decoder.2.beta': (e,),
                'decoder.3.bias': (('vocab_size',),),
            }
        )
    return axes


def parameter_shapes(architecture: Architecture, *, heads: bool = True) -> Dict[str, Tuple[int, ...]]:
    """The shape of every parameter; names as in `parameter_axes`."""
    return {
        name: tuple(architecture.size(axis) for axis in axes)
        for name, axes in parameter_axes(architecture, heads=heads).items()
    }


if __name__ == '__main__':
    from gluon_optbert.named import main

    sys.exit(main())
