"""How much worse, how much faster: pruned networks beside the network that they were cut from."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost, count_flops
from ..runs.scores import NOTE, exceeds, score_text
from .figures import in_millions
from .page import Html, Noted, joined, table, tag
from .pruned import Run

LENGTH = 128  # tokens of the sequence whose FLOPs and time are compared
WEIGHTS = 'model.params'  # of a model directory
HOW_TO_SCORE = (
    'No task was scored on both: fine-tune the base and the pruned network alike, and give both outputs to '
    'this command.'
)


@dataclasses.dataclass(frozen=True)
class Score:
    """A network's score on a task over the seeds of fine-tuning, and the majority class's, in percent."""

    mean: float
    std: Optional[float] = None
    majority: Optional[float] = None

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
        A model directory with its weights.
    mlm_loss : float, optional
        On held-out text, in nats per masked token.
    scores : mapping of str to Score
        By task and metric: ``SST-2 accuracy``.
    latency_ms : float, optional
    """

    label: str
    architecture: Architecture
    directory: Optional[Path] = None
    mlm_loss: Optional[float] = None
    scores: Mapping[str, Score] = dataclasses.field(default_factory=dict)
    latency_ms: Optional[float] = None

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
        """The checksum of the file of weights; None where there is none."""
        if self.file_bytes is None or self.directory is None:
            return None
        return hashlib.sha256((self.directory / WEIGHTS).read_bytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Timing:
    """How times were measured, in words, and whether the machine was busy with other work."""

    how: str = ''
    busy: bool = False


def networks_of_runs(runs: Sequence[Run]) -> List[Measured]:
    """What went into the runs, and what came out of each; equal ones that went in are one network."""
    bases: List[Measured] = []
    pruned: List[Measured] = []
    for run in runs:
        first, *_, last = run.networks() * (2 if len(run.rounds) == 1 else 1)
        losses = [(row['recovered'] or {}).get('mlm_loss') for row in (run.rounds[0], run.rounds[-1])]
        if first.architecture not in [base.architecture for base in bases]:
            label = 'base' if not bases else f'base of {run.label}'
            bases.append(Measured(label, first.architecture, run.path / 'round-0' / 'model', losses[0]))
        if len(run.rounds) > 1:
            model = run.path / f'round-{run.rounds[-1]["round"]}' / 'model'
            pruned.append(Measured(run.label, last.architecture, model, losses[1]))
    return bases + pruned


def with_model(networks: Sequence[Measured], model: Measured) -> List[Measured]:
    """The networks and one more, unless it is one of them."""
    known = any(network.architecture == model.architecture for network in networks)
    return [*networks, *([] if known else [model])]


def with_result(networks: Sequence[Measured], label: str, result: Mapping[str, Any]) -> List[Measured]:
    """The networks with the scores of a result of fine-tuning, which may bring a network of its own.

    Parameters
    ----------
    networks : sequence of Measured
    label : str
        Of a network that only this result knows.
    result : mapping
        The values of a result file. One without an architecture is passed over.
    """
    if not isinstance(result.get('architecture'), dict) or not result['architecture']:
        return list(networks)
    architecture = Architecture.from_dict(result['architecture'], source=label)
    name, score = _score_of(result)
    places = [i for i, network in enumerate(networks) if network.architecture == architecture]
    if len(places) > 1:  # such as two runs that cut evenly
        same = [i for i in places if networks[i].sha256() == result.get('model_sha256')]
        places = same or places
    if not places:
        return [*networks, Measured(label, architecture, scores={name: score})]
    old = networks[places[0]]
    new = dataclasses.replace(old, scores={**old.scores, name: score})
    return [new if i == places[0] else network for i, network in enumerate(networks)]


def _score_of(result: Mapping[str, Any]) -> Tuple[str, Score]:
    """The score that counts of a result, by its task and metric."""
    metric = result['metric']
    majority = (result.get('majority') or {}).get(metric)
    score = Score(result['mean'][metric], result['std'][metric], majority)
    part, _, name = str(metric).partition('/')
    return f'{result["task"]} {name.replace("_", " ")}' + ('' if part == 'dev' else f' ({part})'), score


def base_of(networks: Sequence[Measured]) -> Optional[Measured]:
    """The network that the others are compared with: what went into the first run, or the largest; None of
    less than two networks, and where none is smaller.
    """
    if len(networks) < 2:
        return None
    base = networks[0]
    if base.label != 'base':
        base = max(networks, key=lambda network: network.parameters)
    return base if any(network.parameters < base.parameters for network in networks) else None


def with_times(networks: Sequence[Measured], times: Mapping[int, float]) -> List[Measured]:
    """The networks with their milliseconds; `times` has them by place in the sequence."""
    return [
        dataclasses.replace(network, latency_ms=times.get(place)) for place, network in enumerate(networks)
    ]


def percent(value: Optional[float], of: Optional[float]) -> Optional[str]:
    """One number as a share of another; None if one is not known."""
    return None if value is None or not of else f'{value / of:.0%}'.replace('%', ' %')


def _row(name: str, texts: Sequence[Optional[str]], notes: Sequence[Optional[str]] = ()) -> List[Any]:
    """A row of the table: the base's text, and those of the others with their notes below."""
    below = [None, *notes] if notes else [None] * len(texts)
    return [name, *(None if text is None else Noted(text, note) for text, note in zip(texts, below))]


def _shares(name: str, values: Sequence[Optional[float]], form: Callable[[float], str]) -> List[Any]:
    """A row of the table, each number with its share of the base's, the first."""
    texts = [None if value is None else form(value) for value in values]
    return _row(name, texts, [percent(value, values[0]) for value in values[1:]])


def verdict_rows(base: Measured, others: Sequence[Measured]) -> List[List[Any]]:
    """The rows of the table: a measure, the base, and every other network with its share of the base."""
    networks = (base, *others)
    rows = [
        _shares('parameters', [n.parameters for n in networks], in_millions),
        _shares(
            f'FLOPs of {LENGTH} tokens', [n.flops for n in networks], lambda flops: f'{flops / 1e9:.3g} G'
        ),
    ]
    sizes = [n.file_bytes for n in networks]
    if sizes[0] is not None and any(sizes[1:]):
        rows.append(_shares('file of weights', sizes, lambda size: f'{size / 1e6:.3g} MB'))
    times = [n.latency_ms for n in networks]
    if times[0] is not None:
        rows.append(_shares('time', times, lambda time: f'{time:.3g} ms'))
    losses = [n.mlm_loss for n in networks]
    if losses[0] is not None:
        texts = [None if loss is None else f'{loss:.3f}' for loss in losses]
        more = [None if loss is None else f'{loss - losses[0]:+.3f}' for loss in losses[1:]]
        rows.append(_row('MLM loss', texts, more))
    for name in _tasks(networks):
        rows += _score_rows(name, networks)
    return rows


def _score_rows(name: str, networks: Sequence[Measured]) -> List[List[Any]]:
    """The scores on a task, and that of the majority class where it is known."""
    scores = [network.scores.get(name) for network in networks]
    means = [None if score is None else score.mean for score in scores]
    texts = [None if score is None else score.text() for score in scores]
    rows = [_row(name, texts, [percent(mean, means[0]) for mean in means[1:]])]
    majority = next((s.majority for s in scores if s is not None and s.majority is not None), None)
    if majority is not None:
        rows.append(_row('majority class', [score_text(majority)] * len(networks)))
    return rows


def _tasks(networks: Sequence[Measured]) -> List[str]:
    """Every task that a network was scored on."""
    return list(dict.fromkeys(name for network in networks for name in network.scores))


def sentence(base: Measured, network: Measured, *, busy: bool = False) -> str:
    """How much smaller, faster and worse a network is, in words; busy is the machine that was timed."""
    parameters = percent(network.parameters, base.parameters)
    flops = percent(network.flops, base.flops)
    parts = [f'{network.label} has {parameters} of the parameters of the base and {flops} of its FLOPs']
    if base.latency_ms and network.latency_ms:
        ratio = base.latency_ms / network.latency_ms
        parts.append(_speed(ratio) + (' (timed on a busy machine)' if busy else ''))
    parts += [
        _compared(name, base.scores[name], score)
        for name, score in network.scores.items()
        if name in base.scores
    ]
    return (', '.join(parts[:-1]) + ', and ' if len(parts) > 1 else '') + parts[-1] + '.'


def _speed(ratio: float) -> str:
    """The base's time over a network's, in words."""
    if abs(ratio - 1) < 0.05:
        return 'is about as fast'
    return f'is {ratio:.2g} times as fast' if ratio > 1 else f'takes {1 / ratio:.2g} times as long'


def _compared(name: str, base: Score, score: Score) -> str:
    """What is lost on a task, in words."""
    points = score.mean - base.mean
    lost = f'{abs(points):.1f} points {"less" if points < 0 else "more"}'
    majority = '' if score.majority is None else f', the majority class {score.majority:.1f}'
    poor = '' if exceeds(score.mean, score.majority) else ', so it has learnt nothing of this task'
    return f'scores {lost} on {name}: {score.mean:.1f}, the base {base.mean:.1f}{majority}{poor}'


def verdict(networks: Sequence[Measured], *, timing: Timing = Timing()) -> Optional[Html]:
    """How a page begins; None where there are not two networks of different size.

    Parameters
    ----------
    networks : sequence of Measured
    timing : Timing
        Of the times of the networks, if they have some.
    """
    base = base_of(networks)
    if base is None:
        return None
    others = [network for network in networks if network is not base]
    scored = any(set(base.scores) & set(network.scores) for network in others)
    notes = [
        'Below a number: its share of the base, of a loss its difference. Sizes count embeddings and '
        'encoder. '
        'MLM loss is on held-out text, in nats per masked token.',
        timing.how,
        f'Scores are percent, mean ± deviation over the seeds of fine-tuning. {NOTE}.'
        if _tasks(networks)
        else '',
        '' if scored else HOW_TO_SCORE,
    ]
    heads = ['', base.label, *(network.label for network in others)]
    return joined(
        [
            *(tag('p', sentence(base, network, busy=timing.busy), class_='verdict') for network in others),
            table(heads, verdict_rows(base, others)),
            *(tag('p', note, class_='note') for note in notes if note),
        ]
    )
