"""Fold the gates into the weights and cut the tensors: pure functions on arrays.

Where the gates stand, and so where each is folded (optBERT, Table 5, and what the table leaves open):

- alpha_f multiplies D with its bias, and G: rows of ``ffn_1``, columns of ``ffn_2``.
- alpha_k multiplies K and Q with their biases; alpha_v multiplies V with its bias, and P; alpha_a multiplies
  all four.
- alpha_h multiplies what leaves every LayerNorm on the residual stream, which is what the columns of K, Q, V
  and D in Table 5
  read, and with them the skip connections, the pooler and the MLM head. What P and G write into the stream is
  not scaled: the next LayerNorm drops the units at zero from its moments and from its output, so cutting
  their rows changes nothing. The embedding is not scaled either, as in equation (2). The pooled output is
  gated where the NSP head reads it, and the MLM transform in its LayerNorm. A factorised embedding has its
  LayerNorm before its projection, which takes alpha_h up instead.
- A layer that is left without filters loses its intermediate block, the bias of G and the LayerNorm included.
- Attention divides by the square root of k. Taking keys away would change that scale, so the queries take up
  the ratio."""

from __future__ import annotations

import dataclasses
import re
from typing import Callable, Dict, Optional, Tuple, TypeVar

import numpy as np

from ..architecture.architecture import Architecture, Axis
from ..architecture.cost import ParameterCost
from ..architecture.parameters import Alphas, Parameters, check_alphas, check_parameters, parameter_axes
from .selection import Selection, keep_all

_LAYER = re.compile(r'(encoder\.transformer_cells\.)(\d+)')


def _axis_gate(axis: Axis, alphas: Alphas) -> np.ndarray:
    """The gates along one side of a tensor: the outer product of its widths' alphas, flattened."""
    gate = np.ones(1)
    for key in axis:
        gate = np.outer(gate, np.asarray(alphas[key], dtype=np.float64)).reshape(-1)
    return gate


def _gated_sides(name: str, architecture: Architecture) -> Tuple[int, ...]:
    """The sides of a parameter that take up the gates of their widths (0 rows, 1 columns)."""
    if name.endswith(('gamma', 'beta')):
        factorised = architecture.e is not None
        return () if factorised and name.startswith(('encoder.layer_norm', 'decoder.')) else (0,)
    if 'attention_cell' in name or '.ffn_1.' in name or name.startswith('encoder.embed_proj'):
        return (0,)
    return (1,) if name.endswith(('.proj.weight', 'ffn_2.weight')) or name == 'classifier.weight' else ()


def fold(parameters: Parameters, architecture: Architecture, alphas: Alphas) -> Dict[str, np.ndarray]:
    """The ungated parameters that compute what the gated network computes.

    Parameters
    ----------
    parameters : mapping of name to np.ndarray
        As `network_shapes` lists them, with the heads of pre-training.
    architecture : Architecture
    alphas : mapping of width key to np.ndarray, shape (width,)

    Raises
    ------
    ValueError
        If parameters or gates do not fit the architecture.
    """
    check_parameters(parameters, architecture)
    check_alphas(alphas, architecture)
    axes = parameter_axes(architecture)
    return {
        name: _folded(name, np.asarray(parameters[name]), axes[name], architecture, alphas) for name in axes
    }


def _folded(
    name: str, value: np.ndarray, axes: Tuple[Axis, ...], architecture: Architecture, alphas: Alphas
) -> np.ndarray:
    """One parameter with its gates in it; itself if it has none."""
    for side in _gated_sides(name, architecture):
        shape = [1] * value.ndim
        shape[side] = -1
        value = value * _axis_gate(axes[side], alphas).reshape(shape).astype(value.dtype)
    return value


def _axis_indices(axis: Axis, architecture: Architecture, selection: Selection) -> np.ndarray:
    """Where the surviving units of a product of widths stand along one side of a tensor."""
    indices = np.zeros(1, dtype=np.int64)
    for key in axis:
        size = architecture.size((key,))
        kept = selection.kept.get(key, np.arange(size))
        indices = (indices[:, None] * size + kept).reshape(-1)
    return indices


def cut(
    parameters: Parameters, architecture: Architecture, selection: Selection
) -> Tuple[Dict[str, np.ndarray], Architecture]:
    """Take the rows and columns of unselected units out of every tensor.

    Returns
    -------
    parameters : dict of name to np.ndarray
        Contiguous copies of the smaller shapes.
    architecture : Architecture
        The smaller one.

    Raises
    ------
    ValueError
        If parameters or selection do not fit the architecture.
    """
    check_parameters(parameters, architecture)
    return _cut(lambda name: np.asarray(parameters[name]), architecture, selection), selection.architecture(
        architecture
    )


def _check_selection(architecture: Architecture, selection: Selection) -> None:
    """Raise ValueError unless the selection takes units of this architecture and leaves one of every width
    but f.
    """
    widths = architecture.widths()
    wrong = [
        key
        for key, kept in selection.kept.items()
        if key not in widths
        or np.any(np.diff(kept) <= 0)
        or (len(kept) == 0 and widths[key] > 0 and key[0] != 'f')
        or (len(kept) and not 0 <= kept[0] <= kept[-1] < widths[key])
    ]
    chosen = selection.layers if selection.layers is not None else ()
    if sorted(set(chosen)) != list(chosen) or any(not 0 <= i < len(architecture.layers) for i in chosen):
        wrong.append(f'layers {chosen}')
    if wrong:
        raise ValueError(
            'selection does not fit the architecture (increasing indices below the width, at least one but '
            'of f): ' + ', '.join(wrong)
        )


def _cut(
    value_of: Callable[[str], np.ndarray], architecture: Architecture, selection: Selection
) -> Dict[str, np.ndarray]:
    """What is left of every parameter; they are asked for one at a time, so that no second set of them is in
    memory.
    """
    _check_selection(architecture, selection)
    widths = architecture.widths()
    narrower = dataclasses.replace(selection, layers=None).architecture(architecture)
    layers = range(len(architecture.layers)) if selection.layers is None else selection.layers
    places = {old: new for new, old in enumerate(layers)}
    left = {}
    for name, axes in parameter_axes(narrower).items():
        match = _LAYER.match(name)
        if match and int(match.group(2)) not in places:
            continue
        value = value_of(name)
        for side, axis in enumerate(axes):
            indices = _axis_indices(axis, architecture, selection)
            if len(indices) < value.shape[side]:
                value = np.take(value, indices, axis=side)
        if '.proj_query.' in name:
            key = axes[0][1]
            ratio = narrower.widths()[key] / widths[key]
            value = value if ratio == 1 else value * np.asarray(np.sqrt(ratio), dtype=value.dtype)
        if match:
            name = f'{match.group(1)}{places[int(match.group(2))]}{name[match.end() :]}'
        left[name] = np.array(value, order='C')
    return left


def shrink(
    parameters: Parameters, architecture: Architecture, alphas: Alphas, selection: Selection
) -> Tuple[Dict[str, np.ndarray], Architecture]:
    """Fold alpha into the parameters and cut what is not selected: what the gated network with the unselected
    alpha at zero computes, in smaller tensors.

    Raises
    ------
    ValueError
        As `fold` and `cut`.
    """
    check_parameters(parameters, architecture)
    check_alphas(alphas, architecture)
    axes = parameter_axes(architecture)
    return _cut(
        lambda name: _folded(name, np.asarray(parameters[name]), axes[name], architecture, alphas),
        architecture,
        selection,
    ), selection.architecture(architecture)


M = TypeVar('M')  # a model: a dataclass with architecture, parameters and alphas


def without_gates(saved: M, alphas: Optional[Alphas] = None) -> M:
    """Fold gates into the weights and cut the units at zero; a model without gates as it is.

    Parameters
    ----------
    saved : dataclass with the fields architecture, parameters and alphas
        Such as a `SavedModel`.
    alphas : mapping of width key to np.ndarray, optional
        Gates to use instead of the model's own.

    Raises
    ------
    ValueError
        If a gate vector has no unit left.
    """
    alphas = saved.alphas if alphas is None else alphas
    if not alphas:
        return saved
    whole = keep_all(saved.architecture, ParameterCost())
    kept = {
        key: np.flatnonzero(alphas[key]) if key in alphas else indices for key, indices in whole.kept.items()
    }
    empty = [key for key, indices in kept.items() if len(indices) == 0 and len(whole.kept[key])]
    if empty:
        raise ValueError(f'gates: every unit of {", ".join(empty)} is at zero')
    alphas = {key: alphas.get(key, np.ones(len(indices))) for key, indices in whole.kept.items()}
    parameters, architecture = shrink(
        saved.parameters, saved.architecture, alphas, Selection(kept, whole.cost, whole.target)
    )
    return dataclasses.replace(saved, architecture=architecture, parameters=parameters, alphas=None)
