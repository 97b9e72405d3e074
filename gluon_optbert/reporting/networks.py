"""Runs, models and results as data: their networks, sizes, gates, and what was measured of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from ..architecture.named import LAYER_TABLES, bert_base, published
from ..architecture.paper import load_table
from ..architecture.parameters import LETTERS
from ..architecture.rounds import GateRecord, Round, read_gate_records, read_rounds
from ..cutting.selection import read_alphas, read_selection
from ..finetuning.result import FineTuningResult
from ..runs.display import markdown_table
from ..runs.files import MANIFEST, parse_json, read_sealed, read_small, sha256
from ..runs.progress import RESULT, RESULT_FORMAT, HeldOut, TaskScores, paired_error, score_text
from ..runs.recipe import load_yaml

LENGTH = 128  # tokens of the sequence whose FLOPs and time are compared
WEIGHTS = 'model.params'  # of a model directory
MEASURED = ('mlm_loss', 'mlm_accuracy', 'nsp_accuracy')  # of pre-training, in tables
# Of the recipe of a pruning run: the method, and what has to be equal for networks to be compared.
ALIKE = (
    *('shards', 'data', 'labels', 'limit', 'max_length', 'evaluation_limit', 'alpha_steps', 'steps'),
    *('recovery_steps', 'minutes', 'rounds', 'batch_size', 'batch_tokens', 'optimizer', 'learning_rate'),
    *('recover_after', 'teacher', 'trim', 'method'),
)
_IN_A_RUN = re.compile(r'model|shrunk|round-\d+|seed-\d+')  # directories that every run has

Letters = Mapping[str, tuple[np.ndarray, np.ndarray]]  # by letter, the alphas that stayed and that went


def json_values(path: Path) -> Any:
    """The values of a JSON file; ValueError if it is none."""
    return parse_json(read_small(path), source=path)


def in_millions(parameters: float) -> str:
    """A number of parameters with three digits, e.g. ``88.1 M``."""
    millions = parameters / 1e6
    return f'{millions:.{0 if millions >= 99.95 else 1 if millions >= 9.995 else 2}f} M'


def labels_of(paths: Sequence[Path]) -> list[str]:
    """The last part of every path, and as many parts before it as tell the paths apart and name the run of a
    network; ValueError if two are the same directory.
    """
    parts = [path.resolve().parts[1:] or ('run',) for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError('a run is given twice')
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ['/'.join(part[-max(depth, _named(part)) :]) for part in parts]


def _named(parts: Sequence[str]) -> int:
    """The number of last parts that name something: ``run/round-4/model``, not ``model``."""
    own = next((i for i, part in enumerate(reversed(parts)) if not _IN_A_RUN.fullmatch(part)), len(parts) - 1)
    return own + 1


@dataclasses.dataclass(frozen=True)
class Network:
    """One line of a plot of widths.

    Parameters
    ----------
    inferred : frozenset of (int, str)
        Layers, counted from 0, and letters whose width is not certain.
    """

    label: str
    architecture: Architecture
    inferred: frozenset[tuple[int, str]] = frozenset()


def paper_networks() -> list[Network]:
    """BERT-base and the networks that optBERT gives layer by layer."""
    networks = [Network('BERT-base, 108M', bert_base())]
    for size, number in LAYER_TABLES.items():
        inferred = frozenset((one.row, one.column) for one in load_table(number).inferred)
        networks.append(Network(f'optBERT-all, {size}M', published(size), inferred))
    return networks


# Pruning runs


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished pruning run.

    Parameters
    ----------
    task : str
        What a fine-tuned network was pruned for; empty if the run does not say, and for pre-training.
    made : mapping
        The method, data and steps of its recipe, `ALIKE`; empty if the run does not say.
    """

    path: Path
    label: str
    rounds: tuple[Round, ...]
    task: str = ''
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def metric(self) -> str | None:
        """The score that decides, such as ``dev/accuracy``; None for pre-training, whose MLM loss decides."""
        measured = [one for row in self.rounds for one in (row.recovered, row.after_cut)]
        return next((one.metric for one in measured if isinstance(one, TaskScores)), None)

    @property
    def quantity(self) -> str:
        """The score that decides, for people: ``SST-2 accuracy``, or ``MLM loss``."""
        return 'MLM loss' if self.metric is None else quantity_name(self.task, self.metric)

    def gate_records(self) -> list[GateRecord]:
        """Those of the rounds whose gates were trained; ValueError if a file is none."""
        return read_gate_records(self.path, (row.round for row in self.rounds[1:]))

    def networks(self) -> list[Network]:
        """One per round, the network that went in first; the shares are of its parameters."""
        first = self.rounds[0].parameters
        return [
            Network(f'{in_millions(row.parameters)} ({row.parameters / first:.0%})', row.architecture)
            for row in self.rounds
        ]


def quantity_name(task: str, metric: str) -> str:
    """A score for people; the held-out set is named unless it is the development set."""
    part, _, name = metric.partition('/')
    words = 'F1' if name == 'f1' else name.replace('_', ' ')
    return f'{task} {words}'.strip() + ('' if part == 'dev' else f' ({part})')


def value_of(one: HeldOut | TaskScores | None) -> float | None:
    """The value that decides: a score in percent, or the MLM loss in nats; None if nothing was measured."""
    return None if one is None else one.value


def by_quantity(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs whose measurements can be compared, together: those of a task, and those of pre-training."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.quantity, []).append(run)
    return list(groups.values())


def read_run(path: Path, label: str) -> Run:
    """The run in a directory; raises what `read_rounds` does."""
    rounds, recipe = read_rounds(path), path / 'recipe.yaml'
    found = load_yaml(read_small(recipe), source=str(recipe)) if recipe.is_file() else None
    values = found if isinstance(found, dict) else {}
    run = Run(path, label, rounds, made={name: values[name] for name in ALIKE if name in values})
    return run if run.metric is None else dataclasses.replace(run, task=_task_of(path, values))


def _task_of(path: Path, recipe: Mapping[str, Any]) -> str:
    """The task that a run names: in the head of a network, or in its recipe."""
    heads = (json_values(file) for file in sorted(path.glob('round-*/model/head.json')))
    for values in (*heads, recipe):
        task = values.get('task') if isinstance(values, dict) else None
        if isinstance(task, str):
            return Path(task).stem if task.endswith('.json') else task
    return ''


def size_table(runs: Sequence[Run]) -> str:
    """The networks of comparable runs by size, as Markdown: with their held-out losses, or their scores on a
    task in percent.
    """
    if runs[0].metric is None:
        names, digits = MEASURED, 3
        head = ['MLM loss after the cut', 'recovered', 'MLM accuracy', 'NSP accuracy']
    else:
        names, digits = ('value',), 2
        head = [f'{runs[0].quantity} after the cut', 'at the end']
    rows = []
    for run in runs:
        for row in run.rounds:
            measured = [value_of(row.after_cut), *(getattr(row.recovered, name, None) for name in names)]
            texts = ['' if one is None else f'{one:.{digits}f}' for one in measured]
            share = row.parameters / run.rounds[0].parameters
            rows.append((run.label, in_millions(row.parameters), f'{share:.1%}', *texts))
    return markdown_table(['run', 'parameters', 'of the first', *head], rows) + '\n'


# Gates


def read_gates(run: Run) -> list[tuple[int, Letters]]:
    """The trained gates of every round, over all layers; rounds whose gates were not trained or not kept are
    left out. ValueError if ``alphas.npz`` and ``selection.json`` cannot be read or do not belong together.
    """
    rounds = []
    for row in run.rounds[1:]:
        directory = run.path / f'round-{row.round}'
        if not (directory / 'alphas.npz').is_file():  # a record without the arrays of its run
            continue
        alphas, _ = read_alphas(directory / 'alphas.npz')
        kept = read_selection(directory / 'selection.json').kept
        if not alphas.keys() <= kept.keys():
            raise ValueError(f'{directory}: alphas.npz and selection.json are not those of a cut')
        if all((values == 1).all() for values in alphas.values()):
            continue
        stays = {key: np.isin(np.arange(len(values)), kept[key]) for key, values in alphas.items()}
        by_letter = {}
        for letter in LETTERS:
            keys_of = [key for key in alphas if key[0] == letter]
            if keys_of:
                values, mask = (np.concatenate([part[key] for key in keys_of]) for part in (alphas, stays))
                by_letter[letter] = (values[mask], values[~mask])
        rounds.append((row.round, by_letter))
    return rounds


# Networks beside each other


def weights_checksum(directory: Path) -> str | None:
    """The SHA-256 of the weights of a model directory; of one whose weights were not kept, that of its
    manifest; None if that was not kept either.
    """
    weights, manifest = directory / WEIGHTS, directory / MANIFEST
    if weights.is_file():
        return sha256(weights)
    try:
        return str(read_sealed(manifest)['files'][WEIGHTS]['sha256']) if manifest.is_file() else None
    except (KeyError, TypeError) as error:
        raise ValueError(f'{manifest}: not the manifest of a network ({error!s:.200})') from error


@dataclasses.dataclass(frozen=True)
class Score:
    """A network's score on a task over the seeds of fine-tuning, and the majority class's, in percent.

    A score that a pruning run measured has as `start` that of the network that went into this run. A mean
    over held-out instances may have `right`, their marks for each seed, as of `runs.progress.marked`; a score
    of fine-tuning has `made`, the settings and numbers of instances that it was made with.
    """

    mean: float
    std: float | None = None
    majority: float | None = None
    start: float | None = None
    right: tuple[str, ...] = ()
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def difference_error(self, other: Score) -> float | None:
        """The standard error of the difference of two scores, in percentage points, taken instance by
        instance as means over the seeds; None if the marks of either are not known, or of other instances.
        """
        return paired_error((), self.right, other.right)

    def text(self) -> str:
        """For people."""
        return score_text(self.mean, self.std, majority=self.majority)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A network with its sizes and measurements.

    Parameters
    ----------
    directory : Path, optional
        A model directory, perhaps without its weights.
    mlm_loss : float, optional
        On held-out text, in nats per masked token.
    scores : mapping of str to Score
        By task and metric: ``SST-2 accuracy``.
    model_sha256 : str, optional
        The checksum of the weights, where a result of fine-tuning has said it.
    base : str, optional
        The label of the network that went into its run; None of a network that no run has made.
    made : mapping
        With what its run made it, as in `Run`.
    """

    label: str
    architecture: Architecture
    directory: Path | None = None
    mlm_loss: float | None = None
    scores: Mapping[str, Score] = dataclasses.field(default_factory=dict)
    latency_ms: float | None = None
    model_sha256: str | None = None
    base: str | None = None
    made: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Of embeddings and encoder."""
        return int(ParameterCost().cost(self.architecture))

    @property
    def flops(self) -> int:
        """Of a forward pass over `LENGTH` tokens."""
        return int(sum(count_flops(self.architecture, LENGTH).values()))

    @property
    def file_bytes(self) -> int | None:
        """The size of the file of weights; None where there is none."""
        path = None if self.directory is None else self.directory / WEIGHTS
        return path.stat().st_size if path is not None and path.is_file() else None

    def sha256(self) -> str | None:
        """The checksum of the weights; None where neither the directory nor a result says it."""
        return (None if self.directory is None else weights_checksum(self.directory)) or self.model_sha256

    def may_be(self, other: Measured) -> bool:
        """Whether two networks that went into runs are one, as far as it is known."""
        if self.architecture != other.architecture:
            return False
        if self.model_sha256 and other.model_sha256:
            return self.model_sha256 == other.model_sha256
        losses = {network.mlm_loss for network in (self, other)} - {None}
        both = self.scores.keys() & other.scores.keys()
        return len(losses) < 2 and all(self.scores[name] == other.scores[name] for name in both)


def unequal(own: Score | Measured, other: Score | Measured) -> list[str]:
    """Settings of another score or measurement that this one does not share, as ``limit 600 for 2000``; none
    if it is not known of both.
    """
    if not (own.made and other.made):
        return []
    pairs = ((name, other.made.get(name), own.made.get(name)) for name in {**own.made, **other.made})
    return [f'{name} {one} for {first}' for name, one, first in pairs if one != first]


def networks_of_runs(runs: Sequence[Run]) -> list[Measured]:
    """Inputs and outputs of the runs; an input of several runs is there once.

    Networks that went in are the same if widths and checksums are equal; where one of the checksums is not
    known, if nothing that was measured of both differs.

    Of a single run for a task every round is a network of its own; of other runs the last round counts.
    """
    bases: list[Measured] = []
    pruned: list[Measured] = []
    for run in runs:
        first, *later = (_measured(run, place) for place in range(len(run.rounds)))
        label = f'base of {run.label}' if bases else 'base'
        first = dataclasses.replace(first, label=label, model_sha256=first.sha256())
        place = next((i for i, base in enumerate(bases) if base.may_be(first)), len(bases))
        if place == len(bases):
            bases.append(first)
        else:
            base = bases[place]
            known = base if base.model_sha256 else first
            bases[place] = dataclasses.replace(
                base,
                directory=known.directory,
                model_sha256=known.model_sha256,
                mlm_loss=first.mlm_loss if base.mlm_loss is None else base.mlm_loss,
                scores={**first.scores, **base.scores},
            )
        whole = len(runs) == 1 and run.metric is not None and len(later) > 1
        for number, network in list(enumerate(later, start=1))[0 if whole else -1 :]:
            label = f'{run.label}, round {run.rounds[number].round}' if whole else run.label
            pruned.append(dataclasses.replace(network, label=label, base=bases[place].label, made=run.made))
    return bases + pruned


def _measured(run: Run, place: int) -> Measured:
    """The network of a round, with what was measured at its end."""
    row = run.rounds[place]
    scores, loss = {}, None
    if isinstance(row.recovered, TaskScores):
        start = value_of(run.rounds[0].recovered)
        right = (row.recovered.right,) if row.recovered.right else ()
        majority = row.recovered.majority
        scores[run.quantity] = Score(row.recovered.value, majority=majority, start=start, right=right)
    elif row.recovered is not None:
        loss = row.recovered.mlm_loss
    return Measured(run.label, row.architecture, run.path / f'round-{row.round}' / 'model', loss, scores)


def with_model(networks: Sequence[Measured], model: Measured) -> list[Measured]:
    """The networks and one more, unless it is one of them."""
    known = any(network.architecture == model.architecture for network in networks)
    return [*networks, *([] if known else [model])]


# Of the recipe of fine-tuning, what does not say how a network was fine-tuned.
_INCIDENTAL = {
    *('output', 'model', 'data', 'results', 'resume', 'seeds', 'task', 'version', 'evaluation_tokens'),
    *('log_every', 'checkpoint_every', 'keep', 'accumulate', 'compression'),
}


def read_result(path: Path) -> FineTuningResult | None:
    """The result of fine-tuning in a file, or in the directory of its run; None if there is none, and
    ValueError if it is damaged.
    """
    file = path / RESULT if path.is_dir() else path
    values = json_values(file) if file.is_file() and file.suffix == '.json' else None
    of_tuning = isinstance(values, dict) and values.get('format') == RESULT_FORMAT
    return FineTuningResult.from_dict(values, source=str(file)) if of_tuning else None


def _made(result: FineTuningResult) -> dict[str, Any]:
    """Settings and data that a score was made with, of the values of a result file."""
    chosen = {'learning_rate'} if result.recipe.get('learning_rates') else set()
    settings = {name: value for name, value in result.recipe.items() if name not in _INCIDENTAL | chosen}
    return {**{f'{part} instances': count for part, count in result.samples.items()}, **settings}


def with_result(networks: Sequence[Measured], label: str, result: FineTuningResult) -> list[Measured]:
    """The networks with the scores of a result of fine-tuning, which may bring a network of its own.

    The result belongs to the network of its architecture whose weights have the checksum that it states, or
    else to the first of which this is not known.

    Parameters
    ----------
    label : str
        Of a network that only this result knows.
    result : FineTuningResult
        ValueError if its network has this score already.
    """
    architecture = Architecture.from_dict(result.architecture, source=label)
    metric, checksum = result.metric, result.model_sha256
    marks = tuple((run.right or {}).get(metric.rpartition('/')[0], '') for run in result.runs)
    score = Score(
        result.mean[metric],
        result.std[metric],
        (result.majority or {}).get(metric),
        right=marks if all(marks) else (),
        made=_made(result),
    )
    name = quantity_name(result.task, metric)
    if any(name in network.scores and network.scores[name].start is not None for network in networks):
        name = f'{name}, fine-tuned'  # beside what pruning measured
    known = {i: one.sha256() for i, one in enumerate(networks) if one.architecture == architecture}
    same = [i for i, own in known.items() if own == checksum]
    possible = [i for i, own in known.items() if own is None]
    place = next(iter(same + possible), None)
    if place is None:
        return [*networks, Measured(label, architecture, scores={name: score}, model_sha256=checksum)]
    old = networks[place]
    if name in old.scores:
        raise ValueError(f'{label}: a second result of {old.label} for {name}; give one of them')
    scores = {**old.scores, name: score}
    new = dataclasses.replace(old, scores=scores, model_sha256=old.model_sha256 or checksum)
    return [new if i == place else network for i, network in enumerate(networks)]
