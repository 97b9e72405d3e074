"""Measure networks on the same held-out instances: which one has the smaller MLM loss, and may it be chance?

The difference to the first network is taken instance by instance, so its standard error is far below those
of the losses. It counts instances as independent: other text, or another seed of training, may differ by
more."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from gluon_optbert.architecture.cost import ParameterCost
from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.cutting.shrink import without_gates
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import SavedModel, read_model
from gluon_optbert.network.settings import TRAINING_PRECISIONS, check_precision
from gluon_optbert.reporting.networks import labels_of
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, sha256, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict
from gluon_optbert.text.shards import Shards
from gluon_optbert.text.tokenizer import vocabulary_hash
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.held_out import Losses, difference, losses_of

EXAMPLE = 'python tools/compare_losses.py models/base runs/pruned/round-4/model --shards shards'


class LossesRecipe(Recipe):
    """What is measured, and on what."""

    models: tuple[Path, ...] = option('model directories; the others are compared with the first')
    shards: Path = option('directory of shards, whose held-out instances are read')
    limit: int | None = option('largest number of instances; by default all', None)
    batch_size: int = option('instances at a time', 32)
    precision: str = option("of the encoder's matrix products", 'float32', choices=TRAINING_PRECISIONS)
    output: Path | None = option('JSON file to write', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        counts = {'limit': self.limit, 'batch_size': self.batch_size}
        return [
            f'{name} must be at least 1, found {count}'
            for name, count in counts.items()
            if count is not None and count < 1
        ]


def measure(model: SavedModel, path: Path, recipe: LossesRecipe, workers: Workers) -> Losses:
    """The losses of one network; ValueError if it cannot have any on these shards."""
    if model.head != PRETRAINING:
        raise ValueError(
            f'{path} has the head of a task instead of those of pre-training; give the network that it was '
            'fine-tuned from, or compare scores with tools/report.py'
        )
    shards = Shards.open(recipe.shards, split='heldout', vocabulary_hash=vocabulary_hash(model.vocabulary))
    whole = without_gates(model)
    network = build(
        whole.architecture,
        whole.parameters,
        trainable=False,
        precision=recipe.precision,
        ctx=workers.context(),
    )
    return losses_of(network, shards, workers, batch_size=recipe.batch_size, limit=recipe.limit)


def rows_of(
    labels: Sequence[str], models: Sequence[SavedModel], losses: Sequence[Losses], workers: Workers
) -> List[Dict[str, Any]]:
    """What was measured of each network, and its difference to the first."""
    rows = []
    for label, model, own in zip(labels, models, losses):
        apart, error = (None, None) if own is losses[0] else difference(losses[0], own, workers)
        rows.append(
            {
                'network': label,
                'parameters': int(ParameterCost().cost(model.architecture)),
                **own.measured.to_dict(),
                'difference': apart,
                'standard_error_of_difference': error,
            }
        )
    return rows


def table(rows: Sequence[Dict[str, Any]]) -> str:
    """The networks as Markdown."""

    def nats(value: Optional[float], sign: str = '') -> Optional[str]:
        return None if value is None else f'{value:{sign}.3f}'

    cells = [
        (
            row['network'],
            f'{row["parameters"] / 1e6:.1f} M',
            nats(row['mlm_loss']),
            nats(row.get('mlm_standard_error')),
            nats(row['difference'], '+'),
            nats(row['standard_error_of_difference']),
            f'{row["mlm_accuracy"]:.1%}',
            f'{row["nsp_accuracy"]:.1%}',
        )
        for row in rows
    ]
    head = ['network', 'parameters', 'MLM loss, nats', 'its standard error', 'to the first']
    head += ['standard error of that', 'MLM accuracy', 'NSP accuracy']
    return markdown_table(head, cells, align='l' + 'r' * (len(head) - 1))


@command
def main(argv=None):
    """Measure one network after the other, print the table."""
    recipe = parse(LossesRecipe, argv, description=__doc__, positional='models', example=EXAMPLE)
    if recipe.output:
        refuse_existing(recipe.output)
    workers = Workers()
    check_precision(recipe.precision, workers.context())
    models = [read_model(path) for path in recipe.models]
    losses = [measure(model, path, recipe, workers) for model, path in zip(models, recipe.models)]
    rows = rows_of(labels_of(recipe.models), models, losses, workers)
    if not workers.first:
        return
    print(table(rows))
    for path, model in zip(recipe.models, models):
        if model.progress.untrained:
            print(f'{path}: its heads of pre-training were never trained')
    print(f'{rows[0]["instances"]:,} held-out instances of {recipe.shards}')
    if recipe.output:
        checksums = [sha256(path / 'model.params') for path in recipe.models]
        values = {'recipe': to_dict(recipe), 'model_sha256': checksums, 'networks': rows, **origin_here()}
        write_file(recipe.output, (json.dumps(values, indent=1) + '\n').encode())
        print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
