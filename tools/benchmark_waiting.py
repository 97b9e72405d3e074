"""Time a forward pass alone and beside a program that keeps one processor busy, by threads and how they wait.

A way such as 2x1000 is two threads, each of which spins 1,000 times (GOMP_SPINCOUNT) for more work before it
sleeps. The ways take turns, and each has a process of its own, which computes the export in plain MXNet. The
busy program is an endless loop in a session of its own, as if it had been started in another terminal. Run
nothing else meanwhile; the load average is printed, so that a reader can tell.
"""

from __future__ import annotations

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
from timed_networks import random_export
from workers import PAUSE, SCRIPTS, Worker, busy_program

from gluon_optbert.deployment.mxnet_network import read_deployment
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict

WAY = re.compile(r'([1-9]\d?)x(\d+)')
Times = Dict[str, Dict[str, List[float]]]


class WaitingRecipe(Recipe):
    """What is timed."""

    network: str = option('deployment directory, or the name of an architecture')
    ways: tuple[str, ...] = option(
        'threads x spins; the first is what the others are compared with', ('2x1000', '2x0', '2x5000', '1x0')
    )
    batch: int = option('sequences of a pass', 1)
    length: int = option('tokens of a sequence', 64)
    passes: int = option('timed passes of each way in a turn', 50)
    turns: int = option('turns, each alone and beside the busy program', 4)
    output: Path | None = option('JSON file to write', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        return (
            [
                f'{name} must be at least 1, found {getattr(self, name)}'
                for name in ('batch', 'length', 'passes', 'turns')
                if getattr(self, name) < 1
            ]
            + [
                f'ways are like 2x1000, threads x spins, found {text!r}'
                for text in self.ways
                if not WAY.fullmatch(text)
            ]
            + (['ways: give each once'] if len(set(self.ways)) < len(self.ways) else [])
        )


def measure(workers: Mapping[str, Worker], recipe: WaitingRecipe) -> Times:
    """Milliseconds of every pass, by way and by what ran beside it."""
    times: Times = {way: {'alone': [], 'beside': []} for way in workers}
    shape = {'batch': recipe.batch, 'length': recipe.length}
    for worker in workers.values():
        worker.ask(**shape, runs=5)  # builds the graph
    for _ in range(recipe.turns):
        for name, beside in (('alone', contextlib.nullcontext()), ('beside', busy_program())):
            with beside:
                for way, worker in workers.items():
                    times[way][name] += worker.ask(**shape, runs=recipe.passes)['ms']
                    time.sleep(PAUSE)
    return times


def summary(times: Times) -> Dict[str, Dict[str, Any]]:
    """Mean, median and percentiles of each way, alone and beside; and its medians over the first way's."""
    values: Dict[str, Dict[str, Any]] = {}
    for way, by_name in times.items():
        values[way] = {}
        for name, milliseconds in by_name.items():
            low, median, high = np.percentile(milliseconds, [10, 50, 90])
            values[way][name] = {
                'mean_ms': float(np.mean(milliseconds)),
                'median_ms': median,
                'p10_ms': low,
                'p90_ms': high,
            }
    first = next(iter(values.values()))['alone']['median_ms']
    for by_name in values.values():
        for one in by_name.values():
            one['over_first_alone'] = one['median_ms'] / first
    return values


def table(values: Mapping[str, Mapping[str, Any]]) -> str:
    """The ways as Markdown: median, mean and spread, alone and beside the busy program."""
    rows = [
        (
            way,
            *(
                text
                for one in (by_name['alone'], by_name['beside'])
                for text in (
                    f'{one["median_ms"]:.2f} ms',
                    f'{one["mean_ms"]:.2f} ms',
                    f'{one["p10_ms"]:.2f} – {one["p90_ms"]:.2f} ms',
                    f'{one["over_first_alone"]:.2f}',
                )
            ),
        )
        for way, by_name in values.items()
    ]
    columns = ['mean', '10 % – 90 %', 'of the first']
    header = ['threads x spins', 'alone, median', *columns, 'beside, median', *columns]
    return markdown_table(header, rows)


@command
def main(argv=None):
    """Start a worker for each way, time them, print the table."""
    recipe = parse(
        WaitingRecipe,
        argv,
        description=__doc__,
        positional='network',
        example='python tools/benchmark_waiting.py l6_h384_a12 --length 128',
    )
    if recipe.output:
        refuse_existing(recipe.output)
    load_before = os.getloadavg()[0]
    workers: Dict[str, Worker] = {}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(recipe.network)
        if not directory.is_dir():
            directory = random_export(recipe.network, Path(place) / 'export', onnx=False)
        longest = read_deployment(directory).architecture.max_length
        if recipe.length > longest:
            raise ValueError(f'length: at most {longest} tokens, found {recipe.length}')
        try:
            for way in recipe.ways:
                threads, spins = WAY.fullmatch(way).groups()
                words = [sys.executable, SCRIPTS / 'symbol.py', directory.absolute(), threads]
                settings = {'GOMP_SPINCOUNT': spins, 'MXNET_USE_OPERATOR_TUNING': '0'}
                workers[way] = Worker(way, words, threads=int(threads), settings=settings)
            values = summary(measure(workers, recipe))
        finally:
            for worker in workers.values():
                worker.close()
    load = {'before': load_before, 'after': os.getloadavg()[0]}
    print(table(values))
    print(
        f'\n{recipe.batch}x{recipe.length} tokens, {recipe.turns} turns of {recipe.passes} passes; load '
        f'average {load["before"]:.1f} before and {load["after"]:.1f} after, the busy program counted'
    )
    if recipe.output:
        result = {'recipe': to_dict(recipe), 'ways': values, 'load': load, **origin_here()}
        write_file(recipe.output, (json.dumps(result, indent=1) + '\n').encode())
        print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
