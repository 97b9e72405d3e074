"""Pre-training: shards in, a model directory out."""

from __future__ import annotations

import shutil
from typing import Any, Dict, Mapping, Optional

from mxnet import gluon

from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING
from ..architecture.named import resolve
from ..architecture.parameters import PARTS, parameter_table
from ..network.model import OptBERTModel, build, named_parameters, read_parameters
from ..network.saved_model import SavedModel, read_model, write_model
from ..runs.provenance import ORIGIN, note_origin
from ..runs.recipe import check_same, checked, save, to_dict
from ..runs.staging import new_directory, refuse_existing
from .distributed import Workers
from .mlm_nsp import fit
from .recipe import PretrainRecipe, open_shards, trained_steps, work_directory
from .reporter import Reporter


def _start(recipe: PretrainRecipe) -> Optional[SavedModel]:
    """The model that a run starts from, if it does not start from random weights."""
    if recipe.model is None:
        return None
    start = read_model(recipe.model)
    if start.head != PRETRAINING:
        raise ValueError(
            f'{recipe.model} has the head of {start.head.task or start.head.kind} instead of those of '
            f'pre-training; '
            'start from the network that it was fine-tuned from'
        )
    if recipe.train == 'heads' and not start.progress.get('untrained'):
        raise ValueError(
            f'{recipe.model} has no untrained {", ".join(PARTS.values())}; leave --train heads away'
        )
    return start


def _trained(
    model: OptBERTModel, recipe: PretrainRecipe, start: Optional[SavedModel]
) -> Dict[str, gluon.Parameter]:
    """The parameters that a run trains; all others are frozen, among them the embedding that the MLM head is
    tied to.
    """
    parameters = named_parameters(model)
    if recipe.train == 'all' or start is None:
        return parameters
    table = parameter_table(model.architecture, model.head)
    trained = {
        name: parameter
        for name, parameter in parameters.items()
        if table[name].part in start.progress['untrained']
    }
    for name, parameter in parameters.items():
        if name not in trained:
            parameter.grad_req = 'null'
    return trained


def _progress(
    measured: Mapping[str, Any], recipe: PretrainRecipe, start: Optional[SavedModel]
) -> Dict[str, Any]:
    """What the finished model says of its training: ``step`` of this phase, and ``earlier_steps`` of the
    phases before, as in BERT's pre-training with 128 and then with 512 tokens. Steps of the heads alone are
    not steps of pre-training."""
    if recipe.train == 'all' or start is None:
        earlier = trained_steps(start.progress) if start else 0
        return {**measured, 'earlier_steps': earlier} if earlier else dict(measured)
    before = {name: start.progress[name] for name in ('step', 'earlier_steps') if name in start.progress}
    return {**before, **{'head_steps' if name == 'step' else name: value for name, value in measured.items()}}


def pretrain(recipe: PretrainRecipe, *, workers: Optional[Workers] = None) -> Dict[str, Any]:
    """Pre-train a network and write its model directory.

    Parameters
    ----------
    recipe : PretrainRecipe
    workers : Workers, optional
        Those of this job; found from the environment unless given.

    Returns
    -------
    dict
        What was measured at the end; see `fit`.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step.
    TrainingDiverged, Terminated
        From `fit`.
    """
    recipe = checked(recipe)
    workers = workers or Workers()
    recipe.check_workers(workers)
    work = work_directory(recipe.output)
    if recipe.output.exists() and recipe.resume:  # it was done, though it may not have lived to say so
        progress = dict(read_model(recipe.output).progress)
        check_same(recipe, recipe.output / 'recipe.yaml')
        workers.barrier('seen')
        shutil.rmtree(work, ignore_errors=True)
        return progress
    refuse_existing(recipe.output)
    if work.exists():
        if not recipe.resume:
            raise FileExistsError(f'{work} holds an unfinished run; go on with --resume, or remove it')
        check_same(recipe, work / 'recipe.yaml')
    start = _start(recipe)
    shards = open_shards(recipe, start.vocabulary if start else None)
    vocabulary = shards['train'].vocabulary()
    architecture = start.architecture if start else resolve(recipe.architecture, vocab_size=len(vocabulary))
    if architecture.vocab_size != len(vocabulary):
        raise ValueError(
            f"the architecture has {architecture.vocab_size} tokens, the shards' vocabulary {len(vocabulary)}"
        )
    if shards['train'].max_seq_length > architecture.max_length:
        raise ValueError(
            f'shards have up to {shards["train"].max_seq_length} tokens, the architecture has '
            f'{architecture.max_length} positions'
        )
    workers.barrier('checked')
    if workers.first and not work.exists():
        with new_directory(work) as staged:
            save(recipe, staged / 'recipe.yaml')
    if workers.first:
        note_origin(work, workers=workers.size)
    workers.barrier('laid out')

    model = build(
        architecture,
        start.parameters if start else None,
        seed=recipe.seed,
        initial_std=recipe.initial_std,
        dropout=recipe.dropout,
        precision=recipe.precision,
        ctx=workers.context(),
    )
    workers.broadcast([parameter.data() for parameter in named_parameters(model).values()], name='weights')
    reporter = Reporter(work / 'metrics.jsonl', workers)
    size = ParameterCost().cost(architecture)
    optimizer = recipe.weight_optimizer(model, workers, _trained(model, recipe, start))
    measured = fit(
        model,
        optimizer,
        recipe.schedule(recipe.steps),
        recipe.phase('pretraining', recipe.steps, notes={'parameters': size}),
        shards=shards['train'],
        heldout=shards['heldout'],
        workers=workers,
        reporter=reporter,
        states=work / 'states',
    )
    progress = _progress(measured, recipe, start)
    if workers.first:
        write_model(
            recipe.output,
            SavedModel(architecture, read_parameters(model), vocabulary, to_dict(recipe), progress),
            extra={name: (work / name).read_bytes() for name in ('metrics.jsonl', ORIGIN)},
        )
        shutil.rmtree(work)
    workers.barrier('written')
    return progress
