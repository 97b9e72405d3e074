"""The ONNX files of a network: written in a precision, and compared with the network."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np
import onnx

from ..architecture.parameters import ParameterSpec
from ..network.running import TOKEN_INPUTS, feed_of, random_feed, run
from ..network.saved_model import SavedModel
from ..tasks.features import Features, sorted_batches
from .description import inputs_of, outputs_of
from .inference import inference_parameters, inference_symbol, inference_table
from .onnx_export import onnx_model, run_onnx, write_onnx
from .onnx_int8 import DynamicGraph, StaticGraph
from .onnx_names import DYNAMIC, ONNX, network_outputs, onnx_entry, onnx_feed
from .onnx_ranges import Ranges, measured_ranges

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


def onnx_models(
    saved: SavedModel, kind: str, names: str, ranges: Optional[Ranges]
) -> Iterator[Tuple[str, str, onnx.ModelProto]]:
    """File name, precision and model: one in float32 or, with ranges, a static and a dynamic one in int8."""
    arrays = inference_parameters(saved.parameters, saved.architecture, kind, saved.head)
    write = functools.partial(onnx_model, saved.architecture, kind, saved.head, arrays, names)
    if ranges is None:
        yield ONNX, 'float32', write()
        return
    yield ONNX, 'int8', write(functools.partial(StaticGraph, ranges=ranges))
    yield DYNAMIC, 'int8 dynamic', write(functools.partial(DynamicGraph, products=set(ranges.inputs)))


def write_onnx_files(
    directory: Path, saved: SavedModel, kind: str, names: str, ranges: Optional[Ranges] = None
) -> Dict[str, Dict[str, Any]]:
    """Write the ONNX files of a network; the manifest's entry of each by file name.

    Parameters
    ----------
    directory : Path
    saved : SavedModel
        Without gates.
    kind : str
        One of `description.KINDS`.
    names : str
        One of `onnx_names.NAMES`.
    ranges : Ranges, optional
        For int8, from `onnx_ranges`.
    """
    entries = {}
    for name, precision, model in onnx_models(saved, kind, names, ranges):
        write_onnx(directory / name, model)
        entries[name] = onnx_entry(kind, saved.head, precision, names)
    return entries


def compare_onnx(
    path: Path, entry: Mapping[str, Any], network: Any, saved: SavedModel, kind: str
) -> Dict[str, float]:
    """The largest relative difference of every output between a network and its ONNX file.

    ONNX's reference implementation runs the file. Tokens of padding are left out.
    """
    feed = random_feed(saved.architecture, batch=2, length=min(6, saved.architecture.max_length))
    outputs = network_outputs(run_onnx(path, onnx_feed(feed, list(entry['inputs']))), feed)
    valid = np.arange(feed['input_ids'].shape[1]) < feed['valid_length'][:, np.newaxis]
    differences = {}
    shapes = outputs_of(kind, saved.head)
    for (name, shape), wanted in zip(shapes.items(), run(network, feed, inputs_of(kind))):
        tokens = valid if shape[1] == 'length' else slice(None)
        differences[name] = relative_difference(outputs[name][tokens], wanted[tokens])
    return differences


def relative_difference(outputs: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference between two arrays over the largest magnitude of the second; inf if one is not
    finite.
    """
    if outputs.shape != wanted.shape or not (np.isfinite(outputs).all() and np.isfinite(wanted).all()):
        return float('inf')
    return float(np.abs(outputs - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))
