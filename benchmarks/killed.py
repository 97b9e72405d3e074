"""The commands that survive.py kills, their processes, and what they leave."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import psutil
from measured import ROOT

from gluon_optbert.runs.files import check_manifest
from gluon_optbert.text.tokenizer import train_wordpiece, write_vocabulary

MARK = 'GLUON_OPTBERT_SURVIVE'  # the environment variable by which the processes of an attempt are found
# In records and results; no two runs share them.
TIMES = 'tokens_per_second', 'data_wait', 'seconds', 'milliseconds'
# Files with times, whose digests in manifests differ; they are compared themselves.
TIMED = 'metrics.jsonl', 'progress.json', 'result.json'


TRAINING = (
    '--batch-size 8 --log-every 1 --evaluate-every 4 --evaluation-limit 16 --checkpoint-every 2 --warmup 0.1'
)
# Script and flags by name, in the order that they need each other's results: {made} has what each has written
# to `out`, by its name. They run in a directory of their own; {workers} is how many processes there are.
COMMANDS = {
    'shards': (
        'pretrain/make_shards.py --input {made}/text --vocab {made}/vocab.txt --output out '
        '--layout book --max-seq-length 32 --dupe-factor 2 --held-out 0.2 --instances-per-shard 64 '
        '--chunk-characters 20000 --workers {workers}'
    ),
    'pretrain': (
        'pretrain/run_pretraining.py --architecture l2_h16_a2 --steps 20 --initial-std 0.15 '
        f'--learning-rate 0.002 --shards {{made}}/shards --output out {TRAINING}'
    ),
    'prune': (
        'pretrain/run_prune.py --model {made}/pretrain --shards {made}/shards --output out --target 0.6 '
        f'--rounds 2 --alpha-steps 5 --recovery-steps 7 {TRAINING}'
    ),
    'finetune': (
        'finetune/run_glue.py --task SST-2 --model {made}/prune/round-2/model --data {made}/glue '
        '--output out --results results --max-length 24 --seeds 1,2 --epochs 2 --batch-size 8 '
        '--learning-rate 0.002 --log-every 1 --checkpoint-every 2'
    ),
    'prune-task': (
        'finetune/run_prune.py --model {made}/finetune/seed-1 --data {made}/glue --output out '
        '--rounds 2 --alpha-steps 5 --steps 7 --rotate-heads --reconstruct --batch-size 8 '
        '--log-every 1 --evaluate-every 4 --checkpoint-every 2'
    ),
    'export': 'tools/export_model.py {made}/finetune/seed-1 --output out',
}
# Those that go on with --resume where they were begun, and whose workers horovodrun starts. The others are
# begun again, and are finished once `out` is there.
TRAINS = ('pretrain', 'prune', 'finetune', 'prune-task')


class Attempt:
    """A command that runs in a directory, with all processes that it starts."""

    def __init__(self, name: str, made: Path, place: Path, workers: int):
        line = COMMANDS[name].replace('{made}', str(made)).replace('{workers}', str(workers))
        script, *flags = shlex.split(line)
        words = [sys.executable, '-W', 'ignore', str(ROOT / script), *flags]
        if name in TRAINS and workers > 1:
            horovodrun = str(Path(sys.executable).with_name('horovodrun'))
            words = [horovodrun, '--gloo', '-np', str(workers), *words]
        if name in TRAINS and place.exists():
            words.append('--resume')
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

    def tree(self) -> list[psutil.Process]:
        """Every living process of the attempt, whoever its parent is by now."""
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except psutil.Error:
                continue  # it has ended, or is another user's
        return sorted(processes, key=lambda process: process.pid)

    def kill_one(self, chance: random.Random) -> str | None:
        """SIGKILL for a random process; what it was, or None if there was none."""
        victims = self.tree()
        try:
            victim = chance.choice(victims)
            name = self._role(victim)
            victim.send_signal(signal.SIGKILL)
        except (IndexError, psutil.Error):
            return None
        return name

    def _role(self, process: psutil.Process) -> str:
        """Purpose of a process, in a few words."""
        rank, words = process.environ().get('HOROVOD_RANK'), ' '.join(process.cmdline())
        if rank is not None:
            return f'{"worker" if "python" in process.name() else "shell"} of rank {rank}'
        if process.pid == self.process.pid:
            return 'horovodrun' if 'horovodrun' in words else 'command'
        if 'resource_tracker' in words:
            return 'helper of multiprocessing'
        return 'child of horovodrun' if 'horovodrun' in self.process.args[0] else 'worker process'

    def wait(self, seconds: float) -> tuple[float, int]:
        """Wait for the end of all processes; the seconds it took, and how many had to be ended here. Time in
        which this process did not run either, as on a machine that was paused, does not count.
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

    def errors(self) -> list[str]:
        """Its lines of error, which name what was lost where that is not the command itself."""
        self.said.seek(0)
        return [line.strip() for line in self.said if 'error: ' in line]


def prepare(made: Path) -> None:
    """The corpus of twenty topics of Python, a vocabulary of it, and a task: which half a line is from."""
    (made / 'text').mkdir(parents=True)
    names = sorted(topics, key=lambda name: len(topics[name]))[-20:]
    for name in names:
        (made / 'text' / f'{name}.txt').write_text(topics[name][:6000], encoding='utf-8')
    write_vocabulary(train_wordpiece([topics[name] for name in names], 400), made / 'vocab.txt')
    (made / 'glue' / 'SST-2').mkdir(parents=True)
    for part, first, last in (('train', 0, 3), ('dev', 3, 4)):
        rows = ['sentence\tlabel']
        for number, name in enumerate(names):
            lines = [line.strip() for line in topics[name].splitlines() if len(line.split()) > 5]
            rows += [f'{line}\t{number % 2}' for line in lines[first:last]]
        (made / 'glue' / 'SST-2' / f'{part}.tsv').write_text('\n'.join(rows) + '\n', encoding='utf-8')


def names_below(place: Path) -> frozenset[str]:
    """Every path below a directory; paths that go meanwhile are left out."""
    return frozenset(
        os.path.join(folder, name) for folder, folders, files in os.walk(place) for name in (*folders, *files)
    )


def records_of(log: Path) -> list[dict[str, Any]]:
    """The records of a log of JSON lines, without one that was not written to its end."""
    lines = log.read_text(encoding='utf-8').splitlines()
    return [json.loads(line) for line in lines if line.endswith('}')]


def moment(place: Path, stale: frozenset[str], began: int) -> str:
    """State of a run when it was killed: the file that was being written, or the last step that it logged.
    `stale` are the paths that were there when it began, at `began` in nanoseconds.
    """
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
    records = [record for path in logs for record in records_of(path)]
    if records:
        record = records[-1]
        which = [f' of {name} {record[name]}' for name in ('round', 'seed') if name in record]
        return f'{record["phase"]}{"".join(which)}, after step {record["step"]}'
    return 'between two files' if names_below(place) - stale else 'before the first file'


def without_times(value: Any) -> Any:
    """A JSON value without the members that are times, at any depth."""
    if isinstance(value, dict):
        return {name: without_times(inner) for name, inner in value.items() if name not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def contents(place: Path) -> dict[str, str]:
    """A digest of every file below a directory, without what differs between any two runs: times."""
    digests = {}
    for path in sorted(place.rglob('*')):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.name == 'metrics.jsonl':
            content = json.dumps([without_times(record) for record in records_of(path)]).encode()
        elif path.name == 'pruning.md':
            content = b'\n'.join(line for line in content.split(b'\n') if b' ms (' not in line)
        elif path.suffix == '.json':
            with contextlib.suppress(ValueError):  # half a file of a killed run
                values = json.loads(content)
                if path.name == 'manifest.json':
                    values.pop('sha256', None)  # of all that it says, the digests of timed files included
                    for name in TIMED:
                        values.get('files', {}).pop(name, None)
                content = json.dumps(without_times(values)).encode()
        digests[str(path.relative_to(place))] = hashlib.sha256(content).hexdigest()
    return digests


def losses(place: Path, wanted: Mapping[str, str], before: frozenset[str]) -> list[str]:
    """Losses of a kill: manifests that were there `before` it and are gone, and what is half-written or
    differs from what is `wanted`: digests of the uninterrupted run, by path.
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


def finished(place: Path, wanted: Mapping[str, str]) -> frozenset[str]:
    """The manifests that are there and that the uninterrupted run leaves as well: they have to stay."""
    return frozenset(
        str(place / name) for name in wanted if name.endswith('manifest.json') and (place / name).exists()
    )
