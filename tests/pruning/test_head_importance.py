"""Scores of heads by Michel et al. (2019): how strongly the loss depends on what a head gives."""

import dataclasses

import numpy as np
import pytest
from helpers.pruned import recipe_for

from gluon_optbert.network.saved_model import read_model
from gluon_optbert.pruning.head_importance import head_importance, value_projections
from gluon_optbert.pruning.pretraining_goal import PretrainingGoal
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.objective import Phase

PHASE = Phase('importance', steps=1, batch_size=8, seed=1)


def test_scores_are_the_slopes_of_the_loss_without_dropout(shards_directory, model_directory, tmp_path):
    start = read_model(model_directory)
    recipe = recipe_for(shards_directory, model_directory, tmp_path / 'run', dropout=0.1)
    goal = PretrainingGoal(recipe, start, Workers())
    scores = head_importance(start, goal, PHASE)

    def loss(scaled):
        """Of the first batch, where the outputs of some heads are scaled."""
        model = goal.build(scaled)
        objective = goal.labelled(model, PHASE)
        batch = next(objective.batches(PHASE, 0))
        sums = [float(part.asscalar()) for part in objective.loss_sums(batch, slice(None))]
        return sum(np.array(sums) / objective.totals(batch))

    def with_head(layer, head, factor):
        parameters = {name: value.copy() for name, value in start.parameters.items()}
        for name in value_projections(start.architecture)[layer]:
            width = len(parameters[name]) // start.architecture.layers[layer].a
            parameters[name][head * width : (head + 1) * width] *= factor
        return dataclasses.replace(start, parameters=parameters)

    for layer, dims in enumerate(start.architecture.layers):
        slopes = [
            abs(loss(with_head(layer, head, 1.05)) - loss(with_head(layer, head, 0.95)))
            for head in range(dims.a)
        ]
        assert scores[f'a{layer}'] == pytest.approx(slopes / np.linalg.norm(slopes), abs=0.03)
