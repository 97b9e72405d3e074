"""Fit a latency model to this machine, for pruning with --objective latency. Nothing else should run
meanwhile.
"""

import sys

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet
from gluon_optbert.pruning.latency import LatencyRecipe, fit_latency
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.starting import line

USELESS = 0.25  # median relative error


@command
def main(argv=None):
    """Measure, fit, and say how good the fit is."""
    recipe = parse(
        LatencyRecipe,
        argv,
        description=__doc__,
        positional='output',
        example='python tools/fit_latency.py latency.json --batch 1 --length 128',
    )
    result = fit_latency(recipe)
    error = result['relative_error']
    print(
        f'relative error on {error["networks"]} networks that were not fitted: median {error["median"]:.1%}, '
        f'largest {error["largest"]:.1%}'
    )
    print(f'wrote {recipe.output}')
    if error['median'] > USELESS:
        raise RunFailed(
            'the fit is too far off to prune by: try again while nothing else runs, with more --networks or '
            '--repeats, and another output'
        )
    words = ['--model', 'MODEL_DIR', '--shards', 'SHARDS', '--objective', 'latency']
    words += ['--latency-model', recipe.output, '--output', 'runs/pruned']
    print(f'next: {line("optbert-prune", *words, recipe="pretrain/small_prune")}')


if __name__ == '__main__':
    sys.exit(main())
