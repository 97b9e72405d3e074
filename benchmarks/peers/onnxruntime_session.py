"""ONNX Runtime on the CPU with every optimisation: python onnxruntime_session.py MODEL.onnx THREADS
VOCAB_SIZE
"""

import sys

import onnxruntime
from protocol import onnx_inputs, serve

options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
options.intra_op_num_threads = int(sys.argv[2])
options.inter_op_num_threads = 1
# as this package's engine: threads that spin on would take the cores from the next process in turn
options.add_session_config_entry('session.force_spinning_stop', '1')
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])
names = [tensor.name for tensor in session.get_inputs()]


def run(inputs):
    """Forward, down to NumPy."""
    return session.run(None, onnx_inputs(inputs, names))


serve(
    run,
    {'onnxruntime': onnxruntime.__version__},
    int(sys.argv[3]),
    named=[tensor.name for tensor in session.get_outputs()],
)
