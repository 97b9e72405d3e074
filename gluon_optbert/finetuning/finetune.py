"""Fine-tuning: a model directory and a task in, a model directory with the task's head and a result file out.

A run of several seeds leaves one directory: ``recipe.yaml``, ``result.json`` and a model directory for each
seed. What is special about a data set is an `Exercise`; `glue` and `question_answering` have theirs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Callable, Dict, Generator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from gluonnlp.base import get_home_dir
from mxnet import autograd

from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING, Head
from ..architecture.parameters import Parameters, network_shapes
from ..cutting.shrink import without_gates
from ..network.losses import TaskLoss
from ..network.model import OptBERTModel, build, read_parameters
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.manifest import sha256
from ..runs.provenance import origin_here
from ..runs.recipe import checked, option, to_dict
from ..runs.run_directory import RunDirectory, State
from ..runs.staging import refuse_existing, write_file
from ..tasks.features import Features, TaskBatch, evaluation_batches, steps_per_epoch, training_batches
from ..training.distributed import Workers
from ..training.loop import descend
from ..training.objective import Objective, Phase
from ..training.recipe import WeightRecipe
from ..training.reporter import Reporter
from ..training.states import States

FORMAT, VERSION = 'gluon_optbert fine-tuning', 1
INITIAL_STD = 0.02  # of the head's weights, as BERT's


@dataclasses.dataclass(frozen=True)
class FineTuneRecipe(WeightRecipe):
    """What fine-tuning on any task has in common (Devlin et al., 2018, appendix A.3)."""

    model: Path = option('model directory to start from, pruned or not')
    data: Optional[Path] = option(
        'directory of the data in the official layout; without it GluonNLP fetches them', None
    )
    results: Path = option('directory for the result file, which is named after the output', Path('results'))
    seeds: Tuple[int, ...] = option('of the head, data order and dropout; a run for each', (1,))
    epochs: int = option('passes over the training set', 3)
    batch_size: int = option('instances a step, over all workers', 32)
    evaluation_tokens: int = option('tokens of an evaluation batch, padding counted', 8192)
    learning_rate: float = option('its peak', 3e-5)
    warmup: float = option('share of the steps in which the learning rate rises', 0.1)
    select: str = option(
        'which epoch is kept: the last, or the best on the (first) held-out set',
        'last',
        choices=('last', 'best'),
    )
    limit: Optional[int] = option('training instances to use, the first of the file; all unless given', None)
    evaluation_limit: Optional[int] = option(
        'instances of every held-out set and test set to use; all unless given', None
    )
    checkpoint_every: int = option('steps between checkpoints; 0 for none', 1000)
    keep: int = option('newest checkpoints to keep, the best one aside', 1)

    def problems(self) -> List[str]:
        """What is out of range."""
        found = super().problems()
        for name in ('epochs', 'limit', 'evaluation_limit', 'evaluation_tokens'):
            value = getattr(self, name)
            if value is not None and value < 1:
                found.append(f'{name} must be at least 1, found {value}')
        if (
            not self.seeds
            or len(set(self.seeds)) < len(self.seeds)
            or min(self.seeds) < 0
            or max(self.seeds) >= 2**32
        ):
            found.append(
                f'seeds must be different numbers from 0 to 2^32 - 1, found '
                f'{",".join(map(str, self.seeds)) or "none"}'
            )
        return found


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A data set made ready for one network.

    Parameters
    ----------
    name : str
    head : Head
    train : Features
    heldout : mapping of str to Features
        By name; the first decides which epoch is best.
    metric : str
        The one that decides, of those that `score` gives.
    score : callable
        The name of a held-out set and its scores → measurements in percent, by name.
    test : mapping of str to Features
        To predict only.
    files : callable
        The scores of every held-out set and test set → what to leave beside the model, by file name.
    samples : mapping of str to int
        How many there are of each, in the units of the data set.
    """

    name: str
    head: Head
    train: Features
    heldout: Mapping[str, Features]
    metric: str
    score: Callable[[str, np.ndarray], Dict[str, float]]
    test: Mapping[str, Features]
    files: Callable[[Mapping[str, np.ndarray]], Mapping[str, bytes]]
    samples: Mapping[str, int]


def data_directory(
    given: Optional[Path], home: str, files: Sequence[str], load: Callable[[str, str], Any], workers: Workers
) -> Path:
    """Where the files of a data set are: the directory given, or GluonNLP's own after it has fetched what is
    not there.

    Parameters
    ----------
    given : Path, optional
    home : str
        What GluonNLP calls its own directory.
    files : sequence of str
        What is to be fetched into it.
    load : callable
        A file's name without its ending, and its directory: has GluonNLP fetch it.
    workers : Workers

    Raises
    ------
    FileNotFoundError
        If the directory is not there, or nothing can be fetched.
    """
    if given is not None:
        if not Path(given).is_dir():
            raise FileNotFoundError(f'{given}: no such directory')
        return Path(given)
    directory = Path(get_home_dir(), 'datasets', home).expanduser()
    for path in (directory / file for file in files if workers.local_rank == 0):
        try:
            if not path.is_file():
                load(path.stem, str(path.parent))
        except Exception as error:  # whatever sockets, zip files and checksums raise
            raise FileNotFoundError(
                f'{path}: GluonNLP could not fetch it ({type(error).__name__}: {error}); put the files '
                'there yourself, or give their directory with --data'
            ) from error
    workers.barrier('fetched')
    return directory


def start_parameters(saved: SavedModel, head: Head, *, seed: int) -> Parameters:
    """The parameters that fine-tuning begins with: the encoder as it is, and a new head unless there is this
    one already.

    Parameters
    ----------
    saved : SavedModel
        Without gates.
    head : Head
    seed : int
        Of the head's weights.

    Raises
    ------
    ValueError
        If the network has the head of another task.
    """
    if saved.head == head:
        return dict(saved.parameters)
    if saved.head != PRETRAINING:
        raise ValueError(
            f'the network has the head of {saved.head.task or saved.head.kind}, and {head.task} wants '
            f'another; '
            'start from the network as it was pre-trained or pruned'
        )
    shapes = network_shapes(saved.architecture, head)
    new = {
        'task.weight': np.random.RandomState(seed)
        .normal(0.0, INITIAL_STD, shapes['task.weight'])
        .astype(np.float32),
        'task.bias': np.zeros(shapes['task.bias'], np.float32),
    }
    return {name: new[name] if name in new else saved.parameters[name] for name in shapes}


def _feed(batch: TaskBatch, rows: slice, ctx: mx.Context) -> List[mx.nd.NDArray]:
    return [
        mx.nd.array(getattr(batch, name)[rows], ctx=ctx, dtype='float32')
        for name in ('input_ids', 'token_types', 'valid_length', 'labels', 'weights')
    ]


def predict(
    model: OptBERTModel, features: Features, workers: Workers, *, outputs: int, tokens: int
) -> np.ndarray:
    """The scores of all instances, on every worker.

    Parameters
    ----------
    model : OptBERTModel
        With the head of a task.
    features : Features
    outputs : int
        Of the head.
    tokens : int
        Of a batch, padding counted.

    Returns
    -------
    np.ndarray of float32, shape (instances, outputs), or (instances, longest, 2) for question answering
    """
    by_token = not model.head.pooled
    longest = int(features.lengths.max())
    scores = np.zeros((len(features), longest, outputs) if by_token else (len(features), outputs), np.float32)
    for batch in evaluation_batches(features, tokens=tokens, rank=workers.rank, workers=workers.size):
        ids, types, valid, *_ = _feed(batch, slice(None), workers.context())
        with autograd.predict_mode():
            found = model(ids, types, valid).asnumpy()
        if by_token:
            scores[batch.rows, : found.shape[1]] = found
        else:
            scores[batch.rows] = found
    return workers.total(scores, name='scores')


class FineTuning(Objective):
    """The loss of a task, the mean over the instances of the global batch.

    Parameters
    ----------
    model : OptBERTModel
    workers : Workers
    exercise : Exercise
    recipe : FineTuneRecipe
    """

    losses = ('loss',)

    def __init__(self, model: OptBERTModel, workers: Workers, exercise: Exercise, recipe: FineTuneRecipe):
        super().__init__(model, workers)
        self._exercise, self._recipe = exercise, recipe
        self.returns_to_best = recipe.select == 'best'
        self._loss = TaskLoss(exercise.head)
        self._loss.hybridize(static_alloc=True)
        self.heldout_scores: Dict[str, np.ndarray] = {}  # of the last evaluation

    def batches(self, phase: Phase, start: int) -> Generator[TaskBatch, None, None]:
        return training_batches(
            self._exercise.train,
            batch_size=phase.batch_size,
            seed=phase.seed,
            start=start,
            rank=self.workers.rank,
            workers=self.workers.size,
        )

    def loss_sums(self, batch: TaskBatch, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        ids, types, valid, labels, weights = _feed(batch, rows, self.workers.context())
        lengths = () if self.model.head.pooled else (valid,)
        return (self._loss(self.model(ids, types, valid), labels, weights, *lengths),)

    def totals(self, batch: TaskBatch) -> Tuple[int]:
        return (batch.instance_total,)

    def scores(self, sets: Mapping[str, Features]) -> Dict[str, np.ndarray]:
        """The network's scores of some sets, by name."""
        return {
            name: predict(
                self.model,
                features,
                self.workers,
                outputs=self._exercise.head.outputs,
                tokens=self._recipe.evaluation_tokens,
            )
            for name, features in sets.items()
        }

    def evaluate(self, phase: Phase) -> Dict[str, float]:
        self.heldout_scores = self.scores(self._exercise.heldout)
        return {
            f'{name}/{metric}': value
            for name, scores in self.heldout_scores.items()
            for metric, value in self._exercise.score(name, scores).items()
        }

    def remember(self, progress: Dict[str, Any], measured: Mapping[str, float], step: int) -> None:
        epochs = progress.setdefault('epochs', [])
        epochs.append({'epoch': len(epochs) + 1, 'step': step, 'scores': dict(measured)})
        if self.returns_to_best:
            decisive = f'{next(iter(self._exercise.heldout))}/{self._exercise.metric}'
            progress['best_step'] = max(epochs, key=lambda epoch: epoch['scores'][decisive])['step']


def _run_seed(
    seed: int, saved: SavedModel, exercise: Exercise, recipe: FineTuneRecipe, work: Path, workers: Workers
) -> None:
    """Fine-tune with one seed and write its model directory."""
    began = time.perf_counter()
    model = build(
        saved.architecture,
        start_parameters(saved, exercise.head, seed=seed),
        recipe.network_settings(head=exercise.head),
        ctx=workers.context(),
    )
    objective = FineTuning(model, workers, exercise, recipe)
    optimizer = recipe.weight_optimizer(model, workers)
    per_epoch = steps_per_epoch(exercise.train, recipe.batch_size)
    states, metrics = work / f'seed-{seed}.states', work / f'seed-{seed}.jsonl'
    resumed_at = max(States(states, recipe.keep).steps(), default=None)
    phase = recipe.phase(
        exercise.name, recipe.epochs * per_epoch, seed=seed, evaluate_every=per_epoch, notes={'seed': seed}
    )
    progress = descend(
        objective,
        optimizer,
        recipe.schedule(phase.steps),
        phase,
        reporter=Reporter(metrics, workers),
        states=states,
    )
    kept = progress.get('best_step', phase.steps)
    seconds = time.perf_counter() - began
    if kept != phase.steps:
        States(states, recipe.keep).load(kept, optimizer)
    latest = (
        objective.heldout_scores if kept == phase.steps else {}
    )  # none either where the last step was done before resuming
    scores = {**(latest or objective.scores(exercise.heldout)), **objective.scores(exercise.test)}
    chosen = next(epoch for epoch in progress['epochs'] if epoch['step'] == kept)
    record = {
        'seed': seed,
        'epochs': progress['epochs'],
        'kept_epoch': chosen['epoch'],
        'scores': chosen['scores'],
        'seconds': seconds,
        'resumed_at': resumed_at,
    }
    if workers.first:
        extra = {'metrics.jsonl': metrics.read_bytes(), **exercise.files(scores)}
        write_model(
            work / f'seed-{seed}',
            SavedModel(
                saved.architecture,
                read_parameters(model),
                saved.vocabulary,
                to_dict(recipe),
                record,
                head=exercise.head,
            ),
            extra=extra,
        )
    workers.barrier('seed')


def result_path(recipe: FineTuneRecipe) -> Path:
    """The result file of a run, named after its output."""
    recipe = checked(recipe)
    return recipe.results / f'{recipe.output.name}.json'


def _read_result(output: Path) -> Dict[str, Any]:
    return json.loads((output / 'result.json').read_text(encoding='utf-8'))


def _result(
    recipe: FineTuneRecipe, saved: SavedModel, exercise: Exercise, workers: Workers, runs: List[Any]
) -> Dict[str, Any]:
    scores = {name: [run['scores'][name] for run in runs] for name in runs[0]['scores']}
    return {
        'format': FORMAT,
        'version': VERSION,
        'task': exercise.name,
        'metric': f'{next(iter(exercise.heldout))}/{exercise.metric}',
        'unit': 'percent',
        'model_sha256': sha256(recipe.model / 'model.params'),
        'parameters': int(ParameterCost().cost(saved.architecture)),
        'architecture': saved.architecture.to_dict(),
        'samples': dict(exercise.samples),
        'seeds': list(recipe.seeds),
        'runs': runs,
        'mean': {name: float(np.mean(values)) for name, values in scores.items()},
        'std': {
            name: float(np.std(values, ddof=1)) if len(values) > 1 else None
            for name, values in scores.items()
        },
        'recipe': to_dict(recipe),
        **origin_here(),
        'workers': workers.size,
    }


def finetune(
    recipe: FineTuneRecipe, prepare: Callable[[SavedModel], Exercise], *, workers: Workers
) -> Dict[str, Any]:
    """Fine-tune a model directory with every seed of the recipe.

    Parameters
    ----------
    recipe : FineTuneRecipe
    prepare : callable
        The model, without gates → the data set made ready for it.
    workers : Workers

    Returns
    -------
    dict
        The result, as in its file: ``task``, ``metric`` (the score that counts), ``samples``; for each of the
        ``seeds`` one of ``runs``, with the scores of every epoch in percent, the one kept, and the
        ``seconds`` of training with its evaluations; ``mean`` and ``std`` (of the sample) over the seeds by
        score; and where it all comes from.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step.
    TrainingDiverged, Terminated
        From `descend`.
    """
    recipe = checked(recipe)
    recipe.check_workers(workers)
    directory = RunDirectory(recipe, read=_read_result)
    if directory.result is not None:
        return directory.result
    work, path = directory.path, result_path(recipe)
    if directory.state is State.NEW:
        refuse_existing(path, remedy='remove it, or give another --output or --results')
    saved = without_gates(read_model(recipe.model))
    exercise = prepare(saved)
    start_parameters(saved, exercise.head, seed=0)  # raises if the head is another's
    directory.lay_out(workers)
    for seed in recipe.seeds:
        if not (work / f'seed-{seed}').exists():
            _run_seed(seed, saved, exercise, recipe, work, workers)
        if workers.first:  # also what a run left that was killed just here
            shutil.rmtree(work / f'seed-{seed}.states', ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                (work / f'seed-{seed}.jsonl').unlink()
    runs = [dict(read_model(work / f'seed-{seed}').progress) for seed in recipe.seeds]
    result = _result(recipe, saved, exercise, workers, runs)
    if workers.first:
        content = (json.dumps(result, indent=1) + '\n').encode()
        write_file(work / 'result.json', content)
        write_file(path, content)
        os.rename(work, recipe.output)
    workers.barrier('written')
    return result


def summary(result: Mapping[str, Any]) -> str:
    """The scores of a result in one line."""
    parts = [
        f'{name} {mean:.2f}' + ('' if result['std'][name] is None else f' ± {result["std"][name]:.2f}')
        for name, mean in result['mean'].items()
    ]
    return f'{result["task"]}, seeds {",".join(map(str, result["seeds"]))}: ' + ' | '.join(parts)
