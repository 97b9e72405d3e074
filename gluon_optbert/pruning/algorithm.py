"""Algorithm 1 of optBERT: train the gates, zero the smallest, fold, cut, recover, and again.

RUN_DIR/recipe.yaml  origin.json  metrics.jsonl  rounds.json  pruning.md
RUN_DIR/inputs.npz               for a task: inputs of held-out instances, on which verify compares
RUN_DIR/times.json               for a task: what every round's network takes
RUN_DIR/latency.json             predicted and measured, with the objective latency
RUN_DIR/round-0/model            the network that is pruned
RUN_DIR/round-N/rotated          with --rotate-heads: the network of the round before, its heads rotated
RUN_DIR/round-N/alphas.npz       the trained gates
RUN_DIR/round-N/scores.npz       by which the units are ranked
RUN_DIR/round-N/gates.json       whether they have settled, and how certain their ranking is
RUN_DIR/round-N/embeddings.json  with --keep-embeddings: how far embeddings stay the same
RUN_DIR/round-N/selection.json   which units stayed and went, at which alpha and price
RUN_DIR/round-N/shrunk           the model directory after the cut
RUN_DIR/round-N/reconstructed    with --reconstruct: and after the layers were fitted
RUN_DIR/round-N/model            and after recovery
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import List, Optional, Type

import numpy as np

from ..architecture.cost import CostModel, LatencyCost
from ..cutting.selection import read_selection
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.files import running, write_file
from ..runs.machine import note_origin
from ..runs.run_directory import RunDirectory, State
from ..training.distributed import Workers
from ..training.loop import Reporter
from .embeddings import embeddings_section
from .goal import Goal
from .job import Job
from .latency import check_predictions, time_rounds, times_section
from .one_round import run_round
from .pretraining_goal import PretrainingGoal
from .ranking import check_ranking, read_ranking, take_ranking
from .recipe import PruneRecipe, PruningRecipe, unreachable
from .report import Round, read_gates, readable, summary, vocabulary_section

INPUTS_KEPT = 64  # held-out instances of a task, for verify


def _open(recipe: PruningRecipe, goal_type: Type[Goal], workers: Workers) -> Goal:
    """Check everything before the first step, and lay the run directory out; the goal of the run."""
    recipe.check_workers(workers)
    directory = RunDirectory(recipe)
    if directory.state is State.BEGUN:
        return goal_type(recipe, read_model(recipe.output / 'round-0' / 'model'), workers)
    start, beside = goal_type.read(recipe)
    goal = goal_type(recipe, start, workers)
    problem = unreachable(recipe, start.architecture, goal.whole)
    if problem:
        raise ValueError(problem)
    goal.round_steps()
    if recipe.ranking is not None:
        check_ranking(recipe, start)

    def write(staged: Path) -> None:
        (staged / 'metrics.jsonl').write_text('', encoding='utf-8')
        (staged / 'round-0').mkdir()
        if recipe.ranking is not None:
            take_ranking(recipe, staged / 'round-1')
        write_model(staged / 'round-0' / 'model', start, extra=beside)
        inputs = goal.sample_inputs(INPUTS_KEPT)
        if inputs is not None:
            np.savez(staged / 'inputs.npz', **inputs)

    directory.lay_out(workers, write)
    return goal


def _report(goal: Goal, cost: CostModel, rows: List[Round]) -> None:
    """Leave rounds.json and pruning.md, and with the objective latency what this machine takes."""
    recipe = goal.recipe
    write_file(
        recipe.output / 'rounds.json', (json.dumps([row.to_dict() for row in rows], indent=1) + '\n').encode()
    )
    architectures = [row.architecture for row in rows]
    predicts = cost if isinstance(cost, LatencyCost) else None
    times = time_rounds(architectures, recipe.length, predicts) if recipe.timed else None
    latency = None
    if predicts is not None:
        latency = check_predictions(predicts, architectures, times)
        write_file(recipe.output / 'latency.json', (json.dumps(latency, indent=1) + '\n').encode())
    gates = read_gates(recipe.output, len(rows) - 1)
    further = vocabulary_section(goal.start, goal.whole)
    further += embeddings_section(recipe.output, len(rows) - 1)
    if times is not None:
        write_file(recipe.output / 'times.json', (json.dumps(times, indent=1) + '\n').encode())
        further += times_section(times)
    write_file(recipe.output / 'pruning.md', readable(rows, recipe, latency, gates, further).encode())


def prune(recipe: PruneRecipe, *, workers: Optional[Workers] = None) -> List[Round]:
    """Run Algorithm 1, going on where an interrupted run stopped.

    Parameters
    ----------
    recipe : PruneRecipe
    workers : Workers, optional
        The workers of this job; by default those that the environment names.

    Returns
    -------
    list of Round
        The network that went in, and every round.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step; or another process is writing the output.
    TrainingDiverged, Interrupted
        From `fit`.
    """
    return prune_for(PretrainingGoal, recipe, workers or Workers())


def prune_for(goal_type: Type[Goal], recipe: PruningRecipe, workers: Workers) -> List[Round]:
    """`prune` for any goal; the recipe is checked and suits the goal."""
    with running(recipe.output, workers):
        return _prune(recipe, goal_type, workers)


def _finished(directory: Path) -> SavedModel:
    """The network of a round that is done.

    Raises
    ------
    ValueError, FileNotFoundError
        If a file of the round is damaged or missing, without which it cannot be verified.
    """
    read_ranking(directory)
    read_selection(directory / 'selection.json')
    return read_model(directory / 'model')


def _prune(recipe: PruningRecipe, goal_type: Type[Goal], workers: Workers) -> List[Round]:
    """`prune_for`, while no other process writes the output."""
    goal = _open(recipe, goal_type, workers)
    current, cost = goal.start, recipe.cost()
    if workers.first and not (recipe.output / 'rounds.json').exists():
        note_origin(recipe.output, workers=workers.size)
    job = Job(
        recipe,
        workers,
        goal,
        cost,
        cost.cost(goal.whole),
        goal.round_steps(),
        Reporter(recipe.output / 'metrics.jsonl', workers),
    )
    for number in range(1, len(recipe.shares()) + 1):
        directory = job.directory(number)
        current = _finished(directory) if (directory / 'model').is_dir() else run_round(job, current, number)
        if workers.first:
            for states in directory.glob('*-states*'):
                shutil.rmtree(states, ignore_errors=True)
    rows = summary(recipe.output)
    if workers.first:
        _report(goal, cost, rows)
    workers.barrier('finished')
    return rows
