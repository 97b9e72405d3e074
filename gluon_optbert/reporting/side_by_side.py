"""Runs of two sides, seed by seed, beside each other: means, deviations, how they compare, and a table of it
all.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..runs.markdown import markdown_table

SIDES = {'here': 'this package', 'peer': 'Transformers'}


def _paired(runs: Sequence[Mapping[str, Any]]) -> Dict[int, Dict[str, Mapping[str, Any]]]:
    """The runs of both sides by seed, of the seeds that have both."""
    found: Dict[int, Dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        found.setdefault(run['seed'], {})[run['side']] = run
    return {seed: sides for seed, sides in sorted(found.items()) if len(sides) == len(SIDES)}


def _spread(values: Sequence[float]) -> Dict[str, Optional[float]]:
    return {'mean': float(np.mean(values)), 'std': float(np.std(values, ddof=1)) if len(values) > 1 else None}


def summarise(runs: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
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

    def compared(kind: str, name: str) -> Dict[str, Any]:
        return {side: _spread([sides[side][kind][name] for sides in paired.values()]) for side in SIDES}

    first = next(iter(paired.values()))['here']
    scores, seconds = ({name: compared(kind, name) for name in first[kind]} for kind in ('scores', 'seconds'))
    for found in scores.values():
        found['difference'] = found['here']['mean'] - found['peer']['mean']
    for found in seconds.values():
        found['ratio'] = found['here']['mean'] / found['peer']['mean']
    return {'seeds': list(paired), 'scores': scores, 'seconds': seconds}


def _shown(spread: Mapping[str, Optional[float]], digits: int) -> str:
    return f'{spread["mean"]:.{digits}f}' + (
        '' if spread['std'] is None else f' ± {spread["std"]:.{digits}f}'
    )


def table(result: Mapping[str, Any]) -> str:
    """Scores in percent, then seconds, seed by seed and over all, as Markdown."""
    paired, summary = _paired(result['runs']), result['summary']
    if not paired:
        return 'no seed has been run on both sides'
    tables = []
    for kind, digits, last in (('scores', 2, 'difference'), ('seconds', 1, 'ratio')):
        rows: List[Tuple[Any, ...]] = []
        for name, found in summary[kind].items():
            for seed, sides in paired.items():
                here, peer = (sides[side][kind][name] for side in SIDES)
                compared = f'{here - peer:+.2f}' if last == 'difference' else f'{here / peer:.3f}'
                rows.append((name, seed, f'{here:.{digits}f}', f'{peer:.{digits}f}', compared))
            compared = f'{found[last]:+.2f}' if last == 'difference' else f'{found[last]:.3f}'
            rows.append((name, 'mean', *(_shown(found[side], digits) for side in SIDES), compared))
        tables.append(markdown_table([kind, 'seed', SIDES['here'], SIDES['peer'], last], rows))
    return '\n\n'.join(tables)
