"""Verdict in words: pruned networks beside the network that they were cut from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from ..runs.progress import NOTE, exceeds, score_text
from .networks import LENGTH, Measured, Score, in_millions, unequal
from .page import Noted, element, joined, note, table

ERROR_OF_DIFFERENCE = (
    'The standard error of a difference of scores is taken over the held-out instances, one by one. How far '
    'another seed would move a score is not in it.'
)
UNEQUAL = 'Scores that were not made alike are not compared: fine-tune both networks with the same command.'
HOW_TO_SCORE = (
    'No task was scored on both: fine-tune the base and the pruned network alike, and give both outputs to '
    'this command.'
)


@dataclasses.dataclass(frozen=True)
class Timing:
    """The measurement of times in words, and whether the machine was busy with other work."""

    how: str = ''
    busy: bool = False


def base_of(networks: Sequence[Measured]) -> Measured | None:
    """The network that the others are compared with: what went into the first run, or the largest; None of
    less than two networks, and where none is smaller.
    """
    if len(networks) < 2:
        return None
    base = networks[0]
    if all(network.base != base.label for network in networks):  # no run began with it
        base = max(networks, key=lambda network: network.parameters)
    return base if any(network.parameters < base.parameters for network in networks) else None


def verdict(networks: Sequence[Measured], *, timing: Timing = Timing()) -> Markup | None:
    """The first sentence of a page; None where there are not two networks of different size."""
    base = base_of(networks)
    if base is None:
        return None
    ordered = (base, *(network for network in networks if network is not base))
    pairs = [(ordered[i], one) for i, one in zip(bases_of(ordered), ordered) if i is not None]
    both = [
        (own.scores[name], network.scores[name])
        for own, network in pairs
        for name in own.scores.keys() & network.scores.keys()
    ]
    certain = any(own.difference_error(score) is not None for own, score in both)
    several = len({network.base for network in networks if network.base is not None}) > 1
    called = 'its base' if several else 'the base'
    notes = [
        _note_on_sizes(networks),
        timing.how,
        *_notes_on_scores(networks),
        'The runs began with several networks; each is compared with that of its own run.' if several else '',
        ERROR_OF_DIFFERENCE if certain else '',
        '' if both else HOW_TO_SCORE,
        UNEQUAL if any(unequal(own, score) for own, score in both) else '',
    ]
    sentences = [sentence(own, network, busy=timing.busy, called=called) for own, network in pairs]
    return joined(
        *(element('p', text, kind='verdict') for text in (*sentences, *_of_other_runs(networks))),
        table(['', *(network.label for network in ordered)], verdict_rows(ordered)),
        *(note(text) for text in notes if text),
    )


def bases_of(networks: Sequence[Measured]) -> list[int | None]:
    """For every network the place of the one that it is compared with: what went into its own run, or else
    the first; None of what went into a run.
    """
    places = {network.label: i for i, network in reversed(list(enumerate(networks)))}
    own = [places.get(network.base) for network in networks]
    return [None if i == 0 or i in own else base or 0 for i, base in enumerate(own)]


def _percent(value: float, of: float) -> str | None:
    """One number as a share of another; None of nothing."""
    return f'{value / of:.0%}'.replace('%', ' %') if of else None


def verdict_rows(networks: Sequence[Measured]) -> list[list[Any]]:
    """The rows of the table: a measure, the first network, and every other with its share of its base."""
    bases = bases_of(networks)

    def of_score(score: Score, own: Score) -> str | None:
        return None if unequal(own, score) else _percent(score.mean, own.mean)

    def row(
        name: str,
        measured: Sequence[Any],
        form: Callable[[Any], str],
        beside: Callable[[Any, Any], str | None] = _percent,
    ) -> list[Any]:
        """`beside` says what stands below a value, of it and of its base's."""
        cells: list[Any] = [name]
        for value, place in zip(measured, bases):
            own = None if place is None else measured[place]
            below = None if value is None or own is None else beside(value, own)
            cells.append(None if value is None else Noted(form(value), below))
        return cells

    rows = [
        row('parameters', [one.parameters for one in networks], in_millions),
        row(f'FLOPs of {LENGTH} tokens', [one.flops for one in networks], lambda x: f'{x / 1e9:.3g} G'),
    ]
    sizes = [one.file_bytes for one in networks]
    if sizes[0] is not None and any(sizes[1:]):
        rows.append(row('file of weights', sizes, lambda size: f'{size / 1e6:.3g} MB'))
    times = [one.latency_ms for one in networks]
    if times[0] is not None:
        rows.append(row('time', times, lambda time: f'{time:.3g} ms'))
    losses = [one.mlm_loss for one in networks]
    if any(losses[place] is not None for place in {0, *bases} - {None}):
        rows.append(row('MLM loss', losses, '{:.3f}'.format, lambda loss, own: f'{loss - own:+.3f}'))
    for name in dict.fromkeys(name for network in networks for name in network.scores):
        scores = [network.scores.get(name) for network in networks]
        rows.append(row(name, scores, Score.text, of_score))
        majorities = [score.majority for score in scores if score is not None and score.majority is not None]
        if majorities:
            rows.append(['majority class', *[score_text(majorities[0])] * len(networks)])
    return rows


def sentence(base: Measured, network: Measured, *, busy: bool = False, called: str = 'the base') -> str:
    """A network's size, speed and score against another's, in words; busy is the machine that was timed."""
    parameters = _percent(network.parameters, base.parameters)
    flops = _percent(network.flops, base.flops)
    parts = [f'{network.label} has {parameters} of the parameters of {called} and {flops} of its FLOPs']
    if base.latency_ms and network.latency_ms:
        ratio = base.latency_ms / network.latency_ms
        if abs(ratio - 1) < 0.05:
            faster = 'is about as fast'
        else:
            faster = f'is {ratio:.2g} times as fast' if ratio > 1 else f'takes {1 / ratio:.2g} times as long'
        parts.append(faster + (' (timed on a busy machine)' if busy else ''))
    parts += [
        _compared(name, base.scores[name], score, called)
        for name, score in network.scores.items()
        if name in base.scores
    ]
    return (', '.join(parts[:-1]) + ', and ' if len(parts) > 1 else '') + parts[-1] + '.'


def _compared(name: str, own: Score, score: Score, called: str) -> str:
    """The points lost on a task, in words; `own` is the base's score."""
    differing = unequal(own, score)
    if differing:
        return f'its score on {name} is not compared, for it was made otherwise: {_some(differing)}'
    base = own.mean if score.start is None else score.start
    points = score.mean - base
    error = own.difference_error(score)
    certainty = '' if error is None else f' (standard error {error:.1f})'
    lost = f'{abs(points):.1f} points {"less" if points < 0 else "more"}{certainty}'
    majority = '' if score.majority is None else f', the majority class {score.majority:.1f}'
    poor = '' if exceeds(score.mean, score.majority) else ', so it has learnt nothing of this task'
    if not exceeds(base, score.majority):
        poor = f', so {called} had learnt nothing of this task that could be kept'
    return f'scores {lost} on {name}: {score.mean:.1f}, {called} {base:.1f}{majority}{poor}'


def _some(differing: Sequence[str]) -> str:
    """The first three of what differs, and how many more."""
    more = f' and {len(differing) - 3} more' if len(differing) > 3 else ''
    return f'{", ".join(differing[:3])}{more}'


def _of_other_runs(networks: Sequence[Measured]) -> list[str]:
    """Of every network whose run was not made as the first one of its kind, that the two are not compared.

    The method may differ, and with it the steps by which it ranks.
    """
    said, firsts = [], {}
    for network in (network for network in networks if network.made):
        first = firsts.setdefault('shards' in network.made, network)
        ways = {first.made.get('method'), network.made.get('method')}
        free = ('method ', 'alpha_steps ') if len(ways) > 1 else ()
        if differing := [one for one in unequal(first, network) if not one.startswith(free)]:
            said.append(
                f'{network.label} and {first.label} are not to be compared, for the runs were made '
                f'otherwise: {_some(differing)}.'
            )
    return said


def _note_on_sizes(networks: Sequence[Measured]) -> str:
    """The meaning of the numbers below others, and the units."""
    for_tasks = any(score.start is not None for network in networks for score in network.scores.values())
    if for_tasks and all(network.mlm_loss is None for network in networks):
        return 'Below a number: its share of the base. Sizes count embeddings and encoder.'
    return (
        'Below a number: its share of the base, of a loss its difference. Sizes count embeddings and '
        'encoder. MLM loss is on held-out text, in nats per masked token.'
    )


def _notes_on_scores(networks: Sequence[Measured]) -> list[str]:
    """The measurement of the scores, in words."""
    scores = [score for network in networks for score in network.scores.values()]
    notes = []
    if any(score.start is not None for score in scores):
        known = any(score.start is not None and score.majority is not None for score in scores)
        of_runs = 'Scores of pruning runs are percent, of one run each, on held-out instances.'
        notes.append(f'{of_runs} {NOTE}.' if known else of_runs)
    if any(score.start is None for score in scores):
        notes.append(f'Scores are percent, mean ± deviation over the seeds of fine-tuning. {NOTE}.')
    return notes
