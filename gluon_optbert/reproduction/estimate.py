"""Estimate of the time of a table: a few steps of everything are measured on the base, and multiplied out."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import mxnet as mx
from mxnet import autograd

from ..architecture.parameters import gate_name
from ..finetuning.objective import Exercise, FineTuning, start_parameters
from ..finetuning.recipe import FineTuneRecipe
from ..finetuning.recipes import SquadRecipe, prepare_glue, prepare_squad
from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel, build
from ..network.running import feed_of
from ..network.saved_model import SavedModel
from ..pruning.objectives import PretrainingObjective
from ..pruning.penalty import PENALTIES
from ..pruning.recipe import PruneRecipe
from ..runs.display import markdown_table
from ..tasks.features import TaskBatch, evaluation_batches, steps_per_epoch
from ..training.distillation import Match
from ..training.distributed import Workers
from ..training.held_out import evaluate
from ..training.loop import backward, collect_gradients
from ..training.objective import Objective, Phase
from ..training.optimization import Optimizer
from ..training.pretrain import Pretraining
from ..training.recipe import PretrainRecipe, TrainingRecipe, open_shards
from .rows import Row
from .table import Plan, gate_steps

UNTIMED, TIMED = 2, 4  # steps


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Measured times, in seconds.

    Parameters
    ----------
    gates, recovery, taught, scratch : float
        A step; `taught` of recovery with a teacher, `scratch` of a row that is trained from scratch.
    evaluation : float
        A held-out evaluation of pre-training.
    tuning : mapping of task to float
        Fine-tuning with one seed, at every learning rate that is tried.
    """

    gates: float
    recovery: float
    taught: float
    scratch: float
    evaluation: float
    tuning: Mapping[str, float]


def step_seconds(objective: Objective, optimizer: Optimizer, phase: Phase) -> float:
    """The mean time of a training step, after some that are not counted."""
    collect_gradients(objective.model, optimizer.parameters, phase)
    batches = objective.batches(phase, 0)
    began = 0.0
    try:
        for step in range(UNTIMED + TIMED):
            if step == UNTIMED:
                mx.nd.waitall()
                began = time.perf_counter()
            backward(objective, optimizer.parameters, next(batches), phase, step)
            optimizer.update(0.0, step=step + 1)
        mx.nd.waitall()
    finally:
        batches.close()
    return (time.perf_counter() - began) / TIMED


def gate_seconds(base: SavedModel, recipe: PruneRecipe, workers: Workers) -> float:
    """A step of all gates."""
    model = build(
        base.architecture,
        base.parameters,
        recipe.network_settings(gated=PENALTIES[recipe.penalty].gate, h_gate=recipe.h_gate),
        ctx=workers.context(),
    )
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    optimizer = Optimizer(
        {gate_name(key): parameter for key, parameter in model.gates.parameters.items()},
        recipe.alpha_optimizer,
        workers=workers,
    )
    shards = open_shards(recipe.shards)['train']
    return step_seconds(
        Pretraining(model, workers, shards), optimizer, recipe.phase('gates', UNTIMED + TIMED)
    )


def weight_seconds(base: SavedModel, recipe: TrainingRecipe, workers: Workers) -> tuple[float, float]:
    """A step of all weights by a recipe, and a held-out evaluation."""
    shards = open_shards(recipe.shards)
    model = build(base.architecture, base.parameters, recipe.network_settings(), ctx=workers.context())
    seconds = step_seconds(
        Pretraining(model, workers, shards['train']),
        recipe.weight_optimizer(model, workers),
        recipe.phase('recovery', UNTIMED + TIMED),
    )
    began = time.perf_counter()
    evaluation = evaluate(
        model, shards['heldout'], workers, batch_size=recipe.batch_size, limit=recipe.batch_size
    )
    whole = min(recipe.evaluation_limit, shards['heldout'].instances)
    return seconds, (time.perf_counter() - began) * whole / max(1, evaluation.instances)


def taught_seconds(base: SavedModel, recipe: PruneRecipe, workers: Workers) -> float:
    """A step of recovery with the teacher of a recipe."""
    objective = PretrainingObjective(recipe, base, workers)
    model = objective.build(base, **objective.recovery_settings)
    phase = recipe.phase('recovery', UNTIMED + TIMED)
    return step_seconds(
        objective.recovery(model, phase, Match.whole(base.architecture)),
        recipe.weight_optimizer(model, workers, objective.recovered_parameters(model)),
        phase,
    )


def tuning_seconds(base: SavedModel, recipe: FineTuneRecipe, workers: Workers) -> float:
    """Fine-tuning on a task with one seed and every rate: steps, held-out sets every epoch, test sets."""
    prepare = prepare_squad if isinstance(recipe, SquadRecipe) else prepare_glue
    exercise: Exercise = prepare(recipe, base, workers=workers)
    model = build(
        base.architecture,
        start_parameters(base, exercise.head, seed=0),
        recipe.network_settings(head=exercise.head),
        ctx=workers.context(),
    )
    steps = recipe.epochs * steps_per_epoch(exercise.train, recipe.batch_size)
    training = step_seconds(
        FineTuning(model, workers, exercise, recipe),
        recipe.weight_optimizer(model, workers),
        recipe.phase('fine-tuning', steps),
    )
    tested = {**exercise.heldout, **exercise.test}
    tokens = sum(
        batch.input_ids.size * (recipe.epochs if name in exercise.heldout else 1)
        for name, features in tested.items()
        for batch in evaluation_batches(features, tokens=recipe.evaluation_tokens)
    )
    batch = next(evaluation_batches(next(iter(exercise.heldout.values())), tokens=recipe.evaluation_tokens))
    evaluation = tokens * _forward_seconds(model, batch, workers) / batch.input_ids.size / workers.size
    return len(recipe.with_rates()) * (steps * training + evaluation)


def _forward_seconds(model: OptBERTModel, batch: TaskBatch, workers: Workers) -> float:
    """The second forward pass of a batch; the first one lays out memory."""
    inputs = feed_of(batch, TOKEN_INPUTS, ctx=workers.context()).values()
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        with autograd.predict_mode():
            model(*inputs).wait_to_read()
    return time.perf_counter() - began


def _open_recipes(plan: Plan) -> list[TrainingRecipe]:
    """Of the rows that are still to be made."""
    return [plan.row_recipe(row) for row in plan.chosen() if not plan.row_done(row)]


def measure(plan: Plan, workers: Workers) -> StepTimes:
    """Time what is still to be run; what is not is 0."""
    rows, recipes = plan.chosen(), _open_recipes(plan)
    pruned = [recipe for recipe in recipes if isinstance(recipe, PruneRecipe)]
    gates = (
        gate_seconds(plan.base, plan.pruning, workers)
        if any(recipe.trains_gates for recipe in pruned)
        else 0.0
    )
    recovery, evaluation = weight_seconds(plan.base, plan.pruning, workers) if recipes else (0.0, 0.0)
    learning = [recipe for recipe in pruned if recipe.teacher is not None]
    taught = taught_seconds(plan.base, learning[0], workers) if learning else 0.0
    built = [recipe for recipe in recipes if isinstance(recipe, PretrainRecipe)]
    scratch = weight_seconds(plan.base, built[0], workers)[0] if built else 0.0
    open_tasks = [task for task in plan.tasks if any(not plan.cell(row, task).exists() for row in rows)]
    return StepTimes(
        gates,
        recovery,
        taught,
        scratch,
        evaluation,
        {task: tuning_seconds(plan.base, plan.cell_recipe(rows[0], task), workers) for task in open_tasks},
    )


def _making_seconds(plan: Plan, row: Row, times: StepTimes) -> float:
    """Making a row that is pruned or trained from scratch; without the repairs of one that is pruned."""
    recipe = plan.row_recipe(row)
    if not isinstance(recipe, PruneRecipe):
        evaluations = 1 + ((plan.scratch_steps or 0) - 1) // (recipe.evaluate_every or math.inf)
        return (plan.scratch_steps or 0) * times.scratch + evaluations * times.evaluation
    steps = recipe.recovery_steps or 0
    alpha = (1 + recipe.split_half) * gate_steps(recipe) * times.gates * recipe.trains_gates
    recovery = steps * (times.recovery if recipe.teacher is None else times.taught)
    # before, after the cut, reconstructed and recovered; and on the way
    evaluations = 3 + recipe.reconstruct + max(0, steps - 1) // (recipe.evaluate_every or math.inf)
    return len(recipe.shares()) * (alpha + recovery + evaluations * times.evaluation)


def estimate(plan: Plan, times: StepTimes) -> list[dict[str, Any]]:
    """Seconds by row, as the base would take them: what is cut is faster, and an interrupted run counts as
    whole.

    Returns
    -------
    list of dict
        ``row``, ``how``, ``making`` and, by task, ``tuning``; both 0 for what is done.
    """
    rows = []
    for row in plan.chosen():
        making = 0.0 if plan.row_done(row) else _making_seconds(plan, row, times)
        rows.append(
            {
                'row': row.name,
                'how': plan.how(row),
                'making': making,
                'tuning': {
                    task: 0.0
                    if plan.cell(row, task).exists()
                    else len(plan.recipe.seeds) * times.tuning[task]
                    for task in plan.tasks
                },
            }
        )
    return rows


def readable(plan: Plan, times: StepTimes) -> str:
    """The estimate as a Markdown table, with what cannot be reached."""
    rows = estimate(plan, times)
    heads = ['row', 'how it is made', 'made in', *plan.tasks, 'in all']
    cells = []
    for row in rows:
        seconds = [row['making'], *row['tuning'].values()]
        cells.append([row['row'], row['how'], *map(short_time, (*seconds, sum(seconds)))])
    lines = [
        f'Table {plan.table.number}: {len(rows)} rows, {len(plan.tasks)} tasks, {len(plan.recipe.seeds)} '
        f'seeds',
        '',
        markdown_table(heads, cells),
    ]
    whole = sum(row['making'] + sum(row['tuning'].values()) for row in rows)
    lines += [''] + [f'not reachable: {row.name}: {row.unreachable}' for row in plan.rows if row.unreachable]
    measured = [
        f'{1e3 * seconds:.0f} ms a step of {what}'
        for what, seconds in (
            ('gates', times.gates),
            ('recovery', times.recovery),
            ('recovery with a teacher', times.taught),
            ('training from scratch', times.scratch),
        )
        if seconds
    ]
    lines += [f'measured on the base: {", ".join(measured)}'] if measured else []
    pruned = [recipe for recipe in _open_recipes(plan) if isinstance(recipe, PruneRecipe)]
    repairs = [
        name for name in ('rotate_heads', 'reconstruct') if any(getattr(recipe, name) for recipe in pruned)
    ]
    lines += [f'not counted: {" and ".join(repairs)}'] if repairs else []
    lines += ['an interrupted run counts as whole', f'in all {short_time(whole)}']
    return '\n'.join(lines)


def short_time(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in (('d', 86400), ('h', 3600), ('min', 60)):
        if seconds >= 2 * size:
            return f'{seconds / size:.1f} {unit}'
    return f'{seconds:.0f} s' if seconds else '–'
