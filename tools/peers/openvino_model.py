"""OpenVINO on the CPU in float32, for latency: python openvino_model.py MODEL.onnx THREADS VOCAB_SIZE"""

import sys

import numpy as np
import openvino
from protocol import serve

compiled = openvino.Core().compile_model(
    sys.argv[1],
    'CPU',
    {
        'INFERENCE_NUM_THREADS': int(sys.argv[2]),
        'PERFORMANCE_HINT': 'LATENCY',
        'INFERENCE_PRECISION_HINT': 'f32',
    },
)
request = compiled.create_infer_request()
names = [tensor.any_name for tensor in compiled.inputs]


def run(inputs):
    """Forward, down to NumPy."""
    answer = request.infer({name: inputs[name].astype(np.int64) for name in names})
    return [np.array(answer[output]) for output in compiled.outputs]


serve(run, {'openvino': openvino.__version__}, int(sys.argv[3]))
