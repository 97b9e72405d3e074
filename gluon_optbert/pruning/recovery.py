"""Recovery: pre-training goes on after a cut, from the labels and perhaps from a teacher."""

from __future__ import annotations

import dataclasses
from typing import Dict, Optional, Tuple

from mxnet import gluon

from ..architecture.cost import ParameterCost
from ..architecture.parameters import PARTS, Parameters, parameter_table
from ..network.model import OptBERTModel, named_parameters, read_parameters
from ..network.saved_model import SavedModel
from ..runs.progress import HeldOut, Progress
from ..training.distillation import OF_STATES, Distillation, StateMatching
from ..training.loop import descend
from ..training.mlm_nsp import Pretraining
from ..training.objective import Phase
from ..training.states import States
from .job import Job


def recover(
    job: Job, start: SavedModel, measured: Optional[HeldOut], number: int
) -> Tuple[Parameters, Progress]:
    """Train what a cut has left, and keep the best of what was measured on the way.

    Parameters
    ----------
    job : Job
    start : SavedModel
        After the cut, or after reconstruction.
    measured : HeldOut, optional
        What `start` comes to on held-out data, if its heads are trained.
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
    alone = job.teacher is not None and not recipe.teaching().need_heads
    model = job.build(start, **(OF_STATES if alone else {'output_all_encodings': job.teacher is not None}))
    size = ParameterCost().cost(start.architecture)
    phase = job.phase('recovery', number, notes={'round': number, 'parameters': size})
    objective = _objective(job, model, number, phase)
    objective.returns_to_best = recipe.keep_best
    optimizer = recipe.weight_optimizer(model, job.workers, _below_heads(model) if alone else None)
    before = objective.evaluate(phase)['state_difference'] if alone else measured and measured.mlm_loss
    progress = descend(
        objective, optimizer, recipe.schedule(phase.steps), phase, reporter=job.reporter, states=states
    )
    if recipe.keep_best:
        best = progress.best_state_difference if alone else progress.best_mlm_loss
        if best is None or before <= best:
            return start.parameters, _kept(progress, Progress(state_difference=before), measured, step=0)
        if progress.best_step != progress.step:
            kept = States(states, phase.keep).load(progress.best_step, optimizer)
            progress = _kept(progress, kept, kept.held_out, step=progress.best_step)
    parameters = read_parameters(model)
    if alone:
        parameters = {**start.parameters, **parameters}  # the heads are as they were
        after = job.evaluate(dataclasses.replace(start, parameters=parameters))
        progress = progress.updated(**({} if after is None else after.to_dict()))
    return parameters, progress


def _kept(progress: Progress, of: Progress, measured: Optional[HeldOut], *, step: int) -> Progress:
    """The progress of the last step, with the measurements of the step that is kept."""
    values = {} if measured is None else measured.to_dict()
    if progress.state_difference is not None:
        values['state_difference'] = of.state_difference
    return progress.updated(**values, kept_step=step)


def _below_heads(model: OptBERTModel) -> Dict[str, gluon.Parameter]:
    """The parameters that the states depend on."""
    table = parameter_table(model.architecture)
    return {name: one for name, one in named_parameters(model).items() if table[name].part not in PARTS}


def _objective(job: Job, model: OptBERTModel, number: int, phase: Phase) -> Pretraining:
    """What recovery descends: MLM plus NSP, and what the teacher says, if the recipe names one."""
    shards = job.shards['train'], job.shards['heldout']
    if job.teacher is None:
        return Pretraining(model, job.workers, *shards)
    weights = job.recipe.teaching()
    kind = Distillation if weights.need_heads else StateMatching
    taught = {'teacher': job.teacher, 'match': job.match(number), 'weights': weights, 'phase': phase}
    return kind(model, job.workers, *shards, **taught)
