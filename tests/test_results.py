"""The runs behind the results can be made again: what makes them names commands and flags that exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from helpers.documents import RUNS, check_command
from helpers.pruned import recipe_for
from helpers.tiny import ROOT, contents

from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.command_line import parse
from gluon_optbert.runs.files import sha256, write_manifest


@pytest.fixture(scope='module', params=['.', 'five_hours'])
def recipes(request, tmp_path_factory):
    """What make would do for the runs of pruning, line by line."""
    place = tmp_path_factory.mktemp('runs')
    words = [f'WORK={place / "work"}', f'DATA={place}', f'CHECKPOINT={place}', 'PYTHON=python']
    done = subprocess.run(
        ['make', '-n', '-C', str(ROOT / 'results' / 'pruning' / request.param), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace('\\\n', ' ').splitlines()


def test_commands_of_the_runs_exist(recipes):
    lines = [line for line in recipes if RUNS.search(line)]
    assert len(lines) > 80
    for line in lines:
        check_command(line)


def test_recipes_of_the_runs_do_not_contradict_themselves(recipes):
    lines = [line for line in recipes if 'run_prune.py' in line]
    assert len(lines) > 20
    for line in lines:
        words = line[line.index('run_prune.py') : line.index(';', line.index('run_prune.py'))]
        parse(PruneRecipe, shlex.split(words)[1:], description='', example='')


def test_every_run_has_its_size_steps_and_seed(recipes):
    lines = [line for line in recipes if 'run_prune.py' in line]
    names = [re.search(r'--output runs/(\S+);', line).group(1) for line in lines]
    assert len(set(names)) == len(names) > 20
    for name, line in zip(names, lines):
        _, size, seed = name.split('-')
        assert f' --targets 0.{size} ' in line and f' --seed {seed} ' in line
        assert re.search(r' --recovery-steps [1-9][0-9]* ', line), name
        assert f'runs/{name}/verified.json' in '\n'.join(recipes)


@pytest.mark.parametrize('place', ['pruning', 'pruning/five_hours', 'recovery'])
def test_relative_paths_are_those_from_the_root(place):
    words = ('-n', 'WORK=some/work', 'DATA=some/data', 'CHECKPOINT=some/minilm')
    done = make(ROOT / 'results' / place, *words, *([] if place == 'recovery' else ['base']))
    assert done.returncode == 0, done.stderr
    assert f'cd {ROOT}/some/work && ' in done.stdout
    if place != 'recovery':
        assert f'ln -s {ROOT}/some/data ' in done.stdout and f' {ROOT}/some/minilm ' in done.stdout


def make(place, *words):
    return subprocess.run(
        ['make', '-C', str(place), f'PYTHON={sys.executable}', f'ROOT={ROOT}', *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_small_files_of_runs_are_enough_for_the_table(shards_directory, model_directory, tmp_path):
    work, place = tmp_path / 'work', tmp_path / 'results'
    for network in ('base', 'controls/control-1.8e-4'):
        shutil.copytree(model_directory, work / network)
    trained = work / 'controls/control-1.8e-4'
    (trained / 'model.params').write_bytes(b'other weights')
    write_manifest(trained, form='gluon_optbert model', version=1)
    (work / 'scores').mkdir()
    for way, steps in (('paper', 2), ('all', 4)):
        output = work / 'runs' / f'{way}-60-1'
        settings = {'target': 0.6, 'rounds': 1, 'recovery_steps': steps, 'keep_best': False}
        prune(recipe_for(shards_directory, work / 'base', output, **settings))
        (output / 'verified.json').write_text('{"stages": []}')
        weights = output / 'round-1' / 'model' / 'model.params'
        result = {'metric': 'dev/accuracy', 'task': 'SST-2', 'mean': {'dev/accuracy': 81.25}}
        result['model_sha256'] = sha256(weights)
        (work / 'scores' / f'{way}-60-1-sst2.json').write_text(json.dumps(result))
    (work / 'runs' / 'all-60-2').mkdir()  # which has not ended
    place.mkdir()
    shutil.copy(ROOT / 'results' / 'pruning' / 'Makefile', place)
    for words in (['collect', f'WORK={work}'], ['table']):
        done = make(place, *words)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(work, ignore_errors=True)
    text = (place / 'comparison' / 'table.md').read_text()
    assert text.count('| 81.2 |') == 2 and "| the paper's method |" in text and '| trained on |' in text
    kept = contents(place)
    assert not any(name.endswith('.params') or 'all-60-2' in name for name in kept)
    assert 'runs/all-60-1/round-0/model/manifest.json' in kept
