"""The ONNX files of a network: written in a precision, and compared with the network."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np
import onnx

from ..architecture.parameters import ParameterSpec
from ..network.inputs import TOKEN_INPUTS
from ..network.running import feed_of, random_feed, run
from ..network.saved_model import SavedModel
from ..tasks.features import Features, sorted_batches
from .description import inputs_of, outputs_of
from .inference import inference_parameters, inference_symbol, inference_table
from .onnx_export import Graph, onnx_model, run_onnx, write_onnx
from .onnx_int8 import DynamicGraph, StaticGraph
from .onnx_names import network_outputs, onnx_entry, onnx_feed
from .onnx_ranges import Ranges, measured_ranges

HEAD_SCORES = ('next_sentence_scores', 'scores')
_CALIBRATION_BATCH = 8  # instances


def calibration_feeds(features: Features) -> Sequence[Mapping[str, Any]]:
    """The batches of text from which ranges are measured."""
    return [feed_of(batch, TOKEN_INPUTS) for batch in sorted_batches(features, _CALIBRATION_BATCH)]


def onnx_ranges(saved: SavedModel, kind: str, feeds: Sequence[Mapping[str, Any]], method: str) -> Ranges:
    """What an int8 ONNX file must know of its values; `feeds` and `method` are those of `measured_ranges`."""
    arrays = inference_parameters(saved.parameters, saved.architecture, kind, saved.head)
    symbol = inference_symbol(saved.architecture, kind, saved.head, precision='int8')
    return measured_ranges(symbol, arrays, _int8_table(saved, kind), feeds, method)


def _int8_table(saved: SavedModel, kind: str) -> Dict[str, ParameterSpec]:
    return inference_table(saved.architecture, kind, saved.head, 'int8')


def onnx_in(
    precision: str, saved: SavedModel, kind: str, names: str, ranges: Optional[Ranges] = None
) -> onnx.ModelProto:
    """A network in ONNX: in ``float32``, or with ranges in ``int8`` or ``int8 dynamic``."""
    writers = {'float32': Graph}
    if ranges is not None:
        writers['int8'] = functools.partial(StaticGraph, ranges=ranges)
        writers['int8 dynamic'] = functools.partial(DynamicGraph, products=set(ranges.inputs))
    arrays = inference_parameters(saved.parameters, saved.architecture, kind, saved.head)
    return onnx_model(saved.architecture, kind, saved.head, arrays, names, writers[precision])


def write_onnx_files(
    directory: Path,
    files: Mapping[str, str],
    saved: SavedModel,
    kind: str,
    names: str,
    ranges: Optional[Ranges] = None,
) -> Dict[str, Dict[str, Any]]:
    """Write the ONNX files of a network; the manifest's entry of each by file name.

    Parameters
    ----------
    directory : Path
    files : mapping of file name to precision
        Precisions are those of `onnx_in`.
    saved : SavedModel
        Without gates.
    kind : str
        One of `description.KINDS`, or `onnx_names.MASKED_LM`.
    names : str
        One of `onnx_names.NAMES`.
    ranges : Ranges, optional
        For int8, from `onnx_ranges`.
    """
    for name, precision in files.items():
        write_onnx(directory / name, onnx_in(precision, saved, kind, names, ranges))
    return {name: onnx_entry(kind, saved.head, precision, names) for name, precision in files.items()}


def compare_onnx(
    path: Path, names: Sequence[str], network: Any, saved: SavedModel, kind: str
) -> Dict[str, float]:
    """The largest relative difference of every output between a network and its ONNX file.

    ONNX's reference implementation runs the file. Tokens of padding are left out.

    Parameters
    ----------
    path : Path
    names : sequence of str
        Of the file's inputs.
    network : OptBERTModel
        Of which the file computes all outputs or some.
    saved : SavedModel
    kind : str
        What `network` computes.
    """
    feed = random_feed(saved.architecture, batch=2, length=min(6, saved.architecture.max_length))
    outputs = run_onnx(path, onnx_feed(feed, names))
    if kind == 'pretraining' and 'logits' in outputs:
        outputs['prediction_logits'] = outputs.pop('logits')
    outputs = network_outputs(outputs, feed)
    valid = np.arange(feed['input_ids'].shape[1]) < feed['valid_length'][:, np.newaxis]
    differences = {}
    shapes = outputs_of(kind, saved.head)
    for (name, shape), wanted in zip(shapes.items(), run(network, feed, inputs_of(kind))):
        if name not in outputs:
            continue
        tokens = valid if shape[1] == 'length' else slice(None)
        differences[name] = output_difference(name, outputs[name][tokens], wanted[tokens])
    return differences


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
