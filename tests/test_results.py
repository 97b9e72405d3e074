"""The runs behind the results can be made again: what makes them names commands and flags that exist."""

import re
import subprocess

import pytest
from helpers.documents import RUNS, check_command
from helpers.tiny import ROOT


@pytest.fixture(scope='module')
def recipes(tmp_path_factory):
    """What make would do for the runs of pruning, line by line."""
    place = tmp_path_factory.mktemp('runs')
    words = [f'WORK={place / "work"}', f'DATA={place}', f'CHECKPOINT={place}', 'PYTHON=python']
    done = subprocess.run(
        ['make', '-n', '-C', str(ROOT / 'results' / 'pruning'), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace('\\\n', ' ').splitlines()


def test_commands_of_the_runs_exist(recipes):
    lines = [line for line in recipes if RUNS.search(line)]
    assert len(lines) > 100
    for line in lines:
        check_command(line)


def test_every_run_has_its_size_steps_and_seed(recipes):
    lines = [line for line in recipes if 'run_prune.py' in line]
    names = [re.search(r'--output runs/(\S+);', line).group(1) for line in lines]
    assert len(set(names)) == len(names) > 20
    for name, line in zip(names, lines):
        _, size, seed = name.split('-')
        assert f' --targets 0.{size} ' in line and f' --seed {seed} ' in line
        assert re.search(r' --recovery-steps [1-9][0-9]* ', line), name
        assert f'runs/{name}/verified.json' in '\n'.join(recipes)
