"""The benchmark of a round's end runs and says what it found; how fast anything is, no test says."""

import json

import pytest
from helpers.commands import call


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


@pytest.mark.parametrize('words', [['--target', '1'], ['--repeats', '0'], ['nonsense']])
def test_what_cannot_be_timed_is_one_line(words):
    result = call('tools/benchmark_cut.py', *words)
    assert result.returncode == 2 and result.stderr.startswith('error:') and 'Traceback' not in result.stderr
