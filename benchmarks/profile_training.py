"""Where the time of a training step goes: part by part, beside what this machine can do at most.

A step is taken as training takes it, and then its graph again under MXNet's profiler, operator by operator.
Each operator counts for the part of the network whose name it bears. Optimizer, all-reduce and the data's way
in are timed by the clock. What the parts leave of the step is the remainder: what lies between operators, and
what the profiler adds. Nothing else should run.

The ceilings are measured here: a matrix product of the widest shape of the feed-forward blocks, and copying a
large array."""

from __future__ import annotations

import os

# one event for each operator, none fused
os.environ.update(MXNET_EXEC_BULK_EXEC_TRAIN='0', MXNET_SUBGRAPH_BACKEND='NONE')

import gluon_optbert  # noqa: F401  before MXNet, which reads its settings while it is loaded

# isort: split
import dataclasses
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import count_flops
from gluon_optbert.architecture.named import resolve
from gluon_optbert.network.losses import PretrainingLoss
from gluon_optbert.network.model import OptBERTModel, build, named_parameters
from gluon_optbert.network.running import PRETRAINING_FIELDS, feed_of
from gluon_optbert.network.settings import TRAINING_PRECISIONS, check_precision, lowered
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.failures import RunFailed
from gluon_optbert.runs.files import refuse_existing, write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option, to_dict
from gluon_optbert.text.batches import Batch
from gluon_optbert.text.shards import Shards
from gluon_optbert.training.distributed import Workers
from gluon_optbert.training.loop import backward, collect_gradients
from gluon_optbert.training.mlm_nsp import Pretraining
from gluon_optbert.training.objective import Phase
from gluon_optbert.training.optimization import Optimizer

GATES = 'gates'
# the first that fits
PARTS = {
    GATES: r'gate_|_transformer\d+_(_ones|square|reshape|broadcast_mul)\d'
    r'|model\d+_(_ones|reshape3|broadcast_mul)',
    'LayerNorm': 'streamlayernorm',
    'feed-forward': 'optfeedforward',
    'attention': r'_transformer\d+_',
    'embedding and masks': r'embed|encoder\d+_|model\d+_(_plus|transpose)0',
    'heads and losses': '',
}
UNTIMED = 2  # the first steps, which allocate
LARGE = 64 * 2**20  # numbers of the array that is copied


class ProfileRecipe(Recipe):
    """What is profiled."""

    architecture: str = option('its name, or a file, or JSON', 'bert_base')
    batch_size: int = option('sequences', 8)
    length: int = option('tokens of a sequence', 128)
    masked: int = option('masked tokens of a sequence', 20)
    dropout: float = option('as in training', 0.1)
    precision: str = option("of the encoder's matrix products", 'float32', choices=TRAINING_PRECISIONS[:2])
    gates: bool = option('profile the step that trains the gates, with the weights frozen', False)
    steps: int = option('steps to take the median of', 7)
    shards: Path | None = option(
        'take the batches from here, with their lengths, to time their way in as well', None
    )
    output: Path | None = option('JSON file to write', None)

    def problems(self) -> list[str]:
        """What is out of range."""
        counts = {name: getattr(self, name) for name in ('batch_size', 'length', 'masked', 'steps')}
        return [f'{name} must be at least 1, found {count}' for name, count in counts.items() if count < 1]


@dataclasses.dataclass
class Step:
    """A training step, ready to be taken, and what it is made of."""

    objective: Pretraining
    optimizer: Optimizer
    phase: Phase

    @property
    def model(self) -> OptBERTModel:
        return self.objective.model

    def take(self, batch: Batch) -> Tuple[float, float]:
        """Forward, backward, update, as training does; the milliseconds of the whole and of the update."""
        began = time.perf_counter()
        backward(self.objective, self.optimizer.parameters, batch, self.phase, 0)
        mx.nd.waitall()
        between = time.perf_counter()
        self.optimizer.update(1e-6, step=1)
        mx.nd.waitall()
        ended = time.perf_counter()
        return 1e3 * (ended - began), 1e3 * (ended - between)


def random_batch(recipe: ProfileRecipe, vocab_size: int) -> Batch:
    """One batch without padding."""
    random, size, length = np.random.RandomState(0), recipe.batch_size, recipe.length
    all_places, few = (size, length), (size, recipe.masked)
    return Batch(
        input_ids=random.randint(0, vocab_size, all_places),
        token_types=random.randint(0, 2, all_places),
        valid_length=np.full(size, length),
        masked_positions=random.randint(0, length, few),
        masked_ids=random.randint(0, vocab_size, few),
        masked_weights=np.ones(few, np.float32),
        next_sentence_labels=random.randint(0, 2, size),
        instance_weights=np.ones(size, np.float32),
        masked_total=size * recipe.masked,
        instance_total=size,
        token_total=size * length,
        index=0,
    )


def prepare(recipe: ProfileRecipe, architecture: Architecture, workers: Workers) -> Step:
    """The network and the optimizer of what is trained."""
    model = build(
        architecture,
        dropout=recipe.dropout,
        gated=recipe.gates,
        precision=recipe.precision,
        ctx=workers.context(),
    )
    trained: Mapping[str, gluon.Parameter] = named_parameters(model)
    if recipe.gates:
        for parameter in trained.values():
            parameter.grad_req = 'null'
        trained = model.gates.parameters
    optimizer = Optimizer(
        trained,
        'adam' if recipe.gates else 'bertadam',
        workers=workers,
        clip_norm=None if recipe.gates else 1.0,
    )
    phase = Phase(name='profile', steps=1, batch_size=recipe.batch_size * workers.size)
    collect_gradients(model, trained, phase)
    return Step(Pretraining(model, workers, shards=None), optimizer, phase)


def clock(action: Callable[[], Any], repeats: int, *, untimed: int = UNTIMED) -> float:
    """The median of an action's milliseconds, after some that do not count."""
    times = []
    for _ in range(untimed + repeats):
        began = time.perf_counter()
        action()
        mx.nd.waitall()
        times.append(1e3 * (time.perf_counter() - began))
    return float(np.median(times[untimed:]))


def graph_of(step: Step, batch: Batch) -> mx.executor.Executor:
    """Forward and backward of a step as one graph, with the values that the step has."""
    feed = feed_of(batch, PRETRAINING_FIELDS, ctx=step.objective.workers.context())
    inputs = {name: mx.sym.var(name) for name in feed}
    *_, next_sentence, masked = step.model(
        inputs['input_ids'], inputs['token_types'], inputs['valid_length'], inputs['masked_positions']
    )
    mlm, nsp = PretrainingLoss()(
        next_sentence,
        masked,
        inputs['masked_ids'],
        inputs['masked_weights'],
        inputs['next_sentence_labels'],
        inputs['instance_weights'],
    )
    total = mx.sym.make_loss(mlm / batch.masked_total + nsp / batch.instance_total)
    parameters = {parameter.name: parameter for parameter in step.model.collect_params().values()}
    wanted = {
        name: parameters[name].grad_req if name in parameters else 'null' for name in total.list_arguments()
    }
    graph = total.simple_bind(
        step.objective.workers.context(),
        grad_req=wanted,
        **{name: value.shape for name, value in feed.items()},
    )
    for name, array in graph.arg_dict.items():
        array[:] = feed[name] if name in feed else parameters[name].data()
    graph.gated = {name for name, about in total.attr_dict().items() if about.get('__part__') == GATES}
    return graph


def parts_of(plan: Sequence[Tuple[str, str]], gated: Sequence[str]) -> List[str]:
    """The part of every operator, given by kind and name in the order in which they run; a sum of gradients
    belongs to what reads it."""
    parts: List[str] = []
    for _, name in reversed(plan):
        forward = re.sub('_backward(_lhs|_rhs)?$', '', name)
        if name == 'sum_grad':
            parts.append(parts[-1] if parts else GATES)
        elif forward in gated:
            parts.append(GATES)
        else:
            parts.append(next(part for part, pattern in PARTS.items() if re.search(pattern, forward)))
    return parts[::-1]


def operator_times(graph: mx.executor.Executor, plan: Sequence[Tuple[str, str]], steps: int) -> List[float]:
    """The median milliseconds of every operator of the plan.

    Raises
    ------
    RunFailed
        If the profiler saw others than those of the plan.
    """

    def run() -> None:
        graph.forward(is_train=True)
        graph.backward()
        mx.nd.waitall()

    with tempfile.TemporaryDirectory() as place:
        mx.profiler.set_config(
            profile_symbolic=True,
            profile_imperative=True,
            aggregate_stats=False,
            filename=os.path.join(place, 'trace.json'),
        )
        run()
        mx.profiler.set_state('run')
        for _ in range(steps):
            run()
        mx.profiler.set_state('stop')
        mx.profiler.dump(True)
        with open(os.path.join(place, 'trace.json'), encoding='utf-8') as file:
            events = [event for event in json.load(file)['traceEvents'] if event.get('cat') == 'operator']
    began: Dict[Tuple[str, Any], List[float]] = {}
    spans: Dict[str, List[Tuple[float, float]]] = {}
    for event in events:
        key = (event['name'], event['tid'])
        if event['ph'] == 'B':
            began.setdefault(key, []).append(event['ts'])
        elif event['ph'] == 'E':
            start = began[key].pop()
            spans.setdefault(event['name'], []).append((start, (event['ts'] - start) / 1e3))
    times: Dict[str, List[float]] = {}
    kinds = [kind for kind, _ in plan]
    for kind in set(kinds):
        count, measured = kinds.count(kind), [time for _, time in sorted(spans.get(kind, []))]
        if len(measured) != steps * count and not (kind == '_grad_add' and len(measured) % steps == 0):
            raise RunFailed(
                f'the profiler saw {len(measured)} operators {kind} in {steps} steps, the graph has {count}'
            )
        seen = len(measured) // steps
        medians = [float(np.median(measured[i::seen])) for i in range(seen)]
        # most of those sums are taken in place
        times[kind] = medians if seen == count else [sum(medians) / count] * count
    return [times[kind].pop(0) for kind in kinds]


def work(batch: Batch, architecture: Architecture, *, gates: bool) -> Dict[str, float]:
    """Thousand millions of operations of the matrix products of each part, forward and backward."""
    size, length = batch.input_ids.shape
    forward = count_flops(architecture, length)
    layers = architecture.layers
    scores = sum(2 * length**2 * layer.a * (layer.k + layer.v) for layer in layers)
    width = architecture.embedding_width
    head = 2 * batch.masked_ids.shape[1] * width * (architecture.h + architecture.vocab_size)
    passes = 2 if gates else 3  # the gradient of the input, and that of the weights unless they are frozen
    counts = {
        'attention': passes * (forward['attention'] - scores) + 3 * scores,
        'feed-forward': passes * forward['feed_forward'],
        'heads and losses': passes * head,
    }
    return {part: size * count / 1e9 for part, count in counts.items()}


def ceilings(batch: Batch, architecture: Architecture, precision: str, ctx: mx.Context) -> Dict[str, float]:
    """The GFLOP/s of a matrix product as the feed-forward blocks have them, and the GB/s of copying, at their
    best.
    """
    rows, f = batch.input_ids.size, max(layer.f for layer in architecture.layers) or architecture.h
    data, weight = (
        lowered(mx.nd, mx.nd.random.normal(shape=shape, ctx=ctx), precision)
        for shape in ((rows, architecture.h), (f, architecture.h))
    )
    large = mx.nd.ones((LARGE,), ctx=ctx)
    other = mx.nd.zeros((LARGE,), ctx=ctx)

    def best(action: Callable[[], Any]) -> float:
        return min(clock(action, 1, untimed=0) for _ in range(15))

    return {
        'gflops': 2
        * rows
        * architecture.h
        * f
        / 1e6
        / best(lambda: mx.nd.FullyConnected(data, weight, no_bias=True, num_hidden=f)),
        'gbytes': 2 * 4 * LARGE / 1e6 / best(lambda: large.copyto(other)),
    }


def profile(recipe: ProfileRecipe, architecture: Architecture) -> Dict[str, Any]:
    """Milliseconds by part, of the whole step and of what remains, with the work and the ceilings."""
    workers = Workers()
    check_precision(recipe.precision, workers.context())
    step, batches = prepare(recipe, architecture, workers), None
    if recipe.shards is not None:
        batches = Pretraining(step.model, workers, Shards.open(recipe.shards, split='train')).batches(
            step.phase, 0
        )
    batch = random_batch(recipe, architecture.vocab_size) if batches is None else next(batches)
    whole, update = np.median([step.take(batch) for _ in range(UNTIMED + recipe.steps)][UNTIMED:], axis=0)
    gradients = step.optimizer.gradients()
    average = (
        clock(lambda: workers.average(gradients, name='gradient'), recipe.steps) if workers.size > 1 else 0.0
    )

    def arrive() -> None:
        feed_of(batch if batches is None else next(batches), PRETRAINING_FIELDS, ctx=workers.context())

    parts = {
        'optimizer': float(max(0.0, update - average)),
        'all-reduce': average,
        'data': clock(arrive, recipe.steps),
    }
    graph = graph_of(step, batch)
    plan = re.findall(r'^Op:(\S+), Name=(\S+)$', graph.debug_str(), flags=re.MULTILINE)
    for part, milliseconds in zip(parts_of(plan, graph.gated), operator_times(graph, plan, recipe.steps)):
        parts[part] = parts.get(part, 0.0) + milliseconds
    if batches is not None:
        batches.close()
    return {
        'step': float(whole),
        'parts': dict(sorted(parts.items(), key=lambda item: -item[1])),
        'remainder': float(whole - sum(parts.values())),
        'shape': batch.input_ids.shape,
        'gflop': work(batch, architecture, gates=recipe.gates),
        'ceilings': ceilings(batch, architecture, recipe.precision, workers.context()),
        'workers': workers.size,
    }


def table(result: Mapping[str, Any]) -> str:
    """The parts as Markdown."""
    most = result['ceilings']['gflops']
    rows = []
    for part, milliseconds in [*result['parts'].items(), ('remainder', result['remainder'])]:
        speed = 1e3 * result['gflop'].get(part, 0.0) / milliseconds if milliseconds > 0 else 0.0
        reached = (f'{speed:.0f}', f'{speed / most:.0%}') if speed else (None, None)
        rows.append((part, f'{milliseconds:.1f} ms', f'{milliseconds / result["step"]:.1%}', *reached))
    speed = 1e3 * sum(result['gflop'].values()) / result['step']
    rows.append(('the step', f'{result["step"]:.1f} ms', '100.0%', f'{speed:.0f}', f'{speed / most:.0%}'))
    return markdown_table(['part', 'time', 'share', 'GFLOP/s', 'of the ceiling'], rows)


@command
def main(argv=None):
    """Profile a step, print the table."""
    recipe = parse(
        ProfileRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python benchmarks/profile_training.py bert_base --precision bfloat16',
    )
    if recipe.output:
        refuse_existing(recipe.output)
    architecture = resolve(recipe.architecture)
    if recipe.length > architecture.max_length or recipe.masked > recipe.length:
        raise ValueError(
            f'length {recipe.length}: at most {architecture.max_length}, and at least masked, {recipe.masked}'
        )
    result = profile(recipe, architecture)
    if Workers().first:
        print(table(result))
        print(
            f'\nceilings measured: {result["ceilings"]["gflops"]:.0f} GFLOP/s in {recipe.precision}, '
            f'{result["ceilings"]["gbytes"]:.1f} GB/s; medians of {recipe.steps} steps of '
            f'{" x ".join(map(str, result["shape"]))} tokens'
        )
        if recipe.output:
            write_file(
                recipe.output,
                (
                    json.dumps({'recipe': to_dict(recipe), **result, **origin_here()}, indent=1) + '\n'
                ).encode(),
            )
            print(f'wrote {recipe.output}')


if __name__ == '__main__':
    sys.exit(main())
