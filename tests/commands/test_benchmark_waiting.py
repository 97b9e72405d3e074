"""The benchmark of waiting threads times every way alone and beside a busy program."""

import json

import psutil
import pytest
from helpers.tiny import run

import benchmark_waiting as tool  # isort: skip


@pytest.mark.slow
def test_every_way_is_timed_alone_and_beside_a_busy_program(tmp_path):
    done = run(
        'tools/benchmark_waiting.py',
        'l1_h8_a2',
        *('--ways', '1x0,2x100', '--length', '8', '--passes', '2', '--turns', '1'),
        *('--output', tmp_path / 'waiting.json'),
    )
    result = json.loads((tmp_path / 'waiting.json').read_text())
    assert list(result['ways']) == ['1x0', '2x100'] and '| 2x100 |' in done.stdout.replace('  ', ' ')
    for by_name in result['ways'].values():
        for one in by_name.values():
            assert 0 < one['p10_ms'] <= one['median_ms'] <= one['p90_ms']
    assert result['ways']['1x0']['alone']['over_first_alone'] == 1.0
    assert {'load', 'recipe', 'commit', 'versions', 'machine'} <= set(result)


def test_busy_program_computes_and_ends():
    children = psutil.Process().children
    others = set(children())  # of tests before this one
    with tool.busy_program():
        [process] = set(children()) - others
        process.cpu_percent()
        assert process.cpu_percent(interval=0.3) > 0
    assert not process.is_running()


@pytest.mark.parametrize(
    'flags, message',
    [
        (('--ways', '2'), 'threads x spins'),
        (('--ways', '1x0,1x0'), 'ways: give each once'),
        (('--turns', '0'), 'turns must be at least 1'),
        (('--length', '100000'), 'at most'),
    ],
)
def test_what_cannot_be_timed_is_refused(flags, message, capsys):
    assert tool.main(['l1_h8_a2', *flags]) == 2
    assert message in capsys.readouterr().err
