"""A pruning run that is killed at any moment ends with the same bits, and what is finished is left alone."""

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.pruned import Interrupted, alphas_of, recipe_for, results
from helpers.tiny import contents

from gluon_optbert.pruning import algorithm as pruning
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs.recipe import save
from gluon_optbert.training import optimization


def test_existing_output_and_other_settings_are_refused(pruned_run, shards_directory, model_directory):
    before = contents(pruned_run[0])
    with pytest.raises(FileExistsError, match='run: exists.*--resume'):
        prune(recipe_for(shards_directory, model_directory, pruned_run[0]))
    with pytest.raises(ValueError, match='other settings of rounds, target'):
        prune(recipe_for(shards_directory, model_directory, pruned_run[0], resume=True, target=0.5, rounds=3))
    assert prune(recipe_for(shards_directory, model_directory, pruned_run[0], resume=True)) == pruned_run[1]
    assert contents(pruned_run[0]) == before


@pytest.mark.parametrize('name', ['alphas.npz', 'scores.npz', 'selection.json', 'gates'])
def test_damaged_file_of_a_finished_round_is_refused(
    pruned_run, shards_directory, model_directory, tmp_path, name
):
    """Without it the run could not be verified."""
    output = tmp_path / 'run'
    shutil.copytree(pruned_run[0], output)
    damaged = output / 'round-1' / name
    if name == 'gates':  # of another network
        alphas = alphas_of(output / 'round-1')
        np.savez(output / 'round-1' / 'alphas.npz', **{**alphas, 'f1': alphas['f1'][:-1]})
        name = 'alphas.npz: gates do not fit the architecture: f1'
    else:
        damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(ValueError, match=f'round-1/{name}'):
        prune(recipe_for(shards_directory, model_directory, output, resume=True))


def test_run_that_ended_before_it_cleared_up_leaves_no_checkpoints(pruned, pruned_run, tmp_path, monkeypatch):
    def killed(path, *_, **__):
        if Path(path).name == 'recovery-states':
            raise Interrupted

    monkeypatch.setattr(pruning.shutil, 'rmtree', killed)
    with pytest.raises(Interrupted):
        pruned()
    monkeypatch.undo()
    assert (tmp_path / 'run' / 'round-1' / 'recovery-states').is_dir()
    pruned(resume=True)
    assert results(tmp_path / 'run') == results(pruned_run[0])


@pytest.mark.slow
def test_run_that_dies_at_random_moments_ends_with_the_same_bits(pruned, pruned_run, tmp_path, monkeypatch):
    """Before it renames, flushes or removes something, or takes a step."""
    generator, moments, deaths = random.Random(4), [0], 0

    def counted(action):
        def act(*args, **more):
            moments[0] -= 1
            if not moments[0]:
                raise Interrupted
            return action(*args, **more)

        return act

    places = (os, 'replace'), (os, 'fsync'), (shutil, 'rmtree'), (optimization.Optimizer, 'update')
    for owner, name in places:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    finished = False
    while not finished:
        moments[0] = generator.randint(1, 30)
        try:
            pruned(resume=True)
            finished = True
        except Interrupted:
            deaths += 1
    assert deaths > 5 and results(tmp_path / 'run') == results(pruned_run[0])
    assert set(contents(tmp_path / 'run')) == set(contents(pruned_run[0]))
    assert os.listdir(tmp_path) == ['run']


def test_rounds_are_run_one_by_one_forgotten_and_made_again_with_the_same_bits(
    pruned_run, shards_directory, model_directory, tmp_path
):
    output = tmp_path / 'run'
    first = prune(recipe_for(shards_directory, model_directory, output), until=1)
    assert [row.round for row in first] == [0, 1] and not (output / 'rounds.json').exists()
    recipe = recipe_for(shards_directory, model_directory, output, resume=True)
    assert prune(recipe) == pruned_run[1]
    pruning.forget(output, [0, 1])
    assert prune(recipe) == pruned_run[1] and not (output / 'round-1' / 'model').exists()
    pruning.forget(output, [2])
    assert prune(recipe) == pruned_run[1]
    remade, wanted = results(output), results(pruned_run[0])
    assert {name: remade[0].get(name) for name in wanted[0]} == wanted[0]
    assert sorted(map(str, remade[1])) == sorted(map(str, wanted[1]))


def test_forgotten_run_is_not_gone_on_with_from_another_network(
    pruned_run, shards_directory, model_directory, tmp_path
):
    shutil.copytree(pruned_run[0], tmp_path / 'run')
    pruning.forget(tmp_path / 'run', range(3))
    assert not list((tmp_path / 'run').rglob('model.params'))
    shutil.copytree(pruned_run[0] / 'round-1' / 'model', tmp_path / 'base')
    before = contents(tmp_path / 'run')
    save(recipe_for(shards_directory, tmp_path / 'base', tmp_path / 'run'), tmp_path / 'run' / 'recipe.yaml')
    with pytest.raises(ValueError, match='is not the network that .* began with'):
        prune(recipe_for(shards_directory, tmp_path / 'base', tmp_path / 'run', resume=True))
    assert before.keys() == contents(tmp_path / 'run').keys()
