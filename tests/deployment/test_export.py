"""Exports: what plain MXNet loads from them, for any shape, uneven widths and gated models too."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.commands import call
from helpers.exported import HEADS, UNEVEN, load_deployment, with_head
from helpers.processor import HAS_BFLOAT16, needs_bfloat16
from helpers.tiny import contents, network, random_alphas, saved_model

from gluon_optbert.architecture.heads import Head
from gluon_optbert.deployment import export as deploy
from gluon_optbert.deployment.description import NETWORK_FILES, inputs_of, read_description
from gluon_optbert.deployment.export import (
    TOLERANCE,
    NotEqual,
    UntrainedHeads,
    export,
    output_difference,
    relative_difference,
    untrained_parts,
)
from gluon_optbert.deployment.instances import Instance
from gluon_optbert.deployment.library_exports import export_onnx, export_transformers
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.model import build
from gluon_optbert.network.running import random_feed, run
from gluon_optbert.network.saved_model import SavedModel, write_model

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
TEXTS = [Instance('a b c', 'd e f'), Instance('hi j', 'x y.')]


def manifest_of(directory):
    return json.loads((directory / 'manifest.json').read_text())


def test_a_program_without_this_package_gets_the_same_numbers(tmp_path):
    cases = {'pretraining': (saved_model(UNEVEN), 'pretraining', 'float32')}
    for precision in ('float32', 'int8', *(['bfloat16'] if HAS_BFLOAT16 else [])):
        cases[precision] = with_head(UNEVEN, HEADS['classification']), 'task', precision
    for name, (saved, kind, precision) in cases.items():
        texts = TEXTS if precision == 'int8' else []
        export(saved, tmp_path / name / 'deploy', head=kind, precision=precision, calibration=texts)
        feed = random_feed(UNEVEN, batch=4, length=11, seed=3)
        np.savez(tmp_path / name / 'feed.npz', **{name: feed[name] for name in inputs_of(kind)})
    words = [str(tmp_path / name) for name in cases]
    subprocess.run([sys.executable, '-c', PLAIN_MXNET, *words], check=True, cwd=str(tmp_path), timeout=300)
    for name, (saved, kind, precision) in cases.items():
        outputs = np.load(tmp_path / name / 'out.npz')
        model = build(UNEVEN, saved.parameters, head=saved.head)
        for i, wanted in enumerate(run(model, feed, inputs_of(kind))):
            difference = relative_difference(outputs[f'arr_{i}'], wanted)
            assert (difference <= TOLERANCE) == (precision != 'bfloat16'), name  # or nothing was reduced
            assert difference < 1
    whole, int8 = (tmp_path / precision / 'deploy' for precision in ('float32', 'int8'))
    for file in NETWORK_FILES:  # MXNet reads the network of a float32 export
        assert (whole / file).read_bytes() == (int8 / file).read_bytes()
    manifest = manifest_of(int8)
    assert manifest['precision'] == 'float32' and not manifest_of(whole).get('onnx')
    files = {file: entry['precision'] for file, entry in manifest['onnx'].items()}
    assert files == {'model.onnx': 'int8', 'model_dynamic.onnx': 'int8 dynamic'}
    assert files.keys() <= manifest['files'].keys()
    for key in ('onnx_relative_difference', 'onnx_dynamic_relative_difference'):
        assert all(0 < difference < 0.5 for difference in manifest['measured'][key].values())


def test_a_gated_model_is_folded_and_cut_on_the_way_out(tmp_path):
    architecture = network()
    alphas = random_alphas(architecture)
    for key, gone in (('h', [1, 5]), ('a0', [1]), ('k1', [0, 3]), ('v0', [2]), ('f1', [4, 7, 8])):
        alphas[key][gone] = 0.0
    saved = saved_model(architecture, alphas=alphas)
    export(saved, tmp_path / 'deploy', head='pretraining')
    block, deployment = load_deployment(tmp_path / 'deploy')
    gated = build(architecture, saved.parameters, gated=True)
    gated.gates.set(alphas)
    feed = random_feed(architecture, batch=3, length=9)
    outputs, wanted = (run(model, feed, deployment.inputs) for model in (block, gated))
    assert outputs[0].shape[-1] == 6
    assert relative_difference(outputs[0], np.delete(wanted[0], [1, 5], axis=-1)) <= TOLERANCE
    assert relative_difference(outputs[3], wanted[3]) <= TOLERANCE

    alphas['k0'][:] = 0.0
    with pytest.raises(ValueError, match='every unit of k0'):
        export(dataclasses.replace(saved, alphas=alphas), tmp_path / 'empty')


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


def test_equal_models_give_equal_exports_of_which_nothing_is_touched(tmp_path):
    for name in ('one', 'two'):
        export(saved_model(UNEVEN), tmp_path / name, onnx=True)
    before = contents(tmp_path / 'one')
    assert before == contents(tmp_path / 'two')
    with pytest.raises(FileExistsError, match='one'):
        export(saved_model(seed=1), tmp_path / 'one')
    assert contents(tmp_path / 'one') == before
    result = call('tools/export_model.py', tmp_path / 'one', '--output', tmp_path / 'again')
    assert result.returncode == 2 and 'is an export already; predict with it: ' in result.stderr
    manifest = manifest_of(tmp_path / 'one')
    assert set(manifest['files']) == before.keys() - {'manifest.json', 'README.md'}
    (tmp_path / 'one' / 'model.onnx').write_bytes((tmp_path / 'one' / 'model.onnx').read_bytes()[:-1])
    with pytest.raises(ValueError, match='model.onnx'):
        load_deployment(tmp_path / 'one')
    entry = manifest['onnx']['model.onnx']
    assert entry['precision'] == 'float32' and entry['names'] == 'transformers'
    assert entry['inputs']['input_ids'] == {'shape': ['batch', 'length'], 'dtype': 'int64'}
    assert entry['outputs']['last_hidden_state'] == {'shape': ['batch', 'length', 'h'], 'dtype': 'float32'}


def test_as_many_labels_as_a_network_has_are_read_again(tmp_path):
    labels = tuple(f'{number} > {"Home & Garden > Kitchen":>60}' for number in range(20_000))
    export(with_head(UNEVEN, Head('classification', labels)), tmp_path / 'deploy')
    assert read_description(tmp_path / 'deploy').head.labels == labels


def test_differences_that_are_not_finite_are_infinite():
    one, nan = np.ones(2), np.array([1.0, np.nan])
    assert relative_difference(nan, one) == relative_difference(one, nan) == float('inf')
    assert relative_difference(one, np.ones(3)) == float('inf')
    assert relative_difference(np.array([1.0, 2.5]), np.array([1.0, 2.0])) == 0.25
    assert output_difference('scores', nan, one) == float('inf')
    assert output_difference('scores', np.array([2e-3]), np.array([1e-3])) == pytest.approx(1e-3)  # of one


def test_scores_that_cancel_out_do_not_refuse_an_export(tmp_path):
    saved = saved_model()
    feed = random_feed(saved.architecture, batch=1, length=7)  # as the export is compared on
    pooled = run(build(saved.architecture, saved.parameters), feed, INPUTS)[1][0]
    weight = 10 * saved.parameters['classifier.weight']
    changed = {'classifier.weight': weight, 'classifier.bias': -weight @ pooled}
    model = SavedModel(saved.architecture, {**saved.parameters, **changed}, saved.vocabulary)
    assert np.abs(run(build(model.architecture, model.parameters), feed, INPUTS)[2]).max() < 1e-5
    export(model, tmp_path / 'deploy', head='pretraining')


def test_random_heads_are_not_exported(tmp_path):
    """The import of a checkpoint without heads says that they are random."""
    random = saved_model(progress={'untrained': ['pooler', 'mlm', 'nsp']})
    tuned = dataclasses.replace(random, head=HEADS['regression'])
    assert untrained_parts(random, 'encoder') == ('pooler',) and untrained_parts(tuned, 'task') == ()
    for write in (export, export_onnx, export_transformers):
        with pytest.raises(UntrainedHeads, match='no pooler and no MLM head and no NSP head'):
            write(random, tmp_path / 'deploy', head='pretraining')
    export_transformers(random, tmp_path / 'hub')
    config = json.loads((tmp_path / 'hub' / 'config.json').read_text())
    assert config['gluon_optbert']['untrained'] == ['pooler']
    write_model(tmp_path / 'my model', random)
    words = ['tools/export_model.py', tmp_path / 'my model', '--output', tmp_path / 'deploy']
    result = call(*words, '--head', 'pretraining')
    assert result.returncode == 2 and not (tmp_path / 'deploy').exists()
    assert f"imported_heads.yaml --model '{tmp_path / 'my model'}'" in result.stderr
    result = call(*words)
    assert result.returncode == 0 and 'note: the checkpoint had no pooler' in result.stdout
    assert load_deployment(tmp_path / 'deploy')[1].untrained == ('pooler',)


@pytest.mark.parametrize(
    'kind, wanted, installed',
    [
        ('classification', {'texts', 'same_label'}, False),
        ('encoder', {'texts', 'mean_cosine', 'smallest_cosine'}, True),
    ],
)
def test_int8_says_how_often_it_agrees_with_float32(tmp_path, monkeypatch, kind, wanted, installed):
    if not installed:  # then ONNX's reference implementation says it
        monkeypatch.setattr(deploy, 'is_installed', lambda name: False)
    saved = saved_model(UNEVEN) if kind == 'encoder' else with_head(UNEVEN, HEADS[kind])
    labelled = [Instance('a b', 'c', label='yes')] if kind == 'classification' else []
    options = {'precision': 'int8', 'calibration': TEXTS, 'labelled': labelled}
    measured = export(saved, tmp_path / 'deploy', **options)
    agreement = measured['agreement']
    assert set(agreement) == wanted and agreement['texts'] == 2
    assert all(0 <= agreement[name] <= 1 + 1e-6 for name in wanted - {'texts'})
    if kind == 'encoder':
        assert 0.9 < agreement['smallest_cosine'] < 1  # eight bits; one, or nothing was reduced
    assert ({measured.get('score'), measured.get('float32_score')} <= {0.0, 1.0}) == bool(labelled)


@needs_bfloat16
def test_the_command_says_what_a_precision_costs(tmp_path):
    write_model(tmp_path / 'model', with_head(UNEVEN, HEADS['classification']))
    (tmp_path / 'text').write_text('a b c\tyes\nhi j\tno\n')
    words = ['--output', tmp_path / 'deploy', '--precision', 'bfloat16', '--labelled', tmp_path / 'text']
    result = call('tools/export_model.py', tmp_path / 'model', *words)
    assert result.returncode == 0 and '2 labelled lines: ' in result.stdout, result.stderr
    measured = manifest_of(tmp_path / 'deploy')['measured']
    assert {measured['score'], measured['float32_score']} <= {0.0, 0.5, 1.0}


def test_the_command_refuses_labels_for_an_encoder_and_says_how_pairs_are_predicted(tmp_path):
    (tmp_path / 'text').write_text('a b c\tyes\nhi j\tno\n')
    write_model(tmp_path / 'encoder', saved_model())
    words = [tmp_path / 'encoder', '--output', tmp_path / 'deploy', '--labelled', tmp_path / 'text']
    result = call('tools/export_model.py', *words)
    assert result.returncode == 2 and '--labelled goes with the head of a task' in result.stderr
    write_model(tmp_path / 'answers', with_head(UNEVEN, HEADS['question_answering']))
    result = call('tools/export_model.py', tmp_path / 'answers', '--output', tmp_path / 'deploy')
    assert '--input pairs.txt' in result.stdout, result.stderr


@pytest.mark.parametrize(
    'options, message',
    [
        ({'precision': 'fp16'}, "precision must be one of float32, int8.*, found 'fp16'"),
        ({'head': 'task'}, "exports encoder or pretraining, not 'task'"),
        ({'precision': 'bfloat16', 'onnx': True}, 'onnx goes with the precision float32 or int8'),
        ({'labelled': [Instance('a b', label='1')]}, 'head of a task, and this is an export of encoder'),
        ({'calibration': TEXTS, 'onnx': True}, 'calibration goes with the precision int8 or bfloat16'),
        ({'method': 'entropy'}, "method 'entropy' of calibration goes with the precision int8"),
        ({'inputs': 'gluon'}, "inputs 'gluon' goes with onnx or the precision int8"),
    ],
)
def test_options_that_are_unknown_or_contradictory_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export(saved_model(), tmp_path / 'deploy', **options)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_label_is_found_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(deploy, 'write_deployment', None)
    labelled = [Instance('a b', label='yes'), Instance('c', label='perhaps', source='dev.tsv: line 2')]
    with pytest.raises(ValueError, match="dev.tsv: line 2: 'perhaps' is not among the labels no, yes"):
        export(with_head(UNEVEN, HEADS['classification']), tmp_path / 'deploy', labelled=labelled)


def test_contradictory_flags_are_refused_together(tmp_path):
    write_model(tmp_path / 'model', saved_model())
    words = ('tools/export_model.py', tmp_path / 'model', '--output', tmp_path / 'deploy')
    for flags, messages in (
        (
            ['--format', 'transformers', '--calibration-lines', 7, '--onnx', '--license', 'apache 2.0'],
            ['--calibration-lines goes with', '--onnx goes with --format mxnet', 'license must be a short'],
        ),
        (
            ['--format', 'onnx', '--precision', 'bfloat16', '--inputs', 'gluon'],
            ['float32 or int8', '--inputs goes with --onnx'],
        ),
        (['--precision', 'int8'], ['--calibrate']),
    ):
        result = call(*words, *flags)
        assert result.returncode == 2 and 'Traceback' not in result.stderr
        assert all(message in result.stderr for message in messages), result.stderr
        assert not (tmp_path / 'deploy').exists()
