"""Where the names of the package live, how runs are called with keywords, what a missing library means."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Type, TypeVar, Union

from .runs.failures import NotInstalled

R = TypeVar('R')

# A run has the module of its function, and the module and the class of its recipe.
RUNS = {
    'make_shards': ('text.make_shards', 'text.make_shards', 'ShardRecipe'),
    'import_checkpoint': ('importing.convert', 'importing.convert', 'ImportRecipe'),
    'pretrain': ('training.pretrain', 'training.recipe', 'PretrainRecipe'),
    'trim_vocabulary': ('pruning.trimming', 'pruning.trimming', 'TrimRecipe'),
    'prune': ('pruning.algorithm', 'pruning.recipe', 'PruneRecipe'),
    'verify': ('deployment.verify', 'deployment.verify', 'VerifyRecipe'),
    'finetune_glue': ('finetuning.recipes', 'finetuning.recipes', 'GlueRecipe'),
    'prune_task': ('task_pruning.prune_task', 'task_pruning.recipe', 'TaskPruneRecipe'),
    'finetune_squad': ('finetuning.recipes', 'finetuning.recipes', 'SquadRecipe'),
}
HOMES = {
    **{recipe: module for _, module, recipe in RUNS.values()},
    'read_model': 'network.saved_model',
    'write_model': 'network.saved_model',
    'SavedModel': 'network.saved_model',
    'Predictor': 'deployment.predictor',
    'train_gates': 'pruning.gate_training',
    'select_units': 'cutting.selection',
    'shrink': 'cutting.shrink',
    'resolve': 'architecture.named',
    'Architecture': 'architecture.architecture',
    'LayerDims': 'architecture.architecture',
    'ParameterCost': 'architecture.cost',
    'FlopsCost': 'architecture.cost',
    'LatencyCost': 'architecture.cost',
}
_VERSION = '{}.{}'.format(*sys.version_info)
# The module and the function that write each format of `export`, and what the function is told.
FORMATS: Dict[str, Tuple[str, str, Mapping[str, Any]]] = {
    'mxnet': ('deployment.export', 'export', {}),
    'transformers': ('deployment.library_exports', 'export_transformers', {}),
    'onnx': ('deployment.library_exports', 'export_onnx', {}),
    'sentence-transformers': ('deployment.library_exports', 'export_onnx', {'sentences': True}),
}
_STACK = (
    'pip install gluon_optbert[cpu] installs it, or pip install gluon_optbert[cu112] for GPUs with CUDA 11; '
    'in a checkout, make install'
    + ('' if (3, 8) <= sys.version_info[:2] <= (3, 11) else f'. It needs CPython 3.8 to 3.11, not {_VERSION}')
)
_SERVE = 'pip install gluon_optbert[serve] installs it'
REMEDIES = {
    **{
        name: f'{name} is not installed: {_STACK}'
        for name in ('blingfire', 'google_crc32c', 'matplotlib', 'onnx', 'safetensors', 'sacremoses')
        + ('scipy', 'sklearn')
    },
    'onnxruntime': f'ONNX Runtime is not installed: {_SERVE}',
    'openvino': 'OpenVINO is not installed: pip install gluon_optbert[openvino] installs it',
    'fastapi': f'FastAPI, a part of the service, is not installed: {_SERVE}',
    'uvicorn': f'uvicorn, a part of the service, is not installed: {_SERVE}',
    'markdown_it': f'markdown-it-py, a part of the service, is not installed: {_SERVE}',
    'mxnet': f'MXNet is not installed: {_STACK}',
    'gluonnlp': f'GluonNLP is not installed: {_STACK}',
    'horovod': 'Horovod is not installed, and a job of several workers needs it. It is compiled against the '
    'MXNet that is there, with cmake below 4: HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 '
    'HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 pip install --no-build-isolation --no-binary '
    'horovod gluon_optbert[horovod]; in a checkout, make install',
}


@contextlib.contextmanager
def remedied() -> Iterator[None]:
    """Say how to install a library of `REMEDIES` where the block fails to import it."""
    try:
        yield
    except ImportError as error:
        library = (error.name or '').partition('.')[0]
        if isinstance(error, NotInstalled) or library not in REMEDIES:
            raise
        raise NotInstalled(REMEDIES[library], name=library) from error


def load(name: str) -> Any:
    """What a name of the package stands for.

    Raises
    ------
    NotInstalled
        If a library is missing.
    """
    with remedied():
        if name == 'export':
            return export
        if name in RUNS:
            home, recipe_home, recipe = RUNS[name]
            return run_of(getattr(_module(home), name), getattr(_module(recipe_home), recipe))
        return getattr(_module(HOMES[name]), name)


def _module(name: str) -> Any:
    return importlib.import_module(f'{__package__}.{name}')


def run_of(run: Callable[..., Any], cls: Type[R]) -> Callable[..., Any]:
    """The function `run` of a recipe, for callers who give the recipe's fields as keywords.

    Keywords that `run` takes itself, such as ``progress``, are passed on.
    """
    own = [one for one in inspect.signature(run).parameters.values() if one.kind is one.KEYWORD_ONLY]

    @functools.wraps(run)
    def called(recipe: Union[None, str, Path, R] = None, **given: Any) -> Any:
        options = {one.name: given.pop(one.name) for one in own if one.name in given}
        with remedied():
            return run(recipe_of(cls, recipe, given), **options)

    known = {one.name for one in own}
    called.__signature__ = inspect.Signature(
        [
            inspect.Parameter('recipe', inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            *own,
            *(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.is_required() else field.default,
                )
                for name, field in cls.model_fields.items()
                if name not in known
            ),
        ]
    )
    called.__doc__ = '\n'.join([inspect.cleandoc(run.__doc__ or ''), '', *_told(cls)])
    return called


def _told(cls: Type[R]) -> List[str]:
    """The fields of a recipe for the documentation of its run."""
    from .runs.recipe import choices_of

    lines = [f'Fields of {cls.__name__}, as keywords or in a recipe:', '']
    for name, field in cls.model_fields.items():
        shown = 'required' if field.is_required() else repr(field.default)
        choices = choices_of(field)
        listed = f'; one of {", ".join(map(str, choices))}' if choices else ''
        lines.append(f'    {name}: {field.description}{listed} [{shown}]')
    return lines


def recipe_of(cls: Type[R], recipe: Union[None, str, Path, R], given: Mapping[str, Any]) -> R:
    """A recipe of type `cls`: itself, or the file or packaged recipe of that name, and the fields `given`.

    Raises
    ------
    RecipeError, FileNotFoundError
        With every problem named, as the command names them.
    TypeError
        If `recipe` is something else.
    """
    from .runs.recipe import check_alternatives, fill, find_recipe, overridden, read_yaml, to_dict

    values: Dict[str, Any] = {}
    if isinstance(recipe, cls):
        if not given:
            return recipe
        values = to_dict(recipe)
    elif isinstance(recipe, (str, Path)):
        values = read_yaml(find_recipe(recipe))
        check_alternatives(cls, values)
    elif recipe is not None:
        raise TypeError(
            f'a recipe is a {cls.__name__}, the name of a recipe or of its file, or keywords; found '
            f'{type(recipe).__name__}'
        )
    source = str(recipe) if isinstance(recipe, (str, Path)) else 'keywords'
    return fill(cls, overridden(cls, values, given), source=source)


def export(
    model: Any,
    output: Union[str, Path],
    *,
    format: str = 'mxnet',
    alphas: Optional[Path] = None,
    **options: Any,
) -> Dict[str, Any]:
    """Export a model for plain MXNet, in float32, int8 or bfloat16, and as ONNX; or for another library.

    Parameters
    ----------
    model : str, Path or SavedModel
        A model directory or what `read_model` gives, with gates or without.
    output : str or Path
        Directory to write.
    format : str
        ``mxnet`` for a deployment directory; ``transformers``, ``onnx`` (Optimum) or
        ``sentence-transformers`` for these libraries.
    alphas : str or Path, optional
        An ``alphas.npz`` of gates to fold first, instead of the model's own; units at zero are cut.
    **options
        ``head``, ``precision``, ``calibration``, ``method``, ``labelled``, ``onnx``, ``inputs`` and
        ``license``, as `gluon_optbert.deployment.export.export` has them. Not every format takes all.

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
    if format not in FORMATS:
        raise ValueError(f'format must be one of {", ".join(FORMATS)}, found {format!r}')
    with remedied():
        from .cutting.selection import read_alphas
        from .cutting.shrink import without_gates
        from .deployment.lineage import Lineage, before_gates, lineage_of
        from .network.saved_model import read_model

        home, writer, told = FORMATS[format]
        write = getattr(_module(home), writer)
    saved = read_model(Path(model)) if isinstance(model, (str, Path)) else model
    if isinstance(model, (str, Path)):
        options.setdefault('lineage', lineage_of(saved, Path(model)))
    if alphas:
        options['lineage'] = before_gates(options.get('lineage') or Lineage())
    gates, h_gate = read_alphas(Path(alphas)) if alphas else (None, 'stream')
    saved = without_gates(saved, gates, h_gate=h_gate)
    return write(saved, Path(output), **told, **options)
