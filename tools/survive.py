"""Kill the commands at random moments, resume them, and compare what they leave with an uninterrupted run.

Every command runs once in peace. Then it runs again and again: SIGKILL goes to a random process of its tree,
half of the times at a moment that is uniform over the time of the uninterrupted run and half of the times
when a file appears, is renamed or goes. Half of the killed runs then go on to their end, the others are
killed again. What was finished before a kill has to be there after it, with the bytes of the uninterrupted
run; no process may be left; and when the command ends at last, all bytes have to be those of the
uninterrupted run, but for times."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Tuple

import psutil

from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.manifest import check_manifest
from gluon_optbert.runs.markdown import markdown_table
from gluon_optbert.runs.provenance import origin_here
from gluon_optbert.runs.recipe import option, to_dict
from gluon_optbert.runs.staging import write_file
from gluon_optbert.text.vocabulary import train_wordpiece, write_vocabulary

ROOT = Path(__file__).resolve().parent.parent
TIMES = (
    'tokens_per_second',
    'data_wait',
    'seconds',
    'resumed_at',
    'milliseconds',
)  # in records and results; no two runs share them
TIMED = (
    'metrics.jsonl',
    'progress.json',
)  # files with times, whose digests in manifests differ; they are compared themselves
MARK = 'GLUON_OPTBERT_SURVIVE'  # the environment variable by which the processes of an attempt are found
PATIENCE_SECONDS = 60  # within which a job has to end once one of its processes is killed


@dataclasses.dataclass(frozen=True)
class Command:
    """One command that is killed.

    Parameters
    ----------
    words : tuple of str
        Script and flags. ``{made}`` stands for the directory of what earlier commands made, ``{workers}`` for
        the workers. It is run in a directory of its own and writes to ``out``.
    makes : str
        The name that its result has in ``{made}``, for later commands.
    resumes : bool
        Whether it is begun and gone on with by ``--resume``; otherwise it is begun again, and is finished
        once ``out`` is there.
    distributed : bool
        Whether horovodrun starts its workers.
    """

    words: Tuple[str, ...]
    makes: str
    resumes: bool = True
    distributed: bool = True


TRAINING = (
    '--batch-size',
    '8',
    '--log-every',
    '1',
    '--evaluate-every',
    '4',
    '--evaluation-limit',
    '16',
    '--checkpoint-every',
    '2',
    '--warmup',
    '0.1',
)
COMMANDS: Dict[str, Command] = {
    'shards': Command(
        (
            'pretrain/make_shards.py',
            '--input',
            '{made}/text',
            '--vocab',
            '{made}/vocab.txt',
            '--output',
            'out',
            '--max-seq-length',
            '32',
            '--dupe-factor',
            '2',
            '--held-out',
            '0.2',
            '--instances-per-shard',
            '64',
            '--chunk-characters',
            '20000',
            '--workers',
            '{workers}',
        ),
        'shards',
        resumes=False,
        distributed=False,
    ),
    'pretrain': Command(
        (
            'pretrain/run_pretraining.py',
            '--architecture',
            'l2_h16_a2',
            '--steps',
            '20',
            '--initial-std',
            '0.15',
            '--learning-rate',
            '0.002',
            '--shards',
            '{made}/shards',
            '--output',
            'out',
            *TRAINING,
        ),
        'model',
    ),
    'prune': Command(
        (
            'pretrain/run_prune.py',
            '--model',
            '{made}/model',
            '--shards',
            '{made}/shards',
            '--output',
            'out',
            '--target',
            '0.6',
            '--rounds',
            '2',
            '--alpha-steps',
            '5',
            '--recovery-steps',
            '7',
            *TRAINING,
        ),
        'pruned',
    ),
    'finetune': Command(
        (
            'finetune/run_glue.py',
            '--task',
            'SST-2',
            '--model',
            '{made}/pruned/round-2/model',
            '--data',
            '{made}/glue',
            '--output',
            'out',
            '--results',
            'results',
            '--max-length',
            '24',
            '--seeds',
            '1,2',
            '--epochs',
            '2',
            '--batch-size',
            '8',
            '--learning-rate',
            '0.002',
            '--log-every',
            '1',
            '--checkpoint-every',
            '2',
        ),
        'finetuned',
    ),
    'prune-task': Command(
        (
            'finetune/run_prune.py',
            '--model',
            '{made}/finetuned/seed-1',
            '--data',
            '{made}/glue',
            '--output',
            'out',
            '--rounds',
            '2',
            '--alpha-steps',
            '5',
            '--steps',
            '7',
            '--rotate-heads',
            '--reconstruct',
            '--batch-size',
            '8',
            '--log-every',
            '1',
            '--evaluate-every',
            '4',
            '--checkpoint-every',
            '2',
        ),
        'task-pruned',
    ),
    'export': Command(
        ('tools/export_model.py', '{made}/finetuned/seed-1', '--output', 'out'),
        'export',
        resumes=False,
        distributed=False,
    ),
}


@dataclasses.dataclass(frozen=True)
class SurviveRecipe:
    """What is killed, and how often."""

    commands: Tuple[str, ...] = option(
        'which commands to kill; those before them are run in peace', tuple(COMMANDS), choices=tuple(COMMANDS)
    )
    kills: int = option('kills of each command', 20)
    workers: int = option('worker processes: of the shards, and of Horovod where a command knows it', 1)
    seed: int = option('of moments and victims', 0)
    output: Optional[Path] = option('JSON file for the record of every kill', None)

    def problems(self) -> List[str]:
        """What is out of range."""
        return [
            f'{name} must be at least 1, found {getattr(self, name)}'
            for name in ('kills', 'workers')
            if getattr(self, name) < 1
        ]


class Attempt:
    """A command that runs in a directory, with all processes that it starts."""

    def __init__(self, command: Command, made: Path, place: Path, workers: int):
        script, *flags = (word.format(made=made, workers=workers) for word in command.words)
        launcher = [str(Path(sys.executable).with_name('horovodrun')), '--gloo', '-np', str(workers)]
        words = [
            *(launcher if command.distributed and workers > 1 else []),
            sys.executable,
            '-W',
            'ignore',
            str(ROOT / script),
            *flags,
            *(['--resume'] if command.resumes else []),
        ]
        self.mark = f'{os.getpid()}-{time.monotonic_ns()}'
        place.mkdir(exist_ok=True)
        self.began = time.time_ns()
        log = place.with_name(place.name + '.log')
        # the process writes to it as long as it lives
        self.said = open(log, 'w+', encoding='utf-8', errors='replace')  # noqa: SIM115
        self.process = subprocess.Popen(
            words,
            cwd=str(place),
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=self.said,
            env={**os.environ, 'PYTHONPATH': str(ROOT), MARK: self.mark},
        )

    def running(self) -> bool:
        """Whether the command itself has not ended."""
        return self.process.poll() is None

    def tree(self) -> List[psutil.Process]:
        """Every living process of the attempt, whoever its parent is by now."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except psutil.Error:
                continue  # it has ended, or is another user's
        return sorted(processes, key=lambda process: process.pid)

    def kill_one(self, chance: random.Random) -> Optional[str]:
        """SIGKILL for a random process; what it was, or None if there was none."""
        victims = self.tree()
        if not victims:
            return None
        victim = chance.choice(victims)
        try:
            name = self._role(victim)
            victim.send_signal(signal.SIGKILL)
        except psutil.Error:
            return None
        return name

    def _role(self, process: psutil.Process) -> str:
        """What a process is for, in a few words."""
        rank, words = process.environ().get('HOROVOD_RANK'), ' '.join(process.cmdline())
        if rank is not None:
            return f'{"worker" if "python" in process.name() else "shell"} of rank {rank}'
        if process.pid == self.process.pid:
            return 'horovodrun' if 'horovodrun' in words else 'command'
        if 'resource_tracker' in words:
            return 'helper of multiprocessing'
        return 'child of horovodrun' if 'horovodrun' in self.process.args[0] else 'worker process'

    def wait(self, seconds: float) -> Tuple[float, int]:
        """Wait for the end of the command and of all its processes; the seconds it took, and how many had to
        be ended here.

        Time in which this process did not run either, as on a machine that was paused, does not count.
        """
        waited, looked = 0.0, time.monotonic()
        while waited < seconds and (self.running() or self.tree()):
            time.sleep(0.1)
            waited, looked = waited + min(time.monotonic() - looked, 2.0), time.monotonic()
        left = self.tree()
        for process in left:
            process.kill()
        self.process.wait()
        return waited, len(left)

    def output(self) -> str:
        """The last lines that the command said."""
        self.said.seek(0)
        return ''.join(self.said.readlines()[-12:])

    def errors(self) -> List[str]:
        """Its lines of error, which name what was lost where that is not the command itself."""
        self.said.seek(0)
        return [line.strip() for line in self.said if 'error: ' in line]


def names_below(place: Path) -> FrozenSet[str]:
    """Every path below a directory; paths that go meanwhile are left out."""
    return frozenset(
        os.path.join(folder, name) for folder, folders, files in os.walk(place) for name in (*folders, *files)
    )


def moment(place: Path, stale: FrozenSet[str], began: int) -> str:
    """Where a run stood when it was killed: the file that was being written, or the last step that it logged.

    Paths in `stale` were there when it began, left by an earlier kill, and logs that were not written to
    since `began`, in nanoseconds, are as old."""
    partial = [
        path
        for path in place.rglob('*')
        if '.partial' in str(path.relative_to(place)) and path.is_file() and str(path) not in stale
    ]
    if partial:
        newest = max(partial, key=lambda path: path.stat().st_mtime_ns).relative_to(place)
        parts = [
            '.'.join(part.split('.partial')[0].split('.')[1:]) if '.partial' in part else part
            for part in newest.parts
        ]
        return 'writing ' + '/'.join(parts)
    times = {path: path.stat().st_mtime_ns for path in place.rglob('*.jsonl')}
    logs = sorted((path for path in times if times[path] >= began), key=times.__getitem__)
    lines = [
        line for path in logs for line in path.read_text(encoding='utf-8').splitlines() if line.endswith('}')
    ]
    if lines:
        record = json.loads(lines[-1])
        which = [f' of {name} {record[name]}' for name in ('round', 'seed') if name in record]
        return f'{record["phase"]}{"".join(which)}, after step {record["step"]}'
    return 'between two files' if names_below(place) - stale else 'before the first file'


def without_times(value: Any) -> Any:
    """A JSON value without the members that are times, at any depth."""
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if name not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def contents(place: Path) -> Dict[str, str]:
    """A digest of every file below a directory, without what differs between any two runs: times."""
    digests = {}
    for path in sorted(place.rglob('*')):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.name == 'metrics.jsonl':
            content = json.dumps(
                [
                    without_times(json.loads(line))
                    for line in content.decode().splitlines()
                    if line.endswith('}')
                ]
            ).encode()
        elif path.name == 'pruning.md':
            content = b'\n'.join(line for line in content.split(b'\n') if b' ms (' not in line)
        elif path.suffix == '.json':
            with contextlib.suppress(ValueError):  # half a file of a killed run
                values = json.loads(content)
                if path.name == 'manifest.json':
                    for name in TIMED:
                        values.get('files', {}).pop(name, None)
                content = json.dumps(without_times(values)).encode()
        digests[str(path.relative_to(place))] = hashlib.sha256(content).hexdigest()
    return digests


def losses(place: Path, wanted: Mapping[str, str], before: FrozenSet[str]) -> List[str]:
    """What a kill has cost, of what was finished before it; and finished things that are not what they should
    be.

    Parameters
    ----------
    wanted : mapping of path to digest
        Of the uninterrupted run.
    before : set of str
        The manifests of whole directories that were seen before the kill.
    """
    problems = [f'{name} is gone' for name in sorted(before) if not os.path.exists(name)]
    for manifest in place.rglob('manifest.json'):
        directory = manifest.parent
        if any('.partial' in part for part in directory.relative_to(place).parts):
            continue
        form = json.loads(manifest.read_text(encoding='utf-8'))
        if 'files' in form:
            try:
                check_manifest(directory, form=form['format'], version=form['version'])
            except (ValueError, FileNotFoundError) as error:
                if not directory.name.startswith('step-') or directory == max(
                    directory.parent.glob('step-*')
                ):
                    problems.append(f'half-written: {error}')  # old checkpoints may be on their way out
        if str(manifest.relative_to(place)) in wanted:
            there = {
                str(directory.relative_to(place) / name): digest
                for name, digest in contents(directory).items()
            }
            problems += [f'{name} differs' for name, digest in there.items() if wanted.get(name) != digest]
    return problems


def finished(place: Path, wanted: Mapping[str, str]) -> FrozenSet[str]:
    """The manifests below a directory that the uninterrupted run leaves as well: what has to stay once it is
    there.
    """
    return frozenset(
        str(place / name) for name in wanted if name.endswith('manifest.json') and (place / name).exists()
    )


class Trial:
    """One command, killed until the wanted number of kills is reached."""

    def __init__(self, name: str, recipe: SurviveRecipe, made: Path, base: Path):
        self.name, self.command, self.recipe, self.made, self.base = name, COMMANDS[name], recipe, made, base
        self.chance = random.Random(f'{recipe.seed} {name}')
        self.wanted: Dict[str, str] = {}
        self.seconds, self.changes = 0.0, 0
        self.records: List[Dict[str, Any]] = []

    def start(self, place: Path) -> Attempt:
        return Attempt(self.command, self.made, place, self.recipe.workers)

    def in_peace(self) -> None:
        """The uninterrupted run: its time, the number of times that its files changed, and what it leaves."""
        place = self.base / 'peace'
        began, attempt, seen = time.monotonic(), self.start(place), names_below(place)
        while attempt.running():
            now = names_below(place)
            self.changes, seen = self.changes + (now != seen), now
            time.sleep(0.002)
        self.seconds = time.monotonic() - began
        if attempt.process.returncode:
            raise RunFailed(f'{self.name} failed without being killed:\n{attempt.output()}')
        self.wanted = contents(place)
        shutil.copytree(place / 'out', self.made / self.command.makes)

    def killed(self, place: Path) -> Optional[Dict[str, Any]]:
        """Run the command and kill it; the record of the kill, or None if the command was faster and ended
        well.
        """
        aimed = self.chance.random() < 0.5
        after_changes, delay = self.chance.randint(1, max(1, self.changes)), self.chance.uniform(0, 0.005)
        until = time.monotonic() + self.chance.uniform(0, self.seconds)
        stale, before = names_below(place), finished(place, self.wanted)
        attempt, seen, count = self.start(place), stale, 0
        while attempt.running() and (count < after_changes if aimed else time.monotonic() < until):
            now = names_below(place)
            count, seen = count + (now != seen), now
            time.sleep(0.001 if aimed else 0.01)
        if aimed:
            time.sleep(delay)
        before |= finished(place, self.wanted)
        victim = attempt.kill_one(self.chance)
        if victim is None:
            self.expect_success(attempt)
            return None
        seconds, left = attempt.wait(PATIENCE_SECONDS + (self.seconds if victim.startswith('helper') else 0))
        record = {
            'command': self.name,
            'workers': self.recipe.workers,
            'aimed': aimed,
            'victim': victim,
            'moment': moment(place, stale, attempt.began),
            'status': attempt.process.returncode,
            'seconds_to_the_end': round(seconds, 2),
            'processes_left': left,
            'said': attempt.errors(),
            'compared': False,
            'losses': losses(place, self.wanted, before),
        }
        return record

    def expect_success(self, attempt: Attempt) -> None:
        """Wait for a run that is not killed, which has to end well."""
        if attempt.process.wait():
            raise RunFailed(f'{self.name} could not go on after a kill:\n{attempt.output()}')

    def ended(self, place: Path) -> bool:
        """Whether there is nothing left to do for the command."""
        return not self.command.resumes and (place / 'out').exists()

    def compare(self, place: Path) -> List[str]:
        """How the directory of a run that was killed and went on differs from the uninterrupted one."""
        digests = contents(place)
        return [
            f'{name}: {"extra" if name not in self.wanted else "differs" if name in digests else "missing"}'
            for name in sorted(set(digests) | set(self.wanted))
            if digests.get(name) != self.wanted.get(name)
        ]

    def run(self, report: Callable[[Dict[str, Any], int], None]) -> None:
        """All kills; each run ends with a comparison, whose differences are losses of its last kill."""
        records = self.records
        number, place = 0, self.base / 'killed-0'
        while len(records) < self.recipe.kills or place.exists():
            enough, whole = len(records) >= self.recipe.kills, self.ended(place)
            let_go_on = enough or (place.exists() and self.chance.random() < 0.5)
            record = None
            if let_go_on and not whole:
                self.expect_success(self.start(place))
            elif not whole:
                record = self.killed(place)
            if record is not None:
                records.append(record)
                report(record, len(records))
            if record is None or record['status'] == 0:
                if records:
                    records[-1]['losses'] += self.compare(place)
                    records[-1]['compared'] = True
                shutil.rmtree(place)
                number, place = number + 1, self.base / f'killed-{number + 1}'


def prepare(made: Path) -> None:
    """The corpus, twenty topics of Python's own documentation, a vocabulary of it, and a task: which half a
    line is from.
    """
    (made / 'text').mkdir(parents=True)
    names = sorted(topics, key=lambda name: len(topics[name]))[-20:]
    for name in names:
        (made / 'text' / f'{name}.txt').write_text(topics[name][:6000], encoding='utf-8')
    write_vocabulary(train_wordpiece([topics[name] for name in names], 400), made / 'vocab.txt')
    (made / 'glue' / 'SST-2').mkdir(parents=True)
    for part, first, last in (('train', 0, 3), ('dev', 3, 4), ('test', 4, 5)):
        lines = [
            (line.strip(), number % 2)
            for number, name in enumerate(names)
            for line in [line for line in topics[name].splitlines() if len(line.split()) > 5][first:last]
        ]
        rows = (
            [('sentence', 'label'), *lines]
            if part != 'test'
            else [('index', 'sentence'), *((number, text) for number, (text, _) in enumerate(lines))]
        )
        (made / 'glue' / 'SST-2' / f'{part}.tsv').write_text(
            ''.join(f'{one}\t{two}\n' for one, two in rows), encoding='utf-8'
        )


def summary(records: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Kills by command, by victim and by moment; what was lost, what was left, and the slowest end."""

    def count(key: Callable[[Dict[str, Any]], str]) -> Dict[str, int]:
        return dict(sorted(collections.Counter(key(record) for record in records).items()))

    return {
        'kills': len(records),
        'losses': sum(len(record['losses']) for record in records),
        'ends_compared': sum(record['compared'] for record in records),
        'processes_left': sum(record['processes_left'] for record in records),
        'slowest_end_seconds': max(record['seconds_to_the_end'] for record in records),
        'by_victim': count(lambda record: f'{record["command"]}: {record["victim"]}'),
        'by_moment': count(lambda record: f'{record["command"]}: {record["moment"]}'),
    }


def _report(record: Mapping[str, Any], number: int) -> None:
    end = f'ended in {record["seconds_to_the_end"]:.1f} s with status {record["status"]}'
    print(
        f'{record["command"]} {number} | {record["victim"]} | {record["moment"]} | {end} | '
        f'{record["processes_left"]} left | '
        f'{len(record["losses"])} losses',
        flush=True,
    )


def write(recipe: SurviveRecipe, records: List[Dict[str, Any]], origin: Mapping[str, Any]) -> None:
    """Write the record of every kill so far, and where it comes from."""
    content = {'recipe': to_dict(recipe), **summary(records), **origin, 'each': records}
    write_file(recipe.output, (json.dumps(content, indent=1) + '\n').encode())


@command
def main(argv=None):
    """Kill, resume, compare; say how many kills there were, where, and what they cost."""
    recipe = parse(
        SurviveRecipe,
        argv,
        description=__doc__,
        example='python tools/survive.py --kills 50 --workers 2 --output results/survive.json',
    )
    records: List[Dict[str, Any]] = []
    order, origin = list(COMMANDS), origin_here()

    def report(record: Dict[str, Any], number: int) -> None:
        _report(record, number)
        if recipe.output:  # after every kill, for this takes long
            write(recipe, records + trial.records, origin)

    with tempfile.TemporaryDirectory(prefix='survive-') as base:
        inputs = Path(base) / 'made'
        prepare(inputs)
        for name in order[: 1 + max(order.index(name) for name in recipe.commands)]:
            (Path(base) / name).mkdir()
            trial = Trial(name, recipe, inputs, Path(base) / name)
            trial.in_peace()
            print(
                f'{name}: {trial.seconds:.1f} s in peace, its files change {trial.changes} times', flush=True
            )
            if name in recipe.commands:
                trial.run(report)
                records += trial.records
    totals = summary(records)
    print('\n' + markdown_table(['killed', 'times'], totals['by_moment'].items()))
    print(
        f'\n{totals["kills"]} kills, {totals["losses"]} losses, {totals["processes_left"]} processes left; '
        f'{totals["ends_compared"]} '
        f'ends compared; a killed job took {totals["slowest_end_seconds"]:.1f} s to end at most'
    )
    if recipe.output:
        write(recipe, records, origin)
        print(f'wrote {recipe.output}')
    if totals['losses'] or totals['processes_left']:
        raise RunFailed(
            '; '.join([loss for record in records for loss in record['losses']][:5]) or 'processes were left'
        )


if __name__ == '__main__':
    sys.exit(main())
