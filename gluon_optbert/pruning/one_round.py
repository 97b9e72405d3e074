"""One round of Algorithm 1: train the gates, select, fold, cut, repair, recover."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from ..architecture.cost import CostModel, ParameterCost
from ..architecture.parameters import Alphas
from ..cutting.selection import Selection, read_selection, select_units, survivors
from ..cutting.shrink import shrink
from ..network.model import OptBERTModel, build, read_parameters
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.progress import HeldOut, Progress
from ..runs.provenance import ORIGIN
from ..runs.recipe import to_dict
from ..runs.staging import write_file
from ..text.batches import Batch
from ..text.shards import Shards
from ..training.distillation import Distillation, Match, Teacher, Weights
from ..training.distributed import Workers
from ..training.loop import descend
from ..training.mlm_nsp import Pretraining, evaluate
from ..training.objective import Phase
from ..training.reporter import Reporter
from .gate_training import train_gates
from .methods import METHODS, Cut
from .recipe import PruneRecipe
from .reconstruct import TOKENS_PER_INPUT, reconstruct, sample, tokens_wanted
from .report import MORE, Round, explain, unclear
from .rotate import rotated
from .watch import GATES, Watch

LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class Job:
    """What the rounds of a run share.

    Parameters
    ----------
    recipe : PruneRecipe
    workers : Workers
    shards : mapping of split to Shards
    cost : CostModel
    whole : float
        The cost of the network that came in.
    steps : pair of int
        Steps of a round's gate training and of its recovery.
    reporter : Reporter
    teacher : Teacher, optional
        What recovery learns from.
    """

    recipe: PruneRecipe
    workers: Workers
    shards: Mapping[str, Shards]
    cost: CostModel
    whole: float
    steps: Tuple[int, int]
    reporter: Reporter
    teacher: Optional[Teacher] = None

    def target(self, number: int) -> float:
        """What the network may cost after a round."""
        return self.whole * self.recipe.shares()[number - 1]

    def directory(self, number: int) -> Path:
        return self.recipe.output / f'round-{number}'

    def phase(self, name: str, number: int, **more: Any) -> Phase:
        """A phase of a round: recovery trains on the batches that follow those of the gates."""
        gates, recovery = self.steps
        first = (number - 1) * (gates + recovery)
        more = {'place': f'round {number}/{len(self.recipe.shares())}', **more}
        if name == 'recovery':
            return self.recipe.phase(name, recovery, first_batch=first + gates, **more)
        return self.recipe.phase(name, gates, first_batch=first, **more)

    def cut(self, current: SavedModel, number: int) -> Cut:
        """What the method of the recipe sees of a round."""
        return Cut(
            current,
            self.recipe,
            number,
            self.cost,
            self.target(number),
            self.shards['train'],
            self.phase('importance', number),
            self.workers,
        )

    def text(self, tokens: int, number: int) -> List[Batch]:
        """What a round's rotation and reconstruction read: the batches of its gates, and those after them."""
        return sample(self.shards['train'], self.phase('text', number), tokens, self.workers)

    def write(self, directory: Path, model: SavedModel, progress: Progress, **more: Any) -> None:
        """Write a model directory of a round, with the recipe of the run."""
        recipe = to_dict(self.recipe)
        write_model(directory, dataclasses.replace(model, recipe=recipe, progress=progress), **more)

    def evaluate(self, model: OptBERTModel) -> HeldOut:
        return evaluate(
            model,
            self.shards['heldout'],
            self.workers,
            batch_size=self.recipe.batch_size,
            limit=self.recipe.evaluation_limit,
        )

    def build(self, saved: SavedModel, **changes: Any) -> OptBERTModel:
        settings = self.recipe.network_settings()
        return build(saved.architecture, saved.parameters, settings, ctx=self.workers.context(), **changes)


def _train_gates(job: Job, current: SavedModel, number: int) -> Tuple[Alphas, Alphas]:
    """`train_gates` with the settings of the recipe; leaves gates.json."""
    watch = Watch(lambda scores: _select(job, current, scores, number), job.recipe.settling())
    alphas, scores = _watched_gates(job, current, number, watch)
    selection = _select(job, current, scores, number)
    record = watch.record(selection, prune=job.recipe.prune, workers=job.workers)
    if job.workers.first:
        text = json.dumps({'round': number, **record}, indent=1) + '\n'
        write_file(job.directory(number) / GATES, text.encode())
    return alphas, scores


def _watched_gates(job: Job, current: SavedModel, number: int, watch: Watch) -> Tuple[Alphas, Alphas]:
    recipe, notes = job.recipe, {'round': number, 'parameters': ParameterCost().cost(current.architecture)}
    return train_gates(
        current,
        job.shards['train'],
        job.phase('gates', number, evaluate_every=0, notes=notes),
        learning_rate=recipe.alpha_learning_rate,
        penalty=recipe.penalty,
        gamma=recipe.gamma,
        cost=job.cost,
        unweighted=recipe.unweighted,
        prune=recipe.prune,
        optimizer=recipe.alpha_optimizer,
        dropout=recipe.dropout,
        precision=recipe.precision,
        compression=recipe.compression,
        workers=job.workers,
        reporter=job.reporter,
        states=job.directory(number) / 'gate-states',
        watch=watch,
    )


def _rank(job: Job, current: SavedModel, number: int) -> Tuple[Alphas, Alphas]:
    """Alpha to fold, and the scores that rank the units, by the method of the recipe."""
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
        plain = select_units(
            scores,
            architecture,
            job.cost,
            job.target(number),
            prune=recipe.prune,
            drop_blocks=recipe.drop_blocks,
        )
        story['multiple_of'] = {
            'units': recipe.multiple_of,
            'cost_below_plain_selection': plain.cost - selection.cost,
        }
    return story


def _rotated(job: Job, current: SavedModel, number: int) -> SavedModel:
    """The network whose gates a round trains: with rotated heads, if the recipe wants them."""
    if not job.recipe.rotate_heads:
        return current
    directory = job.directory(number) / 'rotated'
    if not directory.is_dir():
        turned = rotated(current, job.text(TOKENS_PER_INPUT * current.architecture.h, number), job.workers)
        if job.workers.first:
            job.write(directory, turned, Progress(round=number))
        job.workers.barrier(f'rotated.{number}')
    return read_model(directory)


def _reconstructed(job: Job, current: SavedModel, shrunk: SavedModel, number: int) -> SavedModel:
    """The network that recovers: with its layers fitted to those before the cut, if the recipe wants it."""
    if not job.recipe.reconstruct:
        return shrunk
    directory = job.directory(number) / 'reconstructed'
    if not directory.is_dir():
        chosen = read_selection(job.directory(number) / 'selection.json')
        text = job.text(tokens_wanted(shrunk), number)
        repaired = reconstruct(current, shrunk, chosen, text, workers=job.workers)
        if job.workers.first:
            job.write(directory, repaired, Progress(round=number))
        job.workers.barrier(f'reconstructed.{number}')
    return read_model(directory)


def _cut(job: Job, current: SavedModel, number: int) -> None:
    """Train the gates of a round, select, fold and cut; leaves alphas.npz, selection.json and the shrunk
    model.
    """
    directory = job.directory(number)
    before = job.evaluate(job.build(current))
    alphas, scores = _rank(job, current, number)
    selection = _select(job, current, scores, number)
    story = _story(job, current, scores, selection, number)
    job.workers.agree(json.dumps(story, sort_keys=True), what=f'the selection of round {number}')
    if job.workers.first:
        parameters, architecture = shrink(current.parameters, current.architecture, alphas, selection)
        packed = io.BytesIO()
        np.savez(packed, **alphas)
        write_file(directory / 'alphas.npz', packed.getvalue())
        write_file(directory / 'selection.json', (json.dumps(story, indent=1) + '\n').encode())
        shrunk = SavedModel(architecture, parameters, current.vocabulary)
        job.write(directory / 'shrunk', shrunk, Progress(round=number, before=before))
    job.workers.barrier(f'cut.{number}')


def _recovery(job: Job, model: OptBERTModel, number: int, phase: Phase) -> Pretraining:
    """What recovery descends: MLM plus NSP, and what the teacher says, if the recipe names one."""
    shards = job.shards['train'], job.shards['heldout']
    if job.teacher is None:
        return Pretraining(model, job.workers, *shards)
    recipe, architecture = job.recipe, job.teacher.architecture
    selections = [read_selection(job.directory(i + 1) / 'selection.json') for i in range(number)]
    match = Match.after(*survivors(selections, architecture), len(architecture.layers))
    weights = Weights(
        recipe.label_weight, recipe.teacher_score_weight, recipe.teacher_state_weight, recipe.temperature
    )
    return Distillation(
        model, job.workers, *shards, teacher=job.teacher, match=match, weights=weights, phase=phase
    )


def run_round(job: Job, current: SavedModel, number: int) -> SavedModel:
    """One round of Algorithm 1, as far as it has not been done; what comes out of it."""
    recipe, directory = job.recipe, job.directory(number)
    current = _rotated(job, current, number)
    if not (directory / 'shrunk').is_dir():
        _cut(job, current, number)
    shrunk = read_model(directory / 'shrunk')
    before = shrunk.progress.before
    after_cut = job.evaluate(job.build(shrunk))
    repaired = _reconstructed(job, current, shrunk, number)
    model = job.build(repaired, output_all_encodings=job.teacher is not None)
    after_reconstruction = job.evaluate(model) if recipe.reconstruct else None
    size = ParameterCost().cost(shrunk.architecture)
    phase = job.phase('recovery', number, notes={'round': number, 'parameters': size})
    progress = descend(
        _recovery(job, model, number, phase),
        recipe.weight_optimizer(model, job.workers),
        recipe.schedule(phase.steps),
        phase,
        reporter=job.reporter,
        states=directory / 'recovery-states',
    )
    measured = {'before': before, 'after_cut': after_cut, 'after_reconstruction': after_reconstruction}
    progress = progress.updated(round=number, **measured)
    if job.workers.first:
        recovered = SavedModel(shrunk.architecture, read_parameters(model), shrunk.vocabulary)
        origin = {ORIGIN: (recipe.output / ORIGIN).read_bytes()}
        job.write(directory / 'model', recovered, progress, extra=origin)
    job.workers.barrier(f'recovered.{number}')
    recovered = read_model(directory / 'model')
    if job.workers.first:
        for sentence in unclear(Round.of(recovered, number)):
            LOG.warning('%s; to tell, %s', sentence, MORE)
    return recovered
