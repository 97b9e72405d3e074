"""The objective of sentence encoders: the embeddings of texts without labels."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np

from ..architecture.embedding import SHORTEST
from ..architecture.heads import PRETRAINING
from ..cutting.shrink import without_gates
from ..finetuning.objective import check_fits
from ..network.model import OptBERTModel
from ..network.saved_model import SavedModel, read_model
from ..runs.progress import TaskScores
from ..tasks.collection import read_collection
from ..tasks.features import Features, TaskBatch, fewest_rows, make_reader, token_batches
from ..tasks.metrics import score
from ..training.distances import check_pairs
from ..training.distillation import OF_LAST_STATE, Match, Taught, Teacher, Weights
from ..training.distributed import Workers
from ..training.objective import Objective, Phase
from .features_objective import FeaturesObjective, Scored
from .objectives import EMBEDDED, EmbeddingProbe, embed, pair_similarity
from .recipe import BATCH_TOKENS, SENTENCES, TaskPruneRecipe

LOG = logging.getLogger(__name__)
LONG = 64  # tokens; a text that has more is no sentence
HELD_OUT = 'heldout'
_OF_HELD_OUT = 20  # one text of so many is held out
_FEWEST = 40  # texts of a kind
_FEWEST_HELD_OUT = 10  # have 45 pairs
_ENOUGH = 20_000  # texts to hold some out of, and for a run that trains nothing


class SentenceMatching(Taught, Scored):
    """The states of a teacher and the embeddings of sentences; there are no labels.

    The model was built with `OF_LAST_STATE` and the `Weights.output`; `batches` is that of
    `PruningObjective`, `measure` gives the embeddings' scores of a model, in percent, and what is left is of
    `Taught.learn`.
    """

    def __init__(
        self,
        model: OptBERTModel,
        workers: Workers,
        batches: Callable[[Phase, int], Generator[TaskBatch, None, None]],
        measure: Callable[[OptBERTModel], TaskScores],
        **more: Any,
    ):
        super().__init__(model, workers)
        self.batches, self._measure = batches, measure
        self.learn({}, **more)

    def evaluate(self, phase: Phase) -> dict[str, float]:
        self._last = self._measure(self.model)
        return dict(self._last.scores)

    def measured(self, scores: Mapping[str, float]) -> TaskScores:
        return dataclasses.replace(self._last, scores=dict(scores))


class SentenceObjective(FeaturesObjective):
    """Pruning for the embeddings of texts, without labels; parameters and errors as in `PruningObjective`.

    The score is Spearman's correlation, in percent, of the cosines of pairs with their scores, where some
    have such: ``dev/spearman``. Else it is ``heldout/pair_similarity``: of all pairs of held-out texts, that
    of their cosines with those of the network before pruning; of sentences and of long texts the mean of
    both, if there are enough of either.
    """

    labelled_settings = OF_LAST_STATE
    states_alone = reports_embeddings = True

    def __init__(self, recipe: TaskPruneRecipe, start: SavedModel, workers: Workers):
        super().__init__(recipe, start, workers)
        self._data = data = read_sentence_data(recipe, start)
        self.train, self.heldout = data.train, data.heldout
        weights = recipe.teaching()
        self.recovery_settings = {**OF_LAST_STATE, **weights.output}
        self.gate_settings = {**OF_LAST_STATE, **weights.for_gates.output}
        if weights.embeddings > 0 and (recipe.trains_gates or recipe.recovers):
            check_pairs(fewest_rows(self.train, recipe.phase('', 0).batch_tokens), recipe.accumulate)
        self._teaching = self._read_teacher(data.length, pairs=False)
        self._known: dict[tuple[str, int], np.ndarray] = {}

    @staticmethod
    def read(recipe: TaskPruneRecipe) -> tuple[SavedModel, dict[str, bytes]]:
        saved = without_gates(read_model(recipe.model))
        if saved.head != PRETRAINING:
            raise ValueError(
                f'{recipe.model} has the head of {saved.head.task or saved.head.kind}; leave --task out'
            )
        return SentenceObjective._trimmed(saved, recipe)

    @functools.cached_property
    def _teacher(self) -> Teacher:
        return self.teacher(self._teaching, heads=False, output=self.recipe.teaching().output)

    def embeddings(self, saved: SavedModel) -> np.ndarray:
        """In the order of the held-out features."""
        return self._embedded(saved, self.heldout)

    def _embedded(self, saved: SavedModel, features: Features) -> np.ndarray:
        """Embeddings of texts, which are computed once for a network: a round asks for them several times."""
        key = _digest(saved), id(features)
        if key not in self._known:
            self._known[key] = embeddings_of(self._fixed(saved, **OF_LAST_STATE), features)
        return self._known[key]

    def about_data(self) -> list[str]:
        notes = self._data.cut_notes(self.start.architecture.max_length)
        for note in notes if self.workers.first else ():
            LOG.warning('%s', note)
        return [self._data.described()]

    def instances_held_out(self) -> int:
        return next((len(scores) for _, scores in self._data.pairs.values()), len(self.heldout))

    def labelled(self, model: OptBERTModel) -> Objective:
        """There are no labels; what counts is how the embeddings change."""
        return EmbeddingProbe(model, self.workers, self.batches)

    def _taught(self, model: OptBERTModel, phase: Phase, match: Match, weights: Weights) -> SentenceMatching:
        taught = {'teacher': self._teacher, 'match': match, 'weights': weights, 'phase': phase}
        return SentenceMatching(model, self.workers, self.batches, self._measure, **taught)

    def evaluate(self, saved: SavedModel) -> TaskScores:
        return self._scores(functools.partial(self._embedded, saved))

    def _measure(self, model: OptBERTModel) -> TaskScores:
        return self._scores(functools.partial(embeddings_of, model))

    def _scores(self, embedded: Callable[[Features], np.ndarray]) -> TaskScores:
        data, scores = self._data, {}
        for name, (pairs, wanted) in data.pairs.items():
            one, other = np.split(embedded(pairs), 2)
            found = score(['spearman'], (one * other).sum(axis=1), wanted)
            scores.update({f'{name}/{metric}': value for metric, value in found.items()})
        before, own = self.embeddings(self.start), embedded(self.heldout)
        similar = {
            f'{kind}/pair_similarity': 100 * pair_similarity(before[rows], own[rows])
            for kind, rows in data.kinds.items()
        }
        if len(similar) > 1:
            similar = {f'{HELD_OUT}/pair_similarity': sum(similar.values()) / len(similar), **similar}
        scores.update(similar)
        # Each worker computes them alone; where their processors round differently, they must still agree.
        values = self.workers.sum([*scores.values()], name='scores')
        scores = {name: value / self.workers.size for name, value in zip(scores, values)}
        return TaskScores(scores, next(iter(scores)), self.instances_held_out())


def _digest(saved: SavedModel) -> str:
    """A checksum of the parameters of a network."""
    digest = hashlib.sha256()
    for name in sorted(saved.parameters):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(saved.parameters[name]))
    return digest.hexdigest()


def embeddings_of(model: OptBERTModel, features: Features) -> np.ndarray:
    """Of all, in their order, as of `embed`."""
    return embed(model, token_batches(features, BATCH_TOKENS, most=len(features)))


@dataclasses.dataclass(frozen=True)
class SentenceData:
    """Texts of a run.

    Parameters
    ----------
    kinds : mapping of str to slice
        Texts of `heldout` that are compared with one another: sentences and long texts, or all.
    pairs : mapping of str to (Features, np.ndarray)
        The first texts of pairs and then the second ones, and the scores of the pairs, by the name of their
        file.
    length : int
        The most tokens of a text.
    found : int
        Texts of the data, of which `train` and `heldout` may be some.
    """

    train: Features
    heldout: Features
    kinds: Mapping[str, slice]
    pairs: Mapping[str, tuple[Features, np.ndarray]]
    length: int
    found: int

    def described(self) -> str:
        """A line for people."""

        def counted(lengths: np.ndarray) -> str:
            long = int((lengths > LONG).sum())
            return f'{len(lengths):,} texts' + (f', {long:,} of more than {LONG} tokens' if long else '')

        read = len(self.train) + len(self.heldout)
        parts = [f'{read:,} of {self.found:,} texts, drawn at random'] if read < self.found else []
        parts += [
            f'to learn from: {counted(self.train.lengths)}',
            f'held out: {counted(self.heldout.lengths)}',
        ]
        parts += [f'pairs with scores: {len(scores):,} of {name}' for name, (_, scores) in self.pairs.items()]
        return ' | '.join(parts)

    def cut_notes(self, positions: int) -> list[str]:
        """Numbers of texts that were cut, a line for each set; the network has so many positions."""
        sets = {'to learn from': self.train, 'held out': self.heldout}
        sets.update((name, features) for name, (features, _) in self.pairs.items())
        notes = {name: features.cut_note(positions) for name, features in sets.items()}
        return [f'{name}: {note}' for name, note in notes.items() if note]


def read_sentence_data(recipe: TaskPruneRecipe, saved: SavedModel) -> SentenceData:
    """Texts of a recipe's data; `read_collection` says which pairs are held out.

    Of the other texts, or of 20,000 of them drawn at random, a 20th is held out, but at least 10 and at most
    512; of sentences and of long texts each, if there are 40 or more of both. Where nothing is trained, those
    20,000 are all that is read.

    Raises
    ------
    ValueError, FileNotFoundError
        From `read_collection`; if there are too few texts; or the recipe wants too few of them, or too few
        tokens of each.
    """
    length = recipe.max_length or saved.head.embedding.length(saved.architecture.max_length)
    most = EMBEDDED if recipe.evaluation_limit is None else min(EMBEDDED, recipe.evaluation_limit)
    for name, value, least in (
        ('max_length', length, SHORTEST),
        ('evaluation_limit', most, _FEWEST_HELD_OUT),
    ):
        if value < least:
            raise ValueError(f'{name} must be at least {least} for the task {SENTENCES}, found {value}')
    check_fits(length, saved, pairs=False)
    columns = {'text': recipe.text, 'label': recipe.label, 'kind': recipe.kind}
    found = read_collection(recipe.data, **columns, held_out=recipe.held_out)
    texts = found.texts[: recipe.limit]
    if len(texts) < _FEWEST:
        left = f', left by --limit {recipe.limit}' if len(texts) < len(found.texts) else ''
        raise ValueError(
            f'{recipe.data}: texts to learn from, each counted once{left}: {len(texts)}; at least {_FEWEST} '
            'are needed'
        )
    count = len(texts)
    pool = np.sort(np.random.RandomState(0).permutation(count)[:_ENOUGH])  # of the same texts in every run
    if not (recipe.trains_gates or recipe.recovers):
        texts, pool = [texts[row] for row in pool], np.arange(len(pool))
    read = make_reader(saved.vocabulary, max_length=length)
    every = read([(text,) for text in texts])
    is_long = every.lengths[pool] > LONG
    parts = {'sentences': pool[~is_long], 'long_texts': pool[is_long]}
    if min(map(len, parts.values())) < _FEWEST:
        parts = {HELD_OUT: pool}
    held, kinds, first = [], {}, 0
    for kind, rows in parts.items():
        drawn = np.random.RandomState(0).permutation(rows)
        drawn = drawn[: min(most, max(_FEWEST_HELD_OUT, len(rows) // _OF_HELD_OUT))]
        kinds[kind] = slice(first, first + len(drawn))
        held.append(np.sort(drawn))
        first += len(drawn)
    heldout = np.concatenate(held)
    pairs = {}
    for name, examples in found.scored.items():
        some = examples.first(recipe.evaluation_limit)
        if len(some) < _FEWEST_HELD_OUT:
            raise ValueError(
                f'{recipe.data}: pairs with scores to measure on, of {name}: {len(some)}; at least '
                f'{_FEWEST_HELD_OUT} are needed'
            )
        both = [(one,) for column in zip(*some.texts) for one in column]
        pairs[name] = read(both), some.labels
    train = np.setdiff1d(np.arange(len(every)), heldout)
    return SentenceData(every.some(train), every.some(heldout), kinds, pairs, length, count)
