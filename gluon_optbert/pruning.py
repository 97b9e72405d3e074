"""Algorithm 1 of optBERT: train the gates, zero the smallest, fold, cut, recover, and again.

    RUN_DIR/recipe.yaml  metrics.jsonl  rounds.json  pruning.md
    RUN_DIR/latency.json             predicted and measured, with the objective latency
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

import mxnet as mx
import numpy as np

from .architecture import Architecture
from .checkpoint import SavedModel, gate_name, read_model, write_model
from .baselines import DROPS, magnitude_scores, random_scores, select_blocks, select_layers, select_uniform
from .cost import OBJECTIVES, CostModel, LatencyCost, ParameterCost, beta, cost_model, count_flops
from .distributed import Workers
from .heads import PARTS, PRETRAINING
from .latency import check_predictions
from .loop import Reporter
from .model import OptBERTModel, build, named_parameters, read_parameters
from .penalty import PENALTIES
from .pretraining import TrainingRecipe, open_shards
from .recipe import check_same, option, save, to_dict
from .selection import LETTERS, Alphas, Selection, select_units
from .shards import Shards
from .shrink import shrink
from .staging import new_directory, refuse_existing, write_file
from .optimization import Optimizer, Schedule
from .training import evaluate, fit, gradients

METHODS = ('alpha', 'random', 'magnitude', 'uniform', 'layers', 'blocks', 'heads')
UNRANKED = ('uniform', 'layers', 'blocks')  # they choose widths or layers, not units


@dataclasses.dataclass(frozen=True)
class PruneRecipe(TrainingRecipe):
    """A pruning run."""
    model: Path = option('model directory to prune')
    target: float = option('share of the model\'s cost that is to be left', 0.6)
    rounds: int = option('T, the rounds of training gates, cutting and recovering', 4)
    targets: Tuple[float, ...] = option('a ladder, such as 0.9,0.8,0.7: the share that is left after each round, instead of '
                                        'target and rounds', ())
    prune: str = option('the widths that may lose units, of h a k v f', LETTERS)
    method: str = option('what chooses the units: trained gates; or a baseline: chance, the size of the weights, one factor '
                         'for all widths, whole layers, whole intermediate blocks at even distances, or heads by the importance '
                         'of Michel et al. (2019)', 'alpha',
                         choices=METHODS)
    drop: str = option('which layers the method layers drops', 'last', choices=DROPS)
    multiple_of: int = option('widths h, k, v and f that lose units end at multiples of this', 1)
    drop_blocks: bool = option('whether f may reach 0, which takes the whole intermediate block of a layer away', False)
    objective: str = option('what the cost counts', 'parameters', choices=OBJECTIVES)
    length: int = option('tokens of a sequence for the FLOPs objective', 128)
    latency_model: Optional[Path] = option('what tools/fit_latency.py wrote, for the latency objective', None)
    penalty: str = option('what pushes alpha to zero', 'l1', choices=tuple(PENALTIES))
    gamma: float = option('weight of the penalty on alpha', 1e-2)
    alpha_steps: Optional[int] = option('steps of training the gates in a round; by default 1/1000 of the '
                                        'pre-training steps', None)
    alpha_learning_rate: float = option('of the gates', 1e-2)
    alpha_optimizer: str = option('of the gates', 'adam', choices=('adam', 'sgd'))
    recovery_steps: Optional[int] = option('steps of recovery in a round; by default 1/20 of the pre-training steps', None)

    def problems(self) -> List[str]:
        """What is out of range."""
        found = super().problems()
        for name, share in [('target', self.target)] + [('targets', share) for share in self.targets]:
            if not 0 < share < 1:
                found.append(f'{name} must lie between 0 and 1, found {share}')
        if any(later >= earlier for earlier, later in zip(self.targets, self.targets[1:])):
            found.append(f'targets must decrease, found {", ".join(map(str, self.targets))}')
        if self.multiple_of < 1:
            found.append(f'multiple_of must be at least 1, found {self.multiple_of}')
        if self.multiple_of > 1 and self.method in UNRANKED:
            found.append(f'multiple_of does not go with the method {self.method}')
        if self.drop_blocks and ('f' not in self.prune or self.method in UNRANKED):
            found.append(f'drop_blocks goes with a method that ranks filters, found {self.method} on {self.prune!r}')
        for method, width in (('heads', 'a'), ('blocks', 'f')):
            if self.method == method and self.prune != width:
                found.append(f'the method {method} goes with --prune {width}, found {self.prune!r}')
        if self.method == 'layers' and set(self.prune) != set(LETTERS):
            found.append(f'the method layers takes whole layers; leave prune at {LETTERS}, found {self.prune!r}')
        if (self.objective == 'latency') != (self.latency_model is not None):
            found.append('the objective latency and latency_model go together')
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

    def shares(self) -> List[float]:
        """The share of the cost that is left after each round."""
        if self.targets:
            return list(self.targets)
        return [1 - (1 - self.target) * number / self.rounds for number in range(1, self.rounds)] + [self.target]

    def cost(self) -> CostModel:
        """What the budget counts."""
        return cost_model(self.objective, length=self.length, latency_model=self.latency_model)

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
        return self.whole * self.recipe.shares()[number - 1]

    def directory(self, number: int) -> Path:
        return self.recipe.output / f'round-{number}'

    def evaluate(self, model: OptBERTModel) -> Dict[str, float]:
        return evaluate(model, self.shards['heldout'], self.workers, batch_size=self.recipe.batch_size,
                        limit=self.recipe.evaluation_limit)

    def build(self, saved: SavedModel, **options: Any) -> OptBERTModel:
        return build(saved.architecture, saved.parameters, ctx=self.workers.context(),
                     **{'dropout': self.recipe.dropout, 'precision': self.recipe.precision, **options})


def train_gates(job: _Job, current: SavedModel, number: int) -> Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """Train alpha by equation (2) with the weights frozen.

    Returns
    -------
    alphas : dict of width key to np.ndarray
        What the weights are multiplied by. A unit that the penalty has put at exactly zero has an alpha of one: should the
        budget let it stay, weights folded by zero could never recover.
    scores : dict of width key to np.ndarray
        What ranks the units: the trained values themselves.
    """
    recipe = job.recipe
    kind = PENALTIES[recipe.penalty]
    model = job.build(current, gated=kind.gate)
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    gates = model.gates
    for key, parameter in gates.parameters.items():
        if key[0] in recipe.prune:
            parameter.grad_req = 'write'
        else:
            parameter.set_data(mx.nd.full(parameter.shape, kind.gate.FIXED))
    steps, recovery = job.steps
    phase = recipe.phase('gates', steps, evaluate_every=0, first_batch=(number - 1) * (steps + recovery),
                         notes={'round': number, 'parameters': ParameterCost().cost(current.architecture)})
    optimizer = Optimizer({gate_name(key): parameter for key, parameter in gates.trained().items()},
                          recipe.alpha_optimizer, workers=job.workers, scale=recipe.loss_scale(), compression=recipe.compression)
    fit(model, optimizer, Schedule(recipe.alpha_learning_rate, steps, decay=False), phase, shards=job.shards['train'],
        heldout=None, workers=job.workers, reporter=job.reporter, states=job.directory(number) / 'gate-states',
        penalty=kind(recipe.gamma, beta(current.architecture, job.cost)))
    trained = gates.values()
    values = {key: kind.gate.value(value) for key, value in trained.items()}
    scores = {key: np.exp(value) for key, value in trained.items()} if recipe.penalty == 'l0' else values
    return {key: np.where(value == 0, np.float32(1), value) for key, value in values.items()}, scores


def head_importance(job: _Job, current: SavedModel, number: int) -> Dict[str, np.ndarray]:
    """Scores of the heads by Michel et al. (2019), "Are Sixteen Heads Really Better than One?", equation (2).

    The expected magnitude of the loss's derivative towards a head's output gate, over as many batches as gates would be
    trained for, normalised within each layer as there. A head's output is linear in its values, so the derivative is the
    inner product of the value weights with their gradients.

    Returns
    -------
    dict of width key to np.ndarray
        Ones for every width other than the heads.
    """
    model = job.build(current, precision='float32')
    values = {name: parameter for name, parameter in named_parameters(model).items() if '.proj_value.' in name}
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    for parameter in values.values():
        parameter.grad_req = 'write'
    steps, recovery = job.steps
    phase = job.recipe.phase('importance', steps, first_batch=(number - 1) * (steps + recovery))
    scores = {key: np.zeros(width) if key[0] == 'a' else np.ones(width)
              for key, width in current.architecture.widths().items()}
    for _ in gradients(model, values, phase, shards=job.shards['train'], workers=job.workers):
        for i, layer in enumerate(current.architecture.layers):
            prefix = f'encoder.transformer_cells.{i}.attention_cell.proj_value.'
            slope = sum((values[prefix + part].data() * values[prefix + part].grad()).asnumpy().reshape(layer.a, -1).sum(1)
                        for part in ('weight', 'bias'))
            scores[f'a{i}'] += np.abs(slope)
    for key, score in scores.items():
        if key[0] == 'a':
            scores[key] = score / max(float(np.linalg.norm(score)), 1e-30)
    return scores


def _rank(job: _Job, current: SavedModel, number: int) -> Tuple[Alphas, Alphas]:
    """Alpha to fold, and the scores that rank the units, by the method of the recipe."""
    recipe, architecture = job.recipe, current.architecture
    if recipe.method == 'alpha':
        return train_gates(job, current, number)
    alphas = {key: np.ones(width, dtype=np.float32) for key, width in architecture.widths().items()}
    if recipe.method == 'heads':
        return alphas, head_importance(job, current, number)
    if recipe.method == 'random':
        return alphas, random_scores(architecture, recipe.seed + number)
    return alphas, magnitude_scores(current.parameters, architecture)


def _select(job: _Job, current: SavedModel, scores: Alphas, number: int) -> Selection:
    """The units that stay, by the method of the recipe."""
    recipe, target = job.recipe, job.target(number)
    if recipe.method == 'layers':
        return select_layers(current.architecture, job.cost, target, drop=recipe.drop)
    if recipe.method == 'blocks':
        return select_blocks(current.architecture, job.cost, target)
    if recipe.method == 'uniform':
        return select_uniform(scores, current.architecture, job.cost, target, prune=recipe.prune)
    return select_units(scores, current.architecture, job.cost, target, prune=recipe.prune,
                        multiple_of=recipe.multiple_of, drop_blocks=recipe.drop_blocks)


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
    before = job.evaluate(job.build(current))
    alphas, scores = _rank(job, current, number)
    selection = _select(job, current, scores, number)
    story = explain(selection, scores, job.cost.prices(current.architecture), job.cost.cost(current.architecture), number)
    if recipe.multiple_of > 1:
        plain = select_units(scores, current.architecture, job.cost, job.target(number), prune=recipe.prune,
                             drop_blocks=recipe.drop_blocks)
        story['multiple_of'] = {'units': recipe.multiple_of, 'cost_below_plain_selection': plain.cost - selection.cost}
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


def readable(rows: List[Dict[str, Any]], recipe: PruneRecipe, latency: Optional[Mapping[str, Any]] = None) -> str:
    """The rounds of a run as Markdown, with what `check_predictions` found where latency was the objective."""
    shares = recipe.shares()
    lines = ['# Pruning run', '', f'Method {recipe.method} on {recipe.prune}: {recipe.objective} to {shares[-1]:.0%} in '
             f'{len(shares)} rounds.', '',
             '| round | parameters | FLOPs at 128 | MLM before | after the cut | recovered | h | a | k | v | f |',
             '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |']
    for row in rows:
        def loss(name):
            return f'{row[name]["mlm_loss"]:.3f}' if row[name] else '–'
        layers = row['architecture']['layers']
        lines.append(f'| {row["round"]} | {row["parameters"] / 1e6:.3f} M | {row["flops"] / 1e9:.3f} G | {loss("before")} '
                     f'| {loss("after_cut")} | {loss("recovered")} | {row["architecture"]["h"]} | '
                     + ' | '.join(widths_line(layers, letter) for letter in 'akvf') + ' |')
    if latency:
        lines += ['', '| | predicted | measured |', '| --- | --- | --- |'] + [
            f'| {name} | {found["predicted_ms"]:.2f} ms | {found["measured_ms"]:.2f} ms |' for name, found in latency.items()]
    return '\n'.join(lines) + '\n'


def read_start(directory: Path) -> SavedModel:
    """A model directory that can be pruned: with the heads of pre-training, trained, and without gates; else ValueError."""
    start = read_model(directory)
    if start.head != PRETRAINING:
        raise ValueError(f'{directory} has the head of {start.head.task or start.head.kind} instead of those of pre-training; '
                         'prune the network that it was fine-tuned from')
    if start.progress.get('untrained'):
        lacking = ' and '.join(PARTS[part] for part in start.progress['untrained'])
        raise ValueError(f'{directory} was imported without {lacking}, and what stands there is random; train it first, with '
                         'pretrain/run_pretraining.py --train heads')
    if start.alphas:
        raise ValueError(f'{directory} still has its gates; fold them with tools/export_model.py first')
    return start


def unreachable(recipe: PruneRecipe, architecture: Architecture) -> Optional[str]:
    """Why a run cannot come down to the share that it is to leave of a network; None if it can."""
    cost, empty = recipe.cost(), recipe.drop_blocks or recipe.method == 'blocks'
    least = {key: int(key[0] != 'f' or not empty) for key, width in architecture.widths().items()
             if key[0] in recipe.prune and width}
    smallest = architecture.with_widths(least) if recipe.method != 'layers' else dataclasses.replace(
        architecture, layers=architecture.layers[:1])
    reachable, wanted = cost.cost(smallest) / cost.cost(architecture), recipe.shares()[-1]
    if reachable <= wanted:
        return None
    how, left = ('dropping layers', 'one layer') if recipe.method == 'layers' else (
        f'pruning {recipe.prune}', 'one unit of each width' + (' but f' if empty else ''))
    return (f'target {wanted:.4g} cannot be reached by {how}: with {left} left, {reachable:.3f} of the {recipe.objective} '
            'remain; ask for more, or prune more widths')


def _prepare(recipe: PruneRecipe, workers: Workers) -> SavedModel:
    """Check everything before the first step, and lay the run directory out; the network that is pruned."""
    recipe.check_workers(workers)
    base = recipe.output / 'round-0' / 'model'
    if recipe.output.exists() and recipe.resume:
        check_same(recipe, recipe.output / 'recipe.yaml')
        return read_model(base)
    refuse_existing(recipe.output, remedy='go on with --resume, choose another path, or remove it')
    start = read_start(recipe.model)
    problem = unreachable(recipe, start.architecture)
    if problem:
        raise ValueError(problem)
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
    cost = recipe.cost()
    job = _Job(recipe, workers, open_shards(recipe, current.vocabulary), cost, cost.cost(current.architecture),
               recipe.steps(current), Reporter(recipe.output / 'metrics.jsonl', workers))
    for number in range(1, len(recipe.shares()) + 1):
        directory = job.directory(number)
        current = read_model(directory / 'model') if (directory / 'model').is_dir() else _round(job, current, number)
        if workers.first:
            for states in ('gate-states', 'recovery-states'):
                shutil.rmtree(directory / states, ignore_errors=True)
    rows = summary(recipe.output)
    if workers.first:
        write_file(recipe.output / 'rounds.json', (json.dumps(rows, indent=1) + '\n').encode())
        latency = None
        if isinstance(cost, LatencyCost):
            latency = check_predictions(cost, {name: Architecture.from_dict(row['architecture'], source='rounds.json')
                                               for name, row in (('before', rows[0]), ('finished', rows[-1]))})
            write_file(recipe.output / 'latency.json', (json.dumps(latency, indent=1) + '\n').encode())
        write_file(recipe.output / 'pruning.md', readable(rows, recipe, latency).encode())
    workers.barrier('finished')
    return rows
