"""Search gamma, the learning rate of alpha and the number of alpha steps with Optuna.

Each trial is a pruning run in OUTPUT/trial-N; the held-out loss of its last round is minimised: that of MLM
and that of NSP together, on which gates and weights are trained. A third of the trials, ten at most, are
drawn at random; the others learn from those before them. Trials that are not the best keep their metrics,
gates and selections, and lose their model directories. An interrupted search goes on with --resume and takes
its interrupted trial up where that stopped; several processes may share one search through --resume, or
through --storage."""

import sys

import matplotlib

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet
from gluon_optbert.pruning.recipe import PruneRecipe
from gluon_optbert.pruning.search import SearchRecipe, search
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.starting import again

EXAMPLE = (
    'python pretrain/search_prune.py pretrain/recipes/small_prune.yaml --model models/small --shards shards '
    '--trials 20 --output runs/search'
)


@command
def main(argv=None):
    """Run trials until there are enough, and say which was the best."""
    matplotlib.use('Agg')  # a command draws into files
    recipe = parse(SearchRecipe, argv, description=__doc__, example=EXAMPLE)
    result = search(recipe)
    if result is None:  # not the first of the workers
        return
    print(result.table)
    if result.best is None:
        raise RunFailed(f'{recipe.output}: no trial came to an end; choose smaller learning rates')
    found = {
        name: f'{value:.4g}' if name != 'alpha_steps' else value for name, value in result.values.items()
    }
    left_out = dict.fromkeys(['resume', *(SearchRecipe.model_fields.keys() - PruneRecipe.model_fields)])
    following = again('optbert-prune', argv, **left_out, **found, output=f'{recipe.output}-best')
    print(
        f'best: trial {result.best} in {result.directory}\n'
        f"wrote {recipe.output}: trials.csv, trials.md, Optuna's plots\n"
        f'next: {following}'
    )


if __name__ == '__main__':
    sys.exit(main())
