"""Model directories: whole, strict, and absent rather than half-written."""

import dataclasses
import json
import os
import random
import shutil
import signal

import numpy as np
import pytest
from helpers.networks import UNEVEN
from helpers.stricken import forked, status_of
from helpers.tiny import (
    TOKENS,
    contents,
    network,
    random_alphas,
    random_parameters,
    saved_model,
    seal,
    vocabulary,
    write_saved_model,
)

from gluon_optbert.architecture.parameters import TIED, gate_name
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import FORMAT, VERSION, SavedModel, read_model, write_model
from gluon_optbert.runs import files
from gluon_optbert.runs.files import check_manifest, new_directory, write_file, write_manifest
from gluon_optbert.runs.mxnet_arrays import read_arrays, write_arrays
from gluon_optbert.runs.progress import Progress

FILES = ('architecture.json', 'manifest.json', 'model.params', 'progress.json', 'recipe.yaml', 'vocab.txt')


def assert_equal(one, other):
    assert one.architecture == other.architecture
    assert one.vocabulary.idx_to_token == other.vocabulary.idx_to_token
    assert dict(one.recipe) == dict(other.recipe) and one.progress == other.progress
    for result, wanted in ((one.parameters, other.parameters), (one.alphas or {}, other.alphas or {})):
        assert result.keys() == wanted.keys()
        for name, value in wanted.items():
            assert result[name].dtype == value.dtype and np.array_equal(result[name], value), name


@pytest.mark.parametrize('architecture', [network(), UNEVEN, network((1, 1, 1, 0), h=4, e=2)])
def test_model_directory_round_trip_is_lossless(tmp_path, architecture):
    """A layer without filters has no gate of them."""
    model = SavedModel(
        architecture,
        random_parameters(architecture),
        vocabulary(),
        {'steps': 3, 'lr': 1e-5, 'note': None},
        Progress(step=7, mlm_loss=0.1 + 0.2),
        random_alphas(architecture),
    )
    write_model(tmp_path / 'model', model)
    alphas = {key: alpha for key, alpha in model.alphas.items() if len(alpha)}
    assert_equal(read_model(tmp_path / 'model'), dataclasses.replace(model, alphas=alphas))
    assert sorted(os.listdir(tmp_path / 'model')) == sorted(FILES)
    assert os.listdir(tmp_path) == ['model']


def test_gates_are_named_as_the_network_names_them():
    parameters = build(UNEVEN, gated=True)._collect_params_with_prefix()
    gates = {name for name in parameters if name.endswith('.alpha')}
    assert gates == {gate_name(key) for key, width in UNEVEN.widths().items() if width}


@pytest.fixture
def damaged(model_directory, tmp_path):
    """A copy of a model directory, to be damaged."""
    return shutil.copytree(model_directory, tmp_path / 'model')


def vouch(directory):
    """Make the manifest agree with what is there, so that only the parts' own checks are left."""
    write_manifest(directory, form=FORMAT, version=VERSION)


def test_tied_weight_that_gluonnlp_writes_is_left_out(damaged):
    arrays = read_arrays(damaged / 'model.params')
    write_arrays(damaged / 'model.params', {**arrays, TIED: arrays['word_embed.0.weight']})
    vouch(damaged)
    assert read_model(damaged).parameters.keys() == arrays.keys()


@pytest.mark.parametrize('name', FILES)
def test_missing_cut_or_changed_file_is_named(damaged, name):
    whole, generator = (damaged / name).read_bytes(), random.Random(name)
    places = [0, 1, len(whole) - 2, *(generator.randrange(len(whole) - 1) for _ in range(9))]
    flipped = [(place, bytes([whole[place] ^ 1 << generator.randrange(8)])) for place in places]
    broken = [whole[:place] for place in places]
    broken += [whole[:place] + byte + whole[place + 1 :] for place, byte in flipped]
    for content in broken:
        (damaged / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            read_model(damaged)
    (damaged / name).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=name):
        read_model(damaged)
    if name != 'manifest.json':
        vouch(damaged)
        with pytest.raises(ValueError, match=name):
            read_model(damaged)


@pytest.mark.parametrize('name', ['../vocab.txt', 'a\nb'])
def test_manifest_names_plain_files_alone(damaged, name):
    manifest = json.loads((damaged / 'manifest.json').read_text())
    manifest['files'][name] = manifest['files']['vocab.txt']
    seal(damaged / 'manifest.json', manifest)
    (damaged.parent / 'vocab.txt').write_bytes((damaged / 'vocab.txt').read_bytes())
    with pytest.raises(ValueError, match='is not a plain file name'):
        read_model(damaged)


@pytest.mark.parametrize(
    'name, content',
    [
        ('architecture.json', b'{}'),
        ('architecture.json', UNEVEN.to_json().encode()),
        ('model.params', b'what'),
        ('progress.json', b'{'),
        ('recipe.yaml', b'a: [\n'),
        ('vocab.txt', '\n'.join([*TOKENS, 'more']).encode()),
        ('vocab.txt', b'\xff\xfe'),
        ('head.json', b'{"kind": "regression", "labels": [], "task": ""}'),
    ],
)
def test_parts_that_do_not_fit_are_refused_even_if_the_manifest_vouches(damaged, name, content):
    (damaged / name).write_bytes(content)
    vouch(damaged)
    with pytest.raises(ValueError, match=str(damaged)):
        read_model(damaged)


@pytest.mark.parametrize('name, value', [('decoder.2.beta', np.nan), (gate_name('f1'), -np.inf)])
def test_weights_that_are_no_numbers_are_neither_written_nor_read(tmp_path, name, value):
    model = saved_model(alphas=random_alphas(network()))
    write_model(tmp_path / 'model', model)
    arrays = read_arrays(tmp_path / 'model' / 'model.params')
    arrays[name][1] = value
    write_arrays(tmp_path / 'model' / 'model.params', arrays)
    vouch(tmp_path / 'model')
    said = '(decoder.2.beta|f1) has values that are NaN or infinite'
    with pytest.raises(ValueError, match=said):
        read_model(tmp_path / 'model')
    model.parameters.get(name, model.alphas['f1'])[1] = value
    with pytest.raises(ValueError, match=said):
        write_model(tmp_path / 'again', model)
    assert not (tmp_path / 'again').exists()


def test_what_is_no_model_directory_is_said(tmp_path, damaged):
    (tmp_path / 'run' / 'round-2' / 'model').mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match='directory of a run; .*round-2/model'):
        read_model(tmp_path / 'run')
    with pytest.raises(FileNotFoundError, match='nowhere: no such directory'):
        read_model(tmp_path / 'nowhere')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(FileNotFoundError, match='no manifest.json'):
        read_model(tmp_path / 'empty')
    with pytest.raises(ValueError, match="is 'gluon_optbert model' version 1, wanted 'other' version 3"):
        check_manifest(damaged, form='other', version=3)
    seal(damaged / 'manifest.json', {'format': 'gluon_optbert shards', 'version': 2})
    with pytest.raises(ValueError, match="'gluon_optbert shards' version 2, wanted 'gluon_optbert model'"):
        read_model(damaged)


def test_what_does_not_fit_or_may_not_be_replaced_is_not_written(tmp_path):
    alphas = random_alphas(network())
    alphas['q7'] = alphas.pop('k1')
    alphas['h'] = alphas['h'][:-1]
    with pytest.raises(ValueError, match=r'h \(7,\), wanted \(8,\); k1 \(\), .*unknown q7'):
        write_model(tmp_path / 'model', saved_model(alphas=alphas))
    larger = dataclasses.replace(network(), vocab_size=33)
    huge = {**saved_model().parameters, 'pooler.bias': np.full(8, 1e300)}  # float32 ends before
    for model, said in (
        (SavedModel(network(), random_parameters(UNEVEN), vocabulary()), 'do not fit'),
        (SavedModel(larger, random_parameters(larger), vocabulary()), 'has 32 tokens, the architecture 33'),
        (dataclasses.replace(saved_model(), parameters=huge), 'pooler.bias has values that are NaN'),
    ):
        with pytest.raises(ValueError, match=said):
            write_model(tmp_path / 'model', model)
    assert os.listdir(tmp_path) == []
    (tmp_path / 'model').mkdir()
    (tmp_path / 'model' / 'mine').write_text('kept')
    with pytest.raises(FileExistsError, match='model: exists'):
        write_saved_model(tmp_path / 'model')
    assert contents(tmp_path).keys() == {'model/mine'}
    write_model(tmp_path / 'model', saved_model(seed=5), replace=True, extra={'metrics.jsonl': b'{}\n'})
    assert sorted(os.listdir(tmp_path / 'model')) == sorted([*FILES, 'metrics.jsonl'])
    assert_equal(read_model(tmp_path / 'model'), saved_model(seed=5))


def test_directory_that_raises_leaves_what_was_there(tmp_path):
    write_saved_model(tmp_path / 'model')
    before = contents(tmp_path)
    for name in ('model', 'new'):
        with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / name, replace=True) as staged:
            (staged / 'part').write_text('half')
            raise KeyboardInterrupt
    assert contents(tmp_path) == before


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_process_leaves_no_directory_and_the_next_one_clears_up(tmp_path):
    output = tmp_path / 'run[1]*'  # not a pattern

    def writing():
        with new_directory(output) as staged:
            (staged / 'part').write_text('half')
            die()

    assert status_of(forked(writing)) == -signal.SIGKILL
    assert not output.exists()
    left = [path.name for path in tmp_path.iterdir()]
    assert left and all(name.startswith('.run[1]*.partial-') for name in left)
    with new_directory(output) as staged:
        (staged / 'whole').write_text('all')
    assert contents(tmp_path).keys() == {'run[1]*/whole'}


def test_process_killed_before_the_renaming_leaves_what_was_there(tmp_path):
    model = write_saved_model(tmp_path / 'model')
    before = contents(model)

    def directory():
        files.shutil.rmtree = die
        with new_directory(model, replace=True) as staged:
            (staged / 'part').write_text('half')

    def file():
        files.os.replace = die
        write_file(model / 'vocab.txt', b'new')

    for writing in (directory, file):
        assert status_of(forked(writing)) == -signal.SIGKILL
        write_file(model / 'vocab.txt', (model / 'vocab.txt').read_bytes())
        assert contents(model) == before  # the next one has cleared up


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    with pytest.raises(FileExistsError), new_directory(tmp_path / 'new') as slow:
        (slow / 'part').write_text('half')
        with new_directory(tmp_path / 'new') as fast:
            (fast / 'whole').write_text('all')
        assert (slow / 'part').exists()
    assert contents(tmp_path).keys() == {'new/whole'}
