"""Importing: the same network from every form, all that does not fit at once, and nothing that is
half-written.
"""

import dataclasses
from functools import partial

import numpy as np
import onnx
import pytest
from helpers.checkpoints import (
    CONFIG,
    gluonnlp_vocabulary,
    named,
    write_checkpoint,
    write_config,
    write_gluonnlp,
    write_google,
    write_hugging_face,
)
from helpers.commands import call
from helpers.networks import gluonnlp_model
from helpers.tiny import (
    ROOT,
    TOKENS,
    contents,
    network,
    outputs_of,
    random_alphas,
    random_inputs,
    random_parameters,
    random_selection,
    relative_difference,
    saved_model,
    vocabulary,
)
from helpers.transformers_by_hand import BertByHand

from gluon_optbert.architecture.architecture import LayerDims
from gluon_optbert.architecture.embedding import Embedding
from gluon_optbert.architecture.heads import PRETRAINING, Head
from gluon_optbert.architecture.named import bert_base
from gluon_optbert.architecture.parameters import PARTS, network_shapes, parameter_table
from gluon_optbert.cutting.shrink import shrink
from gluon_optbert.deployment.export import export
from gluon_optbert.importing import sources
from gluon_optbert.importing.convert import (
    KNOWN,
    ImportRecipe,
    convert,
    describe,
    import_checkpoint,
    known,
    name_of,
)
from gluon_optbert.importing.name_maps import GLUONNLP, HUGGING_FACE, TENSORFLOW, look_up, names_in
from gluon_optbert.importing.sources import ZOO, read_source
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import fill

WEIGHTS = (
    'model.safetensors',
    'model.safetensors.index.json',
    'pytorch_model.bin',
    'pytorch_model.bin.index.json',
    'old pytorch_model.bin',
)
LFS_POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n'
MINILM = ROOT.parent / 'shared' / 'models' / 'minilm-l6-h384'
PARAMETERS = random_parameters(network())
TABLE = parameter_table(network())


def imported(source, **options):
    return convert(read_source(str(source), **options))


def written(source, output, **more):
    """The import as the command makes it, and what it says."""
    recipe = fill(ImportRecipe, {'source': str(source), 'output': str(output), **more})
    result = import_checkpoint(recipe)
    return result, '\n'.join(describe(result, recipe))


def assert_parameters(parameters, wanted=PARAMETERS):
    assert parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        assert parameters[name].dtype == np.float32 and np.array_equal(parameters[name], value), name


def head_parameters(outputs):
    """Those of the encoder, and a head of a task with so many outputs."""
    generator = np.random.RandomState(3)
    kept = {name: value for name, value in PARAMETERS.items() if TABLE[name].part not in ('mlm', 'nsp')}
    return {
        **kept,
        'task.weight': generator.standard_normal((outputs, 8)).astype(np.float32),
        'task.bias': generator.standard_normal(outputs).astype(np.float32),
    }


# Names


@pytest.mark.parametrize('names, e', [(HUGGING_FACE, 5), (TENSORFLOW, None), (GLUONNLP, None)])
def test_every_map_reaches_every_parameter_and_nothing_else(names, e):
    """Directories of Hugging Face may have a factorised embedding, and dense layers behind a pooling."""
    dense = ((4, 'tanh'),) * 2 if names is HUGGING_FACE else ()
    reached = {here.replace('{i}', layer) for here in names.values() if here for layer in '01'}
    whole = network_shapes(network(e=e), Head(embedding=Embedding(dense=dense)))
    assert reached == {*whole, 'task.weight', 'task.bias'}


def test_names_are_those_of_google_and_of_transformers():
    here = 'encoder.transformer_cells.11.attention_cell.proj_query.weight'
    assert names_in('TensorFlow', 12)[here] == 'encoder/layer_11/attention/self/query/kernel'
    names = names_in('Hugging Face', 12)
    assert names[here] == 'encoder.layer.11.attention.self.query.weight'
    assert names['encoder.layer_norm.beta'] == 'embeddings.LayerNorm.bias'
    layer = 'encoder.layer.{}.output.dense.bias'
    for nearly in (layer.format('01'), layer, layer.format(99999), 'bert.bert.' + names[here], ''):
        assert look_up('Hugging Face', nearly) == (False, None)


@pytest.mark.parametrize(
    'source, name',
    [
        ('downloads/bert-base-uncased/', 'bert-base-uncased'),
        ('hub/models--google-bert--bert-base-uncased/snapshots/86b5e09', 'bert-base-uncased'),
        ('uncased_L-12_H-768_A-12/bert_model.ckpt', 'uncased_L-12_H-768_A-12'),
        (
            'models/bert_12_768_12_book_corpus_wiki_en_uncased-75cc780f.params',
            'bert_12_768_12_book_corpus_wiki_en_uncased',
        ),
    ],
)
def test_a_public_bert_is_known_by_every_name_of_it_and_its_widths(source, name):
    assert name_of(source) == name
    assert known(source, KNOWN[name], PRETRAINING) == name
    assert known(source, KNOWN[name], Head('regression')) is None
    for architecture in (dataclasses.replace(bert_base(), max_length=128), bert_base(6)):
        assert known(source, architecture, PRETRAINING) is None
    assert known('multiberts-seed_0', bert_base(), PRETRAINING) is None


@pytest.mark.parametrize(
    'name, given, steps', [('tiny-bert', {}, 1_000_000), ('tiny-bert', {'trained_steps': 0}, 0), ('b', {}, 0)]
)
def test_published_steps_are_recorded_unless_others_are_given(tmp_path, monkeypatch, name, given, steps):
    monkeypatch.setitem(KNOWN, 'tiny-bert', network())
    _, said = written(write_hugging_face(tmp_path / name), tmp_path / 'model', **given)
    assert read_model(tmp_path / 'model').progress.trained_steps == steps
    assert ('this is tiny-bert, which was pre-trained for 1,000,000 steps' in said) == (steps > 0)


# The same network from every form


@pytest.mark.parametrize('files, old_names', [*((files, False) for files in WEIGHTS), (WEIGHTS[0], True)])
def test_hugging_face_directory_is_read_from_every_file(tmp_path, files, old_names):
    arrays = named('Hugging Face')
    if old_names:  # of 2018
        arrays = {
            name.replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta'): value
            for name, value in arrays.items()
        }
    result = imported(write_hugging_face(tmp_path / 'hf', arrays, files=files))
    assert_parameters(result.model.parameters)
    assert result.model.architecture == network() and result.model.vocabulary.idx_to_token == TOKENS
    assert result.model.head == PRETRAINING and result.model.progress == Progress() and result.dropped == ()


def test_one_tensor_may_have_several_names_and_any_floating_point_type(tmp_path):
    arrays = {name: value.astype(np.float16) for name, value in named('Hugging Face').items()}
    arrays['cls.predictions.decoder.weight'] = arrays['bert.embeddings.word_embeddings.weight'].copy()
    arrays['bert.embeddings.position_ids'] = np.arange(16)[np.newaxis]
    source = write_hugging_face(tmp_path / 'tied', arrays)
    widened = {name: value.astype(np.float16).astype(np.float32) for name, value in PARAMETERS.items()}
    for name in ('one', 'other'):
        assert_parameters(written(source, tmp_path / name)[0].model.parameters, widened)
    one, other = (contents(tmp_path / name)['model.params'] for name in ('one', 'other'))
    assert one == other  # though safetensors gives its tensors in another order each time
    arrays['cls.predictions.decoder.weight'][3, 3] += 1
    with pytest.raises(ValueError, match='word_embed.0.weight hold different numbers'):
        imported(write_hugging_face(tmp_path / 'untied', arrays))


def test_tensorflow_checkpoint_is_read_transposed_and_without_optimizer_state(tmp_path):
    arrays = named('TensorFlow')
    more = {name + '/adam_' + moment: value for name, value in arrays.items() for moment in 'mv'}
    directory = write_google(tmp_path / 'tf', {**arrays, **more, 'global_step': np.array(7)})
    for source in (directory, directory / 'bert_model.ckpt'):
        result = imported(source)
        assert_parameters(result.model.parameters)
        assert set(result.dropped) == {*more, 'global_step'}
    assert result.model.architecture == network()
    write_checkpoint(directory / 'model.ckpt-7', arrays)
    with pytest.raises(FileNotFoundError, match='2 TensorFlow checkpoints'):
        imported(directory)
    assert_parameters(imported(directory / 'model.ckpt-7').model.parameters)


def test_gluonnlp_file_is_read_as_gluonnlp_reads_it(tmp_path):
    theirs = gluonnlp_model(network())
    theirs.initialize()
    theirs(*random_inputs(network()))  # its shapes are deferred
    path = write_gluonnlp(tmp_path / 'gluonnlp')
    theirs.load_parameters(str(path), ignore_extra=False, allow_missing=True)
    theirs.save_parameters(str(path))  # with GluonNLP's own set of names
    model = imported(path).model
    assert_parameters(model.parameters)
    ours = outputs_of(build(model.architecture, model.parameters), random_inputs(network()))
    # float32, sums in another order
    assert relative_difference(ours, outputs_of(theirs, random_inputs(network()))) <= 1e-5


def test_model_zoo_name_is_fetched_by_gluonnlp(tmp_path, monkeypatch):
    from mxnet.gluon.model_zoo import model_store

    path = write_gluonnlp(tmp_path / 'zoo')
    monkeypatch.setattr(model_store, 'get_model_file', lambda name, root: str(path))
    monkeypatch.setattr('gluonnlp.data.utils._load_pretrained_vocab', lambda name, root, cls: vocabulary())
    monkeypatch.setitem(model_store._model_sha1, 'bert_12_768_2_tiny', '')
    monkeypatch.setattr(sources, 'ZOO', ('bert_12_768_2_',))  # with as many heads as the tiny network
    assert_parameters(imported('bert_12_768_2_tiny').model.parameters)

    def unreachable(name, root):
        raise ConnectionError('no route\nto host')

    monkeypatch.setattr(model_store, 'get_model_file', unreachable)
    with pytest.raises(RunFailed, match='could not be fetched .ConnectionError: no route') as error:
        read_source('bert_12_768_2_tiny')
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.skipif(not MINILM.is_dir(), reason='no checkpoint beside the project')
def test_real_checkpoint_is_imported_whole():
    result = imported(MINILM)
    assert result.model.progress == Progress(untrained=('mlm', 'nsp'))
    assert result.dropped == ('embeddings.position_ids',)
    assert result.model.architecture.h == 384 and len(result.model.architecture.layers) == 6
    recipe = ImportRecipe(source=str(MINILM), output='model')
    assert describe(result, recipe)[0].endswith(', 22.6 M parameters of embeddings and encoder')


# Heads


@pytest.mark.parametrize(
    'parts, without', [(['mlm', 'nsp'], ('decoder', 'classifier')), (['pooler', 'nsp'], ('pooler', 'class'))]
)
def test_missing_heads_are_random_and_said(tmp_path, parts, without):
    arrays = named('Hugging Face', without=without, prefix='pooler' in parts)
    source = write_hugging_face(tmp_path / 'hf', arrays)
    _, said = written(source, tmp_path / 'model')
    assert all(f'no {PARTS[part]}' in said for part in parts)
    saved = read_model(tmp_path / 'model')
    assert saved.progress == Progress(untrained=tuple(parts))
    kept = {name for name in PARAMETERS if TABLE[name].part not in parts}
    assert all(np.array_equal(saved.parameters[name], PARAMETERS[name]) for name in kept)
    again = convert(read_source(str(source)), seed=2).model.parameters
    assert {name for name in PARAMETERS if not np.array_equal(saved.parameters[name], again[name])} == {
        name for name in set(PARAMETERS) - kept if PARAMETERS[name].ndim > 1
    }


NAMES = {'id2label': {'2': 'I-a', '0': 'O', '1': 'B-a'}, 'finetuning_task': 'mnli'}
TAGS = {**NAMES, 'architectures': ['BertForTokenClassification']}
MULTI = {**NAMES, 'architectures': None, 'problem_type': 'multi_label_classification'}


@pytest.mark.parametrize(
    'kind, config, without',
    [
        ('classification', NAMES, ()),
        ('token_classification', TAGS, ('pooler',)),
        ('token_classification', TAGS, ()),  # drops the pooler
        ('multi_label', MULTI, ()),
        ('regression', {}, ()),
        ('question_answering', {}, ()),
    ],
)
def test_checkpoint_of_a_task_keeps_its_head(tmp_path, kind, config, without):
    labels = ('O', 'B-a', 'I-a') if config else ()
    head = Head(kind, labels, config.get('finetuning_task', ''))
    parameters = head_parameters(head.outputs)
    arrays = named('Hugging Face', parameters, without=without)
    if kind == 'question_answering':
        arrays = {name.replace('classifier', 'qa_outputs'): value for name, value in arrays.items()}
    written(write_hugging_face(tmp_path / 'hf', arrays, **config), tmp_path / 'model')
    saved = read_model(tmp_path / 'model')
    assert saved.head == head and saved.progress == Progress()
    assert_parameters(saved.parameters, {name: parameters[name] for name in network_shapes(network(), head)})


def test_heads_of_tasks_are_read_in_every_form(tmp_path):
    parameters = head_parameters(3)
    for source in (
        write_google(tmp_path / 'tf', named('TensorFlow', parameters)),
        write_gluonnlp(tmp_path / 'gluonnlp', named('GluonNLP', parameters)),
    ):
        model = imported(source).model
        assert model.head == Head('classification', ('0', '1', '2'))
        assert_parameters(model.parameters, parameters)
    arrays = {
        name.replace('output_', 'cls/squad/output_') if name.startswith('output') else name: value
        for name, value in named('TensorFlow', head_parameters(2)).items()
    }
    result = imported(write_google(tmp_path / 'squad', arrays))
    assert result.model.head.kind == 'question_answering'
    assert set(result.dropped) == {'bert/pooler/dense/kernel', 'bert/pooler/dense/bias'}
    arrays = {**named('Hugging Face'), **named('Hugging Face', head_parameters(2))}
    result = imported(write_hugging_face(tmp_path / 'hf', arrays))
    assert len(result.dropped) == 7 and all(name.startswith('cls.') for name in result.dropped)
    assert result.model.head.labels == ('0', '1')


# What does not fit


def test_all_that_does_not_fit_is_listed(tmp_path):
    arrays = named('Hugging Face')
    arrays['bert.encoder.layer.2.output.dense.bias'] = np.zeros(8, np.float32)
    arrays['bert.pooler.dense.bias'] = np.zeros(9, np.float32)
    arrays['bert.encoder.layer.1.output.dense.bias'] = np.zeros(8, np.int64)
    arrays['bert.encoder.layer.0.output.dense.bias'][2] = np.nan
    del arrays['bert.embeddings.LayerNorm.bias'], arrays['cls.seq_relationship.weight']
    source = write_hugging_face(tmp_path / 'hf', arrays)
    (source / 'vocab.txt').write_text(''.join(f'{token}\n' for token in [*TOKENS, 'more']))
    with pytest.raises(ValueError) as error:
        imported(source)
    wanted = ('unknown', 'wanted (8,)', 'int64', 'NaN or infinite', 'missing encoder', 'missing classifier')
    wanted += ('33',)
    lines = str(error.value).splitlines()[1:]
    assert len(lines) == len(wanted)
    assert all(sum(said in line for line in lines) == 1 for said in wanted)


@pytest.mark.parametrize(
    'outputs, changes, said',
    [
        (None, {'hidden_act': 'relu', 'vocab_size': 'many'}, 'vocab_size must .*hidden_act must'),
        (None, {'model_type': 'gpt2', 'hidden_size': None}, "config.json: model_type is 'gpt2', and [^;]*$"),
        (None, {'num_attention_heads': 3}, 'does not divide'),
        (3, {'architectures': ['BertForMultipleChoice']}, 'BertForMultipleChoice'),
        (3, {'architectures': 5}, 'config.json: architectures must be a list of names, found 5'),
        (3, {'architectures': [None]}, r'config.json: architectures must be a list of names, found \[None\]'),
        (3, {'problem_type': 'regression'}, 'problem_type is regression, and .* has 3 rows'),
        (3, {'id2label': {'0': 'a'}}, 'id2label'),
        (3, {'id2label': {'0': 'a', '1': 'a', '2': 'b'}}, 'config.json: id2label: .*two different labels'),
    ],
)
def test_configurations_that_are_no_bert_here_are_refused(tmp_path, outputs, changes, said):
    arrays = named('Hugging Face', head_parameters(outputs) if outputs else None)
    with pytest.raises(ValueError, match=said):
        imported(write_hugging_face(tmp_path / 'hf', arrays, **changes))


def test_a_gluonnlp_file_is_asked_for_what_it_does_not_say(tmp_path):
    path = write_gluonnlp(tmp_path / 'gluonnlp', name='model.params')
    with pytest.raises(ValueError, match='--heads'):
        imported(path)
    assert imported(path, heads=4).model.architecture.layers[0].a == 4
    (path.parent / 'other.vocab').write_text(gluonnlp_vocabulary())
    with pytest.raises(ValueError, match='2 vocabularies .*--vocabulary'):
        imported(path, heads=2)
    words = write_config(tmp_path / 'words') / 'vocab.txt'
    assert imported(path, heads=2, vocabulary=words).model.vocabulary.idx_to_token == TOKENS
    (path.parent / 'other.vocab').write_text('{"idx_to_token": ["a"], "token_to_idx": {"a": 1}}')
    with pytest.raises(ValueError, match='other.vocab: wanted idx_to_token and token_to_idx that agree'):
        imported(path, heads=2, vocabulary=path.parent / 'other.vocab')
    arrays = named('GluonNLP', prefix=False)
    gap = {name.replace('cells.1', 'cells.3'): value for name, value in arrays.items()}
    with pytest.raises(ValueError, match='layers 0, 3'):
        imported(write_gluonnlp(tmp_path / 'gap', gap))


def test_what_a_source_has_no_use_for_and_what_is_no_checkpoint_is_refused(tmp_path, model_directory):
    source = write_hugging_face(tmp_path / 'hf')
    export(saved_model(), tmp_path / 'out', head='pretraining')
    for place, options, said in (
        (source, {'heads': 4}, 'leave --heads out'),
        (write_gluonnlp(tmp_path / 'gluonnlp'), {'heads': 4}, 'its name says 2 heads, and --heads 4'),
        (f'{ZOO[0]}x', {'vocabulary': source / 'vocab.txt'}, 'leave --vocabulary out'),
        (model_directory, {}, 'of this package already'),
        # its queries contain the scale of the attention, so this would be another network
        (tmp_path / 'out' / 'model-0000.params', {}, 'import the model directory that was exported'),
        ('nowhere', {}, 'model zoo'),
        ('bert_12_768_12_no_such', {}, 'model zoo'),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            read_source(str(place), **options)


FILES = [
    (write_hugging_face, 'config.json'),
    (write_hugging_face, 'vocab.txt'),
    (write_hugging_face, 'model.safetensors'),
    (partial(write_hugging_face, files='model.safetensors.index.json'), 'model-00002-of-00002.safetensors'),
    (write_google, 'bert_config.json'),
    (write_google, 'bert_model.ckpt.index'),
    (write_google, 'bert_model.ckpt.data-00000-of-00001'),
    (write_gluonnlp, 'bert_2_8_2_tiny.params'),
    (write_gluonnlp, 'tiny.vocab'),
]


@pytest.mark.parametrize('write, name', FILES, ids=[name for _, name in FILES])
def test_missing_file_and_pointer_of_git_lfs_are_named(tmp_path, write, name):
    source, file = write(tmp_path / 'source'), tmp_path / 'source' / name
    file.write_text(LFS_POINTER)
    with pytest.raises(ValueError, match=f'^{file}: a pointer of Git LFS .* git lfs pull'):
        imported(source)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=f'{tmp_path}/source'):
        imported(source)


@pytest.mark.parametrize('prefix, bare', [('module.', False), ('a.b_1.module._orig_mod.', True)])
def test_names_of_a_wrapped_network_are_read_without_their_beginning(tmp_path, prefix, bare):
    whole = named('Hugging Face')
    arrays = named('Hugging Face', without=('decoder', 'classifier')) if bare else whole
    arrays = {prefix + name.removeprefix('bert.' * bare): value for name, value in arrays.items()}
    wrapped = imported(write_hugging_face(tmp_path / 'hf', arrays))
    random = ('decoder', 'classifier') if bare else '-'
    kept = {name: value for name, value in wrapped.model.parameters.items() if not name.startswith(random)}
    assert_parameters(kept, {name: PARAMETERS[name] for name in kept})
    (note,) = wrapped.notes
    assert note.startswith(f'every name began with {prefix}')
    arrays['2.linear.weight'] = PARAMETERS['pooler.bias']
    with pytest.raises(ValueError, match=f"begin with '{prefix}', and others do not: '2.linear.weight'"):
        imported(write_hugging_face(tmp_path / 'mixed', arrays))
    arrays = {f'{who}.{name}': value for name, value in whole.items() for who in ('teacher', 'student')}
    with pytest.raises(ValueError, match='there are 2 networks'):
        imported(write_hugging_face(tmp_path / 'two', arrays))


# Networks that others pruned


def cut(layer, heads=(0, 1), filters=16):
    """The parameters with some heads (of k = 4) and filters of a layer alone; and whole, with zeros instead,
    so that the network computes the same.
    """
    smaller, zeroed, keys = dict(PARAMETERS), dict(PARAMETERS), np.isin(np.arange(8) // 4, heads)
    for name, value in PARAMETERS.items():
        if name.startswith(f'encoder.transformer_cells.{layer}.'):
            if 'proj_' in name:
                smaller[name] = value[keys]
            elif 'proj.weight' in name:
                smaller[name], zeroed[name] = value[:, keys], value * keys
            elif 'ffn_1' in name:
                smaller[name] = value[:filters]
            elif 'ffn_2.weight' in name:
                smaller[name], zeroed[name] = value[:, :filters], value * (np.arange(16) < filters)
    return smaller, zeroed


@pytest.mark.parametrize(
    'layer, heads, filters, stated', [(1, (0,), 5, {'1': [1]}), (0, (), 0, None), (1, (1,), 16, {})]
)
def test_a_network_that_others_pruned_computes_what_it_did(tmp_path, layer, heads, filters, stated):
    smaller, zeroed = cut(layer, heads, filters)
    arrays = named('Hugging Face', smaller)
    result = imported(write_hugging_face(tmp_path / 'hf', arrays, pruned_heads=stated))
    dims = result.model.architecture.layers[layer]
    assert dims == LayerDims(max(len(heads), 1), 4, 4, max(filters, 1))
    assert any('pruned network' in note for note in result.notes)
    inputs = random_inputs(network())
    ours = outputs_of(build(result.model.architecture, result.model.parameters), inputs)
    assert relative_difference(ours, outputs_of(build(network(), zeroed), inputs)) <= 1e-5


def left_out(arrays, *blocks):
    """The arrays without the dense layers of some blocks; their LayerNorms stay, as in CoFi's files."""
    return {
        name: value
        for name, value in arrays.items()
        if 'LayerNorm' in name or not any(block in name for block in blocks)
    }


def test_blocks_that_cofi_left_out_and_a_smaller_hidden_size_are_read(tmp_path):
    small = network((2, 4, 4, 16), h=6)
    parameters = random_parameters(small)
    spread = {name.replace('cells.0', f'cells.{i}'): parameters[name] for name in parameters for i in (0, 1)}
    arrays = left_out(named('Hugging Face', spread), '.0.intermediate', '.0.output', '.1.attention')
    arrays['layer_transformation.weight'] = np.ones((8, 8), np.float32)
    result = imported(write_hugging_face(tmp_path / 'hf', arrays))
    assert result.model.architecture == small
    assert_parameters(result.model.parameters, parameters)
    assert result.notes[-1] == 'left out: feed-forward of layer 0, attention of layer 1'
    assert {name for name in result.dropped if 'LayerNorm' in name} == {
        f'bert.encoder.layer.{name}.LayerNorm.{end}'
        for name in ('0.output', '1.attention.output')
        for end in ('weight', 'bias')
    }


def test_blocks_and_heads_that_do_not_fit_are_refused_with_their_layer(tmp_path):
    whole = named('Hugging Face')
    alone = left_out(whole, '.1.attention')
    cut_short = {**alone}
    del cut_short['bert.encoder.layer.1.attention.output.LayerNorm.bias']
    query = 'bert.encoder.layer.1.attention.self.query.weight'
    for number, (arrays, stated, said) in enumerate(
        (
            (
                named('Hugging Face', cut(0, (1,))[0]),
                {'0': [0, 1]},
                'has 1 heads, and pruned_heads leaves it 0',
            ),
            (whole, {'0': [0, 0]}, 'pruned_heads must have'),
            ({**whole, query: np.ones((6, 8))}, None, 'cells.1.*query.weight has 6 rows, wanted 2 times 4'),
            (alone, None, 'layer 1 has an intermediate block and no attention, as the one before'),
            (cut_short, None, 'missing encoder.transformer_cells.1.attention_cell'),
        )
    ):
        with pytest.raises(ValueError, match=said):
            imported(write_hugging_face(tmp_path / f'hf{number}', arrays, pruned_heads=stated))


# The command


def test_command_says_what_it_read_dropped_made_up_and_wrote(tmp_path):
    arrays = named('Hugging Face', without=('decoder',))
    arrays['bert.embeddings.position_ids'] = np.arange(16)[np.newaxis]
    source = write_hugging_face(tmp_path / 'hf', arrays)
    done = call(ROOT / 'tools' / 'import_checkpoint.py', source, '--output', tmp_path / 'model')
    assert done.returncode == 0, done.stderr
    for said in (
        '2 layers, h=8',
        'dropped: bert.embeddings.position_ids',
        'no MLM head',
        f'wrote {tmp_path}/model',
        'next, to fine-tune it: python finetune/run_glue.py',
    ):
        assert said in done.stdout
    assert read_model(tmp_path / 'model').recipe['source'] == str(source)
    before = contents(tmp_path)
    done = call(ROOT / 'tools' / 'import_checkpoint.py', 'nowhere', '--output', tmp_path / 'model')
    assert done.returncode == 2 and 'model: exists' in done.stderr and contents(tmp_path) == before


# The LayerNorm epsilon: it stays with the network, whatever is made of it

EPS = 1e-5
SMALL = {  # small enough that the epsilon is a percent of some variance
    name: value * np.float32(0.02 if 'embed' in name or 'position' in name else 0.5)
    for name, value in random_parameters(network()).items()
}


@pytest.mark.parametrize('form, eps', [('Hugging Face', 1e-3), ('TensorFlow', EPS)])
def test_imported_network_computes_what_transformers_computes(tmp_path, form, eps):
    write = {'Hugging Face': write_hugging_face, 'TensorFlow': write_google}[form]
    source = write(tmp_path / 'checkpoint', named(form, SMALL), layer_norm_eps=eps)
    model = imported(source).model
    by_hand = BertByHand(named('Hugging Face', SMALL), {**CONFIG, 'layer_norm_eps': eps})
    inputs = random_inputs(network(), batch=1, length=6)
    ids, types, _, positions = (value.asnumpy().astype(int).reshape(-1) for value in inputs)
    wanted = {name: value[np.newaxis] for name, value in by_hand(ids, types, positions).items()}
    for options in ({'trainable': False}, {'trainable': True}, {'gated': True}):
        outputs = outputs_of(build(model.architecture, model.parameters, **options), inputs)
        # Sums of float32; with the epsilon of another checkpoint the difference is above 1e-4.
        assert relative_difference(outputs, wanted) < 2e-6, options


def test_cuts_and_exports_keep_the_epsilon(tmp_path):
    """`export` itself compares symbol and ONNX file with the network, and fails where they differ."""
    architecture = dataclasses.replace(network(), layer_norm_eps=EPS)
    selection = random_selection(architecture)
    _, smaller = shrink(SMALL, architecture, random_alphas(architecture), selection)
    assert smaller != architecture and smaller.layer_norm_eps == EPS
    model = SavedModel(architecture, SMALL, vocabulary())
    export(model, tmp_path / 'deploy', head='pretraining', onnx=True)
    nodes = onnx.load(str(tmp_path / 'deploy' / 'model.onnx')).graph.node
    norms = [node for node in nodes if node.op_type == 'LayerNormalization']
    found = [attribute for node in norms for attribute in node.attribute if attribute.name == 'epsilon']
    assert len(found) == len(norms) > 0
    assert {(one.type, one.f) for one in found} == {(onnx.AttributeProto.FLOAT, np.float32(EPS))}
