"""Runs that pruned networks for one task, as points of a plot: their labels, and which repeat each other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops, shares_of_rounds
from ..runs.machine import commits_of
from ..runs.recipe import load_yaml
from .networks import Run, value_of

METHODS = {
    'alpha': 'trained gates',
    'fisher': 'Fisher scores',
    'uniform': 'uniform widths',
    'uniform-alpha': 'uniform widths by trained gates',
    'magnitude': 'magnitudes',
    'random': 'random units',
    'layers': 'dropped layers',
    'blocks': 'dropped blocks',
    'heads': 'head scores',
}
UNITS = {'flops': 'FLOPs', 'parameters': 'parameters', 'latency': 'time'}
# Fields of a recipe in which runs may differ that repeat each other (`time` is `timing` in earlier versions),
# and those that a label has in words.
_FREE = {'output', 'model', 'data', 'task', 'seed', 'target', 'targets', 'rounds', 'timing', 'ranking'}
_FREE |= {'log_every', 'checkpoint_every', 'keep', 'resume', 'split_half', 'keep_embeddings', 'time'}
# Those that are read only where gates are trained.
_OF_GATES = {'penalty', 'gamma', 'unweighted', 'relative_gates', 'gate_teacher', 'alpha_learning_rate'}
_OF_GATES |= {'alpha_optimizer', 'alpha_limit', 'alpha_window', 'alpha_overlap'}
TRAIN_GATES = {'alpha', 'uniform-alpha'}
_IN_WORDS = {'method', 'reconstruct', 'rotate_heads'}
# What runs did before their recipes had these fields: the defaults, but for `relative_gates` and `keep_best`.
_EARLIER = {
    'precision': 'float32',
    'compression': 'none',
    'unweighted': False,
    'alpha_limit': 1000,
    'alpha_window': 50,
    'alpha_overlap': 0.99,
    'h_gate': 'stream',
    'relative_gates': 'none',
    'rotate_heads': False,
    'reconstruct': False,
    'teacher': None,
    'label_weight': 1.0,
    'teacher_score_weight': 1.0,
    'teacher_state_weight': 1.0,
    'temperature': 2.0,
    'gate_teacher': False,
    'embedding_weight': 0.0,
    'cosine_weight': 0.0,
    'keep_best': False,
    'trim_count': 1,
}


@dataclasses.dataclass(frozen=True)
class Point:
    """A network of a run.

    Parameters
    ----------
    run : Path
    round : int
    seed : int
        Of the run.
    model : str
        The network that went into the run.
    commits : tuple of str
        That computed the run.
    share : float
        Of the cost that was to be left after the round; 1 for the network that went in.
    score, start : float
        Of the network, and of the one that went in, in percent.
    standard_error : float, optional
        Of the score, in percentage points.
    architecture : Architecture
    """

    run: Path
    round: int
    seed: int
    model: str
    commits: Tuple[str, ...]
    share: float
    score: float
    start: float
    standard_error: Optional[float]
    architecture: Architecture

    @property
    def lost(self) -> float:
        """Points that the network scores less than the one that went in."""
        return self.start - self.score

    @property
    def parameters(self) -> int:
        """Of embeddings and encoder."""
        return int(ParameterCost().cost(self.architecture))

    @property
    def flops(self) -> int:
        """Of a sequence of 128 tokens."""
        return int(sum(count_flops(self.architecture, 128).values()))

    @property
    def file(self) -> Path:
        """The file of its widths."""
        return self.run / f'round-{self.round}' / 'model' / 'architecture.json'

    def to_dict(self) -> Dict[str, Any]:
        """JSON values, without the widths."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != 'architecture'
        }
        sizes = {'lost': self.lost, 'parameters': self.parameters, 'flops': self.flops}
        return {**values, 'run': str(self.run), 'commits': list(self.commits), **sizes}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs with one recipe, but for seed, model and size.

    Parameters
    ----------
    label : str
        Such as ``trained gates, with training``.
    unit : str
        What the shares are of: ``FLOPs``.
    rungs : tuple of tuple of Point
        For each size, from the largest on, the points of all repetitions.
    """

    label: str
    unit: str
    rungs: Tuple[Tuple[Point, ...], ...]


def check_comparable(runs: Sequence[Run]) -> None:
    """ValueError unless runs pruned for one task, from one architecture, and were measured on as many
    instances.
    """
    for run in runs:
        unmeasured = [row['round'] for row in run.rounds if 'metric' not in (row['recovered'] or {})]
        if unmeasured:
            raise ValueError(f'{run.path}: round {unmeasured[0]} has no score of a task')

    def differ(what: str, values: Sequence[Any]) -> None:
        for run, value in zip(runs, values):
            if value != values[0]:
                raise ValueError(f'{run.path}: {what} is {value}, that of {runs[0].path} is {values[0]}')

    differ('the score', [run.quantity for run in runs])
    differ('the number of instances', [run.rounds[0]['recovered'].get('instances') for run in runs])
    for run in runs:
        if run.rounds[0]['architecture'] != runs[0].rounds[0]['architecture']:
            raise ValueError(f'{run.path} began with other widths than {runs[0].path}; plot them apart')


def read_recipe(path: Path) -> Mapping[str, Any]:
    """The recipe of a run; ValueError or FileNotFoundError if it cannot be read or lacks a field."""
    file = path / 'recipe.yaml'
    recipe = load_yaml(file.read_bytes(), source=str(file))
    missing = {'method', 'seed', 'target', 'rounds', 'model', 'objective'} - set(
        recipe if isinstance(recipe, dict) else ()
    )
    if missing:
        raise ValueError(f'{file}: not the recipe of a pruning run, it lacks {", ".join(sorted(missing))}')
    return recipe


def shares_of(recipe: Mapping[str, Any]) -> Tuple[float, ...]:
    """The share of the cost that was to be left after each round."""
    return tuple(recipe.get('targets') or shares_of_rounds(recipe['target'], recipe['rounds']))


def points_of(run: Run, recipe: Mapping[str, Any]) -> List[Point]:
    """The networks of a run, the one that went in first."""
    shares = (1.0, *shares_of(recipe))
    if len(shares) < len(run.rounds):
        raise ValueError(f'{run.path}: {len(run.rounds) - 1} rounds, and the recipe has {len(shares) - 1}')
    start, commits = value_of(run.rounds[0]['recovered']), tuple(commits_of(run.path))
    return [
        Point(
            run=run.path,
            round=row['round'],
            seed=recipe['seed'],
            model=str(recipe['model']),
            commits=commits,
            share=float(share),
            score=value_of(row['recovered']),
            start=start,
            standard_error=row['recovered'].get('standard_error'),
            architecture=network.architecture,
        )
        for row, share, network in zip(run.rounds, shares, run.networks())
    ]


def starts_of(points: Sequence[Sequence[Point]]) -> List[Point]:
    """The networks that runs began with, each once; `points` has those of every run."""
    return list({(run[0].model, run[0].score): run[0] for run in reversed(points)}.values())[::-1]


def groups_of(runs: Sequence[Run], recipes: Sequence[Mapping[str, Any]]) -> List[Group]:
    """Runs of one recipe together, in the order of the runs.

    Raises
    ------
    ValueError
        If two runs of a group have the same seed, model and size.
    """
    settings = [settings_of(recipe) for recipe in recipes]
    labels = _labels([dict(one) for one in settings], recipes)
    members: Dict[Tuple[Any, ...], List[int]] = {}
    for place, one in enumerate(settings):
        members.setdefault(one, []).append(place)
    groups = []
    for places in members.values():
        rungs: Dict[Tuple[float, int], List[Point]] = {}
        for place in places:
            for point in points_of(runs[place], recipes[place])[1:]:
                rungs.setdefault((-point.share, point.round), []).append(point)
        for points in rungs.values():
            _check_repetitions(points)
        objective = recipes[places[0]]['objective']
        unit = UNITS.get(objective, objective)
        groups.append(Group(labels[places[0]], unit, tuple(tuple(rungs[key]) for key in sorted(rungs))))
    return groups


def _check_repetitions(points: Sequence[Point]) -> None:
    """ValueError if two networks of a size repeat each other with nothing that differs."""
    known: Dict[Tuple[int, str], Point] = {}
    for point in points:
        other = known.setdefault((point.seed, point.model), point)
        if other is not point:
            raise ValueError(
                f'{other.run} and {point.run} have the same recipe, size, model and seed ({point.seed}); '
                'give one of them'
            )


def settings_of(recipe: Mapping[str, Any]) -> Tuple[Tuple[str, str], ...]:
    """What tells a group from others, as text: the fields of the recipe that its method reads, and the sizes
    of one run. Fields that an earlier version did not have are there with what it did.
    """
    shares = shares_of(recipe)
    idle = _FREE if recipe['method'] in TRAIN_GATES else _FREE | _OF_GATES
    trim = False if 'shards' in recipe else []  # a truth value in pre-training, files of text for a task
    values = {'trim': trim, **_EARLIER, **recipe}
    fields = {name: json.dumps(value, default=str) for name, value in values.items() if name not in idle}
    sizes = ' then '.join(f'{share:.0%}' for share in shares).replace('%', ' %')
    fields['sizes'] = f'{sizes} in one run' if len(shares) > 1 else 'a run for each size'
    return tuple(sorted(fields.items()))


def _labels(settings: Sequence[Mapping[str, str]], recipes: Sequence[Mapping[str, Any]]) -> List[str]:
    """The label of every run's group: method, repairs and training, and what else differs where these do not
    tell groups apart.
    """
    words = [_in_words(recipe) for recipe in recipes]
    labels = []
    for label, own in zip(words, settings):
        alike = [other for other, name in zip(settings, words) if name == label]
        names = sorted({name for other in alike for name in other} - _IN_WORDS)
        differing = [name for name in names if len({other.get(name) for other in alike}) > 1]
        more = [
            own[name]
            if name == 'sizes'
            else f'{name.replace("_", " ")} {own.get(name, "null")}'.replace('"', '')
            for name in differing
        ]
        labels.append(', '.join([label, *more]))
    return labels


def _in_words(recipe: Mapping[str, Any]) -> str:
    """Method, repairs and training: ``Fisher scores, repaired, no training``."""
    rotated, fitted = bool(recipe.get('rotate_heads')), bool(recipe.get('reconstruct'))
    repairs = {(True, True): 'repaired', (False, True): 'reconstructed', (True, False): 'rotated'}
    parts = [METHODS.get(recipe['method'], str(recipe['method'])), repairs.get((rotated, fitted))]
    parts.append('no training' if recipe.get('steps') == 0 else 'with training')
    return ', '.join(part for part in parts if part)
