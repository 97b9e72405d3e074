"""Time training steps side by side: GluonNLP's BERTModel, this package's in either precision, and the gates'
with frozen weights.

The steps are taken in turn, at equal threads and shapes, so that the ratios hold on a machine whose speed
drifts. With --against also those of whole programs, each in a process of its own: Transformers on PyTorch
(eager, AdamW, the same threads), in float32 or with PyTorch's autocast to bfloat16; and GluonNLP as it is
installed, with the threads that MXNet then takes. With --beside, the same steps of other architectures of any
widths are timed in turn with those, such as of BERT-base without half of its intermediate blocks
(undivided_every_2).

Nothing else should run meanwhile. Each step keeps a network with its optimizer's state: 3 to 4 GB of
BERT-base's, so that --steps takes a few of them where memory does not hold all."""

from __future__ import annotations

import gluon_optbert.runs.loading  # noqa: F401  before all that loads MXNet

# isort: split
import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from measured import Measured, in_turn, parsed, timed, write
from mxnet import autograd, gluon
from peers.gluonnlp_model import gluonnlp_model
from peers.protocol import training_inputs
from pydantic import PositiveInt
from workers import SCRIPTS, Worker, peer_python, uniform_config

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.named import resolve
from gluon_optbert.network.inputs import INPUTS
from gluon_optbert.network.losses import PretrainingLoss
from gluon_optbert.network.model import build, named_parameters
from gluon_optbert.network.running import feed_of, pretraining_losses
from gluon_optbert.runs.command_line import command
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.machine import bfloat16_is_fast, threads_here
from gluon_optbert.runs.recipe import option

STEPS = {
    'gluonnlp': 'GluonNLP step',
    'ungated': 'ungated step',
    'alpha': 'alpha step',
    'bfloat16': 'bfloat16 step',
    'bfloat16-alpha': 'bfloat16 alpha step',
}
FORWARDS = {'gluonnlp': 'GluonNLP forward', 'ungated': 'ungated forward', 'alpha': 'gated forward'}
PEERS = {
    'torch': 'Transformers step',
    'torch-bfloat16': 'Transformers bfloat16 step',
    'torch-masked': 'Transformers step, masked tokens scored',
    'torch-masked-bfloat16': 'Transformers bfloat16 step, masked tokens scored',
    'gluonnlp': 'GluonNLP step as installed',
}
RATIOS = (  # of medians
    ('ungated step', 'GluonNLP step'),
    ('alpha step', 'ungated step'),
    ('ungated forward', 'GluonNLP forward'),
    ('gated forward', 'ungated forward'),
    ('bfloat16 alpha step', 'bfloat16 step'),
    ('bfloat16 step', 'Transformers bfloat16 step'),
    ('bfloat16 step', 'Transformers bfloat16 step, masked tokens scored'),
    ('ungated step', 'bfloat16 step'),
    ('Transformers step', 'ungated step'),
    ('Transformers step, masked tokens scored', 'ungated step'),
    ('GluonNLP step as installed', 'ungated step'),
)


class TrainingRecipe(Measured):
    """The steps to time."""

    architecture: str = option('a uniform one, which GluonNLP can build too', 'bert_base')
    beside: tuple[str, ...] = option(
        "names or files of further architectures of any widths, whose steps are timed as well, GluonNLP's "
        'excepted',
        (),
    )
    batch_size: PositiveInt = option('sequences', 8)
    length: PositiveInt = option('tokens of a sequence', 128)
    masked: PositiveInt = option('masked tokens of a sequence', 20)
    repeats: PositiveInt = option('timed steps of each kind', 7)
    dropout: float = option('as in training', 0.1)
    steps: tuple[str, ...] = option(
        'what is timed in this process, where the processor can', tuple(STEPS), choices=tuple(STEPS)
    )
    against: tuple[str, ...] = option('whole programs to time as well', (), choices=tuple(PEERS))
    peers: Path = option("directory of the peers' environments", Path('peers'))


def stepper(
    model: Any, trained: Mapping[str, gluon.Parameter], optimizer: str, batch: Mapping[str, np.ndarray]
) -> Callable[[], None]:
    """One whole training step: forward, backward, update."""
    loss = PretrainingLoss()
    loss.hybridize(static_alloc=True)
    trainer = gluon.Trainer(list(trained.values()), optimizer, {'learning_rate': 1e-5}, kvstore=None)

    def step() -> None:
        with autograd.record():
            mlm, nsp = pretraining_losses(model, loss, batch)
            total = mlm / batch['masked_ids'].size + nsp / len(batch['instance_weights'])
        total.backward()
        trainer.step(1)
        mx.nd.waitall()

    return step


def forward(model: Any, batch: Mapping[str, np.ndarray]) -> None:
    """One forward pass, as evaluation makes it."""
    model(*feed_of(batch, INPUTS).values())
    mx.nd.waitall()


def own_steps(
    recipe: TrainingRecipe, architecture: Architecture, *, gluonnlp: bool = True
) -> dict[str, Callable[[], None]]:
    """Steps to time in this process, of one architecture; GluonNLP's only on request."""
    batch = training_inputs(recipe.batch_size, recipe.length, architecture.vocab_size, recipe.masked)
    batch['masked_weights'] = np.ones(batch['masked_ids'].shape)
    batch['instance_weights'] = np.ones(recipe.batch_size)
    steps, forwards = {}, {}
    for name in (name for name in recipe.steps if gluonnlp or name != 'gluonnlp'):
        precision = 'bfloat16' if name.startswith('bfloat16') else 'float32'
        if precision == 'bfloat16' and not bfloat16_is_fast():
            continue
        if name == 'gluonnlp':
            config = {**uniform_config(architecture)[1], 'dropout': recipe.dropout}
            model = gluonnlp_model(config, architecture.vocab_size)
            model.hybridize(static_alloc=True)
            steps[STEPS[name]] = stepper(model, model.collect_params(), 'bertadam', batch)
        elif name.endswith('alpha'):
            model = build(architecture, dropout=recipe.dropout, gated=True, precision=precision)
            for parameter in named_parameters(model).values():
                parameter.grad_req = 'null'
            steps[STEPS[name]] = stepper(model, model.gates.parameters, 'adam', batch)
        else:
            model = build(architecture, dropout=recipe.dropout, precision=precision)
            steps[STEPS[name]] = stepper(model, named_parameters(model), 'bertadam', batch)
        if name in FORWARDS:
            forwards[FORWARDS[name]] = partial(forward, model, batch)
    return {**steps, **forwards}


def start_peer(peer: str, recipe: TrainingRecipe, architecture: Architecture) -> Worker:
    """The process of a peer."""
    theirs, encoder = uniform_config(architecture)
    if peer == 'gluonnlp':
        config = json.dumps({**encoder, 'dropout': recipe.dropout})
        words = [sys.executable, SCRIPTS / 'gluonnlp_training.py', architecture.vocab_size, config]
        return Worker(PEERS[peer], words, threads=None)
    dropouts = dict.fromkeys(('hidden_dropout_prob', 'attention_probs_dropout_prob'), recipe.dropout)
    words = [peer_python(recipe.peers, 'torch'), SCRIPTS / 'torch_training.py', threads_here()]
    words += [json.dumps({**theirs, **dropouts}), 'bfloat16' if 'bfloat16' in peer else 'float32']
    words += ['masked' if 'masked' in peer else 'all']
    return Worker(PEERS[peer], words, threads=threads_here())


def ratios_of(times: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The ratios of medians of what was timed."""
    beside = [(name, name.split(' of ')[0]) for name in times if ' of ' in name]
    return {
        f'{one} / {other}': times[one]['median'] / times[other]['median']
        for one, other in (*RATIOS, *beside)
        if one in times and other in times
    }


def table(times: Mapping[str, Mapping[str, float]], tokens: int) -> str:
    """Times and ratios as Markdown."""
    steps = []
    for name, found in times.items():
        shown = [f'{found[which]:.0f} ms' for which in ('min', 'median', 'max')]
        steps.append([name, *shown, f'{1e3 * tokens / found["median"]:.0f}'])
    ratios = [(name, f'{ratio:.3f}') for name, ratio in ratios_of(times).items()]
    return '\n\n'.join(
        [
            markdown_table([None, 'minimum', 'median', 'maximum', 'tokens/s'], steps),
            markdown_table(['ratio of medians', 'measured'], ratios),
        ]
    )


@command
def main(argv=None):
    """Time the steps and print the table."""
    recipe = parsed(
        TrainingRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python benchmarks/training.py bert_base --against torch,torch-bfloat16 --peers peers',
    )
    architecture = resolve(recipe.architecture)
    shape = {'batch': recipe.batch_size, 'length': recipe.length, 'masked': recipe.masked}
    with contextlib.ExitStack() as stack:
        workers = []
        for peer in recipe.against:
            workers.append(start_peer(peer, recipe, architecture))
            stack.callback(workers[-1].close)
        own = own_steps(recipe, architecture)
        for beside in recipe.beside:
            for name, step in own_steps(recipe, resolve(beside), gluonnlp=False).items():
                own[f'{name} of {beside}'] = step
        steps = {name: timed(step) for name, step in own.items()}
        for worker in workers:
            steps[worker.name] = worker.timed(**shape)
        values = in_turn(steps, recipe.repeats)
    times = {
        name: {'min': min(some), 'median': float(np.median(some)), 'max': max(some)}
        for name, some in values.items()
    }
    tokens, threads = recipe.batch_size * recipe.length, threads_here()
    print(table(times, tokens))
    print(f'\n{recipe.batch_size}x{recipe.length} tokens, {threads} threads, {recipe.repeats} turns')
    write(
        recipe,
        milliseconds=times,
        tokens_per_second={name: 1e3 * tokens / summary['median'] for name, summary in times.items()},
        ratios=ratios_of(times),
        threads=threads,
        peers={worker.name: worker.versions for worker in workers},
    )


if __name__ == '__main__':
    sys.exit(main())
