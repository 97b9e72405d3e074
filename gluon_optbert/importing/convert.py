"""Turn public BERT checkpoints into model directories.

Every tensor is renamed and checked, or listed as dropped. What does not fit is an error that lists all of
it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from ..architecture.architecture import Architecture
from ..architecture.cost import ParameterCost
from ..architecture.embedding import Embedding
from ..architecture.heads import PRETRAINING, Head
from ..architecture.named import uniform
from ..architecture.parameters import INITIAL_STD, PARTS, Parameters, network_shapes, parameter_table
from ..network.saved_model import SavedModel, write_model
from ..runs.files import new_output
from ..runs.mxnet_arrays import is_finite
from ..runs.programs import named
from ..runs.progress import Progress
from ..runs.recipe import Recipe, Seed, option, to_dict
from .name_maps import is_transposed, look_up
from .sources import Source, read_source
from .tokenizer_check import AS_IS

# The names under which the BERTs of Devlin et al. are distributed: by Hugging Face, by Google, and in
# GluonNLP's model zoo, which converted Google's. Other BERTs of the same widths, such as multilingual ones or
# those with whole-word masking, are not listed: their steps are not published there.
KNOWN: dict[str, Architecture] = {
    name: uniform(layers=layers, h=h, a=a, vocab_size=vocab_size)
    for size, layers, h, a in (('base', 12, 768, 12), ('large', 24, 1024, 16))
    for case, vocab_size in (('uncased', 30522), ('cased', 28996))
    for name in (
        f'bert-{size}-{case}',
        f'{case}_L-{layers}_H-{h}_A-{a}',
        f'bert_{layers}_{h}_{a}_book_corpus_wiki_en_{case}',
    )
}
KNOWN_STEPS = 1_000_000  # of their pre-training, in both phases: Devlin et al., 2018, A.2


def name_of(source: str) -> str:
    """The name of a checkpoint by its path, or by its name in GluonNLP's model zoo.

    It is the name of the directory, or of the file without the short hash that GluonNLP puts behind it. In
    the cache of Hugging Face it is the name of the repository.
    """
    path = Path(source).absolute()
    if path.parent.name == 'snapshots':  # models--OWNER--NAME/snapshots/COMMIT
        return path.parent.parent.name.split('--')[-1]
    if path.suffix == '.params':
        return re.sub(r'-[0-9a-f]{8}$', '', path.stem)
    if path.suffix == '.ckpt':
        return path.parent.name
    return path.name


def known(source: str, architecture: Architecture, head: Head) -> str | None:
    """The name of the public BERT that a checkpoint is by its own name and all of its widths; None if it is
    none that is known, or has the head of a task.
    """
    name = name_of(source)
    return name if KNOWN.get(name) == architecture and head == PRETRAINING else None


class ImportRecipe(Recipe):
    """The checkpoint to import, and where to."""

    source: str = option(
        "checkpoint to import: a Hugging Face directory, a directory or bert_model.ckpt of Google's BERT, a "
        "GluonNLP .params file, or a name in GluonNLP's model zoo"
    )
    output: Path = option('model directory to write')
    vocabulary: Path | None = option(
        'vocab.txt or GluonNLP .vocab; by default the one beside the weights', None
    )
    tokenizer: Literal['compared', 'as-is'] = option(
        'whether to refuse a Hugging Face tokenizer that reads text otherwise than it is read here, or to '
        'import the network as it is and record where they differ',
        'compared',
    )
    heads: PositiveInt | None = option(
        'number of attention heads of a layer, for a .params file whose name does not say it (--head of '
        f'{named("optbert-export")} is something else: the output on top of the network)',
        None,
    )
    seed: Seed = option('random seed for pre-training heads that the checkpoint lacks', 1)
    trained_steps: NonNegativeInt | None = option(
        'steps of pre-training that the checkpoint has behind it, which pruning takes its own steps from; 0 '
        'if they are not known. By default the published number for the BERTs of Devlin et al. (2018), which '
        'are known by name and widths',
        None,
    )


@dataclasses.dataclass(frozen=True)
class Imported:
    """An imported checkpoint: the model, and what was dropped on the way."""

    model: SavedModel  # its ``progress.untrained`` lists the parts of `PARTS` that are random, if any are
    form: str  # as of `Source`
    dropped: tuple[str, ...]  # the checkpoint's tensors that were left away on purpose
    notes: tuple[str, ...]


def _renamed(source: Source) -> tuple[dict[str, np.ndarray], list[str], list[str]]:
    """The arrays of a checkpoint by the names here, the checkpoint's names of what is left away on purpose,
    and what does not fit. Arrays that do not fit are among the first, so that nobody calls them missing.
    """
    wanted, whole = network_shapes(source.architecture, source.head), network_shapes(source.architecture)
    renamed: dict[str, np.ndarray] = {}
    dropped, problems = list(source.skipped), []
    for name, array in source.arrays.items():
        known, here = look_up(source.form, name)
        # the latter has no use beside the head of a task
        if known and (here is None or here not in wanted and here in whole):
            dropped.append(name)
            continue
        if here not in wanted:
            problems.append(f'unknown {name!r:.200} {array.shape}')
            continue
        if is_transposed(source.form, name):
            array = array.T
        if array.shape != wanted[here]:
            problems.append(f'{name} has shape {array.shape}, wanted {wanted[here]} for {here}')
        elif array.dtype.kind != 'f':
            problems.append(f'{name} has elements of type {array.dtype}, wanted a floating-point one')
        else:
            with np.errstate(over='ignore'):  # a float64 beyond float32 is found as infinite
                array = np.array(array, dtype=np.float32, order='C')
            if not is_finite(array):
                problems.append(f'{name} has values that are NaN or infinite')
            elif here in renamed and not np.array_equal(renamed[here], array):
                problems.append(f'{name} and another name of {here} hold different numbers')
        renamed[here] = array
    return renamed, dropped, sorted(problems)  # a file of safetensors is in no order


def _completed(
    arrays: Parameters, source: Source, seed: int
) -> tuple[Parameters, tuple[str, ...], list[str]]:
    """The parameters with random weights for the parts of the pre-training heads of which a checkpoint has
    nothing; those parts; and every other parameter that is missing, as problems.

    Normal matrices, LayerNorms that do nothing and biases of zero are new.
    """
    table = parameter_table(source.architecture, source.head)
    present = {spec.part for name, spec in table.items() if name in arrays}
    untrained = tuple(
        part
        for part in PARTS
        if source.head == PRETRAINING and (part not in present or part in source.untrained)
    )
    missing = [spec for name, spec in table.items() if name not in arrays]
    problems = [f'missing {spec.name} {spec.shape}' for spec in missing if spec.part not in untrained]
    drawn: dict[str, np.ndarray] = {}
    generator = np.random.RandomState(seed)
    for spec in missing if not problems else ():
        if spec.initial == 'normal':
            drawn[spec.name] = generator.normal(0, INITIAL_STD, spec.shape).astype(np.float32)
        else:
            drawn[spec.name] = np.full(spec.shape, spec.initial == 'ones', dtype=np.float32)
    whole = {**arrays, **drawn}
    # safetensors gives its tensors in another order each time; files are to be the same
    return {name: whole[name] for name in table if name in whole}, untrained, problems


def convert(
    source: Source, *, seed: int = 1, recipe: Mapping[str, Any] | None = None, steps: int = 0
) -> Imported:
    """A checkpoint as a model of this package, with random heads after `seed` where it lacks them, and so
    many `steps` of pre-training behind it; 0 if they are not known. ValueError lists every name that is
    unknown or missing and every array whose shape, type or numbers do not fit.
    """
    arrays, dropped, problems = _renamed(source)
    parameters, untrained, missing = _completed(arrays, source, seed)
    problems += missing
    tokens, rows = len(source.vocabulary), source.architecture.vocab_size
    if tokens != rows:
        problems.append(
            f'the vocabulary has {tokens} tokens, the embedding {rows} rows; take the vocabulary that the '
            'checkpoint was trained with, and if the embedding has more rows, add a token of no use for each'
        )
    if problems:
        raise ValueError(
            f'the {source.form} checkpoint does not fit:' + ''.join(f'\n  {line}' for line in problems)
        )
    progress = Progress(earlier_steps=steps or None, untrained=untrained or None)
    model = SavedModel(
        source.architecture, parameters, source.vocabulary, recipe or {}, progress, head=source.head
    )
    return Imported(model, source.form, tuple(dropped), source.notes)


def import_checkpoint(recipe: ImportRecipe) -> Imported:
    """Read a checkpoint and write it as a model directory.

    Raises
    ------
    ValueError, FileNotFoundError, FileExistsError
        Bad input; nothing is written.
    RunFailed
        If GluonNLP's model zoo cannot be reached.
    """
    with new_output(recipe.output):
        source = read_source(
            recipe.source, vocabulary=recipe.vocabulary, heads=recipe.heads, as_is=recipe.tokenizer == AS_IS
        )
        steps = recipe.trained_steps
        name = known(recipe.source, source.architecture, source.head)
        if steps is None and name:
            steps = KNOWN_STEPS
            note = (
                f'by its name and widths this is {name}, which was pre-trained for {steps:,} steps '
                '(Devlin et al., 2018, A.2); --trained-steps gives another number'
            )
            source = dataclasses.replace(source, notes=(*source.notes, note))
        imported = convert(source, seed=recipe.seed, recipe=to_dict(recipe), steps=steps or 0)
        write_model(recipe.output, imported.model)
    return imported


def describe(imported: Imported, recipe: ImportRecipe) -> list[str]:
    """Lines for people: what was read, dropped, made up and written, and what to know of it."""
    model, head = imported.model, imported.model.head
    lines = [
        f'read a {imported.form} checkpoint: {len(model.architecture.layers)} layers, '
        f'{model.architecture.widths_line}, '
        f'{len(model.vocabulary)} tokens, '
        f'{ParameterCost().cost(model.architecture) / 1e6:.1f} M parameters of embeddings and encoder'
    ]
    lines += [f'dropped: {", ".join(imported.dropped)}'] if imported.dropped else []
    lines += [f'note: {note}' for note in imported.notes]
    lines += [f'embedding: {head.embedding.described}'] if head.embedding != Embedding() else []
    if head != PRETRAINING:
        lines.append(
            f'head: {head.kind.replace("_", " ")}' + (f' of {", ".join(head.labels)}' if head.labels else '')
        )
    untrained = model.progress.untrained
    if untrained:
        lines.append(
            f'untrained: the checkpoint has no {" and no ".join(PARTS[part] for part in untrained)}; these '
            'weights are random here; to prune for MLM, train them first'
        )
    lines.append(f'wrote {recipe.output}')
    return lines
