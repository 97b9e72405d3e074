"""Doubts: what is asked for and can be done, but will hardly tell anything, is said before it starts."""

import dataclasses

import pytest
from helpers.pruned import recipe_for
from helpers.tiny import network, saved_model, write_shards

from gluon_optbert.pruning.doubts import FEW_INSTANCES, doubts
from gluon_optbert.pruning.objectives import PretrainingObjective
from gluon_optbert.text.batches import frequency_loss
from gluon_optbert.text.shards import Shards
from gluon_optbert.training.distributed import Workers

WIDE = network((8, 16, 16, 64), (8, 16, 16, 64), h=32)
SANE = {'alpha_steps': 20, 'alpha_learning_rate': 0.05, 'evaluation_limit': 2048}


@pytest.fixture(scope='module')
def many(tmp_path_factory):
    """Shards with enough held-out instances."""
    return write_shards(tmp_path_factory.mktemp('many') / 'shards', heldout=(FEW_INSTANCES,))


def doubted(shards, *, architecture=WIDE, progress=None, **more):
    start = saved_model(architecture)
    start = dataclasses.replace(start, progress=start.progress.updated(**(progress or {})))
    recipe = recipe_for(shards, 'models/base', 'runs/pruned', **{**SANE, **more})
    return doubts(PretrainingObjective(recipe, start, Workers()))


def guessed(shards):
    return frequency_loss(*(Shards.open(shards, split=split) for split in ('train', 'heldout')))


@pytest.mark.parametrize(
    'more, words',
    [
        ({}, None),
        ({'target': 0.05}, 'a uniform cut k 5, v 5 or less'),
        ({'target': 0.2, 'prune': 'af', 'objective': 'flops'}, 'a uniform cut a 1'),
        ({'target': 0.4, 'prune': 'f', 'objective': 'parameters'}, None),
        ({'target': 0.83, 'prune': 'f', 'objective': 'parameters'}, 'a uniform cut f 6'),
        ({'alpha_steps': 9}, 'by about 0.45 in 9 steps of 0.05'),
        ({'alpha_steps': 10}, None),
        ({'alpha_steps': 9, 'alpha_optimizer': 'sgd'}, None),
        ({'alpha_steps': 9, 'method': 'fisher'}, None),
        ({'alpha_steps': 9, 'penalty': 'l0'}, None),
        ({'evaluation_limit': 40}, 'there are 40 held-out instances'),
    ],
)
def test_what_can_tell_little_is_doubted_by_its_reason_and_flag(many, more, words):
    found = doubted(many, **more)
    assert len(found) == (words is not None), found
    assert words is None or (words in found[0] and '--' in found[0])


@pytest.mark.parametrize(
    'architecture, more',
    [
        (network(), {'target': 0.5}),  # whose layers were narrow before
        (WIDE, {'target': 0.05, 'method': 'layers'}),
        (WIDE, {'target': 0.83, 'method': 'blocks', 'prune': 'f'}),
    ],
)
def test_layers_that_were_narrow_or_stay_as_wide_are_no_doubt(many, architecture, more):
    assert doubted(many, architecture=architecture, **more) == []


@pytest.mark.parametrize('above, labels, doubtful', [(0.1, None, 1), (-0.1, None, 0), (0.1, 'none', 0)])
def test_a_base_that_guesses_by_frequency_is_doubted_where_its_heads_are_needed(
    many, above, labels, doubtful
):
    measured = {'mlm_loss': guessed(many) + above, 'mlm_accuracy': 0.1}
    assert len(doubted(many, progress=measured, labels=labels, prune='akvf')) == doubtful
