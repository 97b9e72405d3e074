"""Train the gates of one network with several optimizers, penalties and strengths, and say how far they move.

The settings are named in a YAML file, each with the fields of GateSettings in which it differs and its steps:

    Adam at 0.05: {learning_rate: 0.05, steps: 150}
    SGD at 30: {optimizer: sgd, learning_rate: 30, steps: 150}

Every setting trains all gates, and then anew on either half of its batches, which says how certain the
ranking is. OUTPUT/points.json has every setting that is done, and OUTPUT/table.md is made of it. Called
again, it does what is missing.

example:
  python benchmarks/studies/gate_optimizers.py --settings settings.yaml --model work/base \\
      --shards work/shards --output gates"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from points import read_if_there
from scipy.stats import spearmanr

from gluon_optbert.architecture.cost import ParameterCost, beta
from gluon_optbert.architecture.parameters import LETTERS
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.network.settings import fast_precision
from gluon_optbert.pruning.gate_training import GateSettings, train_gates
from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import write_file, write_json
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import read_yaml
from gluon_optbert.training.objective import Phase

CLOSED = 0.05  # a gate below it counts as decided to close


def of_width(alphas: Mapping[str, np.ndarray], letter: str) -> np.ndarray:
    """The gates of a width, of all layers."""
    return np.concatenate([np.abs(alphas[key]) for key in sorted(alphas) if key[0] == letter])


def measured(
    trained: Mapping[str, np.ndarray], halves: list[Mapping[str, np.ndarray]], prices: Mapping[str, float]
) -> dict[str, Any]:
    """Movement of the gates by width, and how a layer's gates of a width, as a mean, follow beta."""
    keys = sorted(trained)
    moved = [float(1 - np.abs(trained[key]).mean()) for key in keys]
    widths = {}
    for letter in LETTERS:
        gates = of_width(trained, letter)
        apart = [of_width(half, letter) for half in halves]
        widths[letter] = {
            'beta': float(np.mean([prices[key] for key in keys if key[0] == letter])),
            'mean': float(gates.mean()),
            'smallest': float(gates.min()),
            'largest': float(gates.max()),
            'closed': float((gates < CLOSED).mean()),
            'halves': float(spearmanr(*apart).statistic),
        }
    follows = float(spearmanr(moved, [prices[key] for key in keys]).statistic)
    return {'widths': widths, 'follows_beta': follows}


def table_of(points: Mapping[str, Any]) -> str:
    """A line for every setting, in Markdown."""
    head = ['setting', 'seconds', 'movement follows β']
    head += [f'{letter}: mean, < {CLOSED}, halves' for letter in LETTERS]
    rows = []
    for name, one in points.items():
        widths = [one['widths'][letter] for letter in LETTERS]
        cells = [f'{w["mean"]:.2f}, {w["closed"]:.0%}, {w["halves"]:.2f}' for w in widths]
        rows.append([name, f'{one["seconds"]:.0f}', f'{one["follows_beta"]:+.2f}', *cells])
    betas = next(iter(points.values()))['widths']
    shown = ', '.join(f'{letter} {betas[letter]["beta"]:.4f}' for letter in LETTERS)
    return (
        markdown_table(head, rows)
        + f'\n\nβ of a unit, as a mean over the layers: {shown}. Of every width: the mean gate, the share of '
        f'gates below {CLOSED}, and the rank correlation of gates trained on either half of the batches. '
        '"Movement follows β" is the rank correlation, over the layers of all widths, of how far their gates '
        'have moved from one, as a mean, with β.\n'
    )


@command
def main(argv=None):
    """Train what is missing, and write the table anew after every setting."""
    parser = Parser(__doc__)
    parser.add_argument('--settings', type=Path, required=True, help='YAML file of settings by name')
    parser.add_argument('--model', type=Path, required=True, help='model directory with its heads')
    parser.add_argument('--shards', type=Path, required=True, help='directory of shards')
    parser.add_argument('--output', type=Path, required=True, help='directory for the points and the table')
    parser.add_argument('--batch-size', type=int, default=32, help='sequences in a step (default: 32)')
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    saved, place = read_model(options.model), options.output / 'points.json'
    points = read_if_there(place) or {}
    prices = beta(saved.architecture, ParameterCost())
    for name, setting in read_yaml(options.settings).items():
        if name in points:
            continue
        steps, fields = setting['steps'], {key: value for key, value in setting.items() if key != 'steps'}
        settings = GateSettings(**{'precision': fast_precision(), 'dropout': 0.0, **fields})
        began, trained = time.monotonic(), []
        half = steps // 2
        for label, first, number in (('all', 0, steps), ('half 1', 0, half), ('half 2', half, half)):
            phase = Phase(f'{name}, {label}', number, options.batch_size, first_batch=first, log_every=25)
            trained.append(train_gates(saved, options.shards, phase, settings)[1])
        points[name] = {
            'settings': {**dataclasses.asdict(settings), 'steps': steps, 'batch_size': options.batch_size},
            'origin': origin_here(),
            'seconds': time.monotonic() - began,
            **measured(trained[0], trained[1:], prices),
        }
        write_json(place, points)
        write_file(options.output / 'table.md', table_of(points).encode())
    print(table_of(points))


if __name__ == '__main__':
    sys.exit(main())
