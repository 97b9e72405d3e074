"""The training of alpha by equation (2): weights stand still, a penalty weighted by prices shrinks alpha.

Training ends after its steps, or when the selection that alpha leads to has settled: when it has hardly
changed for a while."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from ..architecture.cost import CostModel, ParameterCost, beta
from ..architecture.parameters import H_GATES, LETTERS, Alphas, gate_name
from ..cutting.selection import Selection
from ..network.model import OptBERTModel, build
from ..network.saved_model import SavedModel
from ..network.settings import check_precision
from ..text.shards import Shards
from ..training.distillation import OF_STATES, Match, StateMatching, Teacher, Weights
from ..training.distributed import Workers
from ..training.loop import Reporter, train
from ..training.objective import Objective, Phase
from ..training.optimization import LossScale, Optimizer, Schedule
from ..training.pretrain import Pretraining, read_start
from ..training.recipe import open_shards
from .objectives import check_heads
from .penalty import PENALTIES, L1Penalty

BATCH_SIZE = 256  # instances a step where only the number of steps is given
CHECKS = 5  # selections compared over a window
_NEVER = 2**63  # steps; the inverse of a learning rate may be infinite


@dataclasses.dataclass(frozen=True)
class GateSettings:
    """Settings of the training of alpha.

    Parameters
    ----------
    learning_rate : float
        Of every step.
    penalty : str
        A name in `PENALTIES`: the norm, and how its gradient reaches alpha.
    gamma : float
        The weight of the penalty.
    unweighted : bool
        Whether beta is 1 for every width. The prices are not used then.
    prune : str
        The widths whose alphas are trained, of ``h a k v f``; all others stay at one.
    optimizer : str
        ``adam`` or ``sgd``.
    dropout : float
        Of embeddings, attention probabilities and block outputs.
    precision : str
        Of the encoder's matrix products, a name in `TRAINING_PRECISIONS`.
    compression : str
        Of the gradients between workers, a name in `COMPRESSIONS`.
    h_gate : str
        Where alpha_h stands, one of `H_GATES`: in the LayerNorms of the stream, or as in Table 5.

    Raises
    ------
    ValueError
        If there is no such penalty or place, or no such widths.
    """

    learning_rate: float = 1e-2
    penalty: str = 'l1'
    gamma: float = 1e-2
    unweighted: bool = False
    prune: str = LETTERS
    optimizer: str = 'adam'
    dropout: float = 0.1
    precision: str = 'float32'
    compression: str = 'none'
    h_gate: str = 'stream'

    def __post_init__(self):
        for name, choices in (('penalty', PENALTIES), ('h_gate', H_GATES)):
            if getattr(self, name) not in choices:
                raise ValueError(f'{name} must be one of {", ".join(choices)}, found {getattr(self, name)!r}')
        if not self.prune or set(self.prune) - set(LETTERS):
            raise ValueError(f'prune must be made of letters of {LETTERS}, found {self.prune!r}')


@dataclasses.dataclass(frozen=True)
class Settling:
    """When gate training may stop before its last step.

    Parameters
    ----------
    window : int
        Steps over which the selection must have stayed the same.
    overlap : float
        The smallest share of the kept units that two selections in the window have in common.
    earliest : int
        The first step after which training may stop.
    """

    window: int
    overlap: float
    earliest: int

    @classmethod
    def of(cls, window: int, overlap: float, learning_rate: float) -> Settling:
        """With the first step at which Adam can have moved a gate from one to zero."""
        return cls(window, overlap, max(window, math.ceil(min(1 / learning_rate, _NEVER))))

    @property
    def every(self) -> int:
        """Steps between two checks."""
        return max(1, self.window // CHECKS)

    @property
    def first(self) -> int:
        """The first check that may end the training: the window before it begins with a check."""
        return -(-max(self.earliest, self.window + self.every) // self.every) * self.every


class GateTraining(Objective):
    """The training of alpha by equation (2): the loss of a network with gates, and a penalty on alpha.

    Parameters
    ----------
    settling, select : optional
        As of `train_gates`.

    Attributes
    ----------
    step : int
        Steps that were done.
    overlaps : list of (int, float)
        At every check after a whole window: the step, and the smallest overlap with a selection in it.
    settled : bool
        Whether the selection has settled.
    """

    def __init__(
        self,
        inner: Objective,
        penalty: L1Penalty,
        settling: Settling | None = None,
        select: Callable[[Alphas], Selection] | None = None,
    ):
        super().__init__(inner.model, inner.workers)
        self.losses, self.weights = inner.losses, inner.weights
        self.batches, self.loss_sums, self.totals = inner.batches, inner.loss_sums, inner.totals
        self._penalty, self._settling, self._select = penalty, settling, select
        self._kept: list[tuple[int, Mapping[str, np.ndarray]]] = []  # the units, by checks of the window
        self.step, self.settled = 0, False
        self.overlaps: list[tuple[int, float]] = []

    def evaluate(self, phase: Phase) -> None:
        return None

    def after_backward(self) -> None:
        self._penalty.add_gradient(self.model.gates)

    def after_update(self, learning_rate: float) -> None:
        self._penalty.after_step(self.model.gates, learning_rate)

    def metrics(self) -> dict[str, float]:
        trained = self.model.gates.trained().items()
        return {'penalty': self._penalty.value({key: gate.data().asnumpy() for key, gate in trained})}

    def finished(self) -> bool:
        self.step += 1
        settling = self._settling
        if settling is None or self.step % settling.every:
            return False
        kept = self._select(self._penalty.scores(self.model.gates.values())).kept
        begins = self.step - settling.window
        whole = any(step <= begins for step, _ in self._kept)
        self._kept = [pair for pair in self._kept if pair[0] >= begins]
        overlap = min((overlap_of(kept, before) for _, before in self._kept), default=0.0)
        self._kept.append((self.step, kept))
        if whole:
            self.overlaps.append((self.step, overlap))
        self.settled = whole and self.step >= settling.earliest and overlap >= settling.overlap
        return self.settled

    def memory(self) -> dict[str, np.ndarray]:
        arrays = {f'kept.{step}.{key}': kept[key] for step, kept in self._kept for key in kept}
        arrays['overlaps'] = np.array(self.overlaps, dtype=np.float64).reshape(-1, 2)
        arrays['settled'] = np.array([float(self.settled)])
        return arrays

    def recall(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        self.step = step
        kept: dict[int, dict[str, np.ndarray]] = {}
        for name in arrays:
            if name.startswith('kept.'):
                _, number, key = name.split('.')
                kept.setdefault(int(number), {})[key] = arrays[name].astype(np.int64)
        self._kept = sorted(kept.items())
        self.overlaps = [(int(number), float(share)) for number, share in arrays['overlaps']]
        self.settled = bool(arrays['settled'].any())

    def over(self) -> bool:
        return self.settled


@dataclasses.dataclass(frozen=True)
class TrainedGates:
    """Result of the training of alpha: the trained gates, zeros included; the scores that `train_gates`
    gives; and the training, with the steps that were done.
    """

    alphas: Alphas
    scores: Alphas
    training: GateTraining

    def folded(self) -> Alphas:
        """Alphas to fold into the weights: one where a gate is exactly zero. Such a unit may still stay
        within the budget, and weights multiplied by zero could not recover.
        """
        return {key: np.where(alpha == 0, np.float32(1), alpha) for key, alpha in self.alphas.items()}


def overlap_of(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The share of the kept units that two selections have in common, of the larger one's."""
    common = sum(len(np.intersect1d(units, other[key], assume_unique=True)) for key, units in one.items())
    return common / max(1, *(sum(map(len, kept.values())) for kept in (one, other)))


def train_alphas(
    saved: SavedModel,
    objective_of: Callable[[OptBERTModel, Phase], Objective],
    phase: Phase,
    settings: GateSettings,
    cost: CostModel,
    *,
    network: Mapping[str, Any],
    reporter: Reporter,
    workers: Workers,
    states: Path | None = None,
    settling: Settling | None = None,
    select: Callable[[Alphas], Selection] | None = None,
) -> TrainedGates:
    """Train alpha on any objective, by equation (2); every gate starts at one.

    Parameters
    ----------
    objective_of : callable
        The network with gates, and the phase → what they are trained on, without the penalty.
    network : mapping
        Fields of `NetworkSettings` that the objective needs.
    **others
        As of `train_gates`.
    """
    penalty = PENALTIES[settings.penalty]
    check_precision(settings.precision, workers.context())
    model = build(
        saved.architecture,
        saved.parameters,
        ctx=workers.context(),
        dropout=settings.dropout,
        precision=settings.precision,
        gated=penalty.gate,
        h_gate=settings.h_gate,
        head=saved.head,
        **network,
    )
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    for key, parameter in model.gates.parameters.items():
        if key[0] in settings.prune:
            parameter.grad_req = 'write'
        else:
            parameter.set_data(mx.nd.full(parameter.shape, penalty.gate.FIXED))
    optimizer = Optimizer(
        {gate_name(key): parameter for key, parameter in model.gates.trained().items()},
        settings.optimizer,
        workers=workers,
        scale=LossScale() if settings.precision == 'float16' else None,
        compression=settings.compression,
    )
    equal = dict.fromkeys(saved.architecture.widths(), 1.0)
    weights = equal if settings.unweighted else beta(saved.architecture, cost)
    training = GateTraining(objective_of(model, phase), penalty(settings.gamma, weights), settling, select)
    rate = Schedule(settings.learning_rate, phase.steps, decay=False)
    train(training, optimizer, rate, phase, reporter=reporter, states=states)
    trained = model.gates.values()
    alphas = {key: penalty.gate.value(parameter) for key, parameter in trained.items()}
    return TrainedGates(alphas, penalty.scores(trained), training)


def train_gates(
    start: SavedModel | Path | str,
    shards: Shards | Path | str,
    steps: int | Phase,
    settings: GateSettings = GateSettings(),
    *,
    cost: CostModel | None = None,
    workers: Workers | None = None,
    reporter: Reporter | None = None,
    states: Path | None = None,
    settling: Settling | None = None,
    select: Callable[[Alphas], Selection] | None = None,
    teacher: Teacher | None = None,
    match: Match | None = None,
) -> tuple[Alphas, Alphas]:
    """Train alpha by equation (2) of optBERT, section 5, with the weights frozen.

    The objective is the MLM loss, plus the NSP loss, plus gamma times the sum over the widths of beta times
    the norm of alpha. Here beta weights a width; it is derived from the price of one of its units. Every gate
    starts at one.

        alphas, scores = train_gates('models/small', 'shards', 100, GateSettings(gamma=0.1))

    Parameters
    ----------
    start : SavedModel, or a model directory
        A pre-trained network without gates.
    shards : Shards, or a directory of shards
        The training data; of a directory, the training split. A directory must have the network's vocabulary.
    steps : int or Phase
        The number of steps, with batches of 256 instances. A `Phase` also sets the batch size, the seed, the
        first batch, logging and checkpoints.
    cost : CostModel, optional
        What the prices are derived from; the number of parameters unless given.
    workers : Workers, optional
        The workers of this job; by default those that the environment names.
    reporter : Reporter, optional
        Writes the metrics; unless given they are shown and not written.
    states : Path, optional
        The directory of checkpoints. Training continues from the newest one. By default none are written.
    settling : Settling, optional
        When training may end before its last step; without it, never.
    select : callable
        With `settling`: the scores of the units → the selection that is watched.
    teacher : Teacher, optional
        A network whose states take the place of MLM and NSP. Then the heads of pre-training may be random.
    match : Match, optional
        Which of the teacher's states the network has; all unless given.

    Returns
    -------
    alphas : dict of width key to np.ndarray of float32, shape (width,)
        The gates to fold into the weights. The keys are those of `Architecture.widths`: ``h``, and ``a0``,
        ``k0``, ``v0``, ``f0`` and so on for every layer. `TrainedGates.folded` says where one is not the
        trained gate.
    scores : dict of width key to np.ndarray of float32, shape (width,)
        The scores that rank the units: the trained gates; for ``l0`` the odds that a gate is open.

    Raises
    ------
    ValueError, FileNotFoundError
        If the network or the shards do not suit.
    TrainingDiverged, Terminated
        From `train`.
    """
    saved = start if isinstance(start, SavedModel) else read_start(Path(start))
    source = shards if isinstance(shards, Shards) else open_shards(Path(shards), saved.vocabulary)['train']
    if teacher is None:
        check_heads(saved, source, start if isinstance(start, Path | str) else 'the network')
    phase = steps if isinstance(steps, Phase) else Phase('gates', steps, BATCH_SIZE)
    workers = workers or Workers()

    def objective_of(model: OptBERTModel, phase: Phase) -> Objective:
        if teacher is None:
            return Pretraining(model, workers, source)
        taught = {'teacher': teacher, 'match': match or Match.whole(saved.architecture)}
        weights = Weights(labels=0.0, scores=0.0)
        return StateMatching(model, workers, source, **taught, weights=weights, phase=phase)

    trained = train_alphas(
        saved,
        objective_of,
        phase,
        settings,
        cost or ParameterCost(),
        network={} if teacher is None else OF_STATES,
        reporter=reporter or Reporter(None, workers),
        workers=workers,
        states=states,
        settling=settling,
        select=select,
    )
    return trained.folded(), trained.scores
