"""Recovery: pre-training goes on after a cut, from the labels and perhaps from a teacher."""

from __future__ import annotations

import math
from typing import Tuple

from ..architecture.cost import ParameterCost
from ..architecture.parameters import Parameters
from ..cutting.selection import read_selection, survivors
from ..network.model import OptBERTModel, read_parameters
from ..network.saved_model import SavedModel
from ..runs.progress import HeldOut, Progress
from ..training.distillation import Distillation, Match, Weights
from ..training.loop import descend
from ..training.mlm_nsp import Pretraining
from ..training.objective import Phase
from ..training.states import States
from .job import Job


def recover(job: Job, start: SavedModel, measured: HeldOut, number: int) -> Tuple[Parameters, Progress]:
    """Train what a cut has left, and keep the best of what was measured on the way.

    Parameters
    ----------
    job : Job
    start : SavedModel
        After the cut, or after reconstruction.
    measured : HeldOut
        What `start` comes to on held-out data.
    number : int
        Of the round.

    Returns
    -------
    parameters : mapping of name to np.ndarray
    progress : Progress
        Its evaluation is that of the parameters. ``kept_step`` is the step that they are of, 0 for `start`,
        where this is not the last one.
    """
    recipe, states = job.recipe, job.directory(number) / 'recovery-states'
    model = job.build(start, output_all_encodings=job.teacher is not None)
    size = ParameterCost().cost(start.architecture)
    phase = job.phase('recovery', number, notes={'round': number, 'parameters': size})
    objective = _objective(job, model, number, phase)
    objective.returns_to_best = recipe.keep_best
    optimizer = recipe.weight_optimizer(model, job.workers)
    progress = descend(
        objective, optimizer, recipe.schedule(phase.steps), phase, reporter=job.reporter, states=states
    )
    best = math.inf if progress.best_mlm_loss is None else progress.best_mlm_loss
    if not objective.returns_to_best:
        return read_parameters(model), progress
    if measured.mlm_loss <= best:
        return start.parameters, progress.updated(**measured.to_dict(), kept_step=0)
    if progress.best_step != progress.step:
        kept = States(states, phase.keep).load(progress.best_step, optimizer)
        progress = progress.updated(**kept.held_out.to_dict(), kept_step=progress.best_step)
    return read_parameters(model), progress


def _objective(job: Job, model: OptBERTModel, number: int, phase: Phase) -> Pretraining:
    """What recovery descends: MLM plus NSP, and what the teacher says, if the recipe names one."""
    shards = job.shards['train'], job.shards['heldout']
    if job.teacher is None:
        return Pretraining(model, job.workers, *shards)
    recipe, architecture = job.recipe, job.teacher.architecture
    selections = [read_selection(job.directory(i + 1) / 'selection.json') for i in range(number)]
    match = Match.after(*survivors(selections, architecture), len(architecture.layers))
    weights = Weights(
        recipe.label_weight, recipe.teacher_score_weight, recipe.teacher_state_weight, recipe.temperature
    )
    return Distillation(
        model, job.workers, *shards, teacher=job.teacher, match=match, weights=weights, phase=phase
    )
