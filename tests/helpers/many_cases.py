"""Read thousands of hostile recipes, manifests, shards, architectures and model directories; say how each
kind fared.

The properties are those of helpers/fuzzing.py, with other cases for every seed. A case that fails is made
small and shown."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import hypothesis
from hypothesis import HealthCheck, settings

from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_row, markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.files import write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict
from helpers.fuzzing import PROPERTIES, try_out


class FuzzRecipe(Recipe):
    """How many cases, and of what."""

    cases: int = option('cases of each property', 1000)
    seed: int = option('of the cases', 0)
    output: Path | None = option('JSON file for the counts', None)

    def problems(self) -> List[str]:
        """What is out of range."""
        return [] if self.cases >= 1 else [f'cases must be at least 1, found {self.cases}']


def fuzz(prop: Any, recipe: FuzzRecipe) -> Dict[str, Any]:
    """Run one property; its cases, seconds and, if it failed, why."""
    options = settings(
        max_examples=recipe.cases,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    began = time.perf_counter()
    cases, error = try_out(hypothesis.seed(recipe.seed)(prop), options)
    return {
        'cases': cases,
        'seconds': round(time.perf_counter() - began, 1),
        'failure': error and f'{type(error).__name__}: {error}',
    }


@command
def main(argv=None):
    """Run the properties; exit status 1 if one fails."""
    recipe = parse(FuzzRecipe, argv, description=__doc__, example='python tools/fuzz.py --cases 5000')
    outcomes: Dict[str, Dict[str, Any]] = {}
    origin = origin_here()
    origin['versions']['hypothesis'] = hypothesis.__version__
    print(markdown_table(['input', 'cases', 'seconds', None], []), flush=True)
    for prop in PROPERTIES:
        outcomes[prop.__name__] = result = fuzz(prop, recipe)
        cells = (
            prop.__name__.replace('_', ' '),
            f'{result["cases"]:,}',
            f'{result["seconds"]:.0f}',
            'failed' if result['failure'] else 'held',
        )
        print(markdown_row(cells), flush=True)
    failures = [f'{name}: {result["failure"]}' for name, result in outcomes.items() if result['failure']]
    print(
        f'\n{sum(result["cases"] for result in outcomes.values()):,} cases, {len(failures)} properties failed'
    )
    if recipe.output:
        write_file(
            recipe.output,
            (
                json.dumps({'recipe': to_dict(recipe), 'properties': outcomes, **origin}, indent=1) + '\n'
            ).encode(),
        )
        print(f'wrote {recipe.output}')
    if failures:
        raise RunFailed('\n'.join(failures))


if __name__ == '__main__':
    sys.exit(main())
