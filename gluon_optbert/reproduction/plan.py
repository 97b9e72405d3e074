"""The networks of a results table or of a study, and the recipe of everything that is run for them.

A table is a study of one table's rows: each at its published size, with one seed of pruning.

    TABLE/recipe.yaml, plan.json                what the table is
    TABLE/rows/ROW                              a pruning run, or the model directory of a row that is built
    TABLE/cells/ROW/TASK                        a fine-tuning run with all seeds
    TABLE/results/ROW                           copies of the result files

    STUDY/recipe.yaml, study.yaml, study.json   what the study is
    STUDY/networks/ROW-SEED                     a pruning run, whose rounds are the sizes
    STUDY/networks/ROW-SIZE-SEED                a model directory of a row that is built
    STUDY/cells/ROW-SEED/SIZE/TASK/result.json  scores
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..architecture.cost import ParameterCost
from ..architecture.paper import load_table
from ..finetuning.recipe import FineTuneRecipe
from ..finetuning.recipes import GlueRecipe, SquadRecipe, read_parts, task_directory
from ..network.saved_model import SavedModel
from ..pruning.objectives import check_heads, read_start
from ..pruning.recipe import PruneRecipe
from ..runs.files import write_file, write_json
from ..runs.recipe import RecipeError, fill, overridden, read_yaml, to_dict
from ..tasks.examples import read_examples
from ..tasks.task import find_task
from ..training.distributed import Workers
from ..training.recipe import PretrainRecipe, TrainingRecipe, WeightRecipe, open_shards
from .recipe import StudyFile, TableRecipe
from .rows import (
    BEYOND_THE_PAPER,
    FORMAT,
    MAKERS,
    STUDY_PLAN,
    TABLE_PLAN,
    Maker,
    Row,
    base_row,
    row_at,
    rows_by_size,
    rows_of,
    size_name,
    slug_of,
    task_names,
)

SQUAD = {'SQuAD v1.1': '1.1', 'SQuAD v2.0': '2.0'}  # their versions; the other tasks are GLUE's
SQUAD2 = {'epochs': 2, 'batch_size': 48}  # Devlin et al., 2018, section 4.3
Settings = Path | Mapping[str, Any] | None  # of a file of the user's, or a part of one
R = TypeVar('R', bound=WeightRecipe)


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """A table or a study on a base.

    Parameters
    ----------
    pruning : PruneRecipe
        What the pruning runs have in common, with the steps of a round.
    networks : tuple of Network
        In the order in which they are made, with those out of reach.
    tasks : tuple of str
        Those that are run.
    instances : mapping of task to int
        To train on: sentences, pairs or questions.
    scratch_steps : int, optional
        Of the rows that are trained from scratch; None if nothing says how many.
    file : StudyFile, optional
        Of a study; None of a table.
    """

    recipe: TableRecipe
    base: SavedModel
    pruning: PruneRecipe
    networks: tuple[Network, ...]
    tasks: tuple[str, ...]
    instances: Mapping[str, int]
    scratch_steps: int | None = None
    file: StudyFile | None = None

    def chosen(self) -> list[Network]:
        """The networks that are made: the base and those asked for, without those out of reach."""
        asked = [slug_of(name) for name in self.recipe.rows]
        return [
            network
            for network in self.networks
            for row in [network.row]
            if row.unreachable is None and (not asked or row.slug in asked or row.maker.kind == 'base')
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
        return self.model(network).is_dir() and (
            reported or (self.directory(network) / 'rounds.json').is_file()
        )

    def cell(self, network: Network, task: str) -> Path:
        """Where a network is fine-tuned on a task."""
        return self.recipe.output / network.place / slug_of(task)

    def done(self, network: Network) -> bool:
        """Whether every task of a network is done."""
        return all(self.cell(network, task).exists() for task in self.tasks_of(network))

    def how(self, row: Row) -> str:
        """Words for the making of a row; with its steps of gates where they are not those of the others."""
        own = pruning_of(self.recipe, self.base, self.file, row.maker)
        if not row.maker.trains_gates or own.alpha_steps == self.pruning.alpha_steps:
            return row.maker.sentence()
        most = 'at most ' if own.alpha_steps == 'auto' else ''
        return f'{row.maker.sentence()}, in each round {most}{gate_steps(own)} steps of gates'

    def making(self, network: Network) -> TrainingRecipe:
        """The run that makes a network; of a pruned one in a study, the ladder of all sizes of its row.

        Raises
        ------
        ValueError
            If the network is trained from scratch, and nothing says for how many steps.
        """
        row = network.row
        if row.maker.kind == 'built':
            return self._from_scratch(network)
        pruning = pruning_of(self.recipe, self.base, self.file, row.maker)
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
        file = self.file or self.recipe
        defaults = {
            name: value
            for name, value in to_dict(self.pruning).items()
            if name in TrainingRecipe.model_fields
        }
        if 'optimizer' not in _settings(PruneRecipe, [file.pruning]):
            del defaults['optimizer']  # the default of pre-training is another one than that of recovery
        values = {
            'output': str(self.directory(network)),
            'shards': str(self.recipe.shards),
            'resume': True,
            'model': None,
            'architecture': json.dumps(architecture.to_dict()),
            'steps': self.scratch_steps,
            **({} if network.seed is None else {'seed': network.seed}),
        }
        defaults['initial_std'] = round(0.6 / math.sqrt(architecture.h), 2)
        return _further(PretrainRecipe, [file.pretraining], defaults, values)

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
            values['limit'] = math.ceil(recipe.scale * self.instances[task])
        files = _files(recipe, self.file, task)
        if task not in SQUAD:
            values |= {'task': task, 'data': recipe.data_glue}
            return _further(GlueRecipe, files, {'max_length': min(128, positions)}, values)
        values |= {'version': SQUAD[task], 'data': recipe.data_squad}
        length = min(384, positions)
        defaults = {
            'max_length': length,
            'stride': min(128, length // 3),
            'max_question': min(64, length // 3),
            **(SQUAD2 if SQUAD[task] == '2.0' else {}),
        }
        return _further(SquadRecipe, files, defaults, values)

    def write(self, directory: Path) -> None:
        """Leave what rendering has to know beside the results, and the file of a study."""
        if self.file is not None:
            write_file(directory / 'study.yaml', Path(str(self.recipe.study)).read_bytes())
        name = TABLE_PLAN if self.file is None else STUDY_PLAN
        write_json(directory / name, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Facts that rendering needs beside the results."""
        networks = [
            {'how': self.how(one.row), 'share': one.row.share, 'unreachable': one.row.unreachable}
            for one in self.networks
        ]
        common = {
            'format': FORMAT,
            'base': str(self.recipe.base),
            'base_parameters': int(ParameterCost().cost(self.base.architecture)),
            'alpha_steps': gate_steps(self.pruning),
            'alpha_steps_auto': self.pruning.alpha_steps == 'auto',
            'recovery_steps': self.pruning.recovery_steps,
            'scratch_steps': self.scratch_steps,
        }
        if self.file is None:
            names = [{'name': one.row.name, 'slug': one.row.slug} for one in self.networks]
            return {
                **common,
                'table': self.recipe.table,
                'rounds': len(self.pruning.shares()),
                'scale': self.recipe.scale,
                'seeds': list(self.recipe.seeds),
                'rows': [{**name, **network} for name, network in zip(names, networks)],
            }
        names = [
            {
                'row': one.row.name,
                'size': one.size,
                'seed': one.seed,
                'place': one.place.partition('/')[2],
                'tasks': self.tasks_of(one),
            }
            for one in self.networks
        ]
        networks = [{**name, **network} for name, network in zip(names, networks)]
        return {**common, 'objective': self.file.objective, 'networks': networks}


def gate_steps(pruning: PruneRecipe) -> int:
    """Steps of gate training in a round, or the most of them."""
    steps = pruning.alpha_steps
    return pruning.alpha_limit if steps is None or steps == 'auto' else steps


def _files(recipe: TableRecipe, file: StudyFile | None, task: str) -> list[Settings]:
    """The user's files of further settings for a task; a later one overrides those before it."""
    if file is not None:
        return [file.tasks[task].settings]
    if task not in SQUAD:
        return [recipe.glue]
    return [recipe.squad, recipe.squad1 if SQUAD[task] == '1.1' else recipe.squad2]


def _settings(cls: type[R], files: Sequence[Settings]) -> dict[str, Any]:
    """The settings of files of the user, a later one in place of those before it."""
    settings: dict[str, Any] = {}
    for file in filter(None, files):
        settings = overridden(cls, settings, file if isinstance(file, Mapping) else read_yaml(file))
    return settings


# What a file of further settings cannot say, and the flag that does.
_DECIDED = ('data', 'seeds', 'task', 'version', 'objective', 'model', 'shards', 'output')
_INSTEAD = {'data': ' (--data-glue, --data-squad)', 'seeds': ' (--seeds)', 'model': ' (--base)'}


def _further(
    cls: type[R],
    files: Sequence[Settings],
    defaults: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    refused: Sequence[str] = (),
) -> R:
    """A recipe of defaults, files of further settings of the user, and what the table decides.

    `refused` is what is wrong with the files beside that, in sentences.
    """
    stated, source = _settings(cls, files), ', '.join(map(str, filter(None, files)))
    ignored = [
        f'{source}: the table decides {name}{_INSTEAD.get(name, "")}; leave it out there'
        for name in _DECIDED
        if name in stated and name in values and str(stated[name]) != str(values[name])
    ]
    if ignored or refused:
        raise RecipeError([*ignored, *refused])
    further = overridden(cls, stated, values)
    return fill(cls, {**defaults, **further}, source=source or cls.__name__)


def _instances(recipe: TableRecipe, file: StudyFile | None, task: str, workers: Workers) -> int:
    """Training instances of a task, no more than the further settings allow."""
    if task in SQUAD:
        count, cls = len(read_parts(recipe.data_squad, SQUAD[task], workers)['train']), SquadRecipe
    else:
        known, cls = find_task(task), GlueRecipe
        count = len(read_examples(known, task_directory(known, recipe.data_glue, workers) / known.train))
    limit = _settings(cls, _files(recipe, file, task)).get('limit')
    return min(count, limit) if isinstance(limit, int) else count


def _beyond_the_paper(source: Path | None, stated: Mapping[str, Any]) -> list[str]:
    """A sentence if settings change what the paper's rows are."""
    off = {name: PruneRecipe.model_fields[name].default for name in BEYOND_THE_PAPER}
    found = [name for name in off if stated.get(name, off[name]) != off[name]]
    if not found:
        return []
    beside = [f'{name} has {", ".join(maker.settings)}' for name, maker in MAKERS.items() if maker.settings]
    return [
        f'{source}: the rows of the paper are pruned without {", ".join(found)}; leave that out '
        f'there. Of the rows beside them, {"; ".join(beside)}'
    ]


def pruning_of(
    recipe: TableRecipe, base: SavedModel, file: StudyFile | None, maker: Maker | None = None
) -> PruneRecipe:
    """Settings of all pruning runs, or of those on the way to a row; the steps are scaled."""
    fixed = {
        'model': str(recipe.base),
        'shards': str(recipe.shards),
        'output': str(recipe.output),
        'resume': True,
        'objective': file.objective if file else 'parameters',
        'targets': [],
    }
    steps = {
        name: getattr(recipe, name)
        for name in ('alpha_steps', 'recovery_steps')
        if getattr(recipe, name) is not None
    }
    files: list[Settings] = [file.pruning if file else recipe.pruning]
    stated = {**_settings(PruneRecipe, files), **steps}
    own: dict[str, Any] = {}
    if maker is not None:
        own = {name: value for name, value in maker.unless_stated.items() if stated.get(name) is None}
        own |= maker.settings
    if maker is not None and own:  # which may not go with the method of the file
        own = {'method': maker.method, 'prune': maker.prune, **own}
        if not maker.trains_gates:
            own['alpha_steps'] = None  # auto is about trained gates
    unread = {}
    if 'teacher' not in own:  # what the file says for the rows with a teacher, the others do not read
        unread = {name: PruneRecipe.model_fields[name].default for name in ('teacher_weights', 'temperature')}
    refused = _beyond_the_paper(recipe.study if file else recipe.pruning, stated)
    common = _further(PruneRecipe, files, {}, {**fixed, **steps, **own, **unread}, refused=refused)
    gates, recovery = (math.ceil(recipe.scale * steps) for steps in common.round_steps(base))
    settling = common.settling()
    if settling is not None and settling.first <= gates:  # a scaled limit may leave no time to settle
        return common.replace(alpha_limit=gates, recovery_steps=recovery)
    return common.replace(alpha_steps=gates, recovery_steps=recovery)


def plan(recipe: TableRecipe, *, workers: Workers | None = None) -> Plan:
    """Everything that a table or a study takes, checked: the base, its shards, the data of every task and
    every recipe.

    Parameters
    ----------
    workers : Workers, optional
        Those of this job; by default those that the environment names.

    Raises
    ------
    ValueError, FileNotFoundError
        If something is missing or does not fit.
    """
    workers = workers or Workers()
    file = None if recipe.study is None else StudyFile.read(recipe.study)
    base = read_start(Path(str(recipe.base)))
    pruning = pruning_of(recipe, base, file)
    check_heads(base, open_shards(pruning.shards, base.vocabulary)['train'], recipe.base)
    if file is None:
        asked = [slug_of(task) for task in recipe.tasks]
        tasks = [task for task in task_names(load_table(recipe.table)) if not asked or slug_of(task) in asked]
        networks = _networks_of_table(recipe, base, len(pruning.shares()))
    else:
        tasks, networks = list(file.tasks), _networks_of_study(file, base)
    scratch_steps = (file or recipe).scratch_steps or base.progress.trained_steps
    whole = Plan(
        recipe,
        base,
        pruning,
        tuple(networks),
        tuple(tasks),
        {task: _instances(recipe, file, task, workers) for task in tasks},
        math.ceil(recipe.scale * scratch_steps) if scratch_steps else None,
        file,
    )
    for network in whole.chosen():
        for run in [
            *([] if network.row.maker.kind == 'base' else [whole.making(network)]),
            *(whole.tuning(network, task) for task in whole.tasks_of(network)),
        ]:
            run.check_workers(workers)
    return whole


def _networks_of_table(recipe: TableRecipe, base: SavedModel, rounds: int) -> list[Network]:
    """The rows of a table; the base itself comes first where the table does not have it."""
    rows = rows_of(load_table(recipe.table), base.architecture)
    if all(row.maker.kind != 'base' for row in rows):
        rows.insert(0, base_row(base.architecture))
    return [
        Network(row, f'rows/{row.slug}', f'cells/{row.slug}', rounds if row.maker.kind == 'pruned' else 0)
        for row in rows
    ]


def _networks_of_study(file: StudyFile, base: SavedModel) -> list[Network]:
    """The base, the first size of all rows with their first seeds, then with their second ones, then the next
    size.
    """
    whole = base_row(base.architecture)
    networks = [Network(whole, f'networks/{whole.slug}-1', f'cells/{whole.slug}-1/whole', seed=1)]
    of_table = rows_by_size(base.architecture)
    rows = {
        (name, size): of_table.get((name, size)) or row_at(name, size, base.architecture)
        for name in file.rows
        for size in file.sizes
    }
    networks += [
        _at_size(rows, name, size, seeds[turn])
        for size in file.sizes
        for turn in range(max(map(len, file.rows.values()), default=0))
        for name, seeds in file.rows.items()
        if turn < len(seeds) and rows[name, size] is not None
    ]
    return networks


def _at_size(rows: Mapping[tuple[str, float], Row | None], name: str, size: float, seed: int) -> Network:
    """A row of a study at a size; all sizes of a pruned row are rounds of one run."""
    row = rows[name, size]
    assert row is not None
    run, place = [row.slug, str(seed)], f'cells/{row.slug}-{seed}/{size_name(size)}'
    if row.maker.kind == 'built':
        run.insert(1, size_name(size))
    ladder = [
        other
        for (known, other), one in rows.items()
        if known == name and one is not None and one.unreachable is None and other >= size
    ]
    number = len(ladder) if row.maker.kind == 'pruned' and row.unreachable is None else 0
    return Network(row, f'networks/{"-".join(run)}', place, number, size, seed)
