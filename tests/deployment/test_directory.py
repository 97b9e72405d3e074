"""Deployment directories that are damaged, too large or hostile: one clear error, and MXNet sees nothing."""

import functools
import shutil

import mxnet as mx
import pytest
from helpers.examples import examples
from helpers.exported import UNEVEN, load_deployment, vouched
from helpers.processor import needs_bfloat16
from helpers.tiny import saved_model
from hypothesis import HealthCheck, given, strategies as st

from gluon_optbert.deployment import mxnet_network
from gluon_optbert.deployment.description import PARAMETERS, SYMBOL
from gluon_optbert.deployment.export import export

FILES = [SYMBOL, PARAMETERS, 'architecture.json', 'vocab.txt', 'manifest.json']


@pytest.fixture(scope='module', params=['float32', pytest.param('bfloat16', marks=needs_bfloat16)])
def good(request, tmp_path_factory):
    """A deployment directory in each precision."""
    place = tmp_path_factory.mktemp('deployment') / 'good'
    export(saved_model(UNEVEN), place, precision=request.param)
    return place


@pytest.fixture
def copied(good, tmp_path):
    return shutil.copytree(good, tmp_path / 'copy')


@pytest.fixture(autouse=True)
def nothing_is_loaded(good, monkeypatch):
    """Refused files here were never given to MXNet."""

    def refuse(*_, **__):
        raise AssertionError('a bad file reached MXNet')

    for place, name in ((mxnet_network, 'import_symbol'), (mx.sym, 'load'), (mx.nd, 'load')):
        monkeypatch.setattr(place, name, refuse)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FILES),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    how=st.sampled_from(['flip', 'cut', 'append']),
)
def test_fuzzed_files_are_one_clear_error(good, tmp_path_factory, name, place, bit, how):
    directory = shutil.copytree(good, tmp_path_factory.mktemp('fuzzed') / 'copy')
    content = bytearray((directory / name).read_bytes())
    offset = int(place * len(content))
    if how == 'flip':
        content[offset] ^= 1 << bit
    content = content[:offset] if how == 'cut' else content + b'x' if how == 'append' else content
    (directory / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        load_deployment(directory)
    assert '\n' not in str(error.value)


def replaced(name, old, new):
    """A change that puts other bytes into a file of a directory, where the old ones stand first."""

    def spoil(directory):
        content = (directory / name).read_bytes()
        assert old in content
        (directory / name).write_bytes(content.replace(old, new, 1))

    return spoil


def says(**changes):
    """A change that has the manifest of a directory say something else."""
    return functools.partial(vouched, **changes)


@pytest.mark.parametrize(
    'spoil, message',
    [
        (replaced('architecture.json', b'"vocab_size": 32', b'"vocab_size": 2000000000'), 'vocabulary'),
        (lambda directory: (directory / 'architecture.json').unlink(), 'lacks architecture.json'),
        (says(computes='task'), 'manifest.json: computes'),
        (says(precision=['int8']), 'manifest.json: precision'),
        (says(head=None), 'manifest.json: '),
        (says(untrained='pooler'), 'manifest.json: untrained'),
        (says(onnx={'vocab.txt': {'names': 'mine'}}), 'manifest.json: onnx.vocab.txt'),
    ],
)
def test_hostile_files_with_good_checksums_are_refused(copied, spoil, message):
    spoil(copied)
    vouched(copied)
    with pytest.raises(ValueError, match=message) as raised:
        load_deployment(copied)
    assert '\n' not in str(raised.value)


def test_oversized_files_are_refused_unread(copied):
    with open(copied / 'architecture.json', 'ab') as file:
        file.truncate(1 << 33)  # sparse
    with pytest.raises(ValueError, match='architecture.json: 8,589,934,592 bytes'):
        load_deployment(copied)
