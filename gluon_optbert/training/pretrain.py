"""Pre-training: shards in, a model directory out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from mxnet import gluon

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING
from ..architecture.named import resolve
from ..architecture.parameters import PARTS, parameter_table
from ..network.model import OptBERTModel, build, named_parameters, read_parameters
from ..network.saved_model import SavedModel, check_folded, read_model, write_model
from ..runs.files import running
from ..runs.machine import ORIGIN, note_origin
from ..runs.progress import Progress
from ..runs.recipe import to_dict
from ..runs.run_directory import RunDirectory, work_directory
from ..text.batches import check_memory
from ..text.shards import Shards
from .distributed import Workers
from .loop import Reporter
from .mlm_nsp import fit
from .recipe import PretrainRecipe, check_shards_fit, open_shards


def _before(start: SavedModel | None) -> Progress:
    """What the network that a run starts from says of its training."""
    return start.progress if start else Progress()


def _start(recipe: PretrainRecipe) -> SavedModel | None:
    """The model that a run starts from, if it does not start from random weights."""
    if recipe.model is None:
        return None
    start = read_model(recipe.model)
    if start.head != PRETRAINING:
        raise ValueError(
            f'{recipe.model} has the head of {start.head.task or start.head.kind} instead of those of '
            'pre-training; start from the network that it was fine-tuned from'
        )
    check_folded(start, recipe.model)
    if recipe.train == 'heads' and not _before(start).untrained:
        raise ValueError(
            f'{recipe.model} has no untrained {", ".join(PARTS.values())}; leave out --train heads'
        )
    return start


def _trained(
    model: OptBERTModel, recipe: PretrainRecipe, start: SavedModel | None
) -> dict[str, gluon.Parameter]:
    """The parameters that a run trains; all others are frozen, among them the embedding that the MLM head is
    tied to.
    """
    parameters = named_parameters(model)
    if recipe.train == 'all' or start is None:
        return parameters
    table, untrained = parameter_table(model.architecture, model.head), _before(start).untrained or ()
    trained = {name: parameter for name, parameter in parameters.items() if table[name].part in untrained}
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.grad_req = 'null'
    return trained


def _progress(measured: Progress, recipe: PretrainRecipe, start: SavedModel | None) -> Progress:
    """What the finished model says of its training: ``step`` of this phase, and ``earlier_steps`` of the
    phases before, as in BERT's pre-training with 128 and then with 512 tokens. Steps of the heads alone are
    not steps of pre-training."""
    before = _before(start)
    if recipe.train == 'all' or start is None:
        return measured.updated(earlier_steps=before.trained_steps or None, head_steps=before.head_steps)
    steps = Progress().updated(
        step=before.step,
        earlier_steps=before.earlier_steps,
        kept_step=before.kept_step,
        head_steps=measured.step,
    )
    return steps.updated(**{name: value for name, value in measured.to_dict().items() if name != 'step'})


def _architecture(
    recipe: PretrainRecipe, start: SavedModel | None, shards: Mapping[str, Shards], *, tokens: int
) -> Architecture:
    """The network that a run trains; ValueError unless it takes the instances of the shards and the tokens of
    their vocabulary.
    """
    architecture = start.architecture if start else resolve(recipe.architecture, vocab_size=tokens)
    if architecture.vocab_size != tokens:
        raise ValueError(
            f"the architecture has {architecture.vocab_size} tokens, the shards' vocabulary {tokens}"
        )
    check_shards_fit(shards, architecture, 'the architecture')
    return architecture


def _train(
    recipe: PretrainRecipe,
    start: SavedModel | None,
    architecture: Architecture,
    shards: Mapping[str, Shards],
    work: Path,
    workers: Workers,
) -> tuple[OptBERTModel, Progress]:
    """The trained network, and what `fit` says of it."""
    model = build(
        architecture,
        start.parameters if start else None,
        recipe.network_settings(),
        seed=recipe.seed,
        initial_std=recipe.initial_std,
        ctx=workers.context(),
    )
    workers.broadcast([parameter.data() for parameter in named_parameters(model).values()], name='weights')
    notes = {'parameters': ParameterCost().cost(architecture)}
    phase = recipe.phase('pretraining', recipe.steps, first_batch=_before(start).next_batch, notes=notes)
    measured = fit(
        model,
        recipe.weight_optimizer(model, workers, _trained(model, recipe, start)),
        recipe.schedule(recipe.steps),
        phase,
        shards=shards['train'],
        heldout=shards['heldout'],
        workers=workers,
        reporter=Reporter(work / 'metrics.jsonl', workers),
        states=work / 'states',
    )
    return model, measured


def _read_progress(output: Path) -> Progress:
    return read_model(output).progress


def pretrain(recipe: PretrainRecipe, *, workers: Workers | None = None) -> Progress:
    """Pre-train a network and write its model directory.

    Parameters
    ----------
    recipe : PretrainRecipe
    workers : Workers, optional
        The workers of this job; by default those that the environment names.

    Returns
    -------
    Progress
        What was measured at the end, as the model directory says it.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step; or another process is writing the output.
    TrainingDiverged, Interrupted
        From `fit`.
    """
    workers = workers or Workers()
    recipe.check_workers(workers)
    with running(recipe.output, workers):
        return _pretrain(recipe, workers)


def _pretrain(recipe: PretrainRecipe, workers: Workers) -> Progress:
    """`pretrain`, while no other process writes the output."""
    directory = RunDirectory(recipe, read=_read_progress)
    if directory.result is not None:  # it was done, though it may not have lived to say so
        workers.barrier('seen')
        shutil.rmtree(work_directory(recipe.output), ignore_errors=True)
        return directory.result
    start = _start(recipe)
    shards = open_shards(recipe.shards, start.vocabulary if start else None)
    check_memory(shards['train'], recipe.batch_size)
    vocabulary = shards['train'].vocabulary()
    architecture = _architecture(recipe, start, shards, tokens=len(vocabulary))
    directory.lay_out(workers)
    if workers.first:
        note_origin(directory.path, workers=workers.size)
    model, measured = _train(recipe, start, architecture, shards, directory.path, workers)
    progress = _progress(measured, recipe, start)
    if workers.first:
        write_model(
            recipe.output,
            SavedModel(architecture, read_parameters(model), vocabulary, to_dict(recipe), progress),
            extra={name: (directory.path / name).read_bytes() for name in ('metrics.jsonl', ORIGIN)},
        )
        shutil.rmtree(directory.path)
    workers.barrier('written')
    return progress
