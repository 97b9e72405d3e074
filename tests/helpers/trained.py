"""A small training run whose parts tests vary."""

import numpy as np

from gluon_optbert.architecture.cost import ParameterCost, beta
from gluon_optbert.architecture.parameters import parameter_table
from gluon_optbert.network.model import build, named_parameters
from gluon_optbert.pruning.gate_training import GateTraining
from gluon_optbert.pruning.penalty import L1Penalty
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import Reporter, train
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.optimization import Optimizer, Schedule
from gluon_optbert.training.pretrain import Pretraining
from helpers.tiny import network, records, saved_model

PHASE = Phase(name='training', steps=6, batch_size=8, seed=3, log_every=1)


class Run:
    """A network, its optimizer and a directory; `fit` with the arguments that tests vary."""

    def __init__(
        self,
        shards,
        directory,
        *,
        gated=False,
        dropout=0.1,
        optimizer='bertadam',
        seed=0,
        precision='float32',
        **options,
    ):
        self.shards, self.directory = shards, directory
        self.workers = Workers()
        directory.mkdir(parents=True, exist_ok=True)
        self.model = build(
            network(), saved_model(seed=seed).parameters, dropout=dropout, gated=gated, precision=precision
        )
        self.trained, self.penalty = named_parameters(self.model), None
        if gated:
            for parameter in self.trained.values():
                parameter.grad_req = 'null'
            self.trained = {f'{key}.alpha': gate for key, gate in self.model.gates.parameters.items()}
            self.penalty = L1Penalty(0.01, beta(network(), ParameterCost()))
        decayed = {name for name, spec in parameter_table(network()).items() if spec.decayed}
        self.optimizer = Optimizer(self.trained, optimizer, decayed=decayed, workers=self.workers, **options)

    def fit(self, phase=PHASE, *, schedule=None, heldout=False):
        data = self.shards['heldout'] if heldout else None
        objective = Pretraining(self.model, self.workers, self.shards['train'], data)
        if self.penalty:
            objective = GateTraining(objective, self.penalty)
        return train(
            objective,
            self.optimizer,
            schedule or Schedule(0.01, phase.steps, 2),
            phase,
            reporter=Reporter(self.directory / 'metrics.jsonl', self.workers),
            states=self.directory / 'states',
        )

    def values(self):
        return {name: parameter.data().asnumpy() for name, parameter in self.trained.items()}

    def records(self):
        return records(self.directory)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name
