"""Small results tables: their recipes."""

from gluon_optbert.reproduction.recipe import TableRecipe
from gluon_optbert.runs.recipe import fill
from helpers.finetuned import flags_of

FINISHED = {
    'table': 6,
    'rows': 'bert-l,albert-e,optbert-h,optbert-all-plus',
    'tasks': 'sst-2,squad-v2.0',
}  # of the table that tests share


def values_for(base, shards, data, output, **more):
    return {
        'table': 8,
        'base': str(base),
        'shards': str(shards),
        'output': str(output),
        'tasks': 'sst-2',
        'seeds': '1,2',
        'epochs': 1,
        'data_glue': str(data / 'glue'),
        'data_squad': str(data / 'squad'),
        'alpha_steps': 2,
        'recovery_steps': 2,
        'scratch_steps': 3,
        'pruning': str(data / 'pruning.yaml'),
        'pretraining': str(data / 'pretraining.yaml'),
        'glue': str(data / 'tuning.yaml'),
        'squad': str(data / 'tuning.yaml'),
        **more,
    }


def recipe_for(*args, **more):
    return fill(TableRecipe, values_for(*args, **more))


def flags_for(*args, **more):
    return flags_of(values_for(*args, **more))
