"""The README: its commands exist, its flags are read, its Python runs."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from helpers.tiny import ROOT, network, random_parameters, run, vocabulary

from gluon_optbert.deployment.export import export
from gluon_optbert.network.saved_model import SavedModel

README = (ROOT / 'README.md').read_text(encoding='utf-8')


def commands():
    """Every command line of a code block that runs a script of the project."""
    blocks = re.findall(r'```(?:sh|bash)?\n(.*?)```', README, flags=re.DOTALL)
    lines = '\n'.join(blocks).replace('\\\n', ' ').splitlines()
    return [line for line in lines if re.search(r'python (pretrain|tools|finetune)/', line)]


@pytest.mark.parametrize('line', commands())
def test_commands_name_scripts_recipes_and_flags_that_exist(line):
    words = shlex.split(line)
    script = next(word for word in words if word.endswith('.py'))
    assert (ROOT / script).is_file()
    assert all((ROOT / word).is_file() for word in words if word.endswith('.yaml'))
    helped = run(script, '--help')
    assert helped.returncode == 0, helped.stderr
    flags = [word for word in words[words.index(script) :] if word.startswith('--')]
    assert all(flag in helped.stdout for flag in flags)


def test_there_are_commands_to_test():
    assert len(commands()) >= 5


def test_the_python_example_runs_on_an_export(tmp_path, monkeypatch):
    code = re.search(r'```python\n(.*?)```', README, flags=re.DOTALL).group(1)
    architecture = network(vocab_size=len(vocabulary()))
    export(SavedModel(architecture, random_parameters(architecture), vocabulary()), tmp_path / 'deploy')
    monkeypatch.chdir(tmp_path)
    places: dict = {}
    exec(compile(code.replace('[[2, 45, 67, 3]]', '[[2, 5, 7, 3]]'), 'README.md', 'exec'), places)
    assert places['encoded'].shape == (1, 4, architecture.h) and places['pooled'].shape == (1, architecture.h)


def test_the_c_example_computes_what_python_computes(tmp_path):
    if not shutil.which('gcc'):
        pytest.skip('no gcc')
    code = (
        re.search(r'```c\n(.*?)```', README, flags=re.DOTALL).group(1).replace('2, 45, 67, 3', '2, 5, 7, 3')
    )
    architecture = network(vocab_size=len(vocabulary()))
    export(SavedModel(architecture, random_parameters(architecture), vocabulary()), tmp_path / 'deploy')
    (tmp_path / 'predict.c').write_text(code)
    package = Path(mx.__file__).parent
    subprocess.run(
        [
            'gcc',
            '-Wall',
            '-Werror',
            'predict.c',
            '-o',
            'predict',
            f'-I{package / "include"}',
            f'-L{package}',
            '-lmxnet',
            f'-Wl,-rpath,{package}',
        ],
        cwd=str(tmp_path),
        check=True,
        timeout=120,
    )
    printed = subprocess.run(
        ['./predict'], cwd=str(tmp_path), check=True, timeout=120, stdout=subprocess.PIPE
    ).stdout
    block = mx.gluon.SymbolBlock.imports(
        str(tmp_path / 'deploy' / 'model-symbol.json'),
        ['input_ids', 'token_types', 'valid_length'],
        str(tmp_path / 'deploy' / 'model-0000.params'),
    )
    wanted = (
        block(mx.nd.array([[2, 5, 7, 3]]), mx.nd.zeros((1, 4)), mx.nd.array([4]))[0].asnumpy().reshape(-1)
    )
    found = np.array([float(line) for line in printed.split()])
    np.testing.assert_allclose(found, wanted, atol=1e-5)  # float32; the C API fuses operators


def test_the_targets_of_make_are_the_ones_named():
    makefile = (ROOT / 'Makefile').read_text(encoding='utf-8')
    for target in re.findall(r'`?make (?:PYTHON=\S+ )?([a-z]+)', README):
        assert re.search(rf'^{target}:', makefile, flags=re.MULTILINE), target
