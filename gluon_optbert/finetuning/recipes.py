"""Fine-tuning on the tasks of GLUE, on tasks of the user's own like them, and on SQuAD."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import gluonnlp
import numpy as np
from gluonnlp.data import SQuAD
from pydantic import Field, PositiveFloat

from ..architecture.heads import Head
from ..network.saved_model import FILES, HEAD, SavedModel
from ..runs.files import MANIFEST
from ..runs.machine import ORIGIN
from ..runs.recipe import option
from ..tasks.examples import (
    Examples,
    check_submission,
    decided,
    own_task,
    read_examples,
    read_sets,
    submission,
    with_head,
)
from ..tasks.features import Features, make_reader
from ..tasks.metrics import f1_by_question, majority_score, score, squad_v1, squad_v2, unanswered
from ..tasks.own_data import OwnData
from ..tasks.squad import (
    Question,
    Reading,
    answer_files,
    best_answers,
    known_answers,
    make_question_reader,
    read_questions,
)
from ..tasks.tagging import make_tag_reader
from ..tasks.task import Task, find_task, official_files
from ..text.tokenizer import SETTINGS
from ..text.trimming import TRIM
from ..training.distributed import Workers
from .finetune import finetune
from .objective import Exercise, check_fits, data_directory
from .recipe import FineTuneRecipe
from .result import FineTuningResult

LOG = logging.getLogger(__name__)
# the files of a model directory, where submissions are left as well
_OF_A_MODEL = (*FILES, HEAD, SETTINGS, MANIFEST, ORIGIN, TRIM, 'metrics.jsonl', 'README.md')


class GlueRecipe(OwnData, FineTuneRecipe):
    """Fine-tuning on one task of GLUE, or on a table of texts and labels."""

    GROUPS = {**FineTuneRecipe.GROUPS, 'data': (*OwnData.OWN_DATA, *FineTuneRecipe.GROUPS['data'])}
    ALTERNATIVES = (
        *FineTuneRecipe.ALTERNATIVES,
        *(('task', name, 'a task says it') for name in ('text', 'label', 'kind')),
    )

    task: str | None = option(
        'MNLI, MRPC, SST-2, RTE, CoLA, QNLI, QQP, STS-B, WNLI, or a JSON file that describes another; '
        'without it, --data is a table',
        None,
    )
    max_length: Annotated[int, Field(ge=5)] = option(
        'largest number of tokens of an instance; longer ones are cut', 128
    )

    def problems(self) -> list[str]:
        wrong = self.task is None and self.data is None
        return super().problems() + ['task must be given, or data, a table with texts and labels'] * wrong

    def known_task(self, saved: SavedModel) -> Task:
        """The task, with the head that the labels want; those of a network that was fine-tuned on the same
        columns stay, if the data have one of them. ValueError or FileNotFoundError as `find_task`, `own_task`
        and `with_head`.
        """
        if self.task is not None:
            task = find_task(self.task)
            task = with_head(task, Path(self.data or '') / task.train)
        else:
            task = own_task(self.data, text=self.text, label=self.label, kind=self.kind)
            head = task.head
            same = (saved.head.kind, saved.head.columns) == (head.kind, head.columns)
            if same and {*head.labels} & {*saved.head.labels}:
                task = dataclasses.replace(task, head=saved.head)
        return task.of(task.head.named(self.labels)) if self.labels else task

    def head(self, saved: SavedModel) -> Head:
        """The head of the task, see `known_task`."""
        return self.known_task(saved).head


def task_directory(task: Task, data: Path | None, workers: Workers) -> Path:
    """The directory of the files of a task; `data_directory` says how, and what it raises."""
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


def _examples(
    recipe: GlueRecipe, task: Task, workers: Workers
) -> tuple[Examples, dict[str, Examples], dict[str, Examples]]:
    """The rows of a task to train on; those to measure on and those to submit, by set. Errors are those of
    `prepare_glue`.
    """
    data = Path() if recipe.task is None else task_directory(task, recipe.data, workers)
    train, held = read_examples(task, data / task.train), {}
    if not task.dev:
        whole = len(train)
        train, held['dev'] = train.split(recipe.held_out)
        if not len(train):
            raise ValueError(
                f'{data / task.train}: none of its rows is left to train on where {recipe.held_out:g} of '
                f'{whole} are held out; give more rows, or a file dev beside it'
            )
    elif workers.first and not recipe.is_default('held_out'):
        there = ' and '.join(str(data / name) for name in task.dev.values())
        LOG.warning('%s is there, so held_out is not read', there)
    train = train.first(recipe.limit)
    plain = task.head.kind in ('classification', 'regression')
    if workers.first and plain and len(np.unique(train.labels)) == 1:
        value = train.labels[0]
        label = f'{value:g}' if task.head.kind == 'regression' else task.head.labels[value]
        LOG.warning(
            '%s: all %d rows that are trained on have the label %s, so there is nothing to tell apart',
            data / task.train,
            len(train),
            label,
        )
    held = read_sets(task, data, task.dev, labelled=True) or held
    heldout, test = (
        {name: examples.first(recipe.evaluation_limit) for name, examples in sets.items()}
        for sets in (held, read_sets(task, data, task.test, labelled=False))
    )
    if not heldout:
        raise FileNotFoundError(f'{data}: there is no {" and no ".join(task.dev.values())} to measure on')
    if test:
        check_submission(task)
    return train, heldout, test


def _features(
    recipe: GlueRecipe, task: Task, saved: SavedModel, every: Mapping[str, Examples], workers: Workers
) -> dict[str, Features]:
    """The rows of every set as a network reads them. A warning says how many texts are empty or cut."""
    if task.head.kind == 'token_classification':
        tag = make_tag_reader(saved.vocabulary, max_length=recipe.max_length)
        numbers = {label: number for number, label in enumerate(task.head.labels)}
        tags = {
            name: None if own.labels is None else [[numbers[one] for one in row] for row in own.labels]
            for name, own in every.items()
        }
        return {name: tag(own.texts, tags[name]) for name, own in every.items()}
    read, sets = make_reader(saved.vocabulary, max_length=recipe.max_length), {}
    for name, own in every.items():
        sets[name] = read(own.texts, own.labels)
        empty = sum(not ''.join(texts).strip() for texts in own.texts)
        notes = [f'{empty:,} of {len(own):,} texts are empty'] if empty else []
        notes.append(sets[name].cut_note(saved.architecture.max_length))
        for note in filter(None, notes) if workers.first else ():
            LOG.warning('%s: %s', name, note)
    return sets


def prepare_glue(recipe: GlueRecipe, saved: SavedModel, *, workers: Workers) -> Exercise:
    """The recipe's task, made ready for a network; ValueError or FileNotFoundError if files are missing or
    not as they should be, no row is left to train on, too few are to measure on, the network has too few
    positions, or a submission has the name of a file of a model directory or cannot hold a label.
    """
    task = recipe.known_task(saved)
    taken = [name for name in task.test if name in _OF_A_MODEL]
    if taken:
        raise ValueError(
            f'{task.name}: a submission cannot be called {taken[0]}, as a file of a model directory; call '
            f'it predictions.tsv'
        )
    check_fits(recipe.max_length, saved, pairs=len(task.fields) > 1)
    train, heldout, test = _examples(recipe, task, workers)
    try:
        constant = {name: majority_score(task.metrics, own.labels) for name, own in heldout.items()}
    except ValueError as error:  # too few rows for a correlation
        raise ValueError(
            f'{task.train}: {error} to measure on; give more, or see --held-out and --evaluation-limit'
        ) from error
    every = {'train': train, **heldout, **test}
    sets = _features(recipe, task, saved, every, workers)

    def measure(name: str, scores: np.ndarray) -> dict[str, float]:
        return score(task.metrics, decided(task.head, sets[name].by_text(scores)), heldout[name].labels)

    def right(name: str, scores: np.ndarray) -> np.ndarray:
        return scores.argmax(axis=1) == sets[name].labels

    def files(scores: Mapping[str, np.ndarray]) -> dict[str, bytes]:
        return {
            name: submission(task, examples.indices, sets[name].by_text(scores[name]))
            for name, examples in test.items()
        }

    return Exercise(
        name=task.name,
        head=task.head,
        train=sets['train'],
        heldout={name: sets[name] for name in heldout},
        metric=task.metrics[0],
        score=measure,
        test={name: sets[name] for name in test},
        files=files,
        samples={name: len(examples) for name, examples in every.items()},
        majority={f'{name}/{one}': value for name, own in constant.items() for one, value in own.items()},
        credits=right if task.metrics[0] == 'accuracy' else None,
    )


def finetune_glue(recipe: GlueRecipe, *, workers: Workers | None = None) -> FineTuningResult:
    """Fine-tune on a task of GLUE; `finetune` describes the result and the errors. The workers are those of
    the environment unless given.
    """
    return finetune(recipe, prepare_glue, workers=workers or Workers())


class SquadRecipe(Reading, FineTuneRecipe):
    """Fine-tuning on SQuAD."""

    version: Literal['1.1', '2.0'] = option('version of SQuAD; in 2.0 a question may have no answer', '1.1')
    learning_rate: PositiveFloat = option('peak learning rate', 5e-5)
    null_threshold: float = option(Reading.model_fields['null_threshold'].description, 0.0)

    def problems(self) -> list[str]:
        unread = self.null_threshold != 0 and self.version == '1.1'
        return super().problems() + ['null_threshold is about version 2.0, and version is 1.1'] * unread

    def head(self, saved: SavedModel | None = None) -> Head:
        """The head of the task."""
        return Head('question_answering', (), f'SQuAD v{self.version}')

    def reading(self) -> Reading:
        """Settings of reading questions and choosing answers."""
        return Reading.of(dict(self), self.max_length)


def squad_files(version: str) -> dict[str, str]:
    """The files of a version by part."""
    return {part: f'{part}-v{version}.json' for part in ('train', 'dev')}


def squad_directory(data: Path | None, version: str, workers: Workers) -> Path:
    """The directory of the files of a version; `data_directory` says how, and what it raises."""
    return data_directory(
        data,
        'squad',
        [*squad_files(version).values()],
        lambda name, root: SQuAD(name.split('-')[0], version, root=root),
        workers,
    )


def read_parts(data: Path | None, version: str, workers: Workers) -> dict[str, list[Question]]:
    """The questions of both parts, from a directory or as GluonNLP fetches them."""
    directory = squad_directory(data, version, workers)
    questions = {part: read_questions(directory / file) for part, file in squad_files(version).items()}
    if version == '1.1':
        for part, asked in questions.items():
            unanswered = [question.id for question in asked if not question.answers]
            if unanswered:
                raise ValueError(
                    f'{directory}: {len(unanswered)} questions of {part}-v1.1.json have no answer, the first '
                    f'is {unanswered[0]}; --version 2.0 takes such'
                )
    return questions


def prepare_squad(recipe: SquadRecipe, saved: SavedModel, *, workers: Workers) -> Exercise:
    """SQuAD, made ready for a network; ValueError or FileNotFoundError if files are missing or not as they
    should be, no answer to train on stands where it says, or the network has too few positions.
    """
    check_fits(recipe.max_length, saved, pairs=True)
    parts = read_parts(recipe.data, recipe.version, workers)
    asked = parts['dev'][: recipe.evaluation_limit]
    questions = {'train': parts['train'][: recipe.limit], 'dev': asked}
    read = make_question_reader(saved.vocabulary, recipe.reading())
    windows = {part: read(asked_of, labelled=part == 'train') for part, asked_of in questions.items()}
    if not len(windows['train'].features):
        raise ValueError(
            f'train-v{recipe.version}.json: none of the {len(questions["train"])} questions has an answer '
            'that stands in its context where it says, so there is nothing to train on'
        )
    texts = known_answers(asked, f'dev-v{recipe.version}.json')

    def answers(scores: np.ndarray) -> dict[str, Mapping[str, Any]]:
        best, nulls = best_answers(asked, windows['dev'], scores, recipe.reading())
        odds = nulls if recipe.version == '2.0' else None
        return answer_files(asked, best, odds, threshold=recipe.null_threshold)

    def files(scores: Mapping[str, np.ndarray]) -> dict[str, bytes]:
        contents = answers(scores['dev'])
        return {name: (json.dumps(content) + '\n').encode() for name, content in contents.items()}

    return Exercise(
        name=f'SQuAD v{recipe.version}',
        head=recipe.head(),
        train=windows['train'].features,
        heldout={'dev': windows['dev'].features},
        metric='f1',
        score=lambda _, scores: measure(texts, answers(scores)),
        test={},
        files=files,
        samples={
            **{part: len(np.unique(own.features.texts)) for part, own in windows.items()},
            **{f'{part}_windows': len(own.features) for part, own in windows.items()},
        },
        majority={f'dev/{name}': value for name, value in unanswered(texts, recipe.version).items()},
        credits=lambda _, scores: f1_by_question(texts, answers(scores)['predictions.json'], recipe.version),
    )


def measure(texts: Mapping[str, Sequence[str]], files: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The official scores of what `answer_files` gave.

    In version 2.0 they are those of ``predictions.json``; the best thresholds are those for ``answers.json``,
    in which no answer is withheld yet, with ``null_odds.json``.
    """
    if 'null_odds.json' not in files:
        return squad_v1(texts, files['predictions.json'])
    measured = squad_v2(texts, files['predictions.json'])
    best = squad_v2(texts, files['answers.json'], files['null_odds.json'])
    return {
        **{name: value for name, value in measured.items() if not name.endswith('total')},
        **{name: value for name, value in best.items() if name not in measured},
    }


def finetune_squad(recipe: SquadRecipe, *, workers: Workers | None = None) -> FineTuningResult:
    """Fine-tune on SQuAD; as `finetune_glue`."""
    return finetune(recipe, prepare_squad, workers=workers or Workers())
