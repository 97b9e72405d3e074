"""The latency model: what it is fitted to comes out again, and what it predicts is measured."""

import json

import numpy as np
import pytest
from helpers.commands import call
from helpers.tiny import contents, network, write_saved_model

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import LATENCY_FEATURES, LatencyCost, cost_model, latency_features
from gluon_optbert.pruning import latency
from gluon_optbert.pruning.latency import (
    LatencyRecipe,
    check_predictions,
    fit_coefficients,
    fit_latency,
    time_rounds,
)

TRUE = dict(zip(LATENCY_FEATURES, (0.3, 0.05, 0.02, 1e-4, 2e-3, 1e-5, 3e-5, 1e-5, 4e-7, 3e-7, 2e-7)))


def recipe_of(output) -> LatencyRecipe:
    return LatencyRecipe(output=output, batch=1, length=16, networks=60, repeats=1, largest_h=256, seed=3)


@pytest.fixture
def linear(monkeypatch):
    """A machine whose times are linear, but for the factors that are set on them, by the network's number."""
    factors = {}

    def measure(drawn, *_, **__):
        times = np.array([LatencyCost(TRUE, 1, 16).cost(architecture) for architecture in drawn])
        times[list(factors)] *= list(factors.values())
        return times

    monkeypatch.setattr(latency, 'measure', measure)
    return factors


def test_a_linear_machine_is_found_exactly(linear, tmp_path):
    result = fit_latency(recipe_of(tmp_path / 'latency.json'))
    assert result['relative_error']['largest'] < 1e-6 and result['origin']['machine']['threads']
    model = cost_model('latency', latency_model=tmp_path / 'latency.json')
    architecture = network((2, 4, 6, 20), (1, 3, 3, 0))
    assert model.cost(architecture) == pytest.approx(LatencyCost(TRUE, 1, 16).cost(architecture), rel=1e-6)


def test_the_error_is_that_of_networks_that_were_not_fitted(linear, tmp_path):
    linear[1] = 2.0  # the second network is in the half that is held out
    errors = fit_latency(recipe_of(tmp_path / 'latency.json'))['relative_error']
    assert errors['largest'] == pytest.approx(0.5, abs=1e-6)


def test_it_is_the_relative_error_that_is_fitted():
    """Of the times 1 and 3: (c - 1)² + (c / 3 - 1)² is least at 6/5, and absolute errors are at 2."""
    fitted = LatencyCost(fit_coefficients([network()] * 2, np.array([1.0, 3.0])), 1, 16)
    assert fitted.cost(network()) == pytest.approx(1.2)


def test_predictions_are_those_of_the_first_and_the_last_network():
    cost, ends = LatencyCost(TRUE, 1, 16), [network((2, 4, 4, 8)), network((1, 4, 4, 8))]
    found = check_predictions(
        cost, [ends[0], network(), ends[1]], {'milliseconds': {'1x16': [3.0, 2.0, 1.0]}}
    )
    wanted = {'before': (cost.cost(ends[0]), 3.0), 'finished': (cost.cost(ends[1]), 1.0)}
    assert {name: (one['predicted_ms'], one['measured_ms']) for name, one in found.items()} == wanted


@pytest.mark.parametrize('spoil', ['', '[]', '{"coefficients": {}, "batch": 1, "length": 1}', 'negative'])
def test_another_file_is_refused(tmp_path, spoil):
    if spoil == 'negative':
        spoil = json.dumps({'coefficients': {**TRUE, 'h': -1.0}, 'batch': 1, 'length': 16})
    (tmp_path / 'latency.json').write_text(spoil)
    with pytest.raises(ValueError, match='latency.json'):
        LatencyCost.read(tmp_path / 'latency.json')


def test_the_command_measures_and_does_not_overwrite(linear, tmp_path):
    """Times of this machine, on which other programs run, would be too far off now and then."""
    flags = '--networks 22 --repeats 1 --length 8 --largest-h 16'.split()
    words = ['tools/fit_latency.py', tmp_path / 'latency.json', *flags]
    result = call(*words)
    assert result.returncode == 0 and 'relative error on 11 networks' in result.stdout, result.stderr
    assert LatencyCost.read(tmp_path / 'latency.json').length == 8
    assert call(*words).returncode == 2


def test_widths_are_drawn_up_to_those_of_the_model_that_is_to_be_pruned(linear, tmp_path):
    saved = write_saved_model(tmp_path / 'model', architecture=network((2, 3, 6, 20), (1, 5, 4, 8)))
    measured = fit_latency(recipe_of(tmp_path / 'latency.json').replace(model=saved))['measured']
    drawn = [Architecture.from_dict(one['architecture']) for one in measured]
    assert max(one.h for one in drawn) == 8
    for letter, most in zip('akvf', (2, 5, 6, 20)):
        assert max(getattr(layer, letter) for one in drawn for layer in one.layers) == most
    recipe = recipe_of(tmp_path / 'whole.json').replace(model=saved, prune='af')
    whole = [Architecture.from_dict(one['architecture']) for one in fit_latency(recipe)['measured']]
    assert {(one.h, layer.k, layer.v) for one in whole for layer in one.layers} == {(8, 5, 6)}
    assert len({layer.f for one in whole for layer in one.layers}) > 5


def test_times_in_onnx_runtime_are_fitted_and_compared_with_that_engine(tmp_path, monkeypatch):
    pytest.importorskip('onnxruntime')
    asked = []

    def watched(architecture, engine, export=latency._exported):
        asked.append(architecture)
        return export(architecture, engine)

    monkeypatch.setattr(latency, '_exported', watched)
    fit_latency(recipe_of(tmp_path / 'latency.json').replace(engine='onnxruntime', networks=22, largest_h=16))
    assert len(asked) == 22
    cost = LatencyCost.read(tmp_path / 'latency.json')
    ends = [network((2, 4, 6, 20)), network((1, 3, 3, 8), max_length=8)]  # fewer positions than were timed
    times = time_rounds(ends, 8, cost)
    assert '1x16' not in times['milliseconds']  # which are MXNet's
    assert check_predictions(cost, ends, times)['finished']['measured_ms'] > 0 and len(asked) == 24


def test_finished_run_compares_predicted_with_measured_latency(pruned, tmp_path):
    path = tmp_path / 'latency.json'
    coefficients = dict.fromkeys(LATENCY_FEATURES, 0.01)
    path.write_text(json.dumps({'batch': 2, 'length': 8, 'coefficients': coefficients}))
    more = {'objective': 'latency', 'latency_model': str(path), 'method': 'magnitude', 'recovery_steps': 1}
    rows = pruned(rounds=1, **more)
    written = json.loads((tmp_path / 'run' / 'latency.json').read_text())
    before, finished = (written[name]['predicted_ms'] for name in ('before', 'finished'))
    assert finished == LatencyCost.read(path).cost(rows[-1].architecture) <= 0.6 * before
    assert all(value['measured_ms'] > 0 for value in written.values())
    assert f'{written["finished"]["measured_ms"]:.2f} ms' in (tmp_path / 'run' / 'pruning.md').read_text()
    left = contents(tmp_path / 'run')
    pruned(rounds=1, resume=True, **more)
    assert contents(tmp_path / 'run') == left  # a finished run is not timed again
    cost, networks = LatencyCost.read(path), [row.architecture for row in rows]
    again = check_predictions(cost, networks, time_rounds(networks, 8, cost))
    assert again['finished']['predicted_ms'] == finished and again['finished']['measured_ms'] > 0


def test_features_are_sums_over_layers():
    both = latency_features(network((2, 4, 6, 20), (1, 3, 3, 0)))
    one, other = latency_features(network((2, 4, 6, 20))), latency_features(network((1, 3, 3, 0)))
    assert both == {name: one[name] + other[name] - (name == 'network') for name in LATENCY_FEATURES}
    assert both['blocks'] == 1 and both['h a k'] == 8 * (8 + 3)
