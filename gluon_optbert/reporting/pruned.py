"""A pruning run as its figures show it: its rounds, their networks, and the gates before every cut."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.named import LAYER_TABLES, bert_base, published
from ..architecture.paper import load_table
from ..architecture.parameters import ALPHA_H
from ..runs.display import markdown_table
from ..runs.recipe import load_yaml
from .figures import in_millions

LETTERS = 'hakvf'
MEASUREMENTS = ('before', 'after_cut', 'after_reconstruction', 'recovered')  # of a round
Letters = Mapping[str, Tuple[np.ndarray, np.ndarray]]  # by letter, the alphas that stayed and that went
Round = Tuple[int, Letters]  # its number, and its gates


@dataclasses.dataclass(frozen=True)
class Network:
    """One line of a plot of widths.

    Parameters
    ----------
    label : str
    architecture : Architecture
    inferred : frozenset of (int, str)
        Layers, counted from 0, and letters whose width is not certain.
    """

    label: str
    architecture: Architecture
    inferred: FrozenSet[Tuple[int, str]] = frozenset()


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished pruning run, as its ``rounds.json`` tells it.

    Parameters
    ----------
    path : Path
    label : str
    rounds : tuple of mapping
    task : str
        What a fine-tuned network was pruned for; empty if the run does not say, and for pre-training.
    """

    path: Path
    label: str
    rounds: Tuple[Mapping[str, Any], ...]
    task: str = ''

    @property
    def metric(self) -> Optional[str]:
        """The score that decides, such as ``dev/accuracy``; None for pre-training, whose MLM loss decides."""
        measured = [row[name] for row in self.rounds for name in ('recovered', 'after_cut') if row[name]]
        return next((one['metric'] for one in measured if 'metric' in one), None)

    @property
    def quantity(self) -> str:
        """What decides, for people: ``SST-2 accuracy``, or ``MLM loss``."""
        return 'MLM loss' if self.metric is None else score_name(self.task, self.metric)

    @property
    def slug(self) -> str:
        """The label as the beginning of a file name."""
        return self.label.replace('/', '-')

    def networks(self) -> List[Network]:
        """One per round, the network that went in first; the shares are of its parameters."""
        sizes = [row['parameters'] for row in self.rounds]
        networks = []
        for row, size in zip(self.rounds, sizes):
            architecture = Architecture.from_dict(row['architecture'], source=f'{self.path}/rounds.json')
            networks.append(Network(f'{in_millions(size)} ({size / sizes[0]:.0%})', architecture))
        return networks


def score_name(task: str, metric: str) -> str:
    """A score for people; the held-out set is named unless it is the development set."""
    part, _, name = metric.partition('/')
    words = 'F1' if name == 'f1' else name.replace('_', ' ')
    return f'{task} {words}'.strip() + ('' if part == 'dev' else f' ({part})')


def value_of(measured: Optional[Mapping[str, Any]]) -> Optional[float]:
    """What decides of a measurement: a score in percent, or the MLM loss in nats; None if there is none."""
    if not measured:
        return None
    return measured['scores'][measured['metric']] if 'metric' in measured else measured.get('mlm_loss')


def by_quantity(runs: Sequence[Run]) -> List[List[Run]]:
    """The runs whose measurements can be compared, together: those of a task, and those of pre-training."""
    groups: Dict[str, List[Run]] = {}
    for run in runs:
        groups.setdefault(run.quantity, []).append(run)
    return list(groups.values())


def _task_of(path: Path) -> str:
    """The task that a run names: in the head of a network, or in its recipe."""
    for file in sorted(path.glob('round-*/model/head.json')):
        try:
            head = json.loads(file.read_text(encoding='utf-8', errors='replace'))
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{file}: not JSON ({error})') from error
        if isinstance(head, dict) and isinstance(head.get('task'), str):
            return head['task']
    recipe = path / 'recipe.yaml'
    if recipe.is_file():
        values = load_yaml(recipe.read_bytes(), source=str(recipe))
        if isinstance(values, dict) and isinstance(values.get('task'), str):
            return Path(values['task']).stem if values['task'].endswith('.json') else values['task']
    return ''


def _is_measurement(measured: Any) -> bool:
    """Whether a value of a round is a measurement: of MLM, of a task, or none."""
    if not measured:
        return True
    if not isinstance(measured, dict) or 'metric' not in measured:
        return isinstance(measured, dict)
    scores, metric = measured.get('scores'), measured['metric']
    return isinstance(metric, str) and isinstance(scores, dict) and type(scores.get(metric)) in (int, float)


def read_run(path: Path, label: str) -> Run:
    """The run in a directory.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is not there, not finished, or its rounds are not what pruning writes.
    """
    source = path / 'rounds.json'
    if not source.is_file():
        raise FileNotFoundError(f'{source}: not there; a pruning run writes it when it is finished')
    try:
        rows = json.loads(source.read_text(encoding='utf-8'))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f'{source}: not JSON ({error})') from error
    fields = {'round', 'parameters', 'architecture', 'after_cut', 'recovered'}
    if (
        not isinstance(rows, list)
        or not rows
        or not all(
            isinstance(row, dict)
            and fields <= set(row)
            and isinstance(row['parameters'], (int, float))
            and row['parameters'] > 0
            and all(_is_measurement(row.get(name)) for name in MEASUREMENTS)
            for row in rows
        )
    ):
        raise ValueError(f'{source}: wanted a list of rounds, each with {", ".join(sorted(fields))}')
    # measured as all others are; the network may have been on more instances
    if len(rows) > 1 and rows[1].get('before'):
        rows[0] = {**rows[0], 'recovered': rows[1]['before']}
    run = Run(path, label, tuple(rows))
    return run if run.metric is None else dataclasses.replace(run, task=_task_of(path))


def paper_networks() -> List[Network]:
    """BERT-base and the networks that optBERT gives layer by layer."""
    networks = [Network('BERT-base, 108M', bert_base())]
    for size, number in LAYER_TABLES.items():
        inferred = frozenset((one.row, one.column) for one in load_table(number).inferred)
        networks.append(Network(f'optBERT-all, {size}M', published(size), inferred))
    return networks


def _width_key(key: str) -> str:
    """The width of a vector in a file of gates; alpha_h has a key for each place where it may stand."""
    return 'h' if key in ALPHA_H.values() else key


def read_gates(run: Run) -> List[Round]:
    """The trained gates of every round.

    Returns
    -------
    list of (int, dict)
        The round, and by letter the alphas that stayed and those that were removed, over all layers; rounds
        whose gates were not trained or not kept are left out.

    Raises
    ------
    ValueError
        If ``alphas.npz`` and ``selection.json`` cannot be read or do not belong together.
    """
    rounds = []
    for row in run.rounds[1:]:
        directory = run.path / f'round-{row["round"]}'
        if not (directory / 'alphas.npz').is_file():  # a record without the arrays of its run
            continue
        try:
            with np.load(directory / 'alphas.npz') as stored:
                alphas = {_width_key(key): np.asarray(stored[key]) for key in stored.files}
            kept = json.loads((directory / 'selection.json').read_text(encoding='utf-8'))['kept']
            stays = {key: np.isin(np.arange(len(values)), kept[key]) for key, values in alphas.items()}
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f'{directory}: alphas.npz and selection.json are not those of a cut ({error!r})'
            ) from error
        if all((values == 1).all() for values in alphas.values()):
            continue
        by_letter = {}
        for letter in LETTERS:
            keys = [key for key in alphas if key[0] == letter]
            if keys:
                values, mask = (np.concatenate([part[key] for key in keys]) for part in (alphas, stays))
                by_letter[letter] = (values[mask], values[~mask])
        rounds.append((row['round'], by_letter))
    return rounds


def score_table(runs: Sequence[Run]) -> str:
    """The networks of runs of one task by size, with their scores in percent, as Markdown."""
    rows = []
    for run in runs:
        for row in run.rounds:
            values = [value_of(row.get(name)) for name in ('after_cut', 'recovered')]
            share = row['parameters'] / run.rounds[0]['parameters']
            texts = ['' if value is None else f'{value:.2f}' for value in values]
            rows.append((run.label, in_millions(row['parameters']), f'{share:.1%}', *texts))
    header = ['run', 'parameters', 'of the first', f'{runs[0].quantity} after the cut', 'at the end']
    return markdown_table(header, rows) + '\n'


def loss_table(runs: Sequence[Run]) -> str:
    """The networks of every run by size, with their held-out losses, as Markdown."""
    rows = []
    for run in runs:
        for row in run.rounds:
            cut, recovered = row['after_cut'] or {}, row['recovered'] or {}
            cells = [
                f'{losses[name]:.3f}' if name in losses else ''
                for losses, name in (
                    (cut, 'mlm_loss'),
                    (recovered, 'mlm_loss'),
                    (recovered, 'mlm_accuracy'),
                    (recovered, 'nsp_accuracy'),
                )
            ]
            share = row['parameters'] / run.rounds[0]['parameters']
            rows.append((run.label, in_millions(row['parameters']), f'{share:.1%}', *cells))
    header = ['run', 'parameters', 'of the first', 'MLM loss after the cut', 'recovered']
    return markdown_table([*header, 'MLM accuracy', 'NSP accuracy'], rows) + '\n'
