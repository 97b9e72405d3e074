"""Least squares for cut layers: exact where the targets are linear, and drawn to the weights elsewhere."""

import numpy as np
import pytest

from gluon_optbert.cutting.repairs import DenseRegression, ScaleRegression

GENERATOR = np.random.RandomState(3)
INPUTS = GENERATOR.standard_normal((400, 5)) + 2
WEIGHT, BIAS = GENERATOR.standard_normal((3, 5)), GENERATOR.standard_normal(3)


def in_pieces(regression, inputs, targets, sizes=(1, 150, 249)):
    ends = np.cumsum(sizes)
    for start, end in zip(ends - sizes, ends):
        regression.add(inputs[start:end], targets[start:end])
    return regression


def test_dense_regression_finds_the_layer_that_made_the_targets():
    regression = in_pieces(DenseRegression(5, 3), INPUTS, INPUTS @ WEIGHT.T + BIAS)
    weight, bias = regression.solve(np.zeros((3, 5)), np.zeros(3), ridge=1e-9)
    np.testing.assert_allclose(weight, WEIGHT, atol=1e-6)
    np.testing.assert_allclose(bias, BIAS, atol=1e-6)


def test_dense_regression_is_the_ridge_of_its_formula():
    targets = INPUTS @ WEIGHT.T + GENERATOR.standard_normal((400, 3))
    start = GENERATOR.standard_normal((3, 5))
    weight, bias = in_pieces(DenseRegression(5, 3), INPUTS, targets).solve(start, np.zeros(3), ridge=0.5)
    x, y = INPUTS - INPUTS.mean(axis=0), targets - targets.mean(axis=0)
    penalty = 0.5 * np.trace(x.T @ x) / 5
    wanted = np.linalg.inv(x.T @ x + penalty * np.eye(5)) @ (x.T @ y + penalty * start.T)
    np.testing.assert_allclose(weight, wanted.T, rtol=1e-5)
    np.testing.assert_allclose(bias, targets.mean(axis=0) - wanted.T @ INPUTS.mean(axis=0), rtol=1e-5)


def test_dense_regression_keeps_the_weights_where_inputs_say_nothing():
    regression = DenseRegression(5, 3)
    kept = regression.solve(WEIGHT, BIAS)
    assert kept[0] is WEIGHT and kept[1] is BIAS
    regression.add(np.ones((7, 5)), np.full((7, 3), 4.0))
    weight, bias = regression.solve(WEIGHT, BIAS)
    np.testing.assert_allclose(np.ones(5) @ weight.T + bias, np.full(3, 4.0), rtol=1e-6)
    assert weight is WEIGHT


@pytest.mark.parametrize('tokens', [1, 50, 4000])
@pytest.mark.parametrize('kind', [DenseRegression, ScaleRegression])
def test_regression_keeps_the_weights_where_every_token_is_the_same(kind, tokens):
    for scale in (0.1, 1.0, 3.3):  # rounding leaves now some variance, now none
        token, target = (GENERATOR.standard_normal((1, 6)).astype(np.float32) * scale for _ in range(2))
        regression = DenseRegression(6, 6) if kind is DenseRegression else ScaleRegression(6)
        for _ in range(3):
            regression.add(np.repeat(token, tokens, axis=0), np.repeat(target, tokens, axis=0))
        start = GENERATOR.standard_normal((6, 6) if kind is DenseRegression else 6).astype(np.float32)
        weight, bias = regression.solve(start, np.zeros(6, np.float32))
        assert weight is start
        found = token @ weight.T + bias if kind is DenseRegression else token * weight + bias
        np.testing.assert_allclose(found, target, atol=1e-5 * scale)


def test_two_workers_shares_solve_as_one():
    targets = INPUTS @ WEIGHT.T + GENERATOR.standard_normal((400, 3))
    one = in_pieces(DenseRegression(5, 3), INPUTS, targets).solve(WEIGHT, BIAS)
    shares = [DenseRegression(5, 3), DenseRegression(5, 3)]
    shares[0].add(INPUTS[::2], targets[::2])
    shares[1].add(INPUTS[1::2], targets[1::2])
    others = iter([shares[1]._tokens, shares[1]._x, shares[1]._y, shares[1]._xx, shares[1]._xy])
    both = shares[0].solve(WEIGHT, BIAS, total=lambda array: array + next(others))
    for value, wanted in zip(both, one):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


def test_scale_regression_finds_gamma_and_beta():
    gamma, beta = np.array([2.0, -1, 0.5, 3, 1]), np.arange(5.0)
    regression = in_pieces(ScaleRegression(5), INPUTS, INPUTS * gamma + beta)
    found_gamma, found_beta = regression.solve(np.ones(5), np.zeros(5), ridge=1e-9)
    np.testing.assert_allclose(found_gamma, gamma, atol=1e-6)
    np.testing.assert_allclose(found_beta, beta, atol=1e-6)


def test_scale_regression_is_drawn_to_the_gamma_that_was_there():
    noise = GENERATOR.standard_normal((400, 5))
    regression = in_pieces(ScaleRegression(5), INPUTS, noise)
    gamma, _ = regression.solve(np.full(5, 7.0), np.zeros(5), ridge=1e6)
    np.testing.assert_allclose(gamma, 7, rtol=1e-4)


def test_scale_regression_draws_all_units_by_their_mean_variance():
    inputs = INPUTS * np.arange(1, 6)
    targets, start = GENERATOR.standard_normal((400, 5)), GENERATOR.standard_normal(5)
    gamma, beta = in_pieces(ScaleRegression(5), inputs, targets).solve(start, np.zeros(5), ridge=0.5)
    x, y = inputs - inputs.mean(axis=0), targets - targets.mean(axis=0)
    penalty = 0.5 * (x * x).mean()
    wanted = ((x * y).mean(axis=0) + penalty * start) / ((x * x).mean(axis=0) + penalty)
    np.testing.assert_allclose(gamma, wanted, rtol=1e-5)
    np.testing.assert_allclose(beta, targets.mean(axis=0) - wanted * inputs.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize('kind', [DenseRegression, ScaleRegression])
def test_memory_does_not_grow_with_the_tokens(kind):
    regression = DenseRegression(5, 3) if kind is DenseRegression else ScaleRegression(5)
    targets = INPUTS @ WEIGHT.T if kind is DenseRegression else INPUTS

    def size():
        return sum(value.nbytes for value in vars(regression).values())

    before = size()
    for _ in range(10):
        regression.add(INPUTS, targets)
    assert size() == before
