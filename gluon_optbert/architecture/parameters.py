"""Every parameter of the network: its name, the widths along its sides, its gate, the part that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

from .architecture import Architecture, Axis
from .heads import PRETRAINING, Head

if TYPE_CHECKING:
    import numpy as np  # the room needs no NumPy: arrays are known by their shape

Alphas = Mapping[str, 'np.ndarray']
Parameters = Mapping[str, 'np.ndarray']
LETTERS = 'hakvf'
GATE = '.alpha'  # how the name of a gate ends


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


def gate_name(key: str) -> str:
    """The parameter name of a gate, e.g. ``encoder.transformer_cells.3.gate_f.alpha`` for the width ``f3``."""
    if key == 'h':
        return 'encoder.gate_h' + GATE
    return f'encoder.transformer_cells.{key[1:]}.gate_{key[0]}{GATE}'


PARTS = {
    'pooler': 'pooler',
    'mlm': 'MLM head',
    'nsp': 'NSP head',
}  # of what stands on the encoder in pre-training, for people
_PARTS = {
    'pooler': 'pooler',
    'decoder': 'mlm',
    'classifier': 'nsp',
}  # by the first word of a parameter's name


def part_of(name: str) -> Optional[str]:
    """The key in `PARTS` of what a parameter belongs to; None if it is one of the encoder or of a task's
    head.
    """
    return _PARTS.get(name.split('.', 1)[0])


def network_shapes(architecture: Architecture, head: Head = PRETRAINING) -> Dict[str, Tuple[int, ...]]:
    """The shape of every parameter of an encoder with its head; tied tensors once.

    The head of a task is a dense layer named ``task``, behind the pooler where it reads the pooled output.
    """
    if head == PRETRAINING:
        return parameter_shapes(architecture)
    h = architecture.h
    shapes = parameter_shapes(architecture, heads=False)
    if head.pooled:
        shapes.update({'pooler.weight': (h, h), 'pooler.bias': (h,)})
    return {**shapes, 'task.weight': (head.outputs, h), 'task.bias': (head.outputs,)}


def check_parameters(parameters: Parameters, architecture: Architecture, head: Head = PRETRAINING) -> None:
    """Refuse parameters that are not those of the architecture and its head.

    Raises
    ------
    ValueError
        Listing every name that is missing or unknown and every shape that does not fit.
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
    if problems:
        raise ValueError(
            'parameters do not fit the architecture:' + ''.join(f'\n  {line}' for line in problems)
        )


def check_alphas(alphas: Alphas, architecture: Architecture) -> None:
    """Refuse gates that are not those of the architecture; a width of none needs no gate.

    Raises
    ------
    ValueError
        Listing every gate that is missing, unknown or of another length.
    """
    widths = architecture.widths()
    wrong = [
        f'{key} {_shape(alphas.get(key))}, wanted ({width},)'
        for key, width in widths.items()
        if _shape(alphas.get(key)) != (width,) and (width or key in alphas)
    ]
    wrong += [f'unknown {key}' for key in alphas if key not in widths]
    if wrong:
        raise ValueError('gates do not fit the architecture: ' + '; '.join(wrong))


def _shape(value: Any) -> Tuple[int, ...]:
    """The shape of an array; () of what is none."""
    return tuple(getattr(value, 'shape', ()))
