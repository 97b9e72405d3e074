"""Time pre-training by one worker with several threads and by several workers with one thread each, in turn.

Every run is `pretrain/run_pretraining.py` as a user starts it, with the same shards, seed and batch over all
workers; what counts is `tokens_per_second` of its metrics without the first interval. Nothing else should run
meanwhile."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measured import ROOT, Measured, parsed, write
from pydantic import PositiveInt

from gluon_optbert.network.settings import TRAINING_PRECISIONS
from gluon_optbert.reporting.curves import read_metrics
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.recipe import option


class ScalingRecipe(Measured):
    """The training to time."""

    shards: Path = option('directory of shards')
    architecture: str = option("its name: l6_h384_a12 has MiniLM's widths, bert_base BERT's", 'l6_h384_a12')
    configurations: tuple[str, ...] = option(
        'workers x threads of each; the first is what the others are compared with', ('1x2', '2x1', '4x1')
    )
    batch_size: PositiveInt = option('sequences a step, over all workers', 256)
    precision: str = option('of the matrix products', 'float32', choices=TRAINING_PRECISIONS)
    interval: PositiveInt = option('steps of an interval', 1)
    intervals: PositiveInt = option('timed intervals of a run, after one that is not', 3)
    repeats: PositiveInt = option('runs of each configuration, taken in turn', 3)


def speeds(recipe: ScalingRecipe, configuration: str, place: Path) -> list[float]:
    """Tokens a second of every timed interval of one run; RunFailed with its last lines if it fails."""
    workers, threads = configuration.split('x')
    flags = {
        'architecture': recipe.architecture,
        'shards': recipe.shards,
        'output': place,
        'batch-size': recipe.batch_size,
        'precision': recipe.precision,
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
    records = read_metrics(place / 'metrics.jsonl')
    return [record['tokens_per_second'] for record in records if 'tokens_per_second' in record][1:]


def summary(intervals: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Medians of the intervals of every run by configuration, and their ratios to the first."""
    first = next(iter(intervals))
    runs = {name: [statistics.median(run) for run in some] for name, some in intervals.items()}
    medians = {name: statistics.median(itertools.chain(*some)) for name, some in intervals.items()}
    return {
        'medians': medians,
        'ratios': {name: medians[name] / medians[first] for name in intervals},
        'ratios_by_turn': {
            name: [one / base for one, base in zip(some, runs[first])] for name, some in runs.items()
        },
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
    values = summary(intervals)
    rows = [
        (name, f'{median:,.0f}', f'{values["ratios"][name]:.3f}', *map('{:.3f}'.format, turns))
        for (name, median), turns in zip(values['medians'].items(), values['ratios_by_turn'].values())
    ]
    turns = [f'in turn {turn + 1}' for turn in range(recipe.repeats)]
    print('\n' + markdown_table(['workers x threads', 'tokens/s', 'ratio to the first', *turns], rows))
    write(recipe, tokens_per_second=intervals, **values)


if __name__ == '__main__':
    sys.exit(main())
