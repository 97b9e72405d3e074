"""OpenVINO on the CPU, for latency: python openvino_model.py MODEL THREADS VOCAB_SIZE [PRECISION]

MODEL is an ONNX file or OpenVINO's own, PRECISION what is not quantised is computed in: f32, or bf16."""

import sys

import numpy as np
import openvino
from protocol import onnx_inputs, serve

compiled = openvino.Core().compile_model(
    sys.argv[1],
    'CPU',
    {
        'INFERENCE_NUM_THREADS': int(sys.argv[2]),
        'PERFORMANCE_HINT': 'LATENCY',
        'INFERENCE_PRECISION_HINT': (sys.argv[4:] or ['f32'])[0],
    },
)
request = compiled.create_infer_request()
names = [tensor.any_name for tensor in compiled.inputs]


def run(inputs):
    """Forward, down to NumPy."""
    answer = request.infer(onnx_inputs(inputs, names))
    return [np.array(answer[output]) for output in compiled.outputs]


serve(
    run,
    {'openvino': openvino.__version__},
    int(sys.argv[3]),
    named=[tensor.any_name for tensor in compiled.outputs],
)
