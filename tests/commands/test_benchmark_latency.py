"""The latency benchmark runs and reports every network at every shape; how fast anything is, no test says."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from helpers.commands import call
from helpers.tiny import ROOT, network, saved_model

from gluon_optbert.deployment.export import export

UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0))
SHORT = ['--lengths', '8', '--repeats', '2', '--threads', '1']


def peers():
    """The peers whose environments are there: GluonNLP's is this one, the others are in the directory that
    PEERS names.
    """
    place = Path(os.environ.get('PEERS', 'nowhere'))
    return [
        'gluonnlp',
        *(
            peer
            for peer, name in (('onnxruntime', 'onnx'), ('openvino', 'onnx'), ('torch', 'torch'))
            if (place / name / 'bin' / 'python').exists()
        ),
    ]


def tool():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(
        'benchmark_latency', str(ROOT / 'tools' / 'benchmark_latency.py')
    )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_network_is_timed_at_every_shape_and_drawn(tmp_path):
    export(saved_model(), tmp_path / 'one', onnx=True)
    export(saved_model(UNEVEN), tmp_path / 'two', precision='bfloat16')
    result = call(
        'tools/benchmark_latency.py',
        tmp_path / 'one',
        tmp_path / 'two',
        '--against',
        ','.join(peers()),
        '--peers',
        os.environ.get('PEERS', 'nowhere'),
        '--batches',
        '1,2',
        *SHORT,
        '--output',
        tmp_path / 'found.json',
        '--plot',
        tmp_path / 'found.png',
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / 'found.json').read_text())['networks']
    assert [row['name'] for row in rows] == [str(tmp_path / 'one'), str(tmp_path / 'two'), *peers()]
    for row in rows:
        assert list(row['shapes']) == ['1x8', '2x8'] and row['peak_mb'] > 1 and row['size_mb'] > 0
        assert all(
            0 < times['p10_ms'] <= times['median_ms'] <= times['p90_ms'] for times in row['shapes'].values()
        )
        assert row['gflop']['2x8'] == 2 * row['gflop']['1x8'] > 0
    assert all(row['difference_from_first'] < 1e-5 for row in rows[2:])  # the same weights in another program
    assert (tmp_path / 'found.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
    'words, status, message',
    [
        (['--against', 'gluonnlp'], 2, 'plain BERTs only'),
        (['--against', 'onnxruntime', '--peers', 'nowhere'], 2, 'install.py'),
        (['--against', 'somebody'], 2, 'somebody'),
        (['--lengths', '99'], 2, 'at most 16'),
        (['--repeats', '0'], 2, 'at least 1'),
    ],
)
def test_what_cannot_be_timed_is_one_line(tmp_path, words, status, message):
    export(saved_model(UNEVEN), tmp_path / 'one')
    result = call('tools/benchmark_latency.py', tmp_path / 'one', *SHORT, *words)
    assert result.returncode == status and message in result.stderr and 'Traceback' not in result.stderr
