"""Pre-training: its loss, and a run from shards to a model directory."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Generator
from pathlib import Path

import mxnet as mx
from mxnet import gluon

from ..architecture.cost import ParameterCost
from ..architecture.heads import PRETRAINING
from ..architecture.named import resolve
from ..architecture.parameters import PARTS, parameter_table
from ..network.losses import PretrainingLoss
from ..network.model import OptBERTModel, build, named_parameters, read_parameters
from ..network.running import pretraining_losses
from ..network.saved_model import SavedModel, check_folded, read_model, write_model
from ..runs.files import running
from ..runs.machine import ORIGIN, note_origin
from ..runs.progress import Progress
from ..runs.recipe import to_dict
from ..runs.run_directory import RunDirectory, work_directory
from ..text.batches import Batch, check_memory, stream
from ..text.shards import Shards
from .distributed import Workers
from .held_out import losses_of
from .loop import Reporter, train
from .objective import Objective, Phase
from .recipe import PretrainRecipe, check_shards_fit, open_shards, trained_parts


class Pretraining(Objective):
    """MLM plus NSP: the mean over the masked tokens of the global batch plus the mean over its instances. The
    latter is left out if the shards have no pairs. `labels` are the names of these losses.
    """

    decides = 'mlm_loss'

    def __init__(self, model: OptBERTModel, workers: Workers, shards: Shards, heldout: Shards | None = None):
        super().__init__(model, workers)
        self._shards, self._heldout = shards, heldout
        self.losses = self.labels = ('mlm', 'nsp') if shards.next_sentence else ('mlm',)
        self._loss = PretrainingLoss()
        self._loss.hybridize(static_alloc=True)

    def batches(self, phase: Phase, start: int) -> Generator[Batch, None, None]:
        return batches_of(self._shards, phase, start, self.workers)

    def loss_sums(self, batch: Batch, rows: slice) -> tuple[mx.nd.NDArray, ...]:
        losses = pretraining_losses(self.model, self._loss, batch, rows=rows, ctx=self.workers.context())
        return tuple(losses[: len(self.labels)])

    def totals(self, batch: Batch) -> tuple[float, ...]:
        return (batch.masked_total, batch.instance_total)[: len(self.labels)]

    def evaluate(self, phase: Phase) -> dict[str, float] | None:
        if self._heldout is None:
            return None
        losses = losses_of(
            self.model, self._heldout, self.workers, batch_size=phase.pass_size, limit=phase.evaluation_limit
        )
        return losses.measured.to_dict()


def batches_of(shards: Shards, phase: Phase, start: int, workers: Workers) -> Generator[Batch, None, None]:
    """A worker's share of the batches of a phase, from one of them on, without end."""
    return stream(
        shards,
        batch_size=phase.batch_size,
        seed=phase.seed,
        start=start,
        rank=workers.rank,
        workers=workers.size,
    )


def pretrain(recipe: PretrainRecipe, *, workers: Workers | None = None) -> Progress:
    """Pre-train a network and write its model directory; what was measured at the end, as that says it. The
    workers are those of the environment unless given.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input, before the first step; or another process is writing the output.
    TrainingDiverged, Interrupted
        From `train`.
    """
    workers = workers or Workers()
    recipe.check_workers(workers)
    with running(recipe.output, workers):
        directory = RunDirectory(recipe, read=lambda output: read_model(output).progress)
        if directory.result is not None:  # it was done, though it may not have lived to say so
            workers.barrier('seen')
            shutil.rmtree(work_directory(recipe.output), ignore_errors=True)
            return directory.result
        return _pretrain(recipe, directory, workers)


def _pretrain(recipe: PretrainRecipe, directory: RunDirectory, workers: Workers) -> Progress:
    """Train in a run's directory, and write the model directory."""
    start = None if recipe.model is None else read_start(recipe.model)
    if start is not None and recipe.train == 'heads' and not start.progress.untrained:
        raise ValueError(
            f'{recipe.model} has no untrained {", ".join(PARTS.values())}; leave out --train heads'
        )
    shards = open_shards(recipe.shards, start.vocabulary if start else None)
    check_memory(shards['train'], recipe.batch_size)
    vocabulary = shards['train'].vocabulary()
    architecture = start.architecture if start else resolve(recipe.architecture, vocab_size=len(vocabulary))
    if architecture.vocab_size != len(vocabulary):
        raise ValueError(
            f"the architecture has {architecture.vocab_size} tokens, the shards' vocabulary {len(vocabulary)}"
        )
    check_shards_fit(shards, architecture, 'the architecture')
    directory.lay_out(workers)
    if workers.first:
        note_origin(directory.path, workers=workers.size)
    settings = recipe.network_settings(head=start.head if start else PRETRAINING)
    model = build(
        architecture,
        start.parameters if start else None,
        settings,
        seed=recipe.seed,
        initial_std=recipe.initial_std,
        ctx=workers.context(),
    )
    trained = _trained(model, recipe, start, shards['train'])
    workers.broadcast([parameter.data() for parameter in named_parameters(model).values()], name='weights')
    measured = train(
        Pretraining(model, workers, shards['train'], shards['heldout']),
        recipe.weight_optimizer(model, workers, trained),
        recipe.schedule(recipe.steps),
        recipe.phase(
            'pretraining',
            recipe.steps,
            first_batch=start.progress.next_batch if start else 0,
            notes={'parameters': ParameterCost().cost(architecture)},
        ),
        reporter=Reporter(directory.path / 'metrics.jsonl', workers),
        states=directory.path / 'states',
    )
    progress = _progress(measured, recipe, start, shards['train'])
    if workers.first:
        parameters = {**(start.parameters if start else {}), **read_parameters(model)}
        head = settings.head
        if recipe.train != 'heads':  # its embeddings are others now
            head = dataclasses.replace(head, embedding=head.embedding.changed(index=''))
        write_model(
            recipe.output,
            SavedModel(architecture, parameters, vocabulary, to_dict(recipe), progress, head=head),
            extra={name: (directory.path / name).read_bytes() for name in ('metrics.jsonl', ORIGIN)},
        )
        shutil.rmtree(directory.path)
    workers.barrier('written')
    return progress


def read_start(directory: Path) -> SavedModel:
    """The network in a directory, if pre-training can go on with it or prune it; its heads may be random.
    ValueError if it lacks heads of pre-training, or still has gates.
    """
    start = read_model(directory)
    if start.head != PRETRAINING:
        raise ValueError(
            f'{directory} has the head of {start.head.task or start.head.kind} instead of those of '
            'pre-training; give the network that it was fine-tuned from'
        )
    check_folded(start, directory)
    return start


def _trained(
    model: OptBERTModel, recipe: PretrainRecipe, start: SavedModel | None, shards: Shards
) -> dict[str, gluon.Parameter]:
    """The parameters that a run trains: without heads that have no loss, and of a run that trains heads,
    without all else, such as the embedding that the MLM head is tied to. ValueError if none is left.
    """
    parameters, table = named_parameters(model), parameter_table(model.architecture, model.head)
    parts = {spec.part for spec in table.values()} - {*PARTS} | {*trained_parts(shards)}
    if recipe.train == 'heads':
        parts &= {*(start.progress.untrained or ())}
    trained = {name: parameter for name, parameter in parameters.items() if table[name].part in parts}
    if not trained:
        lacking = ' and '.join(PARTS[part] for part in start.progress.untrained)
        raise ValueError(f'{recipe.model}: shards without pairs do not train its {lacking}')
    return trained


def _progress(
    measured: Progress, recipe: PretrainRecipe, start: SavedModel | None, shards: Shards
) -> Progress:
    """The progress in the finished model: ``step`` of this phase, and ``earlier_steps`` of the
    phases before, as in BERT's pre-training with 128 and then with 512 tokens. Steps of the heads alone are
    not steps of pre-training."""
    before = start.progress if start else Progress(untrained=tuple(PARTS))
    untrained = tuple(part for part in before.untrained or () if part not in trained_parts(shards)) or None
    if recipe.train == 'all':
        steps = {'earlier_steps': before.trained_steps or None, 'head_steps': before.head_steps}
    else:
        steps = {name: getattr(before, name) for name in ('step', 'earlier_steps', 'kept_step')}
        steps['head_steps'] = (before.head_steps or 0) + measured.step
    return measured.updated(**steps, untrained=untrained)
