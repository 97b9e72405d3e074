"""The profile of an export names its operators and adds up to the time of a pass."""

import json
import os
import stat

import pytest
from helpers.commands import call
from helpers.tiny import run, saved_model

from gluon_optbert.deployment.export import export


@pytest.mark.parametrize(
    'precision, product',
    [('float32', 'FullyConnected'), pytest.param('bfloat16', 'FullyConnected', marks=pytest.mark.slow)],
)
def test_operators_add_up_to_a_pass(tmp_path, precision, product):
    export(saved_model(), tmp_path / 'deploy', precision=precision)
    result = run(
        'tools/profile_export.py',
        tmp_path / 'deploy',
        '--length',
        '8',
        '--repeats',
        '3',
        '--output',
        tmp_path / 'found.json',
    )
    assert result.returncode == 0, result.stderr
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)  # as root, MXNet puts a file in place of its trace
    assert sorted(os.listdir(tmp_path)) == ['deploy', 'found.json']
    written = json.loads((tmp_path / 'found.json').read_text())
    times = {name: row['ms'] for name, row in written['operators'].items()}
    assert 0 < times[product] <= written['products_ms'] < sum(times.values()) <= written['pass_ms']
    assert written['operators']['softmax']['calls'] == len(saved_model().architecture.layers)
    assert f'{written["pass_ms"]:.2f} ms' in result.stdout


def test_a_length_beyond_the_positions_is_one_line(tmp_path):
    export(saved_model(), tmp_path / 'deploy')
    result = call('tools/profile_export.py', tmp_path / 'deploy', '--length', '99')
    assert result.returncode == 2 and 'at most 16' in result.stderr and 'Traceback' not in result.stderr
