"""What `speed` measured in words: sentences to read off, notes, and a table."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ..runs.progress import score_text
from .networks import Run, in_millions
from .speed import Line, Panel, Rung, Spread
from .task_runs import Group, Point

RULE = (
    'A sentence names, for each size, the method with the highest mean score over its runs. It was chosen by '
    'the scores that are shown here, so it may owe a part of its lead to chance.'
)
HOW = (
    'Times are medians of benchmarks/latency.py, of exports of the encoder with these widths and random '
    'weights. "Times as fast" compares with the network before pruning in the same precision and engine '
    '({engine}).'
)
OF_INT8 = 'Scores are those of the networks in float32; an int8 export may score less.'
SPREAD = '± is the standard deviation over runs with other seeds or starting networks.'


def percent(share: float) -> str:
    """A share for people: ``50 %``."""
    return f'{share:.0%}'.replace('%', ' %')


def best_rungs(panel: Panel) -> List[Tuple[Line, Rung]]:
    """For every size in whole percent the method with the highest mean score; of equal ones the fastest."""
    sizes: Dict[Tuple[str, float], List[Tuple[Line, Rung]]] = {}
    for line in panel.lines:
        for rung in line.rungs:
            sizes.setdefault((line.unit, -round(rung.share, 2)), []).append((line, rung))
    return [
        max(some, key=lambda pair: (pair[1].score.mean, pair[1].speedup.mean))
        for _, some in sorted(sizes.items())
    ]


def sentence(panel: Panel, line: Line, rung: Rung) -> str:
    """How much faster for how many points, in words."""
    speedup, points, name = rung.speedup.mean, rung.lost.mean, _name_in(panel, line)
    fast = f'are {speedup:.1f} times as fast' if speedup >= 0.95 else f'take {1 / speedup:.1f} times as long'
    lost = f'for {max(points, 0):.1f} points' if points > -0.05 else f'and score {-points:.1f} points more'
    spread = '' if rung.lost.std is None else f' ± {rung.lost.std:.1f}'
    sequences = f'{panel.batch} sequence{"s" * (panel.batch > 1)} of {panel.length} tokens'
    runs = f'{rung.repetitions} run{"s" * (rung.repetitions > 1)}'
    scored = '' if panel.precision == 'float32' else '; scored in float32'
    return (
        f'At {sequences} in {panel.precision}, {name}{"," * ("," in name)} {fast} {lost}{spread} '
        f'({percent(rung.share)} of the {line.unit}, {runs}{scored}).'
    )


def _name_in(panel: Panel, line: Line) -> str:
    """The method of a line, with repairs and training where another line of the panel has this method too."""
    methods = [one.label.partition(',')[0] for one in panel.lines]
    own = line.label.partition(',')[0]
    return own if methods.count(own) == 1 else line.label


def sentences(panels: Sequence[Panel]) -> List[str]:
    """For every panel and size, what the best method costs."""
    return [sentence(panel, *pair) for panel in panels for pair in best_rungs(panel)]


def notes(run: Run, panels: Sequence[Panel], engine: str) -> List[str]:
    """What has to be known of the numbers; `run` is one of the runs."""
    sentences = [RULE, HOW.format(engine=engine)]
    if any(panel.precision != 'float32' for panel in panels):
        sentences.append(OF_INT8)
    sentences.append(SPREAD)
    recovered = run.rounds[0]['recovered']
    if recovered.get('standard_error') is not None:
        sentences.append(
            f'On {recovered["instances"]:,} held-out instances, one score has a standard error of about '
            f'{recovered["standard_error"]:.1f} points.'
        )
    return sentences


def table_of(
    starts: Sequence[Point], groups: Sequence[Group], panels: Sequence[Panel]
) -> Dict[str, List[Any]]:
    """Head and rows: the network that went in, then every size of every method, with means over the runs."""
    first, score = starts[0], Spread.of([point.score for point in starts])
    cells = [in_millions(first.parameters), percent(1), _text(score), '']
    rows = [['not pruned', '', '', *cells, *(f'{panel.start_ms:.3g} ms' for panel in panels)]]
    rows += [
        _row(group, place, step, first, panels)
        for place, group in enumerate(groups)
        for step in range(len(group.rungs))
    ]
    head = ['method', 'size', 'runs', 'parameters', 'FLOPs', 'score', 'points lost']
    return {'head': [*head, *(panel.title for panel in panels)], 'rows': rows}


def _row(group: Group, place: int, step: int, first: Point, panels: Sequence[Panel]) -> List[str]:
    """A size of a group, which has a place in every panel."""
    points = group.rungs[step]
    speedups = [panel.lines[place].rungs[step].speedup for panel in panels]
    return [
        group.label,
        f'{percent(points[0].share)} of the {group.unit}',
        str(len(points)),
        in_millions(float(np.mean([point.parameters for point in points]))),
        percent(float(np.mean([point.flops for point in points])) / first.flops),
        *(_text(Spread.of([getattr(point, name) for point in points])) for name in ('score', 'lost')),
        *(f'{_text(speedup)} ×' for speedup in speedups),
    ]


def _text(spread: Spread) -> str:
    return score_text(spread.mean, spread.std, digits=2)
