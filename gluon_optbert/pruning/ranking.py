"""The ranking of a round's units: its files, and the ranking of another run taken over."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Tuple

import numpy as np

from ..architecture.parameters import Alphas
from ..cutting.selection import packed_alphas, read_alphas
from ..network.saved_model import SavedModel, read_model
from ..runs.files import write_file
from ..runs.recipe import differing, read_yaml
from ..runs.run_directory import RECIPE
from .methods import METHODS
from .recipe import PruneRecipe, PruningRecipe

ALPHAS, SCORES, ROTATED = 'alphas.npz', 'scores.npz', 'rotated'  # of a round
# Fields of a recipe in which a run may differ from the one whose ranking it takes: nothing that ranks units
# reads them.
_AFTER = ('resume', 'output', 'ranking', 'model', 'method', 'target', 'targets', 'rounds', 'multiple_of')
_AFTER += ('drop_blocks', 'drop', 'relative_gates', 'reconstruct', 'keep_best', 'keep_embeddings', 'steps')
_AFTER += ('recovery_steps', 'optimizer', 'learning_rate', 'warmup', 'weight_decay', 'clip_norm', 'timing')
_AFTER += ('split_half', 'evaluate_every', 'evaluation_limit', 'log_every', 'checkpoint_every', 'keep')
# In pre-training, recovery alone learns from the teacher of the recipe.
_AFTER_PRETRAINING = ('teacher', 'teacher_weights', 'temperature')
# What a method reads that scores units for one target.
_OF_TARGET = {'target', 'targets', 'rounds', 'multiple_of', 'drop_blocks'}


def write_ranking(directory: Path, alphas: Alphas, scores: Alphas, *, h_gate: str) -> None:
    """Leave ``alphas.npz`` and ``scores.npz`` in the directory of a round.

    Parameters
    ----------
    directory : Path
    alphas : mapping of width key to np.ndarray, shape (width,)
        The gates to fold.
    scores : mapping of width key to np.ndarray, shape (width,)
        By which the units are ranked.
    h_gate : str
        Where alpha_h stands, one of `H_GATES`.
    """
    write_file(directory / ALPHAS, packed_alphas(alphas, h_gate=h_gate))
    packed = io.BytesIO()
    np.savez(packed, **scores)
    write_file(directory / SCORES, packed.getvalue())


def read_ranking(directory: Path) -> Tuple[Alphas, Alphas]:
    """What `write_ranking` left in the directory of a round: alphas and scores.

    Raises
    ------
    ValueError, FileNotFoundError
        If the files cannot be read.
    """
    return read_alphas(directory / ALPHAS)[0], read_alphas(directory / SCORES)[0]


def check_ranking(recipe: PruningRecipe, start: SavedModel) -> None:
    """Raise unless a run can take the ranking that its recipe names.

    Parameters
    ----------
    recipe : PruningRecipe
        Its ``ranking`` names a run.
    start : SavedModel
        The network that is pruned.

    Raises
    ------
    ValueError, FileNotFoundError
        If that run pruned another network, ranked its units with other settings, or left no ranking.
    """
    source, settings = recipe.ranking, recipe.ranking / RECIPE
    if not settings.is_file() or not (source / 'round-1' / SCORES).is_file():
        raise FileNotFoundError(f'{source} is no pruning run that has ranked units (no round-1/{SCORES})')
    other = str(read_yaml(settings).get('method'))
    if other not in METHODS or METHODS[other].scores is not METHODS[recipe.method].scores:
        raise ValueError(f'{source} ranked units by the method {other}, which does not suit {recipe.method}')
    free = _AFTER + (_AFTER_PRETRAINING if isinstance(recipe, PruneRecipe) else ())
    if recipe.holds_out_of_training_data:  # so that fewer held-out instances leave more to rank units on
        free = tuple(name for name in free if name != 'evaluation_limit')
    if METHODS[recipe.method].of_target:
        free = tuple(name for name in free if name not in _OF_TARGET)
    changed = differing(recipe, settings, but=free)
    if changed:
        raise ValueError(
            f'{source} ranked units with other settings of {", ".join(changed)}; use the same, or leave '
            'ranking out'
        )
    if not _same_network(read_model(source / 'round-0' / 'model'), start):
        raise ValueError(f'{source} pruned another network than {recipe.model}')


def take_ranking(recipe: PruningRecipe, directory: Path) -> None:
    """Copy the ranking that a recipe names, and the rotated network that it is of, to a new directory of a
    round.
    """
    directory.mkdir()
    for name in (ALPHAS, SCORES):
        shutil.copyfile(recipe.ranking / 'round-1' / name, directory / name)
    if recipe.rotate_heads:
        shutil.copytree(recipe.ranking / 'round-1' / ROTATED, directory / ROTATED)


def _same_network(one: SavedModel, other: SavedModel) -> bool:
    """Whether two networks compute the same, with the same head and vocabulary."""
    return (
        (one.architecture, one.head, one.vocabulary) == (other.architecture, other.head, other.vocabulary)
    ) and all(np.array_equal(value, other.parameters[name]) for name, value in one.parameters.items())
