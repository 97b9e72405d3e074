"""A float32 ONNX file in eight bits, by other libraries: python quantize_onnx.py MODEL.onnx OUTPUT WAY
FEEDS.npz

WAY is ``dynamic`` or ``static`` of onnxruntime.quantization, or ``nncf``, OpenVINO's quantisation after
training. FEEDS has a batch of inputs; dynamic needs none."""

import sys
from pathlib import Path

import numpy as np
from protocol import onnx_inputs, speaker


def feed_of(path, names):
    """The batch of a file, by the names of the model's inputs."""
    with np.load(path) as arrays:
        return onnx_inputs(dict(arrays), names)


def by_onnxruntime(source, output, way, feeds):
    """Write what onnxruntime.quantization makes."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = Path(output).with_suffix('.prepared.onnx')
    quant_pre_process(source, str(prepared), skip_symbolic_shape=True)
    if way == 'dynamic':
        quantization.quantize_dynamic(str(prepared), output, weight_type=quantization.QuantType.QInt8)
        return

    class Reader(quantization.CalibrationDataReader):
        """The batches, one after another."""

        def __init__(self):
            names = [tensor.name for tensor in onnx.load(source, load_external_data=False).graph.input]
            self._feeds = iter([feed_of(feeds, names)])

        def get_next(self):
            return next(self._feeds, None)

    quantization.quantize_static(
        str(prepared),
        output,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=['MatMul'],
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
        activation_type=quantization.QuantType.QUInt8,
    )


def by_nncf(source, output, feeds):
    """Write what OpenVINO's quantisation makes."""
    import nncf
    import openvino

    model = openvino.Core().read_model(source)
    names = [tensor.any_name for tensor in model.inputs]
    batches = nncf.Dataset([feed_of(feeds, names)])
    quantized = nncf.quantize(model, batches, model_type=nncf.ModelType.TRANSFORMER, subset_size=1)
    openvino.save_model(quantized, output)


say = speaker()
source, output, way, feeds = sys.argv[1:]
if way == 'nncf':
    by_nncf(source, output, feeds)
else:
    by_onnxruntime(source, output, way, feeds)
say({'ready': {}})
