"""A pruning run that is killed at any moment ends with the same bits, and what is finished is left alone."""

import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers.pruned import Interrupted, alphas_of, prune_until_killed, recipe_for, results, values_for
from helpers.tiny import contents

from gluon_optbert.pruning import algorithm as pruning
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs import files
from gluon_optbert.runs.recipe import save


@pytest.fixture
def resumed(shards_directory, model_directory):
    """The recipe that goes on with a run, or is another in some settings."""
    return lambda output, **more: recipe_for(
        shards_directory, model_directory, output, **{'resume': True, **more}
    )


@pytest.fixture
def copied(pruned_run, tmp_path):
    """The directory of a finished run, to be spoilt."""
    return shutil.copytree(pruned_run[0], tmp_path / 'run')


def test_finished_run_is_left_as_it_is(pruned_run, resumed):
    output, rows = pruned_run
    before = contents(output)
    with pytest.raises(FileExistsError, match='run: exists.*--resume'):
        prune(resumed(output, resume=False))
    with pytest.raises(ValueError, match='other settings of rounds .*, target'):
        prune(resumed(output, target=0.5, rounds=3))
    assert prune(resumed(output)) == rows
    assert contents(output) == before


def test_damaged_file_of_a_finished_round_is_refused(copied, resumed):
    """Without it the run could not be verified."""
    place = copied / 'round-1'
    for name in ('alphas.npz', 'scores.npz', 'selection.json'):
        whole = (place / name).read_bytes()
        (place / name).write_bytes(whole[:100])
        with pytest.raises(ValueError, match=f'round-1/{name}'):
            prune(resumed(copied))
        (place / name).write_bytes(whole)
    alphas = alphas_of(place)
    np.savez(place / 'alphas.npz', **{**alphas, 'f1': alphas['f1'][:-1]})
    with pytest.raises(ValueError, match='round-1/alphas.npz: gates do not fit the architecture: f1'):
        prune(resumed(copied))


def test_run_that_ended_before_it_cleared_up_leaves_no_checkpoints(pruned, pruned_run, tmp_path, monkeypatch):
    def killed(path, *_, **__):
        if Path(path).name.endswith('-states'):
            raise Interrupted

    monkeypatch.setattr(pruning.shutil, 'rmtree', killed)
    with pytest.raises(Interrupted):
        pruned()
    monkeypatch.undo()
    assert (tmp_path / 'run' / 'round-1' / 'recovery-states').is_dir()
    pruned(resume=True)
    assert results(tmp_path / 'run') == results(pruned_run[0])


@pytest.mark.slow
def test_run_killed_at_random_moments_ends_with_the_same_bits(
    pruned_run, shards_directory, model_directory, tmp_path
):
    processes = multiprocessing.get_context('forkserver')  # of one that has loaded all and computed nothing
    processes.set_forkserver_preload(['gluon_optbert.runs.loading', 'gluon_optbert.pruning.algorithm'])
    values, output = values_for(shards_directory, model_directory, tmp_path / 'run'), tmp_path / 'run'

    def status_of(moment):
        process = processes.Process(target=prune_until_killed, args=(values, moment))
        process.start()
        process.join()
        return process.exitcode

    generator, kills = random.Random(4), 0
    while kills < 12:
        status = status_of(generator.randint(1, 30))
        if status == 0:  # a finished run: begin again
            assert results(output) == results(pruned_run[0])
            shutil.rmtree(output)
        else:
            assert status == -signal.SIGKILL
            kills += 1
    assert status_of(0) == 0
    assert results(output) == results(pruned_run[0])
    assert set(contents(output)) == set(contents(pruned_run[0]))
    beside = [name for name in os.listdir(tmp_path) if not name.endswith('.lock')]  # of the killed, empty
    assert beside == ['run']


def test_rounds_are_forgotten_and_made_again_one_by_one_with_the_same_bits(pruned_run, copied, resumed):
    recipe = resumed(copied)
    pruning.forget(copied, [0, 1])
    assert prune(recipe) == pruned_run[1] and not (copied / 'round-1' / 'model').exists()
    pruning.forget(copied, [2])
    for name in ('rounds.json', 'round-2/forgotten.json'):  # as if it had not come so far
        (copied / name).unlink()
    assert prune(recipe, until=1) == pruned_run[1][:2] and not (copied / 'rounds.json').exists()
    assert prune(recipe) == pruned_run[1]
    remade, wanted = results(copied), results(pruned_run[0])
    assert {name: remade[0].get(name) for name in wanted[0]} == wanted[0]
    assert sorted(map(str, remade[1])) == sorted(map(str, wanted[1]))


def test_killed_forgetting_leaves_no_damaged_network(pruned_run, copied, resumed, monkeypatch):
    def killed(path, *_, **__):
        if 'model' in Path(path).name:
            (Path(path) / 'model.params').unlink()
            raise Interrupted

    monkeypatch.setattr(files.shutil, 'rmtree', killed)
    with pytest.raises(Interrupted):
        pruning.forget(copied, [2])
    monkeypatch.undo()
    pruning.forget(copied, [2])
    assert prune(resumed(copied)) == pruned_run[1]
    assert set(contents(copied)) >= set(contents(pruned_run[0]))


def test_forgotten_run_is_not_gone_on_with_from_another_network(pruned_run, copied, resumed, tmp_path):
    pruning.forget(copied, range(3))
    assert not list(copied.rglob('model.params'))
    before, other = contents(copied), {'model': str(pruned_run[0] / 'round-1' / 'model')}
    save(resumed(copied, **other), copied / 'recipe.yaml')
    with pytest.raises(ValueError, match='is not the network that .* began with'):
        prune(resumed(copied, **other))
    assert before.keys() == contents(copied).keys()
