"""Recovery: what a cut has left is trained by equation (1), and the best of what was measured is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..architecture.cost import ParameterCost
from ..architecture.parameters import Parameters
from ..network.model import read_parameters
from ..network.saved_model import SavedModel
from ..runs.files import write_json
from ..runs.progress import RECOVERY, Measured, Progress
from ..training.loop import steps_within, train
from ..training.objective import Objective, Phase
from ..training.optimization import Optimizer
from ..training.states import States
from .run import PLAN, Run


def fit_is_worse(
    run: Run, networks: tuple[SavedModel, SavedModel], measured: tuple[Measured | None, Measured | None]
) -> bool:
    """Whether fitting its layers made a network worse, by what `recover` compares; the same on every worker.

    Never where recovery does not keep its best step, or nothing is measured. The networks, and what they come
    to on held-out data, are those before their layers were fitted and after that.
    """
    if not run.recipe.keep_best:
        return False
    if run.recovers and run.objective.states_alone:
        phase = run.phase(RECOVERY)
        trainings = (_training(run, saved, phase) for saved in networks)
        before, after = (training.loss_of(training.evaluate(phase)) for training in trainings)
    else:
        before, after = (None if one is None else one.loss for one in measured)
    worse = before is not None and not after <= before  # nor may it be no number
    run.workers.agree(str(worse), what=f'the network that recovery starts from in round {run.number}')
    return worse


def recover(run: Run, start: SavedModel, measured: Measured | None) -> tuple[Parameters, Progress]:
    """Train what a cut has left, and keep the best of what was measured on the way.

    Parameters
    ----------
    start : SavedModel
        After the cut, or after its layers were fitted.
    measured : Measured, optional
        What `start` comes to on held-out data.

    Returns
    -------
    parameters : mapping of name to np.ndarray
    progress : Progress
        Its evaluation is that of the parameters. ``kept_step`` is the step that they are of, 0 for `start`,
        where this is not the last one.
    """
    recipe, objective, states = run.recipe, run.objective, run.directory / 'recovery-states'
    if not run.recovers:
        return start.parameters, Progress(step=0).updated(**_fields(measured))
    if recipe.minutes is not None:
        plan_recovery(run, start)
    notes = {'round': run.number, 'parameters': ParameterCost().cost(start.architecture)}
    phase = run.phase(RECOVERY, notes=notes)
    training = _training(run, start, phase)
    optimizer = _optimizer(run, training)
    training.returns_to_best = recipe.keep_best
    compared = recipe.keep_best and objective.states_alone  # by what `training` measures, not by `measured`
    before = training.evaluate(phase) if compared else None
    schedule = recipe.schedule(phase.steps)
    progress = train(training, optimizer, schedule, phase, reporter=run.reporter, states=states)
    if recipe.keep_best:
        best = training.best_of(progress)
        least = measured.loss if measured and before is None else before and training.loss_of(before)
        if best is None or least <= best:
            difference = (before or {}).get('state_difference')
            return start.parameters, _kept(progress, 0, measured, difference)
        if progress.best_step != progress.step:
            kept = States(states, phase.keep).load(progress.best_step, optimizer)
            progress = _kept(progress, progress.best_step, kept.measured, kept.state_difference)
    parameters = read_parameters(training.model)
    left = {name: value for name, value in start.parameters.items() if name not in parameters}
    parameters = {**parameters, **left}  # what is not built is as it was
    if objective.states_alone:
        after = objective.evaluate(dataclasses.replace(start, parameters=parameters))
        progress = progress.updated(**_fields(after))
    return parameters, progress


def plan_recovery(run: Run, start: SavedModel) -> None:
    """Time some steps of recovery on a network that is thrown away, and leave plan.json: the steps that fit
    into the minutes of the recipe. A run that is resumed or made again takes those steps.
    """
    path, minutes = run.directory / PLAN, run.recipe.minutes
    if not path.exists():
        phase = run.phase(RECOVERY)
        with run.doing(f'timing steps of {RECOVERY}'):
            training = _training(run, start, phase)
            steps, each = steps_within(60 * minutes, training, _optimizer(run, training), phase)
        if run.workers.first:
            write_json(path, {'minutes': minutes, 'seconds_a_step': each, 'steps': steps})
    run.workers.barrier(f'planned.{run.number}')


def _training(run: Run, start: SavedModel, phase: Phase) -> Objective:
    """The objective of recovery, with a network of its own."""
    model = run.objective.build(start, **run.objective.recovery_settings)
    return run.objective.recovery(model, phase, run.match(run.number))


def _optimizer(run: Run, training: Objective) -> Optimizer:
    """Of what recovery trains."""
    trained = run.objective.recovered_parameters(training.model)
    return run.recipe.weight_optimizer(training.model, run.workers, trained)


def _fields(measured: Measured | None) -> Mapping[str, Any]:
    return {} if measured is None else measured.fields


def _kept(
    progress: Progress, step: int, measured: Measured | None, state_difference: float | None
) -> Progress:
    """The progress of the last step, with what was measured at the step that is kept."""
    of_states = {} if progress.state_difference is None else {'state_difference': state_difference}
    return progress.updated(**_fields(measured), **of_states, kept_step=step)
