"""Fine-tuning on the tasks of GLUE."""
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
from gluonnlp.base import get_home_dir

from .checkpoint import SavedModel
from .distributed import Workers
from .features import Features, pair
from .finetuning import Exercise, FineTuneRecipe, finetune
from .metrics import score
from .recipe import option
from .tasks import Examples, Task, fetch, find_task, read_examples, read_sets, submission
from .vocabulary import make_tokenizer


@dataclasses.dataclass(frozen=True)
class GlueRecipe(FineTuneRecipe):
    """Fine-tuning on one task of GLUE."""
    task: str = option('MNLI, MRPC, SST-2, RTE, CoLA, QNLI, QQP, STS-B, WNLI, or a JSON file that describes another')
    max_length: int = option('tokens of an instance; what is longer is cut', 128)

    def problems(self) -> List[str]:
        """What is out of range."""
        return super().problems() + ([f'max_length must be at least 5, found {self.max_length}'] if self.max_length < 5 else [])


def features_of(examples: Examples, saved: SavedModel, *, max_length: int, cased: bool = False) -> Features:
    """The examples as a network with this vocabulary reads them."""
    tokenize, vocabulary = make_tokenizer(saved.vocabulary, cased=cased), saved.vocabulary
    cls_id, sep_id = vocabulary[vocabulary.cls_token], vocabulary[vocabulary.sep_token]
    instances = (pair(tokenize(texts[0]), tokenize(texts[1]) if len(texts) == 2 else None, cls_id=cls_id, sep_id=sep_id,
                      max_length=max_length) for texts in examples.texts)
    return Features.of(instances, examples.labels)


def data_directory(task: Task, data: Any, workers: Workers) -> Path:
    """Where the files of a task are: the directory given, or GluonNLP's own after it has fetched them.

    Raises
    ------
    FileNotFoundError
        If the directory is not there, or nothing can be fetched.
    """
    if data is not None:
        if not Path(data).is_dir():
            raise FileNotFoundError(f'{data}: no such directory')
        return Path(data)
    if not task.gluonnlp:
        raise FileNotFoundError(f'{task.name} is none of GluonNLP\'s data sets; give the directory of its files with --data')
    directory = Path(get_home_dir(), 'datasets', 'glue').expanduser()
    if workers.local_rank == 0:
        fetch(task, directory)
    workers.barrier('fetched')
    return directory


def prepare_glue(recipe: GlueRecipe, saved: SavedModel) -> Exercise:
    """The recipe's task, made ready for a network.

    Raises
    ------
    ValueError, FileNotFoundError
        If files are missing or not as they should be, or the network has too few positions.
    """
    if recipe.max_length > saved.architecture.max_length:
        raise ValueError(f'max_length is {recipe.max_length}, and the network has {saved.architecture.max_length} positions')
    task = find_task(recipe.task)
    data = data_directory(task, recipe.data, Workers())
    train = read_examples(task, data / task.train).first(recipe.limit)
    heldout, test = ({name: examples.first(recipe.evaluation_limit) for name, examples in read_sets(
        task, data, files, labelled=labelled).items()} for files, labelled in ((task.dev, True), (task.test, False)))
    if not heldout:
        raise FileNotFoundError(f'{data}: there is no {" and no ".join(task.dev.values())} to measure on')

    def ready(examples: Examples) -> Features:
        return features_of(examples, saved, max_length=recipe.max_length, cased=recipe.cased)

    def measure(name: str, scores: np.ndarray) -> Dict[str, float]:
        predictions = scores[:, 0] if task.head.kind == 'regression' else scores.argmax(axis=1)
        return score(task.metrics, predictions, heldout[name].labels)

    def files(scores: Mapping[str, np.ndarray]) -> Dict[str, bytes]:
        return {name: submission(task, examples.indices, scores[name]) for name, examples in test.items()}
    return Exercise(name=task.name, head=task.head, train=ready(train),
                    heldout={name: ready(examples) for name, examples in heldout.items()}, metric=task.metrics[0], score=measure,
                    test={name: ready(examples) for name, examples in test.items()}, files=files,
                    samples={name: len(examples) for name, examples in {'train': train, **heldout, **test}.items()})


def finetune_glue(recipe: GlueRecipe) -> Dict[str, Any]:
    """Fine-tune on a task of GLUE; `finetune` says what comes of it and what it raises."""
    return finetune(recipe, lambda saved: prepare_glue(recipe, saved))
