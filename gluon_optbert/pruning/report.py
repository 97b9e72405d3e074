"""What a pruning run did: why units went, and what every round came to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import ParameterCost, count_flops
from ..architecture.parameters import Alphas
from ..cutting.selection import Selection
from ..network.saved_model import read_model
from ..runs.markdown import markdown_table
from ..runs.progress import HeldOut, Progress
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


@dataclasses.dataclass(frozen=True)
class Round:
    """What a round of a run came to; round 0 is the network that went in.

    Parameters
    ----------
    round : int
    parameters : int
    flops : int
        Of one sequence of 128 tokens.
    architecture : Architecture
    before, after_cut, recovered : HeldOut, optional
        Measured before the cut, after it, and after recovery; of round 0 only the last, if it is known.
    """

    round: int
    parameters: int
    flops: int
    architecture: Architecture
    before: Optional[HeldOut] = None
    after_cut: Optional[HeldOut] = None
    recovered: Optional[HeldOut] = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = 'rounds.json') -> Round:
        """The inverse of `to_dict`; ValueError, with the source, if it is none."""
        try:
            measured = {
                name: HeldOut.from_dict(values[name]) if values[name] else None
                for name in ('before', 'after_cut', 'recovered')
            }
            architecture = Architecture.from_dict(values['architecture'], source=source)
            return cls(values['round'], values['parameters'], values['flops'], architecture, **measured)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f'{source}: not a round ({type(error).__name__}: {error!s:.200})') from error

    def to_dict(self) -> Dict[str, Any]:
        """JSON values."""
        return {
            'round': self.round,
            'parameters': self.parameters,
            'flops': self.flops,
            'architecture': self.architecture.to_dict(),
            'before': None if self.before is None else self.before.to_dict(),
            'after_cut': None if self.after_cut is None else self.after_cut.to_dict(),
            'recovered': {} if self.recovered is None else self.recovered.to_dict(),
        }


def summary(output: Path) -> List[Round]:
    """What every finished round of a run came to, from its model directories."""
    rows = []
    for number in range(len(list(Path(output).glob('round-*')))):
        directory = Path(output) / f'round-{number}' / 'model'
        if not directory.is_dir():
            break
        saved = read_model(directory)
        progress = Progress.from_dict(saved.progress, source=str(directory))
        rows.append(
            Round(
                round=number,
                parameters=int(ParameterCost().cost(saved.architecture)),
                flops=sum(count_flops(saved.architecture, 128).values()),
                architecture=saved.architecture,
                before=progress.before,
                after_cut=progress.after_cut,
                recovered=progress.held_out,
            )
        )
    return rows


def widths_line(layers: Sequence[LayerDims], letter: str) -> str:
    """A width along the layers, e.g. ``12 12 11``; one number where all are equal."""
    values = [str(getattr(layer, letter)) for layer in layers]
    return values[0] if values and len(set(values)) == 1 else ' '.join(values)


def _loss(measured: Optional[HeldOut]) -> str:
    return '–' if measured is None else f'{measured.mlm_loss:.3f}'


def readable(rows: Sequence[Round], recipe: PruneRecipe, latency: Optional[Mapping[str, Any]] = None) -> str:
    """The rounds of a run as Markdown, with what `check_predictions` found with the objective latency."""
    shares = recipe.shares()
    header = ['round', 'parameters', 'FLOPs at 128', 'MLM before', 'after the cut', 'recovered', *'hakvf']
    cells = [
        [
            row.round,
            f'{row.parameters / 1e6:.3f} M',
            f'{row.flops / 1e9:.3f} G',
            *(_loss(measured) for measured in (row.before, row.after_cut, row.recovered)),
            row.architecture.h,
            *(widths_line(row.architecture.layers, letter) for letter in 'akvf'),
        ]
        for row in rows
    ]
    parts = [
        '# Pruning run',
        f'Method {recipe.method} on {recipe.prune}: {recipe.objective} to {shares[-1]:.0%} in '
        f'{len(shares)} rounds.',
        markdown_table(header, cells),
    ]
    if latency:
        times = [
            (name, f'{found["predicted_ms"]:.2f} ms', f'{found["measured_ms"]:.2f} ms')
            for name, found in latency.items()
        ]
        parts.append(markdown_table([None, 'predicted', 'measured'], times))
    return '\n\n'.join(parts) + '\n'
