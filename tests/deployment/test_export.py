"""Exports: what plain MXNet loads from them, for any shape, uneven widths and gated models too."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from helpers.commands import call
from helpers.tiny import contents, network, random_alphas, random_parameters, saved_model, vocabulary

import gluon_optbert
from gluon_optbert.architecture.heads import Head
from gluon_optbert.cutting.shrink import without_gates
from gluon_optbert.deployment import export as deploy
from gluon_optbert.deployment.directory import load_deployment
from gluon_optbert.deployment.export import NotEqual, UntrainedHeads, export, untrained_parts
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.onnx_files import output_difference, relative_difference
from gluon_optbert.network import running
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build, read_parameters
from gluon_optbert.network.running import random_feed
from gluon_optbert.network.saved_model import SavedModel, read_model, write_model
from gluon_optbert.runs.progress import Progress

UNEVEN = network((2, 3, 5, 7), (1, 4, 2, 0), (3, 1, 4, 9))

PLAIN_MXNET = """
import sys
import numpy as np, mxnet as mx
names = ['input_ids', 'token_types', 'valid_length', 'masked_positions']
for folder in sys.argv[1:]:
    feed = np.load(folder + '/feed.npz')
    read = [name for name in names if name in feed.files]
    block = mx.gluon.SymbolBlock.imports(
        folder + '/deploy/model-symbol.json', read, folder + '/deploy/model-0000.params')
    outputs = block(*(mx.nd.array(feed[name]) for name in read))
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    np.savez(folder + '/out.npz', *(output.asnumpy() for output in outputs))
assert not any(name.startswith(('gluon_optbert', 'gluonnlp')) for name in sys.modules)
"""
ENCODERS = {'even': network(), 'uneven': UNEVEN, 'factorised': network((2, 3, 5, 7), e=5)}
HEADS = {
    'classification': Head('classification', ('no', 'yes')),
    'question_answering': Head('question_answering'),
}
PRECISIONS = ['float32', 'int8', 'bfloat16']


def task_model(directory, head):
    """A model directory with the head of a task."""
    parameters = read_parameters(build(UNEVEN, head=head, initial_std=0.5))
    write_model(directory, SavedModel(UNEVEN, parameters, vocabulary(), head=head))
    return directory


def export_task(place, head, precision):
    """Export a task's model by the command."""
    (place / 'text').write_text('a b c\td e f\nhi j\tx y.\n')
    words = ['--calibrate', place / 'text'] if precision == 'int8' else []
    words = [
        task_model(place / 'model', head),
        '--output',
        place / 'deploy',
        '--precision',
        precision,
        *words,
    ]
    result = call('tools/export_model.py', *words)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """Exports, a batch for each, and what one program without this package computes with all of them."""
    base, places = tmp_path_factory.mktemp('plain'), []
    for name, architecture in ENCODERS.items():
        export(saved_model(architecture), base / name / 'deploy', head='pretraining')
        feed = random_feed(architecture, batch=4, length=11, seed=3)
        np.savez(base / name / 'feed.npz', **feed)
        places.append(base / name)
    for name, head in HEADS.items():
        for precision in PRECISIONS:
            places.append(base / f'{name}-{precision}')
            places[-1].mkdir()
            export_task(places[-1], head, precision)
            feed = random_feed(UNEVEN, batch=4, length=11, seed=3)
            np.savez(places[-1] / 'feed.npz', **{name: feed[name] for name in list(INPUTS)[:3]})
    subprocess.run(
        [sys.executable, '-c', PLAIN_MXNET, *map(str, places)], check=True, cwd=str(base), timeout=120
    )
    return base


@pytest.mark.parametrize('name', ENCODERS)
def test_a_program_without_this_package_gets_the_same_numbers(plain, name):
    feed, outputs = dict(np.load(plain / name / 'feed.npz')), np.load(plain / name / 'out.npz')
    model = build(ENCODERS[name], saved_model(ENCODERS[name]).parameters)
    for i, wanted in enumerate(running.run(model, feed, list(INPUTS))):
        assert relative_difference(outputs[f'arr_{i}'], wanted) <= deploy.TOLERANCE


@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('kind', HEADS)
def test_plain_mxnet_loads_the_scores_of_a_task_in_every_precision(plain, kind, precision):
    place, names = plain / f'{kind}-{precision}', list(INPUTS)[:3]
    feed, scores = dict(np.load(place / 'feed.npz')), np.load(place / 'out.npz')['arr_0']
    block, _ = load_deployment(place / 'deploy')
    np.testing.assert_array_equal(scores, running.run(block, feed, names)[0])
    model = build(UNEVEN, read_model(place / 'model').parameters, head=HEADS[kind])
    difference = relative_difference(scores, running.run(model, feed, names)[0])
    assert (difference <= deploy.TOLERANCE) == (precision == 'float32')  # or nothing was reduced
    assert difference < 1


def test_batch_and_length_are_free(tmp_path):
    saved = saved_model(UNEVEN)
    export(saved, tmp_path / 'deploy')
    block, deployment = load_deployment(tmp_path / 'deploy')
    model = build(UNEVEN, saved.parameters, use_classifier=False, use_decoder=False)
    for batch, length in ((1, 1), (5, 16), (2, 9)):
        feed = random_feed(UNEVEN, batch=batch, length=length)
        names = deployment.inputs
        encoded, pooled = running.run(block, feed, names)
        assert encoded.shape == (batch, length, UNEVEN.h) and pooled.shape == (batch, UNEVEN.h)
        assert relative_difference(encoded, running.run(model, feed, names)[0]) <= deploy.TOLERANCE


def test_a_gated_model_is_folded_and_cut_on_the_way_out(tmp_path):
    architecture = network()
    alphas = random_alphas(architecture)
    for key, gone in (('h', [1, 5]), ('a0', [1]), ('k1', [0, 3]), ('v0', [2]), ('f1', [4, 7, 8])):
        alphas[key][gone] = 0.0
    saved = saved_model(architecture, alphas=alphas)
    write_model(tmp_path / 'gated', saved)
    result = call(
        'tools/export_model.py', tmp_path / 'gated', '--output', tmp_path / 'deploy', '--head', 'pretraining'
    )
    assert result.returncode == 0, result.stderr
    block, deployment = load_deployment(tmp_path / 'deploy')
    gated = build(architecture, saved.parameters, gated=True)
    gated.gates.set(alphas)
    feed = random_feed(architecture, batch=3, length=9)
    outputs, wanted = (running.run(model, feed, deployment.inputs) for model in (block, gated))
    assert outputs[0].shape[-1] == 6
    assert relative_difference(outputs[0], np.delete(wanted[0], [1, 5], axis=-1)) <= deploy.TOLERANCE
    assert relative_difference(outputs[3], wanted[3]) <= deploy.TOLERANCE


def test_gates_with_no_unit_left_are_refused():
    alphas = random_alphas(network())
    alphas['k0'][:] = 0.0
    with pytest.raises(ValueError, match='every unit of k0'):
        without_gates(saved_model(alphas=alphas))


def test_an_export_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    imports = deploy.import_symbol

    def other(directory, names):
        block = imports(directory, names)
        for parameter in block.collect_params().values():
            parameter.set_data(parameter.data() * 1.001)
        return block

    monkeypatch.setattr(deploy, 'import_symbol', other)
    with pytest.raises(NotEqual, match='nothing was written'):
        export(saved_model(), tmp_path / 'deploy')
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_not_touched(tmp_path):
    export(saved_model(), tmp_path / 'deploy')
    before = contents(tmp_path / 'deploy')
    with pytest.raises(FileExistsError, match='deploy'):
        export(saved_model(seed=1), tmp_path / 'deploy')
    assert contents(tmp_path / 'deploy') == before


def test_equal_models_give_equal_exports(tmp_path):
    for name in ('one', 'two'):
        export(saved_model(UNEVEN), tmp_path / name)
    assert contents(tmp_path / 'one') == contents(tmp_path / 'two')


def test_the_manifest_vouches_for_every_file(tmp_path):
    export(saved_model(), tmp_path / 'deploy')
    manifest = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())
    assert set(manifest['files']) == {
        'model-symbol.json',
        'model-0000.params',
        'architecture.json',
        'vocab.txt',
    }
    for name in manifest['files']:
        path = tmp_path / 'deploy' / name
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(ValueError, match=name):
            load_deployment(tmp_path / 'deploy')
        path.write_bytes(good)
    load_deployment(tmp_path / 'deploy')


def test_differences_that_are_not_finite_are_infinite():
    one, nan = np.ones(2), np.array([1.0, np.nan])
    assert relative_difference(nan, one) == relative_difference(one, nan) == float('inf')
    assert relative_difference(one, np.ones(3)) == float('inf')
    assert relative_difference(np.array([1.0, 2.5]), np.array([1.0, 2.0])) == 0.25


def test_scores_of_a_head_count_from_one():
    one, other = np.array([3e-3, 2e-3]), np.array([3e-3, 2e-3 + 1e-7])
    for name in ('scores', 'next_sentence_scores'):
        assert output_difference(name, other, one) == pytest.approx(1e-7)
        assert output_difference(name, 1e4 * other, 1e4 * one) == relative_difference(1e4 * other, 1e4 * one)
        assert output_difference(name, np.array([np.nan, 0.0]), one) == float('inf')
        assert output_difference(name, one, np.zeros(2)) == 3e-3
    assert output_difference('encoded', other, one) == relative_difference(other, one) > 3e-5


def test_scores_that_cancel_out_do_not_refuse_an_export(tmp_path):
    saved = saved_model()
    feed = random_feed(saved.architecture, batch=1, length=7)  # as the export is compared on
    pooled = running.run(build(saved.architecture, saved.parameters), feed, INPUTS)[1][0]
    weight = 10 * saved.parameters['classifier.weight']
    changed = {'classifier.weight': weight, 'classifier.bias': -weight @ pooled}
    model = SavedModel(saved.architecture, {**saved.parameters, **changed}, saved.vocabulary)
    network = build(model.architecture, model.parameters)
    assert np.abs(running.run(network, feed, INPUTS)[2]).max() < 1e-5
    export(model, tmp_path / 'deploy', head='pretraining')


def test_unused_heads_are_left_out_of_the_file(tmp_path):
    saved = saved_model()
    export(saved, tmp_path / 'encoder')
    export(saved, tmp_path / 'pretraining', head='pretraining')
    sizes = {
        head: (tmp_path / head / 'model-0000.params').stat().st_size for head in ('encoder', 'pretraining')
    }
    heads = sum(
        value.nbytes
        for name, value in random_parameters(network()).items()
        if name.startswith(('decoder', 'classifier'))
    )
    assert sizes['pretraining'] - sizes['encoder'] >= heads


def test_labelled_text_measures_what_a_precision_costs(tmp_path):
    (tmp_path / 'text').write_text('a b c\tyes\nhi j\tno\n')
    result = call(
        'tools/export_model.py',
        task_model(tmp_path / 'model', Head('classification', ('no', 'yes'))),
        '--output',
        tmp_path / 'deploy',
        '--precision',
        'bfloat16',
        '--labelled',
        tmp_path / 'text',
    )
    assert result.returncode == 0 and '2 labelled lines: ' in result.stdout, result.stderr
    measured = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())['measured']
    assert {measured['score'], measured['float32_score']} <= {0.0, 0.5, 1.0}


def test_random_heads_are_not_exported(tmp_path):
    """The import of a checkpoint without heads says that they are random."""
    random = saved_model(progress={'untrained': ['pooler', 'mlm', 'nsp']})
    with pytest.raises(UntrainedHeads, match='no pooler and no MLM head and no NSP head'):
        export(random, tmp_path / 'deploy', head='pretraining')
    write_model(tmp_path / 'my model', random)
    result = call(
        'tools/export_model.py',
        tmp_path / 'my model',
        '--output',
        tmp_path / 'deploy',
        '--head',
        'pretraining',
    )
    assert result.returncode == 2 and not (tmp_path / 'deploy').exists()
    assert f"imported_heads.yaml --model '{tmp_path / 'my model'}'" in result.stderr
    result = call('tools/export_model.py', tmp_path / 'my model', '--output', tmp_path / 'deploy')
    assert result.returncode == 0 and 'note: the checkpoint had no pooler' in result.stdout
    assert json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())['untrained'] == ['pooler']
    assert load_deployment(tmp_path / 'deploy')[1].untrained == ('pooler',)


def test_trained_parts_are_exported_without_a_note(tmp_path):
    write_model(tmp_path / 'model', saved_model(progress={'untrained': ['mlm', 'nsp']}))
    result = call('tools/export_model.py', tmp_path / 'model', '--output', tmp_path / 'deploy')
    assert result.returncode == 0 and 'note:' not in result.stdout, result.stderr
    manifest = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())
    assert manifest['untrained'] == [] and manifest['vocab_size'] == 32 and manifest['max_length'] == 16


def test_classifier_that_was_fine_tuned_is_not_random():
    head = Head('classification', ('no', 'yes'))
    saved = SavedModel(UNEVEN, {}, vocabulary(), progress=Progress(untrained=('pooler',)), head=head)
    assert untrained_parts(saved, 'task') == ()


@pytest.mark.parametrize(
    'kind, wanted',
    [
        ('classification', {'texts', 'same_label'}),
        ('question_answering', {'texts', 'same_answer'}),
        ('regression', {'texts', 'mean_difference'}),
        ('encoder', {'texts', 'mean_cosine', 'smallest_cosine'}),
    ],
)
def test_int8_says_how_often_it_agrees_with_float32(tmp_path, kind, wanted):
    (tmp_path / 'text').write_text('a b c\td e f\nhi j\tx y.\n')
    if kind == 'encoder':
        write_model(tmp_path / 'model', saved_model(UNEVEN))
    else:
        task_model(tmp_path / 'model', {**HEADS, 'regression': Head('regression')}[kind])
    words = ['--output', tmp_path / 'deploy', '--precision', 'int8', '--calibrate', tmp_path / 'text']
    result = call('tools/export_model.py', tmp_path / 'model', *words)
    assert result.returncode == 0 and 'int8 on 2 calibration texts: ' in result.stdout, result.stderr
    measured = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())['measured']['agreement']
    assert set(measured) == wanted and measured['texts'] == 2
    for name in wanted & {'same_label', 'same_answer', 'mean_cosine', 'smallest_cosine'}:
        assert 0 <= measured[name] <= 1 + 1e-6
    if kind == 'encoder':
        assert 0.9 < measured['smallest_cosine'] < 1  # eight bits; one, or nothing was reduced


@pytest.mark.parametrize(
    'place, command',
    [
        ('round-3/model', "export_model.py '{model}' --output deploy"),
        ('seed-7', "export_model.py '{model}' --output deploy"),
    ],
)
def test_run_directory_is_answered_with_the_command_that_works(tmp_path, place, command):
    write_model(tmp_path / 'my runs' / place, saved_model())
    result = call('tools/export_model.py', tmp_path / 'my runs', '--output', tmp_path / 'deploy')
    assert result.returncode == 2 and result.stderr.count('\n') == 1
    assert command.format(model=tmp_path / 'my runs' / place) in result.stderr


def test_export_is_not_exported_again(tmp_path):
    export(saved_model(), tmp_path / 'deploy')
    result = call('tools/export_model.py', tmp_path / 'deploy', '--output', tmp_path / 'again')
    assert result.returncode == 2 and 'is an export already; predict with it: ' in result.stderr


def test_onnx_on_request(tmp_path):
    write_model(tmp_path / 'model', saved_model(UNEVEN))
    result = call(
        'tools/export_model.py',
        tmp_path / 'model',
        '--output',
        tmp_path / 'deploy',
        '--onnx',
        '--head',
        'pretraining',
    )
    assert result.returncode == 0 and 'in ONNX' in result.stdout, result.stderr
    assert 'model.onnx' in json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())['files']
    load_deployment(tmp_path / 'deploy')


@pytest.mark.parametrize('names', ['transformers', 'gluon'])
def test_the_manifest_lists_inputs_and_outputs_of_the_onnx_file(tmp_path, names):
    export(saved_model(UNEVEN), tmp_path / 'deploy', onnx=True, inputs=names)
    entry = json.loads((tmp_path / 'deploy' / 'manifest.json').read_text())['onnx']['model.onnx']
    graph = onnx.load(str(tmp_path / 'deploy' / 'model.onnx')).graph
    assert list(entry['inputs']) == [value.name for value in graph.input]
    assert list(entry['outputs']) == [value.name for value in graph.output]
    assert entry['precision'] == 'float32' and entry['names'] == names
    assert entry['inputs']['input_ids'] == {'shape': ['batch', 'length'], 'dtype': 'int64'}
    hidden = 'last_hidden_state' if names == 'transformers' else 'encoded'
    assert entry['outputs'][hidden] == {'shape': ['batch', 'length', 'h'], 'dtype': 'float32'}


@pytest.mark.parametrize('format', ['mxnet', 'onnx'])
@pytest.mark.parametrize(
    'options, message',
    [
        ({'precision': 'fp16'}, "precision must be one of float32, int8.*, found 'fp16'"),
        ({'method': 'foo'}, "method must be one of naive, entropy, found 'foo'"),
    ],
)
def test_options_that_are_unknown_are_refused(tmp_path, format, options, message):
    with pytest.raises(ValueError, match=message):
        gluon_optbert.export(saved_model(), tmp_path / 'deploy', format=format, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'options, message',
    [
        ({'inputs': 'foo'}, "inputs must be one of transformers, gluon, found 'foo'"),
        ({'inputs': 'foo', 'onnx': True}, 'inputs must be one of'),
        ({'precision': 'bfloat16', 'onnx': True}, "onnx goes with the precision float32 or int8, found 'bf"),
    ],
)
def test_options_of_onnx_files_are_checked_before_the_first_file(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        gluon_optbert.export(saved_model(), tmp_path / 'deploy', **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    'words, message',
    [
        (['--precision', 'int8'], '--calibrate'),
        (['--calibrate', 'text'], '--calibrate'),
        (['--precision', 'int4'], 'precision'),
        (['--onnx', '--precision', 'bfloat16'], 'float32 or int8'),
        (['--head', 'task'], 'encoder or pretraining'),
        (['--calibration', 'entropy'], '--calibration goes with --calibrate FILE'),
        (['--format', 'transformers', '--calibration-lines', '7'], '--calibration-lines goes with'),
        (['--inputs', 'gluon'], '--inputs goes with --onnx'),
        (['--license', 'apache 2.0'], 'license must be a short name'),
    ],
)
def test_contradictory_flags_are_one_line(tmp_path, words, message):
    write_model(tmp_path / 'model', saved_model())
    result = call('tools/export_model.py', tmp_path / 'model', '--output', tmp_path / 'deploy', *words)
    assert result.returncode == 2 and message in result.stderr and 'Traceback' not in result.stderr
    assert not (tmp_path / 'deploy').exists()


def test_labelled_text_of_an_encoder_is_refused_before_anything_is_computed(tmp_path):
    labelled = [Instance('a b', label='1')]
    with pytest.raises(ValueError, match='go with the head of a task, and this is an export of encoder'):
        gluon_optbert.export(saved_model(), tmp_path / 'deploy', labelled=labelled)
    assert list(tmp_path.iterdir()) == []
