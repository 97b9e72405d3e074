"""Some dozens of hostile cases for every reader, or as many as `HOSTILE_CASES` says. And what the guard of a
case notices.
"""

import os
import pickle
import subprocess
from collections import OrderedDict
from pathlib import Path

import pytest
from helpers.fuzzing import PROPERTIES, guarded
from hypothesis import HealthCheck, settings

from gluon_optbert.runs.recipe import RecipeError

CASES = int(os.environ.get('HOSTILE_CASES', 40))
OPTIONS = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    derandomize='HOSTILE_CASES' not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.parametrize('name', PROPERTIES)
def test_hostile_input_is_read_right_or_refused_clearly(name):
    OPTIONS(PROPERTIES[name])()


def fail(error):
    raise error


def test_guard_lets_clear_errors_pass_and_no_others(tmp_path):
    for error in (
        ValueError('too long'),
        RecipeError(['one', 'other']),
        FileNotFoundError('x: no such file'),
    ):
        with guarded(tmp_path):
            fail(error)
    for error in (KeyError('x'), OSError('x'), RecursionError('x')):
        with pytest.raises(type(error)), guarded(tmp_path):
            fail(error)


@pytest.mark.parametrize(
    'act',
    [
        lambda: fail(ValueError('')),
        lambda: fail(ValueError('one\ntwo')),
        lambda: fail(ValueError('x' * 30_000)),
        lambda: b'\xff'.decode(),
        lambda: Path('/proc/self/status').read_text(),
        lambda: subprocess.run(['true']),
        lambda: pickle.loads(pickle.dumps(OrderedDict())),
    ],
    ids=['empty', 'two lines', 'endless', 'of another type', 'read elsewhere', 'program', 'pickle'],
)
def test_guard_notices(tmp_path, act):
    with pytest.raises(AssertionError), guarded(tmp_path):
        act()
