"""Measure networks on the same held-out instances: which one has the smaller MLM loss, and may it be chance?

The difference to the first network is taken instance by instance, so its standard error is far below those of
the losses. It counts instances as independent: other text, or another seed of training, may differ by more.

example:
  python benchmarks/studies/compare_losses.py models/base runs/pruned/round-4/model --shards shards"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from points import parser_of

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.cutting.shrink import without_gates
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.network.settings import TRAINING_PRECISIONS, check_precision
from gluon_optbert.reporting.networks import labels_of
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, sha256, write_json
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.text.shards import Shards
from gluon_optbert.text.tokenizer import vocabulary_hash
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import Losses, difference, losses_of


def measure(path: Path, arguments: argparse.Namespace, workers: Workers) -> tuple[int, Losses]:
    """Parameters and losses of a network; ValueError if it cannot have any on these shards."""
    model = read_model(path)
    if model.head != PRETRAINING:
        raise ValueError(f'{path} has the head of a task; give the network that it was fine-tuned from')
    vocabulary = vocabulary_hash(model.vocabulary)
    shards = Shards.open(arguments.shards, split='heldout', vocabulary_hash=vocabulary)
    whole = without_gates(model)
    settings = {'trainable': False, 'precision': arguments.precision, 'ctx': workers.context()}
    network = build(whole.architecture, whole.parameters, **settings)
    losses = losses_of(network, shards, workers, batch_size=arguments.batch_size, limit=arguments.limit)
    if workers.first and 'mlm' in (model.progress.untrained or ()):
        print(f'{path}: its MLM head was never trained')
    return int(ParameterCost().cost(model.architecture)), losses


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure one network after the other, print the table."""
    parser = parser_of(__doc__)
    parser.add_argument(
        'models', nargs='+', type=Path, metavar='MODEL', help='directories; the first is the base'
    )
    parser.add_argument('--shards', type=Path, required=True, help='whose held-out instances are read')
    parser.add_argument('--limit', type=int, help='largest number of instances; without it all')
    parser.add_argument('--batch-size', type=int, default=32, help='instances at a time [default: 32]')
    parser.add_argument('--precision', default='float32', choices=TRAINING_PRECISIONS, help='of products')
    parser.add_argument('--output', type=Path, help='JSON file to write')
    arguments = parser.parse_args(argv)
    if arguments.output:
        refuse_existing(arguments.output)
    workers = Workers()
    check_precision(arguments.precision, workers.context())
    measured = [measure(path, arguments, workers) for path in arguments.models]
    first = measured[0][1]
    rows, cells = [], []
    for label, (parameters, losses) in zip(labels_of(arguments.models), measured):
        apart, error = (None, None) if losses is first else difference(first, losses, workers)
        own = losses.measured.to_dict()
        row = {'network': label, 'parameters': parameters, **own, 'difference': apart}
        rows.append({**row, 'standard_error_of_difference': error})
        cell = [label, f'{parameters / 1e6:.1f} M', f'{own["mlm_loss"]:.3f}']
        for form, value in (('.3f', own.get('mlm_standard_error')), ('+.3f', apart), ('.3f', error)):
            cell.append(None if value is None else format(value, form))
        cells.append([*cell, f'{own["mlm_accuracy"]:.1%}', f'{own["nsp_accuracy"]:.1%}'])
    if not workers.first:
        return
    head = ['network', 'parameters', 'MLM loss, nats', 'its standard error', 'to the first']
    head += ['standard error of that', 'MLM accuracy', 'NSP accuracy']
    print(markdown_table(head, cells, numbers=True))
    print(f'{rows[0]["instances"]:,} held-out instances of {arguments.shards}')
    if arguments.output:
        recipe = json.loads(json.dumps(vars(arguments), default=str))
        checksums = [sha256(path / 'model.params') for path in arguments.models]
        values = {'recipe': recipe, 'model_sha256': checksums, 'networks': rows, **origin_here()}
        write_json(arguments.output, values)
        print(f'wrote {arguments.output}')


if __name__ == '__main__':
    sys.exit(main())
