"""The networks of a results table or of a study, and the recipe of everything that is run for them.

A table is a study of one table's rows: each at its published size, with one seed of pruning.

    TABLE/recipe.yaml, plan.json                what the table is
    TABLE/inputs.json                           the content of the base, the shards and the data of tasks
    TABLE/rows/ROW                              a pruning run, or the model directory of a row that is built
    TABLE/cells/ROW/TASK                        a fine-tuning run with all seeds
    TABLE/results/ROW                           copies of the result files

    STUDY/recipe.yaml, study.yaml, study.json   what the study is
    STUDY/inputs.json                           as of a table
    STUDY/networks/ROW-SEED                     a pruning run, whose rounds are the sizes
    STUDY/networks/ROW-SIZE-SEED                a model directory of a row that is built
    STUDY/cells/ROW-SEED/SIZE/held_out.json     losses of pre-training, instance by instance
    STUDY/cells/ROW-SEED/SIZE/TASK/result.json  scores
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.paper import load_table
from ..finetuning.recipe import FineTuneRecipe
from ..finetuning.recipes import GlueRecipe, SquadRecipe, read_parts, task_directory
from ..network.saved_model import WEIGHTS, SavedModel
from ..pruning.objectives import check_heads
from ..pruning.recipe import PruneRecipe
from ..runs.files import write_file, write_json
from ..runs.recipe import RecipeError, fill, overridden, read_yaml, to_dict
from ..tasks.examples import read_examples
from ..tasks.task import find_task
from ..training.distributed import Workers
from ..training.pretrain import read_start
from ..training.recipe import PretrainRecipe, TrainingRecipe, WeightRecipe, open_shards
from .recipe import StudyFile, TableRecipe
from .rows import (
    BEYOND_THE_PAPER,
    FORMAT,
    MAKERS,
    STUDY_PLAN,
    TABLE_PLAN,
    Row,
    base_row,
    rows_at,
    rows_of,
    size_name,
    slug_of,
    task_names,
)

SQUAD = {'SQuAD v1.1': '1.1', 'SQuAD v2.0': '2.0'}  # their versions; the other tasks are GLUE's
SQUAD2 = {'epochs': 2, 'batch_size': 48}  # Devlin et al., 2018, section 4.3


@dataclasses.dataclass(frozen=True)
class Network:
    """A row as a network of a table; in a study, a row at a size, pruned with a seed.

    Parameters
    ----------
    row : Row
        With its share, or why it cannot be had.
    run, place : str
        The run that makes it, and the place of its cells, below the output.
    round : int
        Of its pruning run; 0 of a network that is not pruned.
    size : float, optional
        As the study's file has it; None in a table, and of the base.
    seed : int, optional
        Of pruning and fine-tuning; None in a table.
    """

    row: Row
    run: str
    place: str
    round: int = 0
    size: float | None = None
    seed: int | None = None


# What a file of further settings cannot say, and the flag that does.
_DECIDED = ('data', 'seeds', 'task', 'version', 'objective', 'model', 'shards', 'output')
_INSTEAD = {'data': ' (--data-glue, --data-squad)', 'seeds': ' (--seeds)', 'model': ' (--base)'}


@dataclasses.dataclass(frozen=True)
class Stated:
    """Settings of the user for one kind of run, beside those that the table decides, and where they stand."""

    cls: type[WeightRecipe]
    values: Mapping[str, Any]
    source: str

    def recipe(
        self, values: Mapping[str, Any], *, defaults: Mapping[str, Any] = {}, refused: Sequence[str] = ()
    ) -> Any:
        """A recipe of defaults, these settings, and the values that the table decides.

        `refused` is what is wrong with the settings beside that, in sentences.
        """
        ignored = [
            f'{self.source}: the table decides {name}{_INSTEAD.get(name, "")}; leave it out there'
            for name in _DECIDED
            if name in self.values and name in values and str(self.values[name]) != str(values[name])
        ]
        if ignored or refused:
            raise RecipeError([*ignored, *refused])
        further = overridden(self.cls, self.values, values)
        return fill(self.cls, {**defaults, **further}, source=self.source)


def _stated(recipe: TableRecipe, file: StudyFile | None, tasks: Sequence[str]) -> dict[str, Stated]:
    """The user's settings of ``pruning``, of ``pretraining`` from scratch, and of every task."""
    kinds: dict[str, type[WeightRecipe]] = {'pruning': PruneRecipe, 'pretraining': PretrainRecipe}
    kinds |= {task: SquadRecipe if task in SQUAD else GlueRecipe for task in tasks}
    files = {
        'pruning': [recipe.pruning],
        'pretraining': [recipe.pretraining],
        'SQuAD v1.1': [recipe.squad, recipe.squad1],
        'SQuAD v2.0': [recipe.squad, recipe.squad2],
    }
    stated = {}
    for name, kind in kinds.items():
        if file is None:
            paths = [path for path in files.get(name, [recipe.glue]) if path is not None]
            source, given = ', '.join(map(str, paths)) or kind.__name__, map(read_yaml, paths)
        else:
            own = file.tasks[name].settings if name in tasks else getattr(file, name)
            source, given = f'{recipe.study}, {name}', [own]
        # a later file stands in place of those before it
        values = functools.reduce(functools.partial(overridden, kind), given, {})
        stated[name] = Stated(kind, values, source)
    return stated


@dataclasses.dataclass(frozen=True)
class Plan:
    """A table or a study on a base.

    Parameters
    ----------
    tasks : tuple of str
        Those that are run.
    stated : mapping of str to Stated
        The user's settings of ``pruning``, of ``pretraining``, and of every task.
    file : StudyFile, optional
        Of a study; None of a table.
    instances : mapping of task to int
        To train on: sentences, pairs or questions.
    """

    recipe: TableRecipe
    base: SavedModel
    tasks: tuple[str, ...]
    stated: Mapping[str, Stated]
    file: StudyFile | None = None
    instances: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def pruning(self) -> PruneRecipe:
        """Settings that all pruning runs share, with the steps of a round."""
        return self.pruning_of('BERT-base')  # which has no settings of its own

    @property
    def scratch_steps(self) -> int | None:
        """Steps of the rows that are trained from scratch; None if nothing says how many."""
        steps = (self.file or self.recipe).scratch_steps or self.base.progress.trained_steps
        return _scaled(self.recipe.scale, steps) if steps else None

    @functools.cached_property
    def networks(self) -> tuple[Network, ...]:
        """In the order in which they are made, with those out of reach."""
        base = self.base.architecture
        if self.file is not None:
            return tuple(_networks_of_study(self.file, base))
        rows = rows_of(load_table(self.recipe.table), base)
        if all(row.maker.kind != 'base' for row in rows):
            rows.insert(0, base_row(base))
        rounds = len(self.pruning.shares())
        return tuple(
            Network(row, f'rows/{row.slug}', f'cells/{row.slug}', rounds if row.maker.kind == 'pruned' else 0)
            for row in rows
        )

    def chosen(self) -> list[Network]:
        """The networks that are made: the base and those asked for, without those out of reach."""
        asked = [slug_of(name) for name in self.recipe.rows]
        return [
            one
            for one in self.networks
            if one.row.unreachable is None
            and (not asked or one.row.slug in asked or one.row.maker.kind == 'base')
        ]

    def tasks_of(self, network: Network) -> list[str]:
        """The tasks that a network is fine-tuned on."""
        if self.file is None or network.size is None:
            return list(self.tasks)
        name, seeds = network.row.name, self.file.rows[network.row.name]
        return [
            task
            for task, of_task in self.file.tasks.items()
            if (of_task.rows is None or name in of_task.rows)
            and (of_task.sizes is None or network.size in of_task.sizes)
            and (of_task.seeds is None or network.seed in seeds[: of_task.seeds])
        ]

    def directory(self, network: Network) -> Path:
        """Of the run that makes a network."""
        return self.recipe.output / network.run

    def model(self, network: Network) -> Path:
        """The model directory of a network."""
        return {
            'base': Path(str(self.recipe.base)),
            'built': self.directory(network),
            'pruned': self.directory(network) / f'round-{network.round}' / 'model',
        }[network.row.maker.kind]

    def siblings(self, network: Network) -> list[Network]:
        """All networks that the run of a network makes, from the largest to the smallest."""
        return sorted((one for one in self.chosen() if one.run == network.run), key=lambda one: one.round)

    def made(self, network: Network) -> bool:
        """Whether a network is there; with the report of the run, if it is the last one."""
        reported = network.round == 0 or network != self.siblings(network)[-1]
        return (self.model(network) / WEIGHTS).is_file() and (
            reported or (self.directory(network) / 'rounds.json').is_file()
        )

    def cell(self, network: Network, task: str) -> Path:
        """Directory of the fine-tuning of a network on a task."""
        return self.recipe.output / network.place / slug_of(task)

    def done(self, network: Network) -> bool:
        """Whether every task of a network is done."""
        return all(self.cell(network, task).exists() for task in self.tasks_of(network))

    def how(self, row: Row) -> str:
        """Words for the making of a row, with its settings that are not those of the others."""
        words = [row.maker.sentence()]
        own = self.pruning_of(row.name) if row.maker.trains_gates else self.pruning
        if own.alpha_steps != self.pruning.alpha_steps:
            most = 'at most ' if own.alpha_steps == 'auto' else ''
            words.append(f'in each round {most}{gate_steps(own)} steps of gates')
        of_row = self._stated_of(row.name).items()
        return ', '.join([*words, *(f'{name} {value}' for name, value in of_row if name != 'alpha_steps')])

    def _stated_of(self, row: str) -> Mapping[str, Any]:
        return self.file.pruning_of.get(row, {}) if self.file else {}

    def pruning_of(self, row: str) -> PruneRecipe:
        """Settings of the pruning runs on the way to a row; the steps are scaled."""
        recipe, settings, maker = self.recipe, self.stated['pruning'], MAKERS[row]
        of_row = self._stated_of(row)
        fixed = {
            'model': str(recipe.base),
            'shards': str(recipe.shards),
            'output': str(recipe.output),
            'resume': True,
            'objective': self.file.objective if self.file else 'parameters',
            'targets': [],
        }
        flags = {'alpha_steps': recipe.alpha_steps, 'recovery_steps': recipe.recovery_steps}
        steps = {name: value for name, value in flags.items() if value is not None}
        stated = {**settings.values, **of_row, **steps}
        own = {name: value for name, value in maker.unless_stated.items() if stated.get(name) is None}
        own |= maker.settings
        if own:  # which may not go with the method of the file
            own = {'method': maker.method, 'prune': maker.prune, **own}
            if not maker.trains_gates:
                own['alpha_steps'] = None  # auto is about trained gates
        defaults = {name: field.default for name, field in PruneRecipe.model_fields.items()}
        unread = {}
        if 'teacher' not in own:  # what the file says for the rows with a teacher, the others do not read
            unread = {name: defaults[name] for name in ('teacher_weights', 'temperature')}
        beyond = [name for name in BEYOND_THE_PAPER if stated.get(name, defaults[name]) != defaults[name]]
        beside = [f'{name} has {", ".join(one.settings)}' for name, one in MAKERS.items() if one.settings]
        refused = (
            f'{settings.source}: the rows of the paper are pruned without {", ".join(beyond)}; leave that '
            f'out there. Of the rows beside them, {"; ".join(beside)}'
        )
        values = {**fixed, **of_row, **steps, **own, **unread}
        common: PruneRecipe = settings.recipe(values, refused=[refused] if beyond else [])
        gates, recovery = (_scaled(recipe.scale, steps) for steps in common.round_steps(self.base))
        settling = common.settling()
        if settling is not None and settling.first <= gates:  # a scaled limit may leave no time to settle
            return common.replace(alpha_limit=gates, recovery_steps=recovery)
        return common.replace(alpha_steps=gates, recovery_steps=recovery)

    def making(self, network: Network) -> TrainingRecipe:
        """The run that makes a network; of a pruned one in a study, the ladder of all sizes of its row.
        ValueError if it is trained from scratch, and nothing says for how many steps.
        """
        row = network.row
        if row.maker.kind == 'built':
            return self._from_scratch(network)
        pruning = self.pruning_of(row.name)
        values: dict[str, Any] = {
            'output': str(self.directory(network)),
            'method': row.maker.method,
            'prune': row.maker.prune,
            'alpha_steps': pruning.alpha_steps if row.maker.trains_gates else gate_steps(pruning),
        }
        if network.seed is None:
            values['target'] = row.share
        else:
            ladder = [one.row.share for one in self.siblings(network)]
            values |= {'targets': ladder, 'seed': network.seed}
        return fill(PruneRecipe, {**dict(pruning), **values}, source=row.name)

    def _from_scratch(self, network: Network) -> PretrainRecipe:
        architecture = network.row.architecture
        assert architecture is not None
        if self.scratch_steps is None:
            raise ValueError(
                f'{self.recipe.base} does not say how many steps it was pre-trained for, and '
                f'{network.row.name} is trained from scratch for as many; give --scratch-steps, or leave the '
                'row out with --rows'
            )
        shared = TrainingRecipe.model_fields.keys()
        if 'optimizer' not in self.stated['pruning'].values:
            shared -= {'optimizer'}  # the default of pre-training is another one than that of recovery
        defaults = {name: value for name, value in to_dict(self.pruning).items() if name in shared}
        defaults['initial_std'] = round(0.6 / math.sqrt(architecture.h), 2)
        values = {
            'output': str(self.directory(network)),
            'shards': str(self.recipe.shards),
            'resume': True,
            'model': None,
            'architecture': json.dumps(architecture.to_dict()),
            'steps': self.scratch_steps,
            **({} if network.seed is None else {'seed': network.seed}),
        }
        return self.stated['pretraining'].recipe(values, defaults=defaults)

    def tuning(self, network: Network, task: str) -> FineTuneRecipe:
        """The fine-tuning of a network on a task, with sequences as long as the paper's where the base has
        the positions.
        """
        recipe, positions = self.recipe, self.base.architecture.max_length
        values: dict[str, Any] = {
            'model': str(self.model(network)),
            'output': str(self.cell(network, task)),
            'resume': True,
            'seeds': list(recipe.seeds) if network.seed is None else [network.seed],
        }
        if self.file is None:
            values['results'] = str(recipe.output / 'results' / network.row.slug)
        if recipe.epochs is not None:
            values['epochs'] = recipe.epochs
        if recipe.learning_rates:
            values['learning_rates'] = list(recipe.learning_rates)
        if recipe.scale < 1:
            values['limit'] = _scaled(recipe.scale, self.instances[task])
        defaults = {'max_length': min(128, positions)}
        if task in SQUAD:
            values |= {'version': SQUAD[task], 'data': recipe.data_squad}
            length = min(384, positions)
            defaults = {
                'max_length': length,
                'stride': min(128, length // 3),
                'max_question': min(64, length // 3),
                **(SQUAD2 if SQUAD[task] == '2.0' else {}),
            }
        else:
            values |= {'task': task, 'data': recipe.data_glue}
        return self.stated[task].recipe(values, defaults=defaults)

    def write(self, directory: Path) -> None:
        """Leave what rendering has to know beside the results, and the file of a study."""
        if self.file is not None:
            write_file(directory / 'study.yaml', Path(str(self.recipe.study)).read_bytes())
        name = TABLE_PLAN if self.file is None else STUDY_PLAN
        write_json(directory / name, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Facts that rendering needs beside the results."""
        facts = {
            'format': FORMAT,
            'base': str(self.recipe.base),
            'base_parameters': int(ParameterCost().cost(self.base.architecture)),
            'alpha_steps': gate_steps(self.pruning),
            'alpha_steps_auto': self.pruning.alpha_steps == 'auto',
            'recovery_steps': self.pruning.recovery_steps,
            'scratch_steps': self.scratch_steps,
        }
        if self.file is None:
            facts |= {
                'table': self.recipe.table,
                'rounds': len(self.pruning.shares()),
                'scale': self.recipe.scale,
                'seeds': list(self.recipe.seeds),
            }
        else:
            facts['objective'] = self.file.objective
        rows = [
            (
                {'name': one.row.name, 'slug': one.row.slug}
                if self.file is None
                else {
                    'row': one.row.name,
                    'size': one.size,
                    'seed': one.seed,
                    'place': one.place.partition('/')[2],
                    'tasks': self.tasks_of(one),
                }
            )
            | {'how': self.how(one.row), 'share': one.row.share, 'unreachable': one.row.unreachable}
            for one in self.networks
        ]
        return {**facts, 'rows' if self.file is None else 'networks': rows}


def _scaled(scale: float, number: int) -> int:
    """A number scaled and rounded up; 0.55 of 100 is 55, though their product in floating point is above."""
    return math.ceil(round(scale * number, 6))


def gate_steps(pruning: PruneRecipe) -> int:
    """Steps of gate training in a round, or the most of them."""
    steps = pruning.alpha_steps
    return pruning.alpha_limit if steps is None or steps == 'auto' else steps


def _instances(recipe: TableRecipe, task: str, stated: Stated, workers: Workers) -> int:
    """Training instances of a task, no more than the further settings allow."""
    if task in SQUAD:
        count = len(read_parts(recipe.data_squad, SQUAD[task], workers)['train'])
    else:
        known = find_task(task)
        count = len(read_examples(known, task_directory(known, recipe.data_glue, workers) / known.train))
    limit = stated.values.get('limit')
    return min(count, limit) if isinstance(limit, int) else count


def plan(recipe: TableRecipe, *, workers: Workers | None = None) -> Plan:
    """Everything that a table or a study takes, checked: the base, its shards, the data of every task and
    every recipe; ValueError or FileNotFoundError if something is missing or does not fit.
    """
    workers = workers or Workers()
    file = None if recipe.study is None else StudyFile.read(recipe.study)
    if file is None:
        asked = [slug_of(task) for task in recipe.tasks]
        tasks = [task for task in task_names(load_table(recipe.table)) if not asked or slug_of(task) in asked]
    else:
        tasks = list(file.tasks)
    base, stated = read_start(Path(str(recipe.base))), _stated(recipe, file, tasks)
    whole = Plan(recipe, base, tuple(tasks), stated, file)
    shards = open_shards(whole.pruning.shards, base.vocabulary)
    check_heads(base, shards['train'], recipe.base)
    instances = {task: _instances(recipe, task, stated[task], workers) for task in tasks}
    whole = dataclasses.replace(whole, instances=instances)
    for network in whole.chosen():
        runs = [whole.tuning(network, task) for task in whole.tasks_of(network)]
        if network.row.maker.kind != 'base':
            runs.insert(0, whole.making(network))
        for run in runs:
            run.check_workers(workers)
    return whole


def _networks_of_study(file: StudyFile, base: Architecture) -> Iterator[Network]:
    """The base, the first size of all rows with their first seeds, then with their second ones, then the next
    size. All sizes of a pruned row are rounds of one run.
    """
    whole = base_row(base)
    yield Network(whole, f'networks/{whole.slug}-1', f'cells/{whole.slug}-1/whole', seed=1)
    rows = rows_at(file.rows, file.sizes, base, {**file.pruning, 'objective': file.objective})
    turns = range(max(map(len, file.rows.values()), default=0))
    for size, turn, (name, seeds) in itertools.product(file.sizes, turns, file.rows.items()):
        row = rows.get((name, size))
        if row is None or turn >= len(seeds):
            continue
        seed, number = seeds[turn], 0
        run = f'{row.slug}-{size_name(size)}-{seed}' if row.maker.kind == 'built' else f'{row.slug}-{seed}'
        if row.maker.kind == 'pruned' and row.unreachable is None:
            ladder = [one for (known, other), one in rows.items() if known == name and other >= size]
            number = sum(one.unreachable is None for one in ladder)
        place = f'cells/{row.slug}-{seed}/{size_name(size)}'
        yield Network(row, f'networks/{run}', place, number, size, seed)
