"""Score a file of predictions on a task of GLUE or on SQuAD, as the official scripts do.

Predictions are what tools/predict.py prints; or a submission of GLUE, with the columns index and prediction;
or SQuAD's predictions.json, texts by question id."""

from pathlib import Path

from ..runs.command_line import parse
from ..runs.recipe import Recipe, option
from ..tasks.metrics import majority_score
from ..tasks.scoring import score_squad, score_task, squad_version
from ..tasks.task import find_task
from .starting import command, line


class ScoreRecipe(Recipe):
    """What to score, and against what."""

    predictions: Path = option('predictions: JSON lines, a submission (.tsv), or texts by question id')
    task: str = option('SQuAD1.1, SQuAD2.0, a task of GLUE, or a JSON file that describes a task')
    data: Path = option('labelled file: dev.tsv of the task, or dev-v2.0.json of SQuAD')
    null_odds: Path | None = option(
        'null_odds.json of a run on SQuAD 2.0, to find the best thresholds; its answers.json must then be '
        'the --predictions',
        None,
    )

    def problems(self) -> list[str]:
        """What is contradictory, or unclear."""
        if self.task.lower() == 'squad':
            return ['--task SQuAD needs its version: SQuAD1.1 or SQuAD2.0']
        if self.null_odds is not None and squad_version(self.task) != '2.0':
            return ['--null-odds goes with --task SQuAD2.0']
        return []


@command
def main(argv=None):
    """Score, and say how many there were."""
    words = ['--task', 'SQuAD2.0', '--predictions', 'predictions.json', '--data', 'squad/dev-v2.0.json']
    recipe = parse(
        ScoreRecipe, argv, description=__doc__, example=line('optbert-score', *words), positional=''
    )
    version = squad_version(recipe.task)
    if version is not None:
        scores, notes = score_squad(version, recipe.data, recipe.predictions, recipe.null_odds)
        for note in notes:
            print(f'note: {note}')
        print(f'SQuAD {version}: {shown(scores)}')
        return
    task = find_task(recipe.task)
    scores, examples = score_task(task, recipe.data, recipe.predictions)
    print(f'{task.name}, {len(examples)} rows: {shown(scores)}')
    constant = 'always the mean' if task.head.kind == 'regression' else 'always the majority class'
    print(f'{constant}: {shown(majority_score(task.metrics, examples.labels))}')


def shown(scores):
    """Scores in one line: percents with two digits, counts as they are."""
    return ' | '.join(
        f'{name} {value}' if isinstance(value, int) else f'{name} {value:.2f}'
        for name, value in scores.items()
    )
