"""One round of Algorithm 1: train the gates, select, fold, cut, repair, recover."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any, Dict, Mapping, Optional, Tuple

import numpy as np

from ..architecture.cost import ParameterCost
from ..architecture.parameters import Alphas
from ..cutting.selection import Selection, read_selection
from ..cutting.shrink import shrink
from ..network.saved_model import SavedModel, read_model
from ..runs.files import write_file
from ..runs.machine import ORIGIN
from ..runs.progress import CUT, GATES, RECOVERY, Measured, Progress
from ..training.loop import Reporter
from .embeddings import write_embeddings
from .gate_training import GateSettings, train_alphas
from .job import Job
from .methods import METHODS
from .ranking import ROTATED, SCORES, read_ranking, write_ranking
from .reconstruct import TOKENS_PER_INPUT, reconstruct, tokens_wanted
from .recovery import fit_is_worse, recover
from .report import Round, explain, how_to_tell, unclear, unclear_below
from .rotate import rotated
from .watch import Watch

LOG = logging.getLogger(__name__)
STAGES = (ROTATED, 'shrunk', 'reconstructed', 'model')  # the model directories of a round


def _train_gates(job: Job, current: SavedModel, number: int) -> Tuple[Alphas, Alphas]:
    """`train_alphas` with the settings of the recipe; leaves gates.json."""
    watch = Watch(lambda scores: _select(job, current, scores, number), job.recipe.settling())
    alphas, scores = _gates(job, current, number, watch)
    selection = _select(job, current, scores, number)
    halves = _halves(job, current, number, watch.steps // 2) if watch.steps > 1 else None
    record = watch.record(selection, prune=job.recipe.prune, halves=halves)
    if job.workers.first:
        text = json.dumps({'round': number, **record}, indent=1) + '\n'
        write_file(job.directory(number) / GATES, text.encode())
    return alphas, scores


def _halves(job: Job, current: SavedModel, number: int, steps: int) -> Optional[Tuple[Alphas, Alphas]]:
    """The scores of gates that are trained anew on either half of a round's batches, if the recipe wants
    them; their metrics are shown and not written.
    """
    if not job.recipe.split_half:
        return None
    one, other = (_gates(job, current, number, half=half, steps=steps)[1] for half in (1, 2))
    return one, other


def _gates(
    job: Job,
    current: SavedModel,
    number: int,
    watch: Optional[Watch] = None,
    *,
    half: int = 0,
    steps: int = 0,
) -> Tuple[Alphas, Alphas]:
    """`train_alphas` with the settings of the recipe: on all batches of a round, or on the first or second
    half of them, so many steps each.
    """
    recipe, notes = job.recipe, {'round': number, 'parameters': ParameterCost().cost(current.architecture)}
    phase = job.phase('gates', number, evaluate_every=0, notes=notes)
    if half:
        first = phase.first_batch + (half - 1) * steps
        phase = dataclasses.replace(phase, name=f'gates of half {half}', first_batch=first, steps=steps)
    return train_alphas(
        current,
        lambda model: job.goal.gates(model, phase, job.match(number - 1)),
        phase,
        GateSettings(
            learning_rate=recipe.alpha_learning_rate,
            penalty=recipe.penalty,
            gamma=recipe.gamma,
            unweighted=recipe.unweighted,
            prune=recipe.prune,
            optimizer=recipe.alpha_optimizer,
            dropout=recipe.dropout,
            precision=recipe.precision,
            compression=recipe.compression,
            h_gate=recipe.h_gate,
        ),
        job.cost,
        network=job.goal.gate_settings,
        reporter=Reporter(None, job.workers) if half else job.reporter,
        workers=job.workers,
        states=job.directory(number) / (f'gate-states-{half}' if half else 'gate-states'),
        watch=watch,
    )


def _rank(job: Job, current: SavedModel, number: int) -> Tuple[Alphas, Alphas]:
    """Alpha to fold, and the scores that rank the units; leaves alphas.npz and scores.npz."""
    directory = job.directory(number)
    if not (directory / SCORES).exists():
        alphas, scores = _made_ranking(job, current, number)
        if job.workers.first:
            write_ranking(directory, alphas, scores, h_gate=job.recipe.h_gate)
    job.workers.barrier(f'ranked.{number}')  # also for a worker that finds the file of the first one
    return read_ranking(directory)


def _made_ranking(job: Job, current: SavedModel, number: int) -> Tuple[Alphas, Alphas]:
    """`_rank` by the method of the recipe."""
    score = METHODS[job.recipe.method].scores
    if score is None:
        return _train_gates(job, current, number)
    widths = current.architecture.widths()
    return {key: np.ones(width, dtype=np.float32) for key, width in widths.items()}, score(
        job.cut(current, number)
    )


def _select(job: Job, current: SavedModel, scores: Alphas, number: int) -> Selection:
    """The units that stay, by the method of the recipe."""
    return METHODS[job.recipe.method].select(job.cut(current, number), scores)


def _story(
    job: Job, current: SavedModel, scores: Alphas, selection: Selection, number: int
) -> Dict[str, Any]:
    """What selection.json says of a round."""
    recipe, architecture = job.recipe, current.architecture
    prices, cost = job.cost.prices(architecture), job.cost.cost(architecture)
    story = explain(selection, scores, prices, cost, number)
    if recipe.multiple_of > 1:
        cut = job.cut(current, number)
        cut = dataclasses.replace(cut, recipe=recipe.replace(multiple_of=1))
        plain = METHODS[recipe.method].select(cut, scores)
        story['multiple_of'] = {
            'units': recipe.multiple_of,
            'cost_below_plain_selection': plain.cost - selection.cost,
        }
    return story


def _rotated(job: Job, current: SavedModel, number: int) -> SavedModel:
    """The network whose gates a round trains: with rotated heads, if the recipe wants them."""
    if not job.recipe.rotate_heads:
        return current
    directory = job.directory(number) / ROTATED
    if not directory.is_dir():
        turned = rotated(current, job.text(TOKENS_PER_INPUT * current.architecture.h, number), job.workers)
        if job.workers.first:
            job.write(directory, turned, Progress(round=number, untrained=current.progress.untrained))
        job.workers.barrier(f'rotated.{number}')
    return read_model(directory)


def _reconstructed(job: Job, current: SavedModel, shrunk: SavedModel, number: int) -> SavedModel:
    """What the cut left, with its layers fitted to those before the cut, if the recipe wants it."""
    if not job.recipe.reconstruct:
        return shrunk
    directory = job.directory(number) / 'reconstructed'
    if not directory.is_dir():
        chosen = read_selection(job.directory(number) / 'selection.json')
        text = job.text(tokens_wanted(shrunk), number)
        repaired = reconstruct(current, shrunk, chosen, text, workers=job.workers)
        if job.workers.first:
            job.write(directory, repaired, Progress(round=number, untrained=shrunk.progress.untrained))
        job.workers.barrier(f'reconstructed.{number}')
    return read_model(directory)


def _cut(job: Job, current: SavedModel, number: int) -> None:
    """Rank the units of a round, select, fold and cut; leaves selection.json and the shrunk model."""
    directory = job.directory(number)
    before = job.goal.evaluate(current)
    alphas, scores = _rank(job, current, number)
    selection = _select(job, current, scores, number)
    story = _story(job, current, scores, selection, number)
    job.workers.agree(json.dumps(story, sort_keys=True), what=f'the selection of round {number}')
    if job.workers.first:
        h_gate = job.recipe.h_gate
        parameters, architecture = shrink(
            current.parameters, current.architecture, alphas, selection, head=current.head, h_gate=h_gate
        )
        write_file(directory / 'selection.json', (json.dumps(story, indent=1) + '\n').encode())
        shrunk = SavedModel(architecture, parameters, current.vocabulary, head=current.head)
        progress = Progress(round=number, before=before, untrained=current.progress.untrained)
        job.write(directory / 'shrunk', shrunk, progress)
    job.workers.barrier(f'cut.{number}')


def _difference_errors(
    job: Job, steps: Mapping[str, Tuple[Tuple[SavedModel, Optional[Measured]], ...]]
) -> Dict[str, float]:
    """The standard errors of what some steps changed, taken instance by instance, of those steps whose change
    may be chance by the errors of what was measured before and after.

    Parameters
    ----------
    steps : mapping of str to pairs of SavedModel and Measured
        The network before each step and after it, and what was measured of it.
    """
    errors = {
        name: job.goal.difference_error(one, other)
        for name, ((one, before), (other, after)) in steps.items()
        if unclear_below(before, after) is not None
    }
    return {name: error for name, error in errors.items() if error is not None}


def run_round(job: Job, current: SavedModel, number: int) -> SavedModel:
    """One round of Algorithm 1, as far as it has not been done; what comes out of it."""
    recipe, directory = job.recipe, job.directory(number)
    came = current.progress
    current = _rotated(job, current, number)
    if not (directory / 'shrunk').is_dir():
        _cut(job, current, number)
    shrunk = read_model(directory / 'shrunk')
    before = shrunk.progress.before
    after_cut = job.goal.evaluate(shrunk)
    repaired = _reconstructed(job, current, shrunk, number)
    after_reconstruction = job.goal.evaluate(repaired) if recipe.reconstruct else None
    start, of_start, started_from = repaired, after_reconstruction or after_cut, None
    if recipe.reconstruct and fit_is_worse(job, shrunk, repaired, (after_cut, after_reconstruction), number):
        start, of_start, started_from = shrunk, after_cut, CUT
    parameters, progress = recover(job, start, of_start, number)
    measured = {'before': before, 'after_cut': after_cut, 'after_reconstruction': after_reconstruction}
    progress = progress.updated(round=number, **measured, earlier_steps=came.trained_steps or None)
    progress = progress.updated(
        head_steps=came.head_steps, untrained=came.untrained, started_from=started_from
    )
    recovered = SavedModel(shrunk.architecture, parameters, shrunk.vocabulary, head=shrunk.head)
    steps = {
        CUT: ((current, before), (shrunk, after_cut)),
        RECOVERY: ((start, of_start), (recovered, progress.measured)),
    }
    progress = progress.updated(difference_errors=_difference_errors(job, steps) or None)
    if job.workers.first:
        origin = {ORIGIN: (recipe.output / ORIGIN).read_bytes()}
        if recipe.keep_embeddings or job.goal.reports_embeddings:
            repair = {'reconstructed': repaired} if recipe.reconstruct else {}
            write_embeddings(job, {'cut': shrunk, **repair, 'recovered': recovered}, number)
        job.write(directory / 'model', recovered, progress, extra=origin)
    job.workers.barrier(f'recovered.{number}')
    recovered = read_model(directory / 'model')
    if job.workers.first:
        row = Round.of(recovered, number)
        for sentence in unclear(row):
            LOG.warning('%s; to tell, %s', sentence, how_to_tell(row.recovered))
    return recovered
