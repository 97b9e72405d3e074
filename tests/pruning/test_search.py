"""The search as a function: its recipe is checked, and without a trial that ended there is no best one."""

import dataclasses
import gc
import json

import optuna
import pytest
from filelock import FileLock, Timeout
from helpers.pruned import values_for, with_more_tokens
from helpers.tiny import contents, network, saved_model, write_saved_model

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.network.saved_model import read_model, write_model
from gluon_optbert.pruning import search as search_module
from gluon_optbert.pruning.search import SearchRecipe, search
from gluon_optbert.runs.progress import Progress
from gluon_optbert.runs.recipe import RecipeError, fill
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.optimization import TrainingDiverged


@pytest.fixture
def search_of(shards_directory, model_directory, tmp_path):
    """The recipe of a search, with other settings; the plots are drawn where the command is tested."""
    usual = {'checkpoint_every': 0, 'evaluation_limit': 8, 'recovery_steps': 2}

    def recipe(output='search', **more):
        values = values_for(shards_directory, model_directory, tmp_path / output, **{**usual, **more})
        return fill(SearchRecipe, values)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search_module, 'PLOTS', ())
        yield recipe


def test_trials_that_diverge_have_failed_and_the_search_goes_on(search_of, tmp_path, monkeypatch, caplog):
    def diverge(recipe, **_):
        (recipe.output / 'round-1' / 'recovery-states' / 'step-00000001').mkdir(parents=True)
        raise TrainingDiverged('step 1: the gradient is nan')

    monkeypatch.setattr(search_module, 'prune', diverge)
    result = search(search_of(trials=2))
    assert result.best is None and result.table.count('| fail |') == 2
    assert caplog.messages == [f'trial {i}: step 1: the gradient is nan' for i in (0, 1)]
    assert [state for _, state, _ in trials_in(tmp_path / 'search')] == ['FAIL', 'FAIL']
    assert [*(tmp_path / 'search').glob('trial-*/round-1/*')] == []  # nor are their checkpoints kept


def test_two_thirds_of_a_small_budget_learn_from_the_trials_before(search_of, monkeypatch):
    def counted(**settings):
        at_random.append(settings.get('n_startup_trials'))
        return sampler(**settings)

    def diverge(recipe, **_):
        raise TrainingDiverged('step 1: the gradient is nan')

    at_random, sampler = [], optuna.samplers.TPESampler
    monkeypatch.setattr(search_module, 'prune', diverge)
    monkeypatch.setattr(optuna.samplers, 'TPESampler', counted)
    search(search_of(trials=4))
    assert at_random == [None, *[2] * 4]  # of Optuna's study, and of every trial


@pytest.mark.parametrize('steps, wanted', [(1_000_000, (200, 5000)), (900, (1, 5))])
def test_range_of_gate_steps_follows_from_the_steps_of_the_base(tmp_path, steps, wanted):
    recipe = SearchRecipe(output=tmp_path, model=tmp_path, shards=tmp_path)
    base = dataclasses.replace(saved_model(), progress=Progress(step=steps - 100, earlier_steps=100))
    own = recipe.replace(recovery_steps=5)
    assert own.ranges(own.round_steps(base)[0])['alpha_steps'] == wanted
    assert recipe.ranges(60)['alpha_steps'] == (12, 300)
    given = recipe.replace(alpha_steps_range=(3, 4))
    assert given.ranges(60)['alpha_steps'] == (3, 4)


@pytest.mark.parametrize(
    'values, message',
    [
        ({'alpha_steps': 'auto'}, 'alpha_steps is searched; give a number'),
        ({'ranking': 'run'}, 'ranking leaves nothing to search'),
        ({'method': 'random'}, 'only methods with trained gates have something to search'),
        ({'teacher': 'other'}, 'rung 2 begins with a narrower network than other, whose states'),
        ({'teacher': 'other', 'prune': 'f', 'trim': True}, 'rung 2 begins with fewer tokens than other has'),
    ],
)
def test_a_search_that_cannot_be_run_is_refused(search_of, values, message):
    values = {'targets': [0.9, 0.8], 'rung': 2, **values}
    with pytest.raises(RecipeError, match=message):
        search_of(**values)
    if 'teacher' in values:
        weightless = {'teacher_weights': 'states=0', 'trim': False}
        for fits in ({'rung': 1}, {'teacher': 'parent'}, {'prune': 'f', 'trim': False}, weightless):
            search_of(**{**values, **fits})


def test_a_network_without_heads_is_refused_before_the_first_trial(search_of, tmp_path):
    write_model(tmp_path / 'base', dataclasses.replace(saved_model(), progress=Progress(untrained=('mlm',))))
    values = {'gate_teacher': True, 'teacher': 'parent', 'teacher_weights': 'labels=0,scores=0'}
    with pytest.raises(ValueError, match='a search compares held-out losses'):
        search(search_of(model=tmp_path / 'base', **values))
    assert not (tmp_path / 'search').exists()


def test_trials_on_a_rung_begin_at_the_rung_before_and_are_that_round_alone(search_of, tmp_path):
    """The rung before has trimmed the vocabulary, and has more steps behind it; the base counts in both."""
    small = dataclasses.replace(saved_model(), progress=Progress(step=100))
    write_model(tmp_path / 'larger', with_more_tokens(small))
    output, cost = tmp_path / 'search', ParameterCost()
    values = dict(targets=[0.9, 0.75, 0.6], rung=2, trials=1, trim=True, alpha_steps=None)
    recipe = search_of(model=tmp_path / 'larger', **values, recovery_steps=None)
    result = search(recipe)
    whole = cost.cost(with_more_tokens(small).architecture)
    above = read_model(output / 'ladder' / 'round-1' / 'model')
    assert cost.cost(above.architecture) <= 0.9 * whole and result.best is not None
    assert not (output / 'ladder' / 'round-2').exists()
    start, end = json.loads((output / 'trial-0000' / 'rounds.json').read_text())
    assert start['architecture'] == above.architecture.to_dict() and end['round'] == 1
    best = read_model(output / 'trial-0000' / 'round-1' / 'model')
    dearest = max(cost.prices(above.architecture).values())
    assert 0.75 * whole - dearest < cost.cost(best.architecture) <= 0.75 * whole
    assert best.vocabulary == small.vocabulary and best.progress.step == 5  # a 20th of the base's
    before = contents(output / 'ladder')
    search(recipe.replace(trials=2, resume=True))
    assert contents(output / 'ladder') == before and (output / 'trial-0001').is_dir()


@pytest.mark.parametrize(
    'targets, message',
    [
        ([0.8, 0.75], 'rung 2 has nothing to cut: the rounds before it have left 0.665 of .* target is 0.75'),
        ([0.8, 0.01], 'target 0.01 cannot be reached by pruning f'),
    ],
)
def test_a_rung_that_cannot_be_cut_is_refused(search_of, tmp_path, targets, message):
    layers = (2, 4, 4, 64), (2, 4, 4, 64)
    write_saved_model(tmp_path / 'wide', architecture=network(*layers, h=8))
    values = dict(targets=targets, rung=2, multiple_of=32, prune='f')
    with pytest.raises(ValueError, match=message):
        search(search_of(model=tmp_path / 'wide', **values))
    assert (tmp_path / 'search' / 'ladder').exists() == (targets[1] == 0.75)  # which tells how far it comes


def test_processes_that_begin_a_search_together_open_its_study_one_after_the_other(search_of, monkeypatch):
    """Each makes the tables of the database, unless they are there."""
    recipe, original = search_of(), optuna.create_study

    def opened(**more):
        with pytest.raises(Timeout):
            FileLock(recipe.output / '.study.lock').acquire(blocking=False)
        return original(**more)

    monkeypatch.setattr(optuna, 'create_study', opened)
    recipe.output.mkdir()
    search_module.Search(recipe, Workers())


class Killed(BaseException):
    """An exception that nothing catches."""


def test_a_search_that_was_moved_takes_its_interrupted_trial_up(search_of, tmp_path, monkeypatch):
    def dies(recipe, **more):
        rows = prune(recipe, **more)
        if recipe.output.name == 'trial-0001':
            raise Killed
        return rows

    prune = search_module.prune
    values = dict(targets=[0.9, 0.8], rung=2, trials=2, alpha_steps=1, recovery_steps=1)
    monkeypatch.setattr(search_module, 'prune', dies)
    with pytest.raises(Killed):
        search(search_of('old', **values))
    monkeypatch.undo()
    gc.collect()  # with what it held
    (tmp_path / 'old').rename(tmp_path / 'new')
    result = search(search_of('new', **values, resume=True))
    assert [state for _, state, _ in trials_in(tmp_path / 'new')] == ['COMPLETE', 'COMPLETE']
    best = tmp_path / 'new' / f'trial-{result.best:04d}'
    assert result.directory == str(best) and (best / 'round-1' / 'model').is_dir()
    assert not (tmp_path / 'new' / f'trial-{1 - result.best:04d}' / 'round-1' / 'model').exists()
    assert str(tmp_path / 'old') not in (tmp_path / 'new' / 'trials.csv').read_text()


def trials_in(output, storage=None):
    study = optuna.load_study(study_name='prune', storage=storage or f'sqlite:///{output}/study.db')
    return [(trial.number, trial.state.name, sorted(trial.params)) for trial in study.get_trials()]


@pytest.mark.parametrize('dies_in, shared', [('ask', False), ('suggest_int', True), ('ask', True)])
def test_a_trial_whose_process_died_as_it_began_is_run(search_of, tmp_path, monkeypatch, dies_in, shared):
    def diverge(recipe, **_):
        raise TrainingDiverged('step 1: the gradient is nan')

    def dies(self, *args, **more):
        original(self, *args, **more)
        raise Killed

    monkeypatch.setattr(search_module, 'prune', diverge)
    values = {'storage': f'sqlite:///{tmp_path}/shared.db'} if shared else {}
    output = tmp_path / 'search'
    with monkeypatch.context() as context:
        of = optuna.Study if dies_in == 'ask' else optuna.Trial
        original = getattr(of, dies_in)
        context.setattr(of, dies_in, dies)
        with pytest.raises(Killed):
            search(search_of(trials=1, **values))
    gc.collect()  # with what it held
    assert [state for _, state, _ in trials_in(output, values.get('storage'))] == ['RUNNING']
    search(search_of(trials=1, **values, resume=True))
    wanted = (0, 'FAIL', ['alpha_learning_rate', 'alpha_steps', 'gamma'])
    if shared and dies_in == 'ask':  # it may be that of a process with another output
        wanted = (0, 'RUNNING', [])
    assert trials_in(output, values.get('storage')) == [wanted]
