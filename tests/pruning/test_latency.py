"""The latency model: what it is fitted to comes out again, and a budget in milliseconds is kept."""

import json

import numpy as np
import pytest
from helpers.commands import call
from helpers.tiny import network

from gluon_optbert.architecture.cost import LATENCY_FEATURES, LatencyCost, cost_model, latency_features
from gluon_optbert.cutting.baselines import random_scores
from gluon_optbert.cutting.selection import select_units
from gluon_optbert.pruning import latency
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.latency import LatencyRecipe, fit_latency, random_architecture
from gluon_optbert.pruning.recipe import PruneRecipe

TRUE = dict(zip(LATENCY_FEATURES, (0.3, 0.05, 0.02, 1e-4, 2e-3, 1e-5, 3e-5, 1e-5, 4e-7, 3e-7, 2e-7)))


def recipe_of(output) -> LatencyRecipe:
    return LatencyRecipe(output=output, batch=1, length=16, networks=60, repeats=1, largest_h=256, seed=3)


def times_of(recipe) -> np.ndarray:
    generator = np.random.RandomState(recipe.seed)
    drawn = [random_architecture(generator, recipe.largest_h, recipe.length) for _ in range(recipe.networks)]
    return np.array([LatencyCost(TRUE, 1, 16).cost(architecture) for architecture in drawn])


def test_a_linear_machine_is_found_exactly(tmp_path):
    recipe = recipe_of(tmp_path / 'latency.json')
    result = fit_latency(recipe, times=times_of(recipe))
    assert result['relative_error']['largest'] < 1e-6
    model = cost_model('latency', latency_model=tmp_path / 'latency.json')
    architecture = network((2, 4, 6, 20), (1, 3, 3, 0))
    assert model.cost(architecture) == pytest.approx(LatencyCost(TRUE, 1, 16).cost(architecture), rel=1e-6)


def test_the_error_is_that_of_networks_that_were_not_fitted(tmp_path):
    recipe = recipe_of(tmp_path / 'latency.json')
    times = times_of(recipe)
    times[1] *= 2  # the second network is in the half that is held out
    assert fit_latency(recipe, times=times)['relative_error']['largest'] == pytest.approx(0.5, abs=1e-6)


def test_a_budget_in_milliseconds_is_kept():
    cost = LatencyCost(TRUE, 1, 16)
    architecture = network((4, 8, 8, 64), (4, 8, 8, 64), h=32)
    fixed = cost.cost(architecture.with_widths(dict.fromkeys(architecture.widths(), 1)))
    target = fixed + 0.5 * (cost.cost(architecture) - fixed)
    selection = select_units(random_scores(architecture, 1), architecture, cost, target)
    assert target - max(cost.prices(architecture).values()) <= selection.cost <= target


def test_features_are_sums_over_layers():
    both = latency_features(network((2, 4, 6, 20), (1, 3, 3, 0)))
    one, other = latency_features(network((2, 4, 6, 20))), latency_features(network((1, 3, 3, 0)))
    assert both == {name: one[name] + other[name] - (name == 'network') for name in LATENCY_FEATURES}
    assert both['blocks'] == 1 and both['h a k'] == 8 * (8 + 3)


@pytest.mark.parametrize('spoil', ['', '[]', '{"coefficients": {}, "batch": 1, "length": 1}', 'negative'])
def test_another_file_is_refused(tmp_path, spoil):
    if spoil == 'negative':
        spoil = json.dumps({'coefficients': {**TRUE, 'h': -1.0}, 'batch': 1, 'length': 16})
    (tmp_path / 'latency.json').write_text(spoil)
    with pytest.raises(ValueError, match='latency.json'):
        LatencyCost.read(tmp_path / 'latency.json')


def test_the_command_measures_and_does_not_overwrite(tmp_path):
    words = [
        'tools/fit_latency.py',
        tmp_path / 'latency.json',
        '--networks',
        22,
        '--repeats',
        1,
        '--length',
        8,
        '--largest-h',
        16,
    ]
    result = call(*words)
    assert result.returncode == 0 and 'relative error on 11 networks' in result.stdout, result.stderr
    assert LatencyCost.read(tmp_path / 'latency.json').length == 8
    assert call(*words).returncode == 2


def test_finished_run_compares_predicted_with_measured_latency(tmp_path, shards_directory, model_directory):
    path = tmp_path / 'latency.json'
    path.write_text(
        json.dumps({'batch': 1, 'length': 8, 'coefficients': dict.fromkeys(LATENCY_FEATURES, 0.01)})
    )
    rows = prune(
        PruneRecipe(
            model=model_directory,
            shards=shards_directory,
            output=tmp_path / 'run',
            target=0.6,
            rounds=1,
            objective='latency',
            latency_model=path,
            batch_size=8,
            alpha_steps=1,
            recovery_steps=1,
            evaluation_limit=8,
            checkpoint_every=0,
        )
    )
    latency = json.loads((tmp_path / 'run' / 'latency.json').read_text())
    finished = rows[-1].architecture
    assert (
        latency['finished']['predicted_ms']
        == LatencyCost.read(path).cost(finished)
        <= 0.6 * latency['before']['predicted_ms']
    )
    assert all(value['measured_ms'] > 0 for value in latency.values())
    assert f'{latency["finished"]["measured_ms"]:.2f} ms' in (tmp_path / 'run' / 'pruning.md').read_text()


@pytest.mark.parametrize('batch, shapes', [(8, ['1x16', '8x16']), (2, ['1x16', '8x16', '2x16'])])
def test_the_shape_of_the_model_is_timed_once_with_the_rounds(monkeypatch, batch, shapes):
    taken = []

    def measured(architectures, batch, length, *, repeats):
        taken.append(f'{batch}x{length}')
        return 100.0 * batch + np.arange(len(architectures))

    monkeypatch.setattr(latency, 'measure', measured)
    generator = np.random.RandomState(1)
    rounds = [latency.random_architecture(generator, 64, 16) for _ in range(3)]
    cost = LatencyCost(TRUE, batch, 16)
    times = latency.time_rounds(rounds, 16, cost)
    checked = latency.check_predictions(cost, rounds, times)
    assert taken == list(times['milliseconds']) == shapes
    assert [checked[name]['measured_ms'] for name in ('before', 'finished')] == [
        100.0 * batch,
        100.0 * batch + 2,
    ]
    assert checked['finished']['predicted_ms'] == cost.cost(rounds[2])
