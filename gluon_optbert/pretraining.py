"""Pre-training: shards in, a model directory out."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from mxnet import gluon

from .architecture.cost import ParameterCost
from .architecture.heads import PRETRAINING
from .architecture.named import resolve
from .architecture.parameters import PARTS, part_of
from .distributed import COMPRESSIONS, Workers
from .loop import Phase, Reporter
from .network.model import OptBERTModel, build, named_parameters, read_parameters
from .network.precision import TRAINING_PRECISIONS, check_precision
from .network.saved_model import SavedModel, read_model, write_model
from .optimization import OPTIMIZERS, LossScale, Optimizer, Schedule
from .runs.provenance import ORIGIN, note_origin
from .runs.recipe import check_same, option, save, to_dict
from .runs.staging import new_directory, refuse_existing
from .text.shards import Shards
from .text.vocabulary import vocabulary_hash
from .training import fit


@dataclasses.dataclass(frozen=True)
class WeightRecipe:
    """What every run that trains weights has in common."""

    output: Path = option('where the result is written')
    batch_size: int = option('instances a step, over all workers', 256)
    accumulate: int = option('passes that a worker splits its share of a batch into', 1)
    optimizer: str = option('of the weights', 'bertadam', choices=OPTIMIZERS[:2])
    learning_rate: float = option('its peak', 1e-4)
    warmup: float = option('share of the steps in which the learning rate rises', 0.01)
    precision: str = option(
        "of the encoder's matrix products, all else stays float32; bfloat16 is for processors with AVX-512, "
        'float16 for GPUs, with a loss scale that adapts',
        'float32',
        choices=TRAINING_PRECISIONS,
    )
    compression: str = option(
        'of the gradients on their way between workers: fp16 sends half the bytes',
        'none',
        choices=COMPRESSIONS,
    )
    weight_decay: float = option('of all weights but biases and LayerNorms', 0.01)
    clip_norm: float = option('largest 2-norm of the gradient', 1.0)
    dropout: float = option('of embeddings, attention probabilities and block outputs', 0.1)
    log_every: int = option('steps between metrics', 50)
    checkpoint_every: int = option('steps between checkpoints; 0 for none', 500)
    keep: int = option('newest checkpoints to keep, the best one aside', 2)
    resume: bool = option('go on from the newest checkpoint of an unfinished run', False)

    def problems(self) -> List[str]:
        """What is out of range."""
        found = []
        for name in ('batch_size', 'accumulate', 'keep'):
            if getattr(self, name) < 1:
                found.append(f'{name} must be at least 1, found {getattr(self, name)}')
        for name in ('log_every', 'checkpoint_every'):
            if getattr(self, name) < 0:
                found.append(f'{name} must not be negative, found {getattr(self, name)}')
        for name in ('warmup', 'dropout'):
            if not 0 <= getattr(self, name) < 1:
                found.append(f'{name} must be at least 0 and below 1, found {getattr(self, name)}')
        for name in ('learning_rate', 'clip_norm'):
            if getattr(self, name) <= 0:
                found.append(f'{name} must be above 0, found {getattr(self, name)}')
        if self.weight_decay < 0:
            found.append(f'weight_decay must not be negative, found {self.weight_decay}')
        return found

    def phase(self, name: str, steps: int, **more: Any) -> Phase:
        """A phase of the run with the recipe's settings."""
        return Phase(
            name=name,
            steps=steps,
            **{
                **dict(
                    batch_size=self.batch_size,
                    accumulate=self.accumulate,
                    log_every=self.log_every,
                    checkpoint_every=self.checkpoint_every,
                    keep=self.keep,
                ),
                **more,
            },
        )

    def weight_optimizer(
        self,
        model: OptBERTModel,
        workers: Workers,
        parameters: Optional[Mapping[str, gluon.Parameter]] = None,
    ) -> Optimizer:
        """The optimizer of all weights, or of the given ones."""
        return Optimizer(
            named_parameters(model) if parameters is None else parameters,
            self.optimizer,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            workers=workers,
            scale=self.loss_scale(),
            compression=self.compression,
        )

    def loss_scale(self) -> Optional[LossScale]:
        """What float16 wants the loss multiplied by."""
        return LossScale() if self.precision == 'float16' else None

    def schedule(self, steps: int) -> Schedule:
        """Warm-up and linear decay over so many steps."""
        return Schedule(self.learning_rate, steps, int(self.warmup * steps))

    def check_workers(self, workers: Workers) -> None:
        """Raise ValueError unless the batch divides among workers and passes, and they can compute in the
        precision.
        """
        check_precision(self.precision, workers.context())
        parts = workers.size * self.accumulate
        if self.batch_size % parts:
            raise ValueError(
                f'batch_size {self.batch_size} does not divide among {workers.size} workers with '
                f'{self.accumulate} passes each; choose a multiple of {parts}'
            )


@dataclasses.dataclass(frozen=True)
class TrainingRecipe(WeightRecipe):
    """What every run that trains weights by equation (1) has in common."""

    shards: Path = option('directory of shards that pretrain/make_shards.py made')
    seed: int = option('of weights, data order and dropout', 1)
    evaluate_every: int = option('steps between held-out evaluations; 0 for one at the end', 1000)
    evaluation_limit: int = option('held-out instances to evaluate on', 2048)

    def problems(self) -> List[str]:
        """What is out of range."""
        found = super().problems()
        if self.evaluation_limit < 1:
            found.append(f'evaluation_limit must be at least 1, found {self.evaluation_limit}')
        for name in ('evaluate_every', 'seed'):
            if getattr(self, name) < 0:
                found.append(f'{name} must not be negative, found {getattr(self, name)}')
        return found

    def phase(self, name: str, steps: int, **more: Any) -> Phase:
        """A phase of the run with the recipe's settings."""
        return super().phase(
            name,
            steps,
            **{
                **dict(
                    seed=self.seed, evaluate_every=self.evaluate_every, evaluation_limit=self.evaluation_limit
                ),
                **more,
            },
        )


@dataclasses.dataclass(frozen=True)
class PretrainRecipe(TrainingRecipe):
    """A pre-training run."""

    architecture: str = option('its name (l4_h256_a4, bert_base), or a file, or JSON', 'bert_base')
    model: Optional[Path] = option('model directory to start from instead of random weights', None)
    steps: int = option('steps of training', 1000000)
    initial_std: float = option(
        'standard deviation of the random initial weights; small networks want more, about '
        '0.6 over the square root of h',
        0.02,
    )
    train: str = option(
        'every weight, or the heads that an imported checkpoint lacked with the rest frozen',
        'all',
        choices=('all', 'heads'),
    )

    def problems(self) -> List[str]:
        """What is out of range."""
        found = super().problems()
        if self.steps < 1:
            found.append(f'steps must be at least 1, found {self.steps}')
        if self.initial_std <= 0:
            found.append(f'initial_std must be above 0, found {self.initial_std}')
        if self.train == 'heads' and self.model is None:
            found.append('train heads goes with model, a directory that tools/import_checkpoint.py made')
        return found


def open_shards(recipe: TrainingRecipe, vocabulary=None) -> Dict[str, Shards]:
    """Both splits of the recipe's shards; ValueError if they were made with another vocabulary."""
    expected = None if vocabulary is None else vocabulary_hash(vocabulary)
    return {
        split: Shards.open(recipe.shards, split=split, vocabulary_hash=expected)
        for split in ('train', 'heldout')
    }


def work_directory(output: Path) -> Path:
    """Where an unfinished run keeps its checkpoints and metrics: beside its output."""
    return output.with_name(output.name + '.training')


def _start(recipe: PretrainRecipe) -> Optional[SavedModel]:
    """The model that a run starts from, if it does not start from random weights."""
    if recipe.model is None:
        return None
    start = read_model(recipe.model)
    if start.head != PRETRAINING:
        raise ValueError(
            f'{recipe.model} has the head of {start.head.task or start.head.kind} instead of those of '
            f'pre-training; '
            'start from the network that it was fine-tuned from'
        )
    if recipe.train == 'heads' and not start.progress.get('untrained'):
        raise ValueError(
            f'{recipe.model} has no untrained {", ".join(PARTS.values())}; leave --train heads away'
        )
    return start


def _trained(
    model: OptBERTModel, recipe: PretrainRecipe, start: Optional[SavedModel]
) -> Dict[str, gluon.Parameter]:
    """The parameters that a run trains; all others are frozen, among them the embedding that the MLM head is
    tied to.
    """
    parameters = named_parameters(model)
    if recipe.train == 'all' or start is None:
        return parameters
    trained = {
        name: parameter
        for name, parameter in parameters.items()
        if part_of(name) in start.progress['untrained']
    }
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.grad_req = 'null'
    return trained


def trained_steps(progress: Mapping[str, Any]) -> int:
    """The steps of pre-training that a model has behind it, in all phases; 0 if it does not say."""
    return int(progress.get('step', 0)) + int(progress.get('earlier_steps', 0))


def _progress(
    measured: Mapping[str, Any], recipe: PretrainRecipe, start: Optional[SavedModel]
) -> Dict[str, Any]:
    """What the finished model says of its training: ``step`` of this phase, and ``earlier_steps`` of the
    phases before, as in BERT's pre-training with 128 and then with 512 tokens. Steps of the heads alone are
    not steps of pre-training."""
    if recipe.train == 'all' or start is None:
        earlier = trained_steps(start.progress) if start else 0
        return {**measured, 'earlier_steps': earlier} if earlier else dict(measured)
    before = {name: start.progress[name] for name in ('step', 'earlier_steps') if name in start.progress}
    return {**before, **{'head_steps' if name == 'step' else name: value for name, value in measured.items()}}


def pretrain(recipe: PretrainRecipe) -> Dict[str, Any]:
    """Pre-train a network and write its model directory.

    Returns
    -------
    dict
        What was measured at the end; see `fit`.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step.
    TrainingDiverged, Terminated
        From `fit`.
    """
    workers = Workers()
    recipe.check_workers(workers)
    work = work_directory(recipe.output)
    if recipe.output.exists() and recipe.resume:  # it was done, though it may not have lived to say so
        progress = dict(read_model(recipe.output).progress)
        check_same(recipe, recipe.output / 'recipe.yaml')
        workers.barrier('seen')
        shutil.rmtree(work, ignore_errors=True)
        return progress
    refuse_existing(recipe.output)
    if work.exists():
        if not recipe.resume:
            raise FileExistsError(f'{work} holds an unfinished run; go on with --resume, or remove it')
        check_same(recipe, work / 'recipe.yaml')
    start = _start(recipe)
    shards = open_shards(recipe, start.vocabulary if start else None)
    vocabulary = shards['train'].vocabulary()
    architecture = start.architecture if start else resolve(recipe.architecture, vocab_size=len(vocabulary))
    if architecture.vocab_size != len(vocabulary):
        raise ValueError(
            f"the architecture has {architecture.vocab_size} tokens, the shards' vocabulary {len(vocabulary)}"
        )
    if shards['train'].max_seq_length > architecture.max_length:
        raise ValueError(
            f'shards have up to {shards["train"].max_seq_length} tokens, the architecture has '
            f'{architecture.max_length} positions'
        )
    workers.barrier('checked')
    if workers.first and not work.exists():
        with new_directory(work) as staged:
            save(recipe, staged / 'recipe.yaml')
    if workers.first:
        note_origin(work, workers=workers.size)
    workers.barrier('laid out')

    model = build(
        architecture,
        start.parameters if start else None,
        seed=recipe.seed,
        initial_std=recipe.initial_std,
        dropout=recipe.dropout,
        precision=recipe.precision,
        ctx=workers.context(),
    )
    workers.broadcast([parameter.data() for parameter in named_parameters(model).values()], name='weights')
    reporter = Reporter(work / 'metrics.jsonl', workers)
    size = ParameterCost().cost(architecture)
    optimizer = recipe.weight_optimizer(model, workers, _trained(model, recipe, start))
    measured = fit(
        model,
        optimizer,
        recipe.schedule(recipe.steps),
        recipe.phase('pretraining', recipe.steps, notes={'parameters': size}),
        shards=shards['train'],
        heldout=shards['heldout'],
        workers=workers,
        reporter=reporter,
        states=work / 'states',
    )
    progress = _progress(measured, recipe, start)
    if workers.first:
        write_model(
            recipe.output,
            SavedModel(architecture, read_parameters(model), vocabulary, to_dict(recipe), progress),
            extra={name: (work / name).read_bytes() for name in ('metrics.jsonl', ORIGIN)},
        )
        shutil.rmtree(work)
    workers.barrier('written')
    return progress
