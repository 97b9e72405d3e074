"""Time pre-training by one worker with several threads and by several workers with one thread each, in turn.

Every run is `pretrain/run_pretraining.py` as a user starts it, with the same shards, seed and batch over all
workers; what counts is `tokens_per_second` of its metrics without the first interval. Nothing else should run
meanwhile."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.files import refuse_existing, write_file
from gluon_optbert.runs.machine import origin_here, physical_cores
from gluon_optbert.runs.recipe import Recipe, option, to_dict

ROOT = Path(__file__).resolve().parents[1]
WANTED = {'2x1': 0.90}  # of one worker with two threads
CONFIGURATION = re.compile(r'([1-9]\d?)x([1-9]\d?)')


class ScalingRecipe(Recipe):
    """What is timed."""

    shards: Path = option('directory of shards')
    architecture: str = option("its name: l6_h384_a12 has MiniLM's widths, bert_base BERT's", 'l6_h384_a12')
    configurations: tuple[str, ...] = option(
        'workers x threads of each; the first is what the others are compared with', ('1x2', '2x1', '4x1')
    )
    batch_size: int = option('sequences a step, over all workers', 256)
    accumulate: int = option('passes that a worker splits its share of a batch into', 1)
    interval: int = option('steps of an interval', 1)
    intervals: int = option('timed intervals of a run, after one that is not', 3)
    repeats: int = option('runs of each configuration, taken in turn', 3)
    output: Path | None = option('JSON file to write', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        problems = [
            f'{name} must be at least 1, found {getattr(self, name)}'
            for name in ('batch_size', 'accumulate', 'interval', 'intervals', 'repeats')
            if getattr(self, name) < 1
        ]
        problems += [
            f'configurations are like 2x1, workers x threads, found {text!r}'
            for text in self.configurations
            if not CONFIGURATION.fullmatch(text)
        ]
        if not problems:
            problems += [
                f'batch_size {self.batch_size} does not divide among {text.split("x")[0]} workers with '
                f'{self.accumulate} passes'
                for text in self.configurations
                if self.batch_size % (int(text.split('x')[0]) * self.accumulate)
            ]
        if len(set(self.configurations)) < len(self.configurations):
            problems.append('configurations: give each once; results are named after them')
        return problems


def speeds(recipe: ScalingRecipe, configuration: str, place: Path) -> List[float]:
    """Tokens a second of every timed interval of one run.

    Raises
    ------
    RunFailed
        If the run does; with its last lines.
    """
    workers, threads = configuration.split('x')
    steps = recipe.interval * (1 + recipe.intervals)
    words = [
        sys.executable,
        '-W',
        'ignore',
        str(ROOT / 'pretrain' / 'run_pretraining.py'),
        '--architecture',
        recipe.architecture,
        '--shards',
        str(recipe.shards),
        '--output',
        str(place),
        '--batch-size',
        str(recipe.batch_size),
        '--accumulate',
        str(recipe.accumulate),
        '--steps',
        str(steps),
        '--log-every',
        str(recipe.interval),
        '--evaluate-every',
        '0',
        '--evaluation-limit',
        '1',
        '--checkpoint-every',
        '0',
    ]
    if workers != '1':
        words = [str(Path(sys.executable).with_name('horovodrun')), '--gloo', '-np', workers, *words]
    done = subprocess.run(
        words,
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


def table(intervals: Dict[str, List[List[float]]]) -> Tuple[List[str], Dict[str, Any]]:
    """The lines to print, and the medians and ratios.

    Parameters
    ----------
    intervals : dict of configuration to the intervals of each of its runs, in the order they were taken
    """
    first = next(iter(intervals))
    medians = {
        name: statistics.median(value for run in runs for value in run) for name, runs in intervals.items()
    }
    ratios = {
        name: [statistics.median(run) / statistics.median(base) for run, base in zip(runs, intervals[first])]
        for name, runs in intervals.items()
    }
    rows = []
    for name, runs in intervals.items():
        workers, threads = map(int, name.split('x'))
        each = sorted(statistics.median(run) for run in runs)
        wanted = f'{WANTED[name]:.2f}' if name in WANTED and first == '1x2' else ''
        more = f'more threads than {physical_cores()} cores' if workers * threads > physical_cores() else ''
        rows.append(
            (
                name,
                f'{medians[name]:,.0f}',
                f'{each[0]:,.0f}–{each[-1]:,.0f}',
                f'{medians[name] / medians[first]:.3f}',
                ' '.join(f'{ratio:.3f}' for ratio in ratios[name]),
                wanted,
                more,
            )
        )
    header = ['workers x threads', 'tokens/s', 'lowest and highest run', 'ratio to the first', 'of each turn']
    return markdown_table([*header, 'wanted', None], rows).split('\n'), {
        'medians': medians,
        'ratios': {name: medians[name] / medians[first] for name in intervals},
        'ratios_by_turn': ratios,
    }


@command
def main(argv=None):
    """Take the runs in turn and print the table."""
    recipe = parse(
        ScalingRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python benchmarks/scaling.py bert_base --shards shards --output results/scaling.json',
    )
    if recipe.output:
        refuse_existing(recipe.output)
    origin = origin_here()
    intervals: Dict[str, List[List[float]]] = {name: [] for name in recipe.configurations}
    with tempfile.TemporaryDirectory(prefix='scaling-') as base:
        for turn in range(recipe.repeats):
            for name in recipe.configurations:
                intervals[name].append(speeds(recipe, name, Path(base) / f'{name}-{turn}'))
                print(
                    f'turn {turn + 1}, {name}: {" ".join(f"{value:,.0f}" for value in intervals[name][-1])} '
                    f'tokens/s',
                    flush=True,
                )
    lines, values = table(intervals)
    print('\n' + '\n'.join(lines))
    if recipe.output:
        write_file(
            recipe.output,
            (
                json.dumps(
                    {'recipe': to_dict(recipe), 'tokens_per_second': intervals, **values, **origin}, indent=1
                )
                + '\n'
            ).encode(),
        )
        print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
