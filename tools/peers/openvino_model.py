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
names = [given.any_name for given in compiled.inputs]


def run(inputs):
    """Forward, down to NumPy."""
    found = request.infer({name: inputs[name].astype(np.int64) for name in names})
    return [np.array(found[output]) for output in compiled.outputs]


serve(run, {'openvino': openvino.__version__}, int(sys.argv[3]))
