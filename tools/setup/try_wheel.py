"""Build a source distribution and a wheel from it; install the wheel into an empty environment; use it there.

    python3 tools/setup/try_wheel.py [--output dist]

Everything happens in a temporary directory, with the files that belong to the project and no others. An
editable install would find data files that setup.py forgets; this one does not. Standard library only. Exit
status 1 if a step fails."""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path
from typing import List, Optional, Sequence

ROOT = Path(__file__).resolve().parents[2]
# GluonNLP is compiled where it is installed: it needs Cython, a C compiler, and this setuptools.
BUILD_TOOLS = ['pip', 'setuptools', 'wheel', 'Cython']
WORDS = ['a', 'the', 'old', 'small', 'good', 'bad', 'bird', 'ship', 'sees', 'takes', 'and', 'under', 'light']
SPECIALS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
IMPORT = """
import sys
import gluon_optbert as opt
assert not {'mxnet', 'numpy', 'horovod'} & set(sys.modules), 'importing the package imports a big library'
assert opt.__file__.startswith(sys.prefix), f'{opt.__file__} is not of this environment'
for name in opt.__all__:
    getattr(opt, name)
assert opt.resolve('optbert_88m').h and opt.LayerDims(1, 2, 3, 4)
print(len(opt.__all__), 'names')
"""
COMMANDS = """
import json
from importlib.metadata import distribution
print(json.dumps([entry.name for entry in distribution('gluon_optbert').entry_points]))
"""


class Failed(Exception):
    """A step that did not come to a good end."""


def call(*words: object, cwd: Path, show: bool = False) -> str:
    """What a program prints, without anything of this environment; Failed if it fails."""
    drop = ('PYTHONPATH', 'PYTHONHOME', 'VIRTUAL_ENV', 'PIP_CONSTRAINT', 'PIP_TARGET', 'PIP_PREFIX')
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment.update(PYTHONNOUSERSITE='1', PIP_DISABLE_PIP_VERSION_CHECK='1', PIP_NO_INPUT='1')
    if show:
        print('$ ' + ' '.join([Path(str(words[0])).name, *map(str, words[1:])]), flush=True)
    done = subprocess.run(
        [str(word) for word in words],
        cwd=str(cwd),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        tail = '\n'.join(done.stdout.splitlines()[-25:])
        raise Failed(
            f'{tail}\n{Path(str(words[0])).name} {words[1]} ended with exit status {done.returncode}'
        )
    return done.stdout


def project_files() -> List[str]:
    """The files that belong to the project, by their paths in it."""
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
    names = listed.stdout.decode().split('\0')
    return [name for name in names if name and os.path.lexists(ROOT / name)]


def copy_project(to: Path) -> None:
    """Those files, and links as links."""
    for name in project_files():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


class Trial:
    """One wheel, from its sources to its use.

    Parameters
    ----------
    place : Path
        A directory for everything.
    """

    def __init__(self, place: Path):
        self.place, self.source, self.dist, self.work = (
            place / name for name in ('', 'source', 'dist', 'elsewhere')
        )
        self.bin = place / 'environment' / 'bin'
        self.constraints = ROOT / 'constraints.txt'

    def pip(self, *words: object, cwd: Optional[Path] = None) -> None:
        call(self.bin / 'python', '-m', 'pip', *words, cwd=cwd or self.place)

    def build(self) -> Path:
        """The wheel, made from the source distribution alone."""
        copy_project(self.source)
        hook = 'import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])'
        call(self.bin / 'python', '-c', hook, self.dist, cwd=self.source)
        (sdist,) = self.dist.glob('*.tar.gz')
        self.pip('wheel', '--no-deps', '--no-build-isolation', '--wheel-dir', self.dist, sdist)
        (wheel,) = self.dist.glob('*.whl')
        with zipfile.ZipFile(wheel) as packed:
            there = set(packed.namelist())
        wanted = {
            name
            for name in project_files()
            if name.startswith('gluon_optbert/') and '/__pycache__/' not in name
        }
        if wanted - there:
            raise Failed(f'{wheel.name} lacks {", ".join(sorted(wanted - there))}')
        print(f'{sdist.name} and {wheel.name}, which has all {len(wanted)} files of the package', flush=True)
        return wheel

    def make_environment(self) -> None:
        """An environment with nothing but what builds packages."""
        venv.create(str(self.place / 'environment'), with_pip=True)
        self.pip('install', '--constraint', self.constraints, *BUILD_TOOLS)

    def install(self, wheel: Path) -> None:
        """The wheel with MXNet for CPUs, at the pinned versions."""
        self.pip('install', '--constraint', self.constraints, '--no-build-isolation', f'{wheel}[cpu]')
        self.pip('check')

    def run(self, command: str, *words: object) -> str:
        """What an installed command prints, far from the sources."""
        return call(self.bin / command, *words, cwd=self.work, show=True)

    def try_commands(self) -> None:
        """Import the package, and ask every command for help."""
        self.work.mkdir()
        print(call(self.bin / 'python', '-c', IMPORT, cwd=self.work).strip(), flush=True)
        for name in json.loads(call(self.bin / 'python', '-c', COMMANDS, cwd=self.work)):
            if 'example:' not in self.run(name, '--help'):
                raise Failed(f'{name} --help shows no example')

    def write_texts(self) -> None:
        """A corpus, a vocabulary, and sentences with the word good or the word bad, all drawn at random."""
        draw = random.Random(3)
        lines = []
        for _ in range(80):
            lines += [
                ' '.join(draw.choices(WORDS, k=draw.randint(4, 11))) + '.' for _ in range(draw.randint(2, 6))
            ]
            lines.append('')
        (self.work / 'text').mkdir()
        (self.work / 'text' / 'one.txt').write_text('\n'.join(lines), encoding='utf-8')
        vocabulary = '\n'.join([*SPECIALS, *WORDS, '.']) + '\n'
        (self.work / 'vocab.txt').write_text(vocabulary, encoding='utf-8')
        (self.work / 'glue' / 'SST-2').mkdir(parents=True)
        for part, count in (('train', 32), ('dev', 16)):
            rows = ['sentence\tlabel']
            for _ in range(count):
                label = draw.randint(0, 1)
                rows.append(' '.join([*draw.choices(WORDS, k=4), ('bad', 'good')[label]]) + f'\t{label}')
            (self.work / 'glue' / 'SST-2' / f'{part}.tsv').write_text(
                '\n'.join(rows) + '\n', encoding='utf-8'
            )

    def walk(self) -> None:
        """From text to predictions, with the packaged recipes where there are some."""
        self.write_texts()
        words = ['--max-seq-length', 32, '--held-out', 0.1, '--dupe-factor', 2]
        self.run(
            'optbert-make-shards', '--input', 'text', '--vocab', 'vocab.txt', '--output', 'shards', *words
        )
        few = ['--shards', 'shards', '--batch-size', 8, '--evaluate-every', 0]
        words = ['--architecture', 'l2_h16_a2_f32', '--steps', 4, '--output', 'model', *few]
        self.run('optbert-pretrain', 'small', *words)
        words = [
            '--model',
            'model',
            '--output',
            'pruned',
            '--rounds',
            1,
            '--alpha-steps',
            2,
            '--recovery-steps',
            2,
        ]
        said = self.run('optbert-prune', 'small_prune', *words, *few)
        if 'next: optbert-verify pruned' not in said:
            raise Failed(f'optbert-prune does not name the next command: {said.splitlines()[-1]}')
        self.run('optbert-verify', 'pruned')
        self.run('optbert-report', 'pruned', '--output', 'report.html')
        words = ['--task', 'SST-2', '--model', 'pruned/round-1/model', '--data', 'glue', '--epochs', 1]
        words += ['--batch-size', 8, '--max-length', 16, '--seeds', 1, '--output', 'tuned']
        self.run('optbert-finetune-glue', 'glue', *words)
        self.run('optbert-export', 'tuned/seed-1', '--output', 'deploy', '--onnx')
        (self.work / 'sentences.txt').write_text('the old ship is good\na small bird\n', encoding='utf-8')
        words = ['--task', 'SST-2', '--data', 'glue/SST-2/dev.tsv', '--predictions', 'predictions.jsonl']
        said = self.run('optbert-predict', 'deploy', '--input', 'glue/SST-2/dev.tsv')
        answers = [line for line in said.splitlines() if line.startswith('{')]  # without warnings
        (self.work / 'predictions.jsonl').write_text('\n'.join(answers) + '\n', encoding='utf-8')
        if 'SST-2, 16 rows: accuracy' not in self.run('optbert-score', *words):
            raise Failed('optbert-score does not score the predictions of optbert-predict')
        said = self.run('optbert-predict', 'deploy', '--input', 'sentences.txt')
        answers = [json.loads(line) for line in said.splitlines() if line.startswith('{')]
        if len(answers) != 2 or not all('label' in answer for answer in answers):
            raise Failed(f'optbert-predict answered {said}')


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, metavar='DIR', help='where the two files go, if they are good')
    output = parser.parse_args(arguments).output
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix='try_wheel-') as place:
        trial = Trial(Path(place))
        try:
            print(
                f'an empty environment, then {", ".join(BUILD_TOOLS)}: GluonNLP is compiled with them',
                flush=True,
            )
            trial.make_environment()
            wheel = trial.build()
            print('installing the wheel with the extra cpu and the pins of constraints.txt', flush=True)
            trial.install(wheel)
            trial.try_commands()
            trial.walk()
        except Failed as error:
            print(f'error: {error}', file=sys.stderr)
            return 1
        if output:
            output.mkdir(parents=True, exist_ok=True)
            for path in trial.dist.iterdir():
                shutil.copy(path, output)
                print(f'wrote {output / path.name}')
    print(f'the wheel works; {time.monotonic() - began:.0f} s')
    return 0


if __name__ == '__main__':
    sys.exit(main())
