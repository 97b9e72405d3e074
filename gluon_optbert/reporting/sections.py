"""What a page says of runs, models, searches, results and tables: a chapter for each, section by section."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import os
import platform
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import yaml
from matplotlib.figure import Figure

from .. import __version__
from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from ..runs.provenance import ORIGIN
from .curves import draw_curves, read_metrics, segments_of, speed
from .drawing import WIDTHS, draw_alphas, draw_losses, draw_widths
from .figures import drawn, plain
from .page import Chapter, Html, details, joined, picture, table, tag, values
from .pruned import Run, read_gates, read_run

PACKAGES = ('gluon_optbert', 'mxnet', 'gluonnlp', 'horovod', 'numpy')
Section = Tuple[str, Html]


class Reader(NamedTuple):
    """What another room reads of a directory.

    Parameters
    ----------
    file : str
        The directory is of this kind if it has this file.
    read : callable
        The directory → its sections.
    known : tuple of str
        Files that these sections show, so that they are not shown again.
    """

    file: str
    read: Callable[[Path], List[Section]]
    known: Tuple[str, ...]


def chart(figure: Figure, caption: str) -> Html:
    """A figure in the page."""
    return picture(drawn(figure, caption, 'svg'), 'svg', caption)


def read_json(path: Path) -> Any:
    """The values of a JSON file; ValueError if it is none."""
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path}: not JSON ({error})') from error


def of_rounds(run: Run) -> List[Section]:
    """Sizes and losses of a pruning run, its widths, and its gates."""
    first = run.rounds[0]['parameters']
    names = ('mlm_loss', 'mlm_accuracy', 'nsp_accuracy')
    rows = []
    for row in run.rounds:
        before, cut, recovered = (row.get(name) or {} for name in ('before', 'after_cut', 'recovered'))
        rows.append(
            [
                row['round'],
                row['parameters'] / 1e6,
                f'{row["parameters"] / first:.1%}',
                row.get('flops', 0) / 1e9,
                before.get('mlm_loss'),
                cut.get('mlm_loss'),
                *(recovered.get(name) for name in names),
                row.get('latency_ms'),
            ]
        )
    header = [
        'round',
        'parameters, M',
        'of the first',
        'FLOPs at 128, G',
        'MLM loss before',
        'after the cut',
        'recovered',
        'MLM accuracy',
        'NSP accuracy',
        'latency, ms',
    ]
    if all(row[-1] is None for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    sections = [
        (
            'Size and accuracy',
            joined(
                [
                    table(header, rows),
                    tag(
                        'p',
                        'Losses are in nats per masked token of held-out text; sizes count embeddings and '
                        'encoder.',
                        class_='note',
                    ),
                ]
            ),
        )
    ]
    losses = draw_losses([run])
    if losses is not None:
        sections[0] = (
            sections[0][0],
            joined([sections[0][1], chart(losses, f'Held-out MLM loss against size: {run.label}')]),
        )
    networks, gates = run.networks(), read_gates(run)
    widths = [
        chart(
            draw_widths(letter, networks, f'{WIDTHS[letter][0]}: {plain(run.label)}'),
            f'{WIDTHS[letter][0]}, round by round: {run.label}',
        )
        for letter in 'fakv'
    ]
    sections.append(('Widths', joined([widths_table(networks[-1].architecture), *widths])))
    if gates:
        sections.append(
            ('Gates', joined([chart(draw_alphas(gates, run.label), f'Alpha before each cut: {run.label}')]))
        )
    return sections


def widths_table(architecture: Architecture) -> Html:
    """The widths of a network, layer by layer."""
    facts = f'h = {architecture.h}' + (f', e = {architecture.e}' if architecture.e else '')
    return joined(
        [
            tag('p', f'{facts}, {len(architecture.layers)} layers, {architecture.vocab_size:,} tokens:'),
            table(
                ['layer', 'a (heads)', 'k (keys)', 'v (values)', 'f (filters)'],
                [
                    [i, *(getattr(layer, letter) for letter in 'akvf')]
                    for i, layer in enumerate(architecture.layers, start=1)
                ],
            ),
        ]
    )


def of_model(path: Path) -> List[Section]:
    """Size and widths of a model directory, and what was measured at its end."""
    architecture = Architecture.from_json(
        path.joinpath('architecture.json').read_text(encoding='utf-8', errors='replace'),
        source=str(path / 'architecture.json'),
    )
    facts: Dict[str, Any] = {
        'parameters of embeddings and encoder': int(ParameterCost().cost(architecture)),
        'FLOPs of 128 tokens': int(sum(count_flops(architecture, 128).values())),
    }
    if (path / 'progress.json').is_file():
        progress = read_json(path / 'progress.json')
        facts.update(progress if isinstance(progress, dict) else {'progress': progress})
    return [('Size and accuracy', values(facts)), ('Widths', widths_table(architecture))]


def of_metrics(path: Path, label: str) -> List[Section]:
    """Curves of what was measured step by step."""
    segments = segments_of(read_metrics(path))
    if not segments:
        return []
    header = ['phase', 'round', 'steps', 'tokens a second', 'waiting for data']
    return [
        (
            'Curves',
            joined(
                [
                    chart(draw_curves(segments, label), f'Losses over the steps: {label}'),
                    table(header, speed(segments)),
                ]
            ),
        )
    ]


def of_latency(path: Path) -> List[Section]:
    """Latency as the model predicts it and as it was measured."""
    return [('Latency', values(read_json(path)))]


def of_recipe(path: Path) -> List[Section]:
    """The resolved recipe of a run."""
    try:
        return [('Recipe', values(yaml.safe_load(path.read_text(encoding='utf-8', errors='replace'))))]
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f'{path}: not YAML ({str(error).splitlines()[0]})') from error


def of_csv(path: Path) -> Html:
    """A table on disk; a column of numbers stands at the right."""
    rows = list(csv.reader(io.StringIO(path.read_text(encoding='utf-8', errors='replace'))))

    def number(cell: str) -> Any:
        for kind in (int, float):
            try:
                return kind(cell)
            except ValueError:
                pass
        return cell or None

    return table(rows[0], [[number(cell) for cell in row] for row in rows[1:]]) if rows else Html()


def of_files(path: Path, known: Tuple[str, ...]) -> List[Section]:
    """What else lies in a directory: tables, pictures, notes and values, each under its name."""
    readers: Dict[str, Callable[[Path], Html]] = {
        '.csv': of_csv,
        '.md': lambda file: tag('pre', file.read_text(encoding='utf-8', errors='replace')),
        '.json': lambda file: values(read_json(file)),
        '.svg': lambda file: picture(file.read_bytes(), 'svg', file.stem),
        '.png': lambda file: picture(file.read_bytes(), 'png', file.stem),
    }
    files = sorted(
        file
        for file in path.iterdir()
        if file.is_file() and file.suffix in readers and file.name not in known
    )
    better = {'.png': '.svg', '.md': '.csv'}
    return [
        (file.name, readers[file.suffix](file))
        for file in sorted(files, key=lambda file: list(readers).index(file.suffix))
        if file.with_suffix(better.get(file.suffix, '.none')) not in files
    ]


def of_environment(path: Path) -> List[Section]:
    """What a directory says of the programs that made it."""
    if (path / ORIGIN).is_file():
        return [('Where it was made', values(read_json(path / ORIGIN)))]
    for file in (path / 'manifest.json', path / 'round-0' / 'model' / 'manifest.json'):
        if file.is_file():
            manifest = read_json(file)
            named = ('format', 'version', 'gluon_optbert') if isinstance(manifest, dict) else ()
            return [('Environment', values({name: manifest[name] for name in named if name in manifest}))]
    return []


def environment() -> Html:
    """The versions and the machine where the page is made."""
    here: Dict[str, Any] = {}
    for name in PACKAGES:
        try:
            here[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            here[name] = __version__ if name == 'gluon_optbert' else 'not installed'
    here.update(
        python=platform.python_version(),
        machine=f'{platform.system()} {platform.machine()}',
        processors=os.cpu_count(),
    )
    return details('Where this page was made', values(here))


def chapter(
    path: Path, label: str, *, readers: Sequence[Reader] = (), finetuning: Optional[str] = None
) -> Chapter:
    """All that a directory or a file of results tells.

    Parameters
    ----------
    path : Path
    label : str
        The title.
    readers : sequence of Reader
        Of the directories that other rooms know.
    finetuning : str, optional
        The ``format`` that a result of fine-tuning names.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is nothing to report, or a file of it is damaged.
    """
    if path.is_file() and path.suffix == '.json':
        data = read_json(path)
        tuned = finetuning is not None and isinstance(data, dict) and data.get('format') == finetuning
        return Chapter(label, tuple(of_finetuning(data, path) if tuned else of_results(data)))
    if not path.is_dir():
        raise FileNotFoundError(f'{path}: neither a directory nor a JSON file of results')
    sections: List[Section] = []
    if (path / 'rounds.json').is_file():
        sections += of_rounds(read_run(path, label))
    elif list(path.glob('round-*')):
        sections.append(
            ('Unfinished', tag('p', 'This pruning run is not finished: it has no rounds.json yet.'))
        )
    if (path / 'architecture.json').is_file():
        sections += of_model(path)
    for name, reader in (
        ('latency.json', of_latency),
        ('metrics.jsonl', lambda file: of_metrics(file, label)),
    ):
        sections += reader(path / name) if (path / name).is_file() else []
    known = (
        'rounds.json',
        'pruning.md',
        'architecture.json',
        'progress.json',
        'latency.json',
        'manifest.json',
        ORIGIN,
    )
    for reader in readers:
        if (path / reader.file).is_file():
            sections += reader.read(path)
            known += (reader.file, *reader.known)
    sections += of_files(path, known)
    if (path / 'recipe.yaml').is_file():
        sections += of_recipe(path / 'recipe.yaml')
    if not sections:
        raise ValueError(
            f'{path}: nothing to report in it; give a run, a model, a search, a comparison or a table'
        )
    return Chapter(label, (*sections, *of_environment(path)))


def of_finetuning(data: Mapping[str, Any], path: Path) -> List[Section]:
    """The scores of a fine-tuning run by seed, then everything else."""
    try:
        header = ['score, percent', 'mean', 'deviation', *(f'seed {run["seed"]}' for run in data['runs'])]
        rows = [
            [name, mean, data['std'][name], *(run['scores'][name] for run in data['runs'])]
            for name, mean in data['mean'].items()
        ]
        task, metric = data['task'], data['metric']
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{path}: not a result of fine-tuning ({type(error).__name__}: {error})') from error
    rest = {name: value for name, value in data.items() if name not in ('mean', 'std')}
    return [
        (
            str(task),
            joined([table(header, rows), tag('p', f'{metric} is the score that counts.', class_='note')]),
        ),
        *of_results(rest),
    ]


def of_results(data: Any) -> List[Section]:
    """A file of results: its plain values first, then a section for each of the others."""
    if not isinstance(data, dict):
        return [('Results', values(data))]
    nested = {name: value for name, value in data.items() if isinstance(value, (dict, list)) and value}
    single = {name: value for name, value in data.items() if name not in nested}
    return ([('Results', values(single))] if single or not nested else []) + [
        (str(name), values(value)) for name, value in nested.items()
    ]


def side_by_side(runs: List[Run]) -> Optional[Chapter]:
    """Pruning runs against each other; None for less than two."""
    if len(runs) < 2:
        return None
    rows = []
    for run in runs:
        last, share = run.rounds[-1], run.rounds[-1]['parameters'] / run.rounds[0]['parameters']
        recovered = last['recovered'] or {}
        rows.append(
            [
                run.label,
                last['round'],
                last['parameters'] / 1e6,
                f'{share:.1%}',
                *(recovered.get(name) for name in ('mlm_loss', 'mlm_accuracy', 'nsp_accuracy')),
            ]
        )
    losses = draw_losses(runs)
    return Chapter(
        'Side by side',
        (
            (
                'Where the runs ended',
                joined(
                    [
                        table(
                            [
                                'run',
                                'rounds',
                                'parameters, M',
                                'of the first',
                                'MLM loss',
                                'MLM accuracy',
                                'NSP accuracy',
                            ],
                            rows,
                        ),
                        '' if losses is None else chart(losses, 'Held-out MLM loss against size'),
                    ]
                ),
            ),
        ),
    )
