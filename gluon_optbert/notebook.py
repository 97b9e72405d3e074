"""Runs and networks as objects, pages and plots of them, and networks of Transformers in memory: for Python
callers, and not for commands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .architecture.architecture import Architecture, described_html
from .deployment.predictor import Predictor as Loaded
from .network.saved_model import SavedModel, read_model as read, write_model
from .runs.display import markdown_table, number_of
from .runs.failures import remedied, shown
from .runs.programs import COMMANDS
from .runs.progress import MARK
from .tasks.features import cut_note
from .text.tokenizer import vocabulary_hash

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY_COMMAND = {
    place: command.name for program, command in COMMANDS.items() for place in (program, command.script)
}
_NAMED = '|'.join(map(re.escape, sorted(_BY_COMMAND, key=len, reverse=True)))
_LINE = re.compile(rf'(?:python |: )(?P<command>{_NAMED})(?P<words>(?: [^\s;)]+)+)')
_FLAG = re.compile(r'(?<![\w-])--([a-z][a-z0-9-]*)(?: (?:(?=[0-9])|([a-z]+)(?=$|[,;])))?')
_OTHERS = re.compile(r'(\bhf download [^;]+)')  # commands of others, which keep their flags


def in_python(message: str) -> str:
    """A message with arguments and functions in place of flags and commands: ``max_length=512`` for
    ``--max-length 512``.
    """

    def call(found: re.Match) -> str:
        try:
            given, words = [], shlex.split(found['words'])
        except ValueError:  # an apostrophe in a name
            return found[0]
        while words:
            word = words.pop(0)
            if word.startswith('--'):
                value = words.pop(0) if words and not words[0].startswith('--') else True
                given.append(f'{word[2:].replace("-", "_")}={value!r}')
            else:
                given.append(repr(Path(word).stem if word.endswith('.yaml') else word))
        start = ': ' if found[0].startswith(': ') else ''
        return f'{start}opt.{_BY_COMMAND[found["command"]]}({", ".join(given)})'

    def argument(found: re.Match) -> str:
        if found[1] == 'resume':  # all others are named to be given another value
            return 'resume=True'
        value = repr(found[2]) if found[2] else ''
        return found[1].replace('-', '_') + ('=' if ' ' in found[0] else '') + value

    def translated(part: str) -> str:
        part = _FLAG.sub(argument, _LINE.sub(call, part))
        return re.sub(rf'(?<![\w/])({_NAMED})(?![\w/-])', lambda found: f'opt.{_BY_COMMAND[found[1]]}', part)

    parts = _OTHERS.split(message)
    return ''.join(part if number % 2 else translated(part) for number, part in enumerate(parts))


@contextlib.contextmanager
def said_in_python() -> Iterator[None]:
    """Errors and warnings of the block name arguments, not flags; errors say how to install a library that is
    missing.
    """
    before = logging.getLogRecordFactory()

    def translated(*args: Any, **kwargs: Any) -> logging.LogRecord:
        one = before(*args, **kwargs)
        if one.name.startswith(f'{__package__}.'):
            one.msg, one.args = in_python(one.getMessage()), ()
        return one

    logging.setLogRecordFactory(translated)
    try:
        with remedied():
            yield
    except ImportError:  # which names pip's flags
        raise
    except Exception as error:
        error.args = tuple(in_python(one) if isinstance(one, str) else one for one in error.args)
        if isinstance(problems := getattr(error, 'problems', None), list):
            error.problems = list(map(in_python, problems))
        raise
    finally:
        logging.setLogRecordFactory(before)


# Networks


class Model(SavedModel):
    """A `SavedModel`, and what leads on from it."""

    @classmethod
    def of(cls, saved: SavedModel) -> Model:
        """The same network."""
        return cls(**{field.name: getattr(saved, field.name) for field in dataclasses.fields(saved)})

    @said_in_python()
    def to_transformers(self, head: str | None = None) -> tuple[Any, Any]:
        """The network and its tokenizer as objects of Transformers; needs torch and transformers.

        Plain widths give Transformers' own BERT, others the network of an export for Transformers, whose
        ``save_pretrained`` writes its code beside it.

        Parameters
        ----------
        head : str, optional
            As of `export`: ``encoder`` or ``pretraining`` where there is no head of a task.

        Returns
        -------
        model : transformers.PreTrainedModel
            Its numbers are copies.
        tokenizer : transformers.PreTrainedTokenizerFast
        """
        from .deployment.library_exports import as_transformers

        return as_transformers(self, head)


@said_in_python()
def read_model(directory: str | Path) -> Model:
    """The network of a model directory.

    Raises
    ------
    FileNotFoundError, ValueError
        If it is incomplete, was changed, or its parts do not fit each other.
    """
    return Model.of(read(Path(directory)))


def from_transformers(model: Any, tokenizer: Any, *, as_is: bool = False) -> Model:
    """A BERT of Transformers that is in memory, as a network here; no weight is written to disk.

    Heads of pre-training that the model lacks are random, as of an imported checkpoint.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain BERT with the head of `import_checkpoint` or none; or what `Model.to_transformers` gave.
    tokenizer : transformers.PreTrainedTokenizer
        That of the model.
    as_is : bool
        Whether to take a tokenizer that reads text otherwise than it is read here.

    Raises
    ------
    TypeError
        If it is no such model, or no tokenizer.
    ValueError
        Listing every tensor, width and setting that does not fit.
    """
    from .importing.convert import KNOWN_STEPS, convert, known
    from .importing.sources import read_hugging_face

    for wanted, found, method in (
        ('model', model, 'state_dict'),
        ('tokenizer', tokenizer, 'save_pretrained'),
    ):
        if not hasattr(found, method):
            raise TypeError(f'wanted a {wanted} of Transformers, found {type(found).__name__}')
    # bfloat16 has no NumPy
    arrays = {name: tensor.detach().cpu().float().numpy() for name, tensor in model.state_dict().items()}
    config = {**model.config.to_dict(), 'architectures': [type(model).__name__]}
    with said_in_python(), tempfile.TemporaryDirectory() as place:
        Path(place, 'config.json').write_text(json.dumps(config, default=str), encoding='utf-8')
        tokenizer.save_pretrained(place)
        try:
            source = read_hugging_face(Path(place), as_is=as_is, arrays=arrays)
            is_known = known(str(config.get('_name_or_path')), source.architecture, source.head)
            made = convert(source, steps=KNOWN_STEPS if is_known else 0)
        except (ValueError, FileNotFoundError) as error:
            said = str(error).replace(f'{place}/', 'the model: ').replace('--tokenizer as-is', 'as_is=True')
            raise type(error)(said) from error
    for note in made.notes:
        warnings.warn(shown(note.replace(f'{place}/', '')), stacklevel=2)
    return Model.of(made.model)


# Runs


class Table(str):
    """Markdown, which a notebook shows as a table."""

    def _repr_markdown_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return str(self)


class Run:
    """A run that has made networks.

    Parameters
    ----------
    recipe : Recipe
        As it was run.
    result : object
        What the function of the run gives: its rounds, its scores, or what was imported.
    place : TemporaryDirectory, optional
        That goes with this object, where no output was named.

    Attributes
    ----------
    output : Path
    """

    def __init__(self, recipe: Any, result: Any, place: Any = None):
        self.recipe, self.result, self.output, self._place = recipe, result, recipe.output, place

    @property
    def directory(self) -> Path:
        """The model directory of `model`."""
        from .runs.starting import models_in

        return next(iter(models_in(self.output)), self.output)

    @functools.cached_property
    def model(self) -> Model:
        """The network of the last round, or of the first seed."""
        return read_model(self.directory)

    @property
    def rounds(self) -> list[Any]:
        """Of pruning: the network that went in, and every round."""
        return self.result if isinstance(self.result, list) else []

    def table(self) -> Table:
        """Rounds of pruning; scores of fine-tuning by seed, in percent; else widths by layer."""
        if self.rounds:
            first, names = self.rounds[0], ('before', 'after_cut', 'after_reconstruction', 'recovered')
            names = [name for name in names if any(getattr(row, name) for row in self.rounds)]
            metric = getattr(first.recovered, 'metric', 'MLM loss')
            head = ['round', 'parameters', 'FLOPs', 'of the first']
            head += [f'{metric} {name.replace("_", " ")}' for name in names]
            rows = [
                [row.round, f'{row.parameters / 1e6:.2f} M', f'{row.flops / 1e9:.2f} G']
                + [f'{row.flops / first.flops:.0%}']
                + [getattr(getattr(row, name), 'value', None) for name in names]
                for row in self.rounds
            ]
        elif hasattr(self.result, 'runs'):
            head = ['seed', *self.result.mean]
            rows = [[run.seed, *run.scores.values()] for run in self.result.runs]
            rows.append(['mean', *self.result.mean.values()])
        else:
            head = ['layer', 'a', 'k', 'v', 'f']
            rows = [
                [i, *dataclasses.astuple(layer)] for i, layer in enumerate(self.model.architecture.layers, 1)
            ]
        return Table(
            markdown_table(
                head, ([f'{one:.2f}' if isinstance(one, float) else one for one in row] for row in rows)
            )
        )

    def __repr__(self) -> str:
        kind = type(self.recipe).__name__.removesuffix('Recipe')
        rounds = f' of {number_of(len(self.rounds) - 1, "round")}' if self.rounds else ''
        return f'{kind} run{rounds}, in {self.output}\n{self.model!r}'

    def _repr_html_(self) -> str:
        return described_html(self, self.model.architecture)


def given_on_disk(values: dict[str, Any], output: Path) -> dict[str, Any]:
    """The fields of a recipe with paths, as words, in place of runs and networks; a network in memory is
    written beside the output of the run that reads it.
    """
    paths = dict(values)
    for name, value in values.items():
        if isinstance(value, Run):
            paths[name] = value.directory if name in ('model', 'base', 'teacher') else value.output
        elif isinstance(value, SavedModel):
            paths[name] = output.with_name(f'{output.name}.{name}')
            if not paths[name].exists():
                write_model(paths[name], value)
            elif not _is_same(read(paths[name]), value):
                raise ValueError(f'{paths[name]} is another network than that of {name}; remove it')
    return {name: str(value) if isinstance(value, Path) else value for name, value in paths.items()}


def _is_same(one: SavedModel, other: SavedModel) -> bool:
    """Whether a run takes two networks for one: weights, gates, head, vocabulary and progress are equal."""
    (arrays, *values), (others, *wanted) = (
        (
            {**model.parameters, **{key: alpha for key, alpha in (model.alphas or {}).items() if len(alpha)}},
            *(model.architecture, model.head.to_dict(), vocabulary_hash(model.vocabulary), model.progress),
        )
        for model in (one, other)
    )
    return values == wanted and all(
        np.array_equal(arrays.get(name), others.get(name)) for name in {*arrays, *others}
    )


# Predictions


class Predictor(Loaded):
    __doc__ = Loaded.__doc__
    __init__ = said_in_python()(Loaded.__init__)

    @property
    def cut_note(self) -> str:
        """Number of texts that were cut so far, in words, and what would help; empty if none."""
        return in_python(super().cut_note)


def predictor_of(network: Any) -> Predictor:
    """The predictor of an export, of a network in memory, of a run's network, or of a model directory."""
    if isinstance(network, Loaded):
        return network
    if isinstance(network, Run):
        network = network.model
    if isinstance(network, (str, Path)):
        if not (Path(network) / 'model.params').is_file():
            return Predictor(network)
        network = read(Path(network))
    from .runs.machine import load_mxnet

    load_mxnet()
    from .cutting.shrink import without_gates
    from .deployment.export import deployment_of, kind_of, network_of

    saved = without_gates(network)
    kind = kind_of(saved)
    return Predictor.of(network_of(saved, kind), deployment_of(saved, kind))


def embed(network: Any, texts: Iterable[Any], **options: Any) -> np.ndarray:
    """An embedding of every text, shape (texts, h). A warning says how many texts were cut.

    Parameters
    ----------
    network : Predictor, SavedModel, Run, str or Path
        An encoder: its export, its model directory, or the network in memory.
    texts : iterable of str or of (str, str)
    **options
        ``pooling``, ``normalise`` and ``batch_size``, as of `Predictor.encode`.
    """
    with said_in_python():
        predictor = predictor_of(network)
        texts_before, cut_before = predictor.texts, predictor.cut
        embeddings = predictor.encode(texts, **options)
    if cut := predictor.cut - cut_before:
        warnings.warn(cut_note(cut, predictor.texts - texts_before, predictor.max_length), stacklevel=2)
    return embeddings


def score(predictions: Any, data: str | Path, **options: Any) -> dict[str, float]:
    """The scores of predictions on labelled data, in percent. Warnings say how many texts were cut, and
    if one answer to all does as well.

    Parameters
    ----------
    predictions : str, Path, Predictor, SavedModel or Run
        A file of predictions, as `optbert-score` reads it; or a network, which predicts the data first.
    data : str or Path
        A labelled file.
    **options
        The other fields of `optbert-score`: ``task``, ``model``, ``text``, ``label``, ``kind``, ``labels``
        and ``null_odds``.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file is missing or not what it should be, or what it is scored on is not known.
    """
    with said_in_python(), contextlib.ExitStack() as stack:
        from .commands.predicting import ScoreRecipe, scores_of
        from .runs.recipe import fill

        network, head = None, None
        if not isinstance(predictions, (str, Path)) or Path(predictions).is_dir():
            network, place = predictions, Path(stack.enter_context(tempfile.TemporaryDirectory()))
            predictions = place / 'predictions.jsonl'
        recipe = fill(ScoreRecipe, {'predictions': predictions, 'data': data, **options})
        if network is not None:
            from .deployment.instances import read_instances
            from .deployment.measures import predicted
            from .deployment.predictor import record

            if recipe.model is not None:
                raise ValueError('model goes with a file of predictions; a network says what it is')
            predictor = predictor_of(network)
            head = predictor.head
            columns = (*recipe.text, (head.columns or ('label',))[-1])
            told = dataclasses.replace(head, columns=columns) if recipe.text else head
            instances = read_instances(recipe.data, told)
            answers = map(record, instances, predicted(predictor, instances, 'predicting'))
            predictions.write_text('\n'.join(map(json.dumps, answers)), encoding='utf-8')
        scores, notes, lines = scores_of(recipe, head)
        for said in [*notes, '\n'.join(lines)] if lines[-1].startswith(MARK) else notes:
            warnings.warn(in_python(said), stacklevel=2)
        return scores


# Pages and plots


class Page(str):
    """An HTML page, which a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        import html

        return f'<iframe srcdoc="{html.escape(self)}" width="100%" height="700"></iframe>'

    def __repr__(self) -> str:
        return f'an HTML page of {len(self) / 1e6:.1f} MB'


@said_in_python()
def report(*runs: str | Path | Run, output: str | Path | None = None, time: bool = True) -> Page:
    """A page on runs, models and results of fine-tuning: how much worse, smaller and faster they are.

    Parameters
    ----------
    output : str or Path, optional
        HTML file to write as well.
    time : bool
        Whether to time a forward pass of every network, in turn.

    Raises
    ------
    FileNotFoundError, FileExistsError, ValueError
        Bad input.
    """
    from .commands.reporting import ReportRecipe, page_of
    from .runs.files import refuse_existing, write_file
    from .runs.recipe import fill

    if output is not None:
        refuse_existing(Path(output))
    paths = [one.output if isinstance(one, Run) else one for one in runs]
    values = {'runs': list(map(str, paths)), 'output': str(output or 'report.html'), 'time': time}
    content = Page(page_of(fill(ReportRecipe, values)))
    if output is not None:
        write_file(Path(output), content.encode('utf-8'))
    return content


@said_in_python()
def plot_widths(*networks: Any, letter: str = 'f', labels: Sequence[str] | None = None) -> Figure:
    """One width across the layers, a line for each network; the first is the reference, dashed.

    Parameters
    ----------
    *networks : Architecture, SavedModel, Run, str or Path
        A run of pruning stands for all of its rounds; a path is that of a model directory.
    letter : str
        ``a``, ``k``, ``v`` or ``f``.
    labels : sequence of str, optional
        By default the millions of parameters.

    Raises
    ------
    ValueError
        If there is no network, another letter, or another number of labels.
    """
    from .architecture.cost import ParameterCost
    from .reporting.figures import WIDTHS, draw_widths, drawn
    from .reporting.networks import Network

    if letter not in WIDTHS:
        raise ValueError(f'letter must be one of {", ".join(WIDTHS)}, found {letter!r}')
    found: list[Architecture] = []
    for one in networks:
        if isinstance(one, Run) and one.rounds:
            found += [row.architecture for row in one.rounds]
        else:
            one = one.model if isinstance(one, Run) else one
            one = read(Path(one)) if isinstance(one, (str, Path)) else one
            found.append(getattr(one, 'architecture', one))
    names = [f'{ParameterCost().cost(one) / 1e6:.2f} M' for one in found] if labels is None else labels
    if not found or len(names) != len(found):
        raise ValueError(f'{len(names)} labels for {len(found)} networks; there must be as many, and some')
    figure = draw_widths(letter, list(map(Network, names, found)))
    figure._repr_png_ = functools.partial(drawn, figure, 'widths', 'png')  # what a notebook shows
    return figure
