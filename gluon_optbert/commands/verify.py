"""Check for every round of a pruning run that the cut network and its export equal the gated network."""

import sys

from .. import VerifyRecipe, verify
from ..deployment.export import TOLERANCE
from ..deployment.verification import stages, stages_table, table
from ..runs.command_line import parse
from ..runs.provenance import origin_warnings
from .starting import command, line


@command
def main(argv=None):
    """Verify a run directory and print the table."""
    example = line('optbert-verify', 'runs/pruned')
    recipe = parse(VerifyRecipe, argv, description=__doc__, example=example, positional='run')
    rows = verify(recipe)
    print('largest difference over the largest activation, on held-out batches:\n')
    print(table(rows))
    print('\nerror relative to the network before the cut, and loss, on the same batches:\n')
    print(stages_table(stages(recipe)))
    print(f'\nverified: {len(rows)} round{"s" * (len(rows) > 1)}, all within {TOLERANCE:.0e}')
    for sentence in origin_warnings(recipe.run):
        print(f'warning: {sentence}', file=sys.stderr)
