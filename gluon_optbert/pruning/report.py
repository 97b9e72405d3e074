"""What a pruning run came to, round by round: rounds.json for programs, pruning.md for people."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..architecture.architecture import Architecture, LayerDims
from ..architecture.cost import CostModel, LatencyCost, ParameterCost, count_flops
from ..network.saved_model import SavedModel, read_model
from ..runs.display import markdown_table
from ..runs.files import read_json, write_file
from ..runs.progress import CLOSED, CUT, GATES, OPEN, RECOVERY, Measured, TaskScores, measured_of
from .latency import check_predictions, time_rounds
from .recipe import PruningRecipe

CLEAR = 2  # standard errors of a difference: chance stays within so many in 95 of 100 cases
EMBEDDINGS = 'embeddings.json'  # of a round
_OF_CUT = ('before', 'after_cut', 'after_reconstruction')
_FURTHER = ('started_from', 'kept_step', 'state_difference', 'difference_errors')


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
    before: Measured | None = None
    after_cut: Measured | None = None
    recovered: Measured | None = None
    after_reconstruction: Measured | None = None
    kept_step: int | None = None
    state_difference: float | None = None
    started_from: str | None = None
    difference_errors: Mapping[str, float] | None = None

    @property
    def start(self) -> Measured | None:
        """What was measured of the network that recovery started from."""
        return self.after_cut if self.started_from == CUT else self.after_reconstruction or self.after_cut

    @classmethod
    def of(cls, saved: SavedModel, number: int) -> Round:
        """The round that a network came out of."""
        # What the network that went in says of a cut is of an earlier run.
        of_cut = {name: getattr(saved.progress, name) for name in (*_OF_CUT, *_FURTHER)} if number else {}
        return cls(
            round=number,
            parameters=int(ParameterCost().cost(saved.architecture)),
            flops=sum(count_flops(saved.architecture, 128).values()),
            architecture=saved.architecture,
            recovered=saved.progress.measured,
            **of_cut,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = 'rounds.json') -> Round:
        """The inverse of `to_dict`; ValueError, with the source, if it is none."""
        try:
            required = {name: values[name] for name in ('before', 'after_cut', 'recovered')}
            measured = {'after_reconstruction': values.get('after_reconstruction'), **required}
            return cls(
                round=values['round'],
                parameters=values['parameters'],
                flops=values['flops'],
                architecture=Architecture.from_dict(values['architecture'], source=source),
                **{name: measured_of(one) if one else None for name, one in measured.items()},
                **{name: values.get(name) for name in _FURTHER},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f'{source}: not a round ({type(error).__name__}: {error!s:.200})') from error

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        measured = {name: getattr(self, name) for name in (*_OF_CUT, 'recovered')}
        measured = {name: None if one is None else one.to_dict() for name, one in measured.items()}
        further = {'after_reconstruction': measured['after_reconstruction']}
        further.update({name: getattr(self, name) for name in _FURTHER})
        return {
            'round': self.round,
            'parameters': self.parameters,
            'flops': self.flops,
            'architecture': self.architecture.to_dict(),
            'before': measured['before'],
            'after_cut': measured['after_cut'],
            **{name: value for name, value in further.items() if value is not None},
            'recovered': measured['recovered'] or {},
        }


def summary(output: Path) -> list[Round]:
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


class _Words(NamedTuple):
    """How a measurement is spoken of: in a sentence, all of its kind, at the head of a column, its unit, the
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
    """What makes a measurement more certain."""
    return _words(measured).remedy


def _shown(measured: Measured | None) -> str:
    return '–' if measured is None else f'{measured.value:.{_words(measured).digits}f}'


def unclear(row: Round) -> list[str]:
    """What of a round may be chance, a sentence for each; nothing where recovery kept the network."""
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


def _choices(rows: Sequence[Round]) -> Iterator[str]:
    """Which rounds left the fit of the layers out, and which kept another step of recovery than the last."""
    decided = {
        row.round: _words(row.recovered).quantity
        if row.state_difference is None
        else 'the difference of the states'
        for row in rows
    }
    for row in rows:
        if row.started_from == CUT:
            what = decided[row.round]
            yield f'Round {row.round}: the fit of the layers made {what} worse, so it was left out.'
    for row in rows:
        if row.kept_step == 0:
            what = decided[row.round]
            yield (
                f'Round {row.round}: recovery made {what} no better, so the network before recovery was kept.'
            )
        elif row.kept_step is not None:
            yield (
                f'Round {row.round}: the network is that of step {row.kept_step} of recovery, the best that '
                'was measured.'
            )


def _certainty(rows: Sequence[Round]) -> list[str]:
    """What a difference of two losses has to be, and what of the rounds falls short of it; nothing if that is
    not known.
    """
    measured = [(row.before, row.after_cut, row.after_reconstruction, row.recovered) for row in rows]
    least = chance(*(one for losses in measured for one in losses))
    if least is None:
        return []
    doubts, words = [f'- {sentence}' for row in rows for sentence in unclear(row)], _words(rows[-1].recovered)
    clear = (
        f'Two of these {words.plural} that differ by less than {least:.{words.digits}f} may differ by chance.'
    )
    if any(row.difference_errors for row in rows):
        clear += (
            ' Cuts and recoveries that changed them by less were checked instance by instance, which is more '
            'certain' + ('.' if doubts else ': these changes are larger than chance.')
        )
    return [clear, f'To tell more apart, {words.remedy}.\n\n' + '\n'.join(doubts)] if doubts else [clear]


def widths_line(layers: Sequence[LayerDims], letter: str) -> str:
    """A width along the layers, e.g. ``12 12 11``; one number where all are equal."""
    values = [str(getattr(layer, letter)) for layer in layers]
    return values[0] if values and len(set(values)) == 1 else ' '.join(values)


def noise(record: Mapping[str, Any]) -> list[str]:
    """The letters of a round whose units the two halves of the gate data rank as if by chance."""
    errors = record['split_half_error']
    return [
        letter
        for letter, correlation in record['split_half'].items()
        if correlation is not None and correlation < CLEAR * errors[letter]
    ]


def read_records(output: Path, rounds: int, name: str) -> list[dict[str, Any]]:
    """What every round of a run says in a JSON file of that name, rounds without it left out; ValueError if
    one cannot be read.
    """
    paths = [Path(output) / f'round-{number}' / name for number in range(1, rounds + 1)]
    return [read_json(path) for path in paths if path.exists()]


def gates_section(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the gates came to, as paragraphs of Markdown; nothing without records."""
    if not records:
        return []

    def number(value: float | None) -> str:
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


def embeddings_section(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the rounds did to the embeddings, as paragraphs of Markdown; nothing without records."""
    if not records:
        return []
    cells = [
        (record['round'], name, f'{values["cosine"]:.3f}', f'{values["pair_similarity"]:.3f}')
        for record in records
        for name, values in record.items()
        if isinstance(values, dict)
    ]
    return [
        '## Embeddings',
        markdown_table(['round', 'network', 'cosine', 'pair similarity'], cells),
        f'Embeddings are means of tokens, of {records[-1]["instances"]} held-out instances, compared with '
        'those of the network before pruning. Cosine: mean over the instances, on the units that stayed. '
        'Pair similarity: rank correlation of the cosines of all pairs.',
    ]


def times_section(times: Mapping[str, Any]) -> list[str]:
    """What `time_rounds` gives, as paragraphs of Markdown."""
    shapes = times['milliseconds']
    columns = [[f'{ms:.2f} ms ({row[0] / ms:.2f} times as fast)' for ms in row] for row in shapes.values()]
    header = ['round', *(shape.replace('x', ' × ') for shape in shapes)]
    return [
        '## Time',
        markdown_table(header, [[i, *cells] for i, cells in enumerate(zip(*columns))]),
        'Median time of a float32 forward pass over so many sequences of so many tokens. The networks took '
        f'turns on this machine, with {times["threads"]} thread{"s" * (str(times["threads"]) != "1")}.',
    ]


def readable(rows: Sequence[Round], recipe: PruningRecipe, further: Sequence[str] = ()) -> str:
    """The rounds of a run as Markdown, with further paragraphs."""
    shares = recipe.shares()
    first = next((row.recovered for row in rows if row.recovered is not None), None)
    columns = {f'{_words(first).column} before': 'before', 'after the cut': 'after_cut'}
    if recipe.reconstruct:
        columns['reconstructed'] = 'after_reconstruction'
    if recipe.recovers:
        columns['recovered'] = 'recovered'
    of_states = any(row.state_difference is not None for row in rows)
    states = ['difference of the states'] if of_states else []
    header = ['round', 'parameters', 'FLOPs at 128', *columns, *states, *'hakvf']
    cells = [
        [
            row.round,
            f'{row.parameters / 1e6:.3f} M',
            f'{row.flops / 1e9:.3f} G',
            *(_shown(getattr(row, name)) for name in columns.values()),
            *('–' if row.state_difference is None else f'{row.state_difference:.3f}' for _ in states),
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
        f'Parameters are those of embeddings and encoder; {_words(first).unit}.',
        *_choices(rows),
        *_certainty(rows),
        *further,
    ]
    return '\n\n'.join(parts) + '\n'


def write_report(
    rows: Sequence[Round], recipe: PruningRecipe, cost: CostModel, start: Architecture, whole: Architecture
) -> None:
    """Leave rounds.json and pruning.md, and with the objective latency what this machine takes.

    Parameters
    ----------
    rows : sequence of Round
    recipe : PruningRecipe
    cost : CostModel
        That of the recipe.
    start, whole : Architecture
        Of the network that was pruned, and of that before its vocabulary was trimmed.
    """
    output, architectures = recipe.output, [row.architecture for row in rows]

    def write(name: str, values: Any) -> None:
        write_file(output / name, (json.dumps(values, indent=1) + '\n').encode())

    write('rounds.json', [row.to_dict() for row in rows])
    parts = gates_section(read_records(output, len(rows) - 1, GATES))
    if whole != start:
        before, after = (ParameterCost().cost(one) for one in (whole, start))
        parts += [
            '## Vocabulary',
            f'Before the first round, {start.vocab_size:,} of {whole.vocab_size:,} tokens stayed. The '
            f'network had {before / 1e6:.3f} M parameters before and {after / 1e6:.3f} M after it. The '
            'target counts from the network before.',
        ]
    parts += embeddings_section(read_records(output, len(rows) - 1, EMBEDDINGS))
    predicts = cost if isinstance(cost, LatencyCost) else None
    times = time_rounds(architectures, recipe.length, predicts) if recipe.timed else None
    if times is not None:
        write('times.json', times)
        parts += times_section(times)
    if predicts is not None:
        latency = check_predictions(predicts, architectures, times)
        write('latency.json', latency)
        cells = [
            (name, f'{values["predicted_ms"]:.2f} ms', f'{values["measured_ms"]:.2f} ms')
            for name, values in latency.items()
        ]
        parts.append(markdown_table([None, 'predicted', 'measured'], cells))
    write_file(output / 'pruning.md', readable(rows, recipe, parts).encode())
