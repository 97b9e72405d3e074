"""Objectives of pruning: the losses of gates and recovery, and the measurement of a network.

Algorithm 1 is the same for every objective. `PretrainingObjective` is MLM and NSP on shards, and perhaps a
teacher; those of fine-tuned networks are in `task_objectives`."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..architecture.architecture import Architecture
from ..architecture.embedding import LONGEST_NAME
from ..architecture.heads import Head
from ..architecture.parameters import PARTS, WORDS, parameter_table
from ..network.embedding import of_unit_length, pooled
from ..network.inputs import TOKEN_INPUTS
from ..network.model import OptBERTModel, build, named_parameters
from ..network.running import context_of, feed_of
from ..network.saved_model import SavedModel, read_model
from ..runs.programs import named
from ..runs.progress import HeldOut, Measured
from ..runs.recipe import to_dict
from ..tasks.metrics import METRICS
from ..text.batches import Batch, check_memory, evaluation_batches, frequency_loss
from ..text.shards import Shards
from ..training.distances import check_pairs, directions_of
from ..training.distillation import (
    OF_LAST_STATE,
    Distillation,
    Match,
    Outputs,
    StateMatching,
    Teacher,
    Weights,
    check_teacher,
)
from ..training.distributed import Workers
from ..training.held_out import Losses, difference, losses_of
from ..training.objective import Objective, Phase
from ..training.pretrain import Pretraining, batches_of, read_start
from ..training.recipe import check_shards_fit, lacking, open_shards, trained_parts
from .trimming import trim

if TYPE_CHECKING:  # the recipe lists the methods, which read objectives
    from .recipe import PruneRecipe, PruningRecipe

Known = tuple[SavedModel, Measured | None]  # a network, and what it comes to on held-out data
EMBEDDED = 512  # held-out instances whose embeddings are compared


class EmbeddingProbe(Objective):
    """The embeddings of sentences along random directions, by whose gradients units are ranked.

    The loss of a network that is its own teacher is zero, and so are its gradients. The mean of the squared
    gradients of random projections is the curvature of the squared difference of the embeddings. Every
    sentence has a direction of its own. The projections of a batch are divided by the root of their number,
    so that every batch counts alike: one of a few long texts as one of many short ones.

    Parameters
    ----------
    model : OptBERTModel
        Built with `OF_LAST_STATE`.
    batches : callable
        The phase, and the number of the first batch → this worker's share of every batch.
    """

    losses = ('projection',)

    def __init__(
        self,
        model: OptBERTModel,
        workers: Workers,
        batches: Callable[[Phase, int], Generator[Any, None, None]],
    ):
        super().__init__(model, workers)
        self.batches = batches

    def loss_sums(self, batch: Any, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        ctx = self.workers.context()
        feed = feed_of(batch, (*TOKEN_INPUTS, 'instance_weights'), rows=rows, ctx=ctx)
        states = Outputs.of(self.model(*(feed[name] for name in TOKEN_INPUTS))).states[-1]
        directions = directions_of(states, batch.valid_length[rows], self.model.head.embedding)
        width = directions.shape[1]
        drawn = [np.random.RandomState(int(row) % 2**32).normal(size=width) for row in batch.rows[rows]]
        projected = (directions * mx.nd.array(np.stack(drawn), ctx=ctx)).sum(axis=1)
        return (mx.nd.sum(projected * feed['instance_weights']),)

    def totals(self, batch: Any) -> tuple[float, ...]:
        return (batch.instance_total**0.5,)


class PruningObjective:
    """Objective of pruning a network.

    Parameters
    ----------
    recipe : PruningRecipe
        That of the run.
    start : SavedModel
        The network that is pruned, which is a teacher if the recipe wants one.

    Attributes
    ----------
    labelled_settings, gate_settings, recovery_settings : mapping
        Fields of `NetworkSettings` that the networks of `labelled`, `gates` and `recovery` need.
    states_alone : bool
        Whether recovery learns states and nothing that needs the heads, so that these are not trained.
    heads : tuple of str
        The heads of pre-training, of `PARTS`, that the losses of labels train.
    reports_embeddings : bool
        Whether embeddings are compared whatever the recipe says, for want of another measure.
    first_batch : int
        Where in the stream of batches the first round begins.

    Raises
    ------
    ValueError, FileNotFoundError
        If the data or the teacher do not suit.
    """

    labelled_settings: Mapping[str, Any] = {}
    gate_settings: Mapping[str, Any] = {}
    recovery_settings: Mapping[str, Any] = {}
    states_alone = False
    heads: tuple[str, ...] = tuple(PARTS)
    reports_embeddings = False
    first_batch = 0

    def __init__(self, recipe: PruningRecipe, start: SavedModel, workers: Workers):
        self.recipe, self.start, self.workers = recipe, start, workers

    @staticmethod
    def read(recipe: Any) -> tuple[SavedModel, dict[str, bytes]]:
        """The network that a recipe prunes, trimmed if the recipe wants that, and files to leave beside it.

        Raises
        ------
        ValueError, FileNotFoundError
            If it cannot be pruned.
        """
        raise NotImplementedError

    @property
    def whole(self) -> Architecture:
        """Reference of the recipe's shares: the network before its vocabulary was trimmed."""
        tokens = self.start.progress.whole_vocabulary or self.start.architecture.vocab_size
        return dataclasses.replace(self.start.architecture, vocab_size=tokens)

    def round_steps(self) -> tuple[int, int]:
        """Steps of a round's gate training, or the most of them, and of recovery."""
        raise NotImplementedError

    @property
    def recipe_of_models(self) -> dict[str, Any]:
        """Recipe as recorded in the model directories of the run."""
        return to_dict(self.recipe)

    def build(self, saved: SavedModel, **changes: Any) -> OptBERTModel:
        """A network that is trained or measured; `changes` are fields of `NetworkSettings`."""
        settings = self.recipe.network_settings(head=saved.head)
        return build(saved.architecture, saved.parameters, settings, ctx=self.workers.context(), **changes)

    def batches(self, phase: Phase, start: int) -> Generator[Any, None, None]:
        """This worker's share of the batches of a phase, from number `start` on, without end."""
        raise NotImplementedError

    def teacher(self, saved: SavedModel, *, heads: bool, output: Mapping[str, bool]) -> Teacher:
        """A network that is learnt from; arguments as of `Teacher`."""
        return Teacher(saved, self.workers, precision=self.recipe.precision, heads=heads, output=output)

    def labelled(self, model: OptBERTModel) -> Objective:
        """The loss of the labels, without a teacher; by its gradients units are ranked."""
        raise NotImplementedError

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        """Loss that gates are trained on, beside the penalty.

        Parameters
        ----------
        model : OptBERTModel
            With gates, and with `gate_settings`.
        match : Match
            Which states of the network that came in are left in the model.
        """
        raise NotImplementedError

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        """Loss of recovery; the model has `recovery_settings`."""
        raise NotImplementedError

    def recovered_parameters(self, model: OptBERTModel) -> dict[str, gluon.Parameter] | None:
        """The parameters that recovery trains: those below the heads with `states_alone`, else without heads
        that have no loss, and perhaps without word embeddings; None for all.
        """
        left = {WORDS} if self.recipe.freezes_words else set()
        unlearnt = PARTS.keys() - (() if self.states_alone else self.heads)
        table = parameter_table(model.architecture)
        left |= {name for name, spec in table.items() if spec.part in unlearnt}
        if not left:
            return None
        return {name: one for name, one in named_parameters(model).items() if name not in left}

    def evaluate(self, saved: SavedModel) -> Measured | None:
        """Measurement of a network on held-out data; None if there is nothing to measure."""
        raise NotImplementedError

    def difference_error(self, one: Known, other: Known) -> float | None:
        """The standard error of the difference of what `evaluate` measured of two networks, where both are
        compared instance by instance; None if they are not.
        """
        return None

    def untaught(self) -> str | None:
        """Reason why the network that came in is no base to judge cuts by, as far as it says; None if it is
        one.
        """
        return None

    def instances(self) -> int:
        """Number of instances that are learnt from."""
        raise NotImplementedError

    def instances_held_out(self) -> int:
        """Number of held-out instances that are measured on."""
        raise NotImplementedError

    def head_of(self, architecture: Architecture, *, trained: bool = False, fitted: bool = False) -> Head:
        """The head of a network that is left; its embedding says of which index it is a query encoder, if it
        is one, as `PruningRecipe.nearest_by_number` does.
        """
        head, recipe = self.start.head, self.recipe
        if head.outputs:
            return head
        widths = self.start.architecture, architecture
        near = recipe.nearest_by_number(*widths, trained=trained, fitted=fitted)
        name = Path(near or '').name
        if near == 'parent':
            name = head.embedding.index or Path(self.start.recipe.get('source') or recipe.model).name
        embedding = dataclasses.replace(head.embedding, index=name[:LONGEST_NAME])
        return dataclasses.replace(head, embedding=embedding)

    def about_data(self) -> list[str]:
        """Lines for people on how the data were read."""
        return []

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        """The embeddings of held-out sentences, as of `embed`."""
        raise NotImplementedError

    def sample_inputs(self, count: int) -> dict[str, np.ndarray] | None:
        """The token inputs of some held-out instances by name, on which `verify` compares; None if it reads
        them from shards.
        """
        return None


class PretrainingObjective(PruningObjective):
    """Pruning for pre-training; parameters and errors as in `PruningObjective`."""

    recipe: PruneRecipe

    def __init__(self, recipe: PruneRecipe, start: SavedModel, workers: Workers):
        recipe = recipe.decided(start)
        super().__init__(recipe, start, workers)
        weights = recipe.teaching()
        self._shards = open_shards(recipe.shards, start.vocabulary)
        check_shards_fit(self._shards, start.architecture, 'the network')
        check_memory(self._shards['train'], recipe.batch_size)
        self.heads = trained_parts(self._shards['train'])
        self._untrained = lacking(start, self._shards['train'])
        self.reports_embeddings = bool(self._untrained) or recipe.without_labels
        self.first_batch = start.progress.next_batch
        self._known: list[tuple[weakref.ref[SavedModel], Losses]] = []
        self.states_alone = recipe.taught is not None and not weights.need_heads
        self._gate_weights = Weights(labels=0.0, scores=0.0) if recipe.gate_teacher else weights.for_gates
        self.labelled_settings = OF_LAST_STATE if recipe.without_labels else {}
        of_states = OF_LAST_STATE if self.states_alone else {}
        self.recovery_settings = {**of_states, **(weights.output if recipe.taught else {})}
        if recipe.gate_teacher or recipe.without_labels:
            self.gate_settings = {**OF_LAST_STATE, **self._gate_weights.output}
        if weights.embeddings and recipe.taught:
            check_pairs(recipe.batch_size, recipe.accumulate)
        self._teaching = start if recipe.taught == 'parent' else None
        if recipe.taught not in (None, 'parent'):
            self._teaching = fitting_teacher(read_model(Path(recipe.taught)), start)
            check_shards_fit(self._shards, self._teaching.architecture, 'the teacher')
            needed = {'units': weights.same_width, 'layers': weights.same_layers, 'heads': weights.scores > 0}
            check_teacher(self._teaching, start, **needed, source=recipe.taught)

    @staticmethod
    def read(recipe: PruneRecipe) -> tuple[SavedModel, dict[str, bytes]]:
        shards = Shards.open(recipe.shards)
        start = with_whole(read_start(recipe.model), None)
        if recipe.decided(start).need_heads:
            check_heads(start, shards, recipe.model)
        if recipe.trim:
            vocabulary = shards.vocabulary()
            if vocabulary == start.vocabulary:
                raise ValueError(
                    f'trim: {recipe.shards} has the whole vocabulary of {recipe.model}, and nothing is left '
                    'to trim; make shards with a smaller vocabulary, or leave trim out'
                )
            start = with_whole(trim(start, vocabulary), len(start.vocabulary))
        return start, {}

    def round_steps(self) -> tuple[int, int]:
        return self.recipe.round_steps(self.start)

    @functools.cached_property
    def _teacher(self) -> Teacher:
        weights = self.recipe.teaching()
        return self.teacher(self._teaching, heads=weights.scores > 0, output=weights.output)

    @functools.cached_property
    def _gate_teacher(self) -> Teacher:
        one = self.start if self.recipe.gate_teacher else self._teaching
        return self.teacher(one, heads=False, output=self._gate_weights.output)

    def instances(self) -> int:
        return self._shards['train'].instances

    def batches(self, phase: Phase, start: int) -> Generator[Batch, None, None]:
        return batches_of(self._shards['train'], phase, start, self.workers)

    def labelled(self, model: OptBERTModel) -> Objective:
        if self.recipe.without_labels:
            return EmbeddingProbe(model, self.workers, self.batches)
        return Pretraining(model, self.workers, self._shards['train'])

    def gates(self, model: OptBERTModel, phase: Phase, match: Match) -> Objective:
        if not (self.recipe.gate_teacher or self.recipe.without_labels):
            return self.labelled(model)
        taught = {'teacher': self._gate_teacher, 'match': match, 'weights': self._gate_weights}
        return StateMatching(model, self.workers, self._shards['train'], **taught, phase=phase)

    def recovery(self, model: OptBERTModel, phase: Phase, match: Match) -> Pretraining:
        shards = self._shards['train'], self._shards['heldout']
        if self.recipe.taught is None:
            return Pretraining(model, self.workers, *shards)
        kind = StateMatching if self.states_alone else Distillation
        taught = {'teacher': self._teacher, 'match': match, 'weights': self.recipe.teaching(), 'phase': phase}
        return kind(model, self.workers, *shards, **taught)

    def evaluate(self, saved: SavedModel) -> HeldOut | None:
        return None if self._untrained else self._losses(saved).measured

    def difference_error(self, one: Known, other: Known) -> float | None:
        return difference(self._losses(one[0]), self._losses(other[0]), self.workers)[1]

    def _losses(self, saved: SavedModel) -> Losses:
        """Of every held-out instance; those of the networks that were measured last are still known."""
        known = (losses for network, losses in self._known if network() is saved)
        losses = next(known, None) or losses_of(
            self.build(saved),
            self._shards['heldout'],
            self.workers,
            batch_size=self.recipe.batch_size // self.recipe.accumulate,
            limit=self.recipe.evaluation_limit,
        )
        self._known = [*self._known[-2:], (weakref.ref(saved), losses)]
        return losses

    def untaught(self) -> str | None:
        loss = self.start.progress.mlm_loss
        if loss is None or not self.recipe.need_heads:
            return None
        guessed = frequency_loss(self._shards['train'], self._shards['heldout'])
        if loss < guessed:
            return None
        return (
            f'{self.recipe.model} has a held-out MLM loss of {loss:.2f} nats, and guessing by the frequency '
            f'of tokens {guessed:.2f}; train all of it first, with {named("optbert-pretrain")}, or learn '
            'from its states alone: --labels none'
        )

    def instances_held_out(self) -> int:
        return min(self._shards['heldout'].instances, self.recipe.evaluation_limit)

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        size = self.recipe.batch_size // self.recipe.accumulate
        batches = evaluation_batches(self._shards['heldout'], batch_size=size, limit=EMBEDDED)
        return embed(self.build(saved, **OF_LAST_STATE), batches)


def check_heads(start: SavedModel, shards: Shards, source: object) -> None:
    """Refuse a network with random heads of pre-training that the losses on shards read; ValueError."""
    if untrained := lacking(start, shards):
        raise ValueError(
            f'{source} has no trained {" and no trained ".join(PARTS[part] for part in untrained)}: these '
            f'weights are random; train them first, with {named("optbert-pretrain")} --train heads or its '
            'recipe imported_heads. Or learn from its states alone, as the recipe encoder does: '
            '--labels none'
        )


def with_whole(saved: SavedModel, tokens: int | None) -> SavedModel:
    """A network that remembers how many tokens it had before it was trimmed; with None its own vocabulary
    counts as whole, though an earlier run may have trimmed it.
    """
    return dataclasses.replace(saved, progress=saved.progress.updated(whole_vocabulary=tokens))


def fitting_teacher(teacher: SavedModel, start: SavedModel) -> SavedModel:
    """A teacher with the tokens of a network that was trimmed; as it is if that was not."""
    return teacher if start.progress.whole_vocabulary is None else trim(teacher, start.vocabulary)


def embed(model: OptBERTModel, batches: Iterable[Any]) -> np.ndarray:
    """The embeddings of some instances, as the network pools them before any dense layer, scaled to length 1:
    float32 of shape (instances, h), in the order of their rows. The model was built with `OF_LAST_STATE`, or
    with `OF_STATES` if it has the head of a task.
    """
    rows: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for batch in batches:
        with autograd.predict_mode():
            outputs = Outputs.of(model(*feed_of(batch, TOKEN_INPUTS, ctx=context_of(model)).values()))
        real = batch.instance_weights > 0
        one = pooled(outputs.states[-1], batch.valid_length, model.head.embedding.pooling, ops=mx.nd)
        values.append(one.asnumpy()[real])
        rows.append(batch.rows[real])
    return of_unit_length(np.concatenate(values)[np.argsort(np.concatenate(rows))])


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation of two vectors; 0 where there is none, of equal numbers or a single one."""
    return METRICS['spearman'](one, other) if len(one) > 1 else 0.0


def pair_similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation between two networks of the cosines of all pairs of different sentences; their
    embeddings have shape (instances, h), and h may differ.
    """
    pairs = np.triu_indices(len(one), 1)
    return rank_correlation(*((values @ values.T)[pairs] for values in (one, other)))


def compare_embeddings(before: np.ndarray, after: np.ndarray, units: np.ndarray) -> dict[str, float]:
    """Similarity of the embeddings of two networks, of length 1 and shape (instances, h), where `units` are
    the hidden units of the first that the second has.

    ``cosine`` is the mean cosine between the two embeddings of a sentence, on the units that both have.
    ``pair_similarity`` is as the function of that name. ``query_similarity``, where no unit went, is the same
    between the first network's cosines and those of the second one's embeddings with the first one's, as in
    an index that was made with the first.
    """
    cut = before[:, units]
    cosines = (cut * after).sum(axis=1) / np.maximum(np.linalg.norm(cut, axis=1), 1e-12)
    values = {'cosine': float(cosines.mean()), 'pair_similarity': pair_similarity(before, after)}
    if before.shape == after.shape:
        others = ~np.eye(len(before), dtype=bool)
        cosines = ((queries @ before.T)[others] for queries in (before, after))
        values['query_similarity'] = rank_correlation(*cosines)
    return values
