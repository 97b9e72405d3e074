"""Deployment directories that are damaged, too large or hostile: one clear error, and MXNet sees nothing."""

import shutil
import struct

import mxnet as mx
import numpy as np
import pytest
from helpers.examples import examples
from helpers.exported import UNEVEN, load_deployment, vouched
from helpers.processor import needs_bfloat16
from helpers.tiny import saved_model
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gluon_optbert.deployment import mxnet_network
from gluon_optbert.deployment.export import export
from gluon_optbert.deployment.mxnet_network import read_deployment
from gluon_optbert.runs.mxnet_arrays import BFLOAT16, read_arrays, write_arrays

FILES = ['model-symbol.json', 'model-0000.params', 'architecture.json', 'vocab.txt', 'manifest.json']


@pytest.fixture(scope='module', params=['float32', pytest.param('bfloat16', marks=needs_bfloat16)])
def good(request, tmp_path_factory):
    """A deployment directory in each precision."""
    place = tmp_path_factory.mktemp('deployment') / 'good'
    export(saved_model(UNEVEN), place, precision=request.param)
    return place


@pytest.fixture
def copied(good, tmp_path):
    shutil.copytree(good, tmp_path / 'copy')
    return tmp_path / 'copy'


@pytest.fixture(autouse=True)
def nothing_is_loaded(request, monkeypatch):
    """Whatever is refused here was never given to MXNet."""
    if 'copied' in request.fixturenames or 'fuzzed' in request.node.name:

        def refuse(*_, **__):
            raise AssertionError('a bad file reached MXNet')

        monkeypatch.setattr(mxnet_network, 'import_symbol', refuse)
        monkeypatch.setattr(mx.sym, 'load', refuse)
        monkeypatch.setattr(mx.nd, 'load', refuse)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FILES),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    how=st.sampled_from(['flip', 'cut', 'append']),
)
def test_fuzzed_files_are_one_clear_error(good, tmp_path_factory, name, place, bit, how):
    directory = tmp_path_factory.mktemp('fuzzed') / 'copy'
    shutil.copytree(good, directory)
    content = bytearray((directory / name).read_bytes())
    offset = int(place * len(content))
    if how == 'flip':
        content[offset] ^= 1 << bit
    content = content[:offset] if how == 'cut' else content + b'x' if how == 'append' else content
    (directory / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_deployment(directory)
    assert '\n' not in str(error.value)


def rewritten_symbol(directory):
    path = directory / 'model-symbol.json'
    path.write_text(path.read_text().replace('"softmax"', '"log_softmax"', 1))


def wrong_shape(directory):
    path = directory / 'model-0000.params'
    content = bytearray(path.read_bytes())
    content[24 + 12 : 24 + 20] = struct.pack('<q', 1 << 40)  # the first side of the first array
    path.write_bytes(content)


def no_numbers(directory):
    path = directory / 'model-0000.params'
    arrays = read_arrays(path)
    values = arrays['arg:encoder.transformer_cells.0.proj.weight']
    if values.dtype == BFLOAT16:
        values.view(np.uint16)[0, 0] = 0xFF80
    else:
        values[0, 0] = np.nan
    write_arrays(path, arrays)


def other_names(directory):
    path = directory / 'model-0000.params'
    path.write_bytes(path.read_bytes().replace(b'arg:pooler.bias', b'aux:pooler.bias'))


def wider_architecture(directory):
    path = directory / 'architecture.json'
    path.write_text(path.read_text().replace('"vocab_size": 32', '"vocab_size": 32000000000'))


@pytest.mark.parametrize(
    'spoil, message',
    [
        (rewritten_symbol, 'not the network'),
        (wrong_shape, 'word_embed|weight'),
        (other_names, 'the name'),
        (no_numbers, 'proj.weight has values that are NaN or infinite'),
        (wider_architecture, 'vocabulary'),
    ],
)
def test_hostile_files_with_good_checksums_are_refused(copied, spoil, message):
    spoil(copied)
    vouched(copied)
    with pytest.raises(ValueError, match=message):
        load_deployment(copied)


@pytest.mark.parametrize(
    'changes',
    [
        {'computes': 'task'},
        {'precision': ['int8']},
        {'head': None},
        {'untrained': 'pooler'},
        {'onnx': {'vocab.txt': {'names': 'mine'}}},
    ],
)
def test_manifests_that_say_something_else_are_refused(copied, changes):
    vouched(copied, **changes)
    with pytest.raises(ValueError, match=str(copied)) as raised:
        load_deployment(copied)
    assert '\n' not in str(raised.value)


def test_oversized_files_are_refused_unread_and_missing_ones_are_named(copied):
    with open(copied / 'architecture.json', 'ab') as file:
        file.truncate(1 << 33)  # sparse
    with pytest.raises(ValueError, match='architecture.json: 8,589,934,592 bytes'):
        load_deployment(copied)
    (copied / 'architecture.json').unlink()
    vouched(copied)
    with pytest.raises(ValueError, match='lacks architecture.json'):
        load_deployment(copied)
