"""Plot what speed costs a sentence encoder: the scores of sentence_scores.py against the times of latency.py.

SCORES has the parent first; TIMES has networks of the same widths in ONNX Runtime, perhaps of random
weights. A line is a way: NAME=POINT,POINT,… of names in SCORES; POINT@OTHER is the network OTHER in int8.
Search is the mean nDCG@10 of both sets. Bars are the standard error of the difference to the parent, paired.
A dashed line is a network without a time.

example:
  python benchmarks/studies/plot_encoders.py scores.json times.json --gold pairs.csv --output speed.png \\
      'by gradients=parent,half,third' 'layers dropped=parent,three,two'"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from points import legend_below, named, write_picture
from sentence_scores import SETS, apart, score_of

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import ParameterCost, count_flops
from gluon_optbert.reporting.figures import look
from gluon_optbert.runs.command_line import Parser, command

PANELS = {
    'STS-B, Spearman × 100': ('pairs',),
    'Search in its own index, nDCG@10 × 100': SETS,
    'Search in the index of the whole network': tuple(f'{name} in the parent' for name in SETS),
}


def times_of(timed: Mapping[str, Any], shape: str) -> dict[tuple[int, int, bool], float]:
    """Milliseconds in ONNX Runtime by parameters, FLOPs and whether in int8."""
    times = {}
    for network in timed['networks']:
        if network['engine'] == 'onnxruntime':
            widths = Architecture.from_dict(network['architecture'])
            key = int(ParameterCost().cost(widths)), sum(count_flops(widths, 128).values())
            times[(*key, 'int8' in network['name'])] = network['shapes'][shape]['median_ms']
    return times


def draw(
    scores: Mapping[str, Any], timed: Mapping[str, Any], ways: Mapping[str, list[str]], gold: np.ndarray
) -> Figure:
    """A panel for each score, and a line for each way."""
    times, parent = times_of(timed, '8x128'), next(iter(scores))

    def time_of(name: str, *, int8: bool = False) -> float:
        key = scores[name]['parameters'], scores[name]['flops'], int8
        if key not in times:
            raise ValueError(f'no time of a network with the widths of {name}{" in int8" if int8 else ""}')
        return times[key]

    def faster(point: str) -> float:
        name, _, of = point.partition('@')
        return time_of(parent) / time_of(of or name, int8=bool(of))

    figure = Figure(figsize=(13, 4.2))
    for axes, (title, parts) in zip(figure.subplots(1, len(PANELS)), PANELS.items()):
        for place, (way, points) in enumerate(ways.items()):
            known, values, errors = [], [], []
            for point in points:
                one = scores[point.partition('@')[0]]
                # the parent's own index is that of the parent
                own = [part if one is not scores[parent] else part.split(' ')[0] for part in parts]
                if own[0] in one:
                    known.append(point)
                    values.append(np.mean([score_of(one, part, gold) for part in own]))
                    spread = [apart([one], scores[parent], part, gold)[1] for part in own]
                    errors.append(np.linalg.norm(spread) / len(own))
            if values and 'flops' in scores[points[0].rpartition('@')[2]]:
                axes.errorbar(
                    [faster(point) for point in known], values, errors, label=way, capsize=2, **look(place)
                )
            elif values:
                axes.axhline(values[0], color=look(place)['color'], linestyle='--', label=way)
        axes.set(title=title, xlabel='times as fast, 8 texts of 128 tokens')
    legend_below(figure, len(ways))
    return figure


@command
def main(argv=None):
    """Draw the picture."""
    parser = Parser(__doc__)
    parser.add_argument('scores', type=Path, metavar='SCORES')
    parser.add_argument('times', type=Path, metavar='TIMES')
    parser.add_argument('ways', nargs='+', metavar='NAME=POINT,POINT')
    parser.add_argument('--gold', type=Path, required=True, help='the pairs of STS-B, with their scores')
    parser.add_argument('--output', type=Path, required=True, help='the picture')
    options = parser.parse_args(argv)
    scores, timed = (json.loads(path.read_text()) for path in (options.scores, options.times))
    with open(options.gold, encoding='utf-8', newline='') as file:
        gold = np.array([float(row[2]) for row in csv.reader(file)])
    ways = dict(map(named, options.ways))
    write_picture(lambda: draw(scores, timed, ways, gold), options.output)


if __name__ == '__main__':
    sys.exit(main())
