"""Export: a directory with a network that plain MXNet loads, without this package.

Module `directory` says what is in the directory. Before an export is complete, plain MXNet loads it and its
outputs are compared with the network's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Collection, Dict, Mapping, Optional, Sequence, Tuple

import mxnet as mx

from ..architecture.parameters import PARTS
from ..cutting.shrink import without_gates
from ..network.model import OptBERTModel, build
from ..network.running import random_feed, run
from ..network.saved_model import SavedModel
from ..network.settings import prepare_bfloat16
from ..runs.failures import RunFailed
from ..runs.files import locked, new_directory
from ..runs.mxnet_arrays import BFLOAT16
from ..tasks.squad import Reading
from ..tasks.task import known_head
from .description import KINDS, PRECISIONS, Deployment, check_text_length, vouch
from .directory import import_symbol, symbol_of, table_of, write_deployment
from .inference import inference_parameters, inference_symbol, widened
from .instances import Instance
from .measures import measured_on_texts
from .model_card import check_license, write_card
from .onnx_files import calibration_feeds, compare_onnx, onnx_ranges, output_difference, write_onnx_files
from .onnx_names import DYNAMIC, NAMES, ONNX, QUANTISED, onnx_inputs
from .predictor import Predictor
from .quantize import METHODS, calibrate, int8_parameters
from .story import Story
from .text_features import Encoder

ONNX_FILES = {'float32': {ONNX: 'float32'}, 'int8': {ONNX: 'int8', DYNAMIC: 'int8 dynamic'}}
ONNX_DIFFERENCES = {
    ONNX: 'onnx_relative_difference',
    DYNAMIC: 'onnx_dynamic_relative_difference',
    QUANTISED: 'onnx_quantized_relative_difference',
}
TOLERANCE = 1e-5  # of the largest activation: float32 has 6e-8, and sums run in another order


class NotEqual(RunFailed):
    """The outputs of an export differ from those of the network."""


class UntrainedHeads(ValueError):
    """The heads that an export would compute are random."""


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise ValueError unless an argument has one of its values."""
    if value not in known:
        raise ValueError(f'{name} must be one of {", ".join(known)}, found {value!r}')


def kind_of(saved: SavedModel, computes: Optional[str] = None) -> str:
    """The kind of an export: ``task`` for a model with a task, else `computes` or ``encoder``.

    Raises
    ------
    ValueError
        If the model cannot compute `computes`.
    """
    able = ('task',) if saved.head.outputs else ('encoder', 'pretraining')
    if computes is not None:
        check_choice('head', computes, KINDS)
    if computes not in (None, *able):
        raise ValueError(
            f'a model with the head of {saved.head.kind} exports {" or ".join(able)}, not {computes!r}'
        )
    return computes or able[0]


def export(
    saved: SavedModel,
    output: Path,
    *,
    head: Optional[str] = None,
    precision: str = 'float32',
    calibration: Sequence[Instance] = (),
    method: str = 'naive',
    labelled: Sequence[Instance] = (),
    onnx: bool = False,
    inputs: str = NAMES[0],
    story: Optional[Story] = None,
    license: str = '',
) -> Dict[str, Any]:
    """Write a deployment directory, once plain MXNet has loaded it and its outputs agree with the network's.

    Parameters
    ----------
    saved : SavedModel
        Its gates, if it has them, are folded into the export and their zeros cut.
    output : Path
    head : str, optional
        The kind of the export: ``encoder`` for encoded tokens and pooled output, ``pretraining`` for the NSP
        and MLM scores as well, ``task`` for the scores of the model's own head. See `kind_of`.
    precision : str
        ``float32``; ``int8`` or ``bfloat16`` for the encoder's matrix products.
    calibration : sequence of Instance
        Text that gives the ranges of an int8 network.
    method : str
        The calibration method, one of `quantize.METHODS`.
    labelled : sequence of Instance
        Test instances for the score of the export and of the float32 network.
    onnx : bool
        Whether to write ``model.onnx`` too, in float32 or int8, and in int8 ``model_dynamic.onnx``.
    inputs : str
        The names of the ONNX files' inputs and outputs, one of `onnx_names.NAMES`.
    story : Story, optional
        What is known of the network's training, for the model card; by default what `saved` says.
    license : str
        Of the weights, as hubs name it, for the model card.

    Returns
    -------
    dict
        ``relative_difference`` of every output to the float32 network's, over the latter's largest value;
        with `labelled` also ``score`` and ``float32_score``; in reduced precision with texts also
        ``agreement``, see `measures`.

    Raises
    ------
    FileExistsError, ValueError
        Bad input.
    UntrainedHeads
        If the scores of a head would be random.
    NotEqual
        If the outputs of a float32 export or an ONNX file differ, or those of another export are not finite.
    """
    for name, value, known in (
        ('precision', precision, PRECISIONS),
        ('method', method, METHODS),
        ('inputs', inputs, NAMES),
    ):
        check_choice(name, value, known)
    check_license(license)
    if onnx and precision not in ONNX_FILES:
        raise ValueError(f'onnx goes with the precision {" or ".join(ONNX_FILES)}, found {precision!r}')
    saved = without_gates(saved)
    kind = kind_of(saved, head)
    if labelled and kind != 'task':
        raise ValueError(f'labelled texts go with the head of a task, and this is an export of {kind}')
    untrained = untrained_parts(saved, kind)
    if precision == 'bfloat16':
        prepare_bfloat16()
    with locked(output), new_directory(output) as staged:
        deployment, arrays = _prepared(saved, kind, precision, calibration, method)
        write_deployment(staged, deployment, arrays)
        network = network_of(saved, kind)
        measured: Dict[str, Any] = {'relative_difference': _compare(staged, network, deployment)}
        most = TOLERANCE if precision == 'float32' else 1e30
        refuse(measured['relative_difference'], most, f'{output}: the export')
        if onnx:
            ranges = None
            if precision == 'int8':
                feeds = calibration_feeds(Encoder(deployment).features(calibration))
                ranges = onnx_ranges(saved, kind, feeds, method)
            files = ONNX_FILES[precision]
            entries = write_onnx_files(staged, files, saved, kind, inputs, ranges)
            deployment = dataclasses.replace(deployment, onnx=entries)
            for name, entry in entries.items():
                differences = compare_onnx(staged / name, list(entry['inputs']), network, saved, kind)
                measured[ONNX_DIFFERENCES[name]] = differences
                refuse(differences, most, f'{output}: {name}')
        if calibration or labelled:
            measured.update(
                measured_on_texts(
                    Predictor.of(network, deployment),
                    Predictor.of(import_symbol(staged, deployment.inputs), deployment),
                    calibration=calibration,
                    labelled=labelled,
                    reduced=precision != 'float32',
                )
            )
        write_card(
            staged,
            saved,
            kind,
            format='mxnet',
            precision=precision,
            measured=measured,
            untrained=untrained,
            onnx_inputs=onnx_inputs(kind, inputs),
            story=story,
            license=license,
            text_length=deployment.text_length,
        )
        vouch(staged, dataclasses.replace(deployment, measured=measured, untrained=untrained))
    return measured


def untrained_parts(saved: SavedModel, kind: str) -> Tuple[str, ...]:
    """The parts of `PARTS` that an export of this kind computes though they are random; an encoder's pooler
    may be.

    Raises
    ------
    UntrainedHeads
        If the scores of pre-training would be random.
    """
    untrained = () if saved.head.outputs else saved.progress.untrained or ()
    if kind == 'pretraining' and untrained:
        raise UntrainedHeads(
            f'the checkpoint had no {" and no ".join(PARTS.get(part, part) for part in untrained)}, so their '
            'scores would be random; train them first, or export the encoder'
        )
    return tuple(part for part in untrained if part == 'pooler')


def deployment_of(saved: SavedModel, kind: str, precision: str = 'float32') -> Deployment:
    """The description of an export, without what is measured.

    Text is read as in fine-tuning: the recipe in the model directory says how.

    Raises
    ------
    ValueError
        If the recipe says something else than such a recipe.
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
    )


def _prepared(
    saved: SavedModel, kind: str, precision: str, calibration: Sequence[Instance], method: str
) -> Tuple[Deployment, Dict[str, mx.nd.NDArray]]:
    """The export's description, and its arrays in their types."""
    deployment = deployment_of(saved, kind, precision)
    plain = inference_parameters(saved.parameters, saved.architecture, kind, saved.head)
    if precision == 'int8':
        symbol = inference_symbol(saved.architecture, kind, saved.head, precision='int8')
        feeds = calibration_feeds(Encoder(deployment).features(calibration))
        ranges = calibrate(symbol, plain, table_of(deployment), feeds, method)
        deployment = dataclasses.replace(deployment, calibration=ranges)
        return deployment, int8_parameters(symbol_of(deployment), plain, deployment.calibration)
    table = table_of(deployment)
    arrays = {name: mx.nd.array(value) for name, value in widened(plain, table).items()}
    if precision == 'bfloat16':
        arrays.update(
            {
                name: mx.nd.amp_cast(array, dtype=BFLOAT16)
                for name, array in arrays.items()
                if table[name].low_precision
            }
        )
    return deployment, arrays


def network_of(saved: SavedModel, kind: str) -> OptBERTModel:
    """The network in memory whose outputs are those of an export."""
    whole = kind == 'pretraining'
    return build(
        saved.architecture,
        saved.parameters,
        trainable=False,
        use_classifier=whole,
        use_decoder=whole,
        head=saved.head,
    )


def _compare(directory: Path, network: OptBERTModel, deployment: Deployment) -> Dict[str, float]:
    """The largest relative differences between a network and its export, over two shapes."""
    loaded = import_symbol(directory, deployment.inputs)
    differences = dict.fromkeys(deployment.outputs, 0.0)
    longest = min(48, deployment.architecture.max_length)
    for batch, length in ((1, min(7, longest)), (3, longest)):
        feed = random_feed(deployment.architecture, batch=batch, length=length)
        for name, output, wanted in zip(
            differences, run(loaded, feed, deployment.inputs), run(network, feed, deployment.inputs)
        ):
            differences[name] = max(differences[name], output_difference(name, output, wanted))
    return differences


def refuse(differences: Mapping[str, float], most: float, what: str) -> None:
    """Raise NotEqual if a difference is larger than `most`, or not finite."""
    worst = max(differences, key=differences.get)
    if not differences[worst] <= most:
        raise NotEqual(
            f"{what}'s {worst} is off by {differences[worst]:.1e} of its largest value, more than "
            f'{most:.0e}; nothing was written'
        )
