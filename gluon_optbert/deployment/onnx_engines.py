"""The engines that read ``model.onnx``: ONNX Runtime and OpenVINO.

Their libraries are imported when an engine is made, and not before."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Dict, List, Mapping

import numpy as np

from ..runs.machine import ThreadChoice
from .engine import Engine
from .onnx_names import network_outputs, onnx_feed


class OnnxRuntime(Engine):
    """ONNX Runtime on the CPU.

    Parameters
    ----------
    path : Path
        The ONNX file.
    inputs : list of str
        The names of its inputs.
    choice : ThreadChoice
    precision : str
        Of the file, for people.
    """

    name = 'onnxruntime'

    def __init__(self, path: Path, inputs: List[str], choice: ThreadChoice, precision: str):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = choice.threads, 1
        options.add_session_config_entry('session.intra_op.allow_spinning', str(int(choice.spinning)))
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=['CPUExecutionProvider']
        )
        self._inputs = inputs
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.version, self.choice, self.precision = onnxruntime.__version__, choice, precision

    def outputs(self, feed: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        values = self._session.run(self._outputs, onnx_feed(feed, self._inputs))
        return network_outputs(dict(zip(self._outputs, values)), feed)


class OpenVino(Engine):
    """OpenVINO on the CPU.

    Parameters
    ----------
    path : Path
        The ONNX file.
    inputs : list of str
        The names of its inputs.
    choice : ThreadChoice
    precision : str
        ``float32``, or ``bfloat16`` for the matrix products. A file in int8 keeps its own.
    """

    name = 'openvino'

    def __init__(self, path: Path, inputs: List[str], choice: ThreadChoice, precision: str):
        import openvino

        hints = {
            'INFERENCE_NUM_THREADS': choice.threads,
            'PERFORMANCE_HINT': 'LATENCY',
            'INFERENCE_PRECISION_HINT': 'bf16' if precision == 'bfloat16' else 'f32',
            'ENABLE_CPU_PINNING': choice.spinning,  # no thread waits for a core that another program has
        }
        self._request = openvino.Core().compile_model(str(path), 'CPU', hints).create_infer_request()
        self._inputs, self._lock = inputs, threading.Lock()  # a request computes one batch at a time
        self.version = openvino.__version__.split('-')[0]
        self.choice, self.precision = choice, precision

    def outputs(self, feed: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        with self._lock:
            values = self._request.infer(onnx_feed(feed, self._inputs))
            named = {output.any_name: np.array(value) for output, value in values.items()}
        return network_outputs(named, feed)
