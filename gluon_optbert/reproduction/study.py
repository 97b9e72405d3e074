"""A study: the rows of the paper's tables at every size, with several seeds of pruning, on several tasks.

    OUTPUT/recipe.yaml  study.yaml               what the study is
    OUTPUT/networks/ROW-SEED                     a pruning run, whose rounds are the sizes
    OUTPUT/networks/ROW-SIZE-SEED                a model directory of a row that is trained from scratch
    OUTPUT/cells/ROW-SEED/SIZE/TASK/result.json  scores

A piece of the study is one network with all of its tasks. What is there is done. Networks are removed when
nothing is left to be made of them: their scores, selections and recipes say how to make them again, and a
study whose networks are lost goes on from the rest of its files.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic import PositiveInt

from ..architecture.cost import ParameterCost
from ..architecture.paper import load_table
from ..finetuning.recipe import FineTuneRecipe
from ..finetuning.recipes import SquadRecipe, finetune_glue, finetune_squad
from ..network.saved_model import SavedModel
from ..pruning.algorithm import forget, prune
from ..pruning.objectives import check_heads, read_start
from ..pruning.recipe import PruneRecipe
from ..runs.display import markdown_table
from ..runs.files import running, write_file
from ..runs.recipe import RecipeError, Seed, fill, read_yaml, to_dict
from ..runs.run_directory import RunDirectory
from ..training.distributed import Workers
from ..training.pretrain import pretrain
from ..training.recipe import PretrainRecipe, TrainingRecipe, open_shards
from .estimate import gate_seconds, short_time, taught_seconds, tuning_seconds, weight_seconds
from .rows import (
    BASE,
    FORMAT,
    MAKERS,
    TABLES,
    Maker,
    Published,
    Row,
    TableRecipe,
    base_itself,
    by_share,
    nearly_whole,
    row_names,
    row_of,
    rows_of,
    slug_of,
    task_names,
)
from .table import Plan, gate_steps, pruning_of

STUDY, PLAN = 'study.yaml', 'study.json'


class StudyTask(pydantic.BaseModel):
    """A task of a study, and which of its networks are fine-tuned on it.

    Parameters
    ----------
    rows, sizes : tuple, optional
        Those that are; all unless given. The base always is.
    seeds : int, optional
        So many of the first seeds of pruning of every row; all unless given.
    settings : mapping
        Further fields of `GlueRecipe` or `SquadRecipe`.
    """

    model_config = pydantic.ConfigDict(extra='forbid', frozen=True)
    rows: tuple[str, ...] | None = None
    sizes: tuple[float, ...] | None = None
    seeds: PositiveInt | None = None
    settings: dict[str, Any] = {}


class StudyFile(pydantic.BaseModel):
    """The file of a study.

    Parameters
    ----------
    rows : mapping of str to tuple of int
        The seeds of pruning of every row, as `MAKERS` names them.
    sizes : tuple of float
        Published sizes in millions of parameters, as 66, of which each row has its share of the base; or
        shares of the objective, of 1 and less. In the order in which they are made.
    tasks : mapping of str to StudyTask
        As the tables name them.
    objective : str
        ``parameters`` or ``flops``.
    pruning, pretraining : mapping
        Further fields of `PruneRecipe`, and of `PretrainRecipe` for rows that are trained from scratch.
    scratch_steps : int, optional
        Of rows that are trained from scratch.
    """

    model_config = pydantic.ConfigDict(extra='forbid', frozen=True)
    rows: dict[str, tuple[Seed, ...]]
    sizes: tuple[pydantic.PositiveFloat, ...]
    tasks: dict[str, StudyTask]
    objective: str = 'parameters'
    pruning: dict[str, Any] = {}
    pretraining: dict[str, Any] = {}
    scratch_steps: PositiveInt | None = None

    @classmethod
    def read(cls, path: Path) -> StudyFile:
        """The study in a YAML file; RecipeError with everything that is wrong with it."""
        try:
            study = cls(**read_yaml(path))
        except pydantic.ValidationError as error:
            places = ('.'.join(map(str, one['loc'])) + ': ' + one['msg'] for one in error.errors())
            raise RecipeError([f'{path}: {place}' for place in places]) from error
        known = {'row': set(MAKERS) - {'BERT-base', 'bert_base'}, 'task': set(task_names(load_table(8)))}
        asked = {'row': [*study.rows], 'task': [*study.tasks]}
        asked['row'] += [row for task in study.tasks.values() for row in task.rows or () if row != BASE]
        unknown = [
            f'{path}: there is no {what} {name!r}; there are {", ".join(sorted(known[what]))}'
            for what, names in asked.items()
            for name in names
            if name not in known[what]
        ]
        if unknown:
            raise RecipeError(unknown)
        return study


@dataclasses.dataclass(frozen=True)
class Network:
    """A row at a size, pruned with a seed.

    Parameters
    ----------
    row : Row
        With its share, or why it cannot be had.
    size : float, optional
        As the study's file has it; None of the base.
    seed : int
    round : int
        Of its pruning run; 0 of a network that is not pruned.
    """

    row: Row
    size: float | None
    seed: int
    round: int = 0

    @property
    def run(self) -> str:
        """The name of the run that makes it; all sizes of a pruned row are made by one."""
        size = f'-{size_name(self.size)}' if self.row.maker.kind == 'built' and self.size else ''
        return f'{self.row.slug}{size}-{self.seed}'

    @property
    def place(self) -> Path:
        """Of its cells."""
        return Path(f'{self.row.slug}-{self.seed}') / (size_name(self.size) if self.size else 'whole')


def size_name(size: float) -> str:
    """A size as a directory, and for people: ``66M``, or ``0.5``."""
    return f'{size:g}M' if size > 1 else f'{size:g}'


@dataclasses.dataclass(frozen=True)
class Study:
    """A study on a base: its networks, and the recipe of everything that is run for them.

    Parameters
    ----------
    recipe : TableRecipe
    file : StudyFile
    base : SavedModel
    networks : tuple of Network
        In the order in which they are made; with those out of reach.
    """

    recipe: TableRecipe
    file: StudyFile
    base: SavedModel
    networks: tuple[Network, ...]

    @classmethod
    def open(cls, recipe: TableRecipe) -> Study:
        """A study, checked: its file, the base and the shards.

        Raises
        ------
        ValueError, FileNotFoundError
        """
        assert recipe.study is not None
        file, base = StudyFile.read(recipe.study), read_start(Path(str(recipe.base)))
        shards = open_shards(Path(str(recipe.shards)), base.vocabulary)['train']
        check_heads(base, shards, recipe.base)
        whole = Row(BASE, BASE, Maker('base', base_itself), 1.0, base.architecture)
        of_table = _rows_by_size(base)
        networks = [Network(whole, None, 1)]
        for name, seeds in file.rows.items():
            rows = {size: _row(name, size, base, of_table) for size in file.sizes}
            made = {size: row for size, row in rows.items() if row is not None}
            reached = sorted((size for size, row in made.items() if row.unreachable is None), reverse=True)
            networks += [
                Network(row, size, seed, reached.index(size) + 1 if size in reached else 0)
                for seed in seeds
                for size, row in made.items()
            ]
        # the first size of all rows with their first seeds, then with their second ones, then the next size
        place = {name: i for i, name in enumerate(file.rows)}
        networks[1:] = sorted(
            networks[1:],
            key=lambda one: (
                file.sizes.index(one.size),
                file.rows[one.row.name].index(one.seed),
                place[one.row.name],
            ),
        )
        study = cls(recipe, file, base, tuple(networks))
        for network in study.reachable():
            if network.row.maker.kind != 'base':
                study.making(network)
            for task in study.tasks(network):
                study.tuning(network, task)
        return study

    def reachable(self) -> list[Network]:
        """The networks that can be had on this base."""
        return [network for network in self.networks if network.row.unreachable is None]

    def tasks(self, network: Network) -> list[str]:
        """Those that a network is fine-tuned on."""
        if network.size is None:
            return list(self.file.tasks)
        seeds = self.file.rows[network.row.name]
        return [
            name
            for name, task in self.file.tasks.items()
            if (task.rows is None or network.row.name in task.rows)
            and (task.sizes is None or network.size in task.sizes)
            and (task.seeds is None or network.seed in seeds[: task.seeds])
        ]

    def _plan(self, maker: Maker | None = None) -> Plan:
        """The settings of one table, which those of the study's runs follow."""
        values = {'study': None, 'table': 8, 'minutes': None, 'pruning': self.file.pruning}
        values['pretraining'] = self.file.pretraining
        recipe = TableRecipe.model_construct(**{**dict(self.recipe), **values})
        pruning = pruning_of(recipe, self.base, maker)
        return Plan(recipe, load_table(8), self.base, (), (), {}, pruning, self.file.scratch_steps)

    def directory(self, network: Network) -> Path:
        """Of the run that makes a network."""
        return self.recipe.output / 'networks' / network.run

    def model(self, network: Network) -> Path:
        """The model directory of a network."""
        return {
            'base': Path(str(self.recipe.base)),
            'built': self.directory(network),
            'pruned': self.directory(network) / f'round-{network.round}' / 'model',
        }[network.row.maker.kind]

    def making(self, network: Network) -> TrainingRecipe:
        """The run that makes a network; of a pruned one, the ladder of all sizes of its row."""
        maker = network.row.maker
        plan = self._plan(maker)
        if maker.kind == 'built':
            scratch = plan.row_recipe(network.row)
            return scratch.replace(output=self.directory(network), seed=network.seed)
        ladder = {one.round: one.row.share for one in self.reachable() if one.run == network.run}
        values = {
            'output': str(self.directory(network)),
            'method': maker.method,
            'prune': maker.prune,
            'targets': [ladder[i] for i in sorted(ladder)],
            'seed': network.seed,
            'objective': self.file.objective,
            'alpha_steps': plan.pruning.alpha_steps if maker.trains_gates else gate_steps(plan.pruning),
        }
        return fill(PruneRecipe, {**to_dict(plan.pruning), **values}, source=network.run)

    def cell(self, network: Network, task: str) -> Path:
        """Where a network is fine-tuned on a task."""
        return self.recipe.output / 'cells' / network.place / slug_of(task)

    def tuning(self, network: Network, task: str) -> FineTuneRecipe:
        """The fine-tuning of a network on a task; its seed is that of the network."""
        recipe = self._plan().cell_recipe(network.row, task)
        own = {'model': str(self.model(network)), 'output': str(self.cell(network, task)), 'results': None}
        own |= {'seeds': [network.seed], 'resume': True}
        values = {**to_dict(recipe), **self.file.tasks[task].settings, **own}
        return fill(type(recipe), values, source=f'{self.recipe.study}: {task}')

    def write(self, directory: Path) -> None:
        """Leave the file of the study, and what rendering has to know of it."""
        write_file(directory / STUDY, Path(str(self.recipe.study)).read_bytes())
        networks = [
            {
                'row': one.row.name,
                'how': one.row.maker.sentence(),
                'size': one.size,
                'seed': one.seed,
                'place': str(one.place),
                'share': one.row.share,
                'unreachable': one.row.unreachable,
                'tasks': self.tasks(one),
            }
            for one in self.networks
        ]
        pruning = self._plan().pruning
        plan = {
            'format': FORMAT,
            'base': str(self.recipe.base),
            'base_parameters': int(ParameterCost().cost(self.base.architecture)),
            'objective': self.file.objective,
            'alpha_steps': gate_steps(pruning),
            'alpha_steps_auto': pruning.alpha_steps == 'auto',
            'recovery_steps': pruning.recovery_steps,
            'scratch_steps': self.file.scratch_steps,
            'networks': networks,
        }
        write_file(directory / PLAN, (json.dumps(plan, indent=1) + '\n').encode())

    def done(self, network: Network) -> bool:
        """Whether every task of a network is done."""
        return all(self.cell(network, task).exists() for task in self.tasks(network))


def _rows_by_size(base: SavedModel) -> Mapping[tuple[str, float], Row]:
    """The rows of the paper's tables of several sizes, by name and published size."""
    found: dict[tuple[str, float], Row] = {}
    for number in TABLES[1:]:
        table = load_table(number)
        own = [name not in ('BERT-base', 'ALBERT-e') for name in row_names(table)]
        sizes = [float(record['parameters_m']) for record, counts in zip(table.records(), own) if counts]
        found.update({(row.name, max(sizes)): row for row in rows_of(table, base.architecture)})
    return found


def _row(name: str, size: float, base: SavedModel, of_table: Mapping[tuple[str, float], Row]) -> Row | None:
    """A row at a size; None if the paper has none of this size and it cannot be had by its share."""
    if (name, size) in of_table:
        return of_table[name, size]
    if MAKERS[name].size not in (by_share, nearly_whole):
        return None
    if size > 1:
        return row_of(name, Published(name, size, None), base.architecture)
    row = row_of(name, Published(name, 108.0, None), base.architecture)
    return dataclasses.replace(row, share=size if MAKERS[name].size is by_share else 1 - 1e-3 * (1 - size))


def run(study: Study, *, workers: Workers | None = None) -> int:
    """Make the networks and fine-tune them, piece by piece, as far as it has not been done.

    Parameters
    ----------
    study : Study
    workers : Workers, optional
        Those of this job; by default those that the environment names.

    Returns
    -------
    int
        The pieces that are left, where ``minutes`` ended the run.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError, TrainingDiverged, Interrupted
        As of a table.
    """
    workers, began, recipe = workers or Workers(), time.monotonic(), study.recipe
    with running(recipe.output, workers):
        directory = RunDirectory(recipe, may_change=('resume', 'dry_run', 'render', 'minutes'), name='study ')
        directory.lay_out(workers, study.write)
        left = [network for network in study.reachable() if not study.done(network)]
        for i, network in enumerate(left):
            minutes = workers.sum([(time.monotonic() - began) / 60], name=f'minutes {i}')[0] / workers.size
            if recipe.minutes is not None and minutes >= recipe.minutes:
                return len(left) - i
            _make(study, network, workers)
            for task in study.tasks(network):
                _tune(study, network, task, workers)
            if workers.first:
                _tidy(study, network)
            workers.barrier(f'piece {network.place}')
    return 0


def _make(study: Study, network: Network, workers: Workers) -> None:
    """Make a network that is not there."""
    there = study.model(network).is_dir()
    workers.barrier(f'network {network.place}')  # all have looked before one writes
    if there:
        return
    recipe = study.making(network)
    if isinstance(recipe, PruneRecipe):
        recipe = recipe.replace(resume=study.directory(network).exists())
        prune(recipe, workers=workers, until=network.round)
    else:
        assert isinstance(recipe, PretrainRecipe)
        pretrain(recipe, workers=workers)


def _tune(study: Study, network: Network, task: str, workers: Workers) -> None:
    """Fine-tune a network on a task, and keep the scores alone."""
    recipe, done = study.tuning(network, task), study.cell(network, task).exists()
    workers.barrier(f'cell {network.place} {task}')
    if not done:
        tune = finetune_squad if isinstance(recipe, SquadRecipe) else finetune_glue
        tune(recipe, workers=workers)
        if workers.first:
            shutil.rmtree(study.cell(network, task) / f'seed-{network.seed}', ignore_errors=True)


def _tidy(study: Study, network: Network) -> None:
    """Remove the networks of a run from which nothing is left to be made."""
    kind, run = network.row.maker.kind, [one for one in study.reachable() if one.run == network.run]
    if kind == 'pruned':
        left = [one.round for one in run if not study.done(one)]
        made = [one.round for one in run if study.model(one).is_dir()]
        newest = max(made, default=0) if left else 0  # the next size is cut from it
        done = [number for number in made if number not in left and number != newest]
        forget(study.directory(network), done if left else [0, *done])
    elif kind == 'built':
        (study.model(network) / 'model.params').unlink(missing_ok=True)


# How long it takes


def estimate(study: Study, workers: Workers) -> list[dict[str, Any]]:
    """Seconds of every piece that is left, from a few timed steps on the base: what is cut is faster.

    Returns
    -------
    list of dict
        ``piece``, ``making`` and, by task, ``tuning``; repairs are not counted.
    """
    times: dict[str, float] = {}

    def timed(name: str, measure: Callable[..., Any], recipe: Any) -> float:
        if name not in times:
            seconds = measure(study.base, recipe, workers)
            times[name] = seconds[0] if isinstance(seconds, tuple) else seconds
        return times[name]

    def round_seconds(recipe: PruneRecipe) -> float:
        gates = (1 + recipe.split_half) * gate_steps(recipe) if recipe.trains_gates else 0
        seconds = gates * timed('gates', gate_seconds, recipe) if gates else 0.0
        kind = ('recovery', weight_seconds) if recipe.teacher is None else ('taught', taught_seconds)
        return seconds + (recipe.recovery_steps or 0) * timed(*kind, recipe)

    pieces, counted = [], set()
    for network in study.reachable():
        if study.done(network):
            continue
        making = 0.0
        if network.row.maker.kind != 'base' and not study.model(network).is_dir():
            recipe = study.making(network)
            if isinstance(recipe, PruneRecipe):
                rounds = {(network.run, number + 1) for number in range(network.round)} - counted
                counted |= rounds
                making = len(rounds) * round_seconds(recipe)
            else:
                making = recipe.steps * timed('scratch', weight_seconds, recipe)
        tuning = {
            task: timed(task, tuning_seconds, study.tuning(study.networks[0], task))
            for task in study.tasks(network)
            if not study.cell(network, task).exists()
        }
        pieces.append({'piece': network, 'making': making, 'tuning': tuning})
    return pieces


def readable(study: Study, pieces: Sequence[Mapping[str, Any]]) -> str:
    """The pieces that are left as a Markdown table, summed by size and seed."""
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for one in pieces:
        network = one['piece']
        groups.setdefault((size_name(network.size) if network.size else BASE, network.seed), []).append(one)
    tasks, rows = list(study.file.tasks), []
    for (size, seed), group in groups.items():
        making = sum(one['making'] for one in group)
        tuning = [sum(one['tuning'].get(task, 0.0) for one in group) for task in tasks]
        longest = max(one['making'] + sum(one['tuning'].values()) for one in group)
        seconds = [making, *tuning, making + sum(tuning), longest]
        rows.append([size, str(seed), str(len(group)), *map(short_time, seconds)])
    whole = sum(one['making'] + sum(one['tuning'].values()) for one in pieces)
    head = ['size', 'seed', 'networks', 'making', *tasks, 'in all', 'longest piece']
    lines = [markdown_table(head, rows), '']
    lines += [
        f'not reachable: {one.row.name} at {size_name(one.size or 1)}: {one.row.unreachable}'
        for one in study.networks
        if one.row.unreachable and one.seed == min(study.file.rows[one.row.name])
    ]
    done = len(study.reachable()) - len(pieces)
    return '\n'.join([*lines, f'{done} pieces are done, {len(pieces)} are left; in all {short_time(whole)}'])
