"""The check of ONNX files: what exports write passes, and nothing that computes more."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from helpers.exported import ARCHITECTURES, CASES
from helpers.tiny import ROOT, random_parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from gluon_optbert.architecture.heads import PRETRAINING
from gluon_optbert.deployment.inference import inference_parameters
from gluon_optbert.deployment.onnx_check import check_onnx
from gluon_optbert.deployment.onnx_export import onnx_model
from gluon_optbert.deployment.onnx_names import NAMES, onnx_inputs, onnx_outputs
from gluon_optbert.deployment.onnx_wire import read_graph
from gluon_optbert.network.model import build, read_parameters

INPUTS = list(onnx_inputs('encoder'))
OUTPUTS = list(onnx_outputs('encoder', PRETRAINING))


def model_of(widths='uneven', case='encoder', names='transformers'):
    """An ONNX model as exports have it."""
    architecture, (kind, head) = ARCHITECTURES[widths], CASES[case]
    parameters = read_parameters(build(architecture, head=head, initial_std=0.3, trainable=False))
    return onnx_model(
        architecture, kind, head, inference_parameters(parameters, architecture, kind, head), names
    )


def encoder_model():
    """The model of an encoder, without MXNet's network."""
    architecture = ARCHITECTURES['uneven']
    arrays = inference_parameters(random_parameters(architecture), architecture, 'encoder', PRETRAINING)
    return onnx_model(architecture, 'encoder', PRETRAINING, arrays)


GOOD = encoder_model().SerializeToString()


def check(directory, model):
    """Write a model and check it."""
    path = directory / 'model.onnx'
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    check_onnx(path, inputs=INPUTS, outputs=OUTPUTS)


@pytest.mark.parametrize('names', NAMES)
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('widths', ARCHITECTURES)
def test_what_an_export_writes_passes(tmp_path, widths, case, names):
    path, (kind, head) = tmp_path / 'model.onnx', CASES[case]
    path.write_bytes(model_of(widths, case, names).SerializeToString())
    inputs, outputs = list(onnx_inputs(kind, names)), list(onnx_outputs(kind, head, names))
    check_onnx(path, inputs=inputs, outputs=outputs)
    for wrong in ({'inputs': inputs[::-1]}, {'outputs': [*outputs, 'more']}, {'outputs': []}):
        with pytest.raises(ValueError, match='wanted'):
            check_onnx(path, **{'inputs': inputs, 'outputs': outputs, **wrong})


def inserted(*nodes, opsets=(), **constants):
    """A good model with nodes and constants before its own."""
    model = encoder_model()
    own = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *own])
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.opset_import.extend(opsets)
    return model


def vast():
    """A constant of 4 GiB from a list of two numbers."""
    sides = np.array([1 << 15, 1 << 15], np.int64)
    return inserted(helper.make_node('ConstantOfShape', ['sides'], ['vast'], name='vast'), sides=sides)


def loop():
    body = helper.make_graph([], 'body', [], [])
    return inserted(helper.make_node('Loop', ['', ''], ['vast'], body=body))


def expanded():
    sides = np.array([1 << 15, 1 << 15], np.int64)
    return inserted(helper.make_node('Expand', ['one', 'sides'], ['vast']), one=np.zeros(1, 'f'), sides=sides)


def outer_sum():
    """A sum of a row and a column, with a million million elements."""
    column, row = np.zeros((1000, 1), 'f'), np.zeros((1, 1000), 'f')
    return inserted(helper.make_node('Add', ['column', 'row'], ['vast']), column=column, row=row)


def outer_product():
    column, row = np.zeros((1000, 1), 'f'), np.zeros((1, 1000), 'f')
    return inserted(helper.make_node('MatMul', ['column', 'row'], ['vast']), column=column, row=row)


def cube_of_the_length():
    """A tensor that grows with the length to the third power."""
    axes = [np.array(axes, np.int64) for axes in ([2, 3], [1, 3], [1, 2])]
    places = [helper.make_node('Unsqueeze', ['attention_mask', f'axes{i}'], [f'place{i}']) for i in range(3)]
    sums = [
        helper.make_node('Add', ['place0', 'place1'], ['square']),
        helper.make_node('Add', ['square', 'place2'], ['cube']),
    ]
    return inserted(*places, *sums, axes0=axes[0], axes1=axes[1], axes2=axes[2])


def long_range():
    start, end, step = (np.array(value, np.int64) for value in (0, 1 << 40, 1))
    return inserted(
        helper.make_node('Range', ['start', 'end', 'step'], ['vast']), start=start, end=end, step=step
    )


def external_data():
    model = encoder_model()
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key='location', value='../../etc/passwd')
    weight.ClearField('raw_data')
    return model


def function():
    model = encoder_model()
    opset = helper.make_opsetid('', 17)
    model.functions.append(helper.make_function('own', 'F', ['x'], ['y'], [], [opset]))
    return model


def training_info():
    model = encoder_model()
    model.training_info.add()
    return model


def foreign_domain():
    return inserted(helper.make_node('Gelu', ['input_ids'], ['x'], domain='com.microsoft'))


def other_opset():
    return inserted(opsets=[helper.make_opsetid('com.microsoft', 1)])


def sparse_weights():
    model = encoder_model()
    weight = model.graph.sparse_initializer.add()
    weight.dims.append(1 << 40)
    return model


def absurd_side():
    model = encoder_model()
    model.graph.initializer[0].dims[0] = 1 << 60
    return model


def wrong_size():
    model = encoder_model()
    model.graph.initializer[0].raw_data += b'0000'
    return model


def wrong_output_shape():
    model = encoder_model()
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value += 1
    return model


def float_input():
    model = encoder_model()
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def text_weights():
    model = encoder_model()
    model.graph.initializer.append(helper.make_tensor('text', TensorProto.STRING, [1], [b'x' * 99]))
    return model


def not_in_order():
    model = encoder_model()
    own = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(own)
    return model


def name_of_two_lines():
    return inserted(helper.make_node('Exp\nDone', ['input_ids'], ['x']))


def two_graphs():
    return GOOD + GOOD


def millions_of_nodes():
    """Empty nodes of two bytes each, which a parser turns into objects of a hundred."""
    nodes = b'\x0a\x00' * 1_000_000
    size = bytes([(len(nodes) >> shift & 127) | (128 if shift < 21 else 0) for shift in (0, 7, 14, 21)])
    return b'\x3a' + size + nodes


HOSTILE = {
    vast: 'operator',
    loop: 'subgraphs',
    expanded: 'operator',
    outer_sum: 'memory',
    outer_product: 'memory',
    cube_of_the_length: 'memory',
    long_range: 'memory',
    external_data: 'external data',
    function: 'functions',
    training_info: 'training information',
    foreign_domain: 'another domain',
    other_opset: 'opset',
    sparse_weights: 'sparse',
    absurd_side: 'side',
    wrong_size: 'bytes',
    wrong_output_shape: 'shape',
    float_input: 'int64',
    text_weights: 'field 6',
    not_in_order: 'nothing before',
    name_of_two_lines: 'is no name',
    two_graphs: 'twice',
    millions_of_nodes: 'fields',
}


@pytest.mark.parametrize('make', HOSTILE, ids=lambda make: make.__name__)
def test_a_file_that_computes_more_is_refused_in_one_line(tmp_path, make):
    with pytest.raises(ValueError, match=HOSTILE[make]) as refused:
        check(tmp_path, make())
    assert '\n' not in str(refused.value) and len(str(refused.value)) < 600


def test_a_file_that_is_missing_empty_or_too_large_is_refused(tmp_path):
    path = tmp_path / 'model.onnx'
    with pytest.raises(FileNotFoundError, match='model.onnx'):
        check_onnx(path, inputs=INPUTS, outputs=OUTPUTS)
    for size in (0, 1 << 31):
        with open(path, 'wb') as file:
            file.truncate(size)  # takes no room on the disk
        with pytest.raises(ValueError, match=f'{size} bytes'):
            check_onnx(path, inputs=INPUTS, outputs=OUTPUTS)


def read_by_onnx(model):
    """What ONNX's own reader sees of the nodes, the weights, and the inputs and outputs."""
    nodes = [(node.op_type, tuple(node.input), tuple(node.output)) for node in model.graph.node]
    weights = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    return nodes, weights, [port.name for port in (*model.graph.input, *model.graph.output)]


def check_damaged(directory, data):
    """A damaged file is refused with a ValueError, or onnx reads in it what this package reads."""
    path = directory / 'model.onnx'
    path.write_bytes(data)
    try:
        check_onnx(path, inputs=INPUTS, outputs=OUTPUTS)
    except ValueError as error:
        assert '\n' not in str(error)
        return
    graph = read_graph(path)
    ours = [(node.operator, node.inputs, node.outputs) for node in graph.nodes]
    weights = {name: weight.shape for name, weight in graph.weights.items()}
    assert read_by_onnx(onnx.load_from_string(data)) == (ours, weights, [*graph.inputs, *graph.outputs])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_refused_or_change_no_reading(tmp_path_factory, changes):
    data = bytearray(GOOD)
    for place, byte in changes:
        data[place] = byte
    check_damaged(tmp_path_factory.getbasetemp(), bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD)), st.binary(max_size=40), st.integers(0, 40))
def test_inserted_and_cut_bytes_are_refused_or_change_no_reading(tmp_path_factory, place, more, cut):
    check_damaged(tmp_path_factory.getbasetemp(), GOOD[:place] + more + GOOD[place + cut :])


def test_the_check_needs_neither_mxnet_nor_onnx():
    code = (
        'import sys, gluon_optbert.deployment.onnx_check\n'
        "assert not {'mxnet', 'gluonnlp', 'onnx', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, '-c', code], cwd=str(ROOT)).returncode == 0
