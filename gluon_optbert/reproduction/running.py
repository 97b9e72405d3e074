"""Running a table or a study: every network is made and fine-tuned, as far as that has not been done.

A piece is one network with all of its tasks. What is there is done, and what was interrupted continues where
it stopped. It may have been moved meanwhile, and so may its base, shards and data: ``inputs.json`` tells them
by their content. A table keeps its networks. A study removes a network when nothing is left to be made of it:
scores, selections and recipes say how to make it again, and a study whose networks are lost goes on from the
rest of its files. Several processes may share a study: each takes the pieces that no other has taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..finetuning.recipe import copy_path, result_path
from ..finetuning.recipes import (
    SquadRecipe,
    finetune_glue,
    finetune_squad,
    squad_directory,
    squad_files,
    task_directory,
)
from ..network.saved_model import WEIGHTS
from ..pruning.algorithm import forget, prune
from ..pruning.recipe import PruneRecipe
from ..runs.display import Display
from ..runs.files import InUse, read_json, running, sha256, write_file, write_json
from ..runs.recipe import Recipe, check_same, differing, save
from ..runs.run_directory import RECIPE, RunDirectory, work_directory
from ..tasks.task import find_task, official_files
from ..training.distributed import Workers
from ..training.pretrain import pretrain
from ..training.recipe import open_shards
from .held_out import measure
from .plan import SQUAD, Network, Plan
from .rows import INPUTS

# What may differ on resuming; of the file of a study, of squad1 and of squad2, what is begun tells more.
_LATER = ('study', 'rows', 'tasks', 'dry_run', 'render', 'beside', 'minutes', 'squad1', 'squad2')
_OF_BASE = ('architecture.json', WEIGHTS, 'vocab.txt', 'tokenizer_settings.json')  # which a run depends on
_PATIENCE = 60  # seconds for which another process of a study may begin
_PLACES = ('base', 'shards', 'data_glue', 'data_squad')  # which may differ where that tells their content


def run(plan: Plan, *, workers: Workers | None = None) -> int:
    """Make every network that is asked for and fine-tune it on its tasks, as far as it has not been done; the
    number of pieces that are left, where ``minutes`` ended the run, or other processes have taken them.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, an output that was begun with other settings, or a table that another process is writing.
    TrainingDiverged, Interrupted
        From the runs.
    """
    workers, recipe = workers or Workers(), plan.recipe
    now = _inputs(plan, workers)
    with contextlib.ExitStack() as stack:
        _lock(stack, plan, workers)
        begun = recipe.output / INPUTS
        known = read_json(begun) if begun.is_file() else {}
        directory = RunDirectory(recipe, may_change=_LATER + (_PLACES if known else ()), name='table ')
        _check_inputs(recipe.output, known, now)
        _check_begun(plan, known)
        directory.lay_out(workers, plan.write)
        if workers.first:
            if plan.file is not None:
                plan.write(recipe.output)  # the file may have got more rows, seeds or tasks
            if {**known, **now} != known:
                write_json(begun, {**known, **now})
        if plan.file is None:
            return _run_pieces(plan, workers)
    return _run_pieces(plan, workers)


def _lock(stack: contextlib.ExitStack, plan: Plan, workers: Workers) -> None:
    """Lock the output; one of a study, which a process locks as it begins, as soon as it is free."""
    for waited in itertools.count():
        try:
            stack.enter_context(running(plan.recipe.output, workers))
            return
        except InUse:
            if plan.file is None or waited == _PATIENCE:
                raise
            time.sleep(1)


def _run_pieces(plan: Plan, workers: Workers) -> int:
    """Run all pieces but those of other processes, as far as time allows; how many are left."""
    began, limit, chosen = time.monotonic(), plan.recipe.minutes, plan.chosen()
    # a network to be made is a job, and so is each of its fine-tunings
    total = sum(1 + len(plan.tasks_of(network)) for network in chosen)
    unit = {'unit': 'job', 'quiet': not workers.first, 'seconds': 0.0}
    title = 'study' if plan.file else f'table {plan.recipe.table}'
    waiting, before = chosen, 0
    with Display(title, total, start=total - _jobs_left(plan), **unit) as display:
        while waiting and len(waiting) != before:
            before, tried, waiting = len(waiting), waiting, []
            for network in tried:
                name = f'network {chosen.index(network) + 1}/{len(chosen)} {network.row.name}'
                minutes = workers.sum([(time.monotonic() - began) / 60], name=f'minutes {name}')[0]
                if limit is not None and minutes >= limit * workers.size:
                    return sum(not plan.done(one) for one in chosen)
                display.title = name
                claim = contextlib.nullcontext()
                if plan.file is not None:  # several processes share its pieces; all that one run makes is one
                    claim = running((plan.recipe.output / network.place).parent, workers)
                try:
                    with claim:
                        _run_piece(plan, network, workers, display)
                except InUse:
                    waiting.append(network)
    return len(waiting)


def _jobs_left(plan: Plan) -> int:
    """Of this process and of others: networks to be made, and tasks to fine-tune them on."""
    left = [network for network in plan.chosen() if not plan.done(network)]
    cells = [plan.cell(network, task) for network in left for task in plan.tasks_of(network)]
    return sum(not plan.made(network) for network in left) + sum(not cell.exists() for cell in cells)


def _run_piece(plan: Plan, network: Network, workers: Workers, display: Display) -> None:
    """Make a network and fine-tune it on its tasks, as far as that is left."""
    name = display.title

    def show() -> None:
        if workers.first and display.total is not None:
            display.advance(display.total - _jobs_left(plan) - display.done)

    if not plan.done(network):
        _make(plan, network, workers)
    show()
    if plan.file is not None:
        for one in plan.siblings(network):  # on the way to a size are those that no task asks for
            measure(plan, one, workers)
    for task in plan.tasks_of(network):
        display.title = f'{name}, {task}'
        _tune(plan, network, task, workers)
        show()
    if workers.first and plan.file is not None:
        _tidy(plan, network)
    workers.barrier(f'piece {network.place}')


def _make(plan: Plan, network: Network, workers: Workers) -> None:
    """Prune or build a network, unless it is there."""
    recipe = None if plan.made(network) else plan.making(network)
    if workers.first and recipe is not None:
        _name_places(recipe, recipe.output)
        _name_places(recipe, work_directory(recipe.output))
    workers.barrier(f'network {network.place}')  # all have looked before one writes
    if isinstance(recipe, PruneRecipe):
        prune(recipe, workers=workers, until=network.round)
    elif recipe is not None:
        if workers.first:
            shutil.rmtree(plan.model(network), ignore_errors=True)  # what `_tidy` left of it
        workers.barrier(f'place {network.place}')
        pretrain(recipe, workers=workers)


def _tune(plan: Plan, network: Network, task: str, workers: Workers) -> None:
    """Fine-tune a network on a task, unless that is done. Of a study, only scores stay.

    Of what is done, leave the copy that a killed run did not come to.
    """
    recipe, cell = plan.tuning(network, task), plan.cell(network, task)
    done, copy = cell.exists(), copy_path(recipe)
    if workers.first and not done:
        _name_places(recipe, work_directory(cell))
    workers.barrier(f'cell {network.place} {task}')
    if not done:
        tune = finetune_squad if isinstance(recipe, SquadRecipe) else finetune_glue
        tune(recipe, workers=workers)
    if workers.first and plan.file is not None:
        shutil.rmtree(cell / f'seed-{network.seed}', ignore_errors=True)
    elif workers.first and copy is not None and not copy.exists():
        write_file(copy, result_path(recipe).read_bytes())


def _tidy(plan: Plan, network: Network) -> None:
    """Remove the networks of a run from which nothing is left to be made."""
    if network.row.maker.kind == 'pruned':
        run = plan.siblings(network)
        left = [one.round for one in run if not plan.done(one)]
        made = [one.round for one in run if plan.model(one).is_dir()]
        newest = max(made, default=0) if left else 0  # the next size is cut from it
        done = [number for number in made if number not in left and number != newest]
        forget(plan.directory(network), done if left else [0, *done])
    elif network.row.maker.kind == 'built':
        (plan.model(network) / WEIGHTS).unlink(missing_ok=True)


def _begun_cells(plan: Plan) -> Iterator[tuple[Network, str, Path]]:
    """The cells that are begun or finished, with the file of their recipe."""
    for network in plan.networks:
        for task in plan.tasks_of(network) if network.row.unreachable is None else ():
            cell = plan.cell(network, task)
            files = (place / RECIPE for place in (cell, work_directory(cell)))
            yield from ((network, task, file) for file in files if file.is_file())


def _inputs(plan: Plan, workers: Workers) -> dict[str, dict[str, str | None]]:
    """Checksums of the base, the shards and the data of every task, wherever they are; None of a file that is
    not there.
    """
    recipe = plan.recipe
    files: dict[str, tuple[Path, Iterable[str]]] = {'base': (Path(str(recipe.base)), _OF_BASE)}
    for task in plan.tasks:
        if task in SQUAD:
            directory = squad_directory(recipe.data_squad, SQUAD[task], workers)
            files[task] = (directory, squad_files(SQUAD[task]).values())
        else:
            known = find_task(task)
            files[task] = (task_directory(known, recipe.data_glue, workers), official_files(known))
    inputs: dict[str, dict[str, str | None]] = {
        what: {name: sha256(place / name) if (place / name).is_file() else None for name in names}
        for what, (place, names) in files.items()
    }
    sums = {split: [file.sha256 for file in one.files] for split, one in open_shards(recipe.shards).items()}
    split_sums = {split: hashlib.sha256('\n'.join(one).encode()).hexdigest() for split, one in sums.items()}
    return {**inputs, 'shards': split_sums}


def _check_inputs(output: Path, known: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ValueError if the base, the shards or the data of a task are others than they were."""
    others = [
        f'{what} ({", ".join(sorted({name for name, _ in known[what].items() ^ now[what].items()}))})'
        for what in now
        if what in known and known[what] != now[what]
    ]
    if others:
        raise ValueError(
            f'{output} was begun with other content of {"; ".join(others)}; use the same, or another --output'
        )


def _check_begun(plan: Plan, known: Collection[str]) -> None:
    """Raise ValueError if a network or a cell was begun with other settings than it has now.

    So all cells of a task have the same settings, and nothing is run where they would not.
    """
    for network in plan.networks:
        made = plan.directory(network) / RECIPE
        if made.is_file():
            check_same(plan.making(network), made, but=('model', 'shards') if known else ())
    for network, task, begun in _begun_cells(plan):
        # what follows from where the table is may differ; the base is elsewhere
        of_the_table = network.row.maker.kind != 'base'
        told = (('model', known or of_the_table), ('data', task in known))
        free = [name for name, may_differ in told if may_differ]
        check_same(plan.tuning(network, task), begun, but=['results', *free])


def _name_places(recipe: Recipe, directory: Path) -> None:
    """Have the recipe of an unfinished run name the places of now, if it differs in nothing else."""
    begun = directory / RECIPE
    changed = set(differing(recipe, begun)) if begun.is_file() else set()
    if changed and changed <= {'output', 'results', 'model', 'shards', 'data'}:
        save(recipe, begun)
