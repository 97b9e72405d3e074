"""Check for every round of a pruning run that the cut network and its export equal the gated network.

Of a network with a trimmed vocabulary, check that it equals the whole one where all tokens stayed."""

import json
import sys

from .. import VerifyRecipe, verify
from ..deployment.export import TOLERANCE
from ..deployment.trim_check import TOLERANCE as TRIM_TOLERANCE
from ..deployment.trim_check import check_trimmed, is_trimmed
from ..deployment.verify import described_rounding, described_scales, stages, stages_table, table
from ..runs.command_line import parse
from ..runs.files import refuse_existing, write_file
from ..runs.machine import origin_here, origin_warnings
from .starting import command, line
from .trim_vocabulary import described_splits


def _verify_trimmed(recipe: VerifyRecipe) -> None:
    checked = check_trimmed(recipe)
    for name, difference in checked.differences.items():
        print(f'{name}: largest difference {difference:.1e} of its largest value')
    if checked.splits is not None:
        print('\n'.join(described_splits(checked.splits)))
    sequences = f'{checked.sequences} sequence{"s" * (checked.sequences > 1)}'
    print(
        f'verified: {sequences} whose tokens all stayed, within {TRIM_TOLERANCE:.0e} of the network with the '
        'whole vocabulary'
    )


@command
def main(argv=None):
    """Verify a run directory or a trimmed network, and print the differences."""
    example = line('optbert-verify', 'runs/pruned')
    recipe = parse(VerifyRecipe, argv, description=__doc__, example=example, positional='run')
    if is_trimmed(recipe.run):
        _verify_trimmed(recipe)
        return
    if recipe.output is not None:
        refuse_existing(recipe.output)
    rows = verify(recipe)
    print('largest difference over the largest activation, on held-out batches:\n')
    print(table(rows))
    for sentence in described_rounding(rows):
        print(f'\n{sentence}')
    print('\nerror relative to the network before the cut, and loss, on the same batches:\n')
    errors = stages(recipe)
    print(stages_table(errors))
    for sentence in described_scales(errors):
        print(f'\n{sentence}')
    if recipe.output is not None:
        settings = {name: getattr(recipe, name) for name in ('batches', 'batch_size')}
        values = {**settings, 'differences': rows, 'stages': errors, **origin_here()}
        write_file(recipe.output, (json.dumps(values, indent=1) + '\n').encode())
    beside = ' or rounding' if described_rounding(rows) else ''
    print(f'\nverified: {len(rows)} round{"s" * (len(rows) > 1)}, all within {TOLERANCE:.0e}{beside}')
    for sentence in origin_warnings(recipe.run):
        print(f'warning: {sentence}', file=sys.stderr)
