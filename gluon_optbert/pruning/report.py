"""What a pruning run did: why units went, and what every round came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import numpy as np

from ..architecture.cost import ParameterCost, count_flops
from ..architecture.parameters import Alphas
from ..cutting.selection import Selection
from ..network.saved_model import read_model
from .recipe import PruneRecipe


def explain(
    selection: Selection, scores: Alphas, prices: Mapping[str, float], before: float, number: int
) -> Dict[str, Any]:
    """A selection with its reasons, as JSON values: what went, at which alpha and price, and the budget."""
    removed = {}
    for key, kept in selection.kept.items():
        gone = np.setdiff1d(
            np.arange(len(scores.get(key, []))), kept
        )  # a layer without filters has no gate for them
        removed[key] = [[int(i), round(float(scores[key][i]), 6)] for i in gone]
    return {
        'round': number,
        'cost_before': before,
        **selection.to_dict(),
        'prices': dict(prices),
        'removed_unit_and_alpha': removed,
    }


def summary(output: Path) -> List[Dict[str, Any]]:
    """What every finished round of a run came to, for tables; round 0 is the network that went in.

    Returns
    -------
    list of dict
        ``round``, ``parameters``, ``flops`` (one sequence of 128 tokens), ``architecture`` and the held-out
        losses ``before``, ``after_cut`` and ``recovered``.
    """
    rows = []
    for number in range(len(list(Path(output).glob('round-*')))):
        directory = Path(output) / f'round-{number}' / 'model'
        if not directory.is_dir():
            break
        saved = read_model(directory)
        rows.append(
            {
                'round': number,
                'parameters': int(ParameterCost().cost(saved.architecture)),
                'flops': sum(count_flops(saved.architecture, 128).values()),
                'architecture': saved.architecture.to_dict(),
                'before': saved.progress.get('before'),
                'after_cut': saved.progress.get('after_cut'),
                'recovered': {
                    name: saved.progress[name]
                    for name in ('mlm_loss', 'mlm_accuracy', 'nsp_loss', 'nsp_accuracy', 'instances')
                    if name in saved.progress
                },
            }
        )
    return rows


def widths_line(layers: List[Mapping[str, int]], letter: str) -> str:
    """A width along the layers, e.g. ``12 12 11``; one number where all are equal."""
    values = [str(layer[letter]) for layer in layers]
    return values[0] if values and len(set(values)) == 1 else ' '.join(values)


def readable(
    rows: List[Dict[str, Any]], recipe: PruneRecipe, latency: Optional[Mapping[str, Any]] = None
) -> str:
    """The rounds of a run as Markdown, with what `check_predictions` found where latency was the objective."""
    shares = recipe.shares()
    lines = [
        '# Pruning run',
        '',
        f'Method {recipe.method} on {recipe.prune}: {recipe.objective} to {shares[-1]:.0%} in '
        f'{len(shares)} rounds.',
        '',
        '| round | parameters | FLOPs at 128 | MLM before | after the cut | recovered | h | a | k | v | f |',
        '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |',
    ]
    for row in rows:

        def loss(name):
            return f'{row[name]["mlm_loss"]:.3f}' if row[name] else '–'

        layers = row['architecture']['layers']
        lines.append(
            f'| {row["round"]} | {row["parameters"] / 1e6:.3f} M | {row["flops"] / 1e9:.3f} G | '
            f'{loss("before")} '
            f'| {loss("after_cut")} | {loss("recovered")} | {row["architecture"]["h"]} | '
            + ' | '.join(widths_line(layers, letter) for letter in 'akvf')
            + ' |'
        )
    if latency:
        lines += ['', '| | predicted | measured |', '| --- | --- | --- |'] + [
            f'| {name} | {found["predicted_ms"]:.2f} ms | {found["measured_ms"]:.2f} ms |'
            for name, found in latency.items()
        ]
    return '\n'.join(lines) + '\n'
