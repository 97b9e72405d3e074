"""What setup.py promises, what the machine is told it lacks, and that an installation is made once and
mended.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
TREE = ['Makefile', 'constraints.txt', 'setup.py', 'tools/setup/choose_python.sh', 'tools/setup/install.py']
PYTHONS = ['3.8.0', '3.9.0', '3.10.0', '3.11.0']
BASE_PYTHON = Path(sys.base_prefix, 'bin', 'python{}.{}'.format(*sys.version_info))


def canonical(name):
    return re.sub('[-_.]+', '-', name).lower()


def constraints():
    lines = [
        line
        for line in (ROOT / 'constraints.txt').read_text().splitlines()
        if line and not line.startswith('#')
    ]
    return [tuple(line.split('==')) for line in lines]


@pytest.fixture(scope='module')
def declared():
    """What setup.py hands to setuptools, without running a command."""
    from setuptools import distutils

    before = os.getcwd()
    os.chdir(ROOT)
    try:
        distribution = distutils.core.run_setup('setup.py', stop_after='init')
    finally:
        os.chdir(before)
    return distribution


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
    (directory / name).write_text(
        f'#!/bin/sh\nexec {BASE_PYTHON} -c \'{told.format(version, numbers)}\' "$2"\n'
    )
    (directory / name).chmod(0o755)


def run(*command, path, **variables):
    return subprocess.run(
        [str(part) for part in command],
        env={'PATH': str(path), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def everything_in(directory):
    return {
        path: path.lstat().st_mtime_ns for path in directory.rglob('*') if '__pycache__' not in path.parts
    }


# What is declared


def test_every_constraint_is_exact_and_given_once():
    assert all(len(line) == 2 and line[1] for line in constraints())
    names = [canonical(name) for name, _ in constraints()]
    assert len(names) == len(set(names))


def test_every_requirement_of_training_is_a_constraint(declared):
    pinned = [
        line
        for extra, lines in declared.extras_require.items()
        if extra not in ('serve', 'openvino')
        for line in lines
    ]
    assert {tuple(line.split('==')) for line in pinned} <= set(constraints())


def test_whoever_predicts_is_held_to_no_version(declared):
    """Plain requirements and those of predicting are ranges without an end, which the constraints fit."""
    versions = {canonical(name): version for name, version in constraints()}
    ranges = [*declared.install_requires, *declared.extras_require['serve']]
    for line in [*ranges, *declared.extras_require['openvino']]:
        name, least = line.split('>=')
        assert ',' not in least
        assert canonical(name) == 'openvino' or SpecifierSet(f'>={least}').contains(versions[canonical(name)])
    plain = {canonical(line.split('>=')[0]) for line in declared.install_requires}
    assert plain == {'numpy', 'psutil', 'pydantic', 'pyyaml', 'tokenizers', 'tqdm'}


def test_mxnet_comes_from_one_extra_only(declared):
    def brings_mxnet(lines):
        return [line for line in lines if line.split('==')[0] in ('mxnet', 'mxnet-cu112')]

    assert brings_mxnet(declared.install_requires) == []
    brought = {extra: brings_mxnet(lines) for extra, lines in declared.extras_require.items()}
    assert {extra: lines for extra, lines in brought.items() if lines} == {
        'cpu': ['mxnet==1.9.1'],
        'cu112': ['mxnet-cu112==1.9.1'],
    }


def test_every_installed_package_has_its_pinned_version():
    installed = {canonical(d.metadata['Name']): d.version for d in importlib.metadata.distributions()}
    pinned = {canonical(name): version for name, version in constraints()}
    assert {
        name: version for name, version in installed.items() if pinned.get(name, version) != version
    } == {}


def test_every_installed_pin_admits_every_promised_python(declared):
    promised = SpecifierSet(declared.python_requires)
    assert not promised.contains('3.7.17')
    assert all(promised.contains(version) for version in [*PYTHONS, '3.12.0', '3.13.0'])
    pinned = {canonical(name) for name, _ in constraints()}
    for distribution in importlib.metadata.distributions():
        if canonical(distribution.metadata['Name']) in pinned:
            admits = SpecifierSet(distribution.metadata.get('Requires-Python') or '')
            assert all(admits.contains(version) for version in PYTHONS), distribution.metadata['Name']


# What the machine is told


@pytest.mark.parametrize('version', ['3.12.1', '3.7.16', '2.7.18'])
@pytest.mark.parametrize('chosen', ['', 'python3'])
def test_unsuitable_python_is_one_line(tree, commands, version, chosen):
    add_python(commands, 'python3', version)
    before = everything_in(tree)
    done = run('sh', tree / 'tools/setup/choose_python.sh', chosen, path=commands)
    assert (done.returncode, done.stdout) == (2, '')
    says = rf'error: python3 is CPython {re.escape(version)}, but .* 3\.8 to 3\.11 .*PYTHON=python3\.11\n'
    assert re.fullmatch(says, done.stderr)
    assert everything_in(tree) == before


def test_no_python_is_one_line(tree, commands):
    done = run('sh', tree / 'tools/setup/choose_python.sh', '', path=commands)
    assert (done.returncode, done.stdout) == (2, '')
    assert re.fullmatch(r'error: there is no python3 on the PATH, but .*\n', done.stderr)


def test_newest_suitable_python_stands_in_for_an_unsuitable_python3(tree, commands):
    add_python(commands, 'python3', '3.12.1')
    add_python(commands, 'python3.9', '3.9.18')
    add_python(commands, 'python3.10', '3.10.13')
    done = run('sh', tree / 'tools/setup/choose_python.sh', '', path=commands)
    assert done.returncode == 0 and done.stderr.endswith('using python3.10 3.10.13\n')
    assert run('sh', tree / 'tools/setup/choose_python.sh', 'python3', path=commands).returncode == 2


def test_path_printed_is_the_interpreter_below_an_environment(tree, commands):
    done = run('sh', tree / 'tools/setup/choose_python.sh', sys.executable, path=commands)
    assert (done.stdout, done.stderr) == (f'{BASE_PYTHON}\n', '')


def test_make_stops_where_there_is_no_suitable_python(tree, commands):
    add_python(commands, 'python3', '3.12.1')
    done = run(shutil.which('make'), '-C', tree, 'test', path=commands)
    assert done.returncode == 2 and done.stderr.count('error:') == 1
    assert not (tree / '.venv').exists()


@pytest.mark.parametrize(
    'cannot, says',
    [
        ('<string_view>', r'no working C\+\+17 compiler \(compiler\): install g\+\+ 7 or newer, or set CXX'),
        ('<stdlib.h>', r'the C compiler compiler does not work: install gcc, or set CC'),
        (
            '<Python.h>',
            r'.* comes without its C headers: install python3\.\d+-dev, '
            r'or run make PYTHON=\.\.\. with another',
        ),
    ],
)
def test_what_the_compiler_cannot_do_is_one_line(tree, commands, cannot, says):
    (commands / 'make').symlink_to(shutil.which('make'))
    (commands / 'compiler').write_text(
        f'#!/bin/sh\nread -r line\ncase $line in *"{cannot}"*) exit 1 ;; esac\n'
    )
    (commands / 'compiler').chmod(0o755)
    before = everything_in(tree)
    done = run(BASE_PYTHON, tree / 'tools/setup/install.py', path=commands, CC='compiler', CXX='compiler')
    assert (done.returncode, done.stdout) == (2, '')
    assert re.fullmatch(f'error: {says}\n', done.stderr)
    assert everything_in(tree) == before


def test_python_without_venv_is_one_line(tree, commands, tmp_path):
    (tmp_path / 'ensurepip.py').write_text('raise ImportError')
    (commands / 'make').symlink_to(shutil.which('make'))
    done = run(
        BASE_PYTHON,
        tree / 'tools/setup/install.py',
        path='{}:{}'.format(commands, os.environ['PATH']),
        PYTHONPATH=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (2, '')
    assert re.fullmatch(
        r'error: .* has no venv module: install python3\.\d+-venv, or run make PYTHON=.*\n', done.stderr
    )


def test_each_missing_thing_has_a_line(tree, commands):
    spaced = tree.rename(tree.parent / 'my tree')
    done = run(BASE_PYTHON, spaced / 'tools/setup/install.py', path=commands, CC='nothing')
    assert done.returncode == 2
    assert [re.sub(' in /.*', '', line).split(',')[0] for line in done.stderr.splitlines()] == [
        'error: the build of Horovod cannot take the space',
        'error: there is no make',
        'error: no working C++17 compiler (c++',
        'error: the C compiler nothing does not work: install gcc',
    ]


def test_missing_headers_are_named_beside_a_missing_compiler(tree, commands):
    (commands / 'make').symlink_to(shutil.which('make'))
    (commands / 'compiler').write_text('#!/bin/sh\nread -r line\n[ "$line" = "#include <stdlib.h>" ]\n')
    (commands / 'compiler').chmod(0o755)
    done = run(BASE_PYTHON, tree / 'tools/setup/install.py', path=commands, CC='compiler', CXX='compiler')
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert 'no working C++17 compiler' in first and 'comes without its C headers' in second


# What is installed once, and mended


def install_script(tree):
    spec = importlib.util.spec_from_file_location('install_under_test', tree / 'tools/setup/install.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add_distribution(script, name):
    """A package of one file, as pip leaves it; like pip, believe a dist-info directory that is there."""
    site = script.site_packages()
    if (site / (name + '.dist-info')).exists():
        return
    (site / (name + '.dist-info')).mkdir()
    (site / (name + '.py')).write_text('installed')
    (site / (name + '.dist-info') / 'RECORD').write_text(f'{name}.py,sha256=0,9\n{name}.dist-info/RECORD,,\n')


class Pretended:
    """Stands in for running commands: packages appear, none is fetched; call number `fatal` is cut short."""

    def __init__(self, script, fatal=None):
        self.script, self.fatal, self.calls = script, fatal, 0

    def __call__(self, command, cwd=None, **variables):
        self.calls += 1
        if self.calls == self.fatal:
            raise KeyboardInterrupt
        if '-m' in command and 'venv' in command:
            self.script.site_packages().mkdir(parents=True)
            self.script.PYTHON.parent.mkdir()
            self.script.PYTHON.symlink_to(BASE_PYTHON)
        elif 'install' in command:
            wanted = [word for word in command if word.startswith(('pip==', 'horovod', 'numpy'))] or ['numpy']
            for word in wanted:
                add_distribution(self.script, self.script.pin(word.split('==')[0]).replace('==', '-'))
        elif 'uninstall' in command:
            shutil.rmtree(self.script.site_packages() / 'horovod-0.28.1.dist-info', ignore_errors=True)
        return '[X] MXNet [X] Gloo'


@pytest.fixture
def installed(tree, monkeypatch):
    """The install script of a tree in which everything is in place."""
    script = install_script(tree)
    monkeypatch.setattr(script, 'missing_here', list)
    monkeypatch.setattr(script, 'call', Pretended(script))
    assert script.main([]) == 0
    return script


def names(steps):
    return [step.name for step in steps]


def test_second_call_does_nothing(installed, tree):
    before = everything_in(tree)
    calls = installed.call.calls
    assert installed.main([]) == 0
    assert installed.call.calls == calls and everything_in(tree) == before
    done = run(BASE_PYTHON, tree / 'tools/setup/install.py', '--dry-run', path=os.environ['PATH'])
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


ALL = ['environment', 'packages', 'horovod', 'check']


@pytest.mark.parametrize(
    'damage, left',
    [
        (lambda s: shutil.rmtree(s.VENV), ALL),
        (lambda s: s.PYTHON.unlink(), ALL),
        (lambda s: s.RECORD.write_text('{"identity"'), ALL),
        (lambda s: s.RECORD.unlink(), ALL),
        (lambda s: (s.site_packages() / 'pip-25.0.1.dist-info/RECORD').unlink(), ALL),
        (lambda s: shutil.rmtree(s.site_packages()), ALL),
        (lambda s: (s.site_packages() / 'numpy-1.23.5.py').unlink(), ['packages', 'check']),
        (lambda s: (s.site_packages() / 'numpy-1.23.5.py').write_text(''), ['packages', 'check']),
        (lambda s: shutil.rmtree(s.site_packages() / 'numpy-1.23.5.dist-info'), ['packages', 'check']),
        (lambda s: (s.site_packages() / 'horovod-0.28.1.dist-info/RECORD').unlink(), ['horovod', 'check']),
        (lambda s: s.CONSTRAINTS.write_text(s.CONSTRAINTS.read_text() + '# newer\n'), ['packages', 'check']),
        (
            lambda s: s.CONSTRAINTS.write_text(
                s.CONSTRAINTS.read_text().replace('numpy==1.23.5', 'numpy==1.23.4')
            ),
            ['packages', 'horovod', 'check'],
        ),
    ],
)
def test_damage_is_seen_and_mended(installed, damage, left):
    damage(installed)
    assert names(installed.steps_left()) == left
    assert installed.main([]) == 0
    assert installed.steps_left() == []


def test_mpi_is_built_when_asked_for_and_then_kept(installed, monkeypatch):
    assert 'HOROVOD_WITHOUT_MPI' in installed.horovod_build()
    monkeypatch.setenv('MPI', '1')
    assert (
        names(installed.steps_left()) == ['horovod', 'check']
        and 'HOROVOD_WITH_MPI' in installed.horovod_build()
    )
    assert installed.main([]) == 0
    monkeypatch.delenv('MPI')
    assert installed.steps_left() == [] and 'HOROVOD_WITH_MPI' in installed.horovod_build()
    installed.PYTHON.unlink()  # .venv is made anew
    assert installed.main([]) == 0 and 'HOROVOD_WITH_MPI' in installed.horovod_build()


def add_toolkit(place, version):
    """A CUDA toolkit as far as it is looked at."""
    (place / 'include').mkdir(parents=True)
    (place / 'include' / 'cuda.h').write_text(f'/* CUDA */\n#define CUDA_VERSION {version}\n')
    return place


def test_gpu_is_installed_when_asked_for_and_then_kept(installed, tmp_path, monkeypatch):
    monkeypatch.setenv('HOROVOD_CUDA_HOME', str(add_toolkit(tmp_path / 'cuda', 11080)))
    monkeypatch.setenv('GPU', '1')
    assert names(installed.steps_left()) == ['packages', 'horovod', 'check']
    assert installed.main([]) == 0
    monkeypatch.delenv('GPU')
    assert installed.steps_left() == [] and installed.with_gpu()
    installed.PYTHON.unlink()  # .venv is made anew
    assert installed.main([]) == 0 and installed.with_gpu()


@pytest.mark.parametrize('version, nccl', [(11020, True), (11080, True), (12040, False), (13000, False)])
def test_gradients_go_by_nccl_where_the_toolkit_is_that_of_mxnet(tree, tmp_path, monkeypatch, version, nccl):
    script = install_script(tree)
    monkeypatch.setenv('HOROVOD_CUDA_HOME', str(add_toolkit(tmp_path / 'cuda', version)))
    assert 'HOROVOD_CUDA_HOME' not in script.horovod_build()  # MXNet is the one for CPUs
    monkeypatch.setenv('GPU', '1')
    for wheel in ('cublas', 'cuda_runtime', 'nccl'):
        (script.site_packages() / 'nvidia' / wheel / 'include').mkdir(parents=True)
    build = script.horovod_build()
    assert [Path(path).parent.name for path in build['CPATH'].split(':')] == ['cublas', 'nccl']
    assert build['HOROVOD_CUDA_HOME'] == str(tmp_path / 'cuda') and build['HOROVOD_WITH_GLOO'] == '1'
    assert (build.get('HOROVOD_GPU_OPERATIONS') == 'NCCL') == nccl == ('NCCL' in script.means())


def test_gpu_without_a_toolkit_leaves_horovod_out(installed, monkeypatch):
    monkeypatch.setattr(installed, 'cuda_toolkit', lambda: None)
    monkeypatch.setenv('GPU', '1')
    assert names(installed.steps_left()) == ['packages', 'check']


def test_mxnet_for_gpus_replaces_the_one_for_cpus(installed, monkeypatch, tmp_path):
    add_distribution(installed, 'mxnet-1.9.1')
    commands = []
    monkeypatch.setattr(installed, 'call', lambda command, **more: commands.append(command) or '')
    for variable, removed, extra in (('1', 'mxnet', 'cu112'), ('0', None, 'cpu')):
        monkeypatch.setenv('GPU', variable)
        commands.clear()
        installed.install_packages()
        words = [word for command in commands for word in command]
        assert f'{installed.ROOT}[{extra},scripts,test]' in words
        assert ('uninstall' in words) == (removed is not None) and (removed is None or removed in words)
        installed.note(gpu=False)


def test_gpu_without_its_driver_ends_before_the_build(installed, monkeypatch, capfd):
    class NoDriver(Pretended):
        def __call__(self, command, cwd=None, **variables):
            if 'gluon_optbert.runs.cuda_libraries' in command:
                raise self.script.StepFailed('libmxnet.so still lacks libcuda.so.1')
            return super().__call__(command, cwd, **variables)

    monkeypatch.setenv('GPU', '1')
    monkeypatch.setattr(installed, 'call', NoDriver(installed))
    assert installed.main([]) == 1
    out, err = capfd.readouterr()
    assert 'HOROVOD_WITH_GLOO=1' in out and 'still lacks libcuda.so.1\nerror: the installation failed' in err
    assert 'anew' not in out and names(installed.steps_left())[-1] == 'check'


def test_mpi_without_its_compiler_is_one_line(tree, monkeypatch):
    script = install_script(tree)
    monkeypatch.setenv('MPI', '1')
    monkeypatch.setattr(script.shutil, 'which', lambda name: None if name == 'mpicc' else '/bin/' + name)
    assert [line for line in script.missing_here() if 'MPI' in line] == [
        'MPI=1 wants an MPI with its compiler mpicc: install libopenmpi-dev, or run make clean and leave '
        'MPI=1 away'
    ]


def test_environment_copied_elsewhere_is_made_anew(installed, tree):
    shutil.copytree(tree, tree.parent / 'copy', symlinks=True)
    assert names(install_script(tree.parent / 'copy').steps_left()) == ALL


def test_installation_stopped_at_any_command_is_completed_by_the_next_call(installed, tree, monkeypatch):
    for fatal in range(1, installed.call.calls + 1):
        shutil.rmtree(installed.VENV)
        monkeypatch.setattr(installed, 'call', Pretended(installed, fatal))
        assert installed.main([]) == 1
        assert installed.steps_left() != []
        monkeypatch.setattr(installed, 'call', Pretended(installed))
        assert installed.main([]) == 0
        assert installed.steps_left() == []


def test_environment_that_does_not_work_is_made_anew_once(installed, monkeypatch, capfd):
    class Unfit(Pretended):
        def __call__(self, command, cwd=None, **variables):
            if '-c' in command:
                raise self.script.StepFailed('ImportError')
            return super().__call__(command, cwd, **variables)

    installed.note(checked='')
    monkeypatch.setattr(installed, 'call', Unfit(installed))
    assert installed.main([]) == 1
    out, err = capfd.readouterr()
    assert out.count('making .venv anew') == 1 and 'ImportError\nerror: the installation failed' in err


def test_failed_download_leaves_what_was_there(installed, monkeypatch):
    def offline(command, cwd=None, **variables):
        raise installed.StepFailed('no connection')

    installed.CONSTRAINTS.write_text(installed.CONSTRAINTS.read_text() + '# newer\n')
    before = everything_in(installed.VENV)
    monkeypatch.setattr(installed, 'call', offline)
    assert installed.main([]) == 1
    assert everything_in(installed.VENV) == before


def test_second_installation_waits_for_the_first(tree):
    with open(tree / 'constraints.txt') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [str(BASE_PYTHON), str(tree / 'tools/setup/install.py'), '--dry-run'],
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )
        assert 'waiting' in second.stdout.readline()
        assert second.poll() is None
    assert second.communicate(timeout=60)[0].split() == ALL
