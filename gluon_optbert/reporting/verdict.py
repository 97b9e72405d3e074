"""How much worse, how much faster: pruned networks beside the network that they were cut from."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Optional, Sequence

from ..runs.progress import NOTE, exceeds, score_text
from .figures import in_millions
from .measured import LENGTH, Measured, Score
from .page import Html, Noted, joined, table, tag

ERROR_OF_DIFFERENCE = (
    'The standard error of a difference of scores is taken over the held-out instances, one by one. How far '
    'another seed would move a score is not in it.'
)
HOW_TO_SCORE = (
    'No task was scored on both: fine-tune the base and the pruned network alike, and give both outputs to '
    'this command.'
)


@dataclasses.dataclass(frozen=True)
class Timing:
    """How times were measured, in words, and whether the machine was busy with other work."""

    how: str = ''
    busy: bool = False


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


def percent(value: Optional[float], of: Optional[float]) -> Optional[str]:
    """One number as a share of another; None if one is not known."""
    return None if value is None or not of else f'{value / of:.0%}'.replace('%', ' %')


def _row(name: str, texts: Sequence[Optional[str]], notes: Sequence[Optional[str]] = ()) -> List[Any]:
    """A row of the table: the base's text, and those of the others with their notes below."""
    below = [None, *notes] if notes else [None] * len(texts)
    return [name, *(None if text is None else Noted(text, note) for text, note in zip(texts, below))]


def bases_of(networks: Sequence[Measured]) -> List[Optional[int]]:
    """For every network the place of the one that it is compared with: what went into its own run, or else
    the first; None of what went into a run.
    """
    places = {network.label: i for i, network in reversed(list(enumerate(networks)))}
    own = [places.get(network.base) for network in networks]
    return [None if i == 0 or i in own else base or 0 for i, base in enumerate(own)]


def _shares(
    name: str, values: Sequence[Optional[float]], bases: Sequence[Optional[int]], form: Callable[[float], str]
) -> List[Any]:
    """A row of the table, each number with its share of its base's."""
    texts = [None if value is None else form(value) for value in values]
    return _row(name, texts, _percents(values, bases))


def _percents(values: Sequence[Optional[float]], bases: Sequence[Optional[int]]) -> List[Optional[str]]:
    """The share of each number but the first in that of its base."""
    pairs = list(zip(values, bases))[1:]
    return [None if base is None else percent(value, values[base]) for value, base in pairs]


def verdict_rows(base: Measured, others: Sequence[Measured]) -> List[List[Any]]:
    """The rows of the table: a measure, the base, and every other network with its share of its base."""
    networks = (base, *others)
    bases = bases_of(networks)
    rows = [
        _shares('parameters', [n.parameters for n in networks], bases, in_millions),
        _shares(
            f'FLOPs of {LENGTH} tokens',
            [n.flops for n in networks],
            bases,
            lambda flops: f'{flops / 1e9:.3g} G',
        ),
    ]
    sizes = [n.file_bytes for n in networks]
    if sizes[0] is not None and any(sizes[1:]):
        rows.append(_shares('file of weights', sizes, bases, lambda size: f'{size / 1e6:.3g} MB'))
    times = [n.latency_ms for n in networks]
    if times[0] is not None:
        rows.append(_shares('time', times, bases, lambda time: f'{time:.3g} ms'))
    losses = [n.mlm_loss for n in networks]
    of_bases = [None if place is None else losses[place] for place in bases]
    if losses[0] is not None or any(loss is not None for loss in of_bases):
        texts = [None if loss is None else f'{loss:.3f}' for loss in losses]
        more = [None if None in pair else f'{pair[0] - pair[1]:+.3f}' for pair in zip(losses, of_bases)]
        rows.append(_row('MLM loss', texts, more[1:]))
    for name in _tasks(networks):
        rows += _score_rows(name, networks, bases)
    return rows


def _score_rows(name: str, networks: Sequence[Measured], bases: Sequence[Optional[int]]) -> List[List[Any]]:
    """The scores on a task, and that of the majority class where it is known."""
    scores = [network.scores.get(name) for network in networks]
    means = [None if score is None else score.mean for score in scores]
    texts = [None if score is None else score.text() for score in scores]
    rows = [_row(name, texts, _percents(means, bases))]
    majority = next((s.majority for s in scores if s is not None and s.majority is not None), None)
    if majority is not None:
        rows.append(_row('majority class', [score_text(majority)] * len(networks)))
    return rows


def _tasks(networks: Sequence[Measured]) -> List[str]:
    """Every task that a network was scored on."""
    return list(dict.fromkeys(name for network in networks for name in network.scores))


def sentence(base: Measured, network: Measured, *, busy: bool = False, called: str = 'the base') -> str:
    """How much smaller, faster and worse a network is, in words; busy is the machine that was timed."""
    parameters = percent(network.parameters, base.parameters)
    flops = percent(network.flops, base.flops)
    parts = [f'{network.label} has {parameters} of the parameters of {called} and {flops} of its FLOPs']
    if base.latency_ms and network.latency_ms:
        ratio = base.latency_ms / network.latency_ms
        parts.append(_speed(ratio) + (' (timed on a busy machine)' if busy else ''))
    parts += [
        _compared(name, base.scores[name], score, called)
        for name, score in network.scores.items()
        if name in base.scores
    ]
    return (', '.join(parts[:-1]) + ', and ' if len(parts) > 1 else '') + parts[-1] + '.'


def _speed(ratio: float) -> str:
    """The base's time over a network's, in words."""
    if abs(ratio - 1) < 0.05:
        return 'is about as fast'
    return f'is {ratio:.2g} times as fast' if ratio > 1 else f'takes {1 / ratio:.2g} times as long'


def _compared(name: str, own: Score, score: Score, called: str) -> str:
    """What is lost on a task, in words; `own` is the base's score."""
    base = own.mean if score.start is None else score.start
    points = score.mean - base
    error = own.difference_error(score)
    certainty = '' if error is None else f' (standard error {error:.1f})'
    lost = f'{abs(points):.1f} points {"less" if points < 0 else "more"}{certainty}'
    majority = '' if score.majority is None else f', the majority class {score.majority:.1f}'
    poor = '' if exceeds(score.mean, score.majority) else ', so it has learnt nothing of this task'
    return f'scores {lost} on {name}: {score.mean:.1f}, {called} {base:.1f}{majority}{poor}'


def _notes(networks: Sequence[Measured]) -> List[str]:
    """What the numbers below others are, and the units."""
    for_tasks = any(score.start is not None for network in networks for score in network.scores.values())
    if for_tasks and all(network.mlm_loss is None for network in networks):
        return ['Below a number: its share of the base. Sizes count embeddings and encoder.']
    return [
        'Below a number: its share of the base, of a loss its difference. Sizes count embeddings and '
        'encoder. MLM loss is on held-out text, in nats per masked token.'
    ]


def _notes_on_scores(networks: Sequence[Measured]) -> List[str]:
    """How the scores were measured."""
    scores = [score for network in networks for score in network.scores.values()]
    notes = []
    if any(score.start is not None for score in scores):
        notes.append('Scores of pruning runs are percent, of one run each, on held-out instances.')
    if any(score.start is None for score in scores):
        notes.append(f'Scores are percent, mean ± deviation over the seeds of fine-tuning. {NOTE}.')
    if _began_with_several(networks):
        notes.append('The runs began with several networks; each is compared with that of its own run.')
    return notes


def _began_with_several(networks: Sequence[Measured]) -> bool:
    return len({network.base for network in networks if network.base is not None}) > 1


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
    ordered = (base, *others)
    pairs = [(ordered[i], one) for i, one in zip(bases_of(ordered), ordered) if i is not None]
    scored = any(set(own.scores) & set(network.scores) for own, network in pairs)
    certain = any(
        own.scores[name].difference_error(score) is not None
        for own, network in pairs
        for name, score in network.scores.items()
        if name in own.scores
    )
    called = 'its base' if _began_with_several(networks) else 'the base'
    notes = [*_notes(networks), timing.how, *_notes_on_scores(networks)]
    notes += [ERROR_OF_DIFFERENCE if certain else '', '' if scored else HOW_TO_SCORE]
    heads = ['', base.label, *(network.label for network in others)]
    return joined(
        [
            *(
                tag('p', sentence(own, network, busy=timing.busy, called=called), class_='verdict')
                for own, network in pairs
            ),
            table(heads, verdict_rows(base, others)),
            *(tag('p', note, class_='note') for note in notes if note),
        ]
    )
