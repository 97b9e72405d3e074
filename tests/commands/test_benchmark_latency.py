"""The latency benchmark runs and reports every network at every shape; how fast anything is, no test says."""

import json
import os
from pathlib import Path

import pytest
from helpers.commands import call, module_at
from helpers.tiny import network, saved_model

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.mxnet_network import read_deployment

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
            for peer, name in (
                ('onnxruntime', 'onnx'),
                ('onnxruntime-int8-static', 'onnx'),
                ('onnxruntime-int8-dynamic', 'onnx'),
                ('openvino', 'onnx'),
                ('openvino-int8', 'onnx'),
                ('torch', 'torch'),
                ('torch-compile', 'torch'),
            )
            if (place / name / 'bin' / 'python').exists()
        ),
    ]


@pytest.mark.slow
def test_every_network_is_timed_at_every_shape_and_drawn(tmp_path):
    export(saved_model(), tmp_path / 'one', onnx=True)
    export(saved_model(UNEVEN), tmp_path / 'two', precision='bfloat16')
    texts = tmp_path / 'texts.txt'
    texts.write_text('a\nthe a the a\na the\nthe\n')
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
        '--busy',
        '--texts',
        texts,
        '--texts-batch',
        '2',
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
        assert list(row['beside']) == ['1x8', '2x8'] and list(row['texts']) == [
            'longest',
            'in order',
            'sorted',
        ]
    # the same weights in another program
    assert all(
        row['difference_from_first'] < (1e-5 if row['precision'] == 'float32' else 1.0) for row in rows[2:]
    )
    assert (tmp_path / 'found.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
    'name, wanted',
    [
        ('bert_base', ('bert_base', 'float32')),
        ('bert_base:int8', ('bert_base', 'int8')),
        ('runs/round-1/model/architecture.json:int8', ('runs/round-1/model/architecture.json', 'int8')),
        ('at:12/architecture.json', ('at:12/architecture.json', 'float32')),
        ('at:12/architecture.json:int8', ('at:12/architecture.json', 'int8')),
        (json.dumps(UNEVEN.to_dict(), indent=1), (json.dumps(UNEVEN.to_dict(), indent=1), 'float32')),
        (UNEVEN.to_json() + ':int8', (UNEVEN.to_json(), 'int8')),
        ('bert_base:int4', ('bert_base', 'int4')),
    ],
)
def test_the_precision_of_a_name_stands_behind_the_last_colon(name, wanted):
    assert module_at('tools/timed_networks.py').name_and_precision(name) == wanted


def test_files_of_architectures_are_timed_in_both_precisions_and_told_by_their_widths(tmp_path):
    file = tmp_path / 'at:12' / 'architecture.json'
    file.parent.mkdir()
    file.write_text(UNEVEN.to_json())
    words = [file, f'{file}:bfloat16', '--batches', '1', *SHORT, '--output', tmp_path / 'times.json']
    result = call('tools/benchmark_latency.py', *words)
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / 'times.json').read_text())['networks']
    assert [(row['engine'], row['precision']) for row in rows] == [
        ('mxnet', 'float32'),
        ('mxnet', 'bfloat16'),
    ]
    assert all(Architecture.from_dict(row['architecture']) == UNEVEN for row in rows)


@pytest.mark.parametrize(
    'words, status, message',
    [
        (['--against', 'gluonnlp'], 2, 'plain BERTs only'),
        (['--against', 'onnxruntime', '--peers', 'nowhere'], 2, 'install.py'),
        (['--against', 'somebody'], 2, 'somebody'),
        (['--lengths', '99'], 2, 'at most 16'),
        (['--repeats', '0'], 2, 'at least 1'),
        (['--engines', 'onnxruntime'], 2, 'the first has to be mxnet'),
        (['--output', 'times.md'], 2, 'times.md: the table beside the JSON file has this name'),
    ],
)
def test_what_cannot_be_timed_is_one_line(tmp_path, words, status, message):
    export(saved_model(UNEVEN), tmp_path / 'one')
    result = call('tools/benchmark_latency.py', tmp_path / 'one', *SHORT, *words)
    assert result.returncode == status and message in result.stderr and 'Traceback' not in result.stderr


def test_the_fastest_export_of_each_precision_is_compared_with_the_fastest_peer():
    def row(name, precision, milliseconds, same_widths=True):
        shapes = {'1x8': {'median_ms': milliseconds}}
        return {'name': name, 'precision': precision, 'same_widths': same_widths, 'shapes': shapes}

    rows = [
        row('deploy', 'float32', 4.0),
        row('deploy-int8', 'int8', 3.0),
        row('deploy-int8, onnxruntime', 'int8', 2.0),
        row('smaller, onnxruntime', 'int8', 1.0, same_widths=False),
        row('onnxruntime-int8-static', 'int8', 4.0),
        row('openvino-int8', 'int8', 5.0),
        row('openvino-bfloat16', 'bfloat16', 5.0),
    ]
    (pair,) = module_at('tools/latency_tables.py').fastest(rows)
    assert (pair['precision'], pair['shape']) == ('int8', '1x8')
    assert (pair['export'], pair['peer']) == ('deploy-int8, onnxruntime', 'onnxruntime-int8-static')
    assert pair['ratio'] == 0.5


def test_sorted_batches_of_sentences_are_narrower_than_the_longest(tmp_path):
    export(saved_model(), tmp_path / 'one')
    texts = tmp_path / 'texts.txt'
    texts.write_text('a\nthe a the a\na the\nthe a the\n')
    deployment = read_deployment(tmp_path / 'one')
    orders = module_at('tools/timed_networks.py').padding_orders(deployment, texts, 2, 99)
    assert orders['longest'] == ([[3, 6], [4, 5]], [6, 6])
    assert orders['in order'][1] == [6, 5]
    assert orders['sorted'][0] == [[3, 4], [5, 6]]


@pytest.mark.parametrize('words', [['one', 'one'], ['one', '--engines', 'mxnet,mxnet']])
def test_what_is_timed_twice_would_be_one_row(tmp_path, words):
    done = call('tools/benchmark_latency.py', *words, '--output', tmp_path / 'times.json')
    assert done.returncode == 2 and 'give each once' in done.stderr
