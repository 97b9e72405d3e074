"""The commands that use an export: they predict, serve, and score what was predicted. None needs MXNet."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, PositiveInt

from ..architecture.heads import PRETRAINING, Head
from ..deployment.engines import ENGINES, PRECISIONS
from ..deployment.instances import FORMATS, Instance, stream_instances
from ..deployment.predictor import Predictor, record
from ..network.saved_model import HEAD
from ..runs.command_line import command, parse
from ..runs.display import doing, tracked
from ..runs.failures import say
from ..runs.files import new_output, read_json, write_file
from ..runs.limits import MOST_CARD_BYTES
from ..runs.progress import MARK, exceeds, score_text
from ..runs.recipe import Recipe, option
from ..runs.starting import line, what_it_is
from ..serving.settings import EmbeddingOptions, ServiceSettings
from ..tasks.features import LONG
from ..tasks.own_data import TableOptions
from ..tasks.task import Task, find_task, known_head, packaged_task


class NetworkRecipe(Recipe):
    """The network of an export, and how it is computed."""

    deployment: Path = option('deployment directory of an export')
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
    null_threshold: float | None = option(
        'for question answering: "no answer" is predicted if its score exceeds that of the best answer by '
        'more than this; by default as in fine-tuning',
        None,
    )
    long: str | None = option(
        'what is done with a text that is too long. cut: its end is left out; split: it is read in windows, '
        'of whose scores the mean is taken; by default as the export says',
        None,
        choices=LONG,
    )

    def predictor(self) -> Predictor:
        """The network, loaded."""
        return Predictor(
            self.deployment,
            engine=self.engine,
            threads=self.threads,
            precision=self.precision,
            null_threshold=self.null_threshold,
            long=self.long,
        )


class PredictRecipe(EmbeddingOptions, NetworkRecipe):
    """Recipe of `predict`: texts, network and engine."""

    input: Path | None = option('file of text; by default standard input', None)
    format: str | None = option(
        'format of the input: lines of text, JSON lines, SQuAD, or tagged words; by default from the ending '
        'of the file, of which .csv and .tsv are tables, and lines for standard input',
        None,
        choices=FORMATS,
    )
    text: tuple[str, ...] = option(
        'column of the text in a table, .csv, .tsv or .jsonl; of pairs both, with a comma between. By '
        'default as in fine-tuning, or the one with a usual name',
        (),
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

    def problems(self) -> list[str]:
        """Contradictory fields."""
        problems = super().problems()
        if len(self.text) > 2:
            problems.append(f'--text must be one column or two, found {",".join(self.text)}')
        if self.embed is None:
            problems += [f'--{name} goes with --embed' for name in self.of_embeddings()]
        return problems


def instances_of(recipe: PredictRecipe, predictor: Predictor) -> tuple[Iterator[Instance], int | None]:
    """The instances of the input, and of a file how many; these are all checked before the first is given."""
    read = functools.partial(
        stream_instances, recipe.input, predictor.head, format=recipe.format, text=recipe.text
    )
    return read(), None if recipe.input is None else sum(1 for _ in read())


def say_cut(predictor: Predictor) -> None:
    """Say how many texts were cut, if any were."""
    if predictor.cut_note:
        print(predictor.cut_note, file=sys.stderr)


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
    with new_output(output, remedy='remove it or give another --embed'):
        instances = list(instances_of(recipe, predictor)[0])
        size = recipe.batch_size * recipe.ahead
        parts = [instances[first : first + size] for first in range(0, max(1, len(instances)), size)]
        options = {name: getattr(recipe, name) for name in ('pooling', 'normalise', 'batch_size')}
        shown = tracked(parts, 'embedding', len(instances), unit='text', size=len)
        embeddings = np.concatenate([predictor.encode(part, **options) for part in shown])
        content = io.BytesIO()
        np.save(content, embeddings)
        write_file(output, content.getvalue())
    print(f'wrote {output}: {len(embeddings)} embeddings of {embeddings.shape[1]} numbers')


@command
def predict(argv=None):
    """Predict with an exported classifier, regressor or question-answering network: a line of JSON for every
    text.

    A line of text is a sentence, two sentences with a tab between, or a question and its context with a tab
    between. A file that ends with .jsonl has a JSON object on each line, with text, text and pair, or
    question and context. One that ends with .json has questions in SQuAD's format. A file of the network's
    task with a header is read by its columns. With --embed, the export of an encoder gives embeddings.
    """
    example = line('optbert-predict', 'deploy', '--input', 'sentences.txt')
    recipe = parse(PredictRecipe, argv, description=predict.__doc__, positional='deployment', example=example)
    if recipe.input is not None and not recipe.input.exists():
        raise FileNotFoundError(f'{recipe.input}: no such file')
    if recipe.input is not None and recipe.input.is_dir():
        raise IsADirectoryError(f'{recipe.input} is a directory; give a file of lines')
    predictor = recipe.predictor()
    print(f'engine: {predictor.engine}, {predictor.choice}', file=sys.stderr)
    source = 'standard input' if recipe.input is None else recipe.input
    with readable_twice(recipe) as recipe:
        if recipe.embed is not None:
            embed(recipe, predictor, recipe.embed)
            say_cut(predictor)
            return
        instances, count = instances_of(recipe, predictor)
        shown, read = itertools.tee(instances)
        predictions = predictor.predict(read, batch_size=recipe.batch_size, ahead=recipe.ahead)
        answered = False
        with doing('predicting', count, unit='text', quiet=sys.stdout.isatty()) as display:
            for instance, prediction in zip(shown, predictions):
                print(json.dumps(record(instance, prediction), ensure_ascii=False), flush=True)
                answered = True
                display.advance()
        say_cut(predictor)
        if not answered:
            print(f'{source}: has no lines, so there are no predictions', file=sys.stderr)


class ServeRecipe(ServiceSettings, NetworkRecipe):
    """Recipe of `serve`: network, address and limits."""

    host: str = option('address to listen on; 0.0.0.0 is every address of this machine', '127.0.0.1')
    port: Annotated[int, Field(ge=0, lt=2**16)] = option(
        'port to listen on; 0 is any free one, which is printed', 8000
    )
    host_names: tuple[str, ...] = option(
        'names in the Host header of requests that are answered, beside those of this machine, as when a '
        'reverse proxy passes its own on; by default any, or none where --host is of this machine alone',
        (),
    )


@command
def serve(argv=None):
    """Serve an export over HTTP: POST /predict or /embed, GET /health, and GET / with a page to try texts in.

    The service listens on this machine alone unless --host says otherwise. It checks what it is sent, but it
    asks for no password and does not encrypt: put a reverse proxy before it on any other network.
    """
    from ..serving import server
    from ..serving.app import make_app

    example = line('optbert-serve', 'deploy', '--port', 8000)
    recipe = parse(ServeRecipe, argv, description=serve.__doc__, positional='deployment', example=example)
    listener = server.listen(recipe.host, recipe.port)
    with listener:
        predictor = recipe.predictor()
        name = recipe.deployment.absolute().name
        card = recipe.deployment / 'README.md'
        readable = card.is_file() and card.stat().st_size <= MOST_CARD_BYTES
        text = card.read_text(encoding='utf-8', errors='replace') if readable else ''
        checked = recipe.host_names or server.is_local(listener)
        names = tuple(map(str.lower, recipe.host_names)) if checked else None
        app = make_app(predictor, name=name, card=text, settings=recipe, host_names=names)

        def ready(address: str) -> None:
            print(f'engine: {predictor.engine}, {predictor.choice}', file=sys.stderr)
            print(f'serving {recipe.deployment} at {address}; Ctrl-C stops it', flush=True)

        server.serve(app, listener, settings=recipe, ready=ready)
    say_cut(predictor)
    print('stopped')


class ScoreRecipe(TableOptions):
    """Recipe of `score`: predictions and labels."""

    GROUPS = {'the columns of --data': ('text', 'label', 'kind', 'labels')}
    ALTERNATIVES = tuple(('task', name, 'a task says it') for name in ('model', 'text', 'label', 'kind'))

    predictions: Path = option('predictions: JSON lines, a submission (.tsv), or texts by question id')
    data: Path = option('labelled file: a table, dev.tsv of a task, or dev-v2.0.json of SQuAD')
    task: str | None = option(
        'SQuAD1.1, SQuAD2.0, a task of GLUE, or a JSON file that describes a task; by default what the '
        'network was fine-tuned on, or the data by their columns',
        None,
    )
    model: Path | None = option(
        'model directory or export that predicted, which says what it was fine-tuned on; by default the '
        'directory of the predictions, if it is one',
        None,
    )
    null_odds: Path | None = option(
        'null_odds.json of a run on SQuAD 2.0, to find the best thresholds; its answers.json must then be '
        'the --predictions',
        None,
    )

    def problems(self) -> list[str]:
        """Contradictory or unclear fields."""
        unclear = (self.task or '').lower() == 'squad'
        return super().problems() + ['--task SQuAD needs its version: SQuAD1.1 or SQuAD2.0'] * unclear


@command
def score(argv=None):
    """Score a file of predictions on labelled data, those of GLUE and SQuAD as the official scripts do.

    Predictions are what tools/predict.py prints; or a submission of GLUE, with the columns index and
    prediction; or SQuAD's predictions.json, texts by question id.
    """
    words = ['--predictions', 'predictions.jsonl', '--data', 'dev.csv']
    recipe = parse(
        ScoreRecipe, argv, description=score.__doc__, example=line('optbert-score', *words), positional=''
    )
    _, notes, lines = scores_of(recipe)
    say(*(f'note: {note}' for note in notes), *lines)


def head_of(directory: Path) -> Head | None:
    """The head of the task that a model directory or an export describes; None if there is none."""
    for name in (HEAD, 'manifest.json'):
        if (directory / name).is_file():
            values, source = read_json(directory / name), str(directory / name)
            values = values if name == HEAD else values.get('head')
            head = PRETRAINING if values is None else known_head(Head.from_dict(values, source=source))
            return head if head.outputs else None
    return None


def scored_task(recipe: ScoreRecipe, head: Head | None = None) -> Task | str:
    """The task that predictions are of, or the version of SQuAD; the head is that of the network, if it is
    at hand.
    """
    from ..tasks.examples import task_of_file, task_of_head, with_head
    from ..tasks.scoring import squad_version, version_of

    if recipe.task is None:
        head = head or head_of(recipe.model or recipe.predictions.parent)
    if recipe.model is not None and head is None:
        remedy = what_it_is(recipe.model) or 'it is no fine-tuned network, nor the export of one'
        raise ValueError(f'{recipe.model} names no task: {remedy}')
    name = recipe.task or (head.task if head else '')
    if squad_version(name) is not None:
        return squad_version(name)
    if head.kind == 'question_answering' if head else not name and recipe.data.suffix.lower() == '.json':
        return version_of(recipe.data)
    stated = recipe.text or recipe.label or recipe.kind
    if recipe.task:
        task = with_head(find_task(name), recipe.data)
    elif name and not stated and packaged_task(name):
        task = packaged_task(name)
    elif head and (recipe.text or head.columns) and not recipe.kind:
        columns = (*(recipe.text or head.columns[:-1]), recipe.label or (head.columns or ('label',))[-1])
        task = task_of_head(dataclasses.replace(head, columns=columns), recipe.data)
    else:
        task = task_of_file(recipe.data, text=recipe.text, label=recipe.label, kind=recipe.kind)
    return task.of(task.head.named(recipe.labels)) if recipe.labels else task


def scores_of(recipe: ScoreRecipe, head: Head | None = None) -> tuple[dict[str, float], list[str], list[str]]:
    """The scores, in percent, notes on the data, and lines for people on the scores; the head is as of
    `scored_task`.
    """
    from ..tasks.metrics import majority_score
    from ..tasks.scoring import score_squad, score_task

    task = scored_task(recipe, head)
    version = task if isinstance(task, str) else None
    if recipe.null_odds is not None and version != '2.0':
        raise ValueError('--null-odds goes with --task SQuAD2.0')
    of_tables = [name for name in ('text', 'label', 'kind', 'labels') if not recipe.is_default(name)]
    if version is not None and of_tables:
        raise ValueError(f'--{of_tables[0]} goes with a table, and {recipe.data} has questions with answers')
    if version is not None:
        scores, majority, notes = score_squad(version, recipe.data, recipe.predictions, recipe.null_odds)
        what, constant = f'SQuAD {version}', 'no answer to any question'
    else:
        scores, examples, notes = score_task(task, recipe.data, recipe.predictions)
        majority = majority_score(task.metrics, examples.labels)
        what = f'{task.name}, {len(examples)} rows'
        constant = 'always the mean' if task.head.kind == 'regression' else 'always the majority class'
    lines = [
        f'{what}: {shown(scores, majority)}',
        f'{constant}: {shown({name: majority[name] for name in scores if name in majority})}',
    ]
    if not all(exceeds(value, majority.get(name)) for name, value in scores.items()):
        lines.append(f'{MARK} no better than {constant}, which needs no network')
    return scores, notes, lines


def shown(scores: Mapping[str, float], majority: Mapping[str, float] | None = None) -> str:
    """Scores in one line: percents with two digits, marked where no better than `majority`; counts as they
    are.
    """
    return ' | '.join(
        f'{name} {value}'
        if isinstance(value, int)
        else f'{name} {score_text(value, majority=(majority or {}).get(name), digits=2)}'
        for name, value in scores.items()
    )
