"""What a search leaves for people: a table of its trials as CSV and Markdown, and Optuna's plots."""

from __future__ import annotations

import csv
import io
import warnings
from pathlib import Path
from typing import Any, List, Optional

from ..runs.display import markdown_table
from ..runs.files import write_file

SEARCHED = ('gamma', 'alpha_learning_rate', 'alpha_steps')
RESULTS = ('mlm_loss', 'mlm_accuracy', 'nsp_accuracy', 'parameters', 'directory')
PLOTS = ('optimization_history', 'slice', 'parallel_coordinate', 'param_importances')


def trial_name(number: int) -> str:
    """The name of a trial's directory in the output of its search."""
    return f'trial-{number:04d}'


def lock_name(number: int) -> str:
    """The name of the file beside it, which the process that runs the trial holds."""
    return f'.{trial_name(number)}.lock'


def is_of(trial: Any, output: Path) -> bool:
    """Whether a trial was run in an output, which may have been moved since: several may share a study."""
    return (output / lock_name(trial.number)).exists()


def directory_of(trial: Any, output: Path) -> Optional[str]:
    """Where a trial's directory is now; that of another output is where it was when it began."""
    if is_of(trial, output):
        return str((output / trial_name(trial.number)).resolve())
    return trial.user_attrs.get('directory')


def completed(study: Any) -> List[Any]:
    """The trials of a study that came to an end."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == 'COMPLETE']


def write_report(study: Any, output: Path) -> str:
    """Write trials.csv, trials.md and Optuna's plots; the table."""
    trials = sorted(
        study.get_trials(deepcopy=False), key=lambda trial: (trial.value is None, trial.value or 0)
    )
    names = ('trial', 'state', *SEARCHED, *RESULTS)
    rows = [
        [
            trial.number,
            trial.state.name.lower(),
            *(trial.params.get(name) for name in SEARCHED),
            trial.value,
            *(trial.user_attrs.get(name) for name in RESULTS[1:-1]),
            directory_of(trial, output),
        ]
        for trial in trials
    ]
    sheet = io.StringIO()
    csv.writer(sheet, lineterminator='\n').writerows([names, *rows])
    write_file(output / 'trials.csv', sheet.getvalue().encode())
    table = markdown_table(names[:-1], [list(map(_shown, row[:-1])) for row in rows]) + '\n'
    write_file(output / 'trials.md', table.encode())
    complete = [trial for trial in trials if trial.state.name == 'COMPLETE']
    if len({trial.value for trial in complete}) > 1:
        _draw(study, complete, output)
    return table


def _shown(cell: Any) -> str:
    return '' if cell is None else f'{cell:.4g}' if isinstance(cell, float) else str(cell)


def _draw(study: Any, complete: List[Any], output: Path) -> None:
    """Optuna's plots, of what was varied."""
    import matplotlib.pyplot
    import optuna

    varied = [name for name in SEARCHED if len({trial.params[name] for trial in complete}) > 1]
    for name in PLOTS:
        options = {} if name == 'optimization_history' else {'params': varied}
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
            axes = getattr(optuna.visualization.matplotlib, f'plot_{name}')(study, **options)
        figure = (axes if hasattr(axes, 'figure') else axes.flat[0]).figure
        figure.set_size_inches(10, 5)
        picture = io.BytesIO()
        figure.savefig(picture, format='png', dpi=120, bbox_inches='tight')
        write_file(output / f'{name}.png', picture.getvalue())
        matplotlib.pyplot.close(figure)
