"""Fine-tune one network on one task of GLUE with several settings and seeds, and set the scores beside each
other.

The settings are named in a YAML file, each with what differs from the recipe and the flags:

    bertadam: {}
    adamw: {optimizer: adamw}
    adamw random: {optimizer: adamw, batching: random}

Every setting is run with the first seed, then every setting with the second one, and so on. OUTPUT/results
has a result file of every finished run, as run_glue.py writes it. OUTPUT/table.md is written anew after every
run. The networks are not kept. A killed comparison goes on with --resume, in the middle of a run too. The
file may then have further settings, and --seeds further seeds. Differences are to the first setting, seed by
seed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from gluon_optbert.finetuning.recipes import GlueRecipe, finetune_glue
from gluon_optbert.finetuning.result import FineTuningResult
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import running, write_file
from gluon_optbert.runs.progress import MARK, NOTE, score_text
from gluon_optbert.runs.recipe import (
    RecipeError,
    fill,
    option,
    overridden,
    read_yaml,
    save,
    to_dict,
    with_options_of,
)
from gluon_optbert.runs.run_directory import RECIPE, RunDirectory, State
from gluon_optbert.training.distributed import Workers

EXAMPLE = (
    'python tools/compare_settings.py finetune/recipes/glue.yaml --settings results/finetuning/settings.yaml '
    '--task SST-2 --model models/base --data glue --seeds 1,2,3 --output runs/settings'
)
# What a setting cannot change: where it goes, and what it is scored on.
OWN = ('output', 'results', 'resume', 'seeds', 'task', 'data', 'evaluation_limit')
LATER = ('resume', 'seeds', 'settings', 'beside')  # what may differ when a comparison is gone on with
_AS_THERE = [name for name in GlueRecipe.model_fields if name != 'results']


class SettingsRecipe(with_options_of(GlueRecipe, _AS_THERE)):
    """Fine-tuning on one task of GLUE with several settings."""

    ALTERNATIVES = GlueRecipe.ALTERNATIVES

    settings: Path = option('YAML file of named settings, each with what differs from the recipe')
    beside: Path | None = option(
        "file of compare_finetuning.py on the same task; Transformers' scores are a row of the table", None
    )

    def run(self, name: str, setting: Mapping[str, Any], seed: int) -> GlueRecipe:
        """The run with a setting and a seed."""
        values = {key: value for key, value in to_dict(self).items() if key in GlueRecipe.model_fields}
        values = overridden(GlueRecipe, values, setting)
        values.update(
            output=str(self.output / 'runs' / name / f'seed-{seed}'),
            results=str(self.output / 'results' / name),
            seeds=[seed],
            resume=True,
        )
        return fill(GlueRecipe, values, source=f'{self.settings}: {name}')

    def result(self, name: str, seed: int) -> Path:
        """The result file of the run with a setting and a seed."""
        return self.output / 'results' / name / f'seed-{seed}.json'


def read_settings(recipe: SettingsRecipe) -> Dict[str, Dict[str, Any]]:
    """The settings by name, every run checked.

    Raises
    ------
    RecipeError
        If the file is not as it should be, or a setting is out of range.
    """
    settings, problems = read_yaml(recipe.settings), [] if recipe.seeds else ['give at least one seed']
    if not settings:
        problems.append(f'{recipe.settings}: there are no settings')
    for name, setting in settings.items():
        if not name or name.startswith('.') or '/' in name:
            problems.append(f'{recipe.settings}: {name!r} cannot be the name of a directory')
        if not isinstance(setting, dict):
            problems.append(f'{recipe.settings}: {name} must be a mapping of field: value, such as {{}}')
            continue
        problems += [
            f'{recipe.settings}: {name}: {field} is the same for all settings; give it as a flag'
            for field in OWN
            if field in setting
        ]
    if problems:
        raise RecipeError(problems)
    common = _problems(recipe, '', {})  # of the recipe and the flags, whatever the setting
    for name, setting in settings.items():
        found = _problems(recipe, name, setting)
        problems += [one if one in common else f'{recipe.settings}: {name}: {one}' for one in found]
    if problems:
        raise RecipeError(list(dict.fromkeys(problems)))
    return settings


def _problems(recipe: SettingsRecipe, name: str, setting: Mapping[str, Any]) -> List[str]:
    """What is wrong with the run with a setting, without the setting's name."""
    try:
        recipe.run(name, setting, recipe.seeds[0])
    except RecipeError as error:
        return [problem.replace(f'{recipe.settings}: {name}: ', '') for problem in error.problems]
    return []


def check_finished(recipe: SettingsRecipe, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError if a finished run had another setting than its name has now."""
    for name, setting in settings.items():
        for seed in recipe.seeds:
            path = recipe.result(name, seed)
            if not path.exists():
                continue
            begun, wanted = FineTuningResult.read(path).recipe, to_dict(recipe.run(name, setting, seed))
            # of several learning rates, the result has the one that was chosen
            free = (*OWN, 'learning_rate') if wanted['learning_rates'] else OWN
            changed = [
                field
                for field in wanted
                if field not in free and begun.get(field, wanted[field]) != wanted[field]
            ]
            if changed:
                raise ValueError(
                    f'{path} was made with other values of {", ".join(sorted(changed))}; give the setting '
                    'another name'
                )


def finished(
    recipe: SettingsRecipe, settings: Mapping[str, Mapping[str, Any]]
) -> Dict[str, Dict[int, FineTuningResult]]:
    """The results so far, by setting and seed."""
    return {
        name: {
            seed: FineTuningResult.read(recipe.result(name, seed))
            for seed in recipe.seeds
            if recipe.result(name, seed).exists()
        }
        for name in settings
    }


def _difference(scores: Mapping[int, float], first: Mapping[int, float]) -> str:
    """The mean of the differences of the seeds that both have, with its standard error."""
    gains = [score - first[seed] for seed, score in scores.items() if seed in first]
    if not gains:
        return '–'
    error = f' ± {np.std(gains, ddof=1) / len(gains) ** 0.5:.2f}' if len(gains) > 1 else ''
    return f'{np.mean(gains):+.2f}{error}'


def beside(path: Path, result: FineTuningResult) -> Tuple[Dict[int, float], Optional[float]]:
    """The scores of Transformers by seed, and the mean minutes of a run; no minutes without a run.

    Raises
    ------
    ValueError
        If the file is no comparison, or one on another task.
    """
    try:
        compared = json.loads(path.read_text(encoding='utf-8'))
        task = compared['task']
        runs = [run for run in compared['runs'] if run['side'] == 'peer']
        scores = {run['seed']: float(run['scores'][result.metric]) for run in runs}
        minutes = _minutes([run['seconds']['total'] for run in runs])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{path}: not a file of compare_finetuning.py ({error!r:.100})') from error
    if task != result.task:
        raise ValueError(f'{path} is on {task}, and this comparison on {result.task}')
    return scores, minutes


@dataclasses.dataclass(frozen=True)
class Line:
    """A setting in the table: its name, what differs, its scores by seed, and the mean minutes of those runs
    that were not interrupted.
    """

    name: str
    what: str
    scores: Mapping[int, float]
    minutes: Optional[float]

    def cells(self, seeds: Sequence[int], first: Mapping[int, float], majority: Optional[float]) -> List[str]:
        """The row of the table; `first` are the scores of the setting that others are compared with."""
        values = list(self.scores.values())
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return [
            self.name,
            self.what,
            score_text(float(np.mean(values)), spread, majority=majority, digits=2) if values else 'not run',
            _difference(self.scores, first),
            *(f'{self.scores[seed]:.2f}' if seed in self.scores else '–' for seed in seeds),
            f'{self.minutes:.1f}' if self.minutes is not None else '–',
        ]


def _minutes(seconds: Sequence[float]) -> Optional[float]:
    """Their mean, in minutes; None of none."""
    return float(np.mean(seconds)) / 60 if seconds else None


def _line(
    name: str, setting: Mapping[str, Any], by_seed: Mapping[int, FineTuningResult], metric: str
) -> Line:
    """A setting with its results so far."""
    return Line(
        name,
        ', '.join(f'{field} {value}' for field, value in setting.items()) or 'as the recipe',
        {seed: result.mean[metric] for seed, result in by_seed.items()},
        _minutes([result.seconds for result in by_seed.values() if not result.resumed]),
    )


def table(
    results: Mapping[str, Mapping[int, FineTuningResult]],
    settings: Mapping[str, Mapping[str, Any]],
    peers: Optional[Path] = None,
) -> str:
    """The main score of every setting, seed by seed and over the seeds, as Markdown; at least one run is
    finished.
    """
    one = next(result for by_seed in results.values() for result in by_seed.values())
    lines = [_line(name, setting, results[name], one.metric) for name, setting in settings.items()]
    if peers is not None:
        lines.append(Line('Transformers', peers.name, *beside(peers, one)))
    seeds = sorted({seed for line in lines for seed in line.scores})
    majority = (one.majority or {}).get(one.metric)
    rows = [line.cells(seeds, lines[0].scores, majority) for line in lines]
    heads = ['setting', 'what differs', one.metric, f'to {lines[0].name}', *(f'seed {s}' for s in seeds)]
    parts = [
        f'# Settings of fine-tuning on {one.task}',
        markdown_table([*heads, 'minutes'], rows),
        f'In percent. ± is the standard deviation over the seeds; behind a difference, its standard error. '
        f'Trained on {one.samples["train"]:,} instances, {one.parameters:,} parameters. Minutes are those of '
        f'a run that was not interrupted.',
    ]
    return '\n\n'.join([*parts, f'{NOTE}.'] if f' {MARK} |' in parts[1] else parts) + '\n'


def compare(recipe: SettingsRecipe, workers: Workers) -> str:
    """Make the runs that are missing; the table of all."""
    settings = read_settings(recipe)
    if recipe.beside is not None and not recipe.beside.is_file():
        raise FileNotFoundError(f'{recipe.beside}: no such file')
    with running(recipe.output, workers):
        directory = RunDirectory(recipe, may_change=LATER, name='comparison ')
        check_finished(recipe, settings)
        directory.lay_out(workers)
        if workers.first and directory.state is State.BEGUN:  # with further seeds, perhaps
            save(recipe.replace(resume=False), recipe.output / RECIPE)
        for seed in recipe.seeds:
            for name, setting in settings.items():
                run = recipe.run(name, setting, seed)
                done = recipe.result(name, seed).exists()
                workers.barrier(f'{name} {seed}')  # all have looked before one writes
                if not done:
                    finetune_glue(run, workers=workers)
                if workers.first:
                    shutil.rmtree(run.output, ignore_errors=True)
                    text = table(finished(recipe, settings), settings, recipe.beside)
                    write_file(recipe.output / 'table.md', text.encode('utf-8'))
    return table(finished(recipe, settings), settings, recipe.beside)


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Make the runs, and print the table."""
    recipe = parse(SettingsRecipe, argv, description=__doc__, example=EXAMPLE)
    workers = Workers()
    text = compare(recipe, workers)
    if workers.first:
        print(f'{text}wrote {recipe.output / "table.md"}')


if __name__ == '__main__':
    sys.exit(main())
