"""The method ``fisher``: the squared gradients of the loss towards the gates rank the units; nothing is
trained."""

from __future__ import annotations

from typing import Dict

import numpy as np

from ..cutting.baselines import fisher_scores, rank_as, rearranged
from ..training.loop import gradients
from .cut import Cut


def gate_gradients(cut: Cut) -> Dict[str, np.ndarray]:
    """The gradients of the labels' loss towards the gates, of one batch after the other, without dropout.

    Returns
    -------
    dict of width key to np.ndarray, shape (batches, width)
        As many batches as the phase of the cut has steps.
    """
    model = cut.goal.build(
        cut.model,
        precision='float32',
        gated=True,
        h_gate=cut.recipe.h_gate,
        dropout=0.0,
        **cut.goal.labelled_settings,
    )
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    for key, parameter in model.gates.parameters.items():
        parameter.grad_req = 'write' if key[0] in cut.recipe.prune else 'null'
    gates = model.gates.trained()
    rows: Dict[str, list] = {key: [] for key in gates}
    for _ in gradients(cut.goal.labelled(model, cut.phase), gates, cut.phase):
        for key, gate in gates.items():
            rows[key].append(gate.grad().asnumpy())
    return {key: np.stack(values) for key, values in rows.items()}


def fisher(cut: Cut) -> Dict[str, np.ndarray]:
    """Scores of the units: `fisher_scores`, given to the units that `rearranged` keeps.

    Returns
    -------
    dict of width key to np.ndarray, shape (width,)
        Ones for widths that are not pruned.
    """
    architecture = cut.model.architecture
    measured = gate_gradients(cut)
    prices = cut.cost.prices(architecture)
    scores = {key: np.ones(width) for key, width in architecture.widths().items()}
    scores.update(fisher_scores(measured, prices))
    selection = cut.select(scores)
    for key, values in measured.items():
        scores[key] = rank_as(scores[key], rearranged(values, selection.kept[key]))
    return scores
