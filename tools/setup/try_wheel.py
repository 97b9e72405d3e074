"""Build a source distribution and a wheel from it; install the wheel into an empty environment; use it there.

    python3 tools/setup/try_wheel.py [--output dist] [--all-pythons]

Then the wheel is installed with the extra `serve`, without MXNet, for the newest CPython from 3.9 to 3.13
that there is, or for each of them. There it has to predict what MXNet predicts.

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
from typing import List, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[2]
# GluonNLP is compiled where it is installed: it needs Cython, a C compiler, and this setuptools.
BUILD_TOOLS = ['pip', 'setuptools', 'wheel', 'Cython']
WORDS = ['a', 'the', 'old', 'small', 'good', 'bad', 'bird', 'ship', 'sees', 'takes', 'and', 'under', 'light']
SAME = 1e-5  # float32, sums in another order
OLDEST_NUMPY = {'3.9': 'numpy==1.21.6'}
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
ANSWERS = """
import json, sys
import gluon_optbert as opt
engine, wanted = sys.argv[1], sys.argv[1] == 'mxnet'
texts = ['the old ship is good', 'a small bird', 'bad', 'the light sees the old bad ship and takes a bird']
names = 'deploy', 'deploy-squad', 'deploy-encoder'
predictors = {name: opt.Predictor(name, engine=engine) for name in names}
assert wanted or not {'mxnet', 'gluonnlp', 'horovod'} & set(sys.modules), 'predicting imports MXNet'
labels = list(predictors['deploy'].predict(texts))
questions = [('the bird', f'{one} and {other} under the light') for one in texts for other in texts]
answers = list(predictors['deploy-squad'].predict(questions))
print(json.dumps({
    'labels': [one.label for one in labels] + [one.text for one in answers],
    'numbers': [value for one in labels for value in one.probabilities.values()]
    + [one.probability for one in answers]
    + [float(value) for row in predictors['deploy-encoder'].encode(texts) for value in row],
}))
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


def serving_pythons() -> List[Tuple[str, str]]:
    """The interpreters of CPython 3.9 to 3.13 that there are, the newest first, by version: on the PATH or of
    pyenv.
    """
    versions = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv')) / 'versions'
    pythons = []
    for minor in range(13, 8, -1):
        own = sorted(versions.glob(f'3.{minor}.*/bin/python3'))
        for python in filter(None, [shutil.which(f'python3.{minor}'), *map(str, own)]):
            program = f'import ensurepip, sys, venv; assert sys.version_info[1] == {minor}'
            try:
                call(python, '-c', program, cwd=ROOT)
            except (Failed, OSError):  # a shim without an interpreter, or one without its venv module
                continue
            pythons.append((f'3.{minor}', python))
            break
    return pythons


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

    def export_for_serving(self) -> None:
        """An encoder and a network that answers questions, beside the classifier of `walk`."""
        draw, paragraphs = random.Random(5), []
        for number in range(24):
            words = draw.choices(WORDS, k=12)
            begin = len(' '.join(words[:4])) + 1
            answer = {'text': words[4], 'answer_start': begin}
            question = {'id': str(number), 'question': f'the {words[3]}', 'answers': [answer]}
            paragraphs.append({'context': ' '.join(words), 'qas': [question]})
        (self.work / 'squad').mkdir()
        for part in ('train', 'dev'):
            content = {'version': '1.1', 'data': [{'title': 'words', 'paragraphs': paragraphs}]}
            (self.work / 'squad' / f'{part}-v1.1.json').write_text(json.dumps(content), encoding='utf-8')
        words = ['--model', 'pruned/round-1/model', '--data', 'squad', '--output', 'read', '--seeds', 1]
        words += ['--max-length', 24, '--max-question', 6, '--stride', 4, '--batch-size', 8, '--epochs', 1]
        self.run('optbert-finetune-squad', 'squad', *words)
        self.run('optbert-export', 'read/seed-1', '--output', 'deploy-squad', '--onnx')
        self.run('optbert-export', 'pruned/round-1/model', '--output', 'deploy-encoder', '--onnx')

    def serve(self, wheel: Path, version: str, python: str, *more: str) -> None:
        """Predict without MXNet, in an environment of another Python, what MXNet predicts in this one.

        Parameters
        ----------
        wheel : Path
        version, python : str
            As `serving_pythons` gives them.
        *more
            Further requirements, such as the oldest NumPy.
        """
        place = self.place / f'serving-{version}'
        there = place / 'bin' / 'python'
        call(python, '-m', 'venv', place, cwd=self.place)
        call(there, '-m', 'pip', 'install', f'{wheel}[serve]', *more, cwd=self.place)
        call(there, '-m', 'pip', 'check', cwd=self.place)
        answers = [
            json.loads(call(program, '-W', 'ignore', '-c', ANSWERS, engine, cwd=self.work).splitlines()[-1])
            for program, engine in ((self.bin / 'python', 'mxnet'), (there, 'onnxruntime'))
        ]
        furthest = max(abs(one - other) for one, other in zip(*(both['numbers'] for both in answers)))
        same = answers[0]['labels'] == answers[1]['labels']
        if not same or not furthest < SAME or len({len(both['numbers']) for both in answers}) != 1:
            raise Failed(f'CPython {version} predicts otherwise than MXNet: {answers}')
        words = ['deploy', '--input', 'sentences.txt', '--engine', 'onnxruntime']
        call(place / 'bin' / 'optbert-predict', *words, cwd=self.work, show=True)
        numpy = call(there, '-c', 'import numpy; print(numpy.__version__)', cwd=self.work).strip()
        print(f'CPython {version} with NumPy {numpy} and no MXNet: the same labels and answers', flush=True)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--output', type=Path, metavar='DIR', help='where the two files go, if they are good')
    parser.add_argument(
        '--all-pythons',
        action='store_true',
        help='predict with every CPython that there is, not the newest alone',
    )
    chosen = parser.parse_args(arguments)
    output = chosen.output
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
            pythons = serving_pythons()
            if pythons:
                trial.export_for_serving()
            for version, python in pythons if chosen.all_pythons else pythons[:1]:
                print(f'installing the wheel with the extra serve for CPython {version}', flush=True)
                more = [OLDEST_NUMPY[version]] if version in OLDEST_NUMPY else []
                trial.serve(wheel, version, python, *more)
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
