"""Directories for Transformers, Optimum and sentence-transformers: their files, arrays and refusals.

PEER_OPTIMUM names the interpreter of an environment with Optimum, ONNX Runtime and sentence-transformers."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.exported import ARCHITECTURES, UNEVEN, differences, outside, saved_with
from helpers.tiny import ROOT, network, saved_model
from hypothesis import example, given, strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from gluon_optbert.deployment import library_exports
from gluon_optbert.deployment.description import ONNX, QUANTISED, TRANSFORMERS_INPUTS
from gluon_optbert.deployment.engines import onnx_feed
from gluon_optbert.deployment.export import TOLERANCE, NotEqual, export
from gluon_optbert.deployment.hub import hub_tokenizer, is_plain
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.deployment.onnx_export import run_onnx
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.network.running import random_feed
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, make_tokenizer, vocabulary_of

CLASSES = {
    'encoder': 'FeatureExtraction',
    'pretraining': 'MaskedLM',
    'classification': 'SequenceClassification',
    'regression': 'SequenceClassification',
    'question answering': 'QuestionAnswering',
}
PROGRAM = ROOT / 'tests' / 'helpers' / 'with_optimum.py'
TEXTS = ['a b c d e', 'x', 'hi j. k l m n o p q r s t u v w', 'Capitals and ünknown words']


def config_of(directory):
    return json.loads((directory / 'config.json').read_text())


# The tokenizer and the configuration


@pytest.mark.parametrize('capitals', ['', 'BÉΣ'])
@given(text=st.text(alphabet="ΑΣςσοδaBé \n'.:-’\u0301\u00ad\ue000\U000f0000,中", max_size=12))
@example("ΟΔΟΣ Σ ΑΣ. ΑΣ'Α")
@example('naïve Éclair, tab\tand\nline')
@example('a' * 150 + ' ' + 'b' * 201)
def test_the_tokenizer_gives_the_ids_of_this_package(capitals, text):
    letters = f"ασςοδabe.:'-’,中{capitals}"
    tokens = [*SPECIAL_TOKENS, *letters, *('##' + letter for letter in letters)]
    tokenizer = Tokenizer.from_str(hub_tokenizer(vocabulary_of(tokens)).to_str())
    cls, *ids, sep = tokenizer.encode(text).ids
    assert (tokens[cls], tokens[sep]) == ('[CLS]', '[SEP]')
    assert ids == make_tokenizer(vocabulary_of(tokens), cased=bool(capitals))(text)


# Transformers


def test_uneven_widths_come_with_the_code_that_computes_them(tmp_path):
    architecture = network((2, 3, 5, 7), (1, 4, 2, 0), e=5)
    export_transformers(saved_model(architecture), tmp_path / 'out')
    config = config_of(tmp_path / 'out')
    assert config['layer_widths'] == [{'a': 2, 'k': 3, 'v': 5, 'f': 7}, {'a': 1, 'k': 4, 'v': 2, 'f': 0}]
    assert config['embedding_size'] == 5 and config['architectures'] == ['OptBertModel']
    code = (tmp_path / 'out' / 'modeling_optbert.py').read_text()
    classes = set(re.findall(r'^class (\w+)', code, re.MULTILINE))
    assert {name.partition('.')[2] for name in config['auto_map'].values()} <= classes
    assert all(name.startswith('modeling_optbert.') for name in config['auto_map'].values())
    compile(code, 'modeling_optbert.py', 'exec')
    layers = [((2, 4, 4, 16), (2, 4, 4, 8)), ((2, 3, 4, 16),), ((1, 4, 4, 16),), ((2, 4, 4, 0),)]
    assert not any(is_plain(network(*dims)) for dims in layers) and is_plain(network())


def test_an_export_whose_arrays_are_not_the_networks_is_not_written(tmp_path, monkeypatch):
    def load(path):
        return {**load_file(path), 'pooler.dense.bias': np.ones(8)}

    monkeypatch.setattr(library_exports, 'load_file', load)
    with pytest.raises(NotEqual, match='other arrays'):
        export_transformers(saved_model(), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


# Optimum and sentence-transformers


@pytest.mark.parametrize('case', ['pretraining', 'classification'])
def test_a_directory_is_a_bert_without_code_with_a_second_file_in_int8_on_request(tmp_path, case):
    saved, _, kind = saved_with('uneven', case)
    texts = [Instance(text) for text in TEXTS]
    measured = export_onnx(saved, tmp_path / 'out', head=kind, precision='int8', calibration=texts)
    assert max(measured['onnx_relative_difference'].values()) <= TOLERANCE
    found = measured['onnx_quantized_relative_difference']
    assert found and all(TOLERANCE < difference < 0.3 for difference in found.values())
    config = config_of(tmp_path / 'out')
    assert config['model_type'] == 'bert' and 'auto_map' not in config
    assert config['architectures'] == [f'BertFor{CLASSES[case]}']
    feed = onnx_feed(random_feed(UNEVEN, batch=1, length=4), TRANSFORMERS_INPUTS)
    for name in (ONNX, QUANTISED):
        assert list(run_onnx(tmp_path / 'out' / name, feed)) == ['logits']


def test_a_directory_of_sentence_transformers_says_how_embeddings_are_made(tmp_path):
    export_onnx(saved_model(UNEVEN), tmp_path / 'out', sentences=True)
    modules = json.loads((tmp_path / 'out' / 'modules.json').read_text())
    assert [module['path'] for module in modules] == ['', '1_Pooling', '2_Normalize']
    with pytest.raises(ValueError, match='embeddings'):
        export_onnx(saved_with('even', 'classification')[0], tmp_path / 'task', sentences=True)
    assert not (tmp_path / 'task').exists()


@pytest.fixture(scope='module')
def peer():
    """The interpreter of the peer."""
    python = os.environ.get('PEER_OPTIMUM')
    if not python or not Path(python).exists():
        pytest.skip('PEER_OPTIMUM does not name a Python with optimum and sentence-transformers')
    return python


@pytest.mark.slow
def test_optimum_gets_the_same_numbers(peer, tmp_path):
    jobs, models, feed = [], {}, random_feed(UNEVEN, batch=4, length=11, seed=3)
    np.savez(tmp_path / 'feed.npz', **onnx_feed(feed, TRANSFORMERS_INPUTS))
    for case, name in CLASSES.items():
        saved, models[case], kind = saved_with('uneven', case)
        export_onnx(saved, tmp_path / case, head=kind)
        jobs.append((case, f'ORTModelFor{name}', ONNX, 'feed.npz', f'{case}.npz'))
    outside(peer, PROGRAM, json.dumps(jobs), place=tmp_path)
    for case, model in models.items():
        outputs = dict(np.load(tmp_path / f'{case}.npz'))
        if case == 'pretraining':
            outputs['prediction_logits'] = outputs.pop('logits')
        found = differences(outputs, model, case, feed)
        assert found and max(found) <= TOLERANCE, case


@pytest.mark.slow
def test_sentence_transformers_gets_the_same_embeddings(peer, tmp_path):
    (tmp_path / 'texts.json').write_text(json.dumps(TEXTS))
    jobs = []
    for widths in ('even', 'uneven'):  # with our code for the latter
        place, saved = tmp_path / widths, saved_model(ARCHITECTURES[widths])
        export(saved, place / 'deploy')
        export_onnx(saved, place / 'out', sentences=True)
        jobs.append((f'{widths}/out', 'SentenceTransformer', ONNX, 'texts.json', f'{widths}/result.npz'))
    outside(peer, PROGRAM, json.dumps(jobs), place=tmp_path)
    for widths in ('even', 'uneven'):
        wanted = Predictor(tmp_path / widths / 'deploy', engine='mxnet').encode(TEXTS)
        with np.load(tmp_path / widths / 'result.npz') as found:
            for name in ('embeddings', 'by default'):
                np.testing.assert_allclose(found[name], wanted, atol=1e-5)  # of length 1
