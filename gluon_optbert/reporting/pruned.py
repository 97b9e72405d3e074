"""A pruning run as its figures show it: its rounds, their networks, and the gates before every cut."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any, FrozenSet, List, Mapping, Sequence, Tuple

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.named import LAYER_TABLES, bert_base, published
from ..architecture.paper import load_table
from ..architecture.parameters import ALPHA_H
from ..runs.markdown import markdown_table
from .figures import in_millions

LETTERS = 'hakvf'
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
    """A finished pruning run, as its ``rounds.json`` tells it."""

    path: Path
    label: str
    rounds: Tuple[Mapping[str, Any], ...]

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
            and all(isinstance(row[name] or {}, dict) for name in ('after_cut', 'recovered'))
            for row in rows
        )
    ):
        raise ValueError(f'{source}: wanted a list of rounds, each with {", ".join(sorted(fields))}')
    if len(rows) > 1 and rows[1].get(
        'before'
    ):  # measured as all others are; the network may have been on more instances
        rows[0] = {**rows[0], 'recovered': rows[1]['before']}
    return Run(path, label, tuple(rows))


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
        whose gates were not trained are left out, and those whose directory was not kept.

    Raises
    ------
    ValueError
        If ``alphas.npz`` and ``selection.json`` cannot be read or do not belong together.
    """
    rounds = []
    for row in run.rounds[1:]:
        directory = run.path / f'round-{row["round"]}'
        if not directory.is_dir():  # a record without its models
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
