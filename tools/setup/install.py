"""Make .venv and install the pinned stack into it, once.

    python3 tools/setup/install.py [--dry-run]

Each step that is done is written down in .venv/installed.json with a checksum of all that it depends on, so
that a later call does what is left, or what has changed since. Standard library only. Exit status 2 if the
machine lacks something, 1 if a step fails.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / '.venv'
PYTHON = VENV / 'bin' / 'python'
RECORD = VENV / 'installed.json'
LOG = VENV / 'install.log'
LOG_OF_HOROVOD = VENV / 'horovod.log'  # of its build, beside which other packages are installed
WHEELS = VENV / 'wheels'
CONSTRAINTS = ROOT / 'constraints.txt'
SITE_PACKAGES = VENV / 'lib' / 'python{}.{}'.format(*sys.version_info) / 'site-packages'

BUILD_TOOLS = ['setuptools', 'wheel', 'Cython', 'cmake']
HOROVOD_NEEDS = ['cloudpickle', 'packaging', 'psutil', 'PyYAML']
# MXNet, which Horovod's build imports, imports these where they are, and fails where they are half there.
MXNET_IMPORTS = ['onnx', 'scikit-learn', 'scipy']
HOROVOD_FLAGS = ROOT / 'tools' / 'setup' / 'horovod.cmake'
HOROVOD_BUILD = {
    'CMAKE_TOOLCHAIN_FILE': str(HOROVOD_FLAGS),
    'HOROVOD_WITH_MXNET': '1',
    'HOROVOD_WITH_GLOO': '1',
    'HOROVOD_WITHOUT_PYTORCH': '1',
    'HOROVOD_WITHOUT_TENSORFLOW': '1',
}
# Variables that would make pip and make work elsewhere.
DROPPED = ('PYTHONPATH', 'PYTHONHOME', 'PIP_TARGET', 'PIP_PREFIX', 'PIP_CONSTRAINT', 'MAKELEVEL', 'MFLAGS')
DROPPED += ('PYTHONDONTWRITEBYTECODE',)  # with it every command would compile the libraries anew, for seconds
TRIAL = """
import blingfire, gluonnlp, google_crc32c, hypothesis, matplotlib, mxnet, onnxruntime, optuna, uvicorn
import gluon_optbert
mxnet.nd.ones(2).asnumpy()
gluonnlp.data.BERTBasicTokenizer()('two words')
"""
TRIAL_OF_HOROVOD = """
import horovod.mxnet as hvd
assert hvd.gloo_built(), 'Horovod lacks Gloo'
"""


class StepFailed(Exception):
    """A command came back with an error; its output is in the log."""


def missing_here(*, mpi: bool) -> list[str]:
    """Needs of the installation that this machine lacks: one line each, with the way out."""
    version = 'python{}.{}'.format(*sys.version_info)
    if platform.python_implementation() != 'CPython' or version not in ('python3.10', 'python3.11'):
        return [
            f'{platform.python_implementation()} {platform.python_version()} cannot run MXNet 1.9.1: install '
            'CPython 3.10 or 3.11 and run make PYTHON=python3.11'
        ]
    missing = []
    if ' ' in str(ROOT):
        missing.append(f'Horovod cannot be built below {ROOT}: move the directory to a path without a space')
    try:
        import ensurepip  # noqa: F401  Debian ships Python without it
        import venv  # noqa: F401
    except ImportError:
        missing.append(f'{sys.executable} has no venv module: install {version}-venv')
    if shutil.which('make') is None:
        missing.append('there is no make, which the build of Horovod calls: install make')
    if mpi and shutil.which('mpicc') is None:
        missing.append('MPI=1 wants an MPI with its compiler mpicc: install libopenmpi-dev')
    cc = shlex.split(os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc')
    cxx = shlex.split(os.environ.get('CXX') or 'c++')
    if not compiles([*cxx, '-std=c++17', '-x', 'c++'], '#include <string_view>\n'):
        missing.append(f'{cxx[0]} is no working C++17 compiler: install g++ 7 or newer, or set CXX')
    if not compiles([*cc, '-x', 'c'], '#include <stdlib.h>\n'):
        missing.append(f'the C compiler {cc[0]} does not work: install gcc, or set CC')
    elif not compiles([*cc, '-I', sysconfig.get_paths()['include'], '-x', 'c'], '#include <Python.h>\n'):
        missing.append(f'{sys.executable} comes without its C headers: install {version}-dev')
    return missing


def compiles(compiler: list[str], source: str) -> bool:
    """Whether a compiler makes an object file of `source`."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                [*compiler, '-c', '-', '-o', 'probe.o'],
                input=source.encode(),
                cwd=directory,
                capture_output=True,
            )
        except OSError:
            return False
    return done.returncode == 0


def recorded() -> dict:
    """The checksums of finished steps, and the choices of MPI and GPU; nothing of another place or Python."""
    try:
        record = json.loads(RECORD.read_text())
        subprocess.run([PYTHON, '-c', ''], check=True, stderr=subprocess.DEVNULL)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    return record if record.get('identity') == identity() else {}


def identity() -> list[str]:
    """Facts that an environment is bound to."""
    return [str(ROOT), platform.python_version(), os.path.realpath(sys.base_prefix)]


def checksum(*values: object) -> str:
    """A checksum of what a step depends on; files count by their content."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value.read_bytes() if isinstance(value, Path) else json.dumps(value).encode())
    return digest.hexdigest()


def pin(name: str) -> str:
    """The line of constraints.txt for a distribution."""
    return next(line for line in CONSTRAINTS.read_text().splitlines() if line.split('==')[0] == name)


def cuda_toolkit() -> Path | None:
    """The CUDA toolkit, by HOROVOD_CUDA_HOME, CUDA_HOME, nvcc on the PATH, or where it usually is."""
    nvcc = shutil.which('nvcc')
    places = [os.environ.get('HOROVOD_CUDA_HOME'), os.environ.get('CUDA_HOME')]
    places += [str(Path(nvcc).resolve().parents[1]) if nvcc else None, '/usr/local/cuda']
    return next((Path(place) for place in places if place and Path(place, 'include/cuda.h').is_file()), None)


def horovod_build(*, mpi: bool, gpu: bool) -> dict[str, str]:
    """The variables that Horovod's build reads."""
    build = {**HOROVOD_BUILD, 'HOROVOD_WITH_MPI' if mpi else 'HOROVOD_WITHOUT_MPI': '1'}
    toolkit = cuda_toolkit() if gpu else None
    if toolkit:
        build['HOROVOD_CUDA_HOME'] = str(toolkit)
        header = (toolkit / 'include' / 'cuda.h').read_text(errors='replace')
        if '#define CUDA_VERSION 11' in header:  # that of MXNet and of NVIDIA's wheels, NCCL among them
            build['HOROVOD_GPU_OPERATIONS'] = 'NCCL'
            build['HOROVOD_NCCL_LINK'] = 'SHARED'
            build['HOROVOD_NCCL_INCLUDE'] = str(SITE_PACKAGES / 'nvidia' / 'nccl' / 'include')
            build['HOROVOD_NCCL_LIB'] = str(SITE_PACKAGES / 'mxnet')
        wheels = sorted((SITE_PACKAGES / 'nvidia').glob('*/include'))
        headers = [str(path) for path in wheels if path.parent.name != 'cuda_runtime']  # the toolkit's own
        build['CPATH'] = os.pathsep.join(headers)  # MXNet's headers include those of cuBLAS and others
    return build


def make_environment() -> None:
    """An empty .venv with the pinned pip."""
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    call(sys.executable, '-m', 'venv', VENV)
    pip('install', pin('pip'))


def base(*, gpu: bool) -> list[str]:
    """The pins of what Horovod is compiled with and against."""
    mxnet = 'mxnet-cu112' if gpu else 'mxnet'
    names = [*BUILD_TOOLS, *HOROVOD_NEEDS, *MXNET_IMPORTS, 'numpy', mxnet]
    return [pin(name) for name in names]


def install_base(*, gpu: bool) -> None:
    """Install what the builds of Horovod and GluonNLP need: MXNet, NumPy and tools."""
    pip('install', *base(gpu=gpu))


def install_packages(*, gpu: bool) -> None:
    """Everything but Horovod in one call, so that no package can move another's version."""
    extra = 'cu112' if gpu else 'cpu'
    pip('install', '--no-build-isolation', '-e', f'{ROOT}[{extra},scripts,test]')
    if gpu:  # MXNet cannot be imported before it finds NVIDIA's libraries
        call(PYTHON, '-m', 'gluon_optbert.runs.cuda_libraries')


def install_horovod(build: dict[str, str]) -> None:
    """Compile it against the MXNet just installed. A cached wheel may have been built without MXNet."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    words = ['--no-cache-dir', '--no-deps', '--no-build-isolation', '--no-binary', 'horovod']
    pip('wheel', *words, '--wheel-dir', str(WHEELS), pin('horovod'), log=LOG_OF_HOROVOD, **build)
    wheels = [str(path) for path in WHEELS.glob('*.whl')]
    pip('install', '--no-deps', '--force-reinstall', *wheels, log=LOG_OF_HOROVOD)
    shutil.rmtree(WHEELS, ignore_errors=True)


def check(*, horovod: bool) -> None:
    """Import the large packages away from the sources; pip looks after the others."""
    call(PYTHON, '-c', TRIAL + (TRIAL_OF_HOROVOD if horovod else ''), cwd=Path(tempfile.gettempdir()))
    pip('check')


def pip(command: str, *words: str, log: Path = LOG, **variables: str) -> None:
    """Run pip of .venv, within the constraints. Python compiles what it imports, and pip nothing before."""
    options = ['--no-compile', '--constraint', CONSTRAINTS] if command == 'install' else []
    call(PYTHON, '-m', 'pip', command, *options, *words, log=log, **variables)


def call(*command: object, cwd: Path = ROOT, log: Path = LOG, **variables: str) -> None:
    """Run a command inside the environment, everything it prints appended to a log."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in DROPPED and not name.startswith('HOROVOD_')
    }
    environment.update(
        PATH=f'{VENV / "bin"}{os.pathsep}{os.environ.get("PATH", os.defpath)}',
        VIRTUAL_ENV=str(VENV),
        PIP_USER='0',
        PIP_NO_INPUT='1',
        PIP_DISABLE_PIP_VERSION_CHECK='1',
        PYTHONNOUSERSITE='1',
        MAKEFLAGS=f'-j{min(len(os.sched_getaffinity(0)), 8)}',
        **variables,
    )
    words = [str(word) for word in command]
    with open(log, 'a', encoding='utf-8') as file:
        print(f'\n$ {shlex.join(words)}', file=file, flush=True)
        done = subprocess.run(
            words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    if done.returncode:
        raise StepFailed('\n'.join(log.read_text(errors='replace').splitlines()[-15:]))


def together(steps: list, *, gpu: bool) -> list[list]:
    """Steps in the order in which they are done; Horovod is built while the other packages are installed,
    but for GPUs after them, for it then needs NVIDIA's.
    """
    groups: list[list] = []
    for step in steps:
        if step[0] == 'horovod' and groups and groups[-1][-1][0] == 'packages' and not gpu:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def install(*, dry_run: bool = False) -> int:
    """Do the steps that are left, or only name them; the exit status."""
    record = recorded()
    mpi, gpu = (os.environ.get(name) == '1' or bool(record.get(name)) for name in ('MPI', 'GPU'))
    if record.get('GPU', gpu) != gpu:
        record = {}  # the two MXNets are one directory
    packages = checksum(CONSTRAINTS, ROOT / 'setup.py', ROOT / 'gluon_optbert/runs/programs.py', gpu)
    pins = [pin('mxnet-cu112' if gpu else 'mxnet'), pin('numpy'), pin('horovod')]
    pins.append(HOROVOD_FLAGS.read_text())
    horovod = not gpu or cuda_toolkit() is not None

    def key_of_horovod() -> str:  # its build reads what the step before has installed
        return checksum(pins, horovod_build(mpi=mpi, gpu=gpu)) if horovod else 'none'

    steps = [
        (
            'environment',
            f'making .venv with Python {platform.python_version()}',
            make_environment,
            lambda: checksum(identity()),
        ),
        (
            'base',
            'fetching MXNet, and what builds Horovod',
            lambda: install_base(gpu=gpu),
            lambda: checksum(base(gpu=gpu)),
        ),
        (
            'packages',
            'installing the other packages (about a minute)',
            lambda: install_packages(gpu=gpu),
            lambda: packages,
        ),
        (
            'horovod',
            'building Horovod for MXNet (one to two minutes)',
            lambda: install_horovod(horovod_build(mpi=mpi, gpu=gpu)) if horovod else None,
            key_of_horovod,
        ),
        (
            'check',
            'trying it out',
            lambda: check(horovod=horovod),
            lambda: checksum(packages, key_of_horovod(), TRIAL),
        ),
    ]
    left = [step for step in steps if record.get(step[0]) != step[3]()]
    if dry_run:
        print(''.join(f'{name}\n' for name, *_ in left), end='')
    if dry_run or not left:
        return 0
    missing = missing_here(mpi=mpi)
    if missing:
        print(''.join(f'error: {line}\n' for line in missing), end='', file=sys.stderr)
        return 2
    began = time.monotonic()
    record.update(identity=identity(), MPI=mpi, GPU=gpu)
    number = 0
    for group in together(left, gpu=gpu):
        for _, says, *_ in group:
            number += 1
            print(f'install {number}/{len(left)}: {says}', flush=True)
        with ThreadPoolExecutor(len(group)) as pool:
            running = [(name, key, pool.submit(run)) for name, _, run, key in group]
        failures = [future.exception() for *_, future in running]
        for name, key, future in running:
            if future.exception() is None:
                record[name] = key()
        partial = RECORD.with_suffix('.part')
        partial.write_text(json.dumps(record, indent=1))
        os.replace(partial, RECORD)
        for failure in filter(None, failures):
            if not isinstance(failure, StepFailed):
                raise failure
            print(failure, file=sys.stderr)
        if any(failures):
            print(
                f'error: the installation failed (all of its output is in {VENV}/*.log): make install tries '
                'again, make clean starts from nothing',
                file=sys.stderr,
            )
            return 1
    print(f'.venv is complete after {time.monotonic() - began:.0f} s', flush=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, one at a time in this tree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='name the steps that are left, one per line, and stop'
    )
    dry_run = parser.parse_args(arguments).dry_run
    with open(CONSTRAINTS) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print('another installation is at work in this directory: waiting for it', flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return install(dry_run=dry_run)


if __name__ == '__main__':
    sys.exit(main())
