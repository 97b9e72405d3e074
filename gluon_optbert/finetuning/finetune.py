"""Fine-tuning: a model directory and a task in, a model directory with the task's head and a result file out.

A run of several seeds leaves one directory: ``recipe.yaml``, ``origin.json``, ``result.json`` and a model
directory for each seed. Where the learning rate is chosen among several, they are those of the chosen one.
What is special about a data set is an `Exercise`, which `recipes` makes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.cost import ParameterCost
from ..cutting.shrink import without_gates
from ..network.model import build, read_parameters
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.display import doing
from ..runs.files import check_place, refuse_existing, running, sha256, write_file
from ..runs.machine import ORIGIN, commits_of, note_origin
from ..runs.progress import RESULT, Progress
from ..runs.recipe import to_dict
from ..runs.run_directory import RunDirectory
from ..tasks.features import steps_per_epoch
from ..training.distributed import Workers
from ..training.loop import Reporter, train
from ..training.states import States
from .distillation import TaughtFineTuning, read_teacher, states_for
from .objective import Exercise, FineTuning, in_labels_of, start_parameters
from .recipe import FineTuneRecipe, copy_path
from .result import FineTuningResult, RateRuns, SeedRun, best_rate


def _run_seed(
    seed: int,
    saved: SavedModel,
    exercise: Exercise,
    recipe: FineTuneRecipe,
    work: Path,
    workers: Workers,
    taught: Mapping[str, Any],
) -> None:
    """Fine-tune with one seed, and write the network of the kept epoch; `taught` has the arguments of
    `TaughtFineTuning` beside the phase, and nothing without a teacher.
    """
    model = build(
        saved.architecture,
        start_parameters(saved, exercise.head, seed=seed),
        recipe.network_settings(head=exercise.head),
        ctx=workers.context(),
        **(states_for(recipe.teaching()) if taught else {}),
    )
    optimizer = recipe.weight_optimizer(model, workers)
    per_epoch = steps_per_epoch(exercise.train, recipe.batch_size)
    states = States(work / f'seed-{seed}.states', recipe.keep)
    runs = [(rate, one) for rate in recipe.learning_rates or (recipe.learning_rate,) for one in recipe.seeds]
    number = f'({runs.index((recipe.learning_rate, seed)) + 1}/{len(runs)})'
    rate = f'learning rate {recipe.learning_rate:g}, ' if recipe.learning_rates else ''
    phase = recipe.phase(
        exercise.name,
        recipe.epochs * per_epoch,
        seed=seed,
        evaluate_every=per_epoch,
        notes={'seed': seed},
        place=f'{rate}seed {seed} {number}',
    )
    common = model, workers, exercise, recipe
    objective = TaughtFineTuning(*common, **taught, phase=phase) if taught else FineTuning(*common)
    progress = train(
        objective,
        optimizer,
        recipe.schedule(phase.steps),
        phase,
        reporter=Reporter(work / f'seed-{seed}.jsonl', workers),
        states=states.directory,
    )
    kept = phase.steps if progress.best_step is None else progress.best_step
    seconds = objective.seconds()
    if kept != phase.steps:
        states.load(kept, optimizer)
        objective.heldout_scores = {}  # they were another network's
    # There are no held-out scores either where the last step was done before resuming.
    heldout: Mapping[str, np.ndarray] = objective.heldout_scores or objective.scores(exercise.heldout)
    marks = exercise.marks(heldout)
    epochs = progress.epochs or ()
    chosen = next(epoch for epoch in epochs if epoch.step == kept)
    record = SeedRun(seed, epochs, chosen.epoch, chosen.scores, seconds, marks)
    scores = {**heldout, **objective.scores(exercise.test)}
    if workers.first:
        write_model(
            work / f'seed-{seed}',
            SavedModel(
                saved.architecture,
                read_parameters(objective.model),
                saved.vocabulary,
                to_dict(recipe),
                Progress.from_dict(record.to_dict()),
                head=exercise.head,
            ),
            extra={'metrics.jsonl': (work / f'seed-{seed}.jsonl').read_bytes(), **exercise.files(scores)},
        )
    workers.barrier('seed')


def _place(work: Path, recipe: FineTuneRecipe) -> Path:
    """The directory of the runs with the recipe's learning rate, which may be one of several."""
    return work / f'rate-{recipe.learning_rate!r}' if recipe.learning_rates else work


def _result(recipe: FineTuneRecipe, saved: SavedModel, exercise: Exercise, work: Path) -> FineTuningResult:
    """The result of all learning rates and seeds, which are finished."""

    def run(one: FineTuneRecipe, seed: int) -> SeedRun:
        return SeedRun.from_dict(read_model(_place(work, one) / f'seed-{seed}').progress.to_dict())

    tried = tuple(
        RateRuns(one.learning_rate, tuple(run(one, seed) for seed in one.seeds))
        for one in recipe.with_rates()
    )
    origin, commits = json.loads((work / ORIGIN).read_text(encoding='utf-8'))[-1], commits_of(work)
    chosen = best_rate(tried, exercise.decisive)
    return FineTuningResult(
        task=exercise.name,
        metric=exercise.decisive,
        model_sha256=sha256(recipe.model / 'model.params'),
        parameters=int(ParameterCost().cost(saved.architecture)),
        architecture=saved.architecture.to_dict(),
        samples=dict(exercise.samples),
        runs=chosen.runs,
        recipe={**to_dict(recipe), 'learning_rate': chosen.learning_rate},
        origin={**origin, **({'commits': commits} if len(commits) > 1 else {})},
        majority=dict(exercise.majority),
        tried=tried if recipe.learning_rates else (),
    )


def _keep(result: FineTuningResult, recipe: FineTuneRecipe, work: Path) -> None:
    """Of the networks of several learning rates, keep those of the chosen one; a killed run does the rest
    later.
    """
    for one in recipe.with_rates() if recipe.learning_rates else ():
        place = _place(work, one)
        for seed in recipe.seeds if one.learning_rate == result.recipe['learning_rate'] else ():
            if (place / f'seed-{seed}').exists():
                os.rename(place / f'seed-{seed}', work / f'seed-{seed}')
        shutil.rmtree(place, ignore_errors=True)


def _copy(result: FineTuningResult, recipe: FineTuneRecipe, workers: Workers) -> None:
    """Leave the copy of the result file that was asked for, unless it is there already; FileExistsError if
    something else is.
    """
    path = copy_path(recipe)
    if path is None:
        return
    if not (path.is_file() and path.read_bytes() == result.to_json()):
        refuse_existing(path, remedy='give another --results')
    workers.barrier('compared')  # all have, before one writes it
    if workers.first and not path.exists():
        write_file(path, result.to_json())


def finetune(
    recipe: FineTuneRecipe, prepare: Callable[..., Exercise], *, workers: Workers
) -> FineTuningResult:
    """Fine-tune a model directory with every seed of the recipe; `prepare` makes the data set ready for the
    recipe, the model without gates, and ``workers``.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step; or another process is writing the output.
    TrainingDiverged, Interrupted
        From `train`.
    """
    recipe.check_workers(workers)
    with running(recipe.output, workers):
        directory = RunDirectory(
            recipe, read=lambda output: FineTuningResult.read(output / RESULT), may_change=('results',)
        )
        if directory.result is not None:
            _copy(directory.result, recipe, workers)
            return directory.result
        work, copy = directory.path, copy_path(recipe)
        if copy is not None:
            check_place(copy, remedy='give another --results')
            other = '--output or --results' if directory.new else '--results'
            refuse_existing(copy, remedy=f'give another {other}')
        saved = without_gates(read_model(recipe.model))
        with doing('reading the task', quiet=not workers.first):
            exercise = prepare(recipe, saved, workers=workers)
            saved = in_labels_of(saved, exercise.head)  # which is said once, and not with every seed
            taught = {} if recipe.teacher is None else read_teacher(recipe, saved, exercise, workers)
        start_parameters(saved, exercise.head, seed=0)  # raises if the head is another's
        networks = len(recipe.seeds) * len(recipe.with_rates())
        directory.lay_out(workers, needed=networks * saved.nbytes)
        done = (work / RESULT).exists()
        if workers.first and not done:
            note_origin(work, workers=workers.size)
        workers.barrier('looked')  # all have, before one writes it
        if not done:
            for one in recipe.with_rates():
                place = _place(work, one)
                if workers.first:
                    place.mkdir(exist_ok=True)
                workers.barrier('begun')
                for seed in recipe.seeds:
                    if not (place / f'seed-{seed}').exists():
                        _run_seed(seed, saved, exercise, one, place, workers, taught)
                    if workers.first:  # also what a run left that was killed just here
                        shutil.rmtree(place / f'seed-{seed}.states', ignore_errors=True)
                        (place / f'seed-{seed}.jsonl').unlink(missing_ok=True)
        result = FineTuningResult.read(work / RESULT) if done else _result(recipe, saved, exercise, work)
        workers.barrier('read')  # all have, before one moves it
        if workers.first:
            write_file(work / RESULT, result.to_json())
            _keep(result, recipe, work)
            os.rename(work, recipe.output)
        _copy(result, recipe, workers)
        workers.barrier('written')
        return result
