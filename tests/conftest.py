"""Fixtures of several test files: one set of shards and one model directory, made once and only read."""

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import signal

import pytest
from helpers.examples import USUAL
from helpers.pruned import recipe_for
from helpers.shared import made_once
from helpers.tiny import write_saved_model, write_shards
from hypothesis import settings

from gluon_optbert.architecture.rounds import read_rounds
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.runs.machine import physical_cores
from gluon_optbert.text.shards import Shards

# The same examples in every run, so that a failure is one everywhere, and a quarter of them where slow tests
# are left out; --hypothesis-profile=explore draws new ones.
settings.register_profile('fixed', deadline=None, derandomize=True, max_examples=USUAL)
settings.register_profile('quick', deadline=None, derandomize=True, max_examples=USUAL // 4)
settings.register_profile('explore', deadline=None, max_examples=300)
settings.load_profile('fixed')


def pytest_configure(config):
    """Have few examples for `-m "not slow"`, unless the command line names a profile."""
    if config.getoption('markexpr') == 'not slow' and not config.getoption('--hypothesis-profile'):
        settings.load_profile('quick')


def pytest_xdist_auto_num_workers():
    """For `-n auto`: one more than there are cores, for some tests wait most of their time."""
    return physical_cores() + 1


@pytest.fixture(scope='session')
def shards_directory(tmp_path_factory):
    """Shards of 64 training and 16 held-out instances."""
    return made_once(tmp_path_factory, 'shards', write_shards)


@pytest.fixture(scope='session')
def shards(shards_directory):
    """Both splits of them, opened."""
    return {split: Shards.open(shards_directory, split=split) for split in ('train', 'heldout')}


@pytest.fixture(scope='session')
def model_directory(tmp_path_factory):
    """A model directory with two layers of h=8."""
    return made_once(tmp_path_factory, 'model', write_saved_model)


@pytest.fixture(scope='session')
def pruned_run(shards_directory, model_directory, tmp_path_factory):
    """An uninterrupted pruning run of two rounds: its directory and its rounds."""

    def make(place):
        prune(recipe_for(shards_directory, model_directory, place / 'run'))

    output = made_once(tmp_path_factory, 'pruned', make) / 'run'
    return output, list(read_rounds(output))


@pytest.fixture
def pruned(shards_directory, model_directory, tmp_path):
    """Prunes the shared network into a directory of its own, with other settings."""
    return lambda name='run', **more: prune(
        recipe_for(shards_directory, model_directory, tmp_path / name, **more)
    )


@pytest.fixture
def heeded():
    """SIGINT raises KeyboardInterrupt here, and in Python programs started from here, as from a terminal.

    A shell starts background jobs with SIGINT ignored, and so do the programs that these start.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
