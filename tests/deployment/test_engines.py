"""Engines: the same answers whatever library runs the network, and what is said where one is missing."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from helpers.commands import run_without
from helpers.exported import HEADS, UNEVEN, vouched
from helpers.tiny import environment, run, saved_model, seal

from gluon_optbert.deployment import engines
from gluon_optbert.deployment.description import ONNX, read_description
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.runs.failures import NotInstalled

TEXTS = ['a b c', 'd e f. g', 'j', 'k l m n o p q r s t u v w x y z a b c', '']
QUESTIONS = [('a b', 'c d e f. g h. i j k l m n o p q r s t u v w x y z'), ('c', 'a b.'), ('d', 'a')]
ATOL = 1e-5  # float32, sums in another order
every_engine = pytest.mark.parametrize('engine', ['onnxruntime', 'openvino'])


def answers(predictor, kind):
    """Answers to some texts, and the numbers with them."""
    if kind == 'encoder':
        return [], predictor.encode(TEXTS)
    predictions = list(predictor.predict(QUESTIONS if kind == 'question_answering' else TEXTS))
    if kind == 'regression':
        return [], [one.value for one in predictions]
    if kind == 'classification':
        return [one.label for one in predictions], [list(one.probabilities.values()) for one in predictions]
    return [(one.text, one.start, one.end) for one in predictions], [one.probability for one in predictions]


@every_engine
@pytest.mark.parametrize('kind', [*HEADS, 'names of gluon'])
def test_every_engine_answers_as_mxnet(exports, tmp_path, engine, kind):
    pytest.importorskip(engine)
    directory = exports / kind
    if kind not in HEADS:
        directory, kind = tmp_path / 'deploy', 'encoder'
        export(saved_model(UNEVEN), directory, onnx=True, inputs='gluon')
    said, numbers = answers(Predictor(directory, engine=engine), kind)
    wanted, wanted_numbers = answers(Predictor(directory, engine='mxnet'), kind)
    assert said == wanted
    np.testing.assert_allclose(numbers, wanted_numbers, atol=ATOL)


@pytest.mark.parametrize(
    'directory, options, says',
    [
        ('bare', {'engine': 'openvino'}, 'no model.onnx, which openvino reads; .* --onnx'),
        ('bare', {'engine': 'tensorrt'}, 'one of onnxruntime, openvino, mxnet'),
        ('encoder', {'engine': 'mxnet', 'threads': 99}, 'MXNet is loaded already'),
        ('none', {}, 'no such directory'),
    ],
)
def test_an_engine_that_cannot_be_had_is_refused(exports, directory, options, says):
    with pytest.raises((FileNotFoundError, ValueError), match=says):
        Predictor(exports / directory, **options)


@pytest.mark.parametrize(
    'installed, wanted, of_bare',
    [
        ({'onnxruntime', 'mxnet'}, 'onnxruntime', 'mxnet'),
        ({'mxnet', 'openvino'}, 'mxnet', 'mxnet'),
        ({'openvino'}, 'openvino', None),
        (set(), None, None),
    ],
)
def test_engine_is_onnx_runtime_where_it_is_and_what_is_missing_is_said(
    exports, monkeypatch, installed, wanted, of_bare
):
    monkeypatch.setattr(engines, 'is_installed', installed.__contains__)
    for directory, name in (('encoder', wanted), ('bare', of_bare)):
        if name is not None:
            assert engines.chosen_engine(exports / directory) == name
            continue
        with pytest.raises(NotInstalled, match=r'pip install gluon_optbert\[(serve|cpu)\]'):
            engines.chosen_engine(exports / directory)


def spoilt(exports, directory, place):
    """A copy of an encoder's export, with NaN in an array of its ONNX file that the manifest vouches for."""
    onnx = pytest.importorskip('onnx')
    shutil.copytree(exports / 'encoder', directory)
    graph = onnx.load(str(directory / ONNX))
    [array] = [array for array in graph.graph.initializer if place in array.name]
    values = onnx.numpy_helper.to_array(array).copy()
    values[-1] = np.nan
    array.CopyFrom(onnx.numpy_helper.from_array(values, array.name))
    onnx.save(graph, str(directory / ONNX))
    vouched(directory)
    return directory


@every_engine
def test_a_network_that_computes_no_numbers_gives_none(exports, tmp_path, engine):
    pytest.importorskip(engine)
    with pytest.raises(ValueError, match='computes NaN or infinity'):
        Predictor(spoilt(exports, tmp_path / 'all', 'encoder.layer_norm.beta'), engine=engine)
    one = Predictor(spoilt(exports, tmp_path / 'one', 'word_embed.0.weight'), engine=engine)
    assert one.encode(['a']).shape == (1, UNEVEN.h) and one.problem is None
    with pytest.raises(ValueError, match='computes NaN or infinity'):
        one.encode(['.'])  # the last token of the vocabulary
    assert 'NaN' in one.problem


def test_a_file_that_cannot_be_read_or_is_not_vouched_for_is_refused(exports, tmp_path):
    pytest.importorskip('onnxruntime')
    copy = shutil.copytree(exports / 'encoder', tmp_path / 'copy')
    manifest = json.loads((copy / 'manifest.json').read_text())

    def refused(says):
        with pytest.raises(ValueError, match=says) as raised:
            Predictor(copy, engine='onnxruntime')
        assert '\n' not in str(raised.value)

    (copy / ONNX).write_bytes(b'no graph')
    vouched(copy)
    refused('model.onnx: onnxruntime cannot read it')
    (copy / ONNX).write_bytes((exports / 'encoder' / ONNX).read_bytes())
    del manifest['onnx']
    seal(copy / 'manifest.json', manifest)
    refused('describes no ONNX file')
    del manifest['files'][ONNX]
    seal(copy / 'manifest.json', manifest)
    refused('lacks model.onnx')


@pytest.mark.parametrize(
    'own, files, engine, wanted, native, computed',
    [
        ('float32', ['int8', 'int8 dynamic'], 'openvino', 'int8 dynamic', True, 'int8 dynamic'),
        ('float32', ['int8', 'int8 dynamic'], 'mxnet', 'int8', True, 'mxnet computes this export in float32'),
        ('bfloat16', [], 'mxnet', None, False, 'bfloat16'),
        ('float32', ['float32'], 'openvino', 'bfloat16', True, 'bfloat16'),
        ('float32', ['float32'], 'openvino', 'bfloat16', False, 'neither avx512_bf16'),
        ('float32', ['float32'], 'onnxruntime', 'bfloat16', True, 'OpenVINO computes'),
    ],
)
def test_the_precision_is_that_of_the_files_and_bfloat16_where_it_is_to_be_had(
    exports, monkeypatch, own, files, engine, wanted, native, computed
):
    monkeypatch.setattr(engines, 'bfloat16_is_fast', lambda: native)
    entries = {f'{precision}.onnx': {'precision': precision} for precision in files}
    deployment = dataclasses.replace(read_description(exports / 'encoder'), precision=own, onnx=entries)
    if computed in engines.PRECISIONS:
        assert engines.precision_of(deployment, engine, wanted) == computed
        return
    with pytest.raises(ValueError, match=computed):
        engines.precision_of(deployment, engine, wanted)


@every_engine
def test_an_export_in_int8_has_a_static_and_a_dynamic_file(tmp_path, engine):
    pytest.importorskip(engine)
    texts = [Instance(text) for text in TEXTS[:4]]
    export(saved_model(UNEVEN), tmp_path / 'int8', precision='int8', calibration=texts, onnx=True)
    wanted = Predictor(tmp_path / 'int8', engine=engine).encode(TEXTS)
    dynamic = Predictor(tmp_path / 'int8', engine=engine, precision='int8 dynamic')
    assert str(dynamic.engine).endswith('in int8 dynamic')
    cosines = (dynamic.encode(TEXTS) * wanted).sum(axis=1)
    assert cosines.min() > 0.9 and not np.array_equal(dynamic.encode(TEXTS), wanted)
    whole = Predictor(tmp_path / 'int8', engine='mxnet')
    assert whole.engine.precision == 'float32' and not np.array_equal(whole.encode(TEXTS), wanted)


def test_an_engine_has_the_threads_that_are_asked_for(exports):
    lines = [
        'import os, gluon_optbert as opt',
        f'predictor = opt.Predictor({str(exports / "encoder")!r}, engine="mxnet", threads=3)',
        'from gluon_optbert.runs.machine import threads_here',
        'print(predictor.threads, threads_here(), os.environ.get("OMP_NUM_THREADS"))',
    ]
    done = run('-W', 'ignore', '-c', '\n'.join(lines))
    assert done.stdout.split() == ['3', '3', environment().get('OMP_NUM_THREADS', 'None')]


def test_predicting_with_an_onnx_file_imports_no_mxnet(exports, tmp_path):
    pytest.importorskip('onnxruntime')
    (tmp_path / 'texts').write_text('a b c\nd e\n')
    paths = exports / 'classification', exports / 'encoder', tmp_path / 'texts', tmp_path / 'embeddings.npy'
    done = run_without(
        ('mxnet', 'gluonnlp', 'horovod', 'onnx', 'scipy', 'sklearn'),
        'import gluon_optbert as opt',
        'from gluon_optbert.commands import predict as main',
        f'classifier, encoder, texts, output = {list(map(str, paths))}',
        'assert main([classifier, "--input", texts, "--threads", "1"]) == 0',
        'assert main([encoder, "--input", texts, "--embed", output]) == 0',
        'assert opt.Predictor(encoder).encode(["a b"]).shape == (1, 8)',
    )
    assert done.returncode == 0, done.stderr
    labels = [json.loads(line)['label'] for line in done.stdout.splitlines()[:2]]
    wanted = Predictor(exports / 'classification', engine='mxnet').predict(['a b c', 'd e'])
    assert labels == [one.label for one in wanted]
