"""The training of alpha by equation (2): weights stand still, a penalty weighted by prices shrinks alpha."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, Generator, Mapping, Optional, Sequence, Tuple, Type, Union

import mxnet as mx
import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import CostModel, ParameterCost, beta
from ..architecture.parameters import H_GATES, LETTERS, Alphas, gate_name
from ..network.gates import Gate
from ..network.model import OptBERTModel, build
from ..network.saved_model import SavedModel
from ..network.settings import check_precision
from ..text.shards import Shards
from ..training.distillation import OF_STATES, Match, StateMatching, Teacher
from ..training.distributed import Workers
from ..training.loop import Reporter, train
from ..training.objective import Objective, Phase
from ..training.optimization import LossScale, Optimizer, Schedule
from ..training.pretrain import Pretraining
from ..training.recipe import open_shards
from .penalty import PENALTIES, Penalty
from .recipe import read_start
from .watch import Watch

BATCH_SIZE = 256  # instances a step where only the number of steps is given


class GateTraining(Objective):
    """The training of alpha by equation (2): an objective, and a penalty on alpha.

    Parameters
    ----------
    inner : Objective
        Of a model with gates; only they are trained.
    penalty : Penalty
    watch : Watch, optional
    """

    def __init__(self, inner: Objective, penalty: Penalty, watch: Optional[Watch] = None):
        super().__init__(inner.model, inner.workers)
        self.losses, self.weights = inner.losses, inner.weights
        self._inner, self._penalty, self._watch = inner, penalty, watch

    def batches(self, phase: Phase, start: int) -> Generator[Any, None, None]:
        return self._inner.batches(phase, start)

    def loss_sums(self, batch: Any, rows: slice) -> Tuple[mx.nd.NDArray, ...]:
        return self._inner.loss_sums(batch, rows)

    def totals(self, batch: Any) -> Sequence[float]:
        return self._inner.totals(batch)

    def evaluate(self, phase: Phase) -> None:
        return None

    def after_backward(self) -> None:
        self._penalty.add_gradient(self.model.gates)

    def after_update(self, learning_rate: float) -> None:
        self._penalty.after_step(self.model.gates, learning_rate)

    def metrics(self) -> Dict[str, float]:
        trained = self.model.gates.trained().items()
        return {'penalty': self._penalty.value({key: gate.data().asnumpy() for key, gate in trained})}

    def finished(self) -> bool:
        return self._watch is not None and self._watch.step(self._scores)

    def _scores(self) -> Alphas:
        return self._penalty.scores(self.model.gates.values())

    def memory(self) -> Dict[str, np.ndarray]:
        return {} if self._watch is None else self._watch.memory()

    def recall(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        if self._watch is not None:
            self._watch.recall(step, arrays)

    def over(self) -> bool:
        return self._watch is not None and self._watch.settled


@dataclasses.dataclass(frozen=True)
class GateSettings:
    """How alpha is trained; `train_gates` says what each of them is."""

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


def train_alphas(
    saved: SavedModel,
    objective_of: Callable[[OptBERTModel], Objective],
    phase: Phase,
    settings: GateSettings,
    cost: CostModel,
    *,
    network: Mapping[str, Any],
    reporter: Reporter,
    workers: Workers,
    states: Optional[Path] = None,
    watch: Optional[Watch] = None,
) -> Tuple[Alphas, Alphas]:
    """Train alpha on any objective; what comes out is described in `train_gates`.

    Parameters
    ----------
    saved : SavedModel
        Without gates.
    objective_of : callable
        The network with gates → what they are trained on, without the penalty.
    phase : Phase
    settings : GateSettings
    cost : CostModel
        What beta is derived from.
    network : mapping
        Fields of `NetworkSettings` that the objective needs.
    reporter, workers, states, watch
        As in `train_gates`.
    """
    kind = _penalty_of(settings.penalty, settings.prune)
    check_precision(settings.precision, workers.context())
    model = build(
        saved.architecture,
        saved.parameters,
        ctx=workers.context(),
        dropout=settings.dropout,
        precision=settings.precision,
        gated=kind.gate,
        h_gate=settings.h_gate,
        head=saved.head,
        **network,
    )
    _freeze_all_but(model, settings.prune, kind.gate)
    alpha_optimizer = Optimizer(
        {gate_name(key): parameter for key, parameter in model.gates.trained().items()},
        settings.optimizer,
        workers=workers,
        scale=LossScale() if settings.precision == 'float16' else None,
        compression=settings.compression,
    )
    weights = _equal(saved.architecture) if settings.unweighted else beta(saved.architecture, cost)
    train(
        GateTraining(objective_of(model), kind(settings.gamma, weights), watch),
        alpha_optimizer,
        Schedule(settings.learning_rate, phase.steps, decay=False),
        phase,
        reporter=reporter,
        states=states,
    )
    trained = model.gates.values()
    if watch is not None:
        watch.finish({key: kind.gate.value(parameter) for key, parameter in trained.items()})
    return _results(kind, trained)


def train_gates(
    start: Union[SavedModel, Path, str],
    shards: Union[Shards, Path, str],
    steps: Union[int, Phase],
    *,
    learning_rate: float = 1e-2,
    penalty: str = 'l1',
    gamma: float = 1e-2,
    cost: Optional[CostModel] = None,
    unweighted: bool = False,
    prune: str = LETTERS,
    optimizer: str = 'adam',
    dropout: float = 0.1,
    precision: str = 'float32',
    compression: str = 'none',
    workers: Optional[Workers] = None,
    reporter: Optional[Reporter] = None,
    states: Optional[Path] = None,
    watch: Optional[Watch] = None,
    teacher: Optional[Teacher] = None,
    match: Optional[Match] = None,
    h_gate: str = 'stream',
) -> Tuple[Alphas, Alphas]:
    """Train alpha by equation (2) of optBERT, section 5, with the weights frozen.

    The objective is the MLM loss, plus the NSP loss, plus gamma times the sum over the widths of beta times
    the norm of alpha. Here beta weights a width; it is derived from the price of one of its units. Every gate
    starts at one.

        alphas, scores = train_gates('models/small', 'shards', 100)

    Parameters
    ----------
    start : SavedModel, or a model directory
        A pre-trained network without gates.
    shards : Shards, or a directory of shards
        The training data; of a directory, the training split. A directory must have the network's vocabulary.
    steps : int or Phase
        The number of steps, with batches of 256 instances. A `Phase` also sets the batch size, the seed, the
        first batch, logging and checkpoints.
    learning_rate : float
        Of every step.
    penalty : str
        A name in `PENALTIES`: the norm, and how its gradient reaches alpha.
    gamma : float
        The weight of the penalty.
    cost : CostModel, optional
        What the prices are derived from; the number of parameters unless given.
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
    workers : Workers, optional
        The workers of this job; by default those that the environment names.
    reporter : Reporter, optional
        Writes the metrics; unless given they are shown and not written.
    states : Path, optional
        The directory of checkpoints. Training continues from the newest one. By default none are written.
    watch : Watch, optional
        Follows the gates, and may end their training before the last step.
    teacher : Teacher, optional
        A network whose states take the place of MLM and NSP. Then the heads of pre-training may be random.
    match : Match, optional
        Which of the teacher's states the network has; all unless given.
    h_gate : str
        Where alpha_h stands, one of `H_GATES`: in the LayerNorms of the stream, or as in Table 5.

    Returns
    -------
    alphas : dict of width key to np.ndarray of float32, shape (width,)
        The gates to fold into the weights. The keys are those of `Architecture.widths`: ``h``, and ``a0``,
        ``k0``, ``v0``, ``f0`` and so on for every layer. A unit whose trained gate is exactly zero gets an
        alpha of one here. It may still stay within the budget, and weights multiplied by zero could not
        recover.
    scores : dict of width key to np.ndarray of float32, shape (width,)
        The scores that rank the units: the trained gates; for ``l0`` the odds that a gate is open.

    Raises
    ------
    ValueError, FileNotFoundError
        If the network or the shards do not suit, or a name is none of those above.
    TrainingDiverged, Terminated
        From `train`.
    """
    _penalty_of(penalty, prune)
    _check_place(h_gate)
    saved = start if isinstance(start, SavedModel) else read_start(Path(start), heads=teacher is None)
    source = shards if isinstance(shards, Shards) else open_shards(Path(shards), saved.vocabulary)['train']
    phase = steps if isinstance(steps, Phase) else Phase('gates', steps, BATCH_SIZE)
    workers = workers or Workers()

    def objective_of(model: OptBERTModel) -> Objective:
        if teacher is None:
            return Pretraining(model, workers, source)
        states_left = match or Match.whole(saved.architecture)
        return StateMatching.for_gates(
            model, workers, source, teacher=teacher, match=states_left, phase=phase
        )

    return train_alphas(
        saved,
        objective_of,
        phase,
        GateSettings(
            learning_rate,
            penalty,
            gamma,
            unweighted,
            prune,
            optimizer,
            dropout,
            precision,
            compression,
            h_gate,
        ),
        cost or ParameterCost(),
        network={} if teacher is None else OF_STATES,
        reporter=reporter or Reporter(None, workers),
        workers=workers,
        states=states,
        watch=watch,
    )


def _penalty_of(name: str, prune: str) -> Type[Penalty]:
    """The penalty of a name; ValueError if there is none, or there are no such widths to prune."""
    if name not in PENALTIES:
        raise ValueError(f'penalty must be one of {", ".join(PENALTIES)}, found {name!r}')
    if not prune or set(prune) - set(LETTERS):
        raise ValueError(f'prune must be made of letters of {LETTERS}, found {prune!r}')
    return PENALTIES[name]


def _check_place(h_gate: str) -> None:
    """Raise ValueError unless alpha_h may stand there."""
    if h_gate not in H_GATES:
        raise ValueError(f'h_gate must be one of {", ".join(H_GATES)}, found {h_gate!r}')


def _equal(architecture: Architecture) -> Dict[str, float]:
    """A beta of one for every width."""
    return dict.fromkeys(architecture.widths(), 1.0)


def _results(kind: Type[Penalty], trained: Alphas) -> Tuple[Alphas, Alphas]:
    """Alphas to fold and scores, from the trained parameters of the gates."""
    alphas = {key: kind.gate.value(parameter) for key, parameter in trained.items()}
    folded = {key: np.where(alpha == 0, np.float32(1), alpha) for key, alpha in alphas.items()}
    return folded, kind.scores(trained)


def _freeze_all_but(model: OptBERTModel, letters: str, gate: Type[Gate]) -> None:
    """Leave only the gates of some widths to be trained; those of the others are held open."""
    for parameter in model.collect_params().values():
        parameter.grad_req = 'null'
    for key, parameter in model.gates.parameters.items():
        if key[0] in letters:
            parameter.grad_req = 'write'
        else:
            parameter.set_data(mx.nd.full(parameter.shape, gate.FIXED))
