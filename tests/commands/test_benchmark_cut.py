"""The benchmark of a round's end runs and says what it found; how fast anything is, no test says."""

import json

import benchmark_cut as tool
import numpy as np
import pytest
from helpers.commands import call
from helpers.tiny import network


def test_it_times_every_part_and_weighs_the_whole(tmp_path):
    result = call(
        'tools/benchmark_cut.py', 'l12_h256_a4', '--repeats', 2, '--output', tmp_path / 'found.json'
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / 'found.json').read_text())
    assert len(written['seconds']) == 2 and set(written['seconds'][0]) == {
        'select',
        'fold and cut',
        'write',
        'all',
    }
    for one in written['seconds']:
        assert one['all'] == pytest.approx(one['select'] + one['fold and cut'] + one['write'])
    assert 1.5 < written['memory'] < 2.5  # what was there and the 0.6 that are left, with little beside them
    assert all(f'| {name} |' in result.stdout for name in written['seconds'][0])


def test_repairs_are_parts_of_their_own(tmp_path):
    words = (json.dumps(network().to_dict()), '--repairs', '--repeats', 1)
    result = call('tools/benchmark_cut.py', *words, '--output', tmp_path / 'found.json')
    assert result.returncode == 0, result.stderr
    (seconds,) = json.loads((tmp_path / 'found.json').read_text())['seconds']
    assert list(seconds) == ['rotate', 'select', 'fold and cut', 'reconstruct', 'write', 'all']
    assert seconds.pop('all') == pytest.approx(sum(seconds.values())) and min(seconds.values()) > 0
    assert '| reconstruct |' in result.stdout and 'the whole program at most' in result.stdout


def test_repairs_read_as_many_batches_as_they_want():
    batches = tool.text_of(network(max_length=512), 5000)
    assert [batch.input_ids.shape for batch in batches] == [(32, tool.LENGTH)] * 2
    assert sum(batch.token_total for batch in batches) == 2 * 32 * 128
    (short,) = tool.text_of(network(max_length=16), 128)
    assert short.token_total == 32 * 16


def test_what_is_fitted_is_finite(tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(tool, 'write_model', lambda directory, saved, **more: fitted.append(saved))
    tool.end_of_round(tool.Material.random(network()), 0.6, tmp_path)
    tool.end_of_round(tool.Material.random(network()), 0.6, tmp_path, repairs=True)
    cut, repaired = fitted
    assert cut.architecture == repaired.architecture and cut.parameters.keys() == repaired.parameters.keys()
    assert all(np.isfinite(values).all() for values in repaired.parameters.values())
    name = 'encoder.transformer_cells.0.ffn.ffn_2.weight'
    assert not np.array_equal(cut.parameters[name], repaired.parameters[name])


@pytest.mark.parametrize('words', [['--target', '1'], ['--repeats', '0'], ['nonsense']])
def test_what_cannot_be_timed_is_one_line(words):
    result = call('tools/benchmark_cut.py', *words)
    assert result.returncode == 2 and result.stderr.startswith('error:') and 'Traceback' not in result.stderr
