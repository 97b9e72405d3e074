"""Algorithm 1 of optBERT: train the gates, zero the smallest, fold, cut, recover, and again.

RUN_DIR/recipe.yaml  origin.json  metrics.jsonl  rounds.json  pruning.md
RUN_DIR/inputs.npz               for a task: inputs of held-out instances, on which verify compares
RUN_DIR/times.json               for a task: what every round's network takes
RUN_DIR/latency.json             predicted and measured, with the objective latency
RUN_DIR/round-0/model            the network that is pruned
RUN_DIR/round-N/rotated          with --rotate-heads: the network of the round before, its heads rotated
RUN_DIR/round-N/alphas.npz       the trained gates
RUN_DIR/round-N/gradients.npz    with the method fisher: of every batch, from which scores are made
RUN_DIR/round-N/scores.npz       by which the units are ranked
RUN_DIR/round-N/gates.json       whether they have settled, and how certain their ranking is
RUN_DIR/round-N/embeddings.json  with --keep-embeddings: how far embeddings stay the same
RUN_DIR/round-N/selection.json   which units stayed and went, at which alpha and price
RUN_DIR/round-N/plan.json        with --minutes: the steps of recovery that were planned
RUN_DIR/round-N/shrunk           the model directory after the cut
RUN_DIR/round-N/reconstructed    with --reconstruct: and after the layers were fitted
RUN_DIR/round-N/model            and after recovery
RUN_DIR/round-N/forgotten.json   of a round whose networks were removed: what its network measured

What is there is done: a run that was interrupted goes on behind it."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.parameters import Alphas, check_alphas
from ..architecture.rounds import Round
from ..cutting.selection import Selection, packed_alphas, packed_arrays, read_alphas, read_selection
from ..cutting.shrink import shrink
from ..finetuning.distillation import SELECTION
from ..network.saved_model import WEIGHTS, SavedModel, read_model, write_model
from ..runs.display import doing
from ..runs.files import read_json, remove_directory, running, sha256, write_file, write_json
from ..runs.limits import read_npz
from ..runs.machine import ORIGIN, note_origin
from ..runs.progress import CUT, GATES, RECOVERY, Progress, TaskScores
from ..runs.run_directory import RunDirectory
from ..training.distributed import Workers
from ..training.loop import Reporter
from .doubts import doubts
from .gate_training import TrainedGates, train_alphas
from .methods import METHODS, Cut, relative
from .objectives import Known, PretrainingObjective, PruningObjective, compare_embeddings
from .ranking import ALPHAS, GRADIENTS, ROTATED, SCORES, check_ranking, take_ranking
from .recipe import PruneRecipe, PruningRecipe, unreachable
from .recovery import fit_is_worse, recover
from .repairs import TOKENS_TO_ROTATE, reconstruct, rotated, tokens_wanted
from .report import (
    EMBEDDINGS,
    FORGOTTEN,
    gates_record,
    how_to_tell,
    summary,
    unclear,
    unclear_below,
    write_report,
)
from .run import FITTED, MODEL, SHRUNK, STAGES, STATES, Run

LOG = logging.getLogger(__name__)
INPUTS_KEPT = 64  # held-out instances of a task, for verify


def prune(recipe: PruneRecipe, *, workers: Workers | None = None, until: int | None = None) -> list[Round]:
    """Run Algorithm 1 for pre-training, going on where an interrupted run stopped.

    Parameters
    ----------
    workers : Workers, optional
        The workers of this job; by default those that the environment names.
    until : int, optional
        The last round to run, from 1. The run is not finished then, and goes on when it is called again.

    Returns
    -------
    list of Round
        The network that went in, and every round.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step; or another process is writing the output.
    TrainingDiverged, Interrupted
        From the training.
    """
    return run_algorithm(PretrainingObjective, recipe, workers or Workers(), until)


def run_algorithm(
    kind: type[PruningObjective], recipe: PruningRecipe, workers: Workers, until: int | None = None
) -> list[Round]:
    """`prune` for any objective; the recipe is checked, and is one of the objective's."""
    if until is not None and until < 1:
        raise ValueError(f'until must be the number of a round, from 1, found {until}')
    with running(recipe.output, workers):
        with doing('reading the network and its data', quiet=not workers.first) as display:
            objective = _open(kind, recipe, workers, until)
            for line in objective.about_data():
                display.say(line)
        recipe, current = objective.recipe, objective.start
        if workers.first and not (recipe.output / 'rounds.json').exists():
            note_origin(recipe.output, workers=workers.size)
            for doubt in doubts(objective):
                LOG.warning('%s', doubt)
        cost, steps = recipe.cost(), objective.round_steps()
        reporter = Reporter(recipe.output / 'metrics.jsonl', workers)
        last = min(until or len(recipe.shares()), len(recipe.shares()))
        rounds = [Run(objective, number, cost, steps, reporter) for number in range(1, last + 1)]
        # `forget` leaves rounds without their networks; only those behind the newest one have to be made
        newest = max((run.number for run in rounds if (run.directory / MODEL).is_dir()), default=0)
        widths = objective.start.architecture
        for run in rounds:
            if run.number <= newest:
                read_ranking(run.directory, widths)  # without which the round could not be verified
                widths = read_selection(run.directory / SELECTION).architecture(widths)
                if run.number == newest:
                    current = read_model(run.directory / MODEL)
            else:
                current = run_round(run, current)
                row = Round.of(current, run.number)
                for sentence in unclear(row) if workers.first else ():
                    LOG.warning('%s; to tell, %s', sentence, how_to_tell(row.recovered))
            if workers.first:
                for states in run.directory.glob(STATES):
                    shutil.rmtree(states, ignore_errors=True)
        rows = summary(recipe.output)
        if workers.first and last == len(recipe.shares()):
            with doing('writing the report'):
                write_report(rows, recipe, cost, objective.start.architecture, objective.whole)
        workers.barrier('finished')
    return rows


def run_round(run: Run, came: SavedModel) -> SavedModel:
    """One round of Algorithm 1, as far as it has not been done; the network that comes out of it.

    What the paper's box says, and what does it here:

    - initialize the prunable parameters, multiply them with the network's, and train by equation (2): `rank`
    - set the smallest prunable parameters to zero, to the round's target: `select`
    - offset them into the network's parameters, and remove all-zero rows and columns: `fold_and_cut`
    - fine-tune by equation (1): `recover`
    """
    evaluate, number = run.objective.evaluate, run.number
    current, shrunk = rotate(run, came), run.read(SHRUNK)
    if shrunk is None:
        before = evaluate(came)  # which the rotated network computes, too
        if number == 1 and run.workers.first and isinstance(before, TaskScores) and before.poor:
            LOG.warning(
                '%s has %s, and one answer to all %.2f: it has learnt nothing of the task that pruning could '
                'keep; fine-tune it for longer first',
                *(run.recipe.model, before.described, before.majority),
            )
        alphas, scores = rank(run, current)  # trains the gates by equation (2)
        selection = select(run, current, scores)
        shrunk = fold_and_cut(run, current, alphas, selection)
        progress = Progress(round=number, before=before, untrained=came.progress.untrained)
        shrunk = run.write(SHRUNK, shrunk, progress)
    before, after_cut = shrunk.progress.before, evaluate(shrunk)

    start, of_start, started_from, fitted, after_fit = shrunk, after_cut, None, None, None
    if run.recipe.reconstruct:
        fitted = fit_layers(run, current, shrunk)
        after_fit = evaluate(fitted)
        if fit_is_worse(run, (shrunk, fitted), (after_cut, after_fit)):
            started_from = CUT
        else:
            start, of_start = fitted, after_fit or after_cut
    parameters, progress = recover(run, start, of_start)  # evaluates on its way

    made = {'trained': parameters is not start.parameters, 'fitted': start is fitted}
    head = run.objective.head_of(shrunk.architecture, **made)
    recovered = dataclasses.replace(shrunk, parameters=parameters, head=head)
    changes = {
        CUT: ((came, before), (shrunk, after_cut)),
        RECOVERY: ((start, of_start), (recovered, progress.measured)),
    }
    progress = progress.updated(
        round=number,
        before=before,
        after_cut=after_cut,
        after_reconstruction=after_fit,
        earlier_steps=came.progress.trained_steps or None,
        head_steps=came.progress.head_steps,
        untrained=came.progress.untrained,
        started_from=started_from,
        difference_errors=difference_errors(run, changes) or None,
    )
    if run.workers.first and (run.recipe.keep_embeddings or run.objective.reports_embeddings):
        write_embeddings(run, {'cut': shrunk, 'reconstructed': fitted, 'recovered': recovered})
    origin = (run.recipe.output / ORIGIN).read_bytes()
    return run.write(MODEL, recovered, progress, extra={ORIGIN: origin})


def rotate(run: Run, current: SavedModel) -> SavedModel:
    """The network whose gates a round trains: with rotated heads, if the recipe wants them."""
    if not run.recipe.rotate_heads:
        return current
    if there := run.read(ROTATED):
        return there
    text = run.text(TOKENS_TO_ROTATE * current.architecture.h)
    with run.doing('rotating heads'):
        return run.write(ROTATED, rotated(current, text, run.workers))


def rank(run: Run, current: SavedModel) -> tuple[Alphas, Alphas]:
    """Alpha to fold, and the scores that rank the units; leaves alphas.npz and scores.npz."""
    directory, method = run.directory, METHODS[run.recipe.method]
    if not (directory / SCORES).exists():
        if method.trains_gates:
            trained = gates_of_round(run, current)
            alphas, scores = trained.folded(), trained.scores
        else:
            widths, cut = current.architecture.widths(), run.cut(current)
            alphas = {key: np.ones(width, dtype=np.float32) for key, width in widths.items()}
            measured = () if method.measure is None else (measurements(run, cut),)
            with run.doing('ranking units'):
                scores = method.scores(cut, *measured)
        if run.workers.first:
            write_file(directory / ALPHAS, packed_alphas(alphas, h_gate=run.recipe.h_gate))
            write_file(directory / SCORES, packed_arrays(scores))
    run.workers.barrier(f'ranked.{run.number}')  # also for a worker that finds the file of the first one
    return read_ranking(directory, current.architecture)


def measurements(run: Run, cut: Cut) -> dict[str, np.ndarray]:
    """Measure on batches what the method of a run ranks units by; leaves gradients.npz."""
    path = run.directory / GRADIENTS
    if not path.exists():
        measured = METHODS[run.recipe.method].measure(cut)
        if run.workers.first:
            write_file(path, packed_arrays(measured))
    run.workers.barrier(f'measured.{cut.number}')
    return read_npz(path)


def gates_of_round(run: Run, current: SavedModel) -> TrainedGates:
    """The gates of a round, trained by equation (2), and perhaps anew on either half of its batches to tell
    how certain their ranking is; leaves gates.json.
    """
    recipe, directory, workers = run.recipe, run.directory, run.workers
    method, cut, match = METHODS[recipe.method], run.cut(current), run.match(run.number - 1)
    notes = {'round': run.number, 'parameters': ParameterCost().cost(current.architecture)}
    phase = run.phase('gates', evaluate_every=0, notes=notes)
    common = {
        'saved': current,
        'objective_of': lambda model, phase: run.objective.gates(model, phase, match),
        'settings': recipe.gate_settings(),
        'cost': run.cost,
        'network': run.objective.gate_settings,
        'workers': workers,
    }
    trained = train_alphas(
        phase=phase,
        reporter=run.reporter,
        states=directory / 'gate-states',
        settling=recipe.settling(),
        select=lambda scores: method.select(cut, scores),
        **common,
    )
    halves, steps = [], trained.training.step // 2
    if recipe.split_half and steps:
        for half, first in ((1, phase.first_batch), (2, phase.first_batch + steps)):
            part = dataclasses.replace(phase, name=f'gates of half {half}', first_batch=first, steps=steps)
            shown, states = Reporter(None, workers), directory / f'gate-states-{half}'  # and not written
            halves.append(train_alphas(phase=part, reporter=shown, states=states, **common).scores)
    with run.doing('selecting units'):
        record = gates_record(trained, run.number, method.select(cut, trained.scores), recipe.prune, halves)
    if workers.first:
        write_json(directory / GATES, record.to_dict())
    return trained


def select(run: Run, current: SavedModel, scores: Alphas) -> Selection:
    """The units that stay, by the method of the recipe; leaves them with the reasons in selection.json."""
    recipe, cut = run.recipe, run.cut(current)
    with run.doing('selecting units'):
        selection = METHODS[recipe.method].select(cut, scores)
    removed = {}
    for key, kept in selection.kept.items():
        # a layer without filters has no gate for them
        gone = np.setdiff1d(np.arange(len(scores.get(key, []))), kept)
        removed[key] = [[int(i), float(f'{scores[key][i]:.7g}')] for i in gone]  # however small
    story = {
        'round': run.number,
        'cost_before': run.cost.cost(current.architecture),
        **selection.to_dict(),
        'prices': dict(run.cost.prices(current.architecture)),
        'removed_unit_and_alpha': removed,
    }
    if recipe.multiple_of > 1:
        plain = cut.select(relative(scores, recipe.ranked_relatively), multiple_of=1)
        below = plain.cost - selection.cost
        story['multiple_of'] = {'units': recipe.multiple_of, 'cost_below_plain_selection': below}
    run.workers.agree(json.dumps(story, sort_keys=True), what=f'the selection of round {run.number}')
    if run.workers.first:
        write_json(run.directory / SELECTION, story)
    return selection


def fold_and_cut(run: Run, current: SavedModel, alphas: Alphas, selection: Selection) -> SavedModel:
    """The network with its gates in its weights, and without the units that go."""
    with run.doing('cutting'):
        parameters, architecture = shrink(
            current.parameters,
            current.architecture,
            alphas,
            selection,
            head=current.head,
            h_gate=run.recipe.h_gate,
        )
    head = run.objective.head_of(architecture)
    return dataclasses.replace(current, architecture=architecture, parameters=parameters, head=head)


def fit_layers(run: Run, current: SavedModel, shrunk: SavedModel) -> SavedModel:
    """The cut network, with its layers fitted to those before the cut."""
    if there := run.read(FITTED):
        return there
    wanted = tokens_wanted(shrunk, run.recipe.fit_tokens)
    chosen, text = read_selection(run.directory / SELECTION), run.text(wanted)
    with run.doing('fitting layers'):
        fitted = reconstruct(current, shrunk, chosen, text, workers=run.workers)
    head = run.objective.head_of(fitted.architecture, fitted=True)
    return run.write(FITTED, dataclasses.replace(fitted, head=head))


def difference_errors(run: Run, changes: Mapping[str, tuple[Known, Known]]) -> dict[str, float]:
    """The standard errors of what steps changed, taken instance by instance; of changes that may be chance by
    the errors of what was measured before and after them.
    """
    errors = {
        step: run.objective.difference_error(*networks)
        for step, networks in changes.items()
        if unclear_below(*(measured for _, measured in networks)) is not None
    }
    return {step: error for step, error in errors.items() if error is not None}


def write_embeddings(run: Run, networks: Mapping[str, SavedModel | None]) -> None:
    """Leave embeddings.json of a round: how far the embeddings of each network are those before pruning."""
    objective, units = run.objective, run.match(run.number).units
    before = objective.embeddings(objective.start)
    record = {
        name: compare_embeddings(before, objective.embeddings(saved), units)
        for name, saved in networks.items()
        if saved is not None
    }
    write_json(run.directory / EMBEDDINGS, {'round': run.number, 'instances': len(before), **record})


def read_ranking(directory: Path, architecture: Architecture) -> tuple[Alphas, Alphas]:
    """The alphas and the scores of a round; ValueError or FileNotFoundError if they cannot be read, or the
    alphas are not those of the architecture that came into the round.
    """
    alphas = read_alphas(directory / ALPHAS)[0]
    try:
        check_alphas(alphas, architecture)
    except ValueError as error:
        raise ValueError(f'{directory / ALPHAS}: {error}') from error
    return alphas, read_alphas(directory / SCORES)[0]


def _open(
    kind: type[PruningObjective], recipe: PruningRecipe, workers: Workers, until: int | None
) -> PruningObjective:
    """Check everything before the first step, and lay the run directory out; the objective of the run."""
    recipe.check_workers(workers)
    directory, begun = RunDirectory(recipe), recipe.output / 'round-0' / MODEL
    if not directory.new:
        if not begun.is_dir():
            _remake_start(kind, recipe, workers)
        return kind(recipe, read_model(begun), workers)
    start, beside = kind.read(recipe)
    objective = kind(recipe, start, workers)
    problem = unreachable(recipe, start.architecture, objective.whole)
    if problem:
        raise ValueError(problem)
    objective.round_steps()
    if recipe.ranking is not None:
        check_ranking(recipe, start)

    def write(staged: Path) -> None:
        (staged / 'metrics.jsonl').write_text('', encoding='utf-8')
        (staged / 'round-0').mkdir()
        if recipe.ranking is not None:
            (staged / 'round-1').mkdir()
            take_ranking(recipe, staged / 'round-1')
        write_model(staged / 'round-0' / MODEL, start, extra=beside)
        inputs = objective.sample_inputs(INPUTS_KEPT)
        if inputs is not None:
            np.savez(staged / 'inputs.npz', **inputs)

    directory.lay_out(workers, write, needed=room(objective, until))
    return objective


def room(objective: PruningObjective, until: int | None = None) -> float:
    """Bytes that the networks of a run take at least, up to the round `until`; checkpoints come on top."""
    recipe = objective.recipe
    whole = objective.start.nbytes
    after = [whole * share for share in recipe.shares()[:until]]
    rotated = sum([whole, *after][: len(after)]) if recipe.rotate_heads else 0
    return whole + rotated + (2 + recipe.reconstruct) * sum(after)


def forget(output: Path, numbers: Collection[int]) -> None:
    """Remove the networks of some rounds of a run; round 0 is what was pruned.

    What stays says how to make them again: the recipe, and of every round its gates, scores, selection and
    measurements. The run goes on, or makes them again, bit for bit on the same processor, when it is resumed.
    """
    for number in numbers:
        directory = Path(output) / f'round-{number}'
        if not (directory / MODEL).is_dir():
            continue
        record = {
            'sha256': sha256(directory / MODEL / WEIGHTS),
            **Round.of(read_model(directory / MODEL), number).to_dict(),
        }
        write_json(directory / FORGOTTEN, record)
        for name in STAGES:
            remove_directory(directory / name)


def _remake_start(kind: type[PruningObjective], recipe: PruningRecipe, workers: Workers) -> None:
    """The network that a run began with, after `forget`; ValueError if the recipe's model is now another."""
    place = recipe.output / 'round-0'
    record = place / FORGOTTEN  # none if the network was lost in another way
    wanted = read_json(record)['sha256'] if record.is_file() else None
    start, beside = kind.read(recipe)
    if workers.first:
        again = place / 'again'
        shutil.rmtree(again, ignore_errors=True)  # of a killed run
        write_model(again, start, extra=beside)
        if wanted in (None, sha256(again / WEIGHTS)):
            again.rename(place / MODEL)
        shutil.rmtree(again, ignore_errors=True)
    workers.barrier('start')
    if not (place / MODEL).is_dir():
        raise ValueError(
            f'{recipe.model} is not the network that {recipe.output} began with: its weights have SHA-256 '
            f'{wanted}'
        )
