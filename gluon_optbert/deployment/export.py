"""Export: a directory with a network that plain MXNet loads, without this package, and with ONNX files.

Module `description` says what is in the directory. Before an export is complete, plain MXNet and ONNX's
reference implementation compute it, and their outputs are compared with the network's."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..architecture.heads import Head
from ..architecture.parameters import PARTS
from ..cutting.shrink import take_units, without_gates
from ..network.embedding import dense_arrays
from ..network.model import OptBERTModel, build
from ..network.running import random_feed, run
from ..network.saved_model import SavedModel
from ..network.settings import prepare_bfloat16
from ..runs.failures import RunFailed
from ..runs.files import locked, new_directory
from ..runs.machine import threads_to_predict
from ..tasks.features import LONG
from ..tasks.squad import Reading
from ..tasks.task import known_head
from .description import (
    DYNAMIC,
    MASKED_LM,
    NAMES,
    ONNX,
    QUANTISED,
    Deployment,
    check_long,
    check_text_length,
    inputs_of,
    onnx_entry,
    outputs_of,
    vouch,
)
from .engines import Engine, MXNet, is_installed, make_engine, network_outputs, onnx_feed
from .lineage import Lineage, lineage_of
from .measures import check_labels, measured_on_texts
from .model_card import check_license, write_card
from .mxnet_network import import_symbol, inference_parameters, write_deployment
from .onnx_export import Reference, run_onnx, write_onnx
from .onnx_int8 import METHODS, Ranges, measured_ranges, onnx_in
from .predictor import Encoder, Instance, Predictor

LOG = logging.getLogger(__name__)
PRECISIONS = ('float32', 'int8', 'bfloat16')
ONNX_FILES = {'float32': {ONNX: 'float32'}, 'int8': {ONNX: 'int8', DYNAMIC: 'int8 dynamic'}}
ONNX_DIFFERENCES = {
    ONNX: 'onnx_relative_difference',
    DYNAMIC: 'onnx_dynamic_relative_difference',
    QUANTISED: 'onnx_quantized_relative_difference',
}
TOLERANCE = 1e-5  # of the largest activation: float32 has 6e-8, and sums run in another order
ROUNDING = 2  # two programs, or a gated network and its cut one, round more than one with its units reversed
MOST_ROUNDING = 1e-3  # what is above this is never taken for rounding
HEAD_SCORES = ('next_sentence_scores', 'scores')


class NotEqual(RunFailed):
    """The outputs of an export differ from those of the network."""


class UntrainedHeads(ValueError):
    """The heads that an export would compute are random."""


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise ValueError unless an argument has one of its values."""
    if value not in known:
        raise ValueError(f'{name} must be one of {", ".join(known)}, found {value!r}')


def check_calibration(precision: str, calibration: Sequence[Instance], method: str) -> None:
    """Raise ValueError if the method is none of `METHODS`, or nothing would read it or the texts."""
    check_choice('method', method, METHODS)
    if method != METHODS[0] and precision != 'int8':
        raise ValueError(f'method {method!r} of calibration goes with the precision int8, found {precision}')
    if precision == 'float32' and calibration:
        raise ValueError('calibration goes with the precision int8 or bfloat16, found float32')


def kind_of(saved: SavedModel, computes: str | None = None) -> str:
    """The kind of an export: ``task`` for a model with a task, else `computes` or ``encoder``; ValueError if
    the model cannot compute that.
    """
    able = ('task',) if saved.head.outputs else ('encoder', 'pretraining')
    if computes not in (None, *able):
        raise ValueError(
            f'a model with the head of {saved.head.kind} exports {" or ".join(able)}, not {computes!r}'
        )
    return computes or able[0]


def untrained_parts(saved: SavedModel, kind: str) -> tuple[str, ...]:
    """The parts of `PARTS` that an export of this kind, or `MASKED_LM`, computes though they are random: an
    encoder's pooler may be; UntrainedHeads if the scores of pre-training would be.
    """
    untrained = () if saved.head.outputs else saved.progress.untrained or ()
    if kind == 'pretraining' and untrained or kind == MASKED_LM and 'mlm' in untrained:
        raise UntrainedHeads(
            f'the checkpoint had no {" and no ".join(PARTS.get(part, part) for part in untrained)}, so their '
            'scores would be random; train them first, or export the encoder'
        )
    return tuple(part for part in untrained if part == 'pooler' and kind != MASKED_LM)


def deployment_of(saved: SavedModel, kind: str, precision: str = 'float32') -> Deployment:
    """The description of an export, without what is measured.

    Text is read as in fine-tuning, as the recipe in the model directory says; ValueError if it cannot be read
    so.
    """
    answers = saved.head.kind == 'question_answering'
    positions = saved.architecture.max_length
    return Deployment(
        saved.architecture,
        saved.vocabulary,
        known_head(saved.head),
        kind,
        precision,
        reading=Reading.of(saved.recipe, positions) if answers else None,
        text_length=check_text_length(
            saved.recipe.get('max_length'), saved.head, positions, source='max_length of the fine-tuning run'
        ),
        untrained=untrained_parts(saved, kind),
        dense=dense_arrays(saved.parameters, saved.head.embedding),
    )


def network_of(saved: SavedModel, kind: str, **gates: Any) -> OptBERTModel:
    """The network in memory whose outputs are those of an export; it may have `gates`, as of `build`."""
    heads = dict.fromkeys(('use_classifier', 'use_decoder'), kind == 'pretraining')
    return build(saved.architecture, saved.parameters, trainable=False, head=saved.head, **heads, **gates)


def relative_difference(outputs: np.ndarray, wanted: np.ndarray, *, least: float = 1e-30) -> float:
    """The largest difference between two arrays over the largest magnitude of the second, which counts as
    `least` if it is smaller; inf if one is not finite.
    """
    if outputs.shape != wanted.shape or not (np.isfinite(outputs).all() and np.isfinite(wanted).all()):
        return float('inf')
    return float(np.abs(outputs - wanted).max() / max(float(np.abs(wanted).max()), least))


def output_difference(name: str, outputs: np.ndarray, wanted: np.ndarray) -> float:
    """`relative_difference` of what a network gives by a name.

    The scores of a head are sums that may come to nearly nothing, such as both of a sequence's NSP; the
    rounding errors of their terms stay. So their largest magnitude counts as 1 if it is smaller: scores are
    log-odds, or labels of a regression, of which 1e-5 is nothing.
    """
    return relative_difference(outputs, wanted, least=1.0 if name in HEAD_SCORES else 1e-30)


def output_differences(
    one: Any,
    other: Any,
    feeds: Iterable[Any],
    kind: str,
    head: Head,
    *,
    other_feeds: Iterable[Any] | None = None,
    kept: Mapping[str, np.ndarray] | None = None,
) -> dict[str, float]:
    """The largest `output_difference` of every output between two blocks of a kind over some batches: `one`
    reads `feeds`, and `other` the same or `other_feeds`; of an output in `kept` it has only these units.
    """
    kept, feeds, inputs = kept or {}, list(feeds), inputs_of(kind)
    worst = dict.fromkeys(outputs_of(kind, head), 0.0)
    for feed, other_feed in zip(feeds, feeds if other_feeds is None else other_feeds):
        for name, wanted, output in zip(worst, run(one, feed, inputs), run(other, other_feed, inputs)):
            wanted = wanted[..., kept[name]] if name in kept else wanted
            worst[name] = max(worst[name], output_difference(name, output, wanted))
    return worst


def rounding_of(saved: SavedModel, kind: str, feeds: Iterable[Any]) -> float:
    """The largest relative difference of any output of a kind if the hidden units come in reverse order.

    That leaves the function as it is, and the sums run in another order.
    """
    order = np.arange(saved.architecture.h)[::-1]
    parameters = take_units(saved.parameters, saved.architecture, {'h': order}, head=saved.head)
    networks = [network_of(one, kind) for one in (saved, dataclasses.replace(saved, parameters=parameters))]
    kept = dict.fromkeys(('encoded', 'pooled'), order)
    return max(output_differences(*networks, feeds, kind, saved.head, kept=kept).values())


def most_of(rounding: float) -> float:
    """The largest relative difference that rounding of this size explains."""
    return max(TOLERANCE, min(ROUNDING * rounding, MOST_ROUNDING))


def refuse(differences: Mapping[str, float], precision: str, what: str, saved: SavedModel, kind: str) -> None:
    """Raise NotEqual if a difference of a file (`what`) to a network is not finite, or in float32 above what
    rounding explains.
    """
    worst = max(differences, key=differences.get)
    most = TOLERANCE if precision == 'float32' else 1e30
    if differences[worst] > most and math.isfinite(differences[worst]):
        most = most_of(rounding_of(saved, kind, _feeds(saved)))
    if not differences[worst] <= most:
        raise NotEqual(
            f"{what}'s {worst} is off by {differences[worst]:.1e} of its largest value, more than "
            f'{most:.0e}; nothing was written'
        )


def write_onnx_files(
    directory: Path,
    files: Mapping[str, str],
    saved: SavedModel,
    computes: str,
    names: str,
    ranges: Ranges | None,
    *,
    output: Path,
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, float]]]:
    """Write the ONNX files of a network, of file name to precision, and compare them with it: the manifest's
    entry of each, and by the names of `ONNX_DIFFERENCES` the largest relative difference of every output.

    ONNX's reference implementation runs the files; tokens of padding are left out. `computes` is one of
    `KINDS`, or `MASKED_LM`; `directory` will be called `output`. NotEqual as of `refuse`.
    """
    kind, length = 'pretraining' if computes == MASKED_LM else computes, saved.architecture.max_length
    feed = random_feed(saved.architecture, batch=2, length=min(6, length))
    wanted = run(network_of(saved, kind), feed, inputs_of(kind))
    valid = np.arange(feed['input_ids'].shape[1]) < feed['valid_length'][:, np.newaxis]
    entries, measured = {}, {}
    for file, precision in files.items():
        write_onnx(directory / file, onnx_in(precision, saved, computes, names, ranges))
        entries[file] = onnx_entry(computes, saved.head, precision, names)
        outputs = run_onnx(directory / file, onnx_feed(feed, list(entries[file]['inputs'])))
        if computes == MASKED_LM:
            outputs['prediction_logits'] = outputs.pop('logits')
        outputs, differences = network_outputs(outputs, feed), {}
        for (name, shape), value in zip(outputs_of(kind, saved.head).items(), wanted):
            if name in outputs:
                tokens = valid if shape[1] == 'length' else slice(None)
                differences[name] = output_difference(name, outputs[name][tokens], value[tokens])
        measured[ONNX_DIFFERENCES[file]] = differences
        refuse(differences, precision, f'{output}: {file}', saved, kind)
    return entries, measured


def _feeds(saved: SavedModel) -> list[dict[str, np.ndarray]]:
    """Random inputs of two shapes."""
    longest = min(48, saved.architecture.max_length)
    shapes = (1, min(7, longest)), (3, longest)
    return [random_feed(saved.architecture, batch=batch, length=length) for batch, length in shapes]


def export(
    saved: SavedModel,
    output: Path,
    *,
    head: str | None = None,
    precision: str = 'float32',
    calibration: Sequence[Instance] = (),
    method: str = 'naive',
    labelled: Sequence[Instance] = (),
    onnx: bool = False,
    inputs: str = NAMES[0],
    long: str = LONG[0],
    lineage: Lineage | None = None,
    license: str = '',
) -> dict[str, Any]:
    """Write a deployment directory, once MXNet and ONNX have computed it and agree with the network.

    Parameters
    ----------
    saved : SavedModel
        Its gates, if it has them, are folded into the export and their zeros cut.
    head : str, optional
        The kind of the export: ``encoder`` for encoded tokens and pooled output, ``pretraining`` for the NSP
        and MLM scores as well, ``task`` for the scores of the model's own head. See `kind_of`.
    precision : str
        Of the encoder's matrix products: ``float32``; ``bfloat16``; or ``int8``, which is for the ONNX files
        ``model.onnx`` and ``model_dynamic.onnx``, beside a network for MXNet in float32.
    calibration : sequence of Instance
        Text that gives the ranges of an int8 network.
    method : str
        The calibration method, one of `onnx_int8.METHODS`.
    labelled : sequence of Instance
        Test instances for the score of the export and of the float32 network.
    onnx : bool
        Whether to write ``model.onnx`` in float32, too.
    inputs : str
        The names of the ONNX files' inputs and outputs, one of `description.NAMES`.
    long : str
        What is done with a text that is too long, one of `features.LONG`.
    lineage : Lineage, optional
        What is known of the network's training, for the model card; by default what `saved` says.
    license : str
        Of the weights, as hubs name it, for the model card.

    Returns
    -------
    dict
        ``relative_difference`` of every output to the float32 network's, over the latter's largest value,
        and those of `ONNX_DIFFERENCES`; with `labelled` also ``score`` and ``float32_score``; in reduced
        precision with texts also ``agreement``, see `measures`.

    Raises
    ------
    FileExistsError, ValueError
        Bad input.
    UntrainedHeads
        If the scores of a head would be random.
    NotEqual
        If the outputs of the network for MXNet or of an ONNX file in float32 differ, or those of another are
        not finite.
    """
    check_choice('precision', precision, PRECISIONS)
    check_choice('inputs', inputs, NAMES)
    check_license(license)
    if onnx and precision not in ONNX_FILES:
        raise ValueError(f'onnx goes with the precision {" or ".join(ONNX_FILES)}, found {precision!r}')
    check_calibration(precision, calibration, method)
    if inputs != NAMES[0] and not (onnx or precision == 'int8'):
        raise ValueError(f'inputs {inputs!r} goes with onnx or the precision int8: they are of an ONNX file')
    saved = without_gates(saved)
    kind = kind_of(saved, head)
    if labelled and kind != 'task':
        raise ValueError(f'labelled texts go with the head of a task, and this is an export of {kind}')
    deployment = dataclasses.replace(
        deployment_of(saved, kind, 'bfloat16' if precision == 'bfloat16' else 'float32'),
        long=check_long(long, saved.head, source='long'),
    )
    check_labels(labelled, deployment.head)
    if precision == 'bfloat16':
        prepare_bfloat16()
    with locked(output), new_directory(output, needed=(1 + onnx) * saved.nbytes) as staged:
        ranges = None
        if precision == 'int8':
            ranges = measured_ranges(saved, kind, Encoder(deployment).features(calibration), method)
        write_deployment(staged, deployment, inference_parameters(saved, kind))
        network = network_of(saved, kind)
        loaded = import_symbol(staged, deployment.inputs)
        differences = output_differences(network, loaded, _feeds(saved), kind, saved.head)
        refuse(differences, deployment.precision, f'{output}: the export', saved, kind)
        measured: dict[str, Any] = {'relative_difference': differences}
        if onnx or precision == 'int8':
            entries, differences = write_onnx_files(
                staged, ONNX_FILES[precision], saved, kind, inputs, ranges, output=output
            )
            deployment = dataclasses.replace(deployment, onnx=entries)
            measured |= differences
        if calibration or labelled:
            int8 = precision == 'int8'
            engine = _engine_of_onnx(staged, deployment) if int8 else MXNet(loaded, deployment)
            whole, exported = Predictor.of(network, deployment), Predictor.by(engine, deployment)
            texts = {'calibration': calibration, 'labelled': labelled}
            measured |= measured_on_texts(whole, exported, **texts, reduced=precision != 'float32')
            if exported.cut_note:
                LOG.warning('%s', exported.cut_note)
        deployment = dataclasses.replace(deployment, measured=measured)
        lineage = lineage or lineage_of(saved)
        write_card(staged, deployment, format='mxnet', lineage=lineage, license=license)
        vouch(staged, deployment)
    return measured


def _engine_of_onnx(staged: Path, deployment: Deployment) -> Engine:
    """Installed engine for the ONNX file of an export that is being written."""
    for name in filter(is_installed, ('onnxruntime', 'openvino')):
        return make_engine(staged, deployment, name)
    entry = deployment.onnx[ONNX]
    return Reference(staged / ONNX, list(entry['inputs']), threads_to_predict(None), entry['precision'])
