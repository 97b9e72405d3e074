"""Fine-tune one network on one task of GLUE with several settings and seeds, and compare the scores.

The settings are named in a YAML file, each with what differs from the words of run_glue.py in --run:

    bertadam: {}
    adamw random: {optimizer: adamw, batching: random}

Every setting is run with the first seed, then every setting with the second one, and so on. OUTPUT/results
has a result file of every finished run, OUTPUT/points.json all of them; OUTPUT/table.md is written anew after
every run. The networks are not kept. Called again, it makes what is missing: a run that was interrupted goes
on, and there may be further settings and seeds. Differences are to the first setting, seed by seed. With
--points the table is made of such a file.

example:
  python benchmarks/studies/compare_settings.py --settings settings.yaml --seeds 1,2,3 --output settings \\
      --run 'finetune/recipes/glue.yaml --task SST-2 --model models/base --data glue'"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from points import check_alike, read_points, score_of, write_points

from gluon_optbert.runs.command_line import Parser, command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import write_file
from gluon_optbert.runs.progress import MARK, NOTE, paired_error, score_text, spread
from gluon_optbert.runs.recipe import read_yaml

RUN_GLUE = Path(__file__).resolve().parents[2] / 'finetune' / 'run_glue.py'
Scores = Mapping[str, Mapping[int, Mapping[str, Any]]]  # results by setting and seed


def table_of(scores: Scores, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The main score of every setting, seed by seed and over the seeds, in Markdown; ValueError if runs
    differ in more than the settings.
    """
    results = {f'{name}/seed-{seed}': one for name in scores for seed, one in scores[name].items()}
    one, free = next(iter(results.values())), {'results', 'seeds'}.union(*settings.values())
    made = {
        name: {'weights': result.get('model_sha256'), 'data set': result['task'], **result.get('recipe', {})}
        for name, result in results.items()
    }
    free |= {'weights'} if 'model' in free else set()
    alike = {name: {key: own[key] for key in own.keys() - free} for name, own in made.items()}
    check_alike(f'the runs on {one["task"]}', alike)
    metric, first = one['metric'], next(iter(settings))
    seeds = sorted({seed for results in scores.values() for seed in results})

    def marks(result: Mapping[str, Any]) -> str:
        return (result['runs'][0].get('right') or {}).get(metric.split('/')[0]) or ''

    cells = []
    for name, setting in settings.items():
        results, others = scores.get(name, {}), scores.get(first, {})
        by_seed = {seed: result['mean'][metric] for seed, result in results.items()}
        what = ', '.join(f'{field} {value}' for field, value in setting.items()) or 'as the recipe'
        mean, gain = 'not run', '–'
        if by_seed:
            majority = (one['majority'] or {}).get(metric)
            mean = score_text(*spread(list(by_seed.values())), majority=majority, digits=2)
        both = sorted(by_seed.keys() & others)
        if both:
            gains = [by_seed[seed] - others[seed]['mean'][metric] for seed in both]
            error = paired_error(gains, *([marks(own[seed]) for seed in both] for own in (results, others)))
            gain = f'{np.mean(gains):+.2f}' + ('' if error is None else f' ± {error:.2f}')
        each = [f'{by_seed[seed]:.2f}' if seed in by_seed else '–' for seed in seeds]
        runs = [result['runs'][0] for result in results.values()]
        seconds = [run['seconds'] for run in runs if run.get('resumed_at') is None]
        cells.append([name, what, mean, gain, *each, f'{np.mean(seconds) / 60:.1f}' if seconds else '–'])
    head = ['setting', 'what differs', metric, f'to {first}', *(f'seed {seed}' for seed in seeds)]
    lines = markdown_table([*head, 'minutes'], cells)
    about = (
        f'In percent. ± is the standard deviation over the seeds; behind a difference, its standard error: '
        f'that of the seeds, and of the instances where the results say which were right. '
        f'Trained on {one["samples"]["train"]:,} instances, {one["parameters"]:,} parameters. Minutes are '
        f'those of a run that was not interrupted.'
    )
    parts = [f'# Settings of fine-tuning on {one["task"]}', lines, about]
    return '\n\n'.join([*parts, f'{NOTE}.'] if f' {MARK} |' in lines else parts) + '\n'


def make(output: Path, settings: Mapping[str, Any], seeds: Sequence[int], words: Sequence[str]) -> str:
    """Make the runs that are missing; the table of all. ValueError if a finished run had another setting."""
    scores: dict[str, dict[int, Any]] = {name: {} for name in settings}
    for seed in seeds:
        for name, setting in settings.items():
            result, run = (output / room / name / f'seed-{seed}' for room in ('results', 'runs'))
            result = result.with_suffix('.json')
            if not result.exists():
                flags = [f'--{field.replace("_", "-")}={value}' for field, value in setting.items()]
                own = [f'--seeds={seed}', f'--output={run}', f'--results={result.parent}', '--resume']
                subprocess.run([sys.executable, str(RUN_GLUE), *words, *flags, *own], check=True)
                shutil.rmtree(run)
            scores[name][seed] = score_of(result)
            begun = scores[name][seed]['recipe']
            changed = [field for field in setting if begun.get(field) != setting[field]]
            if changed:
                raise ValueError(f'{result} was made with other values of {", ".join(changed)}')
            text = table_of(scores, settings)
            write_file(output / 'table.md', text.encode())
    gathered = {f'{name}/seed-{seed}': one for name in scores for seed, one in scores[name].items()}
    write_points({'recipe': {}, 'runs': {}, 'networks': {}, 'scores': gathered}, output / 'points.json')
    return text


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs or read them, and print the table."""
    parser = Parser(__doc__)
    parser.add_argument('--run', default='', metavar='WORDS', help='the words of run_glue.py')
    parser.add_argument('--settings', type=Path, required=True, help='YAML file of named settings')
    parser.add_argument(
        '--seeds', default='1', help='of every setting, with commas between them [default: 1]'
    )
    parser.add_argument('--points', type=Path, help='only make the table, of this file of points')
    parser.add_argument('--output', type=Path, required=True, help='directory; with --points the table')
    arguments = parser.parse_args(argv)
    settings = read_yaml(arguments.settings)
    if arguments.points:
        scores: dict[str, dict[int, Any]] = {}
        for name, one in read_points(arguments.points)['scores'].items():
            setting, _, seed = name.rpartition('/seed-')
            scores.setdefault(setting, {})[int(seed)] = one
        text = table_of(scores, settings)
        write_file(arguments.output, text.encode())
    else:
        seeds = [int(seed) for seed in arguments.seeds.split(',')]
        words = shlex.split(arguments.run)
        text = make(arguments.output, settings, seeds, words)
    print(f'{text}wrote {arguments.output}')


if __name__ == '__main__':
    sys.exit(main())
