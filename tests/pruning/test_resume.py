"""A pruning run that is killed at any moment ends with the same bits, and what is finished is left alone."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.pruned import Interrupted, recipe_for, results, values_for
from helpers.tiny import contents, environment

from gluon_optbert.pruning import algorithm as pruning
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs.recipe import save


def test_existing_output_is_refused_and_untouched(pruned_run, shards_directory, model_directory):
    before = contents(pruned_run[0])
    with pytest.raises(FileExistsError, match='run: exists.*--resume'):
        prune(recipe_for(shards_directory, model_directory, pruned_run[0]))
    assert contents(pruned_run[0]) == before


def test_resumed_with_other_settings_it_is_refused(pruned_run, shards_directory, model_directory):
    before = contents(pruned_run[0])
    with pytest.raises(ValueError, match='other settings of rounds, target'):
        prune(recipe_for(shards_directory, model_directory, pruned_run[0], resume=True, target=0.5, rounds=3))
    assert contents(pruned_run[0]) == before


def test_finished_run_resumes_to_nothing_to_do(pruned_run, shards_directory, model_directory):
    before = contents(pruned_run[0])
    assert prune(recipe_for(shards_directory, model_directory, pruned_run[0], resume=True)) == pruned_run[1]
    assert contents(pruned_run[0]) == before


@pytest.mark.parametrize('name', ['alphas.npz', 'scores.npz', 'selection.json'])
def test_damaged_file_of_a_finished_round_is_refused(
    pruned_run, shards_directory, model_directory, tmp_path, name
):
    """Without it the run could not be verified."""
    output = tmp_path / 'run'
    shutil.copytree(pruned_run[0], output)
    damaged = output / 'round-1' / name
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(ValueError, match=f'round-1/{name}'):
        prune(recipe_for(shards_directory, model_directory, output, resume=True))


def test_gates_of_another_network_are_refused_in_a_finished_round(
    pruned_run, shards_directory, model_directory, tmp_path
):
    output = tmp_path / 'run'
    shutil.copytree(pruned_run[0], output)
    with np.load(output / 'round-1' / 'alphas.npz') as arrays:
        alphas = {name: arrays[name][:-1] if name == 'f1' else arrays[name] for name in arrays.files}
    np.savez(output / 'round-1' / 'alphas.npz', **alphas)
    with pytest.raises(ValueError, match='round-1/alphas.npz: gates do not fit the architecture: f1'):
        prune(recipe_for(shards_directory, model_directory, output, resume=True))


@pytest.mark.parametrize('at', ['gate-states', 'recovery-states'])
def test_run_that_ended_before_it_cleared_up_leaves_no_checkpoints(
    pruned, pruned_run, tmp_path, monkeypatch, at
):
    def killed(path, *_, **__):
        if Path(path).name == at:
            raise Interrupted

    monkeypatch.setattr(pruning.shutil, 'rmtree', killed)
    with pytest.raises(Interrupted):
        pruned()
    monkeypatch.undo()
    assert (tmp_path / 'run' / 'round-1' / 'recovery-states').is_dir()
    pruned(resume=True)
    assert results(tmp_path / 'run') == results(pruned_run[0])


# A process that has loaded everything and computed nothing forks one run after another; each is killed before
# the n-th time that it renames, flushes or removes something or takes a step, or not at all.
ATTEMPTS = """
import json, os, shutil, signal, sys
from pathlib import Path
import gluon_optbert.runs.loading
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs.recipe import save
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import fill
from gluon_optbert.training import optimization
values = json.loads(sys.argv[1])


def attempt(resume, moment):
    moments = [0]
    def counted(action):
        def act(*args, **kwargs):
            moments[0] += 1
            if moments[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*args, **kwargs)
        return act
    files = ((os, 'replace'), (os, 'fsync'), (shutil, 'rmtree'))
    for owner, name in (*files, (optimization.Optimizer, 'update')):
        setattr(owner, name, counted(getattr(owner, name)))
    prune(fill(PruneRecipe, dict(values, resume=resume)))
    return moments[0]


for line in sys.stdin:
    resume, moment = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(attempt(resume, moment)).encode())
            os._exit(0)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writing)
    status = os.waitpid(child, 0)[1]
    print(json.dumps([status, int(os.read(reading, 20) or 0)]), flush=True)
    os.close(reading)
"""


class Attempts:
    """Runs of one recipe, each in a process of its own; see `ATTEMPTS`."""

    def __init__(self, values):
        # not a pipe, which would be full some day; open as long as the process lives
        self._said = tempfile.TemporaryFile('w+')  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', ATTEMPTS, json.dumps(values)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            universal_newlines=True,
        )

    def __call__(self, *, resume, killed_at=0):
        """How the run ended (as `os.wait` says) and how many moments it had."""
        self._process.stdin.write(json.dumps([resume, killed_at]) + '\n')
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or 'null')

    def close(self):
        """End the process; what its runs said."""
        self._process.communicate(timeout=60)
        self._said.seek(0)
        return self._said.read()


@pytest.mark.slow
def test_run_killed_at_random_moments_ends_with_the_same_bits(
    pruned_run, shards_directory, model_directory, tmp_path
):
    attempt = Attempts(values_for(shards_directory, model_directory, tmp_path / 'run'))
    generator, kills = random.Random(4), 0
    while kills < 25:
        status, moments = attempt(resume=True, killed_at=generator.randint(1, 30))
        if status == 0:  # a finished run: begin again
            assert results(tmp_path / 'run') == results(pruned_run[0])
            shutil.rmtree(tmp_path / 'run')
        else:
            assert status == signal.SIGKILL
            kills += 1
    status, _ = attempt(resume=True)
    assert status == 0, attempt.close()
    attempt.close()
    assert results(tmp_path / 'run') == results(pruned_run[0])
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
