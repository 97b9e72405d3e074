"""The three penalties: values, gradients, thresholds, and what they leave at zero."""

import mxnet as mx
import numpy as np
import pytest
from helpers.tiny import network, random_alphas

from gluon_optbert.network.gates import Gate, HardConcreteGate
from gluon_optbert.network.model import build
from gluon_optbert.pruning.penalty import PENALTIES, L0Penalty, L1Penalty, ProximalPenalty

WEIGHTS = {'h': 0.5, 'a0': 1.0, 'k0': 0.1, 'v0': 0.2, 'f0': 0.01, 'a1': 2.0, 'k1': 0.3, 'v1': 0.4, 'f1': 0.05}


def gates_of(kind, values=None):
    gates = build(network(), gated=kind.gate).gates
    for parameter in gates.parameters.values():
        parameter.grad_req = 'write'
        parameter.zero_grad()
    if values:
        gates.set(values)
    return gates


@pytest.mark.parametrize('kind', [L1Penalty, L0Penalty])
def test_the_slope_of_the_value_is_added_to_the_gradient(kind):
    values = {key: value.astype(np.float32) for key, value in random_alphas(network(), 3).items()}
    penalty, gates = kind(0.7, WEIGHTS), gates_of(kind, values)
    for _ in range(2):  # to what is there already
        penalty.add_gradient(gates)
    for key, value in values.items():
        for i in range(len(value)):
            step = np.zeros(len(value))
            step[i] = 1e-4
            up, down = ({**values, key: value.astype(np.float64) + sign * step} for sign in (1, -1))
            slope = (penalty.value(up) - penalty.value(down)) / 2e-4
            assert gates.parameters[key].grad().asnumpy()[i] == pytest.approx(2 * slope, rel=1e-3)
    if kind is L1Penalty:
        wanted = 0.7 * sum(WEIGHTS[key] * np.abs(value).sum() for key, value in values.items())
        assert penalty.value(values) == pytest.approx(wanted)


@pytest.mark.parametrize('kind', PENALTIES.values())
def test_the_more_open_gate_has_the_larger_score(kind):
    """Also where hard-concrete gates are all one, or all zero."""
    trained = np.array([0.5, 1.0, 4.0, 30.0] if kind.gate is Gate else [-30.0, -4.0, 3.0, 30.0], np.float32)
    scores = kind.scores({'h': trained})['h']
    assert (np.diff(scores) > 0).all() and (scores > 0).all()


def test_proximal_step_thresholds_softly():
    values = random_alphas(network(), 1)
    values['h'][:3] = [0.01, -0.01, 0.0]
    penalty, gates = ProximalPenalty(0.2, WEIGHTS), gates_of(ProximalPenalty, values)
    penalty.add_gradient(gates)
    assert all(not parameter.grad().asnumpy().any() for parameter in gates.parameters.values())
    penalty.after_step(gates, 0.5)
    for key, gate in gates.values().items():
        moved = np.sign(values[key]) * np.maximum(np.abs(values[key]) - 0.5 * 0.2 * WEIGHTS[key], 0)
        assert np.allclose(gate, moved, atol=1e-6)  # float32
    assert (gates.values()['h'][:3] == 0).all()


def test_gates_that_are_not_trained_stay():
    for kind in PENALTIES.values():
        gates = gates_of(kind)
        gates.parameters['h'].grad_req = 'null'
        before = gates.values()['h']
        penalty = kind(1.0, WEIGHTS)
        penalty.add_gradient(gates)
        penalty.after_step(gates, 1.0)
        assert 'h' not in gates.trained() and np.array_equal(gates.values()['h'], before)


def test_hard_concrete_draws_are_open_as_often_as_its_probability_says():
    mx.random.seed(5)
    gate = HardConcreteGate(20000)
    gate.initialize()
    for odds in (-2.0, 0.0, 1.5):
        gate.alpha.set_data(mx.nd.full((20000,), odds))
        drawn = gate(mx.nd.ones((20000,))).asnumpy()
        assert ((drawn >= 0) & (drawn <= 1)).all()
        # 20,000 draws: five standard deviations are 0.018
        assert (drawn > 0).mean() == pytest.approx(
            HardConcreteGate.open_probability(np.array(odds)), abs=0.018
        )


def test_hard_concrete_gates_are_those_of_the_paper():
    """By its formulas (11) and (13), with a temperature of 2/3 over an interval from -0.1 to 1.1."""
    for odds in (-1.0, 0.0, 1.0):
        sigmoid = 1 / (1 + np.exp(-odds))
        assert HardConcreteGate.value(np.array(odds)) == pytest.approx(1.2 * sigmoid - 0.1)
        wanted = 1 / (1 + np.exp(2 / 3 * np.log(0.1 / 1.1) - odds))
        assert HardConcreteGate.open_probability(odds) == pytest.approx(wanted)


def test_gates_start_open_and_fixed_ones_are_never_drawn_shut():
    assert all(kind.value(np.array([kind.OPEN])) == 1.0 for kind in (Gate, HardConcreteGate))
    gate = HardConcreteGate(1000)
    gate.initialize()
    gate.alpha.set_data(mx.nd.full((1000,), HardConcreteGate.FIXED))
    assert (gate(mx.nd.ones((1000,))).asnumpy() == 1).all()
