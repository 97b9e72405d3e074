"""Predict with an exported classifier, regressor or question-answering network: a line of JSON for every
text.

A line of text is a sentence, two sentences with a tab between, or a question and its context with a tab
between. A file that ends with .jsonl has a JSON object on each line, with text, text and pair, or question
and context. One that ends with .json has questions in SQuAD's format. A file of the network's task with a
header is read by its columns. With --embed, the export of an encoder gives embeddings."""

import contextlib
import io
import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import numpy as np
from pydantic import PositiveInt

from .. import Predictor
from ..deployment.description import ONNX, SYMBOL
from ..deployment.engines import ENGINES, PRECISIONS
from ..deployment.instances import FORMATS, Instance, stream_instances
from ..deployment.predictor import POOLINGS, record
from ..runs.command_line import parse
from ..runs.display import counting
from ..runs.files import refuse_existing, write_file
from ..runs.recipe import Recipe, option
from .starting import command, line, what_to_export


class PredictRecipe(Recipe):
    """What to predict, and with what."""

    deployment: Path = option('deployment directory of an export')
    input: Path | None = option('file of text; by default standard input', None)
    format: str | None = option(
        'format of the input: lines of text, JSON lines, or SQuAD; by default from the ending of the file, '
        'and lines for standard input',
        None,
        choices=FORMATS,
    )
    engine: str | None = option(
        'library that runs the network: onnxruntime and openvino read model.onnx. By default onnxruntime '
        'if it is installed and there is that file, else mxnet, else openvino',
        None,
        choices=ENGINES,
    )
    precision: str | None = option(
        'bfloat16, for openvino on a processor that has it; "int8 dynamic", for the second ONNX file of an '
        'export in int8; by default that of the export',
        None,
        choices=PRECISIONS,
    )
    threads: PositiveInt | None = option(
        'number of threads; by default one for each core that this process may use and no other program uses '
        'now',
        None,
    )
    batch_size: PositiveInt = option('sequences in a batch', 32)
    ahead: PositiveInt = option(
        'number of batches to read ahead and sort by length, which saves padding; with 1 the first answer '
        'comes soonest',
        16,
    )
    embed: Path | None = option(
        'NumPy file to write the embeddings to, one row for each text, instead of predicting; needs the '
        'export of an encoder',
        None,
        metavar='OUT.npy',
    )
    pooling: str = option(
        'embedding of a text: the mean of its tokens, or its first token, [CLS]', 'mean', choices=POOLINGS
    )
    normalise: bool = option(
        'whether embeddings are scaled to length 1, so that their dot products are cosines', True
    )
    null_threshold: float | None = option(
        'for question answering: "no answer" is predicted if its score exceeds that of the best answer by '
        'more than this; by default as in fine-tuning',
        None,
    )


def instances_of(recipe: PredictRecipe, predictor: Predictor) -> Iterator[Instance]:
    """The instances of the input; those of a file are all checked before the first is given."""
    if recipe.input is not None:
        for _ in stream_instances(recipe.input, predictor.head, format=recipe.format):
            pass
    return stream_instances(recipe.input, predictor.head, format=recipe.format)


@contextlib.contextmanager
def readable_twice(recipe: PredictRecipe) -> Iterator[PredictRecipe]:
    """The recipe with a copy of an input that is no file, such as a pipe, which can be read once only."""
    if recipe.input is None or recipe.input.is_file():
        yield recipe
        return
    with tempfile.NamedTemporaryFile(prefix='input-', suffix=recipe.input.suffix) as copy:
        with open(recipe.input, 'rb') as pipe:
            shutil.copyfileobj(pipe, copy)
        copy.flush()
        try:
            yield recipe.replace(input=copy.name)
        except ValueError as error:  # it names the copy, which is no file of the user
            raise ValueError(str(error).replace(copy.name, str(recipe.input))) from error


def embed(recipe: PredictRecipe, predictor: Predictor, output: Path) -> None:
    """Write the embeddings of the input."""
    refuse_existing(output, remedy='remove it or give another --embed')
    instances = list(instances_of(recipe, predictor))
    size = recipe.batch_size * recipe.ahead
    parts = []
    with counting('embedding', len(instances), unit='text') as count:
        for first in range(0, max(1, len(instances)), size):
            some = instances[first : first + size]
            parts.append(
                predictor.encode(
                    some, pooling=recipe.pooling, normalise=recipe.normalise, batch_size=recipe.batch_size
                )
            )
            count(len(some))
    embeddings = np.concatenate(parts)
    content = io.BytesIO()
    np.save(content, embeddings)
    write_file(output, content.getvalue())
    print(f'wrote {output}: {len(embeddings)} embeddings of {embeddings.shape[1]} numbers')


@command
def main(argv=None):
    """Predict, text by text."""
    example = line('optbert-predict', 'deploy', '--input', 'sentences.txt')
    recipe = parse(PredictRecipe, argv, description=__doc__, positional='deployment', example=example)
    if not any((recipe.deployment / name).is_file() for name in (SYMBOL, ONNX)):
        remedy = what_to_export(recipe.deployment)
        if remedy is not None:
            raise ValueError(remedy)
    if recipe.input is not None and not recipe.input.exists():
        raise FileNotFoundError(f'{recipe.input}: no such file')
    if recipe.input is not None and recipe.input.is_dir():
        raise IsADirectoryError(f'{recipe.input} is a directory; give a file of lines')
    predictor = Predictor(
        recipe.deployment,
        engine=recipe.engine,
        threads=recipe.threads,
        precision=recipe.precision,
        null_threshold=recipe.null_threshold,
    )
    print(f'engine: {predictor.engine}, {predictor.choice}', file=sys.stderr)
    source = 'standard input' if recipe.input is None else recipe.input
    with readable_twice(recipe) as recipe:
        if recipe.embed is not None:
            embed(recipe, predictor, recipe.embed)
            return
        shown, read = itertools.tee(instances_of(recipe, predictor))
        predictions = predictor.predict(read, batch_size=recipe.batch_size, ahead=recipe.ahead)
        answered = False
        for instance, prediction in zip(shown, predictions):
            print(json.dumps(record(instance, prediction), ensure_ascii=False), flush=True)
            answered = True
        if not answered:
            print(f'{source}: has no lines, so there are no predictions', file=sys.stderr)
