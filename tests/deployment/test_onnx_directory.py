"""Directories that Optimum and sentence-transformers load, with any widths and without this package's code.

PEER_OPTIMUM names the interpreter of an environment with Optimum, ONNX Runtime and sentence-transformers."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import call
from helpers.exported import CASES, UNEVEN
from helpers.tiny import ROOT, network, saved_model, vocabulary
from helpers.tiny import write_saved_model as write_tiny_model

from gluon_optbert.deployment.description import inputs_of, outputs_of
from gluon_optbert.deployment.export import TOLERANCE, export, network_of
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.onnx_check import check_onnx
from gluon_optbert.deployment.onnx_directory import export_onnx
from gluon_optbert.deployment.onnx_files import compare_onnx, relative_difference
from gluon_optbert.deployment.onnx_names import (
    MASKED_LM,
    ONNX,
    QUANTISED,
    TRANSFORMERS_INPUTS,
    network_outputs,
    onnx_feed,
    onnx_outputs,
)
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import random_feed, run
from gluon_optbert.network.saved_model import SavedModel

WIDTHS = {'even': network(), 'uneven': UNEVEN}  # a layer of UNEVEN has f = 0
CLASSES = {
    'encoder': 'ORTModelForFeatureExtraction',
    'pretraining': 'ORTModelForMaskedLM',
    'classification': 'ORTModelForSequenceClassification',
    'regression': 'ORTModelForSequenceClassification',
    'question answering': 'ORTModelForQuestionAnswering',
}
TEXTS = ['a b c d e', 'x', 'hi j. k l m n o p q r s t u v w', 'Capitals and ünknown words']


def saved_with(widths, case):
    """A model and its network."""
    architecture, (_, head) = WIDTHS[widths], CASES[case]
    model = build(architecture, head=head, initial_std=0.3, trainable=False)
    return SavedModel(architecture, read_parameters(model), vocabulary(), head=head), model


@pytest.mark.parametrize('case', CLASSES)
@pytest.mark.parametrize('widths', WIDTHS)
def test_a_directory_is_a_bert_without_code(tmp_path, widths, case):
    saved, _ = saved_with(widths, case)
    kind, head = CASES[case]
    measured = export_onnx(saved, tmp_path / 'out', head=kind)
    assert max(measured['onnx_relative_difference'].values()) <= TOLERANCE
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == [
        'README.md',
        'config.json',
        'model.onnx',
        'special_tokens_map.json',
        'tokenizer.json',
        'tokenizer_config.json',
        'vocab.txt',
    ]
    config = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['model_type'] == 'bert' and 'auto_map' not in config
    outputs = onnx_outputs(MASKED_LM if kind == 'pretraining' else kind, head)
    check_onnx(tmp_path / 'out' / ONNX, inputs=TRANSFORMERS_INPUTS, outputs=list(outputs))
    if case in ('pretraining', 'classification', 'regression'):
        assert list(outputs) == ['logits']  # as Optimum wants it


def test_int8_is_a_second_file_on_request(tmp_path):
    saved, _ = saved_with('uneven', 'encoder')
    texts = [Instance(text) for text in TEXTS]
    measured = export_onnx(saved, tmp_path / 'out', precision='int8', calibration=texts)
    assert max(measured['onnx_relative_difference'].values()) <= TOLERANCE
    whole = network_of(saved, 'encoder')
    differences = compare_onnx(tmp_path / 'out' / QUANTISED, TRANSFORMERS_INPUTS, whole, saved, 'encoder')
    assert differences == measured['onnx_quantized_relative_difference']
    assert all(TOLERANCE < difference < 0.3 for difference in differences.values())


def test_a_directory_of_sentence_transformers_says_how_embeddings_are_made(tmp_path):
    export_onnx(saved_model(UNEVEN), tmp_path / 'out', sentences=True)
    modules = json.loads((tmp_path / 'out' / 'modules.json').read_text())
    assert [module['path'] for module in modules] == ['', '1_Pooling', '2_Normalize']
    assert all((tmp_path / 'out' / module['path']).is_dir() for module in modules)
    pooling = json.loads((tmp_path / 'out' / '1_Pooling' / 'config.json').read_text())
    assert pooling['word_embedding_dimension'] == UNEVEN.h and pooling['pooling_mode_mean_tokens']
    assert (tmp_path / 'out' / 'onnx' / ONNX).is_file() and not (tmp_path / 'out' / ONNX).exists()


def test_a_task_has_no_embeddings(tmp_path):
    saved, _ = saved_with('even', 'classification')
    with pytest.raises(ValueError, match='embeddings'):
        export_onnx(saved, tmp_path / 'out', sentences=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('form', ['onnx', 'sentence-transformers'])
def test_the_command_writes_these_formats(tmp_path, form):
    write_tiny_model(tmp_path / 'model')
    (tmp_path / 'text').write_text('a b c\nd e f\n')
    words = [tmp_path / 'model', '--format', form, '--output', tmp_path / 'out']
    result = call('tools/export_model.py', *words, '--precision', 'int8', '--calibrate', tmp_path / 'text')
    assert result.returncode == 0 and 'in ONNX' in result.stdout and QUANTISED in result.stdout, result.stderr
    refused = call('tools/export_model.py', *words[:-1], tmp_path / 'other', '--precision', 'bfloat16')
    assert refused.returncode == 2 and 'float32 or int8' in refused.stderr


@pytest.fixture(scope='module')
def peer():
    """The interpreter of the peer."""
    python = os.environ.get('PEER_OPTIMUM')
    if not python or not Path(python).exists():
        pytest.skip('PEER_OPTIMUM does not name a Python with optimum and sentence-transformers')
    return python


def ask(python, jobs):
    """Let the peer do its jobs."""
    alone = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    alone.update({'HF_HUB_OFFLINE': '1', 'TOKENIZERS_PARALLELISM': 'false'})
    jobs = json.dumps([[str(part) for part in job] for job in jobs])
    words = [python, ROOT / 'tests' / 'helpers' / 'with_optimum.py', jobs]
    done = subprocess.run(list(map(str, words)), timeout=600, env=alone, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_optimum_gets_the_same_numbers(peer, tmp_path):
    jobs, models = [], {}
    for widths in WIDTHS:
        for case, name in CLASSES.items():
            place = tmp_path / f'{widths} {case}'
            saved, models[place] = saved_with(widths, case)
            export_onnx(saved, place / 'out', head=CASES[case][0])
            feed = random_feed(saved.architecture, batch=4, length=11, seed=3)
            np.savez(place / 'feed.npz', **onnx_feed(feed, TRANSFORMERS_INPUTS))
            jobs.append((place / 'out', name, ONNX, place / 'feed.npz', place / 'result.npz'))
    ask(peer, jobs)
    for place, model in models.items():
        widths, case = place.name.split(' ', 1)
        kind, head = CASES[case]
        feed = random_feed(WIDTHS[widths], batch=4, length=11, seed=3)
        outputs = dict(np.load(place / 'result.npz'))
        if kind == 'pretraining':
            outputs['prediction_logits'] = outputs.pop('logits')
        outputs = network_outputs(outputs, feed)
        valid = np.arange(11) < feed['valid_length'][:, np.newaxis]
        wanted = run(model, feed, inputs_of(kind) if head.outputs else list(INPUTS))
        compared = []
        for (name, shape), value in zip(outputs_of(kind, head).items(), wanted):
            if name in outputs:
                tokens = valid if shape[1] == 'length' else slice(None)
                assert relative_difference(outputs[name][tokens], value[tokens]) <= TOLERANCE, (place, name)
                compared.append(name)
        assert compared


@pytest.mark.slow
def test_sentence_transformers_gets_the_same_embeddings(peer, tmp_path):
    (tmp_path / 'texts.json').write_text(json.dumps(TEXTS))
    jobs = []
    for widths, architecture in WIDTHS.items():
        place = tmp_path / widths
        place.mkdir()
        export(saved_model(architecture), place / 'deploy')
        export_onnx(saved_model(architecture), place / 'out', sentences=True)
        result = place / 'result.npz'
        jobs.append((place / 'out', 'SentenceTransformer', ONNX, tmp_path / 'texts.json', result))
    ask(peer, jobs)
    for widths in WIDTHS:
        wanted = Predictor(tmp_path / widths / 'deploy', engine='mxnet').encode(TEXTS)
        embeddings = np.load(tmp_path / widths / 'result.npz')['embeddings']
        np.testing.assert_allclose(embeddings, wanted, atol=1e-5)  # of length 1
