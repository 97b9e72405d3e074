"""Repairs: rotated heads keep what they compute, and least squares finds the layer that made the targets."""

import numpy as np
import pytest
from helpers.tiny import network, outputs_of, random_inputs, random_parameters

from gluon_optbert.cutting.repairs import (
    DenseRegression,
    ScaleRegression,
    balance_heads,
    context_bases,
    score_bases,
)
from gluon_optbert.network.model import build

GENERATOR = np.random.RandomState(5)


def correlated(tokens, width):
    return GENERATOR.standard_normal((tokens, width)) @ GENERATOR.standard_normal((width, width))


def test_score_bases_keep_every_score_and_make_both_moments_the_same_diagonal():
    queries, keys = correlated(500, 6), correlated(500, 6)
    query_basis, key_basis = score_bases(queries.T @ queries / 500, keys.T @ keys / 500)
    turned_queries, turned_keys = queries @ query_basis, keys @ key_basis
    np.testing.assert_allclose(turned_queries @ turned_keys.T, queries @ keys.T, atol=1e-8)
    for turned in (turned_queries, turned_keys):
        moments = turned.T @ turned / 500
        strength = np.diag(moments)
        assert np.all(np.diff(strength) < 0)
        np.testing.assert_allclose(moments, np.diag(strength), atol=1e-4 * strength[0])
    scores = queries @ keys.T  # the first directions are the best of their rank
    error = np.linalg.norm(turned_queries[:, :3] @ turned_keys[:, :3].T - scores)
    best = np.sqrt((np.linalg.svd(scores, compute_uv=False)[3:] ** 2).sum())
    np.testing.assert_allclose(error, best, rtol=1e-4)


def test_context_bases_keep_what_the_head_writes_also_where_values_are_wider_than_the_stream():
    for h, v in ((7, 4), (3, 5)):
        contexts, output = correlated(500, v), GENERATOR.standard_normal((h, v))
        basis, columns = context_bases(contexts.T @ contexts / 500, output)
        turned = contexts @ basis.T
        np.testing.assert_allclose(turned @ columns.T, contexts @ output.T, atol=1e-8)
        strength = np.linalg.norm(columns, axis=0)
        assert np.all(np.diff(strength) < 1e-9)


def test_units_that_no_token_uses_stay_harmless():
    queries = np.zeros((4, 4))
    query_basis, key_basis = score_bases(queries, np.diag([1.0, 0, 0, 0]))
    np.testing.assert_allclose(query_basis @ key_basis.T, np.eye(4), atol=1e-6)


# Least squares

INPUTS = GENERATOR.standard_normal((400, 5)) + 2
WEIGHT, BIAS = GENERATOR.standard_normal((3, 5)), GENERATOR.standard_normal(3)


def in_pieces(regression, inputs, targets, sizes=(1, 150, 249)):
    ends = np.cumsum(sizes)
    for start, end in zip(ends - sizes, ends):
        regression.add(inputs[start:end], targets[start:end])
    return regression


def test_balanced_heads_compute_the_same_with_equal_norms():
    architecture = network((2, 3, 5, 4), (1, 4, 2, 0))
    parameters = random_parameters(architecture)
    scale = np.float32(100) ** GENERATOR.uniform(-1, 1, 10).astype(np.float32)
    cell = 'encoder.transformer_cells.0.'
    for name, factor in (('attention_cell.proj_value', scale), ('proj', 1 / scale)):
        factor = factor[:, np.newaxis] if name != 'proj' else factor
        parameters[f'{cell}{name}.weight'] = parameters[f'{cell}{name}.weight'] * factor
    parameters[f'{cell}attention_cell.proj_value.bias'] = (
        parameters[f'{cell}attention_cell.proj_value.bias'] * scale
    )
    for name, unit in (('query', 1), ('key', 2)):  # units that say nothing stay as they are
        parameters[f'{cell}attention_cell.proj_{name}.weight'][unit] = 0
    balanced, inputs = balance_heads(parameters, architecture), random_inputs(architecture)
    before, after = (outputs_of(build(architecture, values), inputs) for values in (parameters, balanced))
    for name, wanted in before.items():
        np.testing.assert_allclose(after[name], wanted, atol=1e-5 * np.abs(wanted).max())  # float32
    for i in range(len(architecture.layers)):
        cell = f'encoder.transformer_cells.{i}.'
        rows = {
            name: np.linalg.norm(balanced[f'{cell}attention_cell.proj_{name}.weight'], axis=1)
            for name in ('query', 'key', 'value')
        }
        columns = np.linalg.norm(balanced[cell + 'proj.weight'], axis=0)
        np.testing.assert_allclose(rows['value'], columns, rtol=1e-5)
        used = (rows['query'] > 0) & (rows['key'] > 0)
        np.testing.assert_allclose(rows['query'][used], rows['key'][used], rtol=1e-5)


@pytest.mark.parametrize('deviation', [3e-2, 3e-3])
def test_regressions_are_exact_where_the_mean_is_far_above_the_deviation(deviation):
    """Sums of float32 products would be off by the share of the variance in the squared mean."""
    inputs = (1 + deviation * GENERATOR.standard_normal((4000, 5))).astype(np.float32)
    targets = (inputs.astype(np.float64) @ WEIGHT.T).astype(np.float32)
    weight, _ = in_pieces(DenseRegression(5, 3), inputs, targets, (1000, 3000)).solve(
        np.zeros((3, 5)), np.zeros(3), ridge=1e-9
    )
    np.testing.assert_allclose(weight, WEIGHT, atol=1e-3)  # what the rounding of the targets allows
    gamma, _ = in_pieces(ScaleRegression(5), inputs, 3 * inputs, (1000, 3000)).solve(
        np.ones(5), np.zeros(5), ridge=1e-9
    )
    np.testing.assert_allclose(gamma, 3, atol=1e-3)


def test_dense_regression_is_the_ridge_of_its_formula():
    targets = INPUTS @ WEIGHT.T + GENERATOR.standard_normal((400, 3))
    start = GENERATOR.standard_normal((3, 5))
    weight, bias = in_pieces(DenseRegression(5, 3), INPUTS, targets).solve(start, np.zeros(3), ridge=0.5)
    x, y = INPUTS - INPUTS.mean(axis=0), targets - targets.mean(axis=0)
    penalty = 0.5 * np.trace(x.T @ x) / 5
    wanted = np.linalg.inv(x.T @ x + penalty * np.eye(5)) @ (x.T @ y + penalty * start.T)
    np.testing.assert_allclose(weight, wanted.T, rtol=1e-5)
    np.testing.assert_allclose(bias, targets.mean(axis=0) - wanted.T @ INPUTS.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize('tokens', [1, 50, 4000])
@pytest.mark.parametrize('kind', [DenseRegression, ScaleRegression])
def test_regression_keeps_the_weights_where_there_is_no_token_or_every_one_is_the_same(kind, tokens):
    for scale in (0.1, 1.0, 3.3):  # rounding leaves now some variance, now none
        token, target = (GENERATOR.standard_normal((1, 6)).astype(np.float32) * scale for _ in range(2))
        regression = DenseRegression(6, 6) if kind is DenseRegression else ScaleRegression(6)
        start = GENERATOR.standard_normal((6, 6) if kind is DenseRegression else 6).astype(np.float32)
        zeros = np.zeros(6, np.float32)
        assert all(one is other for one, other in zip(regression.solve(start, zeros), (start, zeros)))
        for _ in range(3):
            regression.add(np.repeat(token, tokens, axis=0), np.repeat(target, tokens, axis=0))
        weight, bias = regression.solve(start, zeros)
        assert weight is start
        found = token @ weight.T + bias if kind is DenseRegression else token * weight + bias
        np.testing.assert_allclose(found, target, atol=1e-5 * scale)


def test_through_a_dense_layer_a_regression_is_that_of_the_layers_outputs():
    targets, held_out = GENERATOR.standard_normal((400, 4)), np.arange(400) < 100
    layer, bias = GENERATOR.standard_normal((3, 4)), GENERATOR.standard_normal(3)
    through, wanted = DenseRegression(5, 4), DenseRegression(5, 3)
    for part in (slice(0, 250), slice(250, 400)):
        through.add(INPUTS[part], targets[part], held_out[part])
        wanted.add(INPUTS[part], targets[part] @ layer.T + bias, held_out[part])
    before = through.solve(np.zeros((4, 5)), np.zeros(4))
    for value, other in zip(through.through(layer, bias).solve(WEIGHT, BIAS), wanted.solve(WEIGHT, BIAS)):
        np.testing.assert_allclose(value, other, rtol=1e-6)
    for value, other in zip(through.solve(np.zeros((4, 5)), np.zeros(4)), before):  # which is left as it was
        np.testing.assert_array_equal(value, other)


def test_two_workers_shares_solve_as_one():
    targets = INPUTS @ WEIGHT.T + GENERATOR.standard_normal((400, 3))
    held_out = np.arange(400) < 100
    whole, *shares = (DenseRegression(5, 3) for _ in range(3))
    whole.add(INPUTS, targets, held_out)
    one = whole.solve(WEIGHT, BIAS)
    for i, share in enumerate(shares):
        share.add(INPUTS[i::2], targets[i::2], held_out[i::2])
    others = iter([shares[1]._tokens, shares[1]._x, shares[1]._y, shares[1]._xx, shares[1]._xy])
    both = shares[0].solve(WEIGHT, BIAS, total=lambda array: array + next(others))
    for value, wanted in zip(both, one):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


@pytest.mark.parametrize('noise, away', [(0.1, 3.0), (3.0, 0.1)])
def test_held_out_tokens_choose_how_much_a_fit_is_drawn(noise, away):
    """Where targets are noisy and the start is near it has to stay, else to go; no one penalty does both."""
    inputs, fresh = GENERATOR.standard_normal((2, 120, 30))
    true = GENERATOR.standard_normal((8, 30))
    start = true + away * GENERATOR.standard_normal(true.shape)
    targets = inputs @ true.T + noise * GENERATOR.standard_normal((120, 8))
    held_out = np.arange(120) % 4 == 0

    def error(mask, ridge=0.01):
        regression = DenseRegression(30, 8)
        regression.add(inputs, targets, mask)
        weight, bias = regression.solve(start, np.zeros(8), ridge=ridge)
        return ((fresh @ (true - weight).T - bias) ** 2).mean()

    fixed = {ridge: error(False, ridge) for ridge in (1e-3, 10)}
    best, worst = sorted(fixed, key=fixed.get)
    assert best == (1e-3 if away > noise else 10)
    assert error(held_out) < min(1.1 * fixed[best], 0.5 * fixed[worst])
    for every in (True, False):  # nothing to choose by, or nothing to learn from
        assert error(every) == error(every, 0.01) != error(held_out)


def test_scale_regression_draws_all_units_by_their_mean_variance():
    inputs = INPUTS * np.arange(1, 6)
    targets, start = GENERATOR.standard_normal((400, 5)), GENERATOR.standard_normal(5)
    gamma, beta = in_pieces(ScaleRegression(5), inputs, targets).solve(start, np.zeros(5), ridge=0.5)
    x, y = inputs - inputs.mean(axis=0), targets - targets.mean(axis=0)
    penalty = 0.5 * (x * x).mean()
    wanted = ((x * y).mean(axis=0) + penalty * start) / ((x * x).mean(axis=0) + penalty)
    np.testing.assert_allclose(gamma, wanted, rtol=1e-5)
    np.testing.assert_allclose(beta, targets.mean(axis=0) - wanted * inputs.mean(axis=0), rtol=1e-5)
