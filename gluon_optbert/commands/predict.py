"""Predict with an exported classifier, regressor or question-answering network: a line of JSON for every line
of text.

A line of text is a sentence, two sentences with a tab between, or a question and its context with a tab
between. Lines are read as they are needed."""

import dataclasses
import json
from pathlib import Path
from typing import Iterator, List, Optional

from .. import Predictor
from ..deployment.predictor import Instance, instance_of
from ..runs.command_line import parse
from ..runs.recipe import option
from .starting import command, line


@dataclasses.dataclass(frozen=True)
class PredictRecipe:
    """What to predict, and with what."""

    deployment: Path = option('deployment directory of an export')
    input: Optional[Path] = option('file of text; standard input if not given', None)
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


def lines_of(path: Optional[Path]) -> Iterator[Instance]:
    """The instances of a file or of standard input, as they are asked for."""
    if path is not None and not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    source = 'standard input' if path is None else str(path)
    with open(0 if path is None else path, encoding='utf-8', closefd=path is not None) as file:
        try:
            for i, line in enumerate(file, 1):
                yield instance_of(line, source=f'{source}: line {i}')
        except UnicodeDecodeError as error:
            raise ValueError(f'{source}: not UTF-8 at byte {error.start}; convert it') from error


@command
def main(argv=None):
    """Predict, line by line."""
    example = line('optbert-predict', 'deploy', '--input', 'sentences.txt')
    recipe = parse(PredictRecipe, argv, description=__doc__, positional='deployment', example=example)
    predictor = Predictor(recipe.deployment, null_threshold=recipe.null_threshold)
    for found in predictor.predict(lines_of(recipe.input), batch_size=recipe.batch_size, ahead=recipe.ahead):
        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False), flush=True)
