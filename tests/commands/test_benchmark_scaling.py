"""The scaling benchmark runs and writes what it measured; how fast anything is, no test says."""

import json

import pytest
from helpers.commands import call, module_at
from helpers.jobs import needs_horovod

tool = module_at('tools/benchmark_scaling.py')


@pytest.mark.slow
@needs_horovod
def test_it_times_all_configurations_in_turn(shards_directory, tmp_path):
    done = call(
        'tools/benchmark_scaling.py',
        'l1_h8_a2',
        '--shards',
        shards_directory,
        '--batch-size',
        4,
        '--interval',
        2,
        '--intervals',
        2,
        '--repeats',
        1,
        '--configurations',
        '1x2,2x1',
        '--output',
        tmp_path / 'result.json',
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / 'result.json').read_text())
    assert {
        name: [len(intervals) for intervals in runs] for name, runs in result['tokens_per_second'].items()
    } == {'1x2': [2], '2x1': [2]}
    assert all(value > 0 for runs in result['tokens_per_second'].values() for value in runs[0])
    assert result['machine']['cores'] and result['versions'] and result['recipe']['batch_size'] == 4
    assert '| 2x1 |' in done.stdout and '| 0.90 |' in done.stdout


def test_ratios_are_those_of_the_medians_and_of_each_turn(monkeypatch):
    monkeypatch.setattr(tool, 'physical_cores', lambda: 2)
    lines, values = tool.table(
        {
            '1x2': [[100, 200, 300], [400, 400, 400]],
            '2x1': [[100, 100, 500], [200, 200, 200]],
            '4x1': [[10], [10]],
        }
    )
    assert values['medians'] == {'1x2': 350, '2x1': 200, '4x1': 10}
    assert values['ratios']['2x1'] == 200 / 350 and values['ratios_by_turn']['2x1'] == [0.5, 0.5]
    assert lines[3].startswith('| 2x1 | 200 | 100–200 | 0.571 | 0.500 0.500 | 0.90 |  |')
    assert lines[4].endswith('|  | more threads than 2 cores |')


@pytest.mark.parametrize(
    'flags, said',
    [
        (('--configurations', '2'), 'workers x threads'),
        (('--batch-size', 6), 'among 4 workers'),
        (('--repeats', 0), 'repeats must be'),
        (('--configurations', '1x2,1x2'), 'configurations: give each once'),
    ],
)
def test_nonsense_is_refused(tmp_path, flags, said):
    done = call('tools/benchmark_scaling.py', '--shards', tmp_path, *flags)
    assert done.returncode == 2 and said in done.stderr and 'Traceback' not in done.stderr
