"""The registry of methods: what an added one may do, and what the recipe checks of it."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.pruned import alphas_of, recipe_for, selection_of
from helpers.tiny import network

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.cutting.baselines import fisher_scores, random_scores, rearranged
from gluon_optbert.cutting.selection import Selection
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.pruning.methods import (
    METHODS,
    Cut,
    Method,
    fisher,
    head_importance,
    relative,
    value_projections,
)
from gluon_optbert.pruning.objectives import PretrainingObjective
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import RecipeError
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.objective import Phase


def ones(cut):
    return {key: np.ones(width) for key, width in cut.model.architecture.widths().items()}


def test_added_method_chooses_its_own_units(pruned, tmp_path, monkeypatch):
    seen = []

    def first_halves(cut, scores):
        seen.append((cut.number, cut.phase.steps, cut.phase.first_batch))
        kept = {
            key: np.arange((len(score) + 1) // 2 if key[0] == 'f' else len(score))
            for key, score in scores.items()
        }
        left = Selection(kept, 0.0, cut.target).architecture(cut.model.architecture)
        return Selection(kept, cut.cost.cost(left), cut.target)

    monkeypatch.setitem(METHODS, 'halves', Method(ones, first_halves, ranks_units=False))
    pruned(method='halves', targets=[0.9, 0.8])
    # after the 1,000 batches of the network; three batches of scores and four of recovery a round
    assert seen == [(1, 3, 1000), (2, 3, 1007)]
    first, second = (
        json.loads((tmp_path / 'run' / f'round-{n}' / 'selection.json').read_text())['kept']['f0']
        for n in (1, 2)
    )
    assert first == list(range(len(first))) and len(second) == (len(first) + 1) // 2


@pytest.mark.parametrize(
    'method, change, refused',
    [
        (Method(ones, ranks_units=False), {'multiple_of': 2}, 'multiple_of does not go with the method own'),
        (Method(ones, ranks_units=False), {'drop_blocks': True}, 'drop_blocks goes with a method that ranks'),
        (Method(ones, only='a'), {'prune': 'f'}, "the method own goes with --prune a, found 'f'"),
    ],
)
def test_what_an_added_method_cannot_do_is_refused(tmp_path, monkeypatch, method, change, refused):
    monkeypatch.setitem(METHODS, 'own', method)
    with pytest.raises(RecipeError, match=refused):
        recipe_for(tmp_path, tmp_path, tmp_path / 'run', method='own', **change)
    monkeypatch.setitem(METHODS, 'own', Method(ones))
    recipe_for(tmp_path, tmp_path, tmp_path / 'run', method='own', **change)


def test_uniform_widths_keep_the_units_with_the_largest_trained_gates(pruned, tmp_path):
    values = dict(rounds=1, target=0.5, alpha_learning_rate=0.3, recovery_steps=1)
    pruned(method='uniform-alpha', **values)
    directory = tmp_path / 'run' / 'round-1'
    alphas, kept = alphas_of(directory), selection_of(directory).kept
    for key, alpha in alphas.items():
        gone = np.delete(np.abs(alpha), kept[key])
        assert not len(gone) or gone.max() <= np.abs(alpha[kept[key]]).min()
    plain = METHODS['uniform'].select(cut_of(target=0.5), random_scores(network(), 1)).kept
    assert {key: len(units) for key, units in kept.items()} == {key: len(plain[key]) for key in plain}
    assert json.loads((directory / 'gates.json').read_text())['units'].keys() == set('hakvf')


def test_random_scores_follow_from_the_seed_and_the_round():
    one, again, other = (METHODS['random'].scores(cut_of(seed=seed))['h'] for seed in (1, 1, 2))
    later = METHODS['random'].scores(dataclasses.replace(cut_of(seed=1), number=2))['h']
    assert np.array_equal(one, again) and not np.array_equal(one, other) and np.array_equal(later, other)


def cut_of(**settings):
    """A cut of the tiny network down to half of its parameters."""
    recipe = PruneRecipe(model=Path('m'), shards=Path('s'), output=Path('o'), **settings)
    model, cost = SavedModel(network(), {}, None), ParameterCost()
    phase = Phase('importance', 1, 1)
    return Cut(model, recipe, 1, cost, 0.5 * cost.cost(network()), None, phase)


def test_squared_gradients_rank_for_their_price_and_stay_by_what_units_cost_together():
    """A width that has no gradients is left alone."""
    cut, random = cut_of(method='fisher'), np.random.RandomState(2)
    prices, widths = cut.cost.prices(network()), network().widths()
    measured = {key: random.normal(size=(3, width)) for key, width in widths.items() if key != 'h'}
    scores = fisher(cut, measured)
    alone = {'h': np.ones(8), **fisher_scores(measured, prices)}
    first, kept = (METHODS['fisher'].select(cut, values).kept for values in (alone, scores))
    together = {key: rearranged(values, first[key]) for key, values in measured.items()}
    assert any(not np.array_equal(units, first[key]) for key, units in together.items())
    assert all(np.array_equal(kept[key], units) for key, units in together.items())
    assert all(sorted(scores[key]) == sorted(alone[key]) for key in widths)


def test_a_common_factor_of_the_gates_of_a_width_changes_no_relative_ranking():
    scores = {key: 0.5 + 0.5 * values for key, values in random_scores(network(), seed=3).items()}
    select = METHODS['alpha'].select
    before = select(cut_of(relative_gates='ha'), scores).kept
    for key in ('h', 'a0', 'a1'):
        smaller = {**scores, key: 0.25 * scores[key]}
        after = select(cut_of(relative_gates='ha'), smaller).kept
        assert all(np.array_equal(before[other], after[other]) for other in before)
    smaller = {**scores, 'h': 0.25 * scores['h']}
    one, other = (len(select(cut_of(), alphas).kept['h']) for alphas in (scores, smaller))
    assert one > other


@pytest.mark.parametrize('settings', [{'penalty': 'l0'}, {'method': 'fisher'}, {'method': 'magnitude'}])
def test_scores_that_are_no_gates_are_ranked_as_they_are(settings):
    scores = random_scores(network(), seed=3)
    select = METHODS[settings.get('method', 'alpha')].select
    one, other = (
        select(cut_of(**settings, **more), scores).kept for more in ({}, {'relative_gates': 'hakvf'})
    )
    assert all(np.array_equal(one[key], other[key]) for key in one)


def test_relative_gates_are_divided_by_the_upper_decile_of_their_own_width():
    scores = {'h': -np.arange(11.0), 'a0': np.array([1.0, 2.0]), 'a1': np.zeros(2), 'k0': np.ones(3) * 5}
    found = relative(scores, 'ha')
    wanted = {'h': np.arange(11.0) / 9, 'a0': scores['a0'] / 1.9, 'a1': np.zeros(2), 'k0': scores['k0']}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value)


PHASE = Phase('importance', steps=1, batch_size=8, seed=1)


def test_scores_of_heads_are_the_slopes_of_the_loss_without_dropout(
    shards_directory, model_directory, tmp_path
):
    start = read_model(model_directory)
    recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', dropout=0.1)
    objective = PretrainingObjective(recipe, start, Workers())
    scores = head_importance(Cut(start, recipe, 1, None, 0.0, objective, PHASE))

    def loss(scaled):
        """Of the first batch, where the outputs of some heads are scaled."""
        model = objective.build(scaled)
        training = objective.labelled(model)
        batch = next(training.batches(PHASE, 0))
        sums = [float(part.asscalar()) for part in training.loss_sums(batch, slice(None))]
        return sum(np.array(sums) / training.totals(batch))

    def with_head(layer, head, factor):
        parameters = {name: value.copy() for name, value in start.parameters.items()}
        for name in value_projections(start.architecture)[layer]:
            width = len(parameters[name]) // start.architecture.layers[layer].a
            parameters[name][head * width : (head + 1) * width] *= factor
        return dataclasses.replace(start, parameters=parameters)

    for layer, dims in enumerate(start.architecture.layers):
        ends = ([loss(with_head(layer, head, scale)) for head in range(dims.a)] for scale in (1.05, 0.95))
        slopes = np.abs(np.subtract(*ends))
        assert scores[f'a{layer}'] == pytest.approx(slopes / np.linalg.norm(slopes), abs=0.03)
