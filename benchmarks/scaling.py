"""Time pre-training by one worker with several threads and by several workers with one thread each, in turn.

Every run is `pretrain/run_pretraining.py` as a user starts it, with the same shards, seed and batch over all
workers; what counts is `tokens_per_second` of its metrics without the first interval. Nothing else should run
meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from measured import ROOT, Measured, parsed, write
from pydantic import Field, PositiveInt

from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.machine import physical_cores
from gluon_optbert.runs.recipe import option

Configuration = Annotated[str, Field(pattern=r'^[1-9]\d?x[1-9]\d?$')]


class ScalingRecipe(Measured):
    """What is timed."""

    shards: Path = option('directory of shards')
    architecture: str = option("its name: l6_h384_a12 has MiniLM's widths, bert_base BERT's", 'l6_h384_a12')
    configurations: tuple[Configuration, ...] = option(
        'workers x threads of each; the first is what the others are compared with', ('1x2', '2x1', '4x1')
    )
    batch_size: PositiveInt = option('sequences a step, over all workers', 256)
    accumulate: PositiveInt = option('passes that a worker splits its share of a batch into', 1)
    interval: PositiveInt = option('steps of an interval', 1)
    intervals: PositiveInt = option('timed intervals of a run, after one that is not', 3)
    repeats: PositiveInt = option('runs of each configuration, taken in turn', 3)

    def problems(self) -> list[str]:
        """What is contradictory."""
        problems = [
            f'batch_size {self.batch_size} does not divide among {text.split("x")[0]} workers with '
            f'{self.accumulate} passes'
            for text in self.configurations
            if self.batch_size % (int(text.split('x')[0]) * self.accumulate)
        ]
        if len(set(self.configurations)) < len(self.configurations):
            problems.append('configurations: give each once; results are named after them')
        return problems


def speeds(recipe: ScalingRecipe, configuration: str, place: Path) -> list[float]:
    """Tokens a second of every timed interval of one run; RunFailed with its last lines if it fails."""
    workers, threads = configuration.split('x')
    flags = {
        'architecture': recipe.architecture,
        'shards': recipe.shards,
        'output': place,
        'batch-size': recipe.batch_size,
        'accumulate': recipe.accumulate,
        'steps': recipe.interval * (1 + recipe.intervals),
        'log-every': recipe.interval,
        'evaluate-every': 0,
        'evaluation-limit': 1,
        'checkpoint-every': 0,
    }
    words = [sys.executable, '-W', 'ignore', ROOT / 'pretrain' / 'run_pretraining.py']
    words += [f'--{name}={value}' for name, value in flags.items()]
    if workers != '1':
        words = [Path(sys.executable).with_name('horovodrun'), '--gloo', '-np', workers, *words]
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': threads},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RunFailed(f'{configuration} failed:\n  ' + '\n  '.join(done.stdout.splitlines()[-9:]))
    records = [
        json.loads(line) for line in (place / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()
    ]
    return [record['tokens_per_second'] for record in records if 'tokens_per_second' in record][1:]


def table(intervals: Mapping[str, Sequence[Sequence[float]]]) -> tuple[str, dict[str, Any]]:
    """The speeds as Markdown, and the medians and ratios, of the intervals of every run by configuration."""
    first = next(iter(intervals))
    runs = {name: [statistics.median(run) for run in some] for name, some in intervals.items()}
    medians = {name: statistics.median(itertools.chain(*some)) for name, some in intervals.items()}
    ratios = {name: [one / base for one, base in zip(some, runs[first])] for name, some in runs.items()}
    rows = []
    for name, each in runs.items():
        workers, threads = map(int, name.split('x'))
        more = f'more threads than {physical_cores()} cores' if workers * threads > physical_cores() else ''
        rows.append(
            (
                name,
                f'{medians[name]:,.0f}',
                f'{min(each):,.0f}–{max(each):,.0f}',
                f'{medians[name] / medians[first]:.3f}',
                ' '.join(f'{ratio:.3f}' for ratio in ratios[name]),
                more,
            )
        )
    header = ['workers x threads', 'tokens/s', 'lowest and highest run', 'ratio to the first', 'of each turn']
    return markdown_table([*header, None], rows), {
        'medians': medians,
        'ratios': {name: medians[name] / medians[first] for name in intervals},
        'ratios_by_turn': ratios,
    }


@command
def main(argv=None):
    """Take the runs in turn and print the table."""
    recipe = parsed(
        ScalingRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python benchmarks/scaling.py bert_base --shards shards --output results/scaling.json',
    )
    intervals: dict[str, list[list[float]]] = {name: [] for name in recipe.configurations}
    with tempfile.TemporaryDirectory(prefix='scaling-') as base:
        for turn in range(recipe.repeats):
            for name in recipe.configurations:
                intervals[name].append(speeds(recipe, name, Path(base) / f'{name}-{turn}'))
                said = ' '.join(f'{value:,.0f}' for value in intervals[name][-1])
                print(f'turn {turn + 1}, {name}: {said} tokens/s', flush=True)
    text, values = table(intervals)
    print('\n' + text)
    write(recipe, tokens_per_second=intervals, **values)


if __name__ == '__main__':
    sys.exit(main())
