"""The command that exports a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from .. import api
from ..architecture.heads import Head
from ..deployment.description import KINDS, NAMES, ONNX
from ..deployment.export import ONNX_DIFFERENCES, PRECISIONS, UntrainedHeads, kind_of, untrained_parts
from ..deployment.instances import Instance, read_instances
from ..deployment.lineage import lineage_of
from ..deployment.measures import described
from ..deployment.model_card import CARD, LICENSE
from ..deployment.onnx_int8 import METHODS
from ..network.saved_model import SavedModel, read_model
from ..runs.command_line import command, parse
from ..runs.display import doing
from ..runs.machine import bfloat16_is_fast
from ..runs.programs import named
from ..runs.recipe import Recipe, option
from ..runs.starting import line
from ..tasks.features import LONG
from ..tasks.task import known_head


class ExportRecipe(Recipe):
    """Recipe of `export`: network and output."""

    model: Path = option('model directory to export')
    output: Path = option('directory to write')
    format: str = option(
        "what is written. mxnet: a deployment directory, for plain MXNet and this package's Predictor; "
        'transformers: config.json, model.safetensors and tokenizer files, for Transformers; '
        "onnx: model.onnx, config.json and tokenizer files, for Optimum's ORTModel classes; "
        'sentence-transformers: an encoder for SentenceTransformer(…, backend="onnx"). The last two have '
        'model_quantized.onnx too with --precision int8',
        'mxnet',
        choices=api.FORMATS,
    )
    head: str | None = option(
        'what the export computes. encoder: encoded tokens and pooled output; pretraining: NSP and MLM '
        'scores as well; task: the scores of the task. By default task for a fine-tuned model, else encoder. '
        f'(--heads of {named("optbert-import")} is something else: the number of attention heads)',
        None,
        choices=KINDS,
    )
    precision: str = option(
        'precision of the matrix products of the encoder. int8 is written as ONNX: with --format mxnet, '
        'model.onnx and model_dynamic.onnx are in int8, beside a network for MXNet in float32',
        'float32',
        choices=PRECISIONS,
    )
    calibrate: Path | None = option(
        'file of text for int8, similar to what the network will read, in any format of '
        f'{named("optbert-predict")}; the ranges of the values are measured on it',
        None,
    )
    calibration_lines: PositiveInt = option('number of lines of the --calibrate file to use', 256)
    calibration: str = option(
        'how the ranges are chosen from the --calibrate file. naive: smallest and largest value; '
        'entropy: least KL divergence',
        'naive',
        choices=METHODS,
    )
    labelled: Path | None = option(
        'labelled text, to compare the scores of the export and of float32: a file of the task with its '
        "header, as GLUE's dev.tsv; SQuAD's JSON; or on each line text, tab, label",
        None,
    )
    onnx: bool = option(
        'also write model.onnx, in float32; --precision int8 writes its ONNX files anyway', False
    )
    inputs: str = option(
        'names of inputs and outputs in model.onnx. transformers: input_ids, attention_mask, token_type_ids '
        'to last_hidden_state and so on; gluon: those of the network for MXNet',
        'transformers',
        choices=NAMES,
    )
    long: str = option(
        'what is done with a text that is longer than the network or its fine-tuning reads. cut: '
        'its end is left out; split: it is read in windows, of whose scores the mean is taken',
        LONG[0],
        choices=LONG,
    )
    license: str | None = option(
        'licence of the weights as model hubs name it, such as apache-2.0, for the model card', None
    )
    alphas: Path | None = option(
        'alphas.npz with gates to fold into the parameters first; units whose gate is zero are cut', None
    )

    def problems(self) -> list[str]:
        """Contradictory fields."""
        problems = []
        if (self.precision == 'int8') != (self.calibrate is not None):
            problems.append('--calibrate FILE goes with --precision int8, and int8 with it')
        if self.calibrate is None:
            problems += [
                f'--{name.replace("_", "-")} goes with --calibrate FILE'
                for name in ('calibration', 'calibration_lines')
                if not self.is_default(name)
            ]
        if not self.is_default('inputs') and not (self.onnx or self.precision == 'int8'):
            problems.append('--inputs goes with --onnx or --precision int8')
        if self.license is not None and not LICENSE.fullmatch(self.license):
            problems.append(f'license must be a short name such as apache-2.0, found {self.license!r:.100}')
        if self.onnx and self.precision == 'bfloat16':
            problems.append('--onnx goes with --precision float32 or int8')
        if self.format not in ('mxnet', 'transformers') and self.precision == 'bfloat16':
            problems.append(f'--format {self.format} goes with --precision float32 or int8')
        for field in api.FORMATS['mxnet'].fields:
            able = [name for name, format in api.FORMATS.items() if field in format.fields]
            if self.format not in able and not self.is_default(field):
                problems.append(f'--{field} goes with --format {" or ".join(able)}')
        return problems


def say(measured: dict[str, Any], recipe: ExportRecipe, *, labelled: int) -> None:
    """Print how close the export is to the float32 network, and which files were written."""
    for name, difference in measured.get('relative_difference', {}).items():
        print(
            f'{name}: largest difference {difference:.1e} of its largest value, for random tokens, loaded '
            'again by plain MXNet'
        )
    for file, key in ONNX_DIFFERENCES.items():
        where = 'in ONNX' if file == ONNX else f'in {file}'
        for name, difference in measured.get(key, {}).items():
            print(f'{name}: largest difference {difference:.1e} of its largest value, {where}')
    if 'agreement' in measured:
        kind = 'calibration' if recipe.calibrate else 'labelled'
        print(
            f'{recipe.precision} on {measured["agreement"]["texts"]} {kind} texts: '
            f'{described(measured["agreement"])}'
        )
    if labelled:
        print(
            f'{labelled} labelled lines: {measured["score"]:.4f} in {recipe.precision}, '
            f'{measured["float32_score"]:.4f} in float32'
        )
    if recipe.precision == 'bfloat16' and not bfloat16_is_fast():
        print(
            'this process may use neither avx512_bf16 nor amx_bf16, so bfloat16 is slower than float32 here'
        )
    print(f'wrote {recipe.output}: ' + ', '.join(sorted(path.name for path in recipe.output.iterdir())))


def after_export(recipe: ExportRecipe, kind: str, head: Head) -> list[str]:
    """The commands that lead on from an export of a kind, of a network with that head."""
    if recipe.format != 'mxnet':
        return [f'how it is loaded: {recipe.output / CARD}']
    if kind == 'pretraining':
        return []
    embed = ['--embed', 'embeddings.npy'] if kind == 'encoder' else []
    pairs = head.kind == 'question_answering' or len(head.columns) == 3
    lines = 'pairs.txt' if pairs else 'sentences.txt'
    predicting = line('optbert-predict', recipe.output, '--input', lines, *embed)
    what = 'embed' if embed else 'predict'
    return [
        f'next, to {what}: {predicting}',
        f'next, to serve it: {line("optbert-serve", recipe.output, "--port", 8000)}',
    ]


def write(saved: SavedModel, recipe: ExportRecipe, texts: list[Instance], labelled: list[Instance]) -> dict:
    """Write the export, and what was measured of it."""
    fields = api.FORMATS[recipe.format].fields
    options: dict[str, Any] = {'lineage': lineage_of(saved, recipe.model), 'license': recipe.license or ''}
    if 'precision' in fields:
        options.update(precision=recipe.precision, calibration=texts, method=recipe.calibration)
    if 'onnx' in fields:
        options.update(labelled=labelled, onnx=recipe.onnx, inputs=recipe.inputs, long=recipe.long)
    return api.write_export(
        saved, recipe.output, format=recipe.format, alphas=recipe.alphas, head=recipe.head, **options
    )


@command
def export(argv=None):
    """Export a model directory, for plain MXNet and on request as ONNX, or for another library: see
    --format.
    """
    example = line('optbert-export', 'runs/pruned/round-4/model', '--output', 'deploy')
    recipe = parse(ExportRecipe, argv, description=export.__doc__, positional='model', example=example)
    saved = read_model(recipe.model)
    head, kind = known_head(saved.head), kind_of(saved, recipe.head)
    if recipe.labelled and kind != 'task':
        raise ValueError(f'--labelled goes with the head of a task, and {recipe.model} has none')
    texts: list[Instance] = []
    if recipe.calibrate:
        texts = read_instances(recipe.calibrate, head, most=recipe.calibration_lines)
    labelled = read_instances(recipe.labelled, head, labelled=True) if recipe.labelled else []
    try:
        with doing('exporting'):
            measured = write(saved, recipe, texts, labelled)
    except UntrainedHeads as error:
        words = ['--model', recipe.model, '--shards', 'shards', '--output', f'{recipe.model}-heads']
        training = line('optbert-pretrain', *words, recipe='pretrain/imported_heads')
        raise ValueError(f'{recipe.model}: {error}: {training}') from error
    if kind == 'encoder' and untrained_parts(saved, kind):
        print('note: the checkpoint had no pooler, so the output pooled is random; take the output encoded')
    missing = set(saved.progress.untrained or ())
    if recipe.format != 'mxnet':  # the others take the MLM head by itself
        missing &= {'mlm'}
    if kind == 'encoder' and not (missing or recipe.head or recipe.format == 'sentence-transformers'):
        print('note: this is the encoder alone; --head pretraining exports its MLM head, too')
    say(measured, recipe, labelled=len(labelled))
    print(*after_export(recipe, kind, head), sep='\n')
