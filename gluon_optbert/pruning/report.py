"""Results of a pruning run, round by round: rounds.json for programs, pruning.md for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import CostModel, LatencyCost, ParameterCost
from ..architecture.parameters import LETTERS, Alphas
from ..architecture.rounds import ROUNDS, GateRecord, Round, read_gate_records
from ..cutting.selection import Selection
from ..network.saved_model import read_model
from ..runs.display import markdown_template
from ..runs.files import read_json, write_file, write_json
from ..runs.progress import CLEAR, CLOSED, CUT, MARK, OPEN, RECOVERY, Measured, TaskScores
from .gate_training import TrainedGates
from .latency import check_predictions, time_rounds
from .recipe import PruningRecipe

EMBEDDINGS = 'embeddings.json'  # of a round
FORGOTTEN = 'forgotten.json'  # of one whose networks were removed
TEMPLATE = Path(__file__).parent / 'templates' / 'pruning.md.jinja'


def summary(output: Path) -> list[Round]:
    """Results of all finished rounds of a run, from its model directories, or what is left of them."""
    rows = []
    for number in range(len(list(Path(output).glob('round-*')))):
        directory = Path(output) / f'round-{number}'
        if (directory / 'model').is_dir():
            rows.append(Round.of(read_model(directory / 'model'), number))
        elif (directory / FORGOTTEN).is_file():
            rows.append(Round.from_dict(read_json(directory / FORGOTTEN), source=str(directory / FORGOTTEN)))
        else:
            break
    if len(rows) > 1 and rows[1].before:  # on the same instances as all other rows
        rows[0] = dataclasses.replace(rows[0], recovered=rows[1].before)
    return rows


def chance(*measured: Measured | None) -> float | None:
    """Below which difference two of these losses or scores may differ by chance; None if it is not known.

    It is `CLEAR` standard errors of the difference of the two least certain ones, as if they were measured on
    different instances.
    """
    errors = [one.standard_error for one in measured if one is not None]
    known = sorted(error for error in errors if error is not None)
    return CLEAR * math.hypot(*known[-2:]) if len(known) > 1 else None


def unclear_below(
    before: Measured | None, after: Measured | None, error: float | None = None
) -> float | None:
    """Below which difference two measurements may differ by chance, where they differ by less than that; None
    where they are equal, or differ by more. The standard error of their difference may be known; else they
    count as measured on different instances.
    """
    least = chance(before, after) if error is None else CLEAR * error
    if least is None or after == before or abs(after.value - before.value) >= least:
        return None
    return least


class _Words(NamedTuple):
    """Words for a measurement: in a sentence, all of its kind, at the head of a column, its unit, the
    digits behind the point, and what makes it more certain.
    """

    quantity: str
    plural: str
    column: str
    unit: str
    digits: int
    remedy: str


def _words(measured: Measured | None) -> _Words:
    if isinstance(measured, TaskScores):
        unit = f'scores are percent, on {measured.instances:,} held-out instances'
        more = 'measure on more instances'
        return _Words(measured.metric, 'scores', measured.metric, unit, 2, more)
    unit = 'losses are nats per masked token of held-out text'
    more = 'raise --evaluation-limit; if it is above what is held out, make shards with a larger --held-out'
    return _Words('the held-out MLM loss', 'losses', 'MLM', unit, 3, more)


def how_to_tell(measured: Measured | None) -> str:
    """Advice that makes a measurement more certain."""
    return _words(measured).remedy


def _decided_by(row: Round) -> str:
    """By what the step of recovery, and the network that it starts from, was chosen, for a sentence."""
    return (
        'the difference of the states' if row.state_difference is not None else _words(row.recovered).quantity
    )


def _shown(measured: Measured | None) -> str:
    return _digits(None if measured is None else measured.value, _words(measured).digits)


def _cell(measured: Measured | None) -> str:
    """A measurement in the table of rounds; a score that one answer to all has as well is marked."""
    return _shown(measured) + (f' {MARK}' if getattr(measured, 'poor', False) else '')


def unclear(row: Round) -> list[str]:
    """Changes of a round that may be chance, a sentence for each; nothing where recovery kept the network."""
    sentences = []
    steps = ((CUT, 'the cut', row.before, row.after_cut), (RECOVERY, RECOVERY, row.start, row.recovered))
    for step, name, before, after in steps:
        least = unclear_below(before, after, (row.difference_errors or {}).get(step))
        if least is not None:
            words = _words(after)
            sentences.append(
                f'round {row.round}: {name} took {words.quantity} from {_shown(before)} to {_shown(after)}; '
                f'on {after.instances} instances, less than {least:.{words.digits}f} may be chance'
            )
    return sentences


def widths_line(layers: Sequence[LayerDims], letter: str) -> str:
    """A width along the layers, e.g. ``12 12 11``; one number where all are equal."""
    values = [str(getattr(layer, letter)) for layer in layers]
    return values[0] if values and len(set(values)) == 1 else ' '.join(values)


def gates_record(
    trained: TrainedGates, number: int, selection: Selection, prune: str, halves: Sequence[Alphas] = ()
) -> GateRecord:
    """The record of a round's gates, the selection that they decided, and the letters of the widths that may
    lose units. A ranking is certain if gates that were trained on two halves of the data, whose scores are
    `halves`, rank the units alike.
    """
    names = ('units', 'closed', 'open', 'alpha_at_cut', 'split_half', 'split_half_error')
    by_letter: dict[str, dict[str, Any]] = {name: {} for name in names}
    for letter in (letter for letter in LETTERS if letter in prune):
        keys = [key for key, alpha in trained.alphas.items() if key[0] == letter and len(alpha)]
        sizes = {key: np.abs(trained.alphas[key]) for key in keys}
        gone = np.concatenate([np.zeros(0), *(np.delete(sizes[key], selection.kept[key]) for key in keys)])
        every = np.concatenate([np.zeros(0), *sizes.values()])
        row = (
            len(every),
            int((every < CLOSED).sum()),
            int((every > OPEN).sum()),
            float(gone.max()) if len(gone) else None,
            *(agreement_of(*halves, keys) if halves else (None, None)),
        )
        for name, value in zip(names, row):
            by_letter[name][letter] = value
    return GateRecord(
        round=number,
        steps=trained.training.step,
        stopped='settled' if trained.training.settled else 'steps',
        overlaps=trained.training.overlaps,
        **by_letter,
    )


def agreement_of(one: Alphas, other: Alphas, keys: Sequence[str]) -> tuple[float | None, float | None]:
    """Spearman's correlation of two scores of units, with the ranks of the magnitudes taken within each
    width, and its standard error without any correlation; None if nothing can be ranked.
    """
    product, squares, chance = 0.0, np.zeros(2), 0.0
    for key in keys:
        if len(one[key]) < 2:
            continue
        first, second = (rankdata(np.abs(scores[key])) for scores in (one, other))
        first, second = first - first.mean(), second - second.mean()
        own = np.array([first @ first, second @ second])
        product, squares = product + first @ second, squares + own
        chance += own.prod() / (len(first) - 1)  # the variance of `first @ second` over all orders of one
    scale = math.sqrt(squares.prod())
    if not scale:
        return None, None
    return float(product) / scale, math.sqrt(chance) / scale


def _digits(value: float | None, digits: int) -> str:
    """A number with so many digits behind the point; a dash for what is not known."""
    return '–' if value is None else f'{value:.{digits}f}'


def readable(
    rows: Sequence[Round],
    recipe: PruningRecipe,
    *,
    gates: Sequence[GateRecord] = (),
    embeddings: Sequence[Mapping[str, Any]] = (),
    trimmed: Mapping[str, Any] | None = None,
    times: Mapping[str, Any] | None = None,
    latency: Mapping[str, Any] | None = None,
) -> str:
    """The rounds of a run as Markdown; with the records of embeddings of the rounds that have such, the
    ``tokens`` and the ``millions`` of parameters before and after the vocabulary was trimmed, and what
    `time_rounds` and `check_predictions` gave.
    """
    first = next((row.recovered for row in rows if row.recovered is not None), None)
    columns = {f'{_words(first).column} before': 'before', 'after the cut': 'after_cut'}
    if recipe.reconstruct:
        columns['reconstructed'] = 'after_reconstruction'
    if recipe.recovers:
        columns['recovered'] = 'recovered'
    if first is None:  # nothing but states was measured
        columns = {}
    measured = [(row.before, row.after_cut, row.after_reconstruction, row.recovered) for row in rows]
    least, last = chance(*(one for losses in measured for one in losses)), _words(rows[-1].recovered)
    made = {
        'trained': recipe.recovers and rows[-1].kept_step != 0,
        'fitted': recipe.reconstruct and rows[-1].started_from != CUT,
    }
    template = markdown_template(TEMPLATE, digits=_digits, shown=_cell, widths=widths_line)
    text = template.render(
        recipe=recipe,
        shares=recipe.shares(),
        rows=rows,
        columns=columns,
        of_states=any(row.state_difference is not None for row in rows),
        unit=None if first is None else _words(first).unit,
        last=last,
        decided_by=_decided_by,
        query_encoder=recipe.nearest_by_number(rows[0].architecture, rows[-1].architecture, **made),
        scores=list(first.scores) if isinstance(first, TaskScores) and len(first.scores) > 1 else [],
        poor=next((one for losses in measured for one in losses if getattr(one, 'poor', False)), None),
        least='' if least is None else f'{least:.{last.digits}f}',
        doubts=[sentence for row in rows for sentence in unclear(row)],
        checked=any(row.difference_errors for row in rows),
        closed=CLOSED,
        open=OPEN,
        gates=gates,
        halves=any(value is not None for record in gates for value in record.split_half.values()),
        trimmed=trimmed,
        embeddings=embeddings,
        times=times,
        latency=latency,
    )
    return text.rstrip('\n') + '\n'


def write_report(
    rows: Sequence[Round], recipe: PruningRecipe, cost: CostModel, start: Architecture, whole: Architecture
) -> None:
    """Leave rounds.json and pruning.md, and what this machine takes where the recipe or the objective latency
    wants that; `start` is the network that was pruned, `whole` that before its vocabulary was trimmed.
    """
    output, architectures = recipe.output, [row.architecture for row in rows]
    predicts = cost if isinstance(cost, LatencyCost) else None

    def left(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Read a file of the run, or measure it; a run that is done is not measured again."""
        if not (output / name).exists():
            write_json(output / name, measure())
        return read_json(output / name)

    write_json(output / ROUNDS, [row.to_dict() for row in rows])
    times = latency = None
    if recipe.timed:
        times = left('times.json', lambda: time_rounds(architectures, recipe.length, predicts))
    if predicts is not None:
        latency = left('latency.json', lambda: check_predictions(predicts, architectures, times))
    trimmed = {
        'tokens': (whole.vocab_size, start.vocab_size),
        'millions': [ParameterCost().cost(one) / 1e6 for one in (whole, start)],
    }
    of_embeddings = (output / f'round-{row.round}' / EMBEDDINGS for row in rows)
    text = readable(
        rows,
        recipe,
        gates=read_gate_records(output, range(1, len(rows))),
        embeddings=[read_json(path) for path in of_embeddings if path.exists()],
        trimmed=None if whole == start else trimmed,
        times=times,
        latency=latency,
    )
    write_file(output / 'pruning.md', text.encode())
