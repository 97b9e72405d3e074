"""What a page says of files of results: scores of fine-tuning as tables, any other file value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Mapping

from ..architecture.architecture import Architecture
from ..runs.progress import NOTE, exceeds, score_text
from .page import Section, details, joined, table, tag, values
from .run_sections import widths_table
from .side_by_side import LAST, rows_of

SHOWN = ('format', 'version', 'unit', 'task', 'metric', 'mean', 'std', 'majority', 'runs', 'seeds')
FOLDED = {'recipe': 'Recipe', 'commit': 'Commit', 'versions': 'Versions', 'machine': 'Machine'}


def of_finetuning(data: Mapping[str, Any], path: Path) -> List[Section]:
    """The scores of a fine-tuning run beside the majority class's, those of every epoch, the data, the
    network, and where the run was made.

    Raises
    ------
    ValueError
        If the file lacks something.
    """
    try:
        sections: List[Section] = [(str(data['task']), _scores(data))]
        epochs = [row for run in data['runs'] for row in _epoch_rows(run)]
        if epochs:
            names = list(data['mean'])
            rows = [
                [seed, epoch, *(score_text(scores[name], digits=2) for name in names)]
                for seed, epoch, scores in epochs
            ]
            sections.append(('Every epoch', table(['seed', 'epoch', *names], rows)))
        if data.get('learning_rates'):
            sections.append(('Learning rates', _rates(data['learning_rates'], data['metric'])))
        if data.get('samples'):
            rows = [[name, count] for name, count in data['samples'].items()]
            sections.append(('Data', table(['part', 'instances'], rows)))
        if data.get('architecture'):
            architecture = Architecture.from_dict(data['architecture'], source=str(path))
            sections.append(('Network', widths_table(architecture)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{path}: not a result of fine-tuning ({type(error).__name__}: {error})') from error
    known = (*SHOWN, *FOLDED, 'samples', 'architecture', 'learning_rates')
    rest = {name: value for name, value in data.items() if name not in known}
    folded = [details(title, values(data[name])) for name, title in FOLDED.items() if name in data]
    return [*sections, ('How it was made', joined([values(rest) if rest else '', *folded]))]


def _is_comparison(data: Mapping[str, Any]) -> bool:
    """Whether the values of a file are those of a comparison with a finished seed."""
    summary, runs = data.get('summary'), data.get('runs')
    sided = (
        isinstance(runs, list) and bool(runs) and all(isinstance(run, dict) and 'side' in run for run in runs)
    )
    return sided and isinstance(summary, dict) and all(kind in summary for kind in LAST)


def _scores(data: Mapping[str, Any]) -> Any:
    """The scores by seed, with mean, deviation and the majority class."""
    majority = data.get('majority') or {}
    rows = []
    for name, mean in data['mean'].items():
        least, std = majority.get(name), data['std'][name]
        seeds = [run['scores'][name] for run in data['runs']]
        texts = [score_text(score, majority=least, digits=2) for score in seeds]
        constant = None if least is None else score_text(least, digits=2)
        rows.append([name, score_text(mean, std, majority=least, digits=2), constant, *texts])
    head = ['percent', 'mean ± deviation', 'majority class', *(f'seed {run["seed"]}' for run in data['runs'])]
    poor = any(not exceeds(mean, majority.get(name)) for name, mean in data['mean'].items())
    note = f'{data["metric"]} is the score that counts.' + (f' {NOTE}.' if poor else '')
    return joined([table(head, rows), tag('p', note, class_='note')])


def _rates(data: Mapping[str, Any], metric: str) -> Any:
    """What every learning rate scored, and which was chosen."""
    rows = [
        [
            f'{one["learning_rate"]:g}',
            *(score_text(score, digits=2) for score in (one['mean'][metric], *scores)),
        ]
        for one in data['tried']
        for scores in [[run['scores'][metric] for run in one['runs']]]
    ]
    seeds = [f'seed {run["seed"]}' for run in data['tried'][0]['runs']]
    note = f'{data["chosen"]:g} was chosen: {data["note"]}'
    return joined([table(['learning rate', f'mean {metric}', *seeds], rows), tag('p', note, class_='note')])


def _epoch_rows(run: Mapping[str, Any]) -> List[Any]:
    """Seed, epoch and scores of every epoch of a run."""
    return [(run['seed'], epoch['epoch'], epoch['scores']) for epoch in run.get('epochs', ())]


def of_results(data: Any) -> List[Section]:
    """A file of results: its plain values first, then a section for each of the others. A comparison with
    Transformers begins with its tables.
    """
    if not isinstance(data, dict):
        return [('Results', values(data))]
    if _is_comparison(data):
        try:
            tables = [(kind.capitalize(), table(*rows_of(data, kind))) for kind in LAST]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'a comparison that lacks something ({type(error).__name__}: {error})'
            ) from error
        return [*tables, *of_results({name: value for name, value in data.items() if name != 'summary'})]
    nested = {name: value for name, value in data.items() if isinstance(value, (dict, list)) and value}
    single = {name: value for name, value in data.items() if name not in nested}
    return ([('Results', values(single))] if single or not nested else []) + [
        (str(name), values(value)) for name, value in nested.items()
    ]
