"""Small pruning runs, and what their directories hold."""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
from unittest import mock

import numpy as np
import pytest

from gluon_optbert.cutting.selection import Selection
from gluon_optbert.pruning.algorithm import prune
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.runs.recipe import fill
from gluon_optbert.text.tokenizer import vocabulary_of
from gluon_optbert.training import loop
from gluon_optbert.training.optimization import Optimizer
from helpers.tiny import Interrupted, contents, records

MODEL = {'architecture.json', 'manifest.json', 'model.params', 'progress.json', 'recipe.yaml', 'vocab.txt'}


def values_for(made_of, start, output, **more):
    return {
        'shards': str(made_of),
        'model': str(start),
        'output': str(output),
        'target': 0.6,
        'rounds': 2,
        'batch_size': 8,
        'alpha_steps': 3,
        'alpha_learning_rate': 0.05,
        'gamma': 0.01,
        'recovery_steps': 4,
        'learning_rate': 0.002,
        'warmup': 0.3,
        'log_every': 2,
        'evaluate_every': 0,
        'checkpoint_every': 2,
        **more,
    }


def recipe_for(*args, **more):
    return fill(PruneRecipe, values_for(*args, **more))


def alphas_of(directory):
    with np.load(str(directory / 'alphas.npz'), allow_pickle=False) as packed:
        return {key: packed[key] for key in packed.files}


def selection_of(directory):
    return Selection.from_dict(json.loads((directory / 'selection.json').read_text()))


def results(directory):
    """Files that have to be the same bits in two runs: not recipes, which name their output, nor times."""
    digests = {
        name: digest
        for name, digest in contents(directory).items()
        if not name.endswith(('recipe.yaml', 'manifest.json', 'metrics.jsonl'))
    }
    return digests, records(directory)


def with_more_tokens(small, words=('aa', 'bb', 'cc', 'dd')):
    """A network that knows some words more than another one."""
    vocabulary = vocabulary_of([*small.vocabulary.idx_to_token, *words])
    rows = {
        name: np.concatenate([value, value[-len(words) :]])
        for name, value in small.parameters.items()
        if name in ('word_embed.0.weight', 'decoder.3.bias')
    }
    return dataclasses.replace(
        small,
        vocabulary=vocabulary,
        architecture=dataclasses.replace(small.architecture, vocab_size=len(vocabulary)),
        parameters={**small.parameters, **rows},
    )


@contextlib.contextmanager
def before_step(count, action, phase=''):
    """Something is done before a step of what is trained here, the number `count` of all steps or of those of
    a phase.
    """
    step, numbers = loop._step, itertools.count(1)

    def acting(*args):
        if phase in ('', args[4].name) and next(numbers) == count:
            action()
        return step(*args)

    with mock.patch.object(loop, '_step', acting):
        yield


@contextlib.contextmanager
def interrupted_at(count, phase=''):
    """Interrupt training here at a step, the number `count` of all steps or of those of a phase."""
    with before_step(count, mock.Mock(side_effect=Interrupted), phase), pytest.raises(Interrupted):
        yield


def prune_until_killed(values, moment):
    """Go on with a run, in a process that is killed before the n-th time that it renames, flushes or removes
    something or takes a step.
    """
    moments = itertools.count(1)

    def counted(action):
        def act(*args, **kwargs):
            if next(moments) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*args, **kwargs)

        return act

    files = ((os, 'replace'), (os, 'fsync'), (shutil, 'rmtree'))
    for owner, name in (*files, (Optimizer, 'update')):
        setattr(owner, name, counted(getattr(owner, name)))
    prune(fill(PruneRecipe, {**values, 'resume': True}))
