"""A search for gamma, the learning rate of alpha and the number of alpha steps, with Optuna.

Each trial is a pruning run in OUTPUT/trial-N; the held-out loss of its last round is minimised: that of MLM
and that of NSP together, on which gates and weights are trained. Trials that are not the best keep their
metrics, gates and selections, and lose their model directories and checkpoints. An interrupted search takes
its interrupted trial up where that stopped, and several processes may share one search. On one round of a
ladder of sizes the rounds before it are run once, in OUTPUT/ladder.

Optuna is imported where a search needs it: nothing else does."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import logging
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import PositiveFloat, PositiveInt

from ..architecture.rounds import Round
from ..network.saved_model import read_model
from ..runs.display import markdown_table
from ..runs.files import write_file
from ..runs.programs import named
from ..runs.recipe import option, read_yaml
from ..runs.run_directory import RECIPE, RunDirectory
from ..text.shards import Shards
from ..training.distributed import Workers
from ..training.optimization import TrainingDiverged
from ..training.pretrain import read_start
from ..training.recipe import lacking
from .algorithm import prune
from .objectives import PretrainingObjective
from .recipe import PruneRecipe, unreachable
from .run import MODEL, STAGES, STATES

LOG = logging.getLogger(__name__)
SEARCHED = ('gamma', 'alpha_learning_rate', 'alpha_steps')
RESULTS = ('mlm_loss', 'nsp_loss', 'mlm_accuracy', 'nsp_accuracy', 'parameters')
PLOTS = ('optimization_history', 'slice', 'parallel_coordinate', 'param_importances')
STEPS = 5  # the steps of gate training are searched up to this factor from those of the recipe


class SearchRecipe(PruneRecipe):
    """A search; the recipe's own gamma, alpha_learning_rate and alpha_steps are its first trial."""

    trials: PositiveInt = option('number of trials, over all processes together', 20)
    storage: str | None = option(
        'Optuna storage, such as a database URL, that several processes share; by default an SQLite '
        'file in the output',
        None,
    )
    study: str = option('name of the study in the storage', 'prune')
    gamma_range: tuple[PositiveFloat, ...] = option(
        'smallest and largest gamma, drawn on a logarithmic scale', (1e-4, 1.0)
    )
    alpha_learning_rate_range: tuple[PositiveFloat, ...] = option(
        'smallest and largest learning rate of the gates, drawn on a logarithmic scale', (1e-3, 1e-1)
    )
    alpha_steps_range: tuple[PositiveInt, ...] = option(
        'smallest and largest number of gate training steps in a round, drawn on a linear scale; by default '
        "a fifth of the recipe's own steps and five times as many, which follow from the pre-training steps "
        'of the model unless the recipe has them',
        (),
    )
    rung: PositiveInt | None = option(
        'search on one rung of a ladder: the round with this number, from 1. The rounds before it are run '
        'once; every trial is that round alone',
        None,
    )

    def problems(self) -> list[str]:
        problems = super().problems()
        if not self.trains_gates:
            problems.append(f'only methods with trained gates have something to search, found {self.method}')
        if self.alpha_steps == 'auto':
            problems.append('alpha_steps is searched; give a number, or leave it out, instead of auto')
        if self.ranking is not None:
            problems.append('ranking leaves nothing to search, because no gates are trained')
        if self.rung is not None and self.rung > len(self.shares()):
            problems.append(
                f'rung must be the number of one of {len(self.shares())} rounds, found {self.rung}'
            )
        problems += self._untaught()
        for name in SEARCHED:
            span = getattr(self, f'{name}_range')
            if name == 'alpha_steps' and not span:
                continue
            if len(span) != 2 or span[0] > span[1]:
                problems.append(
                    f'{name}_range must be two numbers that do not decrease, found '
                    f'{", ".join(map(str, span))}'
                )
        return problems

    def _untaught(self) -> list[str]:
        """Reason why the teacher cannot teach the network that a rung begins with, cut by the rounds before
        it.
        """
        if (self.rung or 1) == 1 or self.teacher in (None, 'parent'):
            return []
        problems = []
        if self.teaching().same_width and 'h' in self.prune:
            problems.append(
                f'rung {self.rung} begins with a narrower network than {self.teacher}, whose states it could '
                'not learn; give teacher_weights states=0,cosines=0, or take the teacher parent'
            )
        if self.trim:
            problems.append(
                f'rung {self.rung} begins with fewer tokens than {self.teacher} has, with trim; trim the '
                f'networks first, with {named("optbert-trim-vocabulary")}, or take the teacher parent'
            )
        return problems

    def ranges(self, steps: int) -> dict[str, tuple[float, ...]]:
        """The smallest and the largest value to try of each setting, with so many steps of gate training in a
        round by the recipe.
        """
        ranges = {name: tuple(getattr(self, f'{name}_range')) for name in SEARCHED}
        return {**ranges, 'alpha_steps': ranges['alpha_steps'] or (max(1, steps // STEPS), STEPS * steps)}

    def place(self, number: int) -> Path:
        """The directory of a trial."""
        return self.output / f'trial-{number:04d}'

    def trial(self, number: int, values: dict[str, Any]) -> PruneRecipe:
        """The pruning run of a trial."""
        directory = self.place(number)
        if (directory / RECIPE).is_file():  # it has its network; the search may have been moved since
            values = {**values, 'model': Path(read_yaml(directory / RECIPE)['model'])}
        return self.run(directory, **values)

    def run(self, output: Path, **changes: Any) -> PruneRecipe:
        """A pruning run of the search, with some settings of its own; one that was begun goes on."""
        own = {name: getattr(self, name) for name in PruneRecipe.model_fields}
        return PruneRecipe(**{**own, **changes, 'output': output, 'resume': output.exists()})


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """Result of a search."""

    table: str  # all trials in Markdown, the best first
    best: int | None = None  # the number of the best trial; None if none came to an end
    directory: str = ''  # of the best trial
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of `SEARCHED`, the best trial's


class Search:
    """The study behind a search; it lives on rank 0, and the other ranks follow.

    A trial's process holds the lock beside the trial's directory, so that another process sees when it has
    died. The lock's file and the directory also say that the trial is of this output: several outputs may
    share a study.
    """

    def __init__(self, recipe: SearchRecipe, workers: Workers):
        self.recipe, self.workers = recipe, workers
        self._steps = recipe.round_steps(read_model(recipe.model))[0]
        self._ranges = recipe.ranges(self._steps)
        if workers.first:
            import optuna

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            storage = recipe.storage or f'sqlite:///{recipe.output.resolve()}/study.db'
            with self._alone():  # SQLite refuses a table that another process has just made
                self.study = optuna.create_study(
                    storage=storage, study_name=recipe.study, direction='minimize', load_if_exists=True
                )

    def _alone(self) -> FileLock:
        """Lock against the other processes of this output while the study is opened or a trial is chosen."""
        return FileLock(self.recipe.output / '.study.lock')

    def trials(self) -> list[Any]:
        """All trials of the study, in their order."""
        return self.study.get_trials(deepcopy=False)

    def completed(self) -> list[Any]:
        """Those that came to an end."""
        return [trial for trial in self.trials() if trial.state.name == 'COMPLETE']

    def lock(self, number: int) -> FileLock:
        """Lock of the process that runs a trial."""
        place = self.recipe.place(number)
        return FileLock(place.with_name(f'.{place.name}.lock'))

    def is_own(self, trial: Any) -> bool:
        """Whether a trial was run in this output, which may have been moved since."""
        places = Path(self.lock(trial.number).lock_file), self.recipe.place(trial.number)
        return any(place.exists() for place in places)

    def directory_of(self, trial: Any) -> str | None:
        """Directory of a trial at present; that of another output is where it was when it began."""
        if self.is_own(trial):
            return str(self.recipe.place(trial.number).resolve())
        return trial.user_attrs.get('directory')

    def _first(self) -> dict[str, Any]:
        """The recipe's own values, as far as they lie in their ranges; a warning says which do not."""
        inside = {}
        for name in SEARCHED:
            value = self._steps if name == 'alpha_steps' else getattr(self.recipe, name)
            low, high = self._ranges[name]
            if low <= value <= high:
                inside[name] = value
            else:
                flag = name.replace('_', '-')
                LOG.warning(
                    f'the {name} of the recipe, {value:g}, lies outside of the range from {low:g} to '
                    f'{high:g}, so the first trial draws another; --{flag}-range sets the range'
                )
        return inside

    def _ask(self) -> tuple[int, dict[str, Any]] | None:
        """A trial to run on rank 0: one whose process has died, or a new one; None if there are enough."""
        import optuna

        with self._alone():
            begun = [trial for trial in self.trials() if trial.state.name != 'WAITING']
            dead = next((trial for trial in begun if self._is_dead(trial)), None)
            if dead is None and len(begun) >= self.recipe.trials:
                return None
            if not self.trials():
                self.study.enqueue_trial(self._first())
            # One seed for each trial: a process that joins must not draw the same again.
            seed = self.recipe.seed + (len(begun) if dead is None else dead.number)
            at_random = min(10, -(-self.recipe.trials // 3))  # of a small budget not all, as by default
            self.study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=at_random, seed=seed, constant_liar=True
            )
            if dead is None:
                trial = self.study.ask()
                self._hold(trial.number)
            else:
                trial = optuna.Trial(self.study, dead._trial_id)
            for name in (name for name in SEARCHED if name not in trial.params):
                if name == 'alpha_steps':
                    trial.suggest_int(name, *self._ranges[name])
                else:
                    trial.suggest_float(name, *self._ranges[name], log=True)
            trial.set_user_attr('directory', str(self.recipe.place(trial.number).resolve()))
            self._trial = trial
            return trial.number, dict(trial.params)

    def _is_dead(self, trial: Any) -> bool:
        """Whether a trial of this output is left by a process that has died; if so, its lock is held.

        A trial without a lock and a directory is one whose process died between asking for it and holding it;
        in a storage that outputs share, nothing says whose it is.
        """
        orphan = self.recipe.storage is None and 'directory' not in trial.user_attrs
        return trial.state.name == 'RUNNING' and (self.is_own(trial) or orphan) and self._hold(trial.number)

    def _hold(self, number: int) -> bool:
        """Hold a trial's lock for as long as it runs; False if another process does."""
        self._held = self.lock(number)
        try:
            self._held.acquire(blocking=False)
        except Timeout:
            return False
        return True

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """The next trial of this job, the same on every rank."""
        number, values = (self._ask() if self.workers.first else None) or (-1, dict.fromkeys(SEARCHED, 0))
        mine = self.workers.first
        own = [value if mine else 0.0 for value in (number, *(values[name] for name in SEARCHED))]
        number, *shared = self.workers.sum(own, name='trial')
        if number < 0:
            return None
        values = dict(zip(SEARCHED, shared))
        return int(number), {**values, 'alpha_steps': int(values['alpha_steps'])}

    def tell(self, row: Round | None) -> None:
        """Record what the trial came to; None if its training diverged. Of all finished trials of this
        output, the best one alone keeps its model directories.
        """
        if not self.workers.first:
            return
        import optuna

        if row is None or row.recovered is None:
            self.study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
            useless = [self._trial.number]
        else:
            for name in RESULTS:
                value = row.parameters if name == 'parameters' else getattr(row.recovered, name)
                self._trial.set_user_attr(name, value)
            self.study.tell(self._trial, row.recovered.mlm_loss + (row.recovered.nsp_loss or 0.0))
            own = [trial.number for trial in self.completed() if self.is_own(trial)]
            useless = [number for number in own if number != self.study.best_trial.number]
        for number in useless:
            for name in (*STAGES, STATES):
                for place in self.recipe.place(number).glob(f'round-*/{name}'):
                    shutil.rmtree(place, ignore_errors=True)
        self._held.release()

    def write_report(self) -> SearchResult:
        """Write trials.csv, trials.md and Optuna's plots."""
        output, rows = self.recipe.output, []
        for trial in sorted(self.trials(), key=lambda trial: (trial.value is None, trial.value or 0)):
            searched = (trial.params.get(name) for name in SEARCHED)
            results = (trial.user_attrs.get(name) for name in RESULTS)
            place = self.directory_of(trial)
            rows.append([trial.number, trial.state.name.lower(), *searched, trial.value, *results, place])
        names = ['trial', 'state', *SEARCHED, 'loss', *RESULTS, 'directory']
        sheet = io.StringIO()
        csv.writer(sheet, lineterminator='\n').writerows([names, *rows])
        write_file(output / 'trials.csv', sheet.getvalue().encode())

        def shown(cell: Any) -> str:
            return '' if cell is None else f'{cell:.4g}' if isinstance(cell, float) else str(cell)

        table = markdown_table(names[:-1], [[shown(cell) for cell in row[:-1]] for row in rows]) + '\n'
        write_file(output / 'trials.md', table.encode())
        completed = self.completed()
        if not completed:
            return SearchResult(table)
        if len({trial.value for trial in completed}) > 1:
            self._draw(completed)
        best = self.study.best_trial
        values = {name: best.params[name] for name in SEARCHED}
        return SearchResult(table, best.number, self.directory_of(best), values)

    def _draw(self, completed: list[Any]) -> None:
        """Optuna's plots, of what was varied; Optuna sets matplotlib's style for the whole process."""
        import matplotlib.pyplot
        import optuna

        varied = [name for name in SEARCHED if len({trial.params[name] for trial in completed}) > 1]
        for name in PLOTS:
            options = {} if name == 'optimization_history' else {'params': varied}
            with matplotlib.rc_context(), warnings.catch_warnings():
                warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
                axes = getattr(optuna.visualization.matplotlib, f'plot_{name}')(self.study, **options)
            figure = (axes if hasattr(axes, 'figure') else axes.flat[0]).figure
            figure.set_size_inches(10, 5)
            picture = io.BytesIO()
            figure.savefig(picture, format='png', dpi=120, bbox_inches='tight')
            write_file(self.recipe.output / f'{name}.png', picture.getvalue())
            matplotlib.pyplot.close(figure)


def one_round_of(recipe: SearchRecipe, workers: Workers) -> dict[str, Any]:
    """The fields of a recipe that is the rung of a search alone; its target is a share of the cost of the
    network that the round begins with.

    The rounds before it are run first, in OUTPUT/ladder, with the recipe's own settings, as far as that is
    not done; they also trim the vocabulary. ValueError if the target of the round is out of reach, or no less
    than the rounds before it left; and the errors of `prune`.
    """
    number, shares, model = recipe.rung, recipe.shares(), recipe.model
    base = read_model(model)
    if number > 1:
        asked = recipe.replace(targets=tuple(shares[:number]))
        start = PretrainingObjective.read(recipe)[0] if recipe.trim else base
        problem = unreachable(asked, start.architecture, base.architecture)
        if problem:
            raise ValueError(problem)
        ladder = recipe.output / 'ladder'
        before = recipe.run(ladder, targets=tuple(shares[: number - 1]))
        workers.barrier('ladder')  # all have looked before one writes
        prune(before, workers=workers)
        model = ladder / f'round-{number - 1}' / MODEL
    cost = recipe.cost()
    whole, begun = (cost.cost(saved.architecture) for saved in (base, read_model(model)))
    if begun <= shares[number - 1] * whole:
        raise ValueError(
            f'rung {number} has nothing to cut: the rounds before it have left {begun / whole:.4g} of the '
            f'{recipe.objective}, and its target is {shares[number - 1]:.4g}; take a smaller multiple_of, '
            'targets further apart, or another rung'
        )
    return {
        'model': model,
        'target': shares[number - 1] * whole / begun,
        'targets': (),
        'rounds': 1,
        'recovery_steps': recipe.round_steps(base)[1],
        **({'trim': False} if number > 1 else {}),
    }


def search(recipe: SearchRecipe, *, workers: Workers | None = None) -> SearchResult | None:
    """Run trials until there are enough, and leave ``trials.csv``, ``trials.md`` and Optuna's plots; None on
    other workers than the first.

    Workers and errors are as of `prune`, but a trial that diverges has failed, and the search goes on.
    """
    workers = workers or Workers()
    directory = RunDirectory(recipe, may_change=('trials',))
    if directory.new:
        start = read_start(recipe.model)
        if lacking(start, Shards.open(recipe.shards)):
            raise ValueError(
                f'a search compares held-out losses, and the heads of {recipe.model} are not trained; '
                f'train them first, with {named("optbert-pretrain")} --train heads'
            )
        recipe.round_steps(start)
    directory.lay_out(workers)
    trials, fixed = Search(recipe, workers), {}
    if recipe.rung is not None:
        # one process of the search at a time makes the rounds before it
        with FileLock(recipe.output / '.ladder.lock') if workers.first else contextlib.nullcontext():
            fixed = one_round_of(recipe, workers)
    chosen = trials.next()
    while chosen is not None:
        number, values = chosen
        row: Round | None = None
        try:
            row = prune(recipe.trial(number, {**values, **fixed}), workers=workers)[-1]
        except TrainingDiverged as error:
            if workers.first:
                LOG.warning('trial %d: %s', number, error)
        trials.tell(row)
        chosen = trials.next()
    return trials.write_report() if workers.first else None
