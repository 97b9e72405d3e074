"""The README: its commands exist, its flags are read, its Python and C run."""

import shutil

import mxnet as mx
import numpy as np
import pytest
from helpers.documents import check_command, code_of, commands, compiled_and_run, is_target, targets_of_make
from helpers.tiny import ROOT, network, random_parameters, vocabulary

from gluon_optbert.deployment.export import export
from gluon_optbert.network.saved_model import SavedModel

README = ROOT / 'README.md'


@pytest.mark.parametrize('line', commands(README))
def test_commands_name_scripts_recipes_flags_and_choices_that_exist(line):
    check_command(line)


def test_there_are_commands_to_test():
    assert len(commands(README)) >= 5


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """What the examples read: an export of an encoder."""
    directory, architecture = tmp_path_factory.mktemp('examples'), network(vocab_size=len(vocabulary()))
    export(SavedModel(architecture, random_parameters(architecture), vocabulary()), directory / 'deploy')
    return directory


def example(language):
    """The first example in a language, with ids that the vocabulary of tests has."""
    code = code_of(README, language)[0]
    assert '2, 45, 67, 3' in code
    return code.replace('2, 45, 67, 3', '2, 5, 7, 3')


def test_the_python_example_runs_on_an_export(place, monkeypatch):
    monkeypatch.chdir(place)
    names: dict = {}
    exec(compile(example('python'), 'README.md', 'exec'), names)
    assert names['encoded'].shape == (1, 4, 8) and names['pooled'].shape == (1, 8)


def test_the_c_example_computes_what_python_computes(place):
    if not shutil.which('gcc'):
        pytest.skip('no gcc')
    found = compiled_and_run(example('c'), README, place)
    block = mx.gluon.SymbolBlock.imports(
        str(place / 'deploy' / 'model-symbol.json'),
        ['input_ids', 'token_types', 'valid_length'],
        str(place / 'deploy' / 'model-0000.params'),
    )
    wanted = block(mx.nd.array([[2, 5, 7, 3]]), mx.nd.zeros((1, 4)), mx.nd.array([4]))[0].asnumpy()
    np.testing.assert_allclose(found, wanted.reshape(-1), atol=1e-5)  # float32; the C API fuses operators


def test_the_targets_of_make_are_the_ones_named():
    assert all(map(is_target, targets_of_make(README)))
