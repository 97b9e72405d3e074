"""Fine-tuning on the tasks of GLUE."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

import gluonnlp
import numpy as np

from ..architecture.heads import Head
from ..network.saved_model import HEAD, SavedModel
from ..runs.provenance import ORIGIN
from ..runs.recipe import checked, option
from ..tasks.examples import Examples, majority_scores, read_examples, read_sets, submission
from ..tasks.features import Features, make_reader
from ..tasks.metrics import score
from ..tasks.task import Task, find_task, official_files
from ..text.trim_record import TRIM
from ..training.distributed import Workers
from .exercise import Exercise, check_fits, data_directory
from .finetune import finetune
from .recipe import FineTuneRecipe
from .result import FineTuningResult

LOG = logging.getLogger(__name__)
# the files of a model directory, where submissions are left as well
_OF_A_MODEL = (
    'architecture.json',
    'model.params',
    'vocab.txt',
    'recipe.yaml',
    'progress.json',
    'manifest.json',
    'metrics.jsonl',
    'README.md',
    HEAD,
    ORIGIN,
    TRIM,
)


@dataclasses.dataclass(frozen=True)
class GlueRecipe(FineTuneRecipe):
    """Fine-tuning on one task of GLUE."""

    task: str = option(
        'MNLI, MRPC, SST-2, RTE, CoLA, QNLI, QQP, STS-B, WNLI, or a JSON file that describes another'
    )
    max_length: int = option('largest number of tokens of an instance; longer ones are cut', 128)

    def problems(self) -> List[str]:
        """What is out of range."""
        return super().problems() + (
            [f'max_length must be at least 5, found {self.max_length}'] if self.max_length < 5 else []
        )

    def head(self) -> Head:
        """The head of the task; ValueError or FileNotFoundError as `find_task`."""
        return find_task(self.task).head


def task_directory(task: Task, data: Optional[Path], workers: Workers) -> Path:
    """Where the files of a task are; `data_directory` says how, and what it raises."""
    if data is None and not task.gluonnlp:
        raise FileNotFoundError(
            f"{task.name} is none of GluonNLP's data sets; give the directory of its files with --data"
        )
    return data_directory(
        data,
        'glue',
        official_files(task),
        lambda name, root: getattr(gluonnlp.data, task.gluonnlp)(name, root=root),
        workers,
    )


def _check_submissions(task: Task) -> None:
    """Raise ValueError if a submission has the name of a file of the model directory that it is left in."""
    taken = [name for name in task.test if name in _OF_A_MODEL]
    if taken:
        raise ValueError(
            f'{task.name}: a submission cannot be called {taken[0]}, as a file of a model directory; call '
            f'it predictions.tsv'
        )


def _warn_of_one_label(task: Task, train: Examples, path: Path) -> None:
    """Say so if all rows that are trained on have one label."""
    if len(np.unique(train.labels)) > 1:
        return
    value = train.labels[0]
    label = f'{value:g}' if task.head.kind == 'regression' else task.head.labels[value]
    LOG.warning(
        '%s: all %d rows that are trained on have the label %s, so there is nothing to tell apart',
        path,
        len(train),
        label,
    )


def _measured_on(
    recipe: GlueRecipe, task: Task, data: Path
) -> Tuple[Dict[str, Examples], Dict[str, Examples]]:
    """The held-out and test sets of the directory; FileNotFoundError without a held-out set."""
    heldout, test = (
        {
            name: examples.first(recipe.evaluation_limit)
            for name, examples in read_sets(task, data, files, labelled=labelled).items()
        }
        for files, labelled in ((task.dev, True), (task.test, False))
    )
    if not heldout:
        raise FileNotFoundError(f'{data}: there is no {" and no ".join(task.dev.values())} to measure on')
    return heldout, test


def prepare_glue(recipe: GlueRecipe, saved: SavedModel, *, workers: Workers) -> Exercise:
    """The recipe's task, made ready for a network.

    Raises
    ------
    ValueError, FileNotFoundError
        If files are missing or not as they should be, the network has too few positions, or a submission
        has the name of a file of a model directory.
    """
    recipe = checked(recipe)
    task = find_task(recipe.task)
    _check_submissions(task)
    check_fits(recipe.max_length, saved, pairs=len(task.fields) > 1)
    data = task_directory(task, recipe.data, workers)
    train = read_examples(task, data / task.train).first(recipe.limit)
    if workers.first:
        _warn_of_one_label(task, train, data / task.train)
    heldout, test = _measured_on(recipe, task, data)
    read = make_reader(saved.vocabulary, max_length=recipe.max_length)

    def ready(examples: Examples) -> Features:
        return read(examples.texts, examples.labels)

    def measure(name: str, scores: np.ndarray) -> Dict[str, float]:
        predictions = scores[:, 0] if task.head.kind == 'regression' else scores.argmax(axis=1)
        return score(task.metrics, predictions, heldout[name].labels)

    def files(scores: Mapping[str, np.ndarray]) -> Dict[str, bytes]:
        return {name: submission(task, examples.indices, scores[name]) for name, examples in test.items()}

    return Exercise(
        name=task.name,
        head=task.head,
        train=ready(train),
        heldout={name: ready(examples) for name, examples in heldout.items()},
        metric=task.metrics[0],
        score=measure,
        test={name: ready(examples) for name, examples in test.items()},
        files=files,
        samples={name: len(examples) for name, examples in {'train': train, **heldout, **test}.items()},
        majority=majority_scores(task, heldout),
    )


def finetune_glue(recipe: GlueRecipe, *, workers: Optional[Workers] = None) -> FineTuningResult:
    """Fine-tune on a task of GLUE; `finetune` describes the result and the errors.

    Parameters
    ----------
    recipe : GlueRecipe
    workers : Workers, optional
        The workers of this job; by default those that the environment names.
    """
    recipe, crew = checked(recipe), workers or Workers()
    return finetune(recipe, lambda saved: prepare_glue(recipe, saved, workers=crew), workers=crew)
