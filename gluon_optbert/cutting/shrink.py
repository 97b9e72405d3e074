"""Fold gates into parameters and cut units, layers and tokens out of them: pure functions on arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from ..architecture.architecture import Architecture, Axis
from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import (
    Alphas,
    Parameters,
    ParameterSpec,
    check_alphas,
    check_parameters,
    parameter_table,
    parameters_left,
)
from .selection import Selection


def fold(
    parameters: Parameters,
    architecture: Architecture,
    alphas: Alphas,
    *,
    head: Head = PRETRAINING,
    h_gate: str = 'stream',
) -> dict[str, np.ndarray]:
    """The ungated parameters that compute what the gated network computes; parameters and errors as of
    `shrink`.
    """
    return shrink(parameters, architecture, alphas, Selection({}, 0, 0), head=head, h_gate=h_gate)[0]


def _folded(value: np.ndarray, spec: ParameterSpec, alphas: Alphas) -> np.ndarray:
    """One parameter with its gates in it; itself if it has none."""
    for side, axis in enumerate(spec.gates):
        if axis:
            gate = np.ones(1)
            for key in axis:  # along a product of widths, the outer product of their gates
                gate = np.outer(gate, np.asarray(alphas[key], dtype=np.float64)).reshape(-1)
            shape = [1] * value.ndim
            shape[side] = -1
            value = value * gate.reshape(shape).astype(value.dtype)
    return value


def kept_along(axis: Axis, architecture: Architecture, kept: Mapping[str, np.ndarray]) -> np.ndarray:
    """Indices of the surviving units of a product of widths along one side of a tensor."""
    indices, sizes = np.zeros(1, dtype=np.int64), architecture.sizes()
    for key in axis:
        indices = (indices[:, None] * sizes[key] + kept.get(key, np.arange(sizes[key]))).reshape(-1)
    return indices


def _taken(
    value: np.ndarray, axes: Sequence[Axis], architecture: Architecture, kept: Mapping[str, np.ndarray]
) -> np.ndarray:
    """One parameter, whose sides have these axes, with the surviving units alone."""
    for side, axis in enumerate(axes):
        if any(key in kept for key in axis):
            indices = kept_along(axis, architecture, kept)
            if not np.array_equal(indices, np.arange(value.shape[side])):
                value = np.take(value, indices, axis=side)
    return value


def take_units(
    parameters: Parameters,
    architecture: Architecture,
    kept: Mapping[str, np.ndarray],
    *,
    head: Head = PRETRAINING,
) -> dict[str, np.ndarray]:
    """Some units or tokens out of every tensor, in another order if that is wanted, and all else as it is.

    Parameters
    ----------
    kept : mapping of width key or ``vocab_size`` to np.ndarray of int
        The numbers of those that stay, all different, in their new order.

    Returns
    -------
    dict of name to np.ndarray
        Copies where something was taken, else the arrays themselves.
    """
    return {
        name: _taken(np.asarray(parameters[name]), spec.axes, architecture, kept)
        for name, spec in parameter_table(architecture, head).items()
    }


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


def shrink(
    parameters: Parameters,
    architecture: Architecture,
    alphas: Alphas | None,
    selection: Selection,
    *,
    head: Head = PRETRAINING,
    h_gate: str = 'stream',
) -> tuple[dict[str, np.ndarray], Architecture]:
    """Fold alpha, where there is one, into the parameters and cut the units that are not selected.

    The smaller network computes what the gated network computes when the alpha of every unselected unit is
    zero. With the h gate ``table5`` this does not hold for hidden units: a gate at zero leaves the unit in
    the skip connections and in the moments of LayerNorm, and the cut takes it out of these too.

    Parameters
    ----------
    parameters : mapping of name to np.ndarray
        As `network_shapes` lists them.
    alphas : mapping of width key to np.ndarray, shape (width,), or None
    head : Head
        What stands on the encoder.
    h_gate : str
        Where alpha_h stood while it was trained, one of `H_GATES`.

    Returns
    -------
    parameters : dict of name to np.ndarray
        Contiguous copies of the smaller shapes.
    architecture : Architecture
        The smaller one.

    Raises
    ------
    ValueError
        If parameters, gates or selection do not fit the architecture.
    """
    check_parameters(parameters, architecture, head)
    if alphas is not None:
        check_alphas(alphas, architecture)
    _check_selection(architecture, selection)
    gates = {} if alphas is None else parameter_table(architecture, head, h_gate=h_gate)
    narrower = dataclasses.replace(selection, layers=None).architecture(architecture)
    layers = range(len(architecture.layers)) if selection.layers is None else selection.layers
    left = {}
    # one parameter after the other, so that no second set of them is in memory
    for name, spec in parameters_left(narrower, layers, head).items():
        value = np.asarray(parameters[spec.name])
        if gates:
            value = _folded(value, gates[spec.name], alphas)
        value = _taken(value, spec.axes, architecture, selection.kept)
        if spec.attention_scale:
            ratio = narrower.layers[spec.layer].k / architecture.layers[spec.layer].k
            value = value if ratio == 1 else value * np.asarray(np.sqrt(ratio), dtype=value.dtype)
        left[name] = np.array(value, order='C')
    return left, selection.architecture(architecture)


M = TypeVar('M')  # a model: a dataclass with architecture, parameters, alphas and head


def without_gates(saved: M, alphas: Alphas | None = None, *, h_gate: str = 'stream') -> M:
    """Fold gates into the weights and cut the units at zero; a model without gates as it is. The result
    computes the same, but for hidden units at zero where the h gate is ``table5``, as of `shrink`.

    ValueError if the gates are not those of the architecture, or all of a width are at zero.

    Parameters
    ----------
    saved : dataclass with the fields architecture, parameters, alphas and head
        Such as a `SavedModel`.
    alphas : mapping of width key to np.ndarray, optional
        Gates to use instead of the model's own.
    h_gate : str
        Where alpha_h stands in them, one of `H_GATES`; in the model's own it is in the stream.
    """
    alphas = saved.alphas if alphas is None else alphas
    if not alphas:
        return saved
    kept = {key: np.flatnonzero(alpha) for key, alpha in alphas.items()}
    empty = [key for key, indices in kept.items() if len(alphas[key]) and not len(indices)]
    if empty:
        raise ValueError(f'gates: every unit of {", ".join(empty)} is at zero')
    parameters, architecture = shrink(
        saved.parameters, saved.architecture, alphas, Selection(kept, 0, 0), head=saved.head, h_gate=h_gate
    )
    return dataclasses.replace(saved, architecture=architecture, parameters=parameters, alphas=None)
