"""What a pruning run did: why units went, and what every round came to."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import ParameterCost, count_flops
from ..architecture.parameters import Alphas
from ..cutting.selection import Selection
from ..network.saved_model import SavedModel, read_model
from ..runs.display import markdown_table
from ..runs.progress import CLOSED, CUT, GATES, OPEN, RECOVERY, Measured, TaskScores, measured_of
from .recipe import PruningRecipe

CLEAR = 2  # standard errors of a difference: chance stays within so many in 95 of 100 cases
MORE_OF_TASK = 'measure on more instances'
MORE = 'raise --evaluation-limit; if it is above what is held out, make shards with a larger --held-out'


def explain(
    selection: Selection, scores: Alphas, prices: Mapping[str, float], before: float, number: int
) -> Dict[str, Any]:
    """A selection with its reasons, as JSON values: what went, at which alpha and price, and the budget."""
    removed = {}
    for key, kept in selection.kept.items():
        # a layer without filters has no gate for them
        gone = np.setdiff1d(np.arange(len(scores.get(key, []))), kept)
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
    before, after_cut, recovered : HeldOut or TaskScores, optional
        Measured before the cut, after it, and after recovery. Of round 0 there is only the last: what round
        1 measured before its cut, or what the network that went in says of itself.
    after_reconstruction : HeldOut or TaskScores, optional
        Measured before recovery, where the layers were fitted to those before the cut.
    kept_step : int, optional
        The step of recovery that the network is of, where it is not the last one; 0 is the network before it.
    state_difference : float, optional
        After recovery from states alone: that of held-out text, by which the step was chosen.
    started_from : str, optional
        `CUT` where the layers were fitted and that fit was left out.
    difference_errors : mapping of str to float, optional
        As of `Progress`.
    """

    round: int
    parameters: int
    flops: int
    architecture: Architecture
    before: Optional[Measured] = None
    after_cut: Optional[Measured] = None
    recovered: Optional[Measured] = None
    after_reconstruction: Optional[Measured] = None
    kept_step: Optional[int] = None
    state_difference: Optional[float] = None
    started_from: Optional[str] = None
    difference_errors: Optional[Mapping[str, float]] = None

    @property
    def start(self) -> Optional[Measured]:
        """What was measured of the network that recovery started from."""
        return self.after_cut if self.started_from == CUT else self.after_reconstruction or self.after_cut

    @classmethod
    def of(cls, saved: SavedModel, number: int) -> Round:
        """The round that a network came out of."""
        progress = saved.progress
        # What the network that went in says of a cut is of an earlier run.
        of_cut = {
            'before': progress.before,
            'after_cut': progress.after_cut,
            'after_reconstruction': progress.after_reconstruction,
            'kept_step': progress.kept_step,
            'state_difference': progress.state_difference,
            'started_from': progress.started_from,
            'difference_errors': progress.difference_errors,
        }
        return cls(
            round=number,
            parameters=int(ParameterCost().cost(saved.architecture)),
            flops=sum(count_flops(saved.architecture, 128).values()),
            architecture=saved.architecture,
            recovered=progress.measured,
            **(of_cut if number else {}),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = 'rounds.json') -> Round:
        """The inverse of `to_dict`; ValueError, with the source, if it is none."""
        try:
            measured = {
                name: measured_of(values[name]) if values[name] else None
                for name in ('before', 'after_cut', 'recovered')
            }
            if values.get('after_reconstruction'):
                measured['after_reconstruction'] = measured_of(values['after_reconstruction'])
            architecture = Architecture.from_dict(values['architecture'], source=source)
            further = ('kept_step', 'state_difference', 'started_from', 'difference_errors')
            measured.update({name: values.get(name) for name in further})
            return cls(values['round'], values['parameters'], values['flops'], architecture, **measured)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f'{source}: not a round ({type(error).__name__}: {error!s:.200})') from error

    def to_dict(self) -> Dict[str, Any]:
        """JSON values."""
        repaired = self.after_reconstruction
        return {
            'round': self.round,
            'parameters': self.parameters,
            'flops': self.flops,
            'architecture': self.architecture.to_dict(),
            'before': None if self.before is None else self.before.to_dict(),
            'after_cut': None if self.after_cut is None else self.after_cut.to_dict(),
            **({} if repaired is None else {'after_reconstruction': repaired.to_dict()}),
            **({} if self.started_from is None else {'started_from': self.started_from}),
            **({} if self.kept_step is None else {'kept_step': self.kept_step}),
            **({} if self.state_difference is None else {'state_difference': self.state_difference}),
            **({} if self.difference_errors is None else {'difference_errors': dict(self.difference_errors)}),
            'recovered': {} if self.recovered is None else self.recovered.to_dict(),
        }


def summary(output: Path) -> List[Round]:
    """What every finished round of a run came to, from its model directories."""
    rows = []
    for number in range(len(list(Path(output).glob('round-*')))):
        directory = Path(output) / f'round-{number}' / 'model'
        if not directory.is_dir():
            break
        rows.append(Round.of(read_model(directory), number))
    if len(rows) > 1 and rows[1].before:  # on the same instances as all other rows
        rows[0] = dataclasses.replace(rows[0], recovered=rows[1].before)
    return rows


def chance(*measured: Optional[Measured]) -> Optional[float]:
    """Below which difference two of these losses or scores may differ by chance; None if it is not known.

    It is `CLEAR` standard errors of the difference of the two least certain ones, as if they were measured on
    different instances.
    """
    errors = [one.standard_error for one in measured if one is not None]
    known = sorted(error for error in errors if error is not None)
    return CLEAR * math.hypot(*known[-2:]) if len(known) > 1 else None


def unclear_below(
    before: Optional[Measured], after: Optional[Measured], error: Optional[float] = None
) -> Optional[float]:
    """Below which difference two measurements may differ by chance, where they differ by less than that; None
    where they are equal, or differ by more.

    Parameters
    ----------
    before, after : HeldOut or TaskScores, optional
    error : float, optional
        The standard error of their difference, where it is known; else they count as measured on different
        instances.
    """
    least = chance(before, after) if error is None else CLEAR * error
    if least is None or after == before or abs(after.value - before.value) >= least:
        return None
    return least


def unclear(row: Round) -> List[str]:
    """What of a round may be chance, a sentence for each; nothing where recovery kept the network."""
    sentences = []
    steps = ((CUT, 'the cut', row.before, row.after_cut), (RECOVERY, RECOVERY, row.start, row.recovered))
    for step, name, before, after in steps:
        least = unclear_below(before, after, (row.difference_errors or {}).get(step))
        if least is not None:
            sentences.append(
                f'round {row.round}: {name} took {_quantity(after)} from {_shown(before)} to '
                f'{_shown(after)}; on {after.instances} instances, less than {_rounded(after, least)} may be '
                'chance'
            )
    return sentences


def widths_line(layers: Sequence[LayerDims], letter: str) -> str:
    """A width along the layers, e.g. ``12 12 11``; one number where all are equal."""
    values = [str(getattr(layer, letter)) for layer in layers]
    return values[0] if values and len(set(values)) == 1 else ' '.join(values)


def _kept(rows: Sequence[Round]) -> List[str]:
    """Which rounds kept an earlier step of recovery than the last."""
    return [
        f'Round {row.round}: recovery made {_decided(row)} no better, so the network before '
        'recovery was kept.'
        if row.kept_step == 0
        else f'Round {row.round}: the network is that of step {row.kept_step} of recovery, the best that was '
        'measured.'
        for row in rows
        if row.kept_step is not None
    ]


def _left_out(rows: Sequence[Round]) -> List[str]:
    """Which rounds left the fit of the layers out."""
    return [
        f'Round {row.round}: the fit of the layers made {_decided(row)} worse, so it was left out.'
        for row in rows
        if row.started_from == CUT
    ]


def _decided(row: Round) -> str:
    """By what the step of recovery, and the network that it starts from, was chosen, for a sentence."""
    return 'the difference of the states' if row.state_difference is not None else _quantity(row.recovered)


def _quantity(measured: Optional[Measured]) -> str:
    """What was measured, for a sentence."""
    return measured.metric if isinstance(measured, TaskScores) else 'the held-out MLM loss'


def _rounded(measured: Measured, value: float) -> str:
    """A value in the unit of what decides: percentage points, or nats."""
    return f'{value:.2f}' if isinstance(measured, TaskScores) else f'{value:.3f}'


def how_to_tell(measured: Optional[Measured]) -> str:
    """What makes a measurement more certain."""
    return MORE_OF_TASK if isinstance(measured, TaskScores) else MORE


def _column(measured: Optional[Measured]) -> str:
    return measured.metric if isinstance(measured, TaskScores) else 'MLM'


def _unit(measured: Optional[Measured]) -> str:
    if isinstance(measured, TaskScores):
        return f'scores are percent, on {measured.instances:,} held-out instances'
    return 'losses are nats per masked token of held-out text'


def _shown(measured: Optional[Measured]) -> str:
    return '–' if measured is None else _rounded(measured, measured.value)


def _number(value: Optional[float]) -> str:
    return '–' if value is None else f'{value:.3f}'


def _certainty(rows: Sequence[Round]) -> List[str]:
    """What a difference of two losses has to be, and what of the rounds falls short of it; nothing if that is
    not known.
    """
    measured = [(row.before, row.after_cut, row.after_reconstruction, row.recovered) for row in rows]
    least = chance(*(one for losses in measured for one in losses))
    if least is None:
        return []
    doubts = [f'- {sentence}' for row in rows for sentence in unclear(row)]
    last = rows[-1].recovered
    what, how = 'scores' if isinstance(last, TaskScores) else 'losses', how_to_tell(last)
    clear = f'Two of these {what} that differ by less than {_rounded(last, least)} may differ by chance.'
    if any(row.difference_errors for row in rows):
        clear += (
            ' Cuts and recoveries that changed them by less were checked instance by instance, which is more '
            'certain' + ('.' if doubts else ': these changes are larger than chance.')
        )
    return [clear, f'To tell more apart, {how}.\n\n' + '\n'.join(doubts)] if doubts else [clear]


def read_gates(output: Path, rounds: int) -> List[Dict[str, Any]]:
    """What every round of a run says of its gates, those without trained gates left out.

    Raises
    ------
    ValueError
        If a file cannot be read.
    """
    records = []
    for number in range(1, rounds + 1):
        path = Path(output) / f'round-{number}' / GATES
        if path.exists():
            try:
                records.append(json.loads(path.read_text(encoding='utf-8')))
            except ValueError as error:
                raise ValueError(f'{path}: not a record of gates ({error})') from error
    return records


def noise(record: Mapping[str, Any]) -> List[str]:
    """The letters of a round whose units the two halves of the gate data rank as if by chance."""
    errors = record['split_half_error']
    return [
        letter
        for letter, correlation in record['split_half'].items()
        if correlation is not None and correlation < CLEAR * errors[letter]
    ]


def vocabulary_section(start: SavedModel, whole: Architecture) -> List[str]:
    """What was trimmed before the first round, as paragraphs of Markdown; nothing if nothing was."""
    if whole == start.architecture:
        return []
    before, after = (ParameterCost().cost(one) for one in (whole, start.architecture))
    return [
        '## Vocabulary',
        f'Before the first round, {start.architecture.vocab_size:,} of {whole.vocab_size:,} tokens stayed. '
        f'The network had {before / 1e6:.3f} M parameters before and {after / 1e6:.3f} M after it. '
        'The target counts from the network before.',
    ]


def gates_section(records: Sequence[Mapping[str, Any]]) -> List[str]:
    """What the gates came to, as paragraphs of Markdown; nothing without records."""
    if not records:
        return []

    def number(value: Optional[float]) -> str:
        return '–' if value is None else f'{value:.2f}'

    cells = [
        [
            record['round'],
            record['steps'],
            letter,
            units,
            record['closed'][letter],
            record['open'][letter],
            number(record['alpha_at_cut'][letter]),
            number(record['split_half'][letter]),
        ]
        for record in records
        for letter, units in record['units'].items()
    ]
    header = ['round', 'steps', 'width', 'gates', f'below {CLOSED}', f'above {OPEN}', 'largest α that went']
    parts = ['## Gates', markdown_table([*header, 'split-half correlation'], cells)]
    if any(value is not None for record in records for value in record['split_half'].values()):
        parts.append(
            'The split-half correlation says how far the data determine the ranking. It is the rank '
            'correlation within a width of two trainings of the gates, each on one half of the batches and '
            'with half of the steps.'
        )
    for record in records:
        if record['overlaps']:
            step, overlap = record['overlaps'][-1]
            settled = 'had settled' if record['stopped'] == 'settled' else 'had not settled'
            parts.append(
                f'Round {record["round"]}: the selection {settled} after {record["steps"]} steps; '
                f'{overlap:.1%} of its units stayed the same over the window before step {step}.'
            )
        doubtful = noise(record)
        if doubtful:
            parts.append(
                f'Round {record["round"]}: the ranking of {", ".join(doubtful)} is noise. The two halves of '
                'the gate data agree on it no better than chance. Train the gates for more steps, or with a '
                'larger batch.'
            )
    return parts


def readable(
    rows: Sequence[Round],
    recipe: PruningRecipe,
    latency: Optional[Mapping[str, Any]] = None,
    gates: Sequence[Mapping[str, Any]] = (),
    further: Sequence[str] = (),
) -> str:
    """The rounds of a run as Markdown, with what `check_predictions` found with the objective latency, what
    `read_gates` gives, and further paragraphs.
    """
    shares = recipe.shares()
    first = next((row.recovered for row in rows if row.recovered is not None), None)
    columns = {f'{_column(first)} before': 'before', 'after the cut': 'after_cut', 'recovered': 'recovered'}
    if recipe.reconstruct:
        recovered = columns.pop('recovered')
        columns.update({'reconstructed': 'after_reconstruction', 'recovered': recovered})
    if not recipe.recovers:
        columns.pop('recovered')
    of_states = any(row.state_difference is not None for row in rows)
    states = ['difference of the states'] if of_states else []
    header = ['round', 'parameters', 'FLOPs at 128', *columns, *states, *'hakvf']
    cells = [
        [
            row.round,
            f'{row.parameters / 1e6:.3f} M',
            f'{row.flops / 1e9:.3f} G',
            *(_shown(getattr(row, name)) for name in columns.values()),
            *(_number(row.state_difference) for _ in states),
            row.architecture.h,
            *(widths_line(row.architecture.layers, letter) for letter in 'akvf'),
        ]
        for row in rows
    ]
    parts = [
        '# Pruning run',
        f'Method {recipe.method} on {recipe.prune}: {recipe.objective} to {shares[-1]:.0%} in '
        f'{len(shares)} round{"s" * (len(shares) > 1)}. Seed {recipe.seed}.'
        + (' The penalty gives every unit the same weight (beta = 1).' if recipe.unweighted else '')
        + (f' Round 1 took its ranking of the units from `{recipe.ranking}`.' if recipe.ranking else ''),
        markdown_table(header, cells),
        f'Parameters are those of embeddings and encoder; {_unit(first)}.',
        *_left_out(rows),
        *_kept(rows),
        *_certainty(rows),
    ]
    parts += [*gates_section(gates), *further]
    if latency:
        times = [
            (name, f'{measured["predicted_ms"]:.2f} ms', f'{measured["measured_ms"]:.2f} ms')
            for name, measured in latency.items()
        ]
        parts.append(markdown_table([None, 'predicted', 'measured'], times))
    return '\n\n'.join(parts) + '\n'
