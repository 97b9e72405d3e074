"""Estimate of the time of a table or a study: a few steps on the base, multiplied out, and set right by the
fine-tuning that is done.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
from mxnet import autograd

from ..architecture.parameters import gate_name
from ..finetuning.objective import Exercise, FineTuning, start_parameters
from ..finetuning.recipe import FineTuneRecipe
from ..finetuning.recipes import SquadRecipe, prepare_glue, prepare_squad
from ..finetuning.result import FineTuningResult
from ..network.inputs import TOKEN_INPUTS
from ..network.model import build
from ..network.running import feed_of
from ..network.saved_model import SavedModel
from ..pruning.objectives import PretrainingObjective
from ..pruning.penalty import PENALTIES
from ..pruning.recipe import PruneRecipe
from ..pruning.run import MODEL
from ..runs.display import duration, markdown_table
from ..runs.progress import RESULT
from ..tasks.features import evaluation_batches, steps_per_epoch
from ..training.distillation import Match
from ..training.distributed import Workers
from ..training.held_out import losses_of
from ..training.loop import backward
from ..training.objective import Objective, Phase
from ..training.optimization import Optimizer
from ..training.pretrain import Pretraining
from ..training.recipe import PretrainRecipe, TrainingRecipe, open_shards
from .plan import Network, Plan, gate_steps
from .rows import size_name

UNTIMED, TIMED = 2, 4  # steps


def step_seconds(objective: Objective, optimizer: Optimizer, phase: Phase) -> float:
    """The mean time of a training step, after some that are not counted."""
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
    objective, phase = PretrainingObjective(recipe, base, workers), recipe.phase('gates', UNTIMED + TIMED)
    gated = {'gated': PENALTIES[recipe.penalty].gate, 'h_gate': recipe.h_gate}
    model = objective.build(base, **gated, **objective.gate_settings)
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    gates = {gate_name(key): parameter for key, parameter in model.gates.parameters.items()}
    return step_seconds(
        objective.gates(model, phase, Match.whole(base.architecture)),
        Optimizer(gates, recipe.alpha_optimizer, workers=workers),
        phase,
    )


def recovery_seconds(base: SavedModel, recipe: PruneRecipe, workers: Workers) -> float:
    """A step of recovery, with the teacher of a recipe if it has one."""
    objective, phase = PretrainingObjective(recipe, base, workers), recipe.phase('recovery', UNTIMED + TIMED)
    model = objective.build(base, **objective.recovery_settings)
    return step_seconds(
        objective.recovery(model, phase, Match.whole(base.architecture)),
        recipe.weight_optimizer(model, workers, objective.recovered_parameters(model)),
        phase,
    )


def scratch_seconds(base: SavedModel, recipe: PretrainRecipe, workers: Workers) -> float:
    """A step of pre-training from scratch."""
    model = build(base.architecture, base.parameters, recipe.network_settings(), ctx=workers.context())
    return step_seconds(
        Pretraining(model, workers, open_shards(recipe.shards)['train']),
        recipe.weight_optimizer(model, workers),
        recipe.phase('pretraining', UNTIMED + TIMED),
    )


def evaluation_seconds(base: SavedModel, recipe: TrainingRecipe, workers: Workers) -> float:
    """A held-out evaluation of pre-training."""
    heldout = open_shards(recipe.shards)['heldout']
    model = build(base.architecture, base.parameters, recipe.network_settings(), ctx=workers.context())
    size, whole = recipe.batch_size, min(recipe.evaluation_limit, heldout.instances)
    losses_of(model, heldout, workers, batch_size=size, limit=size)  # which lays out memory
    began = time.perf_counter()
    measured = losses_of(model, heldout, workers, batch_size=size, limit=size).measured
    return (time.perf_counter() - began) * whole / max(1, measured.instances)


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
    inputs, began = feed_of(batch, TOKEN_INPUTS, ctx=workers.context()).values(), 0.0
    for _ in range(2):  # the first pass lays out memory
        began = time.perf_counter()
        with autograd.predict_mode():
            model(*inputs).wait_to_read()
    forward = time.perf_counter() - began
    evaluation = tokens * forward / batch.input_ids.size / workers.size
    return len(recipe.with_rates()) * (steps * training + evaluation)


# what is measured once on the base, as people read it; a task beside these by its name
MEASURES: Mapping[str, Callable[[SavedModel, Any, Workers], float]] = {
    'gates': gate_seconds,
    'recovery': recovery_seconds,
    'recovery with a teacher': recovery_seconds,
    'training from scratch': scratch_seconds,
    'an evaluation': evaluation_seconds,
}


class Times:
    """Measured times in seconds, by name of `MEASURES`, and of fine-tuning with one seed by task; what is not
    asked for is not measured.
    """

    def __init__(self, base: SavedModel, workers: Workers):
        self._base, self._workers = base, workers
        self.seconds: dict[str, float] = {}

    def of(self, name: str, recipe: TrainingRecipe | FineTuneRecipe) -> float:
        """A time, measured by the first recipe that asks for it."""
        if name not in self.seconds:
            measure = MEASURES.get(name, tuning_seconds)
            self.seconds[name] = measure(self._base, recipe, self._workers)
        return self.seconds[name]


def _round_seconds(recipe: PruneRecipe, times: Times) -> float:
    """A round of pruning, without its repairs."""
    steps = recipe.recovery_steps or 0
    kind = 'recovery' if recipe.teacher is None else 'recovery with a teacher'
    seconds = steps * times.of(kind, recipe) if steps else 0.0
    if recipe.trains_gates:
        seconds += (1 + recipe.split_half) * gate_steps(recipe) * times.of('gates', recipe)
    # before, after the cut, reconstructed and recovered; and on the way
    evaluations = 3 + recipe.reconstruct + max(0, steps - 1) // (recipe.evaluate_every or math.inf)
    return seconds + evaluations * times.of('an evaluation', recipe)


@dataclasses.dataclass(frozen=True)
class Piece:
    """The seconds of making a network, and of fine-tuning it by task; 0 for what is done."""

    network: Network
    making: float
    tuning: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """In all."""
        return self.making + sum(self.tuning.values())


def shares_of_base(plan: Plan) -> dict[tuple[float, str], float]:
    """How long the networks of a size took to be fine-tuned on a task, as a share of the base's time: the
    median of those that were on the base's machine, by size and task of a study.
    """
    of_base: dict[str, tuple[float, Any]] = {}
    shares: dict[tuple[float, str], list[float]] = {}
    for network in plan.chosen() if plan.file else ():  # the base first
        for task in plan.tasks_of(network):
            path = plan.cell(network, task) / RESULT
            if not path.is_file():
                continue
            result = FineTuningResult.read(path)
            seconds = statistics.mean(run.seconds for run in result.runs)
            machine = {**result.origin.get('machine', {}), 'system': None}
            if network.size is None:
                of_base[task] = seconds, machine
            elif task in of_base and of_base[task][1] == machine:
                shares.setdefault((network.size, task), []).append(seconds / of_base[task][0])
    return {key: statistics.median(found) for key, found in shares.items()}


def estimate(
    plan: Plan, times: Times, shares: Mapping[tuple[float, str], float] | None = None
) -> list[Piece]:
    """Seconds by network, as the base would take them, or by `shares_of_base`, which may be given: what is
    cut is faster, and an interrupted round, training or fine-tuning counts as whole.
    """
    pieces, counted, base = [], set[tuple[str, int]](), plan.chosen()[0]
    shares = shares_of_base(plan) if shares is None else shares
    for network in plan.chosen():
        making = 0.0
        if not plan.done(network) and not plan.made(network):
            recipe = plan.making(network)
            if isinstance(recipe, PruneRecipe):
                run, numbers = plan.directory(network), range(1, network.round + 1)
                made = [number for number in numbers if (run / f'round-{number}' / MODEL).is_dir()]
                left = numbers[max(made, default=0) :]  # behind the newest network, as `prune` goes on
                rounds = {(network.run, number) for number in left} - counted
                counted |= rounds
                making = len(rounds) * _round_seconds(recipe, times)
            else:
                evaluations = 1 + (recipe.steps - 1) // (recipe.evaluate_every or math.inf)
                making = recipe.steps * times.of('training from scratch', recipe)
                making += evaluations * times.of('an evaluation', recipe)
        tuning = dict.fromkeys(plan.tasks_of(network), 0.0)
        for task in tuning:
            if not plan.cell(network, task).exists():
                recipe = plan.tuning(base, task)
                seconds = times.of(task, recipe) * shares.get((network.size or 0.0, task), 1.0)
                tuning[task] = len(recipe.seeds) * seconds
        pieces.append(Piece(network, making, tuning))
    return pieces


def readable(plan: Plan, times: Times) -> str:
    """The estimate by row, or by size and seed of a study, as a Markdown table; with what is out of reach."""

    def said(seconds: float) -> str:
        return duration(seconds) if seconds else '–'

    shares = shares_of_base(plan)
    pieces = estimate(plan, times, shares)
    left = [one for one in pieces if not plan.done(one.network)]
    groups: dict[tuple[str, ...], list[Piece]] = {}
    for one in left if plan.file else pieces:
        network = one.network
        size = size_name(network.size) if network.size else network.row.name
        key = (size, str(network.seed)) if plan.file else (network.row.name, plan.how(network.row))
        groups.setdefault(key, []).append(one)
    rows = []
    for key, group in groups.items():
        tuning = [sum(one.tuning.get(task, 0.0) for one in group) for task in plan.tasks]
        seconds = [sum(one.making for one in group), *tuning, sum(one.seconds for one in group)]
        if plan.file:
            key = (*key, str(len(group)))
            seconds.append(max(one.seconds for one in group))
        rows.append([*key, *map(said, seconds)])
    if plan.file:
        head = ['size', 'seed', 'networks', 'made in', *plan.tasks, 'in all', 'longest piece']
        lines = []
    else:
        head = ['row', 'how it is made', 'made in', *plan.tasks, 'in all']
        counts = f'{len(rows)} rows, {len(plan.tasks)} tasks, {len(plan.recipe.seeds)} seeds'
        lines = [f'Table {plan.recipe.table}: {counts}', '']
    lines += [markdown_table(head, rows), '']
    unreachable = {
        one.row.name + (f' at {size_name(one.size)}' if one.size else ''): one.row.unreachable
        for one in plan.networks
        if one.row.unreachable
    }
    lines += [f'not reachable: {name}: {reason}' for name, reason in unreachable.items()]
    measured = [
        f'{1e3 * times.seconds[name]:.0f} ms {name if name.startswith("an ") else f"a step of {name}"}'
        for name in MEASURES
        if name in times.seconds
    ]
    lines += [f'measured on the base: {", ".join(measured)}'] if measured else []
    if shares:
        parts = [f'{size_name(size)} {task} {share:.2f}' for (size, task), share in shares.items()]
        lines.append(f"fine-tuning in parts of the base's time, by what is done: {', '.join(parts)}")
    settings = [one.network.row.maker.settings for one in left if one.making]
    repairs = [name for name in ('rotate_heads', 'reconstruct') if any(one.get(name) for one in settings)]
    lines += [f'not counted: {" and ".join(repairs)}'] if repairs else []
    lines += ['what is interrupted counts as whole, of a ladder the round that is']
    lines += [f'{len(pieces) - len(left)} networks are done, {len(left)} are left']
    lines += [f'in all {said(sum(one.seconds for one in pieces))}']
    return '\n'.join(lines)
