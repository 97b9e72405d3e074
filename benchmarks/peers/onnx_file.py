"""An ONNX file on the CPU: python onnx_file.py MODEL THREADS VOCAB_SIZE ENGINE

ENGINE is ``onnxruntime``, with every optimisation, or ``openvino``, which reads its own files too;
``openvino-bfloat16`` computes what is not quantised in bfloat16."""

import sys

import numpy as np
from protocol import onnx_inputs, serve

path, threads, vocab_size, engine = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if engine == 'onnxruntime':
    import onnxruntime as library

    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # as this package's engine: threads that spin on would take the cores from the next process in turn
    options.add_session_config_entry('session.force_spinning_stop', '1')
    session = library.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    names, named = ([one.name for one in some] for some in (session.get_inputs(), session.get_outputs()))

    def infer(feed):
        """Forward, down to NumPy."""
        return session.run(None, feed)

else:
    import openvino as library

    precision = 'bf16' if engine == 'openvino-bfloat16' else 'f32'
    hints = {'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': precision}
    compiled = library.Core().compile_model(path, 'CPU', {**hints, 'INFERENCE_NUM_THREADS': threads})
    request = compiled.create_infer_request()
    names, named = ([one.any_name for one in some] for some in (compiled.inputs, compiled.outputs))

    def infer(feed):
        """Forward, down to NumPy."""
        answer = request.infer(feed)
        return [np.array(answer[output]) for output in compiled.outputs]


versions = {library.__name__: library.__version__}
serve(lambda inputs: infer(onnx_inputs(inputs, names)), versions, vocab_size, named=named)
