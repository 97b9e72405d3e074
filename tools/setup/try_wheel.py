"""Build a source distribution and a wheel from it, and use the wheel where nothing else of the project is.

    .venv/bin/python tools/setup/try_wheel.py [--output dist] [--all-pythons] [--train]

The wheel has to have every file of the package, which an editable installation would not notice. It is
installed with the extra `serve`, without MXNet, for the newest CPython from 3.10 to 3.14 that there is, or
for each of them. There it has to predict what MXNet predicts here. With --train it is also installed with the
extra `cpu` and the pins of constraints.txt, and every command is asked for help. Exit status 1 if a step
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / 'constraints.txt'
BUILD_TOOLS = ['pip', 'setuptools', 'wheel', 'Cython']  # GluonNLP is compiled where it is installed
SAME = 1e-5  # float32, sums in another order
EXPORTS = """
import sys
sys.path[:0] = ['.', 'tests']
from helpers.exported import CASES, with_head
from helpers.tiny import network
from gluon_optbert.deployment.export import export
for name, (_, head) in CASES.items():
    if name in ('encoder', 'classification', 'question answering'):
        export(with_head(network(), head), f'{sys.argv[1]}/{name.split()[0]}', onnx=True)
"""
IMPORT = """
import sys
import gluon_optbert as opt
assert not {'mxnet', 'numpy', 'horovod'} & set(sys.modules), 'importing the package imports a big library'
assert opt.__file__.startswith(sys.prefix), f'{opt.__file__} is not of this environment'
assert opt.resolve('optbert_88m').h and opt.LayerDims(1, 2, 3, 4)
"""
ANSWERS = """
import json, sys
import gluon_optbert as opt
texts = ['a b c', 'd', 'a a e f b', 'c b a d e']
predictors = [opt.Predictor(name, engine=sys.argv[1]) for name in ('classification', 'question', 'encoder')]
classifier, reader, encoder = predictors
labels = list(classifier.predict(texts))
answers = list(reader.predict((one, f'{one} {other}') for one in texts for other in texts))
print(json.dumps({
    'labels': [one.label for one in labels] + [one.text for one in answers],
    'numbers': [value for one in labels for value in one.probabilities.values()]
    + [one.probability for one in answers]
    + [float(value) for row in encoder.encode(texts) for value in row],
}))
assert sys.argv[1] == 'mxnet' or not {'mxnet', 'gluonnlp', 'horovod'} & set(sys.modules)
"""


class Failed(Exception):
    """A step that did not come to a good end."""


def call(*words: object, cwd: Path) -> str:
    """Output of a program, without anything of this environment; Failed if it fails."""
    drop = ('PYTHONPATH', 'PYTHONHOME', 'VIRTUAL_ENV', 'PIP_CONSTRAINT', 'PIP_TARGET', 'PIP_PREFIX')
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment.update(PYTHONNOUSERSITE='1', PIP_DISABLE_PIP_VERSION_CHECK='1', PIP_NO_INPUT='1')
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = '\n'.join(done.stdout.splitlines()[-25:])
        raise Failed(f'{tail}\n{words[0]} {words[1]} ended with exit status {done.returncode}')
    return done.stdout


def pythons() -> Iterator[tuple[str, str]]:
    """The CPythons from 3.14 down to 3.10 that there are, by version: on the PATH or of pyenv."""
    versions = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv')) / 'versions'
    for minor in range(14, 9, -1):
        own = sorted(versions.glob(f'3.{minor}.*/bin/python3'))
        for python in filter(None, [shutil.which(f'python3.{minor}'), *map(str, own)]):
            program = f'import ensurepip, sys, venv; assert sys.version_info[1] == {minor}'
            try:
                call(python, '-c', program, cwd=ROOT)
            except (Failed, OSError):  # a shim without an interpreter, or one without its venv module
                continue
            yield f'3.{minor}', python
            break


def project_files() -> list[str]:
    """The files that belong to the project, by their paths in it."""
    names = call('git', 'ls-files', '-z', cwd=ROOT).split('\0')
    return [name for name in names if name and os.path.lexists(ROOT / name)]


def build(place: Path, source: Path = ROOT) -> Path:
    """The wheel, made from the source distribution alone; Failed if it lacks a file of the package."""
    names = project_files()
    for name in names:
        (place / 'source' / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, place / 'source' / name, follow_symlinks=False)
    hook = 'import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])'
    call(sys.executable, '-c', hook, place / 'dist', cwd=place / 'source')
    (sdist,) = (place / 'dist').glob('*.tar.gz')
    words = ['wheel', '--no-deps', '--no-build-isolation', '--wheel-dir', place / 'dist', sdist]
    call(sys.executable, '-m', 'pip', *words, cwd=place)
    (wheel,) = (place / 'dist').glob('*.whl')
    with zipfile.ZipFile(wheel) as packed:
        missing = {name for name in names if name.startswith('gluon_optbert/')} - set(packed.namelist())
    if missing:
        raise Failed(f'{wheel.name} lacks {", ".join(sorted(missing))}')
    print(f'{sdist.name} and {wheel.name}, which has all files of the package', flush=True)
    return wheel


def serve(wheel: Path, place: Path, version: str, python: str) -> None:
    """Predict without MXNet, in an environment of another Python, what MXNet predicts in this one."""
    here, there = place / f'serving-{version}', place / f'serving-{version}' / 'bin'
    call(python, '-m', 'venv', here, cwd=place)
    call(there / 'python', '-m', 'pip', 'install', f'{wheel}[serve]', cwd=place)
    call(there / 'python', '-m', 'pip', 'check', cwd=place)
    call(there / 'python', '-c', IMPORT, cwd=place)
    mxnet, other = (
        json.loads(call(program, '-W', 'ignore', '-c', ANSWERS, engine, cwd=place).splitlines()[-1])
        for program, engine in ((sys.executable, 'mxnet'), (there / 'python', 'onnxruntime'))
    )
    furthest = max(abs(a - b) for a, b in zip(mxnet['numbers'], other['numbers'], strict=True))
    if mxnet['labels'] != other['labels'] or not furthest < SAME:
        raise Failed(f'CPython {version} predicts otherwise than MXNet: {mxnet}, {other}')
    (place / 'sentences.txt').write_text('a b c\nd e\n', encoding='utf-8')
    said = call(there / 'optbert-predict', 'classification', '--input', 'sentences.txt', cwd=place)
    if sum('"label"' in line for line in said.splitlines()) != 2:
        raise Failed(f'optbert-predict answered {said}')
    print(f'CPython {version} without MXNet: the same labels and answers', flush=True)


def train(wheel: Path, place: Path) -> None:
    """Install everything for training in an empty environment, and ask every command for help."""
    environment = place / 'training'
    venv.create(environment, with_pip=True)
    pip = [environment / 'bin' / 'python', '-m', 'pip']
    call(*pip, 'install', '--constraint', CONSTRAINTS, *BUILD_TOOLS, cwd=place)
    call(*pip, 'install', '--constraint', CONSTRAINTS, '--no-build-isolation', f'{wheel}[cpu]', cwd=place)
    call(*pip, 'check', cwd=place)
    for program in sorted((environment / 'bin').glob('optbert-*')):
        if 'example:' not in call(program, '--help', cwd=place):
            raise Failed(f'{program.name} --help shows no example')
    print('the extra cpu is complete, and every command has its help', flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the wheel and try it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, metavar='DIR', help='where the two files go, if they are good')
    parser.add_argument('--all-pythons', action='store_true', help='predict with every CPython that there is')
    parser.add_argument('--train', action='store_true', help='install with MXNet, too')
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix='try_wheel-') as folder:
        place = Path(folder)
        try:
            wheel = build(place)
            call(sys.executable, '-W', 'ignore', '-c', EXPORTS, place, cwd=ROOT)
            for version, python in list(pythons())[: None if chosen.all_pythons else 1]:
                serve(wheel, place, version, python)
            if chosen.train:
                train(wheel, place)
        except Failed as error:
            print(f'error: {error}', file=sys.stderr)
            return 1
        if chosen.output:
            shutil.copytree(place / 'dist', chosen.output, dirs_exist_ok=True)
            print(f'wrote {chosen.output}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
