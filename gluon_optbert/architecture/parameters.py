"""The parameter table: of every parameter of the network its name, widths, gates, part and treatment.

Everything that treats parameters differently reads the table: the cut, the cost model, the optimizer, imports
and exports. No module guesses from a name.

A gated network equals the network that is cut from it only if every alpha is folded into the right sides of
the right tensors. `parameter_table` says into which: rows are the first side of a tensor, columns the second.
What Tables 4 and 5 of optBERT leave open is decided in docs/what_is_gated.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..runs.mxnet_arrays import is_finite
from .architecture import Architecture, Axis
from .heads import PRETRAINING, Head

if TYPE_CHECKING:
    import numpy as np  # the room needs no NumPy: arrays are known by their shape

Alphas = Mapping[str, 'np.ndarray']
Parameters = Mapping[str, 'np.ndarray']
LETTERS = 'hakvf'
ALPHA_H = {'stream': 'h', 'table5': 'h_table5'}  # where alpha_h stands, and its key in files of gates
H_GATES = tuple(ALPHA_H)  # in the LayerNorms of the stream, or as in Table 5
GATE = '.alpha'  # how the name of a gate ends
WORDS = 'word_embed.0.weight'
TIED = 'decoder.3.weight'  # a second name of word_embed.0.weight in files of GluonNLP
# of what stands on the encoder in pre-training, for people
PARTS = {'pooler': 'pooler', 'mlm': 'MLM head', 'nsp': 'NSP head'}
INITIAL_STD = 0.02  # of matrices that are drawn at random; BERT's, for h = 768
NEXT_SENTENCE = ('pooler', 'nsp')  # those that only the loss of next-sentence prediction trains


@dataclasses.dataclass(frozen=True)
class ParameterSpec:
    """One parameter of the network.

    Parameters
    ----------
    name : str
        At base widths, that of GluonNLP 0.10's ``BERTModel.save_parameters``.
    axes : tuple of Axis
        The widths along its sides. Rows of the attention projections run through the heads first and through
        a head's units second, as in GluonNLP.
    shape : tuple of int
        The lengths of its sides.
    gates : tuple of Axis
        For each side, the widths whose alphas are folded into it; ``()`` for a side without.
    part : str
        ``embeddings``, ``attention``, ``feed_forward``, ``pooler``, ``mlm``, ``nsp``, ``task`` or ``dense``.
        A LayerNorm belongs to the block that it follows, an embedding projection to the embeddings.
    layer : int, optional
        The encoder layer, counted from 0; None outside of the layers.
    initial : str
        How it is drawn: ``normal``, ``zeros`` or ``ones``.
    decayed : bool
        Whether weight decay is for it: for matrices, not for biases and LayerNorms.
    low_precision : bool
        Whether reduced precision is for it: for the encoder's matrix products, with their biases.
    attention_scale : bool
        Whether the scale of the attention scores, 1/sqrt(k), may stand in it: in the queries.
    """

    name: str
    axes: tuple[Axis, ...]
    shape: tuple[int, ...]
    gates: tuple[Axis, ...]
    part: str
    layer: int | None = None
    initial: str = 'zeros'
    decayed: bool = False
    low_precision: bool = False
    attention_scale: bool = False


def parameter_table(
    architecture: Architecture, head: Head = PRETRAINING, *, h_gate: str = 'stream'
) -> dict[str, ParameterSpec]:
    """Every parameter of an encoder with its head, in the order in which they are saved.

    Where alpha_h stands, one of `H_GATES`, decides the ``gates`` of a parameter and nothing else.

    Tied tensors appear once, under the name of the embedding. The head of a task is a dense layer named
    ``task``, behind the pooler where it reads the pooled output.
    """
    table: dict[str, ParameterSpec] = {}
    sizes = {**architecture.sizes(), **head.sizes()}

    def add(name: str, axes: tuple[Axis, ...], part: str, gates: tuple[Axis, ...] = (), **marks: Any) -> None:
        """One parameter; no side of it is gated unless told."""
        shape = tuple(math.prod(sizes[key] for key in axis) for axis in axes)
        table[name] = ParameterSpec(name, axes, shape, gates or ((),) * len(axes), part, **marks)

    def matrix(name: str, rows: Axis, columns: Axis, part: str, **marks: Any) -> None:
        """A matrix by itself: an embedding."""
        add(name, (rows, columns), part, initial='normal', decayed=True, **marks)

    def dense(name: str, rows: Axis, columns: Axis, part: str, gated: str = '', **marks: Any) -> None:
        """A dense layer: its weight, of which rows, columns or both are gated, and its bias."""
        row_gate, column_gate = rows if 'rows' in gated else (), columns if 'columns' in gated else ()
        matrix(f'{name}.weight', rows, columns, part, gates=(row_gate, column_gate), **marks)
        add(f'{name}.bias', (rows,), part, (row_gate,), **marks)

    def norm(name: str, axis: Axis, part: str, *, gated: bool, **marks: Any) -> None:
        """A LayerNorm."""
        gates = (axis,) if gated else ((),)
        add(f'{name}.gamma', (axis,), part, gates, initial='ones', **marks)
        add(f'{name}.beta', (axis,), part, gates, **marks)

    in_stream, factorised = h_gate == 'stream', architecture.e is not None
    h: Axis = ('h',)
    e: Axis = ('e',) if factorised else h
    matrix(WORDS, ('vocab_size',), e, 'embeddings')
    matrix('token_type_embed.0.weight', ('token_types',), e, 'embeddings')
    matrix('encoder.position_weight', ('max_length',), e, 'embeddings')
    norm('encoder.layer_norm', e, 'embeddings', gated=in_stream and not factorised)
    if factorised:
        gated = 'rows' if in_stream else ''
        dense('encoder.embed_proj', h, e, 'embeddings', gated, low_precision=True)
    reads, writes = ('rows', 'columns') if in_stream else ('rows and columns',) * 2
    for i, dims in enumerate(architecture.layers):
        cell, low = f'encoder.transformer_cells.{i}.', {'layer': i, 'low_precision': True}
        keys, values, filters = (f'a{i}', f'k{i}'), (f'a{i}', f'v{i}'), (f'f{i}',)
        query = cell + 'attention_cell.proj_query'
        dense(query, keys, h, 'attention', reads, attention_scale=True, **low)
        dense(cell + 'attention_cell.proj_key', keys, h, 'attention', reads, **low)
        dense(cell + 'attention_cell.proj_value', values, h, 'attention', reads, **low)
        dense(cell + 'proj', h, values, 'attention', writes, **low)
        norm(cell + 'layer_norm', h, 'attention', gated=in_stream, layer=i)
        if dims.f:
            dense(cell + 'ffn.ffn_1', filters, h, 'feed_forward', reads, **low)
            dense(cell + 'ffn.ffn_2', h, filters, 'feed_forward', writes, **low)
            norm(cell + 'ffn.layer_norm', h, 'feed_forward', gated=in_stream, layer=i)
    if head.pooled:
        dense('pooler', h, h, 'pooler')
    read = 'columns' if in_stream and head.pooled else ''
    if head.outputs:
        dense('task', ('outputs',), h, 'task', read)
        return table
    dense('classifier', ('nsp',), h, 'nsp', read)
    dense('decoder.0', e, h, 'mlm')
    norm('decoder.2', e, 'mlm', gated=in_stream and not factorised)
    add('decoder.3.bias', (('vocab_size',),), 'mlm')
    before = h
    for i in range(len(head.embedding.dense)):
        dense(f'dense.{i}', (f'dense{i}',), before, 'dense')
        before = (f'dense{i}',)
    return table


def parameters_left(
    architecture: Architecture, layers: Collection[int], head: Head = PRETRAINING
) -> dict[str, ParameterSpec]:
    """The parameters that stay when only some layers do: as they were, by the names that they get.

    Parameters
    ----------
    layers : collection of int, increasing
        The layers that stay; they are numbered anew.
    head : Head
        What stands on the encoder.
    """
    smaller = dataclasses.replace(architecture, layers=tuple(architecture.layers[i] for i in layers))
    staying = [
        spec
        for spec in parameter_table(architecture, head).values()
        if spec.layer is None or spec.layer in layers
    ]
    return dict(zip(parameter_table(smaller, head), staying))


def network_shapes(architecture: Architecture, head: Head = PRETRAINING) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of an encoder with its head; names as in `parameter_table`."""
    return {name: spec.shape for name, spec in parameter_table(architecture, head).items()}


def gate_name(key: str) -> str:
    """The parameter name of a gate, e.g. ``encoder.transformer_cells.3.gate_f.alpha`` for width ``f3``."""
    if key == 'h':
        return 'encoder.gate_h' + GATE
    return f'encoder.transformer_cells.{key[1:]}.gate_{key[0]}{GATE}'


def check_parameters(parameters: Parameters, architecture: Architecture, head: Head = PRETRAINING) -> None:
    """Refuse parameters that are not those of the architecture and its head, or are no numbers.

    Raises
    ------
    ValueError
        Listing every name that is missing or unknown, every shape that does not fit, and what holds NaN or
        infinity.
    """
    wanted = network_shapes(architecture, head)
    problems = [f'missing {name} {shape}' for name, shape in wanted.items() if name not in parameters]
    problems += [
        f'unknown {name!r:.80} {_shape(parameters[name])}' for name in parameters if name not in wanted
    ]
    problems += [
        f'{name} has shape {_shape(parameters[name])}, wanted {shape}'
        for name, shape in wanted.items()
        if name in parameters and _shape(parameters[name]) != shape
    ]
    problems += [
        f'{name} has values that are NaN or infinite'
        for name in wanted
        if name in parameters and not is_finite(parameters[name])
    ]
    if problems:
        raise ValueError(
            'parameters do not fit the architecture:' + ''.join(f'\n  {line}' for line in problems)
        )


def check_alphas(alphas: Alphas, architecture: Architecture) -> None:
    """Refuse gates that are not those of the architecture; a width of none needs no gate.

    Raises
    ------
    ValueError
        Listing every gate that is missing, unknown, of another length, or with NaN or infinity.
    """
    widths = architecture.widths()
    wrong = [
        f'{key} {_shape(alphas.get(key))}, wanted ({width},)'
        for key, width in widths.items()
        if _shape(alphas.get(key)) != (width,) and (width or key in alphas)
    ]
    wrong += [f'unknown {key}' for key in alphas if key not in widths]
    wrong += [f'{key} has values that are NaN or infinite' for key in alphas if not is_finite(alphas[key])]
    if wrong:
        raise ValueError('gates do not fit the architecture: ' + '; '.join(wrong))


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of an array; () of what is none."""
    return tuple(getattr(value, 'shape', ()))
