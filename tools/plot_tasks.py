"""Plot what speed costs: the scores of networks that were pruned for one task against their measured times.

Give runs of run_prune.py. Runs that differ in nothing but the seed, or the network that they began with, are
repetitions: the plot has their mean and standard deviation. The times come from benchmarks/latency.py:

    python tools/plot_tasks.py runs/sst2-* --networks > networks.txt
    python benchmarks/latency.py $(cat networks.txt) --output times.json

With --together, directories that this tool wrote become one picture, with a plot for each task.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gluon_optbert.reporting.networks import labels_of, read_run
from gluon_optbert.reporting.speed import PRECISIONS, networks_to_time, read_times
from gluon_optbert.reporting.speed_pictures import read_tasks, summary, write, write_together
from gluon_optbert.reporting.task_runs import check_comparable, groups_of, points_of, read_recipe, starts_of
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.files import new_directory, refuse_existing
from gluon_optbert.runs.recipe import Recipe, option


class TaskPlotRecipe(Recipe):
    """What is plotted, and where to."""

    runs: tuple[Path, ...] = option('directories of runs of run_prune.py for one task', ())
    times: tuple[Path, ...] = option(
        'JSON files of benchmark_latency.py. Each has to have the network before pruning', ()
    )
    output: Path | None = option('directory to write', None)
    engine: str = option('engine whose times are drawn, as in benchmark_latency.py', 'mxnet')
    networks: bool = option(
        'only prints the networks to time, a line for each: what benchmark_latency.py takes', False
    )
    together: tuple[Path, ...] = option(
        'instead of runs: directories that this tool wrote, one for each task, to draw beside each other', ()
    )
    shape: str | None = option(
        'only with --together: the sequences and the length whose times are drawn; without it 8x128', None
    )
    precision: str | None = option(
        'only with --together: the precision that is drawn; without it float32', None, choices=PRECISIONS
    )

    def problems(self) -> list[str]:
        """What is missing."""
        if self.together:
            used = [name for name in ('runs', 'times', 'networks') if getattr(self, name)]
            missing = [] if self.output else ['output is missing']
            return missing + [f'{name} has no place beside --together' for name in used]
        problems = [] if self.runs else ['give a run of run_prune.py']
        problems += [f'{name} is for --together' for name in ('shape', 'precision') if getattr(self, name)]
        if not self.networks:
            missing = {'times': 'times is missing: files of benchmark_latency.py, see --networks'}
            missing['output'] = 'output is missing'
            problems += [says for name, says in missing.items() if not getattr(self, name)]
        return problems


@command
def main(argv=None):
    """Read the runs and the times, write the directory, print the sentences."""
    recipe = parse(
        TaskPlotRecipe,
        argv,
        description=__doc__,
        example='python tools/plot_tasks.py runs/sst2-* --times times.json --output plots/sst2',
        positional='runs',
    )
    if recipe.together:
        refuse_existing(recipe.output)
        tasks = read_tasks(recipe.together, recipe.shape or '8x128', recipe.precision or 'float32')
        with new_directory(recipe.output) as staged:
            written = write_together(tasks, staged)
        print(f'wrote {recipe.output}: {", ".join(path.name for path in written)}')
        return
    runs = [read_run(path, label) for path, label in zip(recipe.runs, labels_of(recipe.runs))]
    check_comparable(runs)
    recipes = [read_recipe(run.path) for run in runs]
    starts = starts_of([points_of(run, one) for run, one in zip(runs, recipes)])
    groups = groups_of(runs, recipes)
    if recipe.networks:
        print('\n'.join(networks_to_time(starts, groups)))
        return
    refuse_existing(recipe.output)
    values = summary(runs, starts, groups, read_times(recipe.times), recipe.engine)
    with new_directory(recipe.output) as staged:
        written = write(values, staged)
    print('\n'.join(values['sentences']))
    print(f'wrote {recipe.output}: {", ".join(path.name for path in written)}')


if __name__ == '__main__':
    sys.exit(main())
