"""The names of the package with their places, and runs called with keywords."""

from __future__ import annotations

import functools
import importlib
import inspect
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .runs.failures import remedied
from .runs.programs import COMMANDS, RUNS, YAML

HOMES = {
    **{name: run.home for name, run in RUNS.items()},
    **{run.recipe_name: run.recipe_place.partition(':')[0] for run in RUNS.values()},
    'export': 'api',
    **dict.fromkeys(
        'read_model from_transformers Model Run Predictor embed score report plot_widths'.split(), 'notebook'
    ),
    'write_model': 'network.saved_model',
    'SavedModel': 'network.saved_model',
    'train_gates': 'pruning.gate_training',
    'GateSettings': 'pruning.gate_training',
    'select_units': 'cutting.selection',
    'shrink': 'cutting.shrink',
    'resolve': 'architecture.named',
    'Architecture': 'architecture.architecture',
    'LayerDims': 'architecture.architecture',
    'ParameterCost': 'architecture.cost',
    'FlopsCost': 'architecture.cost',
    'LatencyCost': 'architecture.cost',
}
# the names that need MXNet; others may need it later
_OF_MXNET = {'export', 'train_gates', 'report', 'from_transformers'}.union(
    *((one.name, RUNS[one.name].recipe_name) for one in COMMANDS.values() if one.mxnet and one.name in RUNS)
)
_MAKE_NETWORKS = RUNS.keys() - {'make_shards', 'verify'}


class Format(NamedTuple):
    """Writer of a format of `export`."""

    writer: str  # a module and its function
    fields: tuple[str, ...] = ()  # of the command, that it reads beside those that all do
    told: Mapping[str, Any] = {}  # what the function is told beside the user's options


_ONNX = Format('deployment.library_exports:export_onnx', ('precision', 'calibrate'))
FORMATS = {
    'mxnet': Format(
        'deployment.export:export', ('precision', 'calibrate', 'labelled', 'onnx', 'inputs', 'long')
    ),
    'transformers': Format('deployment.library_exports:export_transformers'),
    'onnx': _ONNX,
    'sentence-transformers': _ONNX._replace(told={'sentences': True}),
}


def load(name: str) -> Any:
    """Object behind a name of the package.

    Raises
    ------
    NotInstalled
        If a library is missing.
    """
    with remedied():
        if name in _OF_MXNET:
            from .runs.machine import load_mxnet

            load_mxnet()
        value = _found(f'{HOMES[name]}:{name}')
        return run_of(value, _found(RUNS[name].recipe_place), RUNS[name].first) if name in RUNS else value


def _found(place: str) -> Any:
    """Object of a module below the package, by a name such as ``pruning.recipe:PruneRecipe``."""
    module, _, name = place.partition(':')
    return getattr(importlib.import_module(f'{__package__}.{module}'), name)


def run_of(run: Callable[..., Any], cls: type[Any], first: str = '') -> Callable[..., Any]:
    """The function `run` of a recipe, for callers who give the recipe's fields as keywords.

    Keywords that `run` takes itself, such as ``progress``, are passed on. Runs and networks stand for their
    paths. A run that makes networks gives a `Run`, and needs no output. What is given first and is no recipe
    is the field `first`, if the run has one, as in its command.
    """
    own = [one for one in inspect.signature(run).parameters.values() if one.kind is one.KEYWORD_ONLY]
    makes = run.__name__ in _MAKE_NETWORKS

    @functools.wraps(run)
    def called(recipe: Any = None, **given: Any) -> Any:
        from .notebook import Run, given_on_disk, said_in_python

        options = {one.name: given.pop(one.name) for one in own if one.name in given}
        if first and not (recipe is None or isinstance(recipe, cls) or Path(str(recipe)).suffix in YAML):
            if first in given:
                raise TypeError(f'{first} is given twice, as {recipe!r:.80} and as {given[first]!r:.80}')
            recipe, given = None, {first: recipe, **given}
        with said_in_python():
            output, place = {**_values(cls, recipe), **given}.get('output'), None
            if makes and output is None:
                place = tempfile.TemporaryDirectory(prefix=f'{run.__name__}-')
                given['output'] = output = str(Path(place.name) / 'run')
            filled = recipe_of(cls, recipe, given_on_disk(given, Path(output or 'run')))
            result = run(filled, **options)
        return Run(filled, result, place) if makes else result

    fields = {
        name: one.replace(annotation=one.empty)
        for name, one in inspect.signature(cls).parameters.items()
        if name not in {one.name for one in own}
    }
    if makes:
        fields['output'] = fields['output'].replace(default=None)
    first_of_all = inspect.Parameter('recipe', inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    called.__signature__ = inspect.Signature([first_of_all, *own, *fields.values()])
    called.__doc__ = '\n'.join([inspect.cleandoc(run.__doc__ or ''), '', *_told(cls)])
    return called


def _told(cls: type[Any]) -> list[str]:
    """The fields of a recipe for the documentation of its run."""
    from .runs.recipe import choices_of

    lines = [f'Fields of {cls.__name__}, as keywords or in a recipe:', '']
    for name, field in cls.model_fields.items():
        shown = 'required' if field.is_required() else repr(field.default)
        choices = choices_of(field)
        listed = f'; one of {", ".join(map(str, choices))}' if choices else ''
        lines.append(f'    {name}: {field.description}{listed} [{shown}]')
    return lines


def recipe_of(cls: type[Any], recipe: Any, given: Mapping[str, Any]) -> Any:
    """A recipe of type `cls`: itself, or the file or packaged recipe of that name, and the fields `given`.

    Raises
    ------
    RecipeError, FileNotFoundError
        With every problem named, as the command names them.
    TypeError
        If `recipe` is something else.
    """
    from .runs.recipe import check_read, fill, overridden

    if isinstance(recipe, cls) and not given:
        return recipe
    source = str(recipe) if isinstance(recipe, (str, Path)) else 'keywords'
    return check_read(fill(cls, overridden(cls, _values(cls, recipe), given), source=source), given)


def _values(cls: type[Any], recipe: Any) -> dict[str, Any]:
    """The fields of what stands for a recipe of type `cls`; errors as of `recipe_of`."""
    from .runs.recipe import check_alternatives, find_recipe, read_yaml

    values: dict[str, Any] = {}
    if isinstance(recipe, cls):
        values = dict(recipe)
    elif isinstance(recipe, (str, Path)):
        values = read_yaml(find_recipe(recipe))
        check_alternatives(cls, values)
    elif recipe is not None:
        raise TypeError(
            f'a recipe is a {cls.__name__}, the name of a recipe or of its file, or keywords; found '
            f'{type(recipe).__name__}'
        )
    return values


def export(
    model: Any, output: str | Path, *, format: str = 'mxnet', alphas: str | Path | None = None, **options: Any
) -> dict[str, Any]:
    """Export a model for plain MXNet, in float32, int8 or bfloat16, and as ONNX; or for another library.

    Parameters
    ----------
    model : str, Path, SavedModel or Run
        A model directory, what `read_model` gives, with gates or without, or a run that made a network.
    output : str or Path
        Directory to write.
    format : str
        ``mxnet`` for a deployment directory; ``transformers``, ``onnx`` (Optimum) or
        ``sentence-transformers`` for these libraries.
    alphas : str or Path, optional
        An ``alphas.npz`` of gates to fold first, instead of the model's own; units at zero are cut.
    **options
        ``head``, ``precision``, ``calibration``, ``method``, ``labelled``, ``onnx``, ``inputs``, ``long``
        and ``license``, as `gluon_optbert.deployment.export.export` has them. Not every format takes all.

    Returns
    -------
    dict
        ``relative_difference`` of every output to the float32 network's, and what else was measured. Empty
        for ``transformers``, whose arrays are the network's own.

    Raises
    ------
    FileNotFoundError, FileExistsError, ValueError
        Bad input.
    RunFailed
        If the export computes something else than the model; nothing is written then.
    """
    from .notebook import Run, said_in_python

    with said_in_python():
        model = model.directory if isinstance(model, Run) else model
        return write_export(model, output, format=format, alphas=alphas, **options)


def write_export(
    model: Any, output: str | Path, *, format: str = 'mxnet', alphas: str | Path | None = None, **options: Any
) -> dict[str, Any]:
    """`export` in the words of commands, without runs as models."""
    if format not in FORMATS:
        raise ValueError(f'format must be one of {", ".join(FORMATS)}, found {format!r}')
    from .cutting.selection import read_alphas
    from .cutting.shrink import without_gates
    from .deployment.lineage import Lineage, before_gates, lineage_of
    from .network.saved_model import read_model

    write = _found(FORMATS[format].writer)
    saved = read_model(Path(model)) if isinstance(model, (str, Path)) else model
    if isinstance(model, (str, Path)):
        options.setdefault('lineage', lineage_of(saved, Path(model)))
    if alphas:
        options['lineage'] = before_gates(options.get('lineage') or Lineage())
    gates, h_gate = read_alphas(Path(alphas)) if alphas else (None, 'stream')
    saved = without_gates(saved, gates, h_gate=h_gate)
    return write(saved, Path(output), **FORMATS[format].told, **options)
