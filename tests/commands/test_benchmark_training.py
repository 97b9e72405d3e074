"""The training benchmark runs, and writes what it measured; how fast anything is, no test says."""

import json
import os
from pathlib import Path

import benchmark_training as tool
import pytest
from helpers.commands import call

from gluon_optbert.runs.machine import bfloat16_is_native

OWN = {'GluonNLP step', 'ungated step', 'alpha step', 'GluonNLP forward', 'ungated forward', 'gated forward'}
LOW = {'bfloat16 step', 'bfloat16 alpha step'}
SMALL = ['l1_h8_a2', '--batch-size', 2, '--length', 8, '--masked', 2]


def peers():
    """The whole programs that are there: GluonNLP is in this environment, PyTorch in the directory that PEERS
    names.
    """
    there = (Path(os.environ.get('PEERS', 'nowhere')) / 'torch' / 'bin' / 'python').exists()
    torch = {peer: name for peer, name in tool.PEERS.items() if peer.startswith('torch')}
    return {'gluonnlp': 'GluonNLP step as installed', **(torch if there else {})}


def test_it_reports_all_steps_and_ratios(tmp_path):
    result = call(
        'tools/benchmark_training.py',
        *SMALL,
        '--repeats',
        2,
        '--against',
        ','.join(peers()),
        '--peers',
        os.environ.get('PEERS', 'nowhere'),
        '--output',
        tmp_path / 'result.json',
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / 'result.json').read_text())
    assert set(written['milliseconds']) == OWN | (LOW if bfloat16_is_native() else set()) | set(
        peers().values()
    )
    steps = written['milliseconds']
    assert (
        written['ratios']['alpha step / ungated step']
        == steps['alpha step']['median'] / steps['ungated step']['median']
    )
    installed = written['ratios']['GluonNLP step as installed / ungated step']
    assert installed == steps['GluonNLP step as installed']['median'] / steps['ungated step']['median']
    assert written['tokens_per_second']['ungated step'] == 1e3 * 16 / steps['ungated step']['median']
    assert all(f'| {name} |' in result.stdout for name in steps)
    # as installed: MXNet decides
    assert written['peers']['GluonNLP step as installed']['omp_num_threads'] is None
    assert {'commit', 'versions', 'machine'} <= set(written)


def test_only_the_steps_asked_for_are_timed(tmp_path):
    result = call(
        'tools/benchmark_training.py',
        *SMALL,
        '--repeats',
        1,
        '--steps',
        'alpha,ungated',
        '--output',
        tmp_path / 'result.json',
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / 'result.json').read_text())
    assert set(written['milliseconds']) == {'alpha step', 'ungated step', 'gated forward', 'ungated forward'}
    assert 'alpha step / ungated step' in written['ratios']


def test_other_architectures_are_timed_beside_it(tmp_path):
    beside = 'l2_h8_a2_undivided_every_2'
    result = call(
        'tools/benchmark_training.py',
        *('l2_h8_a2', *SMALL[1:]),
        '--repeats',
        1,
        '--steps',
        'gluonnlp,ungated',
        '--beside',
        beside,
        '--output',
        tmp_path / 'result.json',
    )
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / 'result.json').read_text())
    own = {'GluonNLP step', 'GluonNLP forward', 'ungated step', 'ungated forward'}
    assert set(written['milliseconds']) == own | {f'ungated step of {beside}', f'ungated forward of {beside}'}
    ratio = written['ratios'][f'ungated step of {beside} / ungated step']
    medians = [
        written['milliseconds'][name]['median'] for name in (f'ungated step of {beside}', 'ungated step')
    ]
    assert ratio == medians[0] / medians[1]


def test_bfloat16_is_compared_with_bfloat16():
    times = {'bfloat16 step': {'median': 9.0}, 'Transformers bfloat16 step': {'median': 10.0}}
    assert tool.ratios_of(times) == {'bfloat16 step / Transformers bfloat16 step': (0.9, 'at most 1.00')}


def test_nothing_to_time_is_said(monkeypatch, capsys):
    monkeypatch.setattr(tool, 'bfloat16_is_native', lambda: False)
    assert tool.main(['l1_h8_a2', '--steps', 'bfloat16']) == 2
    said = capsys.readouterr().err
    assert said.startswith('error: nothing to time') and '--steps' in said


def test_uneven_architectures_are_refused():
    result = call(
        'tools/benchmark_training.py',
        '{"format": 1, "h": 8, "e": null, "vocab_size": 32, "max_length": 16, '
        '"token_types": 2, "layers": [{"a": 1, "k": 2, "v": 2, "f": 4}, {"a": 2, "k": 2, "v": 2, "f": 4}]}',
    )
    assert result.returncode == 2 and 'uniform' in result.stderr


@pytest.mark.parametrize(
    'words, message',
    [
        (['--against', 'torch', '--peers', 'nowhere'], 'install.py'),
        (['--against', 'somebody'], 'somebody'),
        (['--masked', '9'], 'more than length'),
        (['--repeats', '0'], 'at least 1'),
    ],
)
def test_what_cannot_be_timed_is_one_line(words, message):
    result = call('tools/benchmark_training.py', *SMALL, *words)
    assert result.returncode == 2 and message in result.stderr and 'Traceback' not in result.stderr
