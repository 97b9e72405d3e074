"""The fields that recipes of training share, and what they decide."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Tuple

from mxnet import gluon

from ..architecture.architecture import Architecture
from ..architecture.parameters import parameter_table
from ..network.model import OptBERTModel, named_parameters
from ..network.settings import TRAINING_PRECISIONS, NetworkSettings, check_precision
from ..runs.programs import named
from ..runs.recipe import option, seed_problems
from ..text.shards import Shards
from ..text.tokenizer import Vocabulary, vocabulary_hash
from .distributed import COMPRESSIONS, Workers
from .objective import Phase
from .optimization import OF_WEIGHTS, LossScale, Optimizer, Schedule


@dataclasses.dataclass(frozen=True)
class WeightRecipe:
    """What every run that trains weights has in common."""

    output: Path = option('where the result is written')
    batch_size: int = option('instances in a batch, over all workers', 256)
    accumulate: int = option(
        "forward and backward passes for a worker's share of a batch; more need less memory", 1
    )
    optimizer: str = option('optimizer of the weights', 'bertadam', choices=OF_WEIGHTS)
    learning_rate: float = option('peak learning rate', 1e-4)
    warmup: float = option('share of the steps in which the learning rate rises to its peak', 0.01)
    precision: str = option(
        "precision of the encoder's matrix products; everything else stays float32. bfloat16 needs a "
        'processor with AVX-512; float16 is for GPUs and uses dynamic loss scaling',
        'float32',
        choices=TRAINING_PRECISIONS,
    )
    compression: str = option(
        'compression of the gradients between workers; fp16 rounds them and halves their bytes',
        'none',
        choices=COMPRESSIONS,
    )
    weight_decay: float = option('weight decay of all weights except biases and LayerNorms', 0.01)
    clip_norm: float = option('largest 2-norm of the gradient; a larger gradient is scaled down', 1.0)
    dropout: float = option('dropout of embeddings, attention probabilities and block outputs', 0.1)
    log_every: int = option('steps between logged metrics; 0 for the last only', 50)
    checkpoint_every: int = option('steps between checkpoints; 0 for none', 500)
    keep: int = option('number of newest checkpoints to keep, besides the best one', 2)
    resume: bool = option('continue an unfinished run from its newest checkpoint', False)

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = []
        for name in ('batch_size', 'accumulate', 'keep'):
            if getattr(self, name) < 1:
                problems.append(f'{name} must be at least 1, found {getattr(self, name)}')
        for name in ('log_every', 'checkpoint_every'):
            if getattr(self, name) < 0:
                problems.append(f'{name} must not be negative, found {getattr(self, name)}')
        for name in ('warmup', 'dropout'):
            if not 0 <= getattr(self, name) < 1:
                problems.append(f'{name} must be at least 0 and below 1, found {getattr(self, name)}')
        for name in ('learning_rate', 'clip_norm'):
            if getattr(self, name) <= 0:
                problems.append(f'{name} must be above 0, found {getattr(self, name)}')
        if self.weight_decay < 0:
            problems.append(f'weight_decay must not be negative, found {self.weight_decay}')
        return problems

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
        table = parameter_table(model.architecture, model.head)
        return Optimizer(
            named_parameters(model) if parameters is None else parameters,
            self.optimizer,
            weight_decay=self.weight_decay,
            decayed={name for name, spec in table.items() if spec.decayed},
            clip_norm=self.clip_norm,
            workers=workers,
            scale=self.loss_scale(),
            compression=self.compression,
        )

    def network_settings(self, **more: Any) -> NetworkSettings:
        """How the network is built that is trained."""
        return NetworkSettings(dropout=self.dropout, precision=self.precision, **more)

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

    shards: Path = option(f'directory of shards, made by {named("optbert-make-shards")}')
    seed: int = option('random seed of initial weights, data order and dropout', 1)
    evaluate_every: int = option(
        'steps between evaluations on held-out data; 0 for only one, at the end', 1000
    )
    evaluation_limit: int = option('largest number of held-out instances to evaluate on', 2048)

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = super().problems()
        if self.evaluation_limit < 1:
            problems.append(f'evaluation_limit must be at least 1, found {self.evaluation_limit}')
        if self.evaluate_every < 0:
            problems.append(f'evaluate_every must not be negative, found {self.evaluate_every}')
        return problems + seed_problems(self.seed)

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

    ALTERNATIVES: ClassVar[Tuple[Tuple[str, str, str], ...]] = (
        ('model', 'architecture', 'a model directory has an architecture of its own'),
    )

    architecture: str = option('architecture: a name (l4_h256_a4, bert_base), a file or JSON', 'bert_base')
    model: Optional[Path] = option('model directory to start from instead of random weights', None)
    steps: int = option('steps of training', 1000000)
    initial_std: float = option(
        'standard deviation of the random initial weights; small networks need a larger one, about '
        '0.6 divided by the square root of h',
        0.02,
    )
    train: str = option(
        'what to train: all weights, or only the heads that an imported checkpoint lacked',
        'all',
        choices=('all', 'heads'),
    )

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = super().problems()
        if self.steps < 1:
            problems.append(f'steps must be at least 1, found {self.steps}')
        if self.initial_std <= 0:
            problems.append(f'initial_std must be above 0, found {self.initial_std}')
        if self.train == 'heads' and self.model is None:
            problems.append(f'train heads goes with model, a directory that {named("optbert-import")} made')
        return problems


def open_shards(directory: Path, vocabulary: Optional[Vocabulary] = None) -> Dict[str, Shards]:
    """Both splits of a directory of shards, ``train`` and ``heldout``; ValueError if they were made with
    another vocabulary than the one given.
    """
    expected = None if vocabulary is None else vocabulary_hash(vocabulary)
    return {
        split: Shards.open(directory, split=split, vocabulary_hash=expected) for split in ('train', 'heldout')
    }


def check_shards_fit(shards: Mapping[str, Shards], architecture: Architecture, name: str) -> None:
    """Refuse shards with longer instances than a network has positions for, or more segments than types.

    Parameters
    ----------
    shards : mapping of split to Shards
    architecture : Architecture
    name : str
        Of the network, for the message.

    Raises
    ------
    ValueError
    """
    longest = max(split.max_seq_length for split in shards.values())
    if longest > architecture.max_length:
        raise ValueError(
            f'shards have up to {longest} tokens, {name} has {architecture.max_length} positions'
        )
    if architecture.token_types < 2:
        raise ValueError(f'instances of shards have two segments, {name} has one token type')
