"""The ranking of units that a run leaves, and that another run may take."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from ..network.saved_model import SavedModel, read_model
from ..runs.recipe import differing, read_yaml
from ..runs.run_directory import RECIPE
from .methods import METHODS
from .recipe import SENTENCES, PruningRecipe

ALPHAS = 'alphas.npz'  # of a round, the gates that are folded
SCORES = 'scores.npz'  # by which its units are ranked
GRADIENTS = 'gradients.npz'  # from which its scores are made whatever its target
ROTATED = 'rotated'  # the network that they rank, where its heads were rotated

# Fields of a recipe in which a run may differ from the one whose ranking it takes: nothing that ranks units
# reads them, but for the selection that ends gate training with alpha_steps auto.
_AFTER = ('output', 'ranking', 'model', 'method', 'target', 'targets', 'rounds', 'multiple_of')
_AFTER += ('drop_blocks', 'drop', 'relative_gates', 'reconstruct', 'keep_best', 'keep_embeddings', 'steps')
_AFTER += ('recovery_steps', 'optimizer', 'learning_rate', 'warmup', 'weight_decay', 'clip_norm', 'timing')
_AFTER += ('minutes', 'beta2', 'word_embeddings', 'split_half', 'evaluate_every', 'evaluation_limit')
_AFTER += ('log_every', 'checkpoint_every', 'keep', 'recover_after', 'fit_tokens')
_OF_COST = ('objective', 'length', 'latency_model')  # where what is measured does not depend on the cost


def _files(recipe: PruningRecipe) -> tuple[str, ...]:
    """Files of a round that another run takes as its ranking: the scores, or what they are made from, and the
    network that they rank, if that has rotated heads.
    """
    files = (ALPHAS, SCORES) if METHODS[recipe.method].measure is None else (GRADIENTS,)
    return (*files, ROTATED) if recipe.rotate_heads else files


def check_ranking(recipe: PruningRecipe, start: SavedModel) -> None:
    """Raise ValueError or FileNotFoundError if the run whose ranking a recipe takes pruned another network
    than the one that is pruned now, ranked its units with other settings, or left no ranking.
    """
    source, settings, method = recipe.ranking, recipe.ranking / RECIPE, METHODS[recipe.method]
    missing = [name for name in (SCORES, *_files(recipe)) if not (source / 'round-1' / name).exists()]
    if not settings.is_file() or SCORES in missing:
        raise FileNotFoundError(f'{source} is no pruning run that has ranked units (no round-1/{SCORES})')
    other = str(read_yaml(settings).get('method'))
    if other not in METHODS or METHODS[other].scores is not method.scores:
        raise ValueError(f'{source} ranked units by the method {other}, which does not suit {recipe.method}')
    free = {*_AFTER}
    if not recipe.decided(start).gates_learn:  # recovery alone learns from a teacher
        free |= {*recipe.OF_TEACHER}
    if getattr(recipe, 'task', None) == SENTENCES:  # fewer held-out texts leave more to rank units on
        free -= {'evaluation_limit'}
    if method.measure is not None:
        free |= {*_OF_COST}
    changed = differing(recipe, settings, but=free)
    if changed:
        raise ValueError(
            f'{source} ranked units with other settings of {", ".join(changed)}; use the same, or leave '
            'ranking out'
        )
    if missing:
        raise FileNotFoundError(f'{source} has no round-1/{missing[0]} any more; leave ranking out')
    one = read_model(source / 'round-0' / 'model')
    same = (one.architecture, one.head, one.vocabulary) == (start.architecture, start.head, start.vocabulary)
    if not same or not all(
        np.array_equal(own, start.parameters[name]) for name, own in one.parameters.items()
    ):
        raise ValueError(f'{source} pruned another network than {recipe.model}')


def take_ranking(recipe: PruningRecipe, directory: Path) -> None:
    """Copy the ranking that a recipe takes into the directory of a round."""
    for name in _files(recipe):
        copy = shutil.copytree if name == ROTATED else shutil.copyfile
        copy(recipe.ranking / 'round-1' / name, directory / name)
