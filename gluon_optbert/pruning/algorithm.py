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

import contextlib
import dataclasses
import json
import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import CostModel, ParameterCost
from ..architecture.parameters import Alphas, Parameters, check_alphas
from ..architecture.rounds import Round
from ..cutting.selection import Selection, packed_alphas, packed_arrays, read_alphas, read_selection
from ..cutting.shrink import shrink
from ..finetuning.distillation import SELECTION, match_after
from ..network.model import read_parameters
from ..network.saved_model import WEIGHTS, SavedModel, read_model, write_model
from ..runs.display import Display, doing
from ..runs.files import read_json, running, sha256, write_file, write_json
from ..runs.limits import read_npz
from ..runs.machine import ORIGIN, note_origin
from ..runs.progress import CUT, GATES, RECOVERY, Measured, Progress, TaskScores
from ..runs.run_directory import RunDirectory, State
from ..training.distillation import Match
from ..training.distributed import Workers
from ..training.loop import Reporter, steps_within, train
from ..training.objective import Objective, Phase
from ..training.optimization import Optimizer
from ..training.states import States
from .doubts import doubts
from .gate_training import TrainedGates, train_alphas
from .methods import METHODS, Cut, relative
from .objectives import PretrainingObjective, PruningObjective, compare_embeddings
from .recipe import (
    ALPHAS,
    GRADIENTS,
    SCORES,
    PruneRecipe,
    PruningRecipe,
    check_ranking,
    ranking_files,
    unreachable,
)
from .repairs import TOKENS_PER_INPUT, reconstruct, rotated, tokens_wanted
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

LOG = logging.getLogger(__name__)
PLAN = 'plan.json'  # of a round
STAGES = ROTATED, SHRUNK, FITTED, MODEL = 'rotated', 'shrunk', 'reconstructed', 'model'  # its networks
INPUTS_KEPT = 64  # held-out instances of a task, for verify
LEAST_TEXT = 32  # sequences


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
    with running(recipe.output, workers):
        with doing('reading the network and its data', quiet=not workers.first) as display:
            objective = _open(kind, recipe, workers, until)
            for line in objective.about_data():
                display.say(line)
        recipe, current = objective.recipe, objective.start
        cost = recipe.cost()
        if workers.first and not (recipe.output / 'rounds.json').exists():
            note_origin(recipe.output, workers=workers.size)
            for doubt in doubts(objective):
                LOG.warning('%s', doubt)
        reporter = Reporter(recipe.output / 'metrics.jsonl', workers)
        run = Run(objective, cost, cost.cost(objective.whole), objective.round_steps(), reporter)
        last = min(until or len(recipe.shares()), len(recipe.shares()))
        # `forget` leaves rounds without their networks; only those behind the newest one have to be made
        newest = max((n for n in range(1, last + 1) if (run.directory(n) / MODEL).is_dir()), default=0)
        widths = objective.start.architecture
        for number in range(1, last + 1):
            directory = run.directory(number)
            if number <= newest:
                read_ranking(directory, widths)  # without which the round could not be verified
                widths = read_selection(directory / SELECTION).architecture(widths)
                if number == newest:
                    current = read_model(directory / MODEL)
            else:
                current = run_round(run, current, number)
                row = Round.of(current, number)
                for sentence in unclear(row) if workers.first else ():
                    LOG.warning('%s; to tell, %s', sentence, how_to_tell(row.recovered))
            if workers.first:
                for states in directory.glob('*-states*'):
                    shutil.rmtree(states, ignore_errors=True)
        rows = summary(recipe.output)
        if workers.first and last == len(recipe.shares()):
            with doing('writing the report'):
                write_report(rows, recipe, cost, objective.start.architecture, objective.whole)
        workers.barrier('finished')
    return rows


def _open(
    kind: type[PruningObjective], recipe: PruningRecipe, workers: Workers, until: int | None
) -> PruningObjective:
    """Check everything before the first step, and lay the run directory out; the objective of the run."""
    recipe.check_workers(workers)
    directory, begun = RunDirectory(recipe), recipe.output / 'round-0' / MODEL
    if directory.state is State.BEGUN:
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
            for name in ranking_files(recipe):
                shutil.copyfile(recipe.ranking / 'round-1' / name, staged / 'round-1' / name)
            if recipe.rotate_heads:
                shutil.copytree(recipe.ranking / 'round-1' / ROTATED, staged / 'round-1' / ROTATED)
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
            shutil.rmtree(directory / name, ignore_errors=True)


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


@dataclasses.dataclass(frozen=True)
class Run:
    """State that the rounds of a run share.

    Parameters
    ----------
    whole : float
        The cost of the network that came in.
    steps : pair of int
        Steps of a round's gate training and of its recovery, where its minutes are not stated.
    """

    objective: PruningObjective
    cost: CostModel
    whole: float
    steps: tuple[int, int]
    reporter: Reporter

    @property
    def recipe(self) -> PruningRecipe:
        return self.objective.recipe

    @property
    def workers(self) -> Workers:
        return self.objective.workers

    def directory(self, number: int) -> Path:
        """Of a round."""
        return self.recipe.output / f'round-{number}'

    def place(self, number: int) -> str:
        """Which round of how many, for people."""
        return f'round {number}/{len(self.recipe.shares())}'

    def doing(self, what: str, number: int) -> Display:
        """What is said while a part of a round takes long."""
        return doing(f'{self.place(number)} | {what}', quiet=not self.workers.first)

    def phase(self, name: str, number: int, **more: Any) -> Phase:
        """A phase of a round: recovery trains on the batches that follow those of the gates."""
        gates, recovery = self.steps[0], self.recovery_steps(number)
        before = sum(gates + self.recovery_steps(earlier) for earlier in range(1, number))
        first = self.objective.first_batch + before
        more = {'place': self.place(number), **more}
        if name == RECOVERY:
            return self.recipe.phase(name, recovery, first_batch=first + gates, **more)
        return self.recipe.phase(name, gates, first_batch=first, **more)

    def recovery_steps(self, number: int) -> int:
        """Of a round; with minutes those that `plan_recovery` left, and 0 before that."""
        if self.recipe.minutes is None:
            return self.steps[1]
        path = self.directory(number) / PLAN
        return read_json(path)['steps'] if path.exists() else 0

    def cut(self, current: SavedModel, number: int) -> Cut:
        """Input of the recipe's method for a round."""
        target = self.whole * self.recipe.shares()[number - 1]
        phase = smaller(self.phase('importance', number))
        return Cut(current, self.recipe, number, self.cost, target, self.objective, phase)

    def match(self, rounds: int) -> Match:
        """Which states of the network that came in are left after so many rounds."""
        start = read_model(self.directory(0) / MODEL).architecture
        return match_after(self.recipe.output, rounds, start)

    def text(self, tokens: int, number: int) -> list[Any]:
        """Data of the repairs of a round: batches from where those of its gates begin.

        They are this worker's share, and have so many tokens together, over all workers and without padding.
        They are the smallest part of a training batch that has 32 sequences and can be shared by the workers,
        so that neither is much more read nor more memory taken than is needed; or whole batches. Of batches
        that are counted in tokens they are `smaller` ones.
        """
        phase = smaller(self.phase('text', number))
        parts = range(self.workers.size, phase.batch_size, self.workers.size)
        fitting = (part for part in parts if part >= LEAST_TEXT and phase.batch_size % part == 0)
        if not phase.batch_tokens and (size := next(fitting, 0)):
            first = phase.first_batch * phase.batch_size // size
            phase = dataclasses.replace(phase, batch_size=size, first_batch=first)
        phase = dataclasses.replace(phase, accumulate=1)
        batches: list[Any] = []
        quiet = not self.workers.first
        with contextlib.closing(self.objective.batches(phase)) as source, doing('reading text', quiet=quiet):
            while sum(batch.token_total for batch in batches) < tokens:
                batches.append(next(source))
        return batches

    def write(self, number: int, name: str, model: SavedModel, progress: Progress, **more: Any) -> None:
        """Write a model directory of a round, with the recipe of the run; the first worker does."""
        if self.workers.first:
            model = dataclasses.replace(model, recipe=self.objective.recipe_of_models, progress=progress)
            write_model(self.directory(number) / name, model, **more)
        self.workers.barrier(f'{name}.{number}')


def smaller(phase: Phase) -> Phase:
    """A phase with batches of a quarter of the tokens, where they are counted in tokens: as many of these
    have texts of more lengths among them.
    """
    if not phase.batch_tokens:
        return phase
    tokens, first = max(1, phase.batch_tokens // 4), 4 * phase.first_batch
    return dataclasses.replace(phase, batch_tokens=tokens, first_batch=first)


def run_round(run: Run, came: SavedModel, number: int) -> SavedModel:
    """One round of Algorithm 1, as far as it has not been done; the network that comes out of it.

    What the paper's box says, and what does it here:

    - initialize the prunable parameters, multiply them with the network's, and train by equation (2): `rank`
    - set the smallest prunable parameters to zero, to the round's target: `select`
    - offset them into the network's parameters, and remove all-zero rows and columns: `shrink`
    - fine-tune by equation (1): `recover`
    """
    recipe, evaluate, directory = run.recipe, run.objective.evaluate, run.directory(number)
    current = rotate(run, came, number)
    if not (directory / SHRUNK).is_dir():
        before = evaluate(current)
        if number == 1 and run.workers.first and isinstance(before, TaskScores) and before.poor:
            LOG.warning(
                '%s has %s, and one answer to all %.2f: it has learnt nothing of the task that pruning could '
                'keep; fine-tune it for longer first',
                *(recipe.model, before.described, before.majority),
            )
        alphas, scores = rank(run, current, number)  # trains the gates by equation (2)
        selection = select(run, current, scores, number)
        sizes = {'head': current.head, 'h_gate': recipe.h_gate}
        with run.doing('cutting', number):
            parameters, architecture = shrink(  # folds the gates into the weights, and cuts
                current.parameters, current.architecture, alphas, selection, **sizes
            )
        left = {'parameters': parameters, 'head': run.objective.head_of(architecture)}
        shrunk = dataclasses.replace(current, architecture=architecture, **left)
        progress = Progress(round=number, before=before, untrained=came.progress.untrained)
        run.write(number, SHRUNK, shrunk, progress)
    shrunk = read_model(directory / SHRUNK)
    before, after_cut = shrunk.progress.before, evaluate(shrunk)

    start, of_start, started_from, fitted, after_fit = shrunk, after_cut, None, None, None
    if recipe.reconstruct:
        fitted = fit_layers(run, current, shrunk, number)
        after_fit = evaluate(fitted)
        if fit_is_worse(run, (shrunk, fitted), (after_cut, after_fit), number):
            started_from = CUT
        else:
            start, of_start = fitted, after_fit or after_cut
    parameters, progress = recover(run, start, of_start, number)  # evaluates on its way

    recovered = dataclasses.replace(shrunk, parameters=parameters)
    progress = progress.updated(
        round=number,
        before=before,
        after_cut=after_cut,
        after_reconstruction=after_fit,
        earlier_steps=came.progress.trained_steps or None,
        head_steps=came.progress.head_steps,
        untrained=came.progress.untrained,
        started_from=started_from,
    )
    errors = {
        CUT: change_error(run, (current, before), (shrunk, after_cut)),
        RECOVERY: change_error(run, (start, of_start), (recovered, progress.measured)),
    }
    known = {name: error for name, error in errors.items() if error is not None}
    progress = progress.updated(difference_errors=known or None)
    if run.workers.first and (recipe.keep_embeddings or run.objective.reports_embeddings):
        write_embeddings(run, {'cut': shrunk, 'reconstructed': fitted, 'recovered': recovered}, number)
    run.write(number, MODEL, recovered, progress, extra={ORIGIN: (recipe.output / ORIGIN).read_bytes()})
    return read_model(directory / MODEL)


def rotate(run: Run, current: SavedModel, number: int) -> SavedModel:
    """The network whose gates a round trains: with rotated heads, if the recipe wants them."""
    if not run.recipe.rotate_heads:
        return current
    if not (run.directory(number) / ROTATED).is_dir():
        text = run.text(TOKENS_PER_INPUT * current.architecture.h, number)
        progress = Progress(round=number, untrained=current.progress.untrained)
        with run.doing('rotating heads', number):
            run.write(number, ROTATED, rotated(current, text, run.workers), progress)
    return read_model(run.directory(number) / ROTATED)


def rank(run: Run, current: SavedModel, number: int) -> tuple[Alphas, Alphas]:
    """Alpha to fold, and the scores that rank the units; leaves alphas.npz and scores.npz."""
    directory, method = run.directory(number), METHODS[run.recipe.method]
    if not (directory / SCORES).exists():
        if method.scores is None:
            trained = gates_of_round(run, current, number)
            alphas, scores = trained.folded(), trained.scores
        else:
            widths, cut = current.architecture.widths(), run.cut(current, number)
            alphas = {key: np.ones(width, dtype=np.float32) for key, width in widths.items()}
            measured = () if method.measure is None else (measurements(run, cut),)
            with run.doing('ranking units', number):
                scores = method.scores(cut, *measured)
        if run.workers.first:
            write_file(directory / ALPHAS, packed_alphas(alphas, h_gate=run.recipe.h_gate))
            write_file(directory / SCORES, packed_arrays(scores))
    run.workers.barrier(f'ranked.{number}')  # also for a worker that finds the file of the first one
    return read_ranking(directory, current.architecture)


def measurements(run: Run, cut: Cut) -> dict[str, np.ndarray]:
    """What the method of a run measures on batches to rank the units of a round; leaves gradients.npz."""
    path = run.directory(cut.number) / GRADIENTS
    if not path.exists():
        measured = METHODS[run.recipe.method].measure(cut)
        if run.workers.first:
            write_file(path, packed_arrays(measured))
    run.workers.barrier(f'measured.{cut.number}')
    return read_npz(path)


def gates_of_round(run: Run, current: SavedModel, number: int) -> TrainedGates:
    """The gates of a round, trained by equation (2), and perhaps anew on either half of its batches to tell
    how certain their ranking is; leaves gates.json.
    """
    recipe, directory, workers = run.recipe, run.directory(number), run.workers
    method, cut, match = METHODS[recipe.method], run.cut(current, number), run.match(number - 1)
    notes = {'round': number, 'parameters': ParameterCost().cost(current.architecture)}
    phase = run.phase('gates', number, evaluate_every=0, notes=notes)
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
    with run.doing('selecting units', number):
        record = gates_record(trained, number, method.select(cut, trained.scores), recipe.prune, halves)
    if workers.first:
        write_json(directory / GATES, record.to_dict())
    return trained


def select(run: Run, current: SavedModel, scores: Alphas, number: int) -> Selection:
    """The units that stay, by the method of the recipe; leaves them with the reasons in selection.json."""
    recipe, cut = run.recipe, run.cut(current, number)
    with run.doing('selecting units', number):
        selection = METHODS[recipe.method].select(cut, scores)
    removed = {}
    for key, kept in selection.kept.items():
        # a layer without filters has no gate for them
        gone = np.setdiff1d(np.arange(len(scores.get(key, []))), kept)
        removed[key] = [[int(i), round(float(scores[key][i]), 6)] for i in gone]
    story = {
        'round': number,
        'cost_before': run.cost.cost(current.architecture),
        **selection.to_dict(),
        'prices': dict(run.cost.prices(current.architecture)),
        'removed_unit_and_alpha': removed,
    }
    if recipe.multiple_of > 1:
        plain = cut.select(relative(scores, recipe.ranked_relatively), multiple_of=1)
        below = plain.cost - selection.cost
        story['multiple_of'] = {'units': recipe.multiple_of, 'cost_below_plain_selection': below}
    run.workers.agree(json.dumps(story, sort_keys=True), what=f'the selection of round {number}')
    if run.workers.first:
        write_json(run.directory(number) / SELECTION, story)
    return selection


def fit_layers(run: Run, current: SavedModel, shrunk: SavedModel, number: int) -> SavedModel:
    """The cut network, with its layers fitted to those before the cut."""
    directory = run.directory(number)
    if not (directory / FITTED).is_dir():
        chosen, text = read_selection(directory / SELECTION), run.text(tokens_wanted(shrunk), number)
        with run.doing('fitting layers', number):
            fitted = reconstruct(current, shrunk, chosen, text, workers=run.workers)
        run.write(number, FITTED, fitted, Progress(round=number, untrained=shrunk.progress.untrained))
    return read_model(directory / FITTED)


def fit_is_worse(
    run: Run,
    networks: tuple[SavedModel, SavedModel],
    measured: tuple[Measured | None, Measured | None],
    number: int,
) -> bool:
    """Whether fitting its layers made a network worse, by what `recover` compares; the same on every worker.

    Never where recovery does not keep its best step, or nothing is measured.

    Parameters
    ----------
    networks : pair of SavedModel
        Before its layers were fitted, and after that.
    measured : pair of Measured, optional
        What they come to on held-out data.
    number : int
        Of the round.
    """
    if not run.recipe.keep_best:
        return False
    losses = [None if one is None else one.loss for one in measured]
    if run.recipe.recovers and run.objective.states_alone:
        losses, phase = [], run.phase(RECOVERY, number)
        for saved in networks:
            model = run.objective.build(saved, **run.objective.recovery_settings)
            training = run.objective.recovery(model, phase, run.match(number))
            values = training.evaluate(phase)
            losses.append(None if values is None else training.loss_of(values))
    before, after = losses
    worse = before is not None and after is not None and not after <= before  # nor may it be no number
    run.workers.agree(str(worse), what=f'the network that recovery starts from in round {number}')
    return worse


def recover(
    run: Run, start: SavedModel, measured: Measured | None, number: int
) -> tuple[Parameters, Progress]:
    """Train what a cut has left, and keep the best of what was measured on the way.

    Parameters
    ----------
    start : SavedModel
        After the cut, or after its layers were fitted.
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
    recipe, objective, states = run.recipe, run.objective, run.directory(number) / 'recovery-states'
    of_start = {} if measured is None else measured.fields
    if not recipe.recovers:
        return start.parameters, Progress(step=0).updated(**of_start)
    if recipe.minutes is not None:
        plan_recovery(run, start, number)
    notes = {'round': number, 'parameters': ParameterCost().cost(start.architecture)}
    phase = run.phase(RECOVERY, number, notes=notes)
    training, optimizer = _recovery(run, start, phase, number)
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
            return start.parameters, _kept(progress, 0, of_start, difference)
        if progress.best_step != progress.step:
            kept = States(states, phase.keep).load(progress.best_step, optimizer)
            of_kept = {} if kept.measured is None else kept.measured.fields
            progress = _kept(progress, progress.best_step, of_kept, kept.state_difference)
    parameters = read_parameters(training.model)
    left = {name: value for name, value in start.parameters.items() if name not in parameters}
    parameters = {**parameters, **left}  # what is not built is as it was
    if objective.states_alone:
        after = objective.evaluate(dataclasses.replace(start, parameters=parameters))
        progress = progress.updated(**({} if after is None else after.fields))
    return parameters, progress


def _recovery(run: Run, start: SavedModel, phase: Phase, number: int) -> tuple[Objective, Optimizer]:
    """The objective of recovery, with a network of its own, and the optimizer of what it trains."""
    objective = run.objective
    model = objective.build(start, **objective.recovery_settings)
    training = objective.recovery(model, phase, run.match(number))
    trained = objective.recovered_parameters(model)
    return training, run.recipe.weight_optimizer(model, run.workers, trained)


def plan_recovery(run: Run, start: SavedModel, number: int) -> None:
    """Time some steps of recovery on a network that is thrown away, and leave plan.json: the steps that fit
    into the minutes of the recipe. A run that is resumed or made again takes those steps.
    """
    path, workers = run.directory(number) / PLAN, run.workers
    if not path.exists():
        phase, seconds = run.phase(RECOVERY, number), 60 * run.recipe.minutes
        with run.doing(f'timing steps of {RECOVERY}', number):
            steps, each = steps_within(seconds, *_recovery(run, start, phase, number), phase)
        record = {'minutes': run.recipe.minutes, 'seconds_a_step': each, 'steps': steps}
        if workers.first:
            write_json(path, record)
    workers.barrier(f'planned.{number}')


def _kept(
    progress: Progress, step: int, measured: Mapping[str, Any], state_difference: float | None
) -> Progress:
    """The progress of the last step, with what was measured at the step that is kept."""
    if progress.state_difference is not None:
        measured = {**measured, 'state_difference': state_difference}
    return progress.updated(**measured, kept_step=step)


def change_error(
    run: Run, one: tuple[SavedModel, Measured | None], other: tuple[SavedModel, Measured | None]
) -> float | None:
    """The standard error of what a step changed, taken instance by instance where the change may be chance by
    the errors of what was measured of the network before it and after it; None where it is not taken.
    """
    unclear = unclear_below(one[1], other[1]) is not None
    return run.objective.difference_error(one[0], other[0]) if unclear else None


def write_embeddings(run: Run, networks: Mapping[str, SavedModel | None], number: int) -> None:
    """Leave embeddings.json of a round: how far the embeddings of each network are those before pruning."""
    before, units = run.objective.embeddings(read_model(run.directory(0) / MODEL)), run.match(number).units
    record = {
        name: compare_embeddings(before, run.objective.embeddings(saved), units)
        for name, saved in networks.items()
        if saved is not None
    }
    values = {'round': number, 'instances': len(before), **record}
    write_json(run.directory(number) / EMBEDDINGS, values)


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
