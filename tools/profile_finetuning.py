"""Where the time of a fine-tuning step goes: part by part, and by the width of its batch.

Batches come as training on the task has them. After every part of a step the command waits until MXNet has
done it, which training does not; the parts therefore add up to a little more than a step takes. The first
batch of a width is slower: its graph is laid out then. Nothing else should run."""

from __future__ import annotations

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import autograd

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import count_flops
from gluon_optbert.cutting.shrink import without_gates
from gluon_optbert.finetuning.objective import FineTuning, start_parameters
from gluon_optbert.finetuning.recipes import GlueRecipe, prepare_glue
from gluon_optbert.network.model import build
from gluon_optbert.network.saved_model import read_model
from gluon_optbert.network.settings import check_precision
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import refuse_existing, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import option, to_dict, with_options_of
from gluon_optbert.tasks.features import TaskBatch
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import collect_gradients
from gluon_optbert.training.optimization import Optimizer, sum_of_squares

EXAMPLE = 'python tools/profile_finetuning.py --task SST-2 --model models/base --data glue'
_AS_THERE = (
    'task',
    'model',
    'data',
    'batch_size',
    'batching',
    'max_length',
    'optimizer',
    'precision',
    'limit',
)


class ProfileRecipe(with_options_of(GlueRecipe, _AS_THERE)):
    """What is profiled."""

    steps: int = option('steps to time', 100)
    output: Path | None = option('JSON file to write', None)

    def own(self) -> GlueRecipe:
        """The recipe whose steps are timed."""
        return GlueRecipe(**{name: getattr(self, name) for name in _AS_THERE}, output=Path('unwritten'))

    def problems(self) -> list[str]:
        """What is out of range."""
        least = [] if self.steps > 0 else [f'steps must be at least 1, found {self.steps}']
        return least + self.own().problems()


class Watch:
    """Notes the milliseconds of parts, each from the end of the one before to when MXNet has done it."""

    def __init__(self):
        self.parts: Dict[str, float] = {}
        self._since = time.perf_counter()

    def done(self, part: str) -> None:
        """The part that ends here."""
        mx.nd.waitall()
        now = time.perf_counter()
        self.parts[part], self._since = 1e3 * (now - self._since), now


def step_parts(objective: FineTuning, optimizer: Optimizer, batches: Any, number: int) -> Dict[str, Any]:
    """The milliseconds of the parts of a step, as ``parts``, with the ``width`` of its batch."""
    watch = Watch()
    batch: TaskBatch = next(batches)
    watch.done('batch')
    mx.random.seed(number)
    watch.done('random seed')
    with autograd.record():
        (total,) = objective.loss_sums(batch, slice(None))
        loss = total / batch.instance_total
    watch.done('forward')
    loss.backward()
    watch.done('backward')
    sum_of_squares(optimizer.gradients())
    watch.done('gradient norm')
    optimizer.update(1e-6, step=number + 1)
    watch.done('optimizer')
    parts = {**watch.parts, 'optimizer': watch.parts['optimizer'] - watch.parts['gradient norm']}
    return {'width': int(batch.input_ids.shape[1]), 'parts': parts}


def profile(recipe: ProfileRecipe) -> Dict[str, Any]:
    """The milliseconds of every step's parts, with what is needed to judge them.

    Returns
    -------
    dict
        ``steps``, each as `step_parts` gives it, ``recipe``, ``architecture`` and where it was measured.
    """
    workers, own = Workers(), recipe.own()
    check_precision(own.precision, workers.context())
    saved = without_gates(read_model(own.model))
    exercise = prepare_glue(own, saved, workers=workers)
    model = build(
        saved.architecture,
        start_parameters(saved, exercise.head, seed=0),
        own.network_settings(head=exercise.head),
        ctx=workers.context(),
    )
    objective, optimizer = FineTuning(model, workers, exercise, own), own.weight_optimizer(model, workers)
    phase = own.phase(exercise.name, recipe.steps, seed=own.seeds[0])
    collect_gradients(model, optimizer.parameters, phase)
    batches = objective.batches(phase, 0)
    steps = [step_parts(objective, optimizer, batches, number) for number in range(recipe.steps)]
    batches.close()
    return {
        'steps': steps,
        'recipe': to_dict(recipe),
        'architecture': saved.architecture.to_dict(),
        **origin_here(),
    }


def _mean(steps: Sequence[Mapping[str, Any]], part: str) -> float:
    return float(np.mean([step['parts'][part] for step in steps])) if steps else float('nan')


def tables(result: Mapping[str, Any]) -> str:
    """The parts, and the passes by width, as Markdown; the first step of each width does not count."""
    steps, seen, first, later = result['steps'], set(), [], []
    for step in steps:
        (later if step['width'] in seen else first).append(step)
        seen.add(step['width'])
    counted = later or first
    means = {part: _mean(counted, part) for part in steps[0]['parts']}
    whole = sum(means.values())
    rows = [[part, f'{mean:.1f}', f'{mean / whole:.0%}'] for part, mean in means.items()]
    architecture = Architecture.from_dict(result['architecture'], source='the result')
    by_width = []
    for width in sorted(seen):
        own = [step for step in later if step['width'] == width]
        opening = next(step['parts'] for step in first if step['width'] == width)
        passes = _mean(own, 'forward') + _mean(own, 'backward')
        work = 3 * result['recipe']['batch_size'] * sum(count_flops(architecture, width).values()) / 1e6
        by_width.append(
            [
                width,
                len(own) + 1,
                f'{opening["forward"] + opening["backward"]:.0f}',
                *([f'{passes:.0f}', f'{work / passes:.0f}'] if own else ['–', '–']),
            ]
        )
    heads = ['tokens wide', 'batches', 'first passes, ms', 'later passes, ms', 'GFLOP/s']
    return (
        f'{markdown_table(["part", "ms", "share"], [*rows, ["in all", f"{whole:.1f}", "100%"]])}\n\n'
        f'{markdown_table(heads, by_width)}'
    )


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Time the steps, print the tables, and write them as JSON where asked."""
    recipe = parse(ProfileRecipe, argv, description=__doc__, example=EXAMPLE)
    if recipe.output:
        refuse_existing(recipe.output)
    result = profile(recipe)
    print(tables(result))
    if recipe.output is not None:
        write_file(recipe.output, (json.dumps(result, indent=1) + '\n').encode())
        print(f'\nwrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
