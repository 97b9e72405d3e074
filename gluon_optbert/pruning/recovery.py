"""Recovery: training goes on after a cut, from the labels and perhaps from a teacher."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence, Tuple

from ..architecture.cost import ParameterCost
from ..architecture.parameters import Parameters
from ..network.model import read_parameters
from ..network.saved_model import SavedModel
from ..runs.progress import Measured, Progress
from ..training.loop import train
from ..training.states import States
from .job import Job


def fit_is_worse(
    job: Job, cut: SavedModel, fitted: SavedModel, measured: Sequence[Optional[Measured]], number: int
) -> bool:
    """Whether reconstruction made a network worse, by what `recover` compares; the same on every worker.

    Never where recovery does not keep its best step, or nothing is measured.

    Parameters
    ----------
    job : Job
    cut, fitted : SavedModel
        Before reconstruction, and after it.
    measured : pair of Measured, optional
        What they come to on held-out data.
    number : int
        Of the round.
    """
    if not job.recipe.keep_best:
        return False
    before, after = (_loss(job, saved, one, number) for saved, one in zip((cut, fitted), measured))
    worse = before is not None and after is not None and not after <= before  # nor may it be no number
    job.workers.agree(str(worse), what=f'the network that recovery starts from in round {number}')
    return worse


def _loss(job: Job, saved: SavedModel, measured: Optional[Measured], number: int) -> Optional[float]:
    """By what `recover` compares a network, smaller for a better one; None if nothing is measured."""
    goal = job.goal
    if job.steps[1]:
        model = goal.build(saved, **goal.recovery_settings)
        if goal.recovered_parameters(model) is not None:
            phase = job.phase('recovery', number)
            objective = goal.recovery(model, phase, job.match(number))
            values = objective.evaluate(phase)
            return None if values is None else objective.loss_of(values)
    return None if measured is None else measured.loss


def recover(
    job: Job, start: SavedModel, measured: Optional[Measured], number: int
) -> Tuple[Parameters, Progress]:
    """Train what a cut has left, and keep the best of what was measured on the way.

    Parameters
    ----------
    job : Job
    start : SavedModel
        After the cut, or after reconstruction.
    measured : Measured, optional
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
    recipe, goal, states = job.recipe, job.goal, job.directory(number) / 'recovery-states'
    if not job.steps[1]:
        return start.parameters, Progress(step=0).updated(**({} if measured is None else measured.fields))
    size = ParameterCost().cost(start.architecture)
    phase = job.phase('recovery', number, notes={'round': number, 'parameters': size})
    model = goal.build(start, **goal.recovery_settings)
    objective = goal.recovery(model, phase, job.match(number))
    objective.returns_to_best = recipe.keep_best
    trained = goal.recovered_parameters(model)
    optimizer = recipe.weight_optimizer(model, job.workers, trained)
    compared = recipe.keep_best and trained is not None  # by what the objective measures, not by `measured`
    before = objective.evaluate(phase) if compared else None
    progress = train(
        objective, optimizer, recipe.schedule(phase.steps), phase, reporter=job.reporter, states=states
    )
    if recipe.keep_best:
        best = objective.best_of(progress)
        least = measured.loss if measured and before is None else before and objective.loss_of(before)
        if best is None or least <= best:
            of = Progress(state_difference=(before or {}).get('state_difference'))
            return start.parameters, _kept(progress, of, measured, step=0)
        if progress.best_step != progress.step:
            kept = States(states, phase.keep).load(progress.best_step, optimizer)
            progress = _kept(progress, kept, kept.measured, step=progress.best_step)
    parameters = read_parameters(model)
    if trained is not None:
        parameters = {**start.parameters, **parameters}  # the heads are as they were
        after = goal.evaluate(dataclasses.replace(start, parameters=parameters))
        progress = progress.updated(**({} if after is None else after.fields))
    return parameters, progress


def _kept(progress: Progress, of: Progress, measured: Optional[Measured], *, step: int) -> Progress:
    """The progress of the last step, with the measurements of the step that is kept."""
    values = {} if measured is None else measured.fields
    if progress.state_difference is not None:
        values['state_difference'] = of.state_difference
    return progress.updated(**values, kept_step=step)
