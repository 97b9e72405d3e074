"""Fixtures of several files of tables: tasks of letters, a base, and one finished table."""

import functools

import pytest
from helpers.commands import succeed
from helpers.finetuned import write_glue
from helpers.questions import write_squad
from helpers.shared import made_once
from helpers.tables import FINISHED, flags_for, recipe_for
from helpers.tiny import network, write_saved_model

from gluon_optbert.reproduction.plan import plan
from gluon_optbert.tasks.squad import Question


@pytest.fixture(scope='session')
def data(tmp_path_factory):
    """SST-2 and MNLI of letters, both SQuADs, and settings as small as they are."""
    return made_once(tmp_path_factory, 'data-of-tables', _write_data)


def _write_data(home):
    home.mkdir()
    write_glue(home / 'glue')
    answered = [
        Question(f'q{i}', 'a b', f'{letter} d e f', ((letter, 0),)) for i, letter in enumerate('ghijkl')
    ]
    for version in ('1.1', '2.0'):
        for part in ('train', 'dev'):
            write_squad(home / 'squad' / f'{part}-v{version}.json', answered, version)
    pruning = 'rounds: 1\nbatch_size: 8\nevaluation_limit: 8\ncheckpoint_every: 0\nlog_every: 0\n'
    (home / 'pruning.yaml').write_text(pruning)
    pretraining = 'learning_rate: 3.0e-3\nsteps: 9\narchitecture: bert_base\n'
    (home / 'pretraining.yaml').write_text(pretraining)
    (home / 'tuning.yaml').write_text('batch_size: 8\nlog_every: 0\ncheckpoint_every: 2\n')


@pytest.fixture(scope='session')
def base(tmp_path_factory):
    """Four layers, so that nine of twelve are three of them, and enough positions for a smaller embedding to
    matter.
    """
    architecture = network(*[(4, 2, 2, 8)] * 4, max_length=64)
    make = functools.partial(write_saved_model, architecture=architecture)
    return made_once(tmp_path_factory, 'base-of-tables', make)


@pytest.fixture
def table_recipe(base, shards_directory, data, tmp_path):
    """The recipe of a table in `out`, with other settings."""

    def recipe(output=tmp_path / 'out', base=base, **more):
        return recipe_for(base, shards_directory, data, output, **more)

    return recipe


@pytest.fixture
def planned(table_recipe):
    """A table as it is planned, in `out`, with other settings."""
    return lambda **more: plan(table_recipe(**more))


@pytest.fixture
def further(data, tmp_path):
    """A file with more settings of pruning than those that all tables here have."""

    def written(more):
        path = tmp_path / 'further.yaml'
        path.write_text((data / 'pruning.yaml').read_text() + more)
        return str(path)

    return written


@pytest.fixture(scope='session')
def finished(base, shards_directory, data, tmp_path_factory):
    """Rows of Table 6 of every kind on SST-2 and SQuAD 2.0, by the command; where, and what it said."""

    def make(place):
        place.mkdir()
        flags = flags_for(base, shards_directory, data, place / 'table', **FINISHED)
        (place / 'said').write_text(succeed('finetune/run_table.py', *flags))

    place = made_once(tmp_path_factory, 'finished-table', make)
    return place / 'table', (place / 'said').read_text()
