"""Promises of setup.py, what the machine is told that it lacks, and that an installation is made once."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from helpers.commands import module_at
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
TREE = ['Makefile', 'constraints.txt', 'setup.py', 'gluon_optbert/runs/programs.py']
TREE += [f'tools/setup/{name}' for name in ('choose_python.sh', 'install.py', 'horovod.cmake')]
BASE_PYTHON = Path(sys.base_prefix, 'bin', 'python{}.{}'.format(*sys.version_info))


def canonical(name):
    return re.sub('[-_.]+', '-', name).lower()


def constraints():
    lines = (ROOT / 'constraints.txt').read_text().splitlines()
    return dict(line.split('==') for line in lines if line and not line.startswith('#'))


@pytest.fixture(scope='module')
def declared():
    """Arguments of setup.py to setuptools, without running a command."""
    from setuptools import distutils

    before = os.getcwd()
    os.chdir(ROOT)
    try:
        return distutils.core.run_setup('setup.py', stop_after='init')
    finally:
        os.chdir(before)


@pytest.fixture
def tree(tmp_path):
    """A copy of the files that an installation needs."""
    for name in TREE:
        (tmp_path / 'tree' / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / 'tree' / name)
    return tmp_path / 'tree'


@pytest.fixture
def commands(tmp_path):
    """A PATH of one directory, in which there is a shell and no Python, compiler or make."""
    directory = tmp_path / 'bin'
    directory.mkdir()
    for name in ('sh', 'dirname'):
        (directory / name).symlink_to(shutil.which(name))
    return directory


def add_python(directory, name, version):
    """An interpreter that takes itself for `version`."""
    told = (
        'import platform, sys; platform.python_version = lambda: "{}"; '
        'sys.version_info = {}; exec(sys.argv[1])'
    )
    numbers = tuple(map(int, version.split('.')))
    script = f'#!/bin/sh\nexec {BASE_PYTHON} -c \'{told.format(version, numbers)}\' "$2"\n'
    (directory / name).write_text(script)
    (directory / name).chmod(0o755)


def run(*words, path, **variables):
    return subprocess.run(
        [str(word) for word in words],
        env={'PATH': str(path), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_requirements_are_pins_or_ranges_that_the_pins_fit_and_mxnet_comes_from_one_extra(declared):
    pins = constraints()
    loose = {'serve', 'openvino'}
    for extra in declared.extras_require.keys() - loose:
        for line in declared.extras_require[extra]:
            name, version = line.split('==')
            assert pins[name] == version, extra
    ranges = [*declared.install_requires, *(line for e in loose for line in declared.extras_require[e])]
    versions = {canonical(name): version for name, version in pins.items()}
    for line in ranges:
        name, least = line.split('>=')
        assert canonical(name) == 'openvino' or SpecifierSet(f'>={least}').contains(versions[canonical(name)])
    brought = {
        extra: [line for line in lines if line.startswith('mxnet')]
        for extra, lines in {'': declared.install_requires, **declared.extras_require}.items()
    }
    assert {extra: lines for extra, lines in brought.items() if lines} == {
        'cpu': ['mxnet==1.9.1'],
        'cu112': ['mxnet-cu112==1.9.1'],
    }


@pytest.mark.skipif(
    not (ROOT / '.venv' / 'installed.json').exists(), reason='not the environment of make install'
)
def test_what_is_installed_has_the_pinned_versions_which_admit_every_promised_python(declared):
    pins = {canonical(name): version for name, version in constraints().items()}
    promised = SpecifierSet(declared.python_requires)
    assert [promised.contains(f'3.{minor}.0') for minor in (9, 10, 14)] == [False, True, True]
    for distribution in importlib.metadata.distributions(path=[sysconfig.get_path('purelib')]):
        name = canonical(distribution.metadata['Name'])
        if name in pins:
            assert distribution.version == pins[name], name
            admits = SpecifierSet(distribution.metadata.get('Requires-Python') or '')
            assert admits.contains('3.10.0') and admits.contains('3.11.0'), name


@pytest.mark.parametrize('version, chosen', [('3.12.1', ''), ('3.9.18', 'python3')])
def test_unsuitable_python_is_one_line(tree, commands, version, chosen):
    add_python(commands, 'python3', version)
    done = run('sh', tree / 'tools/setup/choose_python.sh', chosen, path=commands)
    assert (done.returncode, done.stdout) == (2, '')
    assert re.fullmatch(rf'error: python3 is CPython {re.escape(version)}, but .*\n', done.stderr)


def test_suitable_python_stands_in_for_an_unsuitable_python3_and_its_path_is_printed(tree, commands):
    assert run('sh', tree / 'tools/setup/choose_python.sh', '', path=commands).returncode == 2  # none at all
    add_python(commands, 'python3', '3.12.1')
    add_python(commands, 'python3.10', '3.10.13')
    done = run('sh', tree / 'tools/setup/choose_python.sh', '', path=commands)
    assert done.returncode == 0 and done.stderr.endswith('using python3.10 3.10.13\n')
    done = run('sh', tree / 'tools/setup/choose_python.sh', sys.executable, path=commands)
    assert (done.stdout, done.stderr) == (f'{BASE_PYTHON}\n', '')


def test_each_missing_thing_has_a_line(tree, commands):
    spaced = tree.rename(tree.parent / 'my tree')
    done = run(BASE_PYTHON, spaced / 'tools/setup/install.py', path=commands, CC='nothing')
    assert done.returncode == 2 and not (spaced / '.venv').exists()
    wanted = ['without a space', 'there is no make', 'C++17 compiler', 'C compiler nothing']
    said = done.stderr.splitlines()
    assert len(said) == 4 and all(words in line for words, line in zip(wanted, said))


class Pretended:
    """Stands in for running commands: an interpreter appears, nothing is fetched; a call with the word
    `fatal` fails.
    """

    def __init__(self, script, fatal=None):
        self.script, self.fatal, self.calls = script, fatal, []

    def __call__(self, *words, cwd=None, **variables):
        self.calls.append(' '.join(map(str, words)))
        if self.fatal in words:
            raise self.script.StepFailed('no network')
        if 'venv' in words:
            self.script.PYTHON.parent.mkdir(parents=True)
            self.script.PYTHON.symlink_to(BASE_PYTHON)


@pytest.fixture
def script(tree, monkeypatch):
    """The install script of the tree, which runs nothing."""
    script = module_at(tree / 'tools/setup/install.py')
    for name in ('MPI', 'GPU'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(script, 'missing_here', lambda **_: [])
    monkeypatch.setattr(script, 'call', Pretended(script))
    return script


def steps_of(script, capsys):
    """The steps that an installation takes, by their first words."""
    capsys.readouterr()
    status = script.main([])
    said = re.findall(r'^install \d/\d: (\w+)', capsys.readouterr().out, flags=re.MULTILINE)
    return status, said


ALL = ['making', 'fetching', 'installing', 'building', 'trying']


def test_installation_is_made_once_and_anew_where_something_has_changed(script, tree, capsys, monkeypatch):
    assert steps_of(script, capsys) == (0, ALL)
    assert steps_of(script, capsys) == (0, [])
    with open(tree / 'constraints.txt', 'a') as file:
        file.write('# newer\n')
    assert steps_of(script, capsys) == (0, ['installing', 'trying'])
    monkeypatch.setenv('MPI', '1')
    assert steps_of(script, capsys) == (0, ['building', 'trying'])
    monkeypatch.delenv('MPI')
    assert steps_of(script, capsys) == (0, [])  # MPI stays
    script.PYTHON.unlink()
    assert steps_of(script, capsys) == (0, ALL)


@pytest.mark.parametrize(
    'fatal, left',
    [
        ('venv', ALL),
        ('-e', ['installing', 'trying']),  # Horovod was built beside it
        ('wheel', ['building', 'trying']),
    ],
)
def test_installation_that_failed_goes_on_at_the_step(script, capsys, fatal, left):
    script.call.fatal = fatal
    assert script.main([]) == 1
    assert 'no network\nerror: the installation failed' in capsys.readouterr().err
    script.call.fatal = None
    assert steps_of(script, capsys) == (0, left)


def test_gpus_have_an_environment_of_their_own(script, tree, capsys, monkeypatch):
    assert steps_of(script, capsys) == (0, ALL)
    monkeypatch.setenv('GPU', '1')
    monkeypatch.setenv('CUDA_HOME', str(tree / 'cuda'))
    (tree / 'cuda' / 'include').mkdir(parents=True)
    (tree / 'cuda' / 'include' / 'cuda.h').write_text('#define CUDA_VERSION 11080\n')
    assert steps_of(script, capsys) == (0, ALL)
    assert any('[cu112,' in call for call in script.call.calls)
    build = script.horovod_build(mpi=False, gpu=True)
    assert build['HOROVOD_GPU_OPERATIONS'] == 'NCCL' and build['HOROVOD_CUDA_HOME'] == str(tree / 'cuda')


def test_horovod_is_built_after_all_that_mxnet_imports_is_there(script):
    program = 'import mxnet, sys; print(*{name.partition(".")[0] for name in sys.modules})'
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    owners = importlib.metadata.packages_distributions()
    imported = {canonical(owner) for name in done.stdout.split() for owner in owners.get(name, ())}
    there, left = set(), [line.split('==')[0] for line in script.base(gpu=False)]
    while left:
        name = canonical(left.pop())
        if name not in there:
            there.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or ())
            left += [one.name for one in needs if one.marker is None or one.marker.evaluate({'extra': ''})]
    imported -= {'coverage'}  # which every process loads while it measures
    pinned = imported & {*map(canonical, constraints())}  # the rest is in setuptools, and this package
    assert 'mxnet' in pinned and pinned <= there
