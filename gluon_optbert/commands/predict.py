"""Predict with an exported classifier, regressor or question-answering network: a line of JSON for every
text.

A line of text is a sentence, two sentences with a tab between, or a question and its context with a tab
between. A file that ends with .jsonl has a JSON object on each line, with text, text and pair, or question
and context. One that ends with .json has questions in SQuAD's format. A file of the network's task with a
header is read by its columns."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Iterator, List, Optional

from .. import Predictor
from ..deployment.instances import FORMATS, Instance, stream_instances
from ..deployment.predictor import record
from ..runs.command_line import parse
from ..runs.recipe import option
from .starting import command, line


@dataclasses.dataclass(frozen=True)
class PredictRecipe:
    """What to predict, and with what."""

    deployment: Path = option('deployment directory of an export')
    input: Optional[Path] = option('file of text; standard input if not given', None)
    format: Optional[str] = option(
        'format of the input: lines of text, JSON lines, or SQuAD; by default what the name of the file ends '
        'with, and lines for standard input',
        None,
        choices=FORMATS,
    )
    batch_size: int = option('sequences that are computed together', 32)
    ahead: int = option(
        "batches' worth of lines that are read before the first is answered, to put like lengths together", 16
    )

    null_threshold: Optional[float] = option(
        'of questions: how far the score of having no answer must be above that of the '
        "best one to win; by default the export's",
        None,
    )

    def problems(self) -> List[str]:
        """What is out of range."""
        return [
            f'{name} must be at least 1, found {getattr(self, name)}'
            for name in ('batch_size', 'ahead')
            if getattr(self, name) < 1
        ]


def instances_of(recipe: PredictRecipe, predictor: Predictor) -> Iterator[Instance]:
    """The instances of the input; those of a file are all checked before the first is given."""
    if recipe.input is not None:
        for _ in stream_instances(recipe.input, predictor.head, format=recipe.format):
            pass
    return stream_instances(recipe.input, predictor.head, format=recipe.format)


@command
def main(argv=None):
    """Predict, line by line."""
    example = line('optbert-predict', 'deploy', '--input', 'sentences.txt')
    recipe = parse(PredictRecipe, argv, description=__doc__, positional='deployment', example=example)
    predictor = Predictor(recipe.deployment, null_threshold=recipe.null_threshold)
    shown, read = itertools.tee(instances_of(recipe, predictor))
    predictions = predictor.predict(read, batch_size=recipe.batch_size, ahead=recipe.ahead)
    for instance, prediction in zip(shown, predictions):
        print(json.dumps(record(instance, prediction), ensure_ascii=False), flush=True)
