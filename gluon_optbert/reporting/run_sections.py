"""What a page says of pruning runs, of model directories and of the steps of a run, section by section."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence

from matplotlib.figure import Figure

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from .curves import draw_curves, read_metrics, segments_of, speed
from .drawing import WIDTHS, alpha_bins, draw_losses, draw_round_alphas, draw_widths, title_by_size
from .figures import drawn
from .gates import draw_gates, draw_settling, gates_table, read_records
from .page import Chapter, Html, Section, figures, joined, picture, table, tag, values
from .pruned import Run, by_quantity, read_gates
from .score_tables import NOTE, TIMES, ends_of_runs, rounds_with_scores, times_of_rounds

HEAD_OF_ROUNDS = (
    'round',
    'parameters, M',
    'of the first',
    'FLOPs at 128, G',
    'MLM loss before',
    'after the cut',
    'reconstructed',
    'recovered',
    'MLM accuracy',
    'NSP accuracy',
    'latency, ms',
)
RESULT = 'result.json'  # of a fine-tuning run
OF_SOME_RUNS = ('reconstructed', 'latency, ms')
MEASURED = ('mlm_loss', 'mlm_accuracy', 'nsp_accuracy')


def chart(figure: Figure, caption: str) -> Html:
    """A figure in the page."""
    return picture(drawn(figure, caption, 'svg'), 'svg', caption)


def of_rounds(run: Run) -> List[Section]:
    """Sizes and losses of a pruning run, its widths, and its gates."""
    of_task = run.metric is not None
    note = 'Losses are in nats per masked token of held-out text; sizes count embeddings and encoder.'
    losses = draw_losses([run], narrow=True)
    drawing = '' if losses is None else chart(losses, f'{title_by_size(run)}: {run.label}')
    rows = rounds_with_scores(run) if of_task else _rounds_table(run)
    sections = [
        ('Size and accuracy', joined([rows, tag('p', NOTE if of_task else note, class_='note'), drawing])),
        ('Widths', _widths(run)),
    ]
    if (run.path / TIMES).is_file():
        sections.insert(1, ('Time', times_of_rounds(run.path / TIMES, run)))
    drawings = _gates(run)
    if drawings:
        sections.append(('Gates', joined(drawings)))
    return sections


def _gates(run: Run) -> List[Html]:
    """The gates of every round: their histograms, and what the rounds recorded of them."""
    drawings, gates, records = [], read_gates(run), read_records(run)
    if gates:
        edges = alpha_bins(gates)
        histograms = [
            chart(draw_round_alphas(letters, edges), f'Gates before the cut of round {number}: {run.label}')
            for number, letters in gates
        ]
        drawings.append(figures(*histograms))
    if records:
        pictures = [chart(draw_gates(records), f'Gates by width, round by round: {run.label}')]
        settling = draw_settling(records)
        if settling is not None:
            pictures.append(chart(settling, f'How far the selection stayed the same: {run.label}'))
        drawings += [figures(*pictures), gates_table(records)]
    return drawings


def _rounds_table(run: Run) -> Html:
    """A row for each round; what only some runs have is a column only where there is something in it."""
    rows = [_round_cells(row, run.rounds[0]['parameters']) for row in run.rounds]
    shown = [
        column
        for column, name in enumerate(HEAD_OF_ROUNDS)
        if name not in OF_SOME_RUNS or any(row[column] is not None for row in rows)
    ]
    return table([HEAD_OF_ROUNDS[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _round_cells(row: Mapping[str, Any], first: float) -> List[Any]:
    """The cells of a round; `first` is the number of parameters of the network that went in."""
    names = ('before', 'after_cut', 'after_reconstruction', 'recovered')
    before, cut, fitted, recovered = (row.get(name) or {} for name in names)
    return [
        row['round'],
        row['parameters'] / 1e6,
        f'{row["parameters"] / first:.1%}',
        row['flops'] / 1e9 if 'flops' in row else None,  # not in runs of the first version
        before.get('mlm_loss'),
        cut.get('mlm_loss'),
        fitted.get('mlm_loss'),
        *(recovered.get(name) for name in MEASURED),
        row.get('latency_ms'),
    ]


def _widths(run: Run) -> Html:
    """The widths of the last network, and those of every round as figures."""
    networks = run.networks()
    charts = [
        chart(
            draw_widths(letter, networks, '', narrow=True),
            f'{WIDTHS[letter][0]}, round by round: {run.label}',
        )
        for letter in 'fakv'
    ]
    return joined([widths_table(networks[-1].architecture), figures(*charts)])


def widths_table(architecture: Architecture) -> Html:
    """The widths of a network, layer by layer."""
    facts = f'h = {architecture.h}' + (f', e = {architecture.e}' if architecture.e else '')
    layers = [
        [i, *(getattr(layer, letter) for letter in 'akvf')]
        for i, layer in enumerate(architecture.layers, start=1)
    ]
    return joined(
        [
            tag('p', f'{facts}, {len(architecture.layers)} layers, {architecture.vocab_size:,} tokens:'),
            table(['layer', 'a (heads)', 'k (keys)', 'v (values)', 'f (filters)'], layers),
        ]
    )


def of_model(path: Path, progress: Any) -> List[Section]:
    """Size and widths of a model directory, and what was measured at its end, None if nothing was."""
    architecture = Architecture.read(path / 'architecture.json')
    facts = {
        'parameters of embeddings and encoder': int(ParameterCost().cost(architecture)),
        'FLOPs of 128 tokens': int(sum(count_flops(architecture, 128).values())),
        **(progress if isinstance(progress, dict) else {} if progress is None else {'progress': progress}),
    }
    facts.pop('right', None)  # of fine-tuning, a mark for every instance
    return [('Size and accuracy', values(facts)), ('Widths', widths_table(architecture))]


def of_metrics(path: Path, label: str) -> List[Section]:
    """Curves of what was measured step by step."""
    segments = segments_of(read_metrics(path))
    if not segments:
        return []
    header = ['phase', 'round', 'steps', 'tokens a second', 'waiting for data']
    drawing = chart(draw_curves(segments), f'Over the steps of the run: {label}')
    return [('Curves', joined([drawing, table(header, speed(segments))]))]


def of_begun_finetuning(path: Path, label: str) -> List[Section]:
    """Curves of the seeds of a fine-tuning run that is not finished, those of every learning rate."""
    sections = []
    for pattern in ('seed-*', 'rate-*/seed-*'):
        for place in sorted(path.glob(pattern)):
            file = place / 'metrics.jsonl' if place.is_dir() else place
            if file.suffix == '.jsonl' and file.is_file():
                name = str(place.relative_to(path)).replace('.jsonl', '')
                sections += [
                    (f'{title} of {name}', drawn) for title, drawn in of_metrics(file, f'{label}, {name}')
                ]
    if not sections:
        return []
    return [('Unfinished', tag('p', f'This run is not finished: it has no {RESULT} yet.')), *sections]


def side_by_side(runs: Sequence[Run]) -> Optional[Chapter]:
    """Pruning runs against each other, those of pre-training and those of every task; None for less than two
    of each.
    """
    groups = [group for group in by_quantity(runs) if len(group) > 1]
    sections = [_ends(group) for group in groups]
    return Chapter('Side by side', tuple(sections)) if sections else None


def _ends(runs: Sequence[Run]) -> Section:
    """Where comparable runs ended."""
    losses = draw_losses(runs, narrow=True)
    drawing = '' if losses is None else chart(losses, title_by_size(runs[0]))
    if runs[0].metric is not None:
        parts = [ends_of_runs(runs), tag('p', NOTE, class_='note'), drawing]
        return f'Where the runs ended: {runs[0].quantity}', joined(parts)
    rows = []
    for run in runs:
        last, share = run.rounds[-1], run.rounds[-1]['parameters'] / run.rounds[0]['parameters']
        measured = [(last['recovered'] or {}).get(name) for name in MEASURED]
        rows.append([run.label, last['round'], last['parameters'] / 1e6, f'{share:.1%}', *measured])
    head = ['run', 'rounds', 'parameters, M', 'of the first', 'MLM loss', 'MLM accuracy', 'NSP accuracy']
    return 'Where the runs ended', joined([table(head, rows), drawing])
