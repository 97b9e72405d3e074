"""The networks of a page: their sizes, and what runs and results of fine-tuning measured of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from ..runs.files import sha256
from ..runs.progress import difference_error, score_text
from .pruned import Run, score_name, value_of
from .sections import read_json

LENGTH = 128  # tokens of the sequence whose FLOPs and time are compared
WEIGHTS = 'model.params'  # of a model directory


def weights_checksum(directory: Path) -> Optional[str]:
    """The SHA-256 of the weights of a model directory; of one whose weights were not kept, what its manifest
    says; None if that was not kept either.
    """
    weights, manifest = directory / WEIGHTS, directory / 'manifest.json'
    if weights.is_file():
        return sha256(weights)
    try:
        return str(read_json(manifest)['files'][WEIGHTS]['sha256']) if manifest.is_file() else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f'{manifest}: not the manifest of a network ({error!s:.200})') from error


@dataclasses.dataclass(frozen=True)
class Score:
    """A network's score on a task over the seeds of fine-tuning, and the majority class's, in percent.

    A score that a pruning run measured has as `start` that of the network that went into this run. An
    accuracy of fine-tuning may have `right`, a text for each seed: 1 for every held-out instance that was
    answered right, 0 for every other.
    """

    mean: float
    std: Optional[float] = None
    majority: Optional[float] = None
    start: Optional[float] = None
    right: Tuple[str, ...] = ()

    def difference_error(self, other: Score) -> Optional[float]:
        """The standard error of the difference of two accuracies, in percentage points, taken instance by
        instance as means over the seeds; None if what either has right is not known, or of other instances.
        """
        same = len({len(marks) for marks in (*self.right, *other.right)}) == 1
        if not self.right or not other.right or not same:
            return None
        return difference_error(_shares_of(self.right), _shares_of(other.right))

    def text(self) -> str:
        """For people."""
        return score_text(self.mean, self.std, majority=self.majority)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is known of a network.

    Parameters
    ----------
    label : str
    architecture : Architecture
    directory : Path, optional
        A model directory, perhaps without its weights.
    mlm_loss : float, optional
        On held-out text, in nats per masked token.
    scores : mapping of str to Score
        By task and metric: ``SST-2 accuracy``.
    latency_ms : float, optional
    model_sha256 : str, optional
        The checksum of the weights, where a result of fine-tuning has said it.
    base : str, optional
        The label of the network that went into its run; None of a network that no run has made.
    """

    label: str
    architecture: Architecture
    directory: Optional[Path] = None
    mlm_loss: Optional[float] = None
    scores: Mapping[str, Score] = dataclasses.field(default_factory=dict)
    latency_ms: Optional[float] = None
    model_sha256: Optional[str] = None
    base: Optional[str] = None

    @property
    def parameters(self) -> int:
        """Of embeddings and encoder."""
        return int(ParameterCost().cost(self.architecture))

    @property
    def flops(self) -> int:
        """Of a forward pass over `LENGTH` tokens."""
        return int(sum(count_flops(self.architecture, LENGTH).values()))

    @property
    def file_bytes(self) -> Optional[int]:
        """The size of the file of weights; None where there is none."""
        path = None if self.directory is None else self.directory / WEIGHTS
        return path.stat().st_size if path is not None and path.is_file() else None

    def sha256(self) -> Optional[str]:
        """The checksum of the weights; None where neither the directory nor a result says it."""
        return (None if self.directory is None else weights_checksum(self.directory)) or self.model_sha256


def networks_of_runs(runs: Sequence[Run]) -> List[Measured]:
    """What went into the runs, and what came out of each; what went into several runs is there once.

    Networks that went in are the same if widths and checksums are equal; where one of the checksums is not
    known, if nothing that was measured of both differs.

    Of a single run for a task every round is a network of its own; of other runs the last round counts.
    """
    bases: List[Measured] = []
    pruned: List[Measured] = []
    for run in runs:
        first, *later = (_measured(run, place) for place in range(len(run.rounds)))
        first = dataclasses.replace(
            first, label=f'base of {run.label}' if bases else 'base', model_sha256=first.sha256()
        )
        place = next((i for i, base in enumerate(bases) if _may_be_same(base, first)), len(bases))
        if place < len(bases):
            bases[place] = _joined(bases[place], first)
        else:
            bases.append(first)
        whole = len(runs) == 1 and run.metric is not None and len(later) > 1
        for number, network in list(enumerate(later, start=1))[0 if whole else -1 :]:
            label = f'{run.label}, round {run.rounds[number]["round"]}' if whole else run.label
            pruned.append(dataclasses.replace(network, label=label, base=bases[place].label))
    return bases + pruned


def _may_be_same(one: Measured, other: Measured) -> bool:
    """Whether two networks that went into runs are one, as far as it is known."""
    if one.architecture != other.architecture:
        return False
    if one.model_sha256 and other.model_sha256:
        return one.model_sha256 == other.model_sha256
    losses = {network.mlm_loss for network in (one, other)} - {None}
    alike = all(one.scores[name] == other.scores[name] for name in one.scores.keys() & other.scores.keys())
    return len(losses) < 2 and alike


def _joined(one: Measured, other: Measured) -> Measured:
    """A network with what is known of it from another run, too."""
    known = one if one.model_sha256 else other
    return dataclasses.replace(
        one,
        directory=known.directory,
        model_sha256=known.model_sha256,
        mlm_loss=other.mlm_loss if one.mlm_loss is None else one.mlm_loss,
        scores={**other.scores, **one.scores},
    )


def _measured(run: Run, place: int) -> Measured:
    """The network of a round, with what was measured at its end."""
    row = run.rounds[place]
    recovered = row['recovered'] or {}
    scores = {}
    if 'metric' in recovered:
        start = value_of(run.rounds[0]['recovered'])
        scores[run.quantity] = Score(recovered['scores'][recovered['metric']], start=start)
    architecture = run.networks()[place].architecture
    model = run.path / f'round-{row["round"]}' / 'model'
    return Measured(run.label, architecture, model, recovered.get('mlm_loss'), scores)


def with_model(networks: Sequence[Measured], model: Measured) -> List[Measured]:
    """The networks and one more, unless it is one of them."""
    known = any(network.architecture == model.architecture for network in networks)
    return [*networks, *([] if known else [model])]


def with_result(networks: Sequence[Measured], label: str, result: Mapping[str, Any]) -> List[Measured]:
    """The networks with the scores of a result of fine-tuning, which may bring a network of its own.

    The result belongs to the network of its architecture whose weights have the checksum that it states, or
    else to the first of which this is not known.

    Parameters
    ----------
    networks : sequence of Measured
    label : str
        Of a network that only this result knows.
    result : mapping
        The values of a result file. One without an architecture is passed over.

    Raises
    ------
    ValueError
        If its network has this score already.
    """
    if not isinstance(result.get('architecture'), dict) or not result['architecture']:
        return list(networks)
    architecture = Architecture.from_dict(result['architecture'], source=label)
    name, score = _score_of(result)
    if any(name in network.scores and network.scores[name].start is not None for network in networks):
        name = f'{name}, fine-tuned'  # beside what pruning measured
    sha256 = result.get('model_sha256')
    place = _place_of(networks, architecture, sha256)
    if place is None:
        return [*networks, Measured(label, architecture, scores={name: score}, model_sha256=sha256)]
    old = networks[place]
    if name in old.scores:
        raise ValueError(f'{label}: a second result of {old.label} for {name}; give one of them')
    scores = {**old.scores, name: score}
    new = dataclasses.replace(old, scores=scores, model_sha256=old.model_sha256 or sha256)
    return [new if i == place else network for i, network in enumerate(networks)]


def _place_of(
    networks: Sequence[Measured], architecture: Architecture, sha256: Optional[str]
) -> Optional[int]:
    """The place of the network with these weights, or of one that may have them; None if there is none."""
    known = {i: one.sha256() for i, one in enumerate(networks) if one.architecture == architecture}
    same = [i for i, own in known.items() if own == sha256]
    possible = [i for i, own in known.items() if own is None or sha256 is None]
    return next(iter(same + possible), None)


def _shares_of(right: Sequence[str]) -> np.ndarray:
    """The share of the seeds that answered each instance right."""
    return np.mean([[mark == '1' for mark in marks] for marks in right], axis=0)


def _score_of(result: Mapping[str, Any]) -> Tuple[str, Score]:
    """The score that counts of a result, by its task and metric."""
    metric = result['metric']
    majority = (result.get('majority') or {}).get(metric)
    held_out = str(metric).rpartition('/')[0]
    marks = [(run.get('right') or {}).get(held_out) for run in result.get('runs', ())]
    right = tuple(marks) if all(isinstance(one, str) and one for one in marks) else ()
    score = Score(result['mean'][metric], result['std'][metric], majority, right=right)
    return score_name(str(result['task']), str(metric)), score


def with_times(networks: Sequence[Measured], times: Mapping[int, float]) -> List[Measured]:
    """The networks with their milliseconds; `times` has them by place in the sequence."""
    return [
        dataclasses.replace(network, latency_ms=times.get(place)) for place, network in enumerate(networks)
    ]
