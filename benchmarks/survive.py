"""Kill the commands at random moments, resume them, and compare what they leave with an uninterrupted run.

Every command runs once in peace. Then it runs again and again: SIGKILL goes to a random process of its tree,
half of the times at a moment that is uniform over the time of the uninterrupted run and half of the times
when a file appears, is renamed or goes. Half of the killed runs then go on to their end, the others are
killed again. What was finished before a kill has to be there after it, with the bytes of the uninterrupted
run; no process may be left; and when the command ends at last, all bytes have to be those of the
uninterrupted run, but for times.
"""

from __future__ import annotations

import collections
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from killed import COMMANDS, TRAINS, Attempt, contents, finished, losses, moment, names_below, prepare
from measured import Measured, parsed, write
from pydantic import PositiveInt

from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.recipe import option

PATIENCE_SECONDS = 60  # within which a job has to end once one of its processes is killed


class SurviveRecipe(Measured):
    """Commands to kill, and how often."""

    commands: tuple[str, ...] = option(
        'which commands to kill; those before them are run in peace', tuple(COMMANDS), choices=tuple(COMMANDS)
    )
    kills: PositiveInt = option('kills of each command', 20)
    workers: PositiveInt = option(
        'worker processes: of the shards, and of Horovod where a command knows it', 1
    )
    seed: int = option('of moments and victims', 0)


class Trial:
    """One command, killed until the wanted number of kills is reached."""

    def __init__(self, name: str, recipe: SurviveRecipe, made: Path, base: Path):
        self.name, self.recipe, self.made, self.base = name, recipe, made, base
        self.chance = random.Random(f'{recipe.seed} {name}')
        self.wanted: dict[str, str] = {}
        self.seconds, self.changes = 0.0, 0
        self.records: list[dict[str, Any]] = []

    def start(self, place: Path) -> Attempt:
        """Run the command in a directory."""
        return Attempt(self.name, self.made, place, self.recipe.workers)

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
        shutil.copytree(place / 'out', self.made / self.name)

    def killed(self, place: Path) -> dict[str, Any] | None:
        """Run the command and kill it; the record of the kill, or None if it was faster and ended well."""
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
        return {
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

    def expect_success(self, attempt: Attempt) -> None:
        """Wait for a run that is not killed, which has to end well."""
        if attempt.process.wait():
            raise RunFailed(f'{self.name} could not go on after a kill:\n{attempt.output()}')

    def run(self) -> None:
        """All kills; each run ends with a comparison, whose differences are losses of its last kill."""
        records = self.records
        number, place = 0, self.base / 'killed-0'
        while len(records) < self.recipe.kills or place.exists():
            whole = self.name not in TRAINS and (place / 'out').exists()
            let_go_on = len(records) >= self.recipe.kills or (place.exists() and self.chance.random() < 0.5)
            record = None
            if let_go_on and not whole:
                self.expect_success(self.start(place))
            elif not whole:
                record = self.killed(place)
            if record is not None:
                records.append(record)
                print(
                    f'{self.name} {len(records)} | {record["victim"]} | {record["moment"]} | ended in '
                    f'{record["seconds_to_the_end"]:.1f} s with status {record["status"]} | '
                    f'{record["processes_left"]} left | {len(record["losses"])} losses',
                    flush=True,
                )
            if record is None or record['status'] == 0:
                if records:
                    there = contents(place)
                    names = sorted(there.keys() | self.wanted.keys())
                    for name in names:
                        if there.get(name) != self.wanted.get(name):
                            records[-1]['losses'].append(f'{name}: not as in the uninterrupted run')
                    records[-1]['compared'] = True
                shutil.rmtree(place)
                number, place = number + 1, self.base / f'killed-{number + 1}'


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Kills by command, by victim and by moment; what was lost, what was left, and the slowest end."""

    def count(name: str) -> dict[str, int]:
        return dict(sorted(collections.Counter(f'{one["command"]}: {one[name]}' for one in records).items()))

    return {
        'kills': len(records),
        'losses': sum(len(record['losses']) for record in records),
        'ends_compared': sum(record['compared'] for record in records),
        'processes_left': sum(record['processes_left'] for record in records),
        'slowest_end_seconds': max(record['seconds_to_the_end'] for record in records),
        'by_victim': count('victim'),
        'by_moment': count('moment'),
    }


@command
def main(argv=None):
    """Kill, resume, compare; say how many kills there were, where, and what they cost."""
    recipe = parsed(
        SurviveRecipe,
        argv,
        description=__doc__,
        example='python benchmarks/survive.py --kills 50 --workers 2 --output survive.json',
    )
    records: list[dict[str, Any]] = []
    order = list(COMMANDS)
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
                trial.run()
                records += trial.records
    totals = summary(records)
    print('\n' + markdown_table(['killed', 'times'], totals['by_moment'].items()))
    print(
        f'\n{totals["kills"]} kills, {totals["losses"]} losses, {totals["processes_left"]} processes left; '
        f'{totals["ends_compared"]} ends compared; a killed job ended within '
        f'{totals["slowest_end_seconds"]:.1f} s'
    )
    write(recipe, **totals, each=records)
    if totals['losses'] or totals['processes_left']:
        raise RunFailed(
            '; '.join([loss for record in records for loss in record['losses']][:5]) or 'processes were left'
        )


if __name__ == '__main__':
    sys.exit(main())
