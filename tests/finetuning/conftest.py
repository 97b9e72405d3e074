"""Fixtures of several files of fine-tuning: data of letters, and one finished run."""

import warnings

import pytest
from helpers.finetuned import recipe_for, write_glue

from gluon_optbert.finetuning.recipes import finetune_glue


@pytest.fixture(scope='session')
def glue(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp('data') / 'glue')


@pytest.fixture(scope='session')
def finished(model_directory, glue, tmp_path_factory):
    """An uninterrupted run of two seeds: where it is, and what `finetune_glue` returned."""
    base = tmp_path_factory.mktemp('finetuned')
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)  # such as MXNet's of an input that nothing reads
        return base, finetune_glue(recipe_for(model_directory, glue, base, seeds=[1, 2]))
