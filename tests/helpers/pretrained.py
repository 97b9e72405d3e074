"""Small pre-training runs."""

from gluon_optbert.runs.recipe import fill
from gluon_optbert.training.recipe import PretrainRecipe
from helpers.tiny import network


def values_for(made_of, output, **more):
    return {
        'shards': str(made_of),
        'output': str(output),
        'architecture': network().to_json(),
        'steps': 6,
        'batch_size': 8,
        'learning_rate': 0.005,
        'warmup': 0.2,
        'log_every': 2,
        'evaluate_every': 3,
        'checkpoint_every': 2,
        **more,
    }


def recipe_for(*args, **more):
    return fill(PretrainRecipe, values_for(*args, **more))
