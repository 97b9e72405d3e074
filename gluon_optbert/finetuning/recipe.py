"""The recipe of fine-tuning on any task."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from ..runs.progress import RESULT
from ..runs.recipe import Seed, ShareOrZero, option
from ..tasks.features import BATCHINGS
from ..training.recipe import WeightRecipe
from ..training.teaching import TeacherRecipe

R = TypeVar('R', bound='FineTuneRecipe')


class FineTuneRecipe(TeacherRecipe, WeightRecipe):
    """Fields of fine-tuning on any task (Devlin et al., 2018, appendix A.3)."""

    GROUPS = {
        'data': ('data', 'limit', 'evaluation_limit', 'batch_size', 'batching', 'evaluation_tokens'),
        'weights': ('seeds', 'epochs', 'learning_rates', 'select', *WeightRecipe.GROUPS['weights']),
        'teacher': TeacherRecipe.OF_TEACHER,
        'machine': WeightRecipe.GROUPS['machine'],
    }

    ALTERNATIVES = (('learning_rates', 'learning_rate', 'the learning rate is one of several, or stated'),)

    model: Path = option('model directory to start from, pruned or not')
    data: Path | None = option(
        'directory of the data in the official layout; by default GluonNLP downloads the data', None
    )
    results: Path | None = option(
        'directory for a copy of the result file, named after the output; by default no copy', None
    )
    seeds: tuple[Seed, ...] = option(
        'random seeds of the head, data order and dropout; one run for each', (1,)
    )
    epochs: PositiveInt = option('passes over the training set', 3)
    batch_size: PositiveInt = option('instances in a batch, over all workers', 32)
    batching: str = option(
        'what the instances of a training batch have in common: lengths, so that there is little padding, or '
        'nothing, as they come at random',
        'lengths',
        choices=BATCHINGS,
    )
    evaluation_tokens: PositiveInt = option('tokens in an evaluation batch, padding included', 8192)
    learning_rate: PositiveFloat = option('peak learning rate', 3e-5)
    learning_rates: tuple[PositiveFloat, ...] = option(
        'peak learning rates to choose from: each is run with every seed, and the one with the best mean on '
        'the (first) held-out set is kept',
        (),
    )
    warmup: ShareOrZero = option('share of the steps in which the learning rate rises to its peak', 0.1)
    select: Literal['last', 'best'] = option(
        'which epoch is kept: the last, or the best on the (first) held-out set', 'last'
    )
    limit: PositiveInt | None = option(
        'number of training instances to use, from the start of the file; by default all', None
    )
    evaluation_limit: PositiveInt | None = option(
        'number of instances of every held-out set and test set to use; by default all', None
    )
    teacher: str | None = option(
        'network that is learnt from, in addition to the labels: a model directory that was fine-tuned on '
        'the same task, such as the network before pruning',
        None,
    )
    checkpoint_every: NonNegativeInt = option('steps between checkpoints; 0 for none', 1000)
    keep: PositiveInt = option('number of newest checkpoints to keep, besides the best one', 1)

    def problems(self) -> list[str]:
        problems = super().problems() + ([] if self.seeds else ['seeds must be one or more'])
        for name in ('seeds', 'learning_rates'):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                problems.append(f'{name} must be different numbers, found {",".join(map(str, values))}')
        return problems

    def with_rates(self: R) -> tuple[R, ...]:
        """The recipe with each of the learning rates that are tried."""
        return tuple(
            self.replace(learning_rate=rate) for rate in self.learning_rates or (self.learning_rate,)
        )


def result_path(recipe: FineTuneRecipe) -> Path:
    """The result file of a run."""
    return recipe.output / RESULT


def copy_path(recipe: FineTuneRecipe) -> Path | None:
    """The copy of the result file that was asked for, named after the output; None if none was."""
    return None if recipe.results is None else recipe.results / f'{recipe.output.name}.json'


def written(recipe: FineTuneRecipe) -> str:
    """A line for people on what a run wrote."""
    copy = copy_path(recipe)
    return f'wrote {recipe.output}; its scores are in {result_path(recipe)}' + (
        '' if copy is None else f' and in {copy}'
    )
