"""Directories of sentence-transformers: their embeddings survive every way through the package, or are
refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoints import write_hugging_face
from helpers.tiny import ROOT, random_selection
from safetensors.numpy import save_file

from gluon_optbert.architecture.embedding import ACTIVATIONS, POOLINGS, Embedding
from gluon_optbert.architecture.heads import Head
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.deployment.predictor import Predictor
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_source
from gluon_optbert.network.saved_model import SavedModel, read_model, write_model
from gluon_optbert.runs.files import write_json

CASES = ROOT.parent / 'shared' / 'cases'
TEXTS = ['a b c', 'd', 'a fine film and a dull one that is longer than the network reads by some tokens']
PATHS = 'sentence_transformers.models.'
KINDS = ('Transformer', 'Pooling', 'Normalize')
FUNCTIONS = {
    'identity': ('torch.nn.modules.linear.Identity', lambda x: x),
    'tanh': ('torch.nn.modules.activation.Tanh', np.tanh),
    'relu': ('torch.nn.modules.activation.ReLU', lambda x: np.where(x > 0, x, 0)),
    'sigmoid': ('torch.nn.modules.activation.Sigmoid', lambda x: 1 / (1 + np.exp(-x))),
}


def write_modules(directory, kinds=KINDS, *, pooling='mean', bert=None, **more):
    """A directory with modules, whose settings are those of the library's versions 2 to 4; and the weights,
    biases and activations of its dense layers.
    """
    write_hugging_face(directory)
    modules, dense, width = [], [], 8
    for i, kind in enumerate(kinds):
        path = f'{i}_{kind}' if i else ''
        modules.append({'path': path, 'type': kind if '.' in kind else PATHS + kind})
        if kind == 'Dense':
            activation, units = ACTIVATIONS[i % len(ACTIVATIONS)], 5 + i
            name, function = FUNCTIONS[activation]
            weight = np.random.RandomState(i).normal(size=(units, width)).astype(np.float32)
            bias = np.arange(units, dtype=np.float32) / 5
            write_json(
                directory / path / 'config.json', {'activation_function': name, **more.get('dense', {})}
            )
            arrays = {'linear.weight': weight, 'linear.bias': bias}
            save_file(arrays, str(directory / path / 'model.safetensors'))
            dense.append((weight, bias, function))
            width = units
    write_json(directory / 'modules.json', modules)
    modes = {f'pooling_mode_{"cls_token" if mode == "cls" else mode + "_tokens"}': mode for mode in POOLINGS}
    pool = {'word_embedding_dimension': 8, **{name: mode == pooling for name, mode in modes.items()}}
    if 'normalize' in more:
        write_json(directory / '2_Normalize' / 'config.json', more['normalize'])
    write_json(directory / '1_Pooling' / 'config.json', {**pool, **more.get('pool', {})})
    if bert is not None:
        write_json(directory / 'sentence_bert_config.json', bert)
    write_json(directory / 'config_sentence_transformers.json', more.get('settings', {}))
    return dense


def imported(directory):
    return convert(read_source(str(directory))).model


def test_embeddings_are_those_of_the_modules_everywhere(tmp_path):
    """The pooled tokens, which the tests of `Predictor` compute by hand, behind the dense layers."""
    bert = {'max_seq_length': 7, 'do_lower_case': False}
    prompts = {'prompts': {'query': 'find: ', 'document': ''}, 'similarity_fn_name': 'dot'}
    options = {'pooling': 'mean_sqrt_len', 'bert': bert, 'settings': prompts}
    kinds = ('Transformer', 'Pooling', 'Dense', 'Dense', 'Dense', 'Dropout', 'Normalize')
    dense = write_modules(tmp_path / 'st', kinds, **options)
    write_model(tmp_path / 'model', imported(tmp_path / 'st'))
    saved = read_model(tmp_path / 'model')
    export(saved, tmp_path / 'deploy')
    found = Predictor(tmp_path / 'deploy').encode(TEXTS, batch_size=2)
    write_modules(tmp_path / 'pooled', kinds[:2], **options)
    export(imported(tmp_path / 'pooled'), tmp_path / 'plain')
    short = [' '.join(text.split()[:5]) for text in TEXTS]  # 7 with [CLS] and [SEP]
    rows = Predictor(tmp_path / 'plain').encode(short).astype(np.float64)
    for weight, bias, function in dense:
        rows = function(rows @ weight.T + bias)
    wanted = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)  # float32, other paddings
    assert saved.head.embedding.prompts == (('query', 'find: '), ('document', ''))
    assert saved.head.embedding.similarity == 'dot'
    export_onnx(saved, tmp_path / 'sentences', sentences=True)
    export_transformers(saved, tmp_path / 'encoder')
    export_transformers(saved, tmp_path / 'pretraining', head='pretraining')
    for format in ('sentences', 'encoder', 'pretraining'):
        again = imported(tmp_path / format)
        assert again.head.embedding == saved.head.embedding
        for name in filter(lambda name: name.startswith(('dense', 'encoder')), saved.parameters):
            np.testing.assert_array_equal(again.parameters[name], saved.parameters[name])


def test_a_cut_takes_hidden_units_out_of_the_first_dense_layer_and_leaves_the_width(tmp_path):
    write_modules(tmp_path / 'st', ('Transformer', 'Pooling', 'Dense', 'Dense', 'Normalize'))
    saved = imported(tmp_path / 'st')
    selection = random_selection(saved.architecture)
    parameters, smaller = shrink(saved.parameters, saved.architecture, None, selection, head=saved.head)
    export(SavedModel(smaller, parameters, saved.vocabulary, head=saved.head), tmp_path / 'deploy')
    assert Predictor(tmp_path / 'deploy').encode(['a b']).shape == (1, saved.head.embedding.width(8))
    np.testing.assert_array_equal(
        parameters['dense.0.weight'], saved.parameters['dense.0.weight'][:, selection.kept['h']]
    )


DENSE, QUERY = ('Transformer', 'Pooling', 'Dense'), {'prompts': {'query': 'q: '}}


@pytest.mark.parametrize(
    'changes, says',
    [
        ({'kinds': ('Transformer', 'WeightedLayerPooling', 'Pooling')}, 'WeightedLayerPooling'),
        ({'kinds': ('Transformer', 'Pooling', 'Normalize', 'Dense')}, 'Normalize, Dense'),
        ({'pool': {'pooling_mode_max_tokens': True}}, "pooling_mode is .'max', 'mean'."),
        ({'pool': {'word_embedding_dimension': 9}}, 'pools 9 units, and the network has 8'),
        ({'pool': {'include_prompt': False}, 'settings': QUERY}, 'include_prompt is false'),
        ({'settings': {**QUERY, 'default_prompt_name': 'query'}}, "default_prompt_name is 'query'"),
        ({'settings': {'model_type': 'SparseEncoder'}}, "model_type is 'SparseEncoder'"),
        ({'settings': {'similarity_fn_name': 'colbert'}}, "similarity must be 'cosine', .* found 'colbert'"),
        ({'bert': {'max_seq_length': 2}}, 'max_seq_length must be a number of tokens from 3, found 2'),
        ({'bert': {'modality_config': {'text': {'method_output_name': 'x'}}}}, 'modality_config has .*x'),
        ({'kinds': DENSE, 'dense': {'activation_function': 'torch.nn.SiLU'}}, "is 'torch.nn.SiLU'"),
        ({'kinds': DENSE, 'dense': {'module_input_name': 'token_embeddings'}}, "is 'token_embeddings'"),
        ({'kinds': DENSE, 'dense': {'use_residual': True}}, 'use_residual is True, and False is read'),
        ({'normalize': {'module_input_name': 'token_embeddings'}}, "is 'token_embeddings'"),
        ({'settings': {'truncate_dim': 4}}, 'truncate_dim is 4'),
        ({'bert': {'query_length': 4}}, 'query_length is 4'),
        ({'bert': {'processing_kwargs': {'text': {'max_length': 4}}}}, 'processing_kwargs is .*max_length'),
    ],
)
def test_what_is_not_computed_is_refused_by_its_name(tmp_path, changes, says):
    write_modules(tmp_path / 'st', **changes)
    with pytest.raises(ValueError, match=says) as refusal:
        imported(tmp_path / 'st')
    assert '\n' not in str(refusal.value) and str(tmp_path) in str(refusal.value)


OUTSIDE = json.dumps([{'type': PATHS + 'Pooling', 'path': '../1_Pooling'}])


@pytest.mark.parametrize('content', ['[]', '{}', '[{"type": 3, "path": ""}]', '[', OUTSIDE])
def test_damaged_modules_are_refused(tmp_path, content):
    write_hugging_face(tmp_path / 'st')
    (tmp_path / 'st' / 'modules.json').write_text(content)
    with pytest.raises(ValueError, match='modules.json: .*outside' if content == OUTSIDE else 'modules.json'):
        imported(tmp_path / 'st')


def test_a_length_comes_from_the_tokenizer_where_the_modules_have_none(tmp_path):
    write_modules(tmp_path / 'st')
    for length, wanted in ((7, 7), (16, None), (512, None), (1e30, None)):
        write_json(tmp_path / 'st' / 'tokenizer_config.json', {'model_max_length': length})
        assert imported(tmp_path / 'st').head.embedding.max_length == wanted
    write_json(tmp_path / 'st' / 'tokenizer_config.json', {'truncation_side': 'left'})
    with pytest.raises(ValueError, match="truncation_side is 'left'"):
        imported(tmp_path / 'st')


def test_the_transformer_may_lie_in_a_directory_of_its_own_and_modules_be_absent(tmp_path):
    write_modules(tmp_path / 'st')
    inner = tmp_path / 'st' / '0_Transformer'
    inner.mkdir()
    for path in [path for path in (tmp_path / 'st').iterdir() if path.is_file()]:
        if not path.name.startswith(('modules', 'config_sentence')):
            path.rename(inner / path.name)
    path = tmp_path / 'st' / 'modules.json'
    path.write_text(path.read_text().replace('"path": ""', '"path": "0_Transformer"'))
    assert imported(tmp_path / 'st').head.embedding.pooling == 'mean'
    bare = imported(inner)
    assert bare.head.embedding == Embedding() and 'embedding' not in bare.head.to_dict()
    write_model(tmp_path / 'model', bare)
    assert not (tmp_path / 'model' / 'head.json').exists()


@pytest.mark.parametrize(
    'values',
    [
        *({'pooling': 'last'}, {'max_length': 2}, {'more': 1}, {'prompts': ['a']}, {'normalise': 1}),
        *({'dense': dense} for dense in (3, [[3]], [[0, 'tanh']], [[3, 'tanh']] * 9)),
    ],
)
def test_what_is_no_embedding_is_refused(values):
    with pytest.raises(ValueError, match='^head: '):
        Head.from_dict({'kind': 'pretraining', 'labels': [], 'task': '', 'embedding': values})


def test_a_prompt_without_text_keeps_its_name_and_changes_no_pooling(tmp_path):
    settings = {'prompts': {'query': None, 'document': ''}, 'default_prompt_name': 'document'}
    write_modules(tmp_path / 'st', settings=settings, pool={'include_prompt': False})
    assert imported(tmp_path / 'st').head.embedding.prompts == (('query', ''), ('document', ''))


@pytest.mark.parametrize('case', ['st_cls', 'st_short'])
@pytest.mark.skipif(not CASES.is_dir(), reason='no cases beside the project')
def test_embeddings_are_those_that_sentence_transformers_computed(tmp_path, case):
    export(imported(CASES / case), tmp_path / 'deploy')
    lines = Path(CASES / 'st_lines.txt').read_text().splitlines()
    wanted = np.load(CASES / f'{case}.npy')
    np.testing.assert_allclose(Predictor(tmp_path / 'deploy').encode(lines), wanted, atol=1e-6)
