"""Gather what pruning runs, networks and results of fine-tuning have measured into one file of points.

A study keeps this file instead of the directories of its runs; the other scripts of this folder read it:

    runs        recipe, origin, rounds with their losses, gates and errors, and the curve of every pruning run
    networks    those that were trained but not pruned: recipe, origin, what they measured last, and the curve
    scores      results of fine-tuning, each of the network with the same checksum

A recipe has what the recipes above it, under "recipe", do not share. What is gathered into a file that is
there stands beside what it has."""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from gluon_optbert.reporting.curves import draw_curves, read_metrics, segments_of
from gluon_optbert.reporting.figures import STYLE, drawn
from gluon_optbert.reporting.networks import weights_checksum
from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.files import write_file
from gluon_optbert.runs.progress import RESULT_FORMAT
from gluon_optbert.runs.recipe import load_yaml

FORMAT = 'gluon_optbert study'
SECTIONS = ('runs', 'networks', 'scores')
OF_CURVES = 'phase round step mlm nsp loss penalty scores states tokens_per_second learning_rate mlm_loss '
OF_CURVES += 'mlm_accuracy nsp_loss nsp_accuracy instances mlm_standard_error last embeddings '
OF_CURVES += 'cosine_distance gradient_norm'

# Fields of a recipe in which runs may differ that repeat each other, or are of other sizes.
FREE = {'output', 'model', 'shards', 'data', 'task', 'seed', 'target', 'targets', 'rounds', 'recovery_steps'}
FREE |= set('ranking split_half keep_embeddings log_every checkpoint_every keep resume time'.split())


def named(text: str) -> tuple[str, list[str]]:
    """``NAME=RUN,RUN`` → the name and the runs."""
    name, equal, runs = text.rpartition('=')
    if not equal:
        raise ValueError(f'wanted NAME=RUN,RUN, found {text!r:.200}')
    return name.strip(), [run.strip() for run in runs.split(',')]


def legend_below(figure: Figure, columns: int) -> int:
    """Say below a figure what its panels show; how many names that are."""
    marks = {name: mark for axes in figure.axes for mark, name in zip(*axes.get_legend_handles_labels())}
    figure.legend(list(marks.values()), list(marks), loc='outside lower center', ncols=columns)
    return len(marks)


def write_picture(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure in the package's style, and write it as PNG."""
    with matplotlib.rc_context(STYLE):
        write_file(path, drawn(draw(), path.stem, 'png'))


def check_alike(name: str, recipes: Mapping[str, Mapping[str, Any]]) -> None:
    """ValueError if runs that share a name differ in more than the `FREE` fields; some may lack a field."""
    for run, own in recipes.items():
        first, settings = next(iter(recipes.items()))
        both = own.keys() & settings.keys() - FREE
        differing = sorted(field for field in both if own[field] != settings[field])
        if differing:
            raise ValueError(f'{name}: {run} differs from {first} in {", ".join(differing)}')


def read_if_there(path: Path) -> Any:
    """The values of a JSON or YAML file; None if there is no such file."""
    if not path.is_file():
        return None
    if path.suffix == '.yaml':
        return load_yaml(path.read_bytes(), source=str(path))
    return json.loads(path.read_text(encoding='utf-8'))


def rounded(value: Any) -> Any:
    """A number with six significant digits, as many as curves and scales need; other values as they are."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f'{value:.6g}') if isinstance(value, float) else value


def _logged(path: Path) -> dict[str, Any]:
    """Files of every run: recipe, origin, and the curve of its training, as far as they are there."""
    values = {'recipe': read_if_there(path / 'recipe.yaml'), 'origin': read_if_there(path / 'origin.json')}
    metrics = path / 'metrics.jsonl'
    if metrics.is_file():
        names = OF_CURVES.split()
        values['curve'] = [
            # the score of a task is named after its set: dev/accuracy
            {name: rounded(value) for name, value in one.items() if name in names or '/' in name}
            for one in read_metrics(metrics)
        ]
    return {name: value for name, value in values.items() if value is not None}


def run_of(path: Path) -> dict[str, Any]:
    """A finished pruning run; FileNotFoundError if it is none."""
    rounds = json.loads((path / 'rounds.json').read_text(encoding='utf-8'))
    for row in rounds:
        place = path / f'round-{row["round"]}'
        found = {'sha256': weights_checksum(place / 'model')}
        found |= {name: read_if_there(place / f'{name}.json') for name in ('gates', 'embeddings')}
        row |= {name: value for name, value in found.items() if value is not None}
        for stage in ('before', 'after_cut', 'after_reconstruction'):
            (row.get(stage) or {}).pop('right', None)  # only of the network that came out
    values = {**_logged(path), 'rounds': rounds}
    if (path / 'seconds.txt').is_file():  # seconds and exit status, a line for each time that it was begun
        lines = (path / 'seconds.txt').read_text(encoding='utf-8').splitlines()
        values['seconds_and_status'] = [[int(word) for word in line.split()] for line in lines]
    verified = read_if_there(path / 'verified.json')
    if verified:
        values['stages'] = [rounded(stage) for stage in verified['stages']]
    return values


def network_of(path: Path) -> dict[str, Any]:
    """A model directory that no pruning run made; its weights need not be there, if its manifest is."""
    return {
        **_logged(path),
        'architecture': json.loads((path / 'architecture.json').read_text(encoding='utf-8')),
        'measured': read_if_there(path / 'progress.json') or {},
        'sha256': weights_checksum(path),
    }


def score_of(path: Path) -> dict[str, Any]:
    """A result of fine-tuning, or that of its directory, without widths; ValueError if it is none."""
    values = read_if_there(path / 'result.json' if path.is_dir() else path)
    if not isinstance(values, dict) or values.get('format') != RESULT_FORMAT:
        raise ValueError(f'{path}: not a result of fine-tuning')
    return {
        name: value for name, value in values.items() if name not in ('format', 'version', 'architecture')
    }


def gather(places: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Contents of some places, by section and by the last part of their path."""
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for place in places:
        if (place / 'rounds.json').is_file():
            section, read = 'runs', run_of
        elif (place / 'architecture.json').is_file():
            section, read = 'networks', network_of
        elif place.is_file() or (place / 'result.json').is_file():
            section, read = 'scores', score_of
        else:
            raise FileNotFoundError(f'{place}: no finished pruning run, no network and no result')
        name = place.stem if section == 'scores' else place.name
        if name in found[section]:
            raise ValueError(f'{place}: a second one of the {section} is called {name}')
        found[section][name] = read(place)
    return found


def read_points(path: Path) -> dict[str, Any]:
    """The values of a file of points, every recipe whole; ValueError if it is none."""
    values = json.loads(path.read_text(encoding='utf-8'))
    if not isinstance(values, dict) or values.get('format') != FORMAT:
        raise ValueError(f'{path}: not a file of points; benchmarks/studies/points.py writes them')
    for run in values.get('runs', {}).values():
        run['recipe'] = {**values['recipe'], **run['recipe']}
    return values


def write_points(values: dict[str, Any], path: Path) -> None:
    """Write a file of points, a line for every run, network and score."""
    recipes = [run['recipe'] for run in values['runs'].values()]
    counts = collections.Counter(json.dumps(pair) for recipe in recipes for pair in recipe.items())
    shared = dict(json.loads(pair) for pair, count in counts.items() if len(recipes) == count > 1)
    own = {
        name: {**run, 'recipe': {key: one for key, one in run['recipe'].items() if key not in shared}}
        for name, run in values['runs'].items()
    }
    parts = []
    for name, value in {**values, 'format': FORMAT, 'recipe': shared, 'runs': own}.items():
        if isinstance(value, dict) and name != 'recipe':
            lines = [f'  {json.dumps(key)}: {json.dumps(one)}' for key, one in value.items()]
            parts.append(f'{json.dumps(name)}: {{\n' + ',\n'.join(lines) + '\n }')
        else:
            parts.append(f'{json.dumps(name)}: {json.dumps(value)}')
    write_file(path, ('{\n ' + ',\n '.join(parts) + '\n}\n').encode())


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Gather, and say how much there is now."""
    parser = Parser(__doc__)
    parser.add_argument(
        'places',
        nargs='*',
        type=Path,
        metavar='PLACE',
        help='directories of pruning runs and of networks, and results of fine-tuning',
    )
    parser.add_argument(
        '--output', type=Path, required=True, metavar='FILE', help='file of points, written or added to'
    )
    parser.add_argument(
        '--curve', type=Path, metavar='PNG', help='draw how its networks were trained, one after the other'
    )
    arguments = parser.parse_args(argv)
    there = read_points(arguments.output) if arguments.output.exists() else {}
    found = gather(arguments.places)
    for section in SECTIONS:
        there[section] = {**there.get(section, {}), **found[section]}
    write_points({'format': FORMAT, 'recipe': {}, **there}, arguments.output)
    if arguments.curve:
        records = [
            {**record, 'phase': name}
            for name, network in there['networks'].items()
            for record in network.get('curve', ())
        ]
        write_picture(lambda: draw_curves(segments_of(records)), arguments.curve)
    print(f'{arguments.output}: {", ".join(f"{len(there[section])} {section}" for section in SECTIONS)}')


if __name__ == '__main__':
    sys.exit(main())
