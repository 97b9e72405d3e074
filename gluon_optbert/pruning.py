"""Algorithm 1 of optBERT: train the gates, zero the smallest, fold, cut, recover, and again.

    RUN_DIR/recipe.yaml  metrics.jsonl  rounds.json  pruning.md
    RUN_DIR/round-0/model            the network that is pruned
    RUN_DIR/round-N/alphas.npz       the trained gates
    RUN_DIR/round-N/selection.json   which units stayed and went, at which alpha and price
    RUN_DIR/round-N/shrunk           the model directory after the cut
    RUN_DIR/round-N/model            and after recovery
"""
from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from .checkpoint import SavedModel, gate_name, read_model, write_model
from .cost import OBJECTIVES, CostModel, ParameterCost, beta, cost_model, count_flops
from .distributed import Workers
from .model import OptBERTModel, build, read_parameters
from .penalty import L1Penalty
from .pretraining import TrainingRecipe, open_shards
from .recipe import check_same, option, save, to_dict
from .baselines import random_scores
from .selection import LETTERS, Alphas, Selection, select_units
from .shards import Shards
from .shrink import shrink
from .staging import new_directory, refuse_existing, write_file
from .training import Optimizer, Reporter, Schedule, evaluate, fit

METHODS = ('alpha', 'random')


@dataclasses.dataclass(frozen=True)
class PruneRecipe(TrainingRecipe):
    """A pruning run."""
    model: Path = option('model directory to prune')
    target: float = option('share of the model\'s cost that is to be left', 0.6)
    rounds: int = option('T, the rounds of training gates, cutting and recovering', 4)
    prune: str = option('the widths that may lose units, of h a k v f', LETTERS)
    method: str = option('what ranks the units: trained gates, or chance', 'alpha', choices=METHODS)
    objective: str = option('what the cost counts', 'parameters', choices=OBJECTIVES)
    length: int = option('tokens of a sequence for the FLOPs objective', 128)
    gamma: float = option('weight of the penalty on alpha', 1e-3)
    alpha_steps: Optional[int] = option('steps of training the gates in a round; by default 1/1000 of the '
                                        'pre-training steps', None)
    alpha_learning_rate: float = option('of the gates', 1e-2)
    alpha_optimizer: str = option('of the gates', 'adam', choices=('adam', 'sgd'))
    recovery_steps: Optional[int] = option('steps of recovery in a round; by default 1/20 of the pre-training steps', None)

    def problems(self) -> List[str]:
        """What is out of range."""
        found = super().problems()
        if not 0 < self.target < 1:
            found.append(f'target must lie between 0 and 1, found {self.target}')
        if self.rounds < 1:
            found.append(f'rounds must be at least 1, found {self.rounds}')
        if not self.prune or set(self.prune) - set(LETTERS) or len(set(self.prune)) < len(self.prune):
            found.append(f'prune must be made of different letters of {LETTERS}, found {self.prune!r}')
        for name in ('length', 'alpha_steps', 'recovery_steps'):
            value = getattr(self, name)
            if value is not None and value < 1:
                found.append(f'{name} must be at least 1, found {value}')
        if self.gamma < 0:
            found.append(f'gamma must not be negative, found {self.gamma}')
        if self.alpha_learning_rate <= 0:
            found.append(f'alpha_learning_rate must be above 0, found {self.alpha_learning_rate}')
        return found

    def steps(self, base: SavedModel) -> Tuple[int, int]:
        """Steps of a round's gate training and recovery; the paper's shares of the pre-training unless given."""
        trained = int(base.progress.get('step', 0))
        if (self.alpha_steps is None or self.recovery_steps is None) and not trained:
            raise ValueError('the model does not say how many steps it was pre-trained for; give --alpha-steps and '
                             '--recovery-steps')
        return self.alpha_steps or max(1, trained // 1000), self.recovery_steps or max(1, trained // 20)


@dataclasses.dataclass
class _Job:
    """What the rounds of a run share."""
    recipe: PruneRecipe
    workers: Workers
    shards: Mapping[str, Shards]
    cost: CostModel
    whole: float  # the cost of the network that came in
    steps: Tuple[int, int]
    reporter: Reporter

    def target(self, number: int) -> float:
        """What the network may cost after a round."""
        return self.whole * (1 - (1 - self.recipe.target) * number / self.recipe.rounds)

    def directory(self, number: int) -> Path:
        return self.recipe.output / f'round-{number}'

    def evaluate(self, model: OptBERTModel) -> Dict[str, float]:
        return evaluate(model, self.shards['heldout'], self.workers, batch_size=self.recipe.batch_size,
                        limit=self.recipe.evaluation_limit)

    def build(self, saved: SavedModel, **options: Any) -> OptBERTModel:
        return build(saved.architecture, saved.parameters, dropout=self.recipe.dropout, ctx=self.workers.context(),
                     **options)


def train_gates(job: _Job, current: SavedModel, number: int) -> Tuple[Dict[str, np.ndarray], Dict[str, float]]:
    """Train alpha by equation (2) with the weights frozen.

    Returns
    -------
    alphas : dict of width key to np.ndarray
    before : dict
        The held-out losses of the open gates.
    """
    recipe = job.recipe
    model = job.build(current, gated=True)
    before = job.evaluate(model)
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    gates = model.gates
    trained = {gate_name(key): parameter for key, parameter in gates.parameters.items() if key[0] in recipe.prune}
    for parameter in trained.values():
        parameter.grad_req = 'write'
    steps, recovery = job.steps
    phase = recipe.phase('gates', steps, evaluate_every=0, first_batch=(number - 1) * (steps + recovery),
                         notes={'round': number, 'parameters': ParameterCost().cost(current.architecture)})
    fit(model, Optimizer(trained, recipe.alpha_optimizer, workers=job.workers),
        Schedule(recipe.alpha_learning_rate, steps, decay=False), phase, shards=job.shards['train'], heldout=None,
        workers=job.workers, reporter=job.reporter, states=job.directory(number) / 'gate-states',
        penalty=L1Penalty(recipe.gamma, beta(current.architecture, job.cost)))
    return gates.values(), before


def explain(selection: Selection, scores: Alphas, prices: Mapping[str, float], before: float,
            number: int) -> Dict[str, Any]:
    """A selection with its reasons, as JSON values: what went, at which alpha and price, and the budget."""
    removed = {}
    for key, kept in selection.kept.items():
        gone = np.setdiff1d(np.arange(len(scores.get(key, []))), kept)  # a layer without filters has no gate for them
        removed[key] = [[int(i), round(float(scores[key][i]), 6)] for i in gone]
    return {'round': number, 'cost_before': before, **selection.to_dict(), 'prices': dict(prices),
            'removed_unit_and_alpha': removed}


def _cut(job: _Job, current: SavedModel, number: int) -> None:
    """Train the gates of a round, select, fold and cut; leaves alphas.npz, selection.json and the shrunk model."""
    recipe, directory = job.recipe, job.directory(number)
    if recipe.method == 'alpha':
        alphas, before = train_gates(job, current, number)
        scores: Alphas = alphas
    else:
        alphas = {key: np.ones(width, dtype=np.float32) for key, width in current.architecture.widths().items()}
        before = job.evaluate(job.build(current))
        scores = random_scores(current.architecture, recipe.seed + number)
    selection = select_units(scores, current.architecture, job.cost, job.target(number), prune=recipe.prune)
    story = explain(selection, scores, job.cost.prices(current.architecture), job.cost.cost(current.architecture), number)
    job.workers.agree(json.dumps(story, sort_keys=True), what=f'the selection of round {number}')
    if job.workers.first:
        parameters, architecture = shrink(current.parameters, current.architecture, alphas, selection)
        packed = io.BytesIO()
        np.savez(packed, **alphas)
        write_file(directory / 'alphas.npz', packed.getvalue())
        write_file(directory / 'selection.json', (json.dumps(story, indent=1) + '\n').encode())
        write_model(directory / 'shrunk', SavedModel(architecture, parameters, current.vocabulary, to_dict(recipe),
                                                     {'round': number, 'before': before}))
    job.workers.barrier(f'cut.{number}')


def _round(job: _Job, current: SavedModel, number: int) -> SavedModel:
    """One round of Algorithm 1, as far as it has not been done; what comes out of it."""
    recipe, directory = job.recipe, job.directory(number)
    if not (directory / 'shrunk').is_dir():
        _cut(job, current, number)
    shrunk = read_model(directory / 'shrunk')
    model = job.build(shrunk)
    after_cut = job.evaluate(model)
    steps, recovery = job.steps
    size = ParameterCost().cost(shrunk.architecture)
    phase = recipe.phase('recovery', recovery, first_batch=(number - 1) * (steps + recovery) + steps,
                         notes={'round': number, 'parameters': size})
    progress = fit(model, recipe.weight_optimizer(model, job.workers), recipe.schedule(recovery), phase,
                   shards=job.shards['train'], heldout=job.shards['heldout'], workers=job.workers,
                   reporter=job.reporter, states=directory / 'recovery-states')
    if job.workers.first:
        write_model(directory / 'model', SavedModel(
            shrunk.architecture, read_parameters(model), shrunk.vocabulary, to_dict(recipe),
            {**progress, 'round': number, 'before': shrunk.progress['before'], 'after_cut': after_cut}))
        for states in ('gate-states', 'recovery-states'):
            shutil.rmtree(directory / states, ignore_errors=True)
    job.workers.barrier(f'recovered.{number}')
    return read_model(directory / 'model')


def summary(output: Path) -> List[Dict[str, Any]]:
    """What every finished round of a run came to, for tables; round 0 is the network that went in.

    Returns
    -------
    list of dict
        ``round``, ``parameters``, ``flops`` (one sequence of 128 tokens), ``architecture`` and the held-out losses
        ``before``, ``after_cut`` and ``recovered``.
    """
    rows = []
    for number in range(len(list(Path(output).glob('round-*')))):
        directory = Path(output) / f'round-{number}' / 'model'
        if not directory.is_dir():
            break
        saved = read_model(directory)
        rows.append({'round': number, 'parameters': int(ParameterCost().cost(saved.architecture)),
                     'flops': sum(count_flops(saved.architecture, 128).values()),
                     'architecture': saved.architecture.to_dict(), 'before': saved.progress.get('before'),
                     'after_cut': saved.progress.get('after_cut'),
                     'recovered': {name: saved.progress[name] for name in (
                         'mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'instances') if name in saved.progress}})
    return rows


def widths_line(layers: List[Mapping[str, int]], letter: str) -> str:
    """A width along the layers, e.g. ``12 12 11``; one number where all are equal."""
    values = [str(layer[letter]) for layer in layers]
    return values[0] if values and len(set(values)) == 1 else ' '.join(values)


def readable(rows: List[Dict[str, Any]], recipe: PruneRecipe) -> str:
    """The rounds of a run as Markdown."""
    lines = ['# Pruning run', '', f'{recipe.method} on {recipe.prune}, {recipe.objective} to {recipe.target:.0%} in '
             f'{recipe.rounds} rounds.', '',
             '| round | parameters | FLOPs at 128 | MLM before | after the cut | recovered | h | a | k | v | f |',
             '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |']
    for row in rows:
        def loss(name):
            return f'{row[name]["mlm_loss"]:.3f}' if row[name] else '–'
        layers = row['architecture']['layers']
        lines.append(f'| {row["round"]} | {row["parameters"] / 1e6:.3f} M | {row["flops"] / 1e9:.3f} G | {loss("before")} '
                     f'| {loss("after_cut")} | {loss("recovered")} | {row["architecture"]["h"]} | '
                     + ' | '.join(widths_line(layers, letter) for letter in 'akvf') + ' |')
    return '\n'.join(lines) + '\n'


def _prepare(recipe: PruneRecipe, workers: Workers) -> SavedModel:
    """Check everything before the first step, and lay the run directory out; the network that is pruned."""
    recipe.check_workers(workers)
    base = recipe.output / 'round-0' / 'model'
    if recipe.output.exists() and recipe.resume:
        check_same(recipe, recipe.output / 'recipe.yaml')
        return read_model(base)
    refuse_existing(recipe.output, remedy='go on with --resume, choose another path, or remove it')
    start = read_model(recipe.model)
    if start.alphas:
        raise ValueError(f'{recipe.model} still has its gates; fold them with tools/export_model.py first')
    cost = cost_model(recipe.objective, length=recipe.length)
    least = {key: 1 for key, width in start.architecture.widths().items() if key[0] in recipe.prune and width}
    reachable = cost.cost(start.architecture.with_widths(least)) / cost.cost(start.architecture)
    if reachable > recipe.target:
        raise ValueError(f'target {recipe.target} cannot be reached by pruning {recipe.prune}: with one unit of each width '
                         f'{reachable:.3f} of the {recipe.objective} are left')
    open_shards(recipe, start.vocabulary)
    recipe.steps(start)
    workers.barrier('checked')
    if workers.first:
        with new_directory(recipe.output) as staged:
            save(recipe, staged / 'recipe.yaml')
            (staged / 'metrics.jsonl').write_text('', encoding='utf-8')
            (staged / 'round-0').mkdir()
            write_model(staged / 'round-0' / 'model', start)
    workers.barrier('laid out')
    return start


def prune(recipe: PruneRecipe) -> List[Dict[str, Any]]:
    """Run Algorithm 1, going on where an interrupted run stopped.

    Returns
    -------
    list of dict
        As `summary`.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step.
    TrainingDiverged, Terminated
        From `fit`.
    """
    workers = Workers()
    current = _prepare(recipe, workers)
    cost = cost_model(recipe.objective, length=recipe.length)
    job = _Job(recipe, workers, open_shards(recipe, current.vocabulary), cost, cost.cost(current.architecture),
               recipe.steps(current), Reporter(recipe.output / 'metrics.jsonl', workers))
    for number in range(1, recipe.rounds + 1):
        finished = job.directory(number) / 'model'
        current = read_model(finished) if finished.is_dir() else _round(job, current, number)
    rows = summary(recipe.output)
    if workers.first:
        write_file(recipe.output / 'rounds.json', (json.dumps(rows, indent=1) + '\n').encode())
        write_file(recipe.output / 'pruning.md', readable(rows, recipe).encode())
    workers.barrier('finished')
    return rows
