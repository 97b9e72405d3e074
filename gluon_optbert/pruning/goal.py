"""What a network is pruned for: what its gates and its recovery descend, and what is measured of it.

Algorithm 1 is the same for every goal. Pre-training is `pretraining_goal.PretrainingGoal`."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Generator, Mapping, Optional, Tuple

import numpy as np
from mxnet import gluon

from ..architecture.architecture import Architecture
from ..architecture.parameters import PARTS, parameter_table
from ..network.model import OptBERTModel, build, named_parameters
from ..network.saved_model import SavedModel
from ..runs.progress import Measured
from ..runs.recipe import to_dict
from ..text.tokenizer import Vocabulary
from ..training.distillation import Match
from ..training.distributed import Workers
from ..training.objective import Objective, Phase
from ..training.recipe import WeightRecipe
from .trimming import trim


class Goal:
    """What a network is pruned for.

    Parameters
    ----------
    recipe : WeightRecipe
        That of the run. This class reads only what all recipes that train weights have.
    start : SavedModel
        The network that is pruned, which is a teacher if the recipe wants one.
    workers : Workers

    Attributes
    ----------
    labelled_settings, gate_settings, recovery_settings : mapping
        Fields of `NetworkSettings` that the networks of `labelled`, `gates` and `recovery` need.

    Raises
    ------
    ValueError, FileNotFoundError
        If the data or the teacher do not suit.
    """

    labelled_settings: Mapping[str, Any] = {}
    gate_settings: Mapping[str, Any] = {}
    recovery_settings: Mapping[str, Any] = {}

    def __init__(self, recipe: WeightRecipe, start: SavedModel, workers: Workers):
        self.recipe, self.start, self.workers = recipe, start, workers

    @staticmethod
    def read(recipe: Any) -> Tuple[SavedModel, Dict[str, bytes]]:
        """The network that a recipe prunes, trimmed if the recipe wants that, and files to leave beside it.

        Raises
        ------
        ValueError, FileNotFoundError
            If it cannot be pruned.
        """
        raise NotImplementedError

    @property
    def whole(self) -> Architecture:
        """What the shares of the recipe count from: the network before its vocabulary was trimmed."""
        tokens = self.start.progress.whole_vocabulary or self.start.architecture.vocab_size
        return dataclasses.replace(self.start.architecture, vocab_size=tokens)

    def round_steps(self) -> Tuple[int, int]:
        """Steps of a round's gate training, or the most of them, and of recovery."""
        raise NotImplementedError

    @property
    def first_batch(self) -> int:
        """Where in the stream of batches the first round begins."""
        return 0

    @property
    def recipe_of_models(self) -> Dict[str, Any]:
        """What the model directories of the run say of their recipe."""
        return to_dict(self.recipe)

    def build(self, saved: SavedModel, **changes: Any) -> OptBERTModel:
        """A network that is trained or measured; `changes` are fields of `NetworkSettings`."""
        settings = self.recipe.network_settings(head=saved.head)
        return build(saved.architecture, saved.parameters, settings, ctx=self.workers.context(), **changes)

    def batches(self, phase: Phase) -> Generator[Any, None, None]:
        """This worker's share of the training batches of a phase, without end."""
        raise NotImplementedError

    def labelled(self, model: OptBERTModel, phase: Phase) -> Objective:
        """The loss of the labels, without a teacher; by its gradients units are ranked."""
        raise NotImplementedError

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        """What gates are trained on, beside the penalty.

        Parameters
        ----------
        model : OptBERTModel
            With gates, and with `gate_settings`.
        phase : Phase
        match : Match
            Which states of the network that came in are left in the model.
        """
        raise NotImplementedError

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        """What recovery descends; the model has `recovery_settings`."""
        raise NotImplementedError

    def recovered_parameters(self, model: OptBERTModel) -> Optional[Dict[str, gluon.Parameter]]:
        """The parameters that recovery trains; None for all."""
        return None

    def evaluate(self, saved: SavedModel) -> Optional[Measured]:
        """What is measured of a network on held-out data; None if there is nothing to measure."""
        raise NotImplementedError

    def difference_error(self, one: SavedModel, other: SavedModel) -> Optional[float]:
        """The standard error of the difference of what `evaluate` measures of two networks, where both are
        compared instance by instance; None if they are not.
        """
        return None

    @property
    def reports_embeddings(self) -> bool:
        """Whether embeddings are compared whatever the recipe says, for want of another measure."""
        return False

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        """The embeddings of held-out sentences: the mean of their tokens' states, scaled to length 1; shape
        (sentences, h).
        """
        raise NotImplementedError

    def sample_inputs(self, count: int) -> Optional[Dict[str, np.ndarray]]:
        """The token inputs of some held-out instances by name, on which `verify` compares; None if it reads
        them from shards.
        """
        return None


def below_heads(model: OptBERTModel) -> Dict[str, gluon.Parameter]:
    """The parameters that the states of a network with the heads of pre-training depend on."""
    table = parameter_table(model.architecture)
    return {name: one for name, one in named_parameters(model).items() if table[name].part not in PARTS}


def untrimmed(saved: SavedModel) -> SavedModel:
    """A network whose own vocabulary counts as whole, though an earlier run may have trimmed it."""
    return dataclasses.replace(saved, progress=saved.progress.updated(whole_vocabulary=None))


def trimmed_start(saved: SavedModel, vocabulary: Vocabulary) -> SavedModel:
    """A network with some of its tokens that remembers how many it had; ValueError as `trim`."""
    small = trim(saved, vocabulary)
    progress = saved.progress.updated(whole_vocabulary=len(saved.vocabulary))
    return dataclasses.replace(small, progress=progress)


def fitting_teacher(teacher: SavedModel, start: SavedModel) -> SavedModel:
    """A teacher with the tokens of a network that was trimmed; as it is if that was not."""
    return teacher if start.progress.whole_vocabulary is None else trim(teacher, start.vocabulary)
