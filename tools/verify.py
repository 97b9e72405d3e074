"""Check that every round of a pruning run computes what its gated network computes, and its export as well."""

import sys

from gluon_optbert.deployment.export import TOLERANCE
from gluon_optbert.deployment.verification import VerifyRecipe, table, verify
from gluon_optbert.runs.command_line import command, parse


@command
def main(argv=None):
    """Verify a run directory and print the table."""
    rows = verify(
        parse(
            VerifyRecipe,
            argv,
            description=__doc__,
            example='python tools/verify.py runs/pruned',
            positional='run',
        )
    )
    print('largest difference over the largest activation, on held-out batches:\n')
    print(table(rows))
    print(f'\nverified: {len(rows)} rounds, all within {TOLERANCE:.0e}')


if __name__ == '__main__':
    sys.exit(main())
