"""The training of gates by itself: from directories and few arguments, and as in a pruning run."""

import dataclasses

import numpy as np
import pytest
from helpers.pruned import alphas_of, interrupted_at
from helpers.tiny import TOKENS, network, records, saved_model

from gluon_optbert.architecture.cost import FlopsCost, ParameterCost, beta
from gluon_optbert.network.gates import HardConcreteGate
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.pruning.gate_training import GateSettings, train_gates
from gluon_optbert.text.tokenizer import vocabulary_of
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import Reporter
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.optimization import TrainingDiverged

PHASE = Phase('gates', steps=3, batch_size=8, seed=1, log_every=0)
SETTINGS = {'learning_rate': 0.05, 'gamma': 0.01}
NAMES = {field.name for field in dataclasses.fields(GateSettings)}


def train(start, shards, steps, **more):
    """`train_gates` with the fields of `GateSettings` as keywords."""
    settings = GateSettings(**{name: more.pop(name) for name in NAMES & set(more)})
    return train_gates(start, shards, steps, settings, **more)


def test_directories_and_a_number_of_steps_are_enough(shards_directory, model_directory, tmp_path, capsys):
    alphas, scores = train(str(model_directory), str(shards_directory), 2, learning_rate=0.05)
    widths = network().widths()
    assert {key: alpha.shape for key, alpha in alphas.items()} == {key: (n,) for key, n in widths.items()}
    assert scores.keys() == alphas.keys() and all(alpha.dtype == np.float32 for alpha in alphas.values())
    assert all((alpha != 1).any() for alpha in alphas.values())
    first, last = capsys.readouterr().err.splitlines()
    assert first == 'gates | 2 steps | 256 sequences a step' and last.startswith('gates | step 2/2 | mlm ')


def test_alphas_are_those_of_the_first_round_of_a_run(pruned_run, shards, model_directory):
    phase = dataclasses.replace(PHASE, first_batch=1000)  # the network has read so many
    alphas, _ = train(read_model(model_directory), shards['train'], phase, **SETTINGS)
    wanted = alphas_of(pruned_run[0] / 'round-1')
    assert alphas.keys() == wanted.keys()
    assert all(np.array_equal(alpha, wanted[key]) for key, alpha in alphas.items())


def test_penalty_pushes_by_price_or_every_unit_alike(shards, model_directory):
    """One step of SGD moves a gate by the learning rate times its gradient, which has the weight in it."""
    settings = {'learning_rate': 0.01, 'optimizer': 'sgd', 'dropout': 0.0}
    phase = Phase('gates', steps=1, batch_size=8, seed=1, log_every=0)

    def alphas(gamma, **more):
        return train(model_directory, shards['train'], phase, gamma=gamma, **settings, **more)[0]

    free, unweighted = alphas(0.0), alphas(1.0, unweighted=True)
    for cost in (ParameterCost(), FlopsCost(16)):
        weighted, prices = alphas(1.0, cost=cost), beta(network(), cost)
        for key, alpha in free.items():
            assert alpha - weighted[key] == pytest.approx(0.01 * prices[key], abs=1e-6)  # float32 near 1
            assert alpha - unweighted[key] == pytest.approx(0.01, abs=1e-6)
        assert len({round(price, 6) for price in prices.values()}) > 2


def test_unit_at_zero_scores_zero_and_keeps_its_weights(shards, model_directory):
    alphas, scores = train(model_directory, shards['train'], PHASE, penalty='proximal', gamma=1e6, prune='f')
    assert all((scores[key] == 0).all() for key in ('f0', 'f1'))
    assert all((alpha == 1).all() for alpha in alphas.values())


def test_a_penalty_that_closes_all_gates_of_h_is_too_large(shards, model_directory):
    settings = {'penalty': 'proximal', 'gamma': 100.0, 'prune': 'h', 'h_gate': 'table5'}
    with pytest.raises(TrainingDiverged, match='has closed all gates of h.* gamma is too large'):
        train(model_directory, shards['train'], PHASE, **settings)


def test_a_draw_without_any_hidden_unit_has_finite_gradients(shards, model_directory, monkeypatch):
    """All gates but those of f are drawn shut here: nothing is learnt in these steps, and nothing fails."""
    monkeypatch.setattr(HardConcreteGate, 'FIXED', -30.0)
    monkeypatch.setattr(HardConcreteGate, 'OPEN', 0.0)  # drawn between zero and one, so with a gradient
    _, scores = train(model_directory, shards['train'], PHASE, penalty='l0', prune='f', gamma=0.0)
    assert all((scores[key] == 1).all() for key in ('f0', 'f1'))  # the odds are where they began


def test_l0_ranks_units_by_odds(shards, model_directory):
    alphas, scores = train(model_directory, shards['train'], PHASE, penalty='l0', **SETTINGS)
    assert all((alpha == 1).all() for alpha in alphas.values())  # gates that alone would rank nothing
    assert all(len(np.unique(scores[key])) > 1 for key in ('f0', 'f1'))


def test_training_goes_on_from_its_states_and_writes_its_metrics(shards, model_directory, tmp_path):
    settings = {**SETTINGS, 'prune': 'f'}
    whole, _ = train(model_directory, shards['train'], PHASE, **settings)
    phase = dataclasses.replace(PHASE, log_every=1, checkpoint_every=2)
    places = {'states': tmp_path / 'states', 'reporter': Reporter(tmp_path / 'metrics.jsonl', Workers())}
    with interrupted_at(3):
        train(model_directory, shards['train'], phase, **places, **settings)
    alphas, _ = train(model_directory, shards['train'], phase, **places, **settings)
    assert all(np.array_equal(alpha, whole[key]) for key, alpha in alphas.items())
    reported = [record['penalty'] for record in records(tmp_path)]
    prices = beta(network(), ParameterCost())  # of the gates that are trained
    assert len(reported) == 3
    wanted = 0.01 * sum(prices[key] * np.abs(alphas[key]).sum() for key in ('f0', 'f1'))
    assert reported[-1] == pytest.approx(wanted, rel=1e-6)


def test_gates_are_trained_with_the_dropout_that_is_asked_for(shards, model_directory):
    phase = dataclasses.replace(PHASE, steps=1)
    none, some = (
        train(model_directory, shards['train'], phase, optimizer='sgd', dropout=dropout)[0]
        for dropout in (0.0, 0.5)
    )
    assert any((alpha != some[key]).any() for key, alpha in none.items())


def test_what_does_not_suit_is_refused(shards, shards_directory, model_directory, tmp_path):
    for name, value in (('penalty', 'l2'), ('prune', 'hax')):
        with pytest.raises(ValueError, match=f'^{name} must be .*, found {value!r}'):
            train(model_directory, shards['train'], 1, **{name: value})
    ours = saved_model()
    other = SavedModel(ours.architecture, ours.parameters, vocabulary_of([*TOKENS[:-1], '!']))
    with pytest.raises(ValueError, match='another vocabulary'):
        train(other, shards_directory, 1)
