"""Runs of two sides, seed by seed, beside each other: means, deviations, how they compare, and a table of it
all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.progress import MARK, NOTE, score_text, spread

SIDES = {'here': 'this package', 'peer': 'Transformers'}
LAST = {'scores': 'difference', 'seconds': 'ratio'}  # how the sides of a kind are compared


def _paired(runs: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Mapping[str, Any]]]:
    """The runs of both sides by seed, of the seeds that have both."""
    by_seed: dict[int, dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        by_seed.setdefault(run['seed'], {})[run['side']] = run
    return {seed: sides for seed, sides in sorted(by_seed.items()) if len(sides) == len(SIDES)}


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means, sample deviations and how they compare, over the seeds that have both sides.

    Returns
    -------
    dict
        ``seeds``; ``scores`` by name, with ``difference`` in points, here less there; ``seconds`` of
        ``training``, ``evaluation`` and ``total``, with ``ratio``, here over there: below 1 this package is
        faster. Empty if no seed has both.
    """
    paired = _paired(runs)
    if not paired:
        return {}

    def compared(kind: str, name: str) -> dict[str, Any]:
        found = {side: spread([sides[side][kind][name] for sides in paired.values()]) for side in SIDES}
        return {side: dict(zip(('mean', 'std'), own)) for side, own in found.items()}

    first = next(iter(paired.values()))['here']
    scores, seconds = ({name: compared(kind, name) for name in first[kind]} for kind in ('scores', 'seconds'))
    for sides in scores.values():
        sides['difference'] = sides['here']['mean'] - sides['peer']['mean']
    for sides in seconds.values():
        sides['ratio'] = sides['here']['mean'] / sides['peer']['mean']
    return {'seeds': list(paired), 'scores': scores, 'seconds': seconds}


def table(result: Mapping[str, Any]) -> str:
    """Scores in percent beside the majority class's, then seconds, seed by seed and over all, as Markdown."""
    if not _paired(result['runs']):
        return 'no seed has been run on both sides'
    tables = [markdown_table(*rows_of(result, kind)) for kind in LAST]
    return '\n\n'.join(tables) + (f'\n\n{NOTE}' if f' {MARK} |' in tables[0] else '')


def rows_of(result: Mapping[str, Any], kind: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The head and the rows of a kind, `scores` or `seconds`; the last column says how the sides compare."""
    last = LAST[kind]
    digits, majority = (2, result.get('majority') or {}) if kind == 'scores' else (1, {})
    rows: list[tuple[Any, ...]] = []
    for name, over_all in result['summary'][kind].items():
        least = majority.get(name)
        by_seed = {
            seed: {side: {'mean': run[kind][name]} for side, run in sides.items()}
            for seed, sides in _paired(result['runs']).items()
        }
        for seed, sides in {**by_seed, 'mean': over_all}.items():
            texts = (score_text(**sides[side], majority=least, digits=digits) for side in SIDES)
            here, peer = (sides[side]['mean'] for side in SIDES)
            compared = f'{here - peer:+.2f}' if last == 'difference' else f'{here / peer:.3f}'
            rows.append((name, seed, *texts, compared))
        if least is not None:
            rows.append((name, 'majority class', *[score_text(least, digits=digits)] * len(SIDES), ''))
    return [kind, 'seed', SIDES['here'], SIDES['peer'], last], rows
