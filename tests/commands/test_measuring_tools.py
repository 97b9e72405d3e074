"""The tools that measure: a file of results is never replaced."""

import pytest
from helpers.commands import call


@pytest.mark.parametrize(
    'tool, words',
    [
        ('benchmark_cut', ['l1_h8_a2']),
        ('benchmark_latency', ['deploy']),
        ('benchmark_scaling', ['--shards', 'shards']),
        ('benchmark_training', ['l1_h8_a2']),
        ('benchmark_waiting', ['l1_h8_a2']),
        ('profile_export', ['deploy']),
        ('profile_finetuning', ['--model', 'model', '--data', 'glue', '--task', 'SST-2']),
        ('profile_training', ['l1_h8_a2']),
        ('survive', ['--kills', '1']),
    ],
)
def test_results_that_are_there_are_refused_before_anything_is_measured(tool, words, tmp_path):
    results = tmp_path / 'results.json'
    results.write_text('{}')
    done = call(f'tools/{tool}.py', *words, '--output', results)
    assert (done.returncode, done.stdout) == (2, '')
    assert f'{results}: exists, and nothing is overwritten; give another --output' in done.stderr
    assert results.read_text() == '{}'
