"""Directories for Transformers: their files, their arrays, and what is refused."""

import dataclasses
import json
import re

import numpy as np
import pytest
from helpers.commands import call
from helpers.tiny import TOKENS, network, random_alphas, saved_model, write_saved_model
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from gluon_optbert.architecture.heads import Head
from gluon_optbert.cutting.shrink import without_gates
from gluon_optbert.deployment import transformers_export
from gluon_optbert.deployment.export import NotEqual, UntrainedHeads
from gluon_optbert.deployment.hub_files import bert_config, is_plain, tokenizer_json
from gluon_optbert.deployment.transformers_export import export_transformers
from gluon_optbert.runs.progress import Progress
from gluon_optbert.text.tokenizer import SPECIAL_TOKENS, make_tokenizer, vocabulary_of

SENTENCES = ['a b. c', 'Fine FILM', 'naïve Éclair', 'tab\tand\nline', 'x' * 150, 'y' * 201, '中文 a', '']


def test_the_command_writes_a_directory_for_transformers(tmp_path):
    model = write_saved_model(tmp_path / 'model')
    done = call('tools/export_model.py', model, '--output', tmp_path / 'out', '--format', 'transformers')
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {
        'README.md',
        'config.json',
        'model.safetensors',
        'special_tokens_map.json',
        'tokenizer.json',
        'tokenizer_config.json',
        'vocab.txt',
    }
    config = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['model_type'] == 'bert' and config['architectures'] == ['BertModel']
    assert not any('cls' in name for name in load_file(tmp_path / 'out' / 'model.safetensors'))


def test_flags_of_other_formats_are_refused(tmp_path):
    model = write_saved_model(tmp_path / 'model')
    words = [model, '--output', tmp_path / 'out', '--format', 'transformers', '--onnx']
    done = call('tools/export_model.py', *words, '--precision', 'bfloat16')
    assert done.returncode == 2
    assert '--onnx goes with --format mxnet' in done.stderr
    assert '--precision goes with --format mxnet' in done.stderr


def test_an_unknown_format_is_one_line(tmp_path):
    done = call('tools/export_model.py', tmp_path, '--output', tmp_path / 'out', '--format', 'tar')
    assert done.returncode == 2 and 'transformers' in done.stderr and 'Traceback' not in done.stderr


@pytest.mark.parametrize('cased', [False, True])
def test_the_tokenizer_gives_the_ids_of_this_package(cased):
    tokens = TOKENS + ['##' + letter for letter in 'abcdefghijklmnopqrstuvwxyz'] + ['中', 'F', 'É'] * cased
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(tokens, lower_case=not cased)))
    tokenize = make_tokenizer(vocabulary_of(tokens), cased=cased)
    for sentence in SENTENCES:
        cls, *ids, sep = tokenizer.encode(sentence).ids
        assert (tokens[cls], tokens[sep]) == ('[CLS]', '[SEP]')
        assert ids == tokenize(sentence), sentence


@given(text=st.text(alphabet="ΑΣςσοδaBé \n'.:-’\u0301\u00ad\ue000\U000f0000,中", max_size=12))
@example("ΟΔΟΣ Σ ΑΣ. ΑΣ'Α")
def test_capitals_are_taken_away_as_in_this_package(text):
    letters = "ασςοδabe.:'-’,中"
    tokens = [*SPECIAL_TOKENS, *letters, *('##' + letter for letter in letters)]
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(tokens, lower_case=True)))
    assert tokenizer.encode(text).ids[1:-1] == make_tokenizer(vocabulary_of(tokens), cased=False)(text)


@pytest.mark.parametrize(
    'architecture',
    [
        network((2, 4, 4, 16), (2, 4, 4, 8)),
        network((2, 3, 4, 16)),
        network((1, 4, 4, 16)),
        network((2, 4, 4, 0)),
        network(e=8),
    ],
)
def test_uneven_widths_are_not_plain(architecture):
    assert is_plain(network())
    assert not is_plain(architecture)


def test_uneven_widths_come_with_the_code_that_computes_them(tmp_path):
    architecture = network((2, 3, 5, 7), (1, 4, 2, 0), e=5)
    export_transformers(saved_model(architecture), tmp_path / 'out')
    config = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['layer_widths'] == [{'a': 2, 'k': 3, 'v': 5, 'f': 7}, {'a': 1, 'k': 4, 'v': 2, 'f': 0}]
    assert config['embedding_size'] == 5 and config['architectures'] == ['OptBertModel']
    code = (tmp_path / 'out' / 'modeling_optbert.py').read_text()
    classes = set(re.findall(r'^class (\w+)', code, re.MULTILINE))
    assert {name.partition('.')[2] for name in config['auto_map'].values()} <= classes
    assert all(name.startswith('modeling_optbert.') for name in config['auto_map'].values())
    compile(code, 'modeling_optbert.py', 'exec')


def test_a_gated_model_is_folded_and_cut(tmp_path):
    architecture = network()
    alphas = random_alphas(architecture)
    alphas['f1'][5:] = 0
    saved = saved_model(architecture, alphas=alphas)
    export_transformers(saved, tmp_path / 'out')
    written, folded = load_file(tmp_path / 'out' / 'model.safetensors'), without_gates(saved)
    query = 'attention.self.query.weight'
    np.testing.assert_array_equal(
        written[f'encoder.layer.0.{query}'],
        folded.parameters['encoder.transformer_cells.0.attention_cell.proj_query.weight'],
    )
    assert written['encoder.layer.1.intermediate.dense.weight'].shape == (5, architecture.h)


def test_random_heads_are_refused_and_a_random_pooler_is_recorded(tmp_path):
    saved = dataclasses.replace(saved_model(), progress=Progress(untrained=('pooler', 'mlm', 'nsp')))
    with pytest.raises(UntrainedHeads):
        export_transformers(saved, tmp_path / 'heads', head='pretraining')
    assert not (tmp_path / 'heads').exists()
    export_transformers(saved, tmp_path / 'out')
    config = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['gluon_optbert']['untrained'] == ['pooler']


def test_an_export_whose_arrays_are_not_the_networks_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(
        transformers_export, 'load_file', lambda path: {**load_file(path), 'pooler.dense.bias': np.ones(8)}
    )
    with pytest.raises(NotEqual, match='pooler.dense.bias'):
        export_transformers(saved_model(), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_labels_of_a_task_have_their_names_in_the_configuration():
    head = Head('classification', ('0', '1'), 'SST-2', ('negative', 'positive'))
    config = bert_config(network(), head, 'task')
    assert config['id2label'] == {'0': 'negative', '1': 'positive'}
    assert config['label2id'] == {'negative': 0, 'positive': 1}
