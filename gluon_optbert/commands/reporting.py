"""The commands that tell what runs came to: a page of them, and the tables of the paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from pydantic import PositiveInt

from ..architecture.architecture import Architecture
from ..deployment.description import SYMBOL
from ..deployment.mxnet_network import time_exports
from ..reporting.figures import STYLE
from ..reporting.networks import (
    LENGTH,
    Measured,
    Run,
    labels_of,
    networks_of_runs,
    read_result,
    read_run,
    with_model,
    with_result,
)
from ..reporting.page import page
from ..reporting.sections import chapter, environment, side_by_side
from ..reporting.verdict import Timing, verdict
from ..reproduction.results import TABLE
from ..runs.command_line import command, parse
from ..runs.display import doing, number_of, tracked
from ..runs.files import new_output, write_file
from ..runs.machine import machine
from ..runs.recipe import Recipe, option
from ..runs.starting import line, what_it_is

REPEATS = 30  # timed passes of each network, four times as many on a busy machine
CALM = 1.25  # how many times as long as the fastest pass half of the passes take at most on a free machine


class ReportRecipe(Recipe):
    """Recipe of a report: runs and output."""

    runs: tuple[Path, ...] = option(
        'result files, or directories of pruning runs, fine-tuning runs, models, searches, comparisons and '
        'tables'
    )
    output: Path = option('HTML file to write')
    time: bool = option('whether to time a forward pass of every network, in turn', True)
    batch: PositiveInt = option('sequences of a pass that is timed', 1)

    def problems(self) -> list[str]:
        """Contradictory fields."""
        problems = [] if self.runs else ['runs are missing: give at least one run, model or result']
        useless = not (self.time or self.is_default('batch'))
        return super().problems() + problems + ['--batch goes with --time true'] * useless


def read_networks(paths: Sequence[Path], labels: Sequence[str], runs: Sequence[Run]) -> list[Measured]:
    """The networks of runs, models and results of fine-tuning, each once."""
    networks = networks_of_runs(runs)
    for path, label in zip(paths, labels):
        file = path / 'architecture.json'
        if file.is_file():
            networks = with_model(networks, Measured(label, Architecture.read(file), path))
    for path, label in zip(paths, labels):
        result = read_result(path)
        if result is not None:
            networks = with_result(networks, label, result)
    return networks


def timed(networks: Sequence[Measured], batch: int = 1) -> tuple[list[Measured], Timing]:
    """The networks with the time that each takes here for so many sequences, and how it was measured.

    The fastest pass counts. On a busy machine more passes are taken, until one of each network is likely to
    have had a processor for itself.
    """
    length = min([LENGTH, *(network.architecture.max_length for network in networks)])
    architectures = {place: network.architecture for place, network in enumerate(networks)}
    for repeats in (REPEATS, 4 * REPEATS):
        times = time_exports(architectures, batch=batch, length=length, repeats=repeats)
        waiting = max(float(np.median(values) / values.min()) for values in times.values())
        if waiting <= CALM:
            break
    here = machine()
    how = (
        f'Time: the fastest of {repeats} forward passes of {number_of(batch, "sequence")} of {length} '
        f'tokens. The networks took turns in one process, each as a float32 export with its widths and '
        f'random weights. Threads: {here["threads"]}. Processor: {here["cpu"]}.'
    )
    if waiting > CALM:
        how += (
            f' The machine was busy: half of the passes took {waiting:.1f} times as long as the fastest, or '
            f'more. Measure again on a free machine.'
        )
    fastest = {place: float(times_of.min()) for place, times_of in times.items()}
    networks = [
        dataclasses.replace(network, latency_ms=fastest[place]) for place, network in enumerate(networks)
    ]
    return networks, Timing(how, busy=waiting > CALM)


def opening(recipe: ReportRecipe, labels: Sequence[str], runs: Sequence[Run]) -> str:
    """The verdict on the networks of the page; nothing where there is none."""
    networks, timing = read_networks(recipe.runs, labels, runs), Timing()
    if recipe.time and verdict(networks) is not None:
        networks, timing = timed(networks, recipe.batch)
    return verdict(networks, timing=timing) or ''


def page_of(recipe: ReportRecipe) -> str:
    """The page of a report, as HTML; FileNotFoundError or ValueError if a path is of no kind it tells of."""
    for path in recipe.runs:
        if (path / SYMBOL).is_file():
            raise ValueError(f'{path} is an export; give the model directory that was exported')
        if (path / 'config.json').is_file():
            raise ValueError(f'{path}: {what_it_is(path)}')
    labels = labels_of(recipe.runs)
    with matplotlib.rc_context(STYLE):
        chapters = [
            chapter(path, label, readers=[TABLE])
            for path, label in tracked(list(zip(recipe.runs, labels)), 'drawing', len(labels), unit='run')
        ]
        with doing('comparing networks'):
            runs = [
                read_run(path, label)
                for path, label in zip(recipe.runs, labels)
                if (path / 'rounds.json').is_file()
            ]
            beside, verdict_text = side_by_side(runs), opening(recipe, labels, runs)
    return page(
        f'Report: {", ".join(labels)}',
        ([beside] if beside else []) + chapters,
        opening=verdict_text,
        note=environment(),
    )


@command
def report(argv=None):
    """Make one HTML page: how much worse, smaller and faster pruned networks are than their base, and
    everything else about runs, models, results and tables. The page opens from disk and loads nothing.
    """
    example = line('optbert-report', 'runs/pruned', 'runs/sst2-base', 'runs/sst2', '--output', 'report.html')
    recipe = parse(ReportRecipe, argv, description=report.__doc__, example=example, positional='runs')
    with new_output(recipe.output):
        content = page_of(recipe)
        write_file(recipe.output, content.encode('utf-8'))
    print(f'wrote {recipe.output}: {len(content) / 1e6:.1f} MB, opens in any browser')


@command
def table(argv=None):
    """Run a whole results table of the paper on a base network: prune or build every row, fine-tune it, and
    tabulate it.
    """
    from ..reproduction.estimate import Times, readable
    from ..reproduction.plan import plan
    from ..reproduction.recipe import TableRecipe
    from ..reproduction.results import write_tables
    from ..reproduction.running import run
    from ..reproduction.study_page import write_study
    from ..training.distributed import Workers

    words = ['--table', 8, '--base', 'models/small', '--shards', 'shards', '--tasks', 'mrpc,rte']
    words += ['--data-glue', 'glue', '--output', 'runs/table8', '--dry-run']
    recipe = parse(TableRecipe, argv, description=table.__doc__, example=line('optbert-table', *words))
    workers, is_study = Workers(), recipe.study is not None
    if not recipe.render:
        with doing('reading the base and the data', quiet=not workers.first):
            planned = plan(recipe, workers=workers)
        if is_study or recipe.dry_run:
            with doing('measuring some steps', quiet=not workers.first):
                estimate = readable(planned, Times(planned.base, workers))
            if workers.first:
                print(estimate, flush=True)
        if recipe.dry_run:
            return
        left = run(planned, workers=workers)
        if workers.first and left:
            print(f'{left} networks are left, or are made by other processes; go on with --resume')
    if workers.first and is_study:
        written = write_study(recipe.output, recipe.beside)
        print(f'wrote {len(written)} files; begin with {written[0]}')
    elif workers.first:
        written = write_tables(recipe.output, recipe.table)
        print((recipe.output / 'table.md').read_text(encoding='utf-8'))
        following = line('optbert-report', recipe.output, '--output', 'report.html')
        print(f'wrote {", ".join(path.name for path in written)} in {recipe.output}\nnext: {following}')
