"""Fine-tune one checkpoint here and with Transformers on PyTorch, and set scores and seconds beside each
other.

Both have the same tokens, learning rates, weight decay, clipping, rate of dropout and threads
(OMP_NUM_THREADS; by default the physical cores), and are scored by the same code. New heads and dropout are
drawn on each side. Transformers has its own optimizer, AdamW. With --optimizer adamw this side has the same;
GluonNLP's BERTAdam does not correct the bias of its moments. PyTorch is in float32; --precision is of this
side. With --peer-batches same both have the same batches with the same padding; with shuffled, Transformers
has them as its own examples make them: in random order, padded to the longest of each batch, where this
package puts instances of like lengths together, unless --batching random is given.
The batches of held-out sets are the same in either case. The sides take turns at going first. The result is
written after every run. Nothing else should run meanwhile."""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from workers import SCRIPTS, Worker

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.finetuning.objective import Exercise, FineTuning, start_parameters
from gluon_optbert.finetuning.recipes import GlueRecipe, prepare_glue
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_hugging_face
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.network.settings import check_precision
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, sha256, write_json
from gluon_optbert.runs.machine import commit, machine, threads_here, versions
from gluon_optbert.runs.progress import paired_error, score_text, spread
from gluon_optbert.runs.recipe import option, to_dict, with_options_of
from gluon_optbert.tasks.features import (
    TaskBatch,
    batch_of,
    evaluation_batches,
    steps_per_epoch,
    training_batches,
)
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import Reporter, train
from gluon_optbert.training.objective import Phase

FORMAT, VERSION = 'gluon_optbert fine-tuning comparison', 1
EXAMPLE = (
    'python benchmarks/compare_finetuning.py finetune/recipes/glue.yaml --task MRPC --model models/base '
    '--checkpoint downloads/bert-base-uncased --data glue --peer peers/torch/bin/python --seeds 1,2,3 '
    '--output results/compare_mrpc.json'
)
PEER = SCRIPTS / 'torch_finetuning.py'
SIDES = {'here': 'this package', 'peer': 'Transformers'}
EPSILON = 1e-6  # of Adam, BERTAdam's default
# the settings of finetune/run_glue.py that there are here
_AS_THERE = tuple(
    (
        'task model data seeds epochs batch_size batching evaluation_tokens optimizer learning_rate warmup '
        'weight_decay clip_norm dropout precision max_length limit evaluation_limit log_every'
    ).split()
)


class CompareRecipe(with_options_of(GlueRecipe, _AS_THERE)):
    """Fine-tuning on one task of GLUE, twice."""

    checkpoint: Path = option('Hugging Face directory that the model directory was imported from')
    peer: Path = option('Python interpreter of an environment with torch and transformers')
    peer_batches: str = option(
        'batches that Transformers trains on: the same as this package, or shuffled ones of its own',
        'same',
        choices=('same', 'shuffled'),
    )
    output: Path = option('JSON file to write')

    def own(self) -> GlueRecipe:
        """The recipe of the runs here; nothing is written between their steps."""
        settings = {name: getattr(self, name) for name in _AS_THERE}
        settings.update(output=self.output, select='last', checkpoint_every=0)
        return GlueRecipe(**settings)

    def problems(self) -> list[str]:
        """Problems: fields out of range."""
        return self.own().problems()


class Timed(FineTuning):
    """Fine-tuning that notes loss and seconds of every epoch; what is not evaluation is training."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.epochs: list[dict[str, float]] = []
        self._losses: list[mx.nd.NDArray] = []
        self._since = 0.0

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        self._since = time.perf_counter()
        return super().batches(phase, start)

    def loss_sums(self, batch: TaskBatch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        sums = super().loss_sums(batch, rows)
        self._losses.append(sums[0].detach())
        return sums

    def evaluate(self, phase: Phase) -> dict[str, float]:
        mx.nd.waitall()  # the last step is done then, not only asked for
        trained = time.perf_counter()
        measured = super().evaluate(phase)
        loss = sum(float(value.asscalar()) for value in self._losses) / len(self._exercise.train)
        ended = time.perf_counter()
        self.epochs.append(
            {'loss': loss, 'training_seconds': trained - self._since, 'evaluation_seconds': ended - trained}
        )
        self._losses, self._since = [], ended
        return measured


def run_here(
    recipe: CompareRecipe, seed: int, saved: SavedModel, exercise: Exercise, workers: Workers
) -> dict[str, Any]:
    """Fine-tune with this package: ``epochs`` with their scores, the marks of the last one as ``right``,
    ``versions``, and ``seconds`` from loading on.
    """
    began, own = time.perf_counter(), recipe.own()
    model = build(
        saved.architecture,
        start_parameters(saved, exercise.head, seed=seed),
        own.network_settings(head=exercise.head),
        ctx=workers.context(),
    )
    objective = Timed(model, workers, exercise, own)
    per_epoch = steps_per_epoch(exercise.train, own.batch_size)
    phase = own.phase(
        exercise.name, own.epochs * per_epoch, seed=seed, evaluate_every=per_epoch, notes={'seed': seed}
    )
    with tempfile.TemporaryDirectory() as place:
        progress = train(
            objective,
            own.weight_optimizer(model, workers),
            own.schedule(phase.steps),
            phase,
            reporter=Reporter(Path(place, 'metrics.jsonl'), workers),
            states=Path(place, 'states'),
        )
    epochs = [
        {'epoch': epoch.epoch, **times, 'scores': dict(epoch.scores)}
        for epoch, times in zip(progress.epochs or (), objective.epochs)
    ]
    seconds, right = time.perf_counter() - began, exercise.marks(objective.heldout_scores)
    return {'epochs': epochs, 'right': right, 'versions': versions(), 'seconds': seconds}


def batches_there(recipe: CompareRecipe, seed: int, exercise: Exercise) -> Iterator[TaskBatch]:
    """The training batches of Transformers, of all epochs."""
    features, size = exercise.train, recipe.batch_size
    if recipe.peer_batches == 'same':
        batches = training_batches(features, batch_size=size, seed=seed, batching=recipe.batching)
        yield from itertools.islice(batches, recipe.epochs * steps_per_epoch(features, size))
        return
    for epoch in range(recipe.epochs):
        order = np.random.RandomState([seed, epoch]).permutation(len(features))
        for rows in np.split(order, range(size, len(order), size)):
            yield batch_of(features, rows, width=int(features.lengths[rows].max()))


def job(recipe: CompareRecipe, seed: int, exercise: Exercise) -> dict[str, np.ndarray]:
    """Input of the peer: ``learning_rates``, step by step, and all batches, as ``PART/NUMBER/NAME``. The
    parts are ``train`` and the names of held-out sets, which come without labels; rows that only fill a batch
    are left out.
    """
    steps = recipe.epochs * steps_per_epoch(exercise.train, recipe.batch_size)
    schedule = recipe.own().schedule(steps)
    handed = {'learning_rates': np.array([schedule(step) for step in range(steps)])}
    kind = np.float32 if exercise.head.kind == 'regression' else np.int64
    parts = {'train': batches_there(recipe, seed, exercise)}
    for name, features in exercise.heldout.items():
        parts[name] = evaluation_batches(features, tokens=recipe.evaluation_tokens)
    for part, batches in parts.items():
        for number, batch in enumerate(batches):
            mask = np.arange(batch.input_ids.shape[1]) < batch.valid_length[:, np.newaxis]
            arrays = {'rows': batch.rows, 'input_ids': batch.input_ids}
            arrays |= {'token_type_ids': batch.token_types, 'attention_mask': mask}
            arrays = {name: array.astype(np.int64) for name, array in arrays.items()}
            if part == 'train':
                arrays['labels'] = batch.labels.astype(kind)
            real = batch.instance_weights > 0
            handed.update({f'{part}/{number}/{name}': array[real] for name, array in arrays.items()})
    return handed


def run_peer(recipe: CompareRecipe, seed: int, exercise: Exercise) -> dict[str, Any]:
    """Fine-tune with Transformers; what `run_here` gives. RunFailed with the last line that the peer said."""
    settings = {
        'seed': seed,
        'epochs': recipe.epochs,
        'outputs': exercise.head.outputs,
        'dropout': recipe.dropout,
        'problem': 'regression' if exercise.head.kind == 'regression' else 'single_label_classification',
        'weight_decay': recipe.weight_decay,
        'clip_norm': recipe.clip_norm,
        'epsilon': EPSILON,
        'heldout': list(exercise.heldout),
    }
    with tempfile.TemporaryDirectory() as place:
        inputs, scores = Path(place, 'job.npz'), Path(place, 'scores.npz')
        np.savez(inputs, **job(recipe, seed, exercise))
        words = [recipe.peer, PEER, recipe.checkpoint, inputs, scores, json.dumps(settings)]
        peer = Worker(str(recipe.peer), words, threads=threads_here())
        epochs: list[dict[str, Any]] = []
        with contextlib.closing(peer):
            while 'seconds' not in (answer := peer.answer()):
                epochs.append(answer)
                print(f'Transformers | seed {seed} | {answer}', file=sys.stderr, flush=True)
        with np.load(scores, allow_pickle=False) as arrays:
            for epoch in epochs:
                epoch['scores'] = {
                    f'{name}/{metric}': value
                    for name in exercise.heldout
                    for metric, value in exercise.score(name, arrays[f'{epoch["epoch"]}/{name}']).items()
                }
            right = exercise.marks({name: arrays[f'{recipe.epochs}/{name}'] for name in exercise.heldout})
    return {'epochs': epochs, 'right': right, 'versions': peer.versions, 'seconds': answer['seconds']}


def record(seed: int, side: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """A run as the result has it: with the scores of its last epoch, and its seconds added up."""
    epochs = run['epochs']
    seconds = {name: sum(epoch[f'{name}_seconds'] for epoch in epochs) for name in ('training', 'evaluation')}
    return {
        'seed': seed,
        'side': side,
        'epochs': epochs,
        'kept_epoch': epochs[-1]['epoch'],
        'scores': epochs[-1]['scores'],
        'right': run['right'],
        'seconds': {**seconds, 'total': run['seconds']},
        'versions': run['versions'],
        'commit': commit(),
    }


def summarise(runs: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Over the ``seeds`` that both sides have, means and deviations of ``scores`` by name, with their
    ``difference`` in points, here less there, and its standard ``error``: over the seeds, and over the
    instances where they have marks, which are of the score called `metric`. Likewise of ``seconds``, with
    their ``ratio``, here over there.
    """
    by_side = {side: {run['seed']: run for run in runs if run['side'] == side} for side in SIDES}
    seeds = sorted(by_side['here'].keys() & by_side['peer'].keys())
    summary: dict[str, Any] = {'seeds': seeds, 'scores': {}, 'seconds': {}}
    if not seeds:
        return {}
    for kind in ('scores', 'seconds'):
        for name in by_side['here'][seeds[0]][kind]:
            found: dict[str, Any] = {}
            for side, own in by_side.items():
                mean, deviation = spread([own[seed][kind][name] for seed in seeds])
                found[side] = {'mean': mean, 'std': deviation}
            here, there = (found[side]['mean'] for side in SIDES)
            if kind == 'scores':
                sides = [[by_side[side][seed] for seed in seeds] for side in SIDES]
                gains = [one[kind][name] - other[kind][name] for one, other in zip(*sides)]
                held_out, _, score = name.rpartition('/')
                known = score == metric and sides[0][0]['right']
                right = [[run['right'][held_out] for run in side] for side in sides] if known else ()
                found['difference'], found['error'] = here - there, paired_error(gains, *right)
            else:
                found['ratio'] = here / there
            summary[kind][name] = found
    return summary


def table(result: Mapping[str, Any]) -> str:
    """Means and deviations of the scores in percent, and of the seconds, with the standard error of a
    difference, as Markdown.
    """
    rows = []
    for name, found in result['summary']['scores'].items():
        majority = result['majority'].get(name)
        texts = [score_text(**found[side], majority=majority, digits=2) for side in SIDES]
        error = '' if found['error'] is None else f' ± {found["error"]:.2f}'
        rows.append([name, *texts, f'{found["difference"]:+.2f}{error}'])
    for name, found in result['summary']['seconds'].items():
        texts = [score_text(**found[side], digits=1) for side in SIDES]
        rows.append([f'seconds, {name}', *texts, f'{found["ratio"]:.3f}'])
    return markdown_table([None, *SIDES.values(), 'difference or ratio'], rows)


def check_checkpoint(recipe: CompareRecipe, saved: SavedModel) -> None:
    """ValueError unless the model directory holds the weights of the checkpoint; the heads of pre-training
    aside.
    """
    source = convert(read_hugging_face(recipe.checkpoint)).model
    aside = {'mlm', 'nsp', *(source.progress.untrained or ())}
    table = parameter_table(source.architecture, source.head)
    same = saved.alphas is None and saved.head == source.head
    for name, value in source.parameters.items():
        if table[name].part not in aside:
            same = same and np.array_equal(saved.parameters.get(name), value)
    if not same:
        raise ValueError(f'{recipe.model} is not what {recipe.checkpoint} is imported as')


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, one after the other, and print the table."""
    recipe = parse(CompareRecipe, argv, description=__doc__, example=EXAMPLE)
    refuse_existing(recipe.output)
    if not recipe.peer.is_file():
        raise FileNotFoundError(f'{recipe.peer}: no such interpreter; benchmarks/peers/install.py makes one')
    workers = Workers()
    check_precision(recipe.precision, workers.context())
    saved = read_model(recipe.model)
    check_checkpoint(recipe, saved)
    exercise = prepare_glue(recipe.own(), saved, workers=workers)
    result = {
        'format': FORMAT,
        'version': VERSION,
        'task': exercise.name,
        'metric': f'{next(iter(exercise.heldout))}/{exercise.metric}',
        'unit': 'percent',
        'samples': dict(exercise.samples),
        'majority': dict(exercise.majority),
        'model_sha256': sha256(recipe.model / 'model.params'),
        'parameters': int(ParameterCost().cost(saved.architecture)),
        'recipe': to_dict(recipe),
        'machine': machine(),
        'runs': [],
        'summary': {},
    }
    for number, seed in enumerate(recipe.seeds):
        for side in list(SIDES)[:: -1 if number % 2 else 1]:
            if side == 'here':
                outcome = run_here(recipe, seed, saved, exercise, workers)
            else:
                outcome = run_peer(recipe, seed, exercise)
            result['runs'].append(record(seed, side, outcome))
            result['summary'] = summarise(result['runs'], exercise.metric)
            write_json(recipe.output, result)
    print(table(result))
    print(
        f'\n{exercise.name}, {exercise.samples["train"]} instances to train on, epochs: {recipe.epochs}, '
        f'{recipe.precision} here, batches there: {recipe.peer_batches}, threads: {threads_here()}'
    )
    print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
