"""Rotated heads: the same scores and outputs, with the strongest directions first."""

import numpy as np
from helpers.tiny import network, random_parameters

from gluon_optbert.cutting.repairs import context_bases, rotate_heads, score_bases

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


def test_first_directions_are_the_best_scores_of_their_rank():
    queries, keys = correlated(500, 6), correlated(500, 6)
    query_basis, key_basis = score_bases(queries.T @ queries / 500, keys.T @ keys / 500)
    scores = queries @ keys.T
    error = np.linalg.norm(queries @ query_basis[:, :3] @ (keys @ key_basis[:, :3]).T - scores)
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


def test_rotation_changes_only_the_heads():
    architecture = network((2, 3, 5, 4), (1, 4, 2, 0))
    parameters = random_parameters(architecture)
    moments = {
        f'{name}{i}': np.stack([np.eye(width) + head for head in range(dims.a)])
        for i, dims in enumerate(architecture.layers)
        for name, width in (('queries', dims.k), ('keys', dims.k), ('contexts', dims.v))
    }
    rotated = rotate_heads(parameters, architecture, moments)
    changed = {name for name in parameters if not np.array_equal(parameters[name], rotated[name])}
    assert changed and all('proj' in name for name in changed)
    assert {name: value.shape for name, value in rotated.items()} == {
        name: value.shape for name, value in parameters.items()
    }
    assert not any(name.endswith('transformer_cells.0.proj.bias') for name in changed)
