"""Plan a pre-training run before it is paid for: shards, steps, memory of a GPU, days, cost, and the
commands.

Nothing is run. What a corpus becomes is scaled from shards that were made and counted (`--measure`),
floating-point operations are those of the cost model, and their speed is taken from published runs, of which
each is named."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.architecture.cost import count_flops, count_parameters
from gluon_optbert.architecture.named import resolve
from gluon_optbert.runs.command_line import command, parse
from gluon_optbert.runs.display import markdown_table
from gluon_optbert.runs.files import write_file
from gluon_optbert.runs.machine import origin_here
from gluon_optbert.runs.recipe import Recipe, option
from gluon_optbert.text.documents import list_files, read_documents
from gluon_optbert.text.shards import Shards, record_dtype

MEASURED = Path(__file__).resolve().parents[1] / 'results' / 'shard_sizes.json'
DAY, BYTES = 86400, 4  # float32


class Published(NamedTuple):
    """Sequences a second of BERT-large in float32 on V100s of 32 GB, from the README of NVIDIA's
    DeepLearningExamples.
    """

    gpus: int
    length: int
    predictions: int
    sequences_per_second: float


PUBLISHED = (
    Published(8, 128, 20, 386.89),
    Published(16, 128, 20, 761.92),
    Published(64, 128, 20, 3389.83),
    Published(8, 512, 80, 86.78),
    Published(16, 512, 80, 173.26),
    Published(64, 512, 80, 765.04),
)
PUBLISHED_NETWORK = 'l24_h1024_a16'
# BERT-base in mixed precision, "GluonNLP 0.6", Apache MXNet's blog, March 2019
GLUONNLP_DAYS, GLUONNLP_GPUS = (6.5, 8)


class Stage(NamedTuple):
    """One of the two phases of BERT's pre-training (Devlin et al., 2018, A.2)."""

    length: int
    predictions: int
    steps: int


class PlanRecipe(Recipe):
    """The run that is planned, or measured."""

    architecture: str = option('its name, a file or JSON', 'bert_base')
    words: PositiveFloat = option('of the corpus; BooksCorpus and Wikipedia have 0.8 and 2.5 billion', 3.3e9)
    steps: PositiveInt = option('of both phases', 1000000)
    long_share: Annotated[float, Field(ge=0, le=1)] = option(
        'share of the steps with sequences of 512 tokens', 0.1
    )
    batch_size: PositiveInt = option('sequences a step, over all GPUs', 256)
    dupe_factor: PositiveInt = option('passes of make_shards.py over the text', 5)
    gpus: tuple[PositiveInt, ...] = option('numbers of GPUs to compare', (8, 16, 32, 64))
    gpus_per_host: PositiveInt = option('of them in one machine', 8)
    memory: PositiveFloat = option('GiB of a GPU', 32.0)
    exchange: PositiveFloat = option(
        'gigabytes a second at which gradients are exchanged, per GPU; an assumption', 10.0
    )
    price: PositiveFloat = option('of a GPU for an hour, in dollars; an eighth of 31.22 for eight V100', 3.9)
    measure: tuple[Path, ...] = option(
        'directories of shards to count instead, with the text that they were made from', ()
    )
    measured: Path = option('where the counts are', MEASURED)

    def problems(self) -> list[str]:
        """Problems: fields out of range."""
        problems = [] if self.gpus else ['gpus must be at least one number of GPUs, found none']
        return problems + [
            f'gpus must divide batch_size {self.batch_size}, found {gpus}'
            for gpus in self.gpus
            if self.batch_size % gpus
        ]

    def stages(self) -> tuple[Stage, ...]:
        """Short sequences first, then long ones; a stage without steps is left out."""
        long_steps = round(self.steps * self.long_share)
        stages = Stage(128, 20, self.steps - long_steps), Stage(512, 80, long_steps)
        return tuple(stage for stage in stages if stage.steps)


def count_shards(directory: Path) -> dict[str, Any]:
    """Contents of a directory of shards, and how many words its text had, each counted once."""
    manifest = Shards.open(directory).manifest
    shard_recipe = manifest.recipe
    missing = [name for name in ('input', 'layout', 'dupe_factor') if name not in shard_recipe]
    if missing:
        raise ValueError(
            f'{directory}: its manifest does not say {", ".join(missing)}, so its text is not known'
        )
    words = sum(
        len(line.split())
        for path in list_files(map(Path, shard_recipe['input']))
        for document in read_documents(path, shard_recipe['layout'])
        for line in document.lines
    )
    instances = tokens = size = 0
    for split in manifest.splits:
        shards = Shards.open(directory, split=split)
        instances, size = instances + shards.instances, size + sum(file.bytes for file in shards.files)
        tokens += sum(int(shards.read(number)['valid_lengths'].sum()) for number in range(len(shards.files)))
    return {
        'max_seq_length': manifest.max_seq_length,
        'max_predictions': manifest.max_predictions,
        'vocabulary': manifest.vocabulary.size,
        'dupe_factor': shard_recipe['dupe_factor'],
        'words': words,
        'instances': instances,
        'tokens': tokens,
        'bytes': size,
    }


def read_measured(path: Path) -> dict[str, Any]:
    """The counts of `--measure`; FileNotFoundError or ValueError if there are none."""
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no counts of shards; make them with --measure shards')
    try:
        counts = json.loads(path.read_text(encoding='utf-8'))['shards'][0]
        if not all(
            counts[name] > 0
            for name in ('words', 'tokens', 'instances', 'max_seq_length', 'dupe_factor', 'vocabulary')
        ):
            raise ValueError('an empty count')
        return counts
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f'{path}: not the counts of --measure ({type(error).__name__}: {error})') from error


def corpus(recipe: PlanRecipe, stage: Stage, measured: dict[str, Any]) -> tuple[float, float]:
    """Instances and bytes that the words become, at another length, as full as those that were counted."""
    tokens_per_word = measured['tokens'] / measured['words'] / measured['dupe_factor']
    share_full = measured['tokens'] / measured['instances'] / measured['max_seq_length']
    instances = recipe.words * recipe.dupe_factor * tokens_per_word / (share_full * stage.length)
    return instances, instances * record_dtype(
        stage.length, stage.predictions, measured['vocabulary']
    ).itemsize


def training_flops(architecture: Architecture, stage: Stage) -> float:
    """Operations of one training step for one sequence: three forward passes' worth, the heads counted in."""
    h, e = architecture.h, architecture.embedding_width
    heads = 2 * h * h + stage.predictions * 2 * (h * e + e * architecture.vocab_size)
    return 3.0 * (sum(count_flops(architecture, stage.length).values()) + heads)


def published_speed(gpus: int, stage: Stage) -> float:
    """Operations a second of one GPU of so many, by the published run of the next smaller number."""
    rows = [row for row in PUBLISHED if row.length == stage.length]
    row = max((row for row in rows if row.gpus <= gpus), default=rows[0])
    return training_flops(resolve(PUBLISHED_NETWORK), stage) * row.sequences_per_second / row.gpus


def memory(architecture: Architecture, stage: Stage, sequences: int) -> tuple[float, float]:
    """Bytes of a GPU for weights with their gradients and Adam's moments, and for what one pass keeps until
    its backward.

    A layer keeps queries, keys and values; scores, probabilities and dropped ones; context; both blocks'
    outputs before and after dropout, residual and LayerNorm; the intermediate units before and after GELU;
    beside the layers, embeddings and MLM scores."""
    tokens, h = sequences * stage.length, architecture.h
    kept = 4 * tokens * h + 3 * sequences * stage.predictions * architecture.vocab_size
    for layer in architecture.layers:
        kept += (
            tokens * (layer.a * (2 * layer.k + 2 * layer.v) + 8 * h + 3 * layer.f)
            + 3 * sequences * layer.a * stage.length**2
        )
    return 4.0 * BYTES * sum(count_parameters(architecture).values()), float(BYTES * kept)


def passes(recipe: PlanRecipe, architecture: Architecture, stage: Stage, gpus: int) -> int | None:
    """The least number of passes of a step (`--accumulate`) that fits nine tenths of the memory; None if no
    number does.
    """
    share = recipe.batch_size // gpus
    for count in (count for count in range(1, share + 1) if share % count == 0):
        if sum(memory(architecture, stage, share // count)) <= 0.9 * recipe.memory * 2**30:
            return count
    return None


def step_seconds(
    recipe: PlanRecipe, architecture: Architecture, stage: Stage, gpus: int
) -> tuple[float, float]:
    """Seconds of a step: computing, and exchanging the gradients, counted as if it only began afterwards."""
    computing = training_flops(architecture, stage) * recipe.batch_size / gpus / published_speed(gpus, stage)
    gradients = BYTES * sum(count_parameters(architecture).values())
    return computing, 2 * (gpus - 1) / gpus * gradients / recipe.exchange / 1e9


def commands(recipe: PlanRecipe, architecture: Architecture, gpus: int) -> list[str]:
    """The command lines of the run, whose stages all fit."""
    hosts = math.ceil(gpus / recipe.gpus_per_host)
    where = ','.join(f'host{number}:{min(gpus, recipe.gpus_per_host)}' for number in range(1, hosts + 1))
    launch = f'horovodrun --gloo -np {gpus} -H {where} python '
    stages, lines = recipe.stages(), []

    def reading(stage: Stage) -> str:
        count = passes(recipe, architecture, stage, gpus)
        return f'--batch-size {recipe.batch_size} --accumulate {count} --shards shards{stage.length}'

    for stage in stages:
        lines.append(
            'python pretrain/make_shards.py --input wiki,books --vocab vocab.txt --max-seq-length '
            f'{stage.length} --dupe-factor {recipe.dupe_factor} --output shards{stage.length}'
        )
    start = shlex.join(('--architecture', recipe.architecture))
    for stage in stages:
        output = 'models/base' if stage is stages[-1] else f'models/base{stage.length}'
        # the rate that BERT's schedule has where the long sequences begin
        rate = f' --learning-rate {1e-4 * recipe.long_share:.1e}' if stage.length == 512 else ''
        lines.append(
            f'{launch}pretrain/run_pretraining.py pretrain/recipes/bert_base_{stage.length}.yaml '
            f'--steps {stage.steps} {reading(stage)} {start}{rate} --output {output}'
        )
        start = f'--model {output}'
    lines.append(
        f'{launch}pretrain/run_prune.py pretrain/recipes/optbert_prune.yaml {reading(stages[0])} '
        '--model models/base --output runs/optbert'
    )
    return lines


def how_to_run(recipe: PlanRecipe, architecture: Architecture) -> list[str]:
    """The commands for the first number of GPUs, or a sentence where a single sequence does not fit."""
    gpus = recipe.gpus[0]
    for stage in recipe.stages():
        if passes(recipe, architecture, stage, gpus) is None:
            return [
                f'A sequence of {stage.length} tokens does not fit the {recipe.memory:g} GiB of a GPU; give '
                'more --memory or a smaller architecture.'
            ]
    return ['```', *commands(recipe, architecture, gpus), '```']


def stage_table(recipe: PlanRecipe, architecture: Architecture, measured: dict[str, Any]) -> str:
    """Table of the text that is trained on in each stage."""
    rows = []
    for stage in recipe.stages():
        instances, size = corpus(recipe, stage, measured)
        rows.append(
            (
                stage.length,
                f'{stage.steps:,}',
                f'{instances / 1e6:.0f} M',
                f'{size / 1e9:.0f} GB',
                f'{stage.steps * recipe.batch_size / instances:.1f}',
                f'{training_flops(architecture, stage) * recipe.batch_size / 1e12:.1f} T',
            )
        )
    header = 'length, steps, instances, shards, epochs, FLOPs per step'
    return markdown_table(header.split(', '), rows)


def step_table(recipe: PlanRecipe, architecture: Architecture) -> str:
    """Table of the time of a step, by number of GPUs and by stage."""
    rows = []
    for gpus in recipe.gpus:
        for stage in recipe.stages():
            share, count = recipe.batch_size // gpus, passes(recipe, architecture, stage, gpus)
            fixed, kept = memory(architecture, stage, share // (count or share))
            computing, exchange = step_seconds(recipe, architecture, stage, gpus)
            rows.append(
                (
                    gpus,
                    stage.length,
                    share,
                    count or 'does not fit',
                    f'{fixed / 2**30:.1f} GiB',
                    f'{kept / 2**30:.1f} GiB',
                    f'{1e3 * computing:.0f} ms',
                    f'{1e3 * exchange:.0f} ms',
                    f'{stage.steps * (computing + exchange) / DAY:.2f}',
                )
            )
    header = 'GPUs, length, sequences per GPU, --accumulate, weights and Adam, activations, computing'
    return markdown_table([*header.split(', '), f'exchange ({recipe.exchange:g} GB/s)', 'days'], rows)


def cost_table(recipe: PlanRecipe, architecture: Architecture) -> str:
    """Days and money, by number of GPUs."""
    rows = []
    for gpus in recipe.gpus:
        stages = {stage: sum(step_seconds(recipe, architecture, stage, gpus)) for stage in recipe.stages()}
        days = sum(stage.steps * seconds for stage, seconds in stages.items()) / DAY
        pruning = 7 * (recipe.steps // 1000 + recipe.steps // 20) * next(iter(stages.values())) / DAY
        rows.append((gpus, f'{days:.1f}', f'${days * 24 * gpus * recipe.price:,.0f}', f'{pruning:.1f} days'))
    return markdown_table(['GPUs', 'days', 'cost', 'pruning to the seven sizes, at most'], rows)


def plan(recipe: PlanRecipe) -> str:
    """The plan, as Markdown; ValueError if the network has too few positions for it."""
    architecture, measured = resolve(recipe.architecture), read_measured(recipe.measured)
    longest = max(stage.length for stage in recipe.stages())
    if architecture.max_length < longest:
        raise ValueError(
            f'{recipe.architecture:.80} has {architecture.max_length} positions, too few for sequences of '
            f'{longest} tokens; --long-share 0 leaves those of 512 out'
        )
    parameters = sum(count_parameters(architecture).values())
    lines = [
        f'{recipe.architecture}: {parameters / 1e6:.1f} M parameters with the heads; '
        f'{recipe.words / 1e9:.1f} billion words; {recipe.steps:,} steps of {recipe.batch_size} sequences',
        '',
        stage_table(recipe, architecture, measured),
        '',
        step_table(recipe, architecture),
        '',
        cost_table(recipe, architecture),
    ]
    total = sum(
        training_flops(resolve('bert_base'), stage) * stage.steps * 256 for stage in PlanRecipe().stages()
    )
    lines += [
        '',
        f'For comparison: GluonNLP reported {GLUONNLP_DAYS} days for BERT-base on {GLUONNLP_GPUS} GPUs. If '
        'that was the same million steps,',
        f'each GPU did {total / (GLUONNLP_DAYS * DAY * GLUONNLP_GPUS) / 1e12:.1f} TFLOP/s. In the published '
        'runs that the tables are scaled from, it was',
        f'{published_speed(8, PlanRecipe().stages()[0]) / 1e12:.1f} TFLOP/s.',
        '',
        *how_to_run(recipe, architecture),
    ]
    return '\n'.join(lines)


@command
def main(argv=None):
    """Print the plan, or count shards for it."""
    recipe = parse(
        PlanRecipe,
        argv,
        description=__doc__,
        positional='architecture',
        example='python tools/plan_training.py bert_base --gpus 8,64',
    )
    if recipe.measure:
        counts = {'shards': [count_shards(directory) for directory in recipe.measure], **origin_here()}
        write_file(recipe.measured, (json.dumps(counts, indent=1) + '\n').encode())
        print(f'wrote {recipe.measured}')
    else:
        print(plan(recipe))


if __name__ == '__main__':
    sys.exit(main())
