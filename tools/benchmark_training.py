"""Time training steps side by side: GluonNLP's BERTModel, this package's, and the gates' with frozen weights.

The steps are taken in turn in one process, at equal threads and shapes, so that the ratios hold on a machine whose speed
drifts. Nothing else should run meanwhile.
"""
from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional

import gluon_optbert  # noqa: F401  sets the threads before MXNet is imported
import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTEncoder, BERTModel
from mxnet import autograd, gluon

from gluon_optbert.architecture import Architecture, resolve
from gluon_optbert.model import PretrainingLoss, build, named_parameters
from gluon_optbert.recipe import command, option, parse, to_dict
from gluon_optbert.staging import write_file


@dataclasses.dataclass(frozen=True)
class BenchmarkRecipe:
    """What is timed."""
    architecture: str = option('a uniform one, which GluonNLP can build too', 'bert_base')
    batch_size: int = option('sequences', 8)
    length: int = option('tokens of a sequence', 128)
    masked: int = option('masked tokens of a sequence', 20)
    repeats: int = option('timed steps of each kind', 7)
    dropout: float = option('as in training', 0.1)
    output: Optional[Path] = option('JSON file to write', None)


def feed_of(recipe: BenchmarkRecipe, architecture: Architecture) -> Dict[str, mx.nd.NDArray]:
    """One random batch without padding."""
    random, shape = np.random.RandomState(0), (recipe.batch_size, recipe.length)
    few = (recipe.batch_size, recipe.masked)
    arrays = {'input_ids': random.randint(0, architecture.vocab_size, shape), 'token_types': random.randint(0, 2, shape),
              'valid_length': np.full(recipe.batch_size, recipe.length), 'masked_positions':
              random.randint(0, recipe.length, few), 'masked_ids': random.randint(0, architecture.vocab_size, few),
              'masked_weights': np.ones(few), 'labels': random.randint(0, 2, recipe.batch_size),
              'instance_weights': np.ones(recipe.batch_size)}
    return {name: mx.nd.array(array, dtype='float32') for name, array in arrays.items()}


def gluonnlp_model(architecture: Architecture, dropout: float) -> BERTModel:
    """GluonNLP's own network of the same widths."""
    dims = architecture.layers[0]
    encoder = BERTEncoder(num_layers=len(architecture.layers), units=architecture.h, hidden_size=dims.f,
                          max_length=architecture.max_length, num_heads=dims.a, dropout=dropout)
    model = BERTModel(encoder, vocab_size=architecture.vocab_size, token_type_vocab_size=2, units=architecture.h,
                      embed_size=architecture.h)
    model.initialize(mx.init.Normal(0.02))
    model.hybridize(static_alloc=True)
    return model


def stepper(model: Any, trained: Mapping[str, gluon.Parameter], optimizer: str,
            feed: Mapping[str, mx.nd.NDArray]) -> Callable[[], None]:
    """One whole training step: forward, backward, update."""
    loss = PretrainingLoss()
    loss.hybridize(static_alloc=True)
    trainer = gluon.Trainer(list(trained.values()), optimizer, {'learning_rate': 1e-5}, kvstore=None)
    masked, instances = feed['masked_ids'].size, feed['labels'].size

    def step() -> None:
        with autograd.record():
            outputs = model(feed['input_ids'], feed['token_types'], feed['valid_length'], feed['masked_positions'])
            mlm, nsp = loss(outputs[-2], outputs[-1], feed['masked_ids'], feed['masked_weights'], feed['labels'],
                            feed['instance_weights'])
            total = mlm / masked + nsp / instances
        total.backward()
        trainer.step(1)
        mx.nd.waitall()
    return step


def forward(model: Any, feed: Mapping[str, mx.nd.NDArray]) -> Callable[[], None]:
    """One forward pass, as evaluation makes it."""
    def step() -> None:
        model(feed['input_ids'], feed['token_types'], feed['valid_length'], feed['masked_positions'])
        mx.nd.waitall()
    return step


def interleaved(steps: Mapping[str, Callable[[], None]], repeats: int) -> Dict[str, Dict[str, float]]:
    """Milliseconds of each step, taken in turn: minimum, median and maximum."""
    times: Dict[str, list] = {name: [] for name in steps}
    for attempt in range(repeats + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if attempt >= 2:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: {'min': min(values), 'median': float(np.median(values)), 'max': max(values)}
            for name, values in times.items()}


@command
def main(argv=None):
    """Time the steps and print the table."""
    recipe = parse(BenchmarkRecipe, argv, description=__doc__, positional='architecture',
                   example='python tools/benchmark_training.py bert_base --batch-size 8 --length 128')
    architecture = resolve(recipe.architecture)
    if len(set(architecture.layers)) > 1:
        raise ValueError(f'{recipe.architecture}: GluonNLP builds equal layers only; choose a uniform architecture')
    feed = feed_of(recipe, architecture)
    theirs = gluonnlp_model(architecture, recipe.dropout)
    ours = build(architecture, dropout=recipe.dropout)
    gated = build(architecture, dropout=recipe.dropout, gated=True)
    for parameter in gated.collect_params().values():
        parameter.grad_req = 'null'
    gates = gated.gates.parameters
    for parameter in gates.values():
        parameter.grad_req = 'write'
    steps = {'GluonNLP step': stepper(theirs, theirs.collect_params(), 'bertadam', feed),
             'ungated step': stepper(ours, named_parameters(ours), 'bertadam', feed),
             'alpha step': stepper(gated, gates, 'adam', feed),
             'GluonNLP forward': forward(theirs, feed), 'ungated forward': forward(ours, feed),
             'gated forward': forward(gated, feed)}
    times = interleaved(steps, recipe.repeats)
    pairs = [('ungated step', 'GluonNLP step', 0.90), ('alpha step', 'ungated step', 0.75),
             ('ungated forward', 'GluonNLP forward', None), ('gated forward', 'ungated forward', 1.05)]
    ratios = {f'{a} / {b}': times[a]['median'] / times[b]['median'] for a, b, _ in pairs}
    print('| | minimum | median | maximum |\n| --- | --- | --- | --- |')
    for name, found in times.items():
        print(f'| {name} | {found["min"]:.0f} ms | {found["median"]:.0f} ms | {found["max"]:.0f} ms |')
    print('\n| ratio of medians | measured | wanted at most |\n| --- | --- | --- |')
    for (a, b, wanted), ratio in zip(pairs, ratios.values()):
        print(f'| {a} / {b} | {ratio:.3f} | {"" if wanted is None else f"{wanted:.2f}"} |')
    threads = os.environ['OMP_NUM_THREADS']
    print(f'\n{recipe.batch_size}x{recipe.length} tokens, {threads} threads, {recipe.repeats} repeats, taken in turn')
    if recipe.output:
        write_file(recipe.output, (json.dumps({
            'recipe': to_dict(recipe), 'milliseconds': times, 'ratios': ratios, 'threads': int(threads),
            'versions': {'mxnet': mx.__version__, 'gluon_optbert': gluon_optbert.__version__,
                         'python': platform.python_version()}, 'machine': platform.machine()}, indent=1) + '\n').encode())
        print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
