"""Make .venv and install the pinned stack into it, once; whatever is missing or damaged is mended, the rest
is left.

    python3 tools/setup/install.py [--dry-run]

What is installed is written down in .venv/installed.json, step by step, and believed only as long as every
file of every package is there with its size. Standard library only. Exit status 2 if the machine lacks
something, 1 if a step fails."""

import argparse
import contextlib
import csv
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
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / '.venv'
PYTHON = VENV / 'bin' / 'python'
RECORD = VENV / 'installed.json'
LOG = VENV / 'install.log'
CONSTRAINTS = ROOT / 'constraints.txt'
SOURCES = (CONSTRAINTS, ROOT / 'setup.py', Path(__file__).resolve())

BUILD_TOOLS = ['setuptools', 'wheel', 'Cython', 'cmake']
HOROVOD_SETUP = ['cloudpickle', 'packaging']  # its setup.py would otherwise fetch its own, unpinned
HOROVOD_BUILD = {
    'HOROVOD_WITH_MXNET': '1',
    'HOROVOD_WITH_GLOO': '1',
    'HOROVOD_WITHOUT_PYTORCH': '1',
    'HOROVOD_WITHOUT_TENSORFLOW': '1',
}

TRIAL = """
import importlib.util, sys
import blingfire, gluonnlp, google_crc32c, hypothesis, matplotlib, mxnet, onnx, optuna, psutil
import fastapi, httpx, markdown_it, onnxruntime, uvicorn
import pytest, sacremoses, safetensors, scipy, sklearn, tokenizers, tqdm, yaml
assert importlib.util.find_spec('gluon_optbert'), 'the package itself is not installed'
mxnet.nd.ones(2).asnumpy()
gluonnlp.data.BERTBasicTokenizer()('two words')
if sys.argv[2] == '1':
    import horovod.mxnet as hvd
    assert hvd.gloo_built(), 'Horovod lacks Gloo'
    assert hvd.mpi_built() == (sys.argv[1] == '1'), 'Horovod has MPI other than asked for'
if sys.argv[3] == '1':
    assert mxnet.runtime.Features().is_enabled('CUDA'), 'MXNet is not the one for GPUs'
    print(mxnet.context.num_gpus(), 'GPUs')
"""


class Step(NamedTuple):
    """One thing left to do."""

    name: str
    says: str
    run: Callable[[], None]


class StepFailed(Exception):
    """A command came back with an error; its output is in the log."""


class Unfit(Exception):
    """Everything was installed, and it does not work."""


# What the machine offers


def missing_here() -> List[str]:
    """What the installation needs and this machine lacks: one line each, with the way out."""
    version = 'python{}.{}'.format(*sys.version_info)
    if platform.python_implementation() != 'CPython' or not (3, 8) <= sys.version_info[:2] <= (3, 11):
        return [
            f'{platform.python_implementation()} {platform.python_version()} cannot run MXNet 1.9.1: '
            'install CPython 3.8 to 3.11 and run make PYTHON=python3.11'
        ]
    missing = []
    if ' ' in str(ROOT):
        missing.append(
            f'the build of Horovod cannot take the space in {ROOT}: move the directory to a path without one'
        )
    try:
        import ensurepip  # noqa: F401  Debian ships Python without it
        import venv  # noqa: F401
    except ImportError:
        missing.append(
            f'{sys.executable} has no venv module: install {version}-venv, or run make PYTHON=... with '
            f'another'
        )
    if shutil.which('make') is None:
        missing.append('there is no make, which the build of Horovod calls: install make')
    if with_mpi() and shutil.which('mpicc') is None:
        missing.append(
            'MPI=1 wants an MPI with its compiler mpicc: install libopenmpi-dev, or run make clean and leave '
            'MPI=1 away'
        )
    cc = shlex.split(os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc')
    cxx = shlex.split(os.environ['CXX']) if os.environ.get('CXX') else first_command('c++', 'g++', 'clang++')
    if not cxx or not compiles([*cxx, '-std=c++17'], '#include <string_view>\n'):
        missing.append(
            f'no working C++17 compiler ({" ".join(cxx) or "c++, g++ or clang++"}): install g++ 7 or newer, '
            'or set CXX'
        )
    works, headers = compiles(cc, '#include <stdlib.h>\n'), Path(sysconfig.get_paths()['include'])
    if not works:
        missing.append(f'the C compiler {cc[0]} does not work: install gcc, or set CC')
    if not (
        compiles([*cc, '-I', str(headers)], '#include <Python.h>\n')
        if works
        else (headers / 'Python.h').is_file()
    ):
        missing.append(
            f'{sys.executable} comes without its C headers: install {version}-dev, '
            'or run make PYTHON=... with another'
        )
    return missing


def first_command(*names: str) -> List[str]:
    return [name for name in names if shutil.which(name)][:1]


def compiles(compiler: Sequence[str], source: str) -> bool:
    """Whether `compiler` makes an object file of `source`, taken for C++ if the compiler is a C++ one."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                [*compiler, '-c', '-x', 'c++' if '-std=c++17' in compiler else 'c', '-', '-o', 'probe.o'],
                input=source.encode(),
                cwd=directory,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return False
    return done.returncode == 0


# What is installed already


def identity() -> Dict[str, str]:
    """What an environment is bound to: one that was copied elsewhere, or made with another Python, is of no
    use.
    """
    return {'root': str(ROOT), 'python': platform.python_version(), 'base': os.path.realpath(sys.base_prefix)}


def recorded() -> dict:
    """What installed.json says, or nothing if it is absent, unreadable, or about another place or Python."""
    try:
        record = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and record.get('identity') == identity() else {}


def note(**facts) -> None:
    """Add facts to installed.json; it is whole at every moment."""
    partial = RECORD.with_suffix('.part')
    partial.write_text(json.dumps({**recorded(), 'identity': identity(), **facts}, indent=1))
    os.replace(partial, RECORD)


def sources_key() -> str:
    """A checksum of everything that decides what is installed."""
    digest = hashlib.sha256(json.dumps([identity(), with_gpu()], sort_keys=True).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def with_mpi() -> bool:
    """Whether Horovod has MPI beside Gloo: if it is asked for, or was when .venv was made."""
    return os.environ.get('MPI') == '1' or bool(recorded().get('mpi'))


def with_gpu() -> bool:
    """Whether MXNet is the one for GPUs: if it is asked for, or was when .venv was made."""
    return os.environ.get('GPU') == '1' or bool(recorded().get('gpu'))


def cuda_toolkit() -> Optional[Path]:
    """The CUDA toolkit, by HOROVOD_CUDA_HOME, CUDA_HOME, nvcc on the PATH, or where it usually is."""
    nvcc = shutil.which('nvcc')
    places = [os.environ.get('HOROVOD_CUDA_HOME'), os.environ.get('CUDA_HOME')]
    places += [str(Path(nvcc).resolve().parents[1]) if nvcc else None, '/usr/local/cuda']
    return next((Path(place) for place in places if place and Path(place, 'include/cuda.h').is_file()), None)


def cuda_version(toolkit: Path) -> int:
    """The major version of a CUDA toolkit; 0 if its header does not say."""
    header = (toolkit / 'include' / 'cuda.h').read_text(errors='replace')
    versions = [
        int(line.split()[2]) for line in header.splitlines() if line.startswith('#define CUDA_VERSION ')
    ]
    return versions[0] // 1000 if versions else 0


def with_horovod() -> bool:
    """Whether Horovod is built. Beside MXNet for GPUs its build wants a CUDA toolkit, even for Gloo alone."""
    return not with_gpu() or cuda_toolkit() is not None


def horovod_build() -> Dict[str, str]:
    """The variables that Horovod's build reads."""
    build = {**HOROVOD_BUILD, 'HOROVOD_WITH_MPI' if with_mpi() else 'HOROVOD_WITHOUT_MPI': '1'}
    toolkit = cuda_toolkit() if with_gpu() else None
    if toolkit:
        build['HOROVOD_CUDA_HOME'] = str(toolkit)
        if cuda_version(toolkit) == 11:  # that of MXNet and of NVIDIA's wheels, NCCL among them
            build['HOROVOD_GPU_OPERATIONS'] = 'NCCL'
            build['HOROVOD_NCCL_LINK'] = 'SHARED'
            build['HOROVOD_NCCL_INCLUDE'] = str(site_packages() / 'nvidia' / 'nccl' / 'include')
            build['HOROVOD_NCCL_LIB'] = str(site_packages() / 'mxnet')
        wheels = sorted((site_packages() / 'nvidia').glob('*/include'))
        headers = [str(path) for path in wheels if path.parent.name != 'cuda_runtime']  # the toolkit's own
        build['CPATH'] = os.pathsep.join(headers)  # MXNet's headers include those of cuBLAS and others
    return build


def means() -> str:
    """What Horovod exchanges gradients by, in words."""
    nccl = 'HOROVOD_GPU_OPERATIONS' in horovod_build()
    return ' and '.join(['Gloo', *(['MPI'] if with_mpi() else []), *(['NCCL'] if nccl else [])])


def horovod_key() -> str:
    """A checksum of what Horovod's build depends on; it takes minutes, and need not follow every change of a
    pin.
    """
    pins = [
        line
        for line in CONSTRAINTS.read_text().splitlines()
        if line.split('==')[0] in ('mxnet-cu112' if with_gpu() else 'mxnet', 'numpy', 'horovod')
    ]
    return hashlib.sha256(
        json.dumps([identity(), pins, horovod_build()], sort_keys=True).encode()
    ).hexdigest()


def site_packages() -> Path:
    return VENV / 'lib' / ('python{}.{}'.format(*sys.version_info)) / 'site-packages'


def intact(dist_info: Path) -> bool:
    """Whether every file that a distribution lists is there with its size. pip writes the list last."""
    try:
        with open(dist_info / 'RECORD', newline='') as listing:
            return all(
                not size or os.stat(os.path.join(dist_info.parent, path)).st_size == int(size)
                for path, _, size in csv.reader(listing)
            )
    except (OSError, ValueError):
        return False


def distributions() -> Dict[str, bool]:
    """Name-version of everything in site-packages, and whether it is intact."""
    return {path.name[: -len('.dist-info')]: intact(path) for path in site_packages().glob('*.dist-info')}


def environment_usable(packages: Dict[str, bool]) -> bool:
    """Whether .venv is a whole environment of this place and Python, with an intact pip."""
    if not recorded() or not any(name.startswith('pip-') and whole for name, whole in packages.items()):
        return False
    try:
        return subprocess.run([str(PYTHON), '-c', ''], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


# The steps


def steps_left() -> List[Step]:
    """What is still to be done, in order; empty if .venv is complete."""
    packages = distributions()
    steps = []
    if environment_usable(packages):
        record = recorded()
    else:
        record, packages = {}, {}
        steps.append(
            Step('environment', f'making .venv with Python {platform.python_version()}', make_environment)
        )
    if record.get('packages') != sources_key() or not all(
        packages.get(name) for name in record.get('distributions', [])
    ):
        steps.append(Step('packages', 'installing the pinned packages (a minute or two)', install_packages))
    built = record.get('horovod') == horovod_key() and packages.get(pin('horovod').replace('==', '-'))
    if with_horovod() and not built:
        steps.append(
            Step(
                'horovod', f'building Horovod for MXNet with {means()} (one to four minutes)', install_horovod
            )
        )
    if steps or record.get('checked') != sources_key():
        steps.append(Step('check', 'trying it out', check))
    return steps


def pin(name: str) -> str:
    """The line of constraints.txt for a distribution."""
    return next(line for line in CONSTRAINTS.read_text().splitlines() if line.split('==')[0] == name)


def make_environment() -> None:
    mpi, gpu = with_mpi(), with_gpu()
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    call([sys.executable, '-m', 'venv', str(VENV)])
    pip('install', pin('pip'))
    note(mpi=mpi, gpu=gpu)


def install_packages() -> None:
    """Everything but Horovod in one call, so that no package can move another's version."""
    for name, whole in distributions().items():
        if not whole:
            shutil.rmtree(site_packages() / (name + '.dist-info'))  # pip would take it for installed
    for leftover in site_packages().glob('~*'):
        shutil.rmtree(leftover, ignore_errors=True)
    extra, other = ('cu112', 'mxnet') if with_gpu() else ('cpu', 'mxnet-cu112')
    if any(name.startswith(other.replace('-', '_') + '-') for name in distributions()):
        pip('uninstall', '--yes', other)  # both are the same directory
    pip('install', *BUILD_TOOLS)
    pip('install', '--no-build-isolation', *HOROVOD_SETUP, '-e', f'{ROOT}[{extra},scripts,test]')
    note(
        gpu=with_gpu(),
        packages=sources_key(),
        distributions=sorted(name for name in distributions() if not name.startswith('horovod-')),
    )


def link_cuda() -> None:
    """Let MXNet find NVIDIA's libraries.

    Raises
    ------
    StepFailed
        If it still lacks one, such as the driver's libcuda.so.1, without which MXNet cannot be imported.
    """
    call([str(PYTHON), '-m', 'gluon_optbert.runs.cuda_libraries'])


def install_horovod() -> None:
    """Compile it against the MXNet just installed. No cached wheel will do: it may have been built without
    MXNet.
    """
    if with_gpu():
        print('  ' + ' '.join(f'{name}={shlex.quote(value)}' for name, value in horovod_build().items()))
        link_cuda()
    pip('uninstall', '--yes', 'horovod')
    pip(
        'install',
        '--no-cache-dir',
        '--no-build-isolation',
        '--no-binary',
        'horovod',
        'horovod',
        **horovod_build(),
    )
    note(mpi=with_mpi(), horovod=horovod_key())


def check() -> None:
    """Import everything and ask Horovod what it was built for, away from the sources."""
    if with_gpu():
        link_cuda()
    try:
        with tempfile.TemporaryDirectory() as elsewhere:
            asked = [str(int(flag)) for flag in (with_mpi(), with_horovod(), with_gpu())]
            call([str(PYTHON), '-c', TRIAL, *asked], cwd=Path(elsewhere))
            answer = '[X] MXNet [X] Gloo'
            if with_horovod():
                answer = call([str(VENV / 'bin' / 'horovodrun'), '--check-build'], cwd=Path(elsewhere))
        call([str(PYTHON), '-m', 'pip', 'check'])
    except StepFailed as failure:
        raise Unfit(str(failure)) from failure
    if '[X] MXNet' not in answer or '[X] Gloo' not in answer:
        raise Unfit('Horovod was built without MXNet or without Gloo:\n' + answer)
    note(checked=sources_key())


def pip(command: str, *arguments: str, **variables: str) -> None:
    constraint = ['--constraint', str(CONSTRAINTS)] if command == 'install' else []
    call([str(PYTHON), '-m', 'pip', command, *constraint, *arguments], **variables)


def call(command: Sequence[str], cwd: Path = ROOT, **variables: str) -> str:
    """Run a command inside the environment, everything it prints appended to the log, and give what it
    printed.
    """
    drop = (
        'PYTHONPATH',
        'PYTHONHOME',
        'PIP_TARGET',
        'PIP_PREFIX',
        'PIP_CONSTRAINT',
        'MAKELEVEL',
        'MFLAGS',
        'MAKEOVERRIDES',
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in drop and not name.startswith('HOROVOD_')
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
    with open(LOG, 'a+b') as log:
        log.write(f'\n$ {" ".join(map(shlex.quote, command))}\n'.encode())
        log.flush()
        start = log.tell()
        done = subprocess.run(
            command,
            cwd=str(cwd),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=LOCK,
        )
        log.seek(start)
        answer = log.read().decode(errors='replace')
    if done.returncode:
        raise StepFailed('\n'.join(answer.splitlines()[-15:]))
    return answer


# The command

LOCK: List[int] = []  # inherited by pip, so that one whose parent was killed still counts as running


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the lock of this tree, waiting for another installation in it to end."""
    with open(CONSTRAINTS) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print('another installation is at work in this directory: waiting for it', flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        LOCK[:] = [lock.fileno()]
        yield
        LOCK.clear()


def carry_out(steps: List[Step]) -> None:
    began = time.monotonic()
    for number, step in enumerate(steps, 1):
        print(f'install {number}/{len(steps)}: {step.says}', flush=True)
        step.run()
    print(f'.venv is complete after {time.monotonic() - began:.0f} s', flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='name the steps that are left, one per line, and stop'
    )
    options = parser.parse_args(arguments)
    with one_at_a_time():
        steps = steps_left()
        if options.dry_run:
            print(''.join(step.name + '\n' for step in steps), end='')
            return 0
        if not steps:
            return 0
        missing = missing_here()
        if missing:
            print(''.join(f'error: {line}\n' for line in missing), end='', file=sys.stderr)
            return 2
        try:
            try:
                carry_out(steps)
            except Unfit:
                if steps[0].name == 'environment':
                    raise
                print('what was there cannot be mended: making .venv anew', flush=True)
                make_environment()
                carry_out(steps_left())
        except (StepFailed, Unfit) as failure:
            print(
                f'{failure}\nerror: the installation failed (all of its output is in {LOG}): make install '
                f'tries again, '
                'make clean starts from nothing',
                file=sys.stderr,
            )
            return 1
        except KeyboardInterrupt:
            print('\nstopped; the next call goes on from here', file=sys.stderr)
            return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
