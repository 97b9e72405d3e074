"""The training benchmark runs, and writes what it measured; how fast anything is, no test says."""
import json

from tiny import run


def test_it_reports_all_steps_and_ratios(tmp_path):
    result = run('tools/benchmark_training.py', 'l1_h8_a2', '--batch-size', 2, '--length', 8, '--masked', 2, '--repeats', 2,
                 '--output', tmp_path / 'result.json')
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / 'result.json').read_text())
    assert set(found['milliseconds']) == {'GluonNLP step', 'ungated step', 'alpha step', 'GluonNLP forward',
                                          'ungated forward', 'gated forward'}
    steps = found['milliseconds']
    assert found['ratios']['alpha step / ungated step'] == steps['alpha step']['median'] / steps['ungated step']['median']
    assert all(f'| {name} |' in result.stdout for name in steps)


def test_uneven_architectures_are_refused():
    result = run('tools/benchmark_training.py', '{"format": 1, "h": 8, "e": null, "vocab_size": 32, "max_length": 16, '
                 '"token_types": 2, "layers": [{"a": 1, "k": 2, "v": 2, "f": 4}, {"a": 2, "k": 2, "v": 2, "f": 4}]}')
    assert result.returncode == 2 and 'uniform' in result.stderr
