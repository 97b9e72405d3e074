"""A search for gamma, the learning rate of alpha and the number of alpha steps, with Optuna.

Each trial is a pruning run in OUTPUT/trial-N; the held-out MLM loss of its last round is minimised. Trials
that are not the best keep their metrics, gates and selections, and lose their model directories. An
interrupted search takes its interrupted trial up where that stopped, and several processes may share one
search. On one rung of a ladder the rounds above it are run once, in OUTPUT/ladder.

Optuna is imported where a search needs it: nothing else does."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from pydantic import PositiveFloat, PositiveInt

from ..network.saved_model import read_model
from ..runs.programs import named
from ..runs.recipe import option, read_yaml
from ..runs.run_directory import RECIPE, RunDirectory, State
from ..training.distributed import Workers
from ..training.optimization import TrainingDiverged
from .algorithm import prune
from .one_round import STAGES
from .recipe import PruneRecipe, read_start
from .report import Round
from .rungs import rung
from .search_report import SEARCHED, completed, directory_of, is_of, lock_name, trial_name, write_report

LOG = logging.getLogger(__name__)
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
        """What is contradictory about fields whose values are right in themselves."""
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
        """Why the teacher cannot teach the network that a rung begins with, cut by the rounds before it."""
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
        """The smallest and the largest value to try of each setting.

        Parameters
        ----------
        steps : int
            Of gate training in a round, by the recipe.
        """
        ranges = {name: tuple(getattr(self, f'{name}_range')) for name in SEARCHED}
        return {**ranges, 'alpha_steps': ranges['alpha_steps'] or (max(1, steps // STEPS), STEPS * steps)}

    def trial(self, number: int, values: dict[str, Any]) -> PruneRecipe:
        """The pruning run of a trial."""
        own = {name: getattr(self, name) for name in PruneRecipe.model_fields}
        directory = self.output / trial_name(number)
        if (directory / RECIPE).is_file():  # it has its network; the search may have been moved since
            values = {**values, 'model': Path(read_yaml(directory / RECIPE)['model'])}
        return PruneRecipe(**{**own, **values, 'output': directory, 'resume': directory.exists()})


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether this process holds the lock of a file until the end of the block."""
    with open(path, 'a', encoding='utf-8') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield False
            return
        yield True


class Search:
    """The study behind a search; it lives on rank 0, and the other ranks follow."""

    def __init__(self, recipe: SearchRecipe, workers: Workers):
        self.recipe, self.workers = recipe, workers
        self._steps = recipe.round_steps(read_model(recipe.model))[0]
        self._ranges = recipe.ranges(self._steps)
        if workers.first:
            import optuna

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            storage = recipe.storage or f'sqlite:///{recipe.output.resolve()}/study.db'
            self.study = optuna.create_study(
                storage=storage, study_name=recipe.study, direction='minimize', load_if_exists=True
            )

    def _first(self) -> Dict[str, Any]:
        """The recipe's own values, as far as they lie in their ranges; a warning says which do not."""
        own = {
            'gamma': self.recipe.gamma,
            'alpha_learning_rate': self.recipe.alpha_learning_rate,
            'alpha_steps': self._steps,
        }
        inside = {}
        for name, value in own.items():
            low, high = self._ranges[name]
            if low <= value <= high:
                inside[name] = value
            else:
                LOG.warning(
                    'the %s of the recipe, %g, lies outside of the range from %g to %g, so the first trial '
                    'draws another; --%s-range sets the range',
                    name,
                    value,
                    low,
                    high,
                    name.replace('_', '-'),
                )
        return inside

    def _ask(self) -> Optional[Tuple[int, Dict[str, Any]]]:
        """A trial to run on rank 0: one whose process has died, or a new one; None if there are enough."""
        import optuna

        with locked(self.recipe.output / '.study.lock', wait=True):
            trials = self.study.get_trials(deepcopy=False)
            begun = [trial for trial in trials if trial.state != optuna.trial.TrialState.WAITING]
            dead = next((trial for trial in begun if self._is_dead(trial)), None)
            if dead is None and len(begun) >= self.recipe.trials:
                return None
            if not trials:
                self.study.enqueue_trial(self._first())
            # One seed for each trial: a process that joins must not draw the same again.
            seed = self.recipe.seed + (len(begun) if dead is None else dead.number)
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            if dead is None:
                trial = self.study.ask()
                self._hold(trial.number)
            else:
                trial = optuna.Trial(self.study, dead._trial_id)
            for name, suggest, scale in (
                ('gamma', trial.suggest_float, {'log': True}),
                ('alpha_learning_rate', trial.suggest_float, {'log': True}),
                ('alpha_steps', trial.suggest_int, {}),
            ):
                if name not in trial.params:
                    suggest(name, *self._ranges[name], **scale)
            trial.set_user_attr('directory', str((self.recipe.output / trial_name(trial.number)).resolve()))
            self._trial = trial
            return trial.number, dict(trial.params)

    def _is_dead(self, trial: Any) -> bool:
        """Whether a trial of this output is left by a process that has died; if so, its lock is held.

        A trial without a lock and a directory is one whose process died between asking for it and holding it;
        in a storage that outputs share, nothing says whose it is.
        """
        own = is_of(trial, self.recipe.output)
        orphan = self.recipe.storage is None and 'directory' not in trial.user_attrs
        return trial.state.name == 'RUNNING' and (own or orphan) and self._hold(trial.number)

    def _hold(self, number: int) -> bool:
        """Hold a trial's lock for as long as it runs; False if another process does."""
        self._held = contextlib.ExitStack()
        return self._held.enter_context(locked(self.recipe.output / lock_name(number)))

    def next(self) -> Optional[Tuple[int, Dict[str, Any]]]:
        """The next trial of this job, the same on every rank."""
        number, values = (self._ask() if self.workers.first else None) or (-1, dict.fromkeys(SEARCHED, 0))
        mine = self.workers.first
        shared = self.workers.sum(
            [value if mine else 0.0 for value in (number, *(values[name] for name in SEARCHED))], name='trial'
        )
        if shared[0] < 0:
            return None
        return int(shared[0]), {
            'gamma': shared[1],
            'alpha_learning_rate': shared[2],
            'alpha_steps': int(shared[3]),
        }

    def tell(self, row: Optional[Round]) -> None:
        """Record what the trial came to; None if its training diverged."""
        if not self.workers.first:
            return
        from optuna.trial import TrialState

        measured = row and row.recovered
        if row is None or measured is None:
            self.study.tell(self._trial, state=TrialState.FAIL)
            self._remove_models(self.recipe.trial(self._trial.number, {}).output)
        else:
            for name, value in (
                ('mlm_accuracy', measured.mlm_accuracy),
                ('nsp_accuracy', measured.nsp_accuracy),
                ('parameters', row.parameters),
            ):
                self._trial.set_user_attr(name, value)
            self.study.tell(self._trial, measured.mlm_loss)
            self._tidy()
        self._held.close()

    def _tidy(self) -> None:
        """Remove the model directories of every finished trial of this output that is not the best."""
        for trial in completed(self.study):
            if trial.number != self.study.best_trial.number and is_of(trial, self.recipe.output):
                self._remove_models(self.recipe.output / trial_name(trial.number))

    @staticmethod
    def _remove_models(directory: Path) -> None:
        for name in STAGES:
            for place in directory.glob(f'round-*/{name}'):
                shutil.rmtree(place, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What a search came to.

    Parameters
    ----------
    table : str
        All trials in Markdown, the best first.
    best : int, optional
        The number of the best trial; None if none came to an end.
    directory : str
        Of the best trial.
    values : mapping of str to float
        ``gamma``, ``alpha_learning_rate`` and ``alpha_steps`` of the best trial.
    """

    table: str
    best: Optional[int] = None
    directory: str = ''
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)


def _result(study: Any, output: Path, table: str) -> SearchResult:
    if not completed(study):
        return SearchResult(table)
    best = study.best_trial
    values = {name: best.params[name] for name in SEARCHED}
    return SearchResult(table, best.number, directory_of(best, output), values)


def _rung(recipe: SearchRecipe, number: int, workers: Workers) -> Dict[str, Any]:
    """`rung`, while no other process of the search makes the rounds before it."""
    with contextlib.ExitStack() as held:
        if workers.first:
            held.enter_context(locked(recipe.output / '.ladder.lock', wait=True))
        return rung(recipe, number, ladder=recipe.output / 'ladder', workers=workers)


def search(recipe: SearchRecipe, *, workers: Optional[Workers] = None) -> Optional[SearchResult]:
    """Run trials until there are enough, and leave ``trials.csv``, ``trials.md`` and Optuna's plots.

    Parameters
    ----------
    recipe : SearchRecipe
    workers : Workers, optional
        Those of this job; by default those that the environment names.

    Returns
    -------
    SearchResult, or None on other workers than the first

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first trial.
    Terminated
        From `prune`. A trial that diverges has failed, and the search goes on.
    """
    workers = workers or Workers()
    directory = RunDirectory(recipe, may_change=('resume', 'trials'))
    if directory.state is State.NEW:
        start = read_start(recipe.model, heads=False)
        if start.progress.untrained:
            raise ValueError(
                f'a search compares held-out MLM losses, and the heads of {recipe.model} are not trained; '
                f'train them first, with {named("optbert-pretrain")} --train heads'
            )
        recipe.round_steps(start)
    directory.lay_out(workers)
    trials = Search(recipe, workers)
    fixed = {} if recipe.rung is None else _rung(recipe, recipe.rung, workers)
    chosen = trials.next()
    while chosen is not None:
        number, values = chosen
        row: Optional[Round] = None
        try:
            row = prune(recipe.trial(number, {**values, **fixed}), workers=workers)[-1]
        except TrainingDiverged as error:
            if workers.first:
                LOG.warning('trial %d: %s', number, error)
        trials.tell(row)
        chosen = trials.next()
    if not workers.first:
        return None
    return _result(trials.study, recipe.output, write_report(trials.study, recipe.output))
