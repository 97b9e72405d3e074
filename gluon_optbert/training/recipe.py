"""The fields that recipes of training share, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from mxnet import gluon
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from ..architecture.architecture import Architecture
from ..architecture.parameters import INITIAL_STD, NEXT_SENTENCE, PARTS, parameter_table
from ..network.model import OptBERTModel, named_parameters
from ..network.saved_model import SavedModel
from ..network.settings import AUTO, TRAINING_PRECISIONS, NetworkSettings, check_precision, fast_precision
from ..runs.programs import named
from ..runs.recipe import Recipe, Seed, ShareOrZero, option
from ..text.shards import Shards
from ..text.tokenizer import Vocabulary, vocabulary_hash
from .distributed import COMPRESSIONS, Workers
from .objective import Phase
from .optimization import OF_WEIGHTS, LossScale, Optimizer, Schedule


class WeightRecipe(Recipe):
    """Fields that every run that trains weights has."""

    GROUPS = {
        'weights': ('optimizer', 'learning_rate', 'warmup', 'weight_decay', 'beta2', 'clip_norm', 'dropout'),
        'machine': (
            *('accumulate', 'precision', 'compression'),
            *('log_every', 'checkpoint_every', 'keep', 'resume'),
        ),
    }
    OF_PHASE: ClassVar = ()  # fields of a `Phase` that a subclass has beside those here

    output: Path = option('where the result is written')
    batch_size: PositiveInt = option('instances in a batch, over all workers', 256)
    accumulate: PositiveInt = option(
        "forward and backward passes for a worker's share of a batch; more need less memory", 1
    )
    optimizer: str = option('optimizer of the weights', 'bertadam', choices=OF_WEIGHTS)
    learning_rate: PositiveFloat = option('peak learning rate', 1e-4)
    warmup: ShareOrZero = option('share of the steps in which the learning rate rises to its peak', 0.01)
    precision: str = option(
        "precision of the encoder's matrix products; everything else stays float32. bfloat16 needs a "
        'processor with AVX-512; float16 is for GPUs and uses dynamic loss scaling; auto is bfloat16 where '
        'the processor has instructions for it, else float32',
        'float32',
        choices=(AUTO, *TRAINING_PRECISIONS),
    )
    compression: str = option(
        'compression of the gradients between workers; fp16 rounds them and halves their bytes',
        'none',
        choices=COMPRESSIONS,
    )
    weight_decay: NonNegativeFloat = option('weight decay of all weights except biases and LayerNorms', 0.01)
    beta2: ShareOrZero = option("decay of the optimizer's average of squared gradients", 0.999)
    clip_norm: PositiveFloat = option('largest 2-norm of the gradient; a larger gradient is scaled down', 1.0)
    dropout: ShareOrZero = option('dropout of embeddings, attention probabilities and block outputs', 0.1)
    log_every: NonNegativeInt = option('steps between logged metrics; 0 for the last only', 50)
    checkpoint_every: NonNegativeInt = option('steps between checkpoints; 0 for none', 500)
    keep: PositiveInt = option('number of newest checkpoints to keep, besides the best one', 2)
    resume: bool = option('continue an unfinished run from its newest checkpoint', False)

    @field_validator('precision')
    @classmethod
    def _of_this_machine(cls, value: str) -> str:
        return fast_precision() if value == AUTO else value

    def phase(self, name: str, steps: int, **more: Any) -> Phase:
        """A phase of the run with the recipe's settings."""
        fields = ('batch_size', 'accumulate', 'log_every', 'checkpoint_every', 'keep', *self.OF_PHASE)
        return Phase(name, steps, **{**{field: getattr(self, field) for field in fields}, **more})

    def weight_optimizer(
        self, model: OptBERTModel, workers: Workers, parameters: Mapping[str, gluon.Parameter] | None = None
    ) -> Optimizer:
        """The optimizer of all weights, or of the given ones; all others are frozen."""
        table, every = parameter_table(model.architecture, model.head), named_parameters(model)
        trained = every if parameters is None else parameters
        for name in {*every} - {*trained}:
            every[name].grad_req = 'null'
        return Optimizer(
            trained,
            self.optimizer,
            weight_decay=self.weight_decay,
            beta2=self.beta2,
            decayed={name for name, spec in table.items() if spec.decayed},
            clip_norm=self.clip_norm,
            workers=workers,
            scale=LossScale() if self.precision == 'float16' else None,
            compression=self.compression,
        )

    def network_settings(self, **more: Any) -> NetworkSettings:
        """Settings of the network that is trained."""
        return NetworkSettings(dropout=self.dropout, precision=self.precision, **more)

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


class TrainingRecipe(WeightRecipe):
    """Fields that every run that trains weights by equation (1) has."""

    GROUPS = {
        'data': ('shards', 'batch_size', 'seed', 'evaluate_every', 'evaluation_limit'),
        **WeightRecipe.GROUPS,
    }
    OF_PHASE: ClassVar = ('seed', 'evaluate_every', 'evaluation_limit')

    shards: Path = option(f'directory of shards, made by {named("optbert-make-shards")}')
    seed: Seed = option('random seed of initial weights, data order and dropout', 1)
    evaluate_every: NonNegativeInt = option(
        'steps between evaluations on held-out data; 0 for only one, at the end', 1000
    )
    evaluation_limit: PositiveInt = option('largest number of held-out instances to evaluate on', 2048)


class PretrainRecipe(TrainingRecipe):
    """A pre-training run."""

    ALTERNATIVES = (
        ('model', 'architecture', 'a model directory has an architecture of its own'),
        ('model', 'initial_std', 'a model directory has weights of its own'),
    )

    architecture: str = option('architecture: a name (l4_h256_a4, bert_base), a file or JSON', 'bert_base')
    model: Path | None = option('model directory to start from instead of random weights', None)
    steps: PositiveInt = option('steps of training', 1000000)
    initial_std: PositiveFloat = option(
        'standard deviation of the random initial weights; small networks need a larger one, about '
        '0.6 divided by the square root of h',
        INITIAL_STD,
    )
    train: Literal['all', 'heads'] = option(
        'what to train: all weights, or only the heads that an imported checkpoint lacked', 'all'
    )

    def problems(self) -> list[str]:
        if self.train == 'heads' and self.model is None:
            return [f'train heads goes with model, a directory that {named("optbert-import")} made']
        return []


def open_shards(directory: Path, vocabulary: Vocabulary | None = None) -> dict[str, Shards]:
    """Both splits of a directory of shards, ``train`` and ``heldout``; ValueError if they were made with
    another vocabulary than the one given.
    """
    expected = None if vocabulary is None else vocabulary_hash(vocabulary)
    return {
        split: Shards.open(directory, split=split, vocabulary_hash=expected) for split in ('train', 'heldout')
    }


def trained_parts(shards: Shards) -> tuple[str, ...]:
    """The heads of pre-training, of `PARTS`, that the losses on shards train."""
    return tuple(part for part in PARTS if shards.next_sentence or part not in NEXT_SENTENCE)


def lacking(start: SavedModel, shards: Shards) -> list[str]:
    """The heads that the losses on shards train and that are random in a network."""
    return [part for part in trained_parts(shards) if part in (start.progress.untrained or ())]


def check_shards_fit(shards: Mapping[str, Shards], architecture: Architecture, name: str) -> None:
    """Refuse shards with longer instances than a network has positions for, or more segments than types;
    ValueError with the name of the network.
    """
    longest = max(split.manifest.max_seq_length for split in shards.values())
    if longest > architecture.max_length:
        raise ValueError(
            f'shards have up to {longest} tokens, {name} has {architecture.max_length} positions'
        )
    if architecture.token_types < 2 and any(split.next_sentence for split in shards.values()):
        raise ValueError(
            f'instances of these shards have two segments, {name} has one token type; make shards with '
            '--next-sentence false'
        )
