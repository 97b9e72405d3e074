"""The importance of attention heads, by which the method ``heads`` prunes."""

from __future__ import annotations

from typing import List

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.parameters import Alphas, parameter_table
from ..network.model import named_parameters
from ..network.saved_model import SavedModel
from ..training.loop import gradients
from ..training.objective import Phase
from .goal import Goal


def head_importance(start: SavedModel, goal: Goal, phase: Phase) -> Alphas:
    """Scores of the heads by Michel et al. (2019), "Are Sixteen Heads Really Better than One?", equation (2).

    The expected magnitude of the loss's derivative towards a head's output gate, over the batches of a phase,
    normalised within each layer as there. A head's output is linear in its values, so the derivative is the
    inner product of the value weights with their gradients.

    Parameters
    ----------
    start : SavedModel
        Without gates.
    goal : Goal
        Whose loss it is, and whose batches.
    phase : Phase
        How many batches, of how many instances, from where in the stream.

    Returns
    -------
    dict of width key to np.ndarray, shape (width,)
        Of the heads of layer i under ``ai``, with a 2-norm of one; ones for every other width.
    """
    model = goal.build(start, precision='float32', dropout=0.0, **goal.labelled_settings)
    projections = value_projections(start.architecture)
    parameters = named_parameters(model)
    values = {name: parameters[name] for names in projections for name in names}
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    for parameter in values.values():
        parameter.grad_req = 'write'
    scores = {
        key: np.zeros(width) if key[0] == 'a' else np.ones(width)
        for key, width in start.architecture.widths().items()
    }
    for _ in gradients(goal.labelled(model, phase), values, phase):
        for i, layer in enumerate(start.architecture.layers):
            slope = sum(
                (values[name].data() * values[name].grad()).asnumpy().reshape(layer.a, -1).sum(1)
                for name in projections[i]
            )
            scores[f'a{i}'] += np.abs(slope)
    for key, score in scores.items():
        if key[0] == 'a':
            scores[key] = score / max(float(np.linalg.norm(score)), 1e-30)
    return scores


def value_projections(architecture: Architecture) -> List[List[str]]:
    """The names of the weight and the bias that compute the values, layer by layer."""
    table = parameter_table(architecture)
    return [
        [name for name, spec in table.items() if spec.axes[0] == (f'a{i}', f'v{i}')]
        for i in range(len(architecture.layers))
    ]
