"""What fine-tuning on any task has in common: its recipe."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import ClassVar, List, Optional, Tuple, TypeVar

from ..runs.recipe import checked, option
from ..tasks.features import BATCHINGS
from ..training.recipe import WeightRecipe

RESULT = 'result.json'  # in the output
R = TypeVar('R', bound='FineTuneRecipe')


@dataclasses.dataclass(frozen=True)
class FineTuneRecipe(WeightRecipe):
    """What fine-tuning on any task has in common (Devlin et al., 2018, appendix A.3)."""

    ALTERNATIVES: ClassVar[Tuple[Tuple[str, str, str], ...]] = (
        ('learning_rates', 'learning_rate', 'the learning rate is one of several, or stated'),
    )

    model: Path = option('model directory to start from, pruned or not')
    data: Optional[Path] = option(
        'directory of the data in the official layout; by default GluonNLP downloads the data', None
    )
    results: Optional[Path] = option(
        'directory for a copy of the result file, named after the output; by default no copy', None
    )
    seeds: Tuple[int, ...] = option(
        'random seeds of the head, data order and dropout; one run for each', (1,)
    )
    epochs: int = option('passes over the training set', 3)
    batch_size: int = option('instances in a batch, over all workers', 32)
    batching: str = option(
        'what the instances of a training batch have in common: lengths, so that there is little padding, or '
        'nothing, as they come at random',
        'lengths',
        choices=BATCHINGS,
    )
    evaluation_tokens: int = option('tokens in an evaluation batch, padding included', 8192)
    learning_rate: float = option('peak learning rate', 3e-5)
    learning_rates: Tuple[float, ...] = option(
        'peak learning rates to choose from: each is run with every seed, and the one with the best mean on '
        'the (first) held-out set is kept',
        (),
    )
    warmup: float = option('share of the steps in which the learning rate rises to its peak', 0.1)
    select: str = option(
        'which epoch is kept: the last, or the best on the (first) held-out set',
        'last',
        choices=('last', 'best'),
    )
    limit: Optional[int] = option(
        'number of training instances to use, from the start of the file; by default all', None
    )
    evaluation_limit: Optional[int] = option(
        'number of instances of every held-out set and test set to use; by default all', None
    )
    checkpoint_every: int = option('steps between checkpoints; 0 for none', 1000)
    keep: int = option('number of newest checkpoints to keep, besides the best one', 1)

    def problems(self) -> List[str]:
        """What is out of range."""
        problems = super().problems()
        for name in ('epochs', 'limit', 'evaluation_limit', 'evaluation_tokens'):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f'{name} must be at least 1, found {value}')
        rates = self.learning_rates
        if not all(0 < rate < math.inf for rate in rates) or len(set(rates)) < len(rates):
            problems.append(
                f'learning_rates must be different numbers above 0, found {",".join(map(str, rates))}'
            )
        if (
            not self.seeds
            or len(set(self.seeds)) < len(self.seeds)
            or min(self.seeds) < 0
            or max(self.seeds) >= 2**32
        ):
            problems.append(
                f'seeds must be different numbers from 0 to 2^32 - 1, found '
                f'{",".join(map(str, self.seeds)) or "none"}'
            )
        return problems

    def with_rates(self: R) -> Tuple[R, ...]:
        """The recipe with each of the learning rates that are tried."""
        return tuple(
            dataclasses.replace(self, learning_rate=rate)
            for rate in self.learning_rates or (self.learning_rate,)
        )


def result_path(recipe: FineTuneRecipe) -> Path:
    """The result file of a run."""
    return checked(recipe).output / RESULT


def copy_path(recipe: FineTuneRecipe) -> Optional[Path]:
    """The copy of the result file that was asked for, named after the output; None if none was."""
    recipe = checked(recipe)
    return None if recipe.results is None else recipe.results / f'{recipe.output.name}.json'


def written(recipe: FineTuneRecipe) -> str:
    """What a run wrote, for people."""
    copy = copy_path(recipe)
    return f'wrote {recipe.output}; its scores are in {result_path(recipe)}' + (
        '' if copy is None else f' and in {copy}'
    )
