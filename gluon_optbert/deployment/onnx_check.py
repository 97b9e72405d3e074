"""The check of an ONNX file before an engine reads it: it can only compute what an export computes.

The file has no data outside, no subgraphs and no functions; see `onnx_wire`. Its operators are those that
`onnx_export` and `onnx_int8` write. The shape of every tensor is derived, with batch and length as unknowns.
None may grow faster than the attention's scores, or be larger per token than the largest weight. So a small
file cannot ask for a lot of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from .onnx_wire import INT64, Graph, Node, Port, Weight, read_graph

OPSET = 17
_FREE = ('batch', 'length', 'masked')
_MOST = {'batch': 1, 'length': 2, 'masked': 1}  # the attention's scores grow with the length squared
_LEAST_LIMIT = 1 << 16  # elements that a tensor may have even if all weights are smaller
_FLOAT = 1


class _Side(NamedTuple):
    """A number times powers of free sides: 64 length is (64, ('length',))."""

    number: int
    free: Tuple[str, ...] = ()

    def times(self, other: _Side) -> _Side:
        return _Side(self.number * other.number, tuple(sorted(self.free + other.free)))


_ONE = _Side(1)
_Shape = Tuple[_Side, ...]


class _Tensor(NamedTuple):
    """A shape; for shapes and other short lists of numbers also their values."""

    shape: _Shape
    values: Optional[_Shape] = None


def _need(condition: bool, wanted: str) -> None:
    if not condition:
        raise ValueError(wanted)


def _elements(shape: _Shape) -> _Side:
    product = _ONE
    for side in shape:
        product = product.times(side)
    return product


def _broadcast(*shapes: _Shape) -> _Shape:
    rank = max(map(len, shapes))
    sides = []
    for aligned in zip(*((_ONE,) * (rank - len(shape)) + shape for shape in shapes)):
        wide = {side for side in aligned if side != _ONE}
        _need(len(wide) < 2, 'the shapes do not fit')
        sides.append(wide.pop() if wide else _ONE)
    return tuple(sides)


def _matmul(left: _Shape, right: _Shape) -> _Shape:
    _need(min(len(left), len(right)) >= 2 and left[-1] == right[-2], 'the shapes do not fit')
    return (*_broadcast(left[:-2], right[:-2]), left[-2], right[-1])


def _numbers(tensor: _Tensor) -> Tuple[int, ...]:
    """The values of a constant."""
    _need(tensor.values is not None and not any(side.free for side in tensor.values), 'wanted constants')
    return tuple(side.number for side in tensor.values or ())


def _axis(value: Any, rank: int) -> int:
    _need(isinstance(value, int) and -rank <= value < rank, f'axis {value!r:.20} of {rank}')
    return value % rank


def _same(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    for other in inputs[1:]:  # scales, zero points, gamma and beta
        side = (
            inputs[0].shape[_axis(attributes.get('axis', -1), len(inputs[0].shape))] if other.shape else _ONE
        )
        _need(other.shape in ((), (_ONE,), (side,)), 'the shapes do not fit')
    return _Tensor(inputs[0].shape)


def _elementwise(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    return _Tensor(_broadcast(*(one.shape for one in inputs)))


def _product(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    _need(all(len(zero.shape) < 2 for zero in inputs[2:]), 'the shapes do not fit')
    return _Tensor(_matmul(inputs[0].shape, inputs[1].shape))


def _gather(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    data, places = inputs
    axis = _axis(attributes.get('axis', 0), len(data.shape))
    values = None
    if data.values is not None:
        _need(places.shape == (), 'wanted one number')
        values = (data.values[_axis(_numbers(places)[0], len(data.values))],)
    return _Tensor(data.shape[:axis] + places.shape + data.shape[axis + 1 :], values)


def _gather_nd(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    data, places = (one.shape for one in inputs)
    fits = len(data) == len(places) == 3 and data[0] == places[0] and places[2] == _ONE
    _need(fits and attributes == {'batch_dims': 1}, 'the shapes do not fit')
    return _Tensor((*places[:2], data[2]))


def _slice(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    data, start, end = inputs[:3]
    first = _numbers(start)
    _need(len(first) == 1 and (len(inputs) == 3 or _numbers(inputs[3]) == (0,)), 'wanted the first axis')
    if data.values is not None:
        last = _numbers(end)[0]
        _need(len(data.shape) == 1 and 0 <= first[0] < last <= len(data.values), 'outside of the list')
        return _Tensor((_Side(last - first[0]),), data.values[first[0] : last])
    _need(first == (0,) and end.values is not None and len(end.values) == 1, 'wanted the first rows')
    return _Tensor((*(end.values or ()), *data.shape[1:]))


def _shape(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    shape = inputs[0].shape
    return _Tensor((_Side(len(shape)),), shape)


def _range(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    start, end, step = inputs
    _need((_numbers(start), _numbers(step)) == ((0,), (1,)), 'wanted steps of 1 from 0')
    _need(end.values is not None and len(end.values) == 1, 'wanted one number')
    return _Tensor((*(end.values or ()),))


def _unsqueeze(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    axes, shape = _numbers(inputs[1]), list(inputs[0].shape)
    rank = len(shape) + len(axes)
    for axis in sorted(_axis(axis, rank) for axis in axes):
        shape.insert(axis, _ONE)
    return _Tensor(tuple(shape))


def _reshape(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    data, wanted = inputs[0].shape, _numbers(inputs[1])
    _need(all(side > 0 or (side == 0 and i < len(data)) for i, side in enumerate(wanted)), 'a side is wrong')
    shape = tuple(_Side(side) if side else data[i] for i, side in enumerate(wanted))
    _need(_elements(shape) == _elements(data), 'the number of elements changes')
    return _Tensor(shape)


def _transpose(inputs: Sequence[_Tensor], attributes: Mapping[str, Any]) -> _Tensor:
    shape, order = inputs[0].shape, attributes.get('perm')
    _need(isinstance(order, tuple) and sorted(order) == list(range(len(shape))), 'no permutation')
    return _Tensor(tuple(shape[axis] for axis in order or ()))


_Rule = Callable[[Sequence[_Tensor], Mapping[str, Any]], _Tensor]
# Operator: numbers of inputs, attributes, and how the shape follows.
OPERATORS: Dict[str, Tuple[Tuple[int, ...], Tuple[str, ...], _Rule]] = {
    'Add': ((2,), (), _elementwise),
    'Cast': ((1,), ('to',), _same),
    'DequantizeLinear': ((2, 3), ('axis',), _same),
    'Div': ((2,), (), _elementwise),
    'DynamicQuantizeLinear': ((1,), (), _same),
    'Erf': ((1,), (), _same),
    'Gather': ((2,), ('axis',), _gather),
    'GatherND': ((2,), ('batch_dims',), _gather_nd),
    'Identity': ((1,), (), _same),
    'LayerNormalization': ((3,), ('axis', 'epsilon'), _same),
    'Less': ((2,), (), _elementwise),
    'MatMul': ((2,), (), _product),
    'MatMulInteger': ((2, 3, 4), (), _product),
    'Mul': ((2,), (), _elementwise),
    'QuantizeLinear': ((2, 3), ('axis',), _same),
    'Range': ((3,), (), _range),
    'Reshape': ((2,), (), _reshape),
    'Shape': ((1,), (), _shape),
    'Slice': ((3, 4), (), _slice),
    'Softmax': ((1,), ('axis',), _same),
    'Sub': ((2,), (), _elementwise),
    'Tanh': ((1,), (), _same),
    'Transpose': ((1,), ('perm',), _transpose),
    'Unsqueeze': ((2,), (), _unsqueeze),
    'Where': ((3,), (), _elementwise),
}
_OUTPUTS = {'DynamicQuantizeLinear': 3}


def check_onnx(path: Path, *, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise ValueError unless an ONNX file can only compute what an export computes.

    Parameters
    ----------
    path : Path
    inputs, outputs : sequence of str
        The names that the file must have, in this order.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        In one line: if the file is too large or damaged; if it has external data, subgraphs, functions or
        operators that no export has; if a tensor could become far larger than the weights; or if it has other
        inputs or outputs.
    """
    path = Path(path)
    graph = read_graph(path)
    try:
        _check(graph, tuple(inputs), tuple(outputs))
    except ValueError as error:
        raise ValueError(f'{path}: not an ONNX file of this package ({error!s:.300})') from None


def _check(graph: Graph, inputs: Tuple[str, ...], outputs: Tuple[str, ...]) -> None:
    _need(graph.opsets == [('', OPSET)], f'wanted opset {OPSET} alone')
    for what, ports, names in (('inputs', graph.inputs, inputs), ('outputs', graph.outputs, outputs)):
        _need(
            tuple(ports) == names,
            f'the {what} are {", ".join(ports)!s:.150}, wanted {", ".join(names)!s:.150}',
        )
    tensors = {name: _constant(weight) for name, weight in graph.weights.items()}
    largest = max([_LEAST_LIMIT, *(_elements(one.shape).number for one in tensors.values())])
    for name, port in graph.inputs.items():
        _need(port.data_type == INT64, f'input {name:.60} is not int64')
        _need(name not in tensors, f'{name:.60} occurs twice')
        tensors[name] = _Tensor(_declared(port))
    for node in graph.nodes:
        try:
            _add(node, tensors, largest)
        except ValueError as error:
            raise ValueError(
                f'{node.operator:.40} that computes {", ".join(node.outputs)!s:.80}: {error}'
            ) from None
    for name, port in graph.outputs.items():
        right = name in tensors and port.data_type == _FLOAT and tensors[name].shape == _declared(port)
        _need(right, f'output {name:.60} has another shape or type than the graph gives')


def _constant(weight: Weight) -> _Tensor:
    values = None if weight.values is None else tuple(map(_Side, weight.values))
    return _Tensor(tuple(map(_Side, weight.shape)), values)


def _declared(port: Port) -> _Shape:
    for side in port.shape:
        _need(side in _FREE if isinstance(side, str) else side > 0, f'a side is {side!r:.40}')
    return tuple(_Side(1, (side,)) if isinstance(side, str) else _Side(side) for side in port.shape)


def _add(node: Node, tensors: Dict[str, _Tensor], largest: int) -> None:
    """Derive what a node gives from the tensors before it."""
    _need(node.operator in OPERATORS, 'no export has this operator')
    counts, names, rule = OPERATORS[node.operator]
    _need(len(node.inputs) in counts, f'{len(node.inputs)} inputs')
    _need(len(node.outputs) == _OUTPUTS.get(node.operator, 1), f'{len(node.outputs)} outputs')
    _need(set(node.attributes) <= set(names), f'attributes {", ".join(node.attributes)!s:.80}')
    for name in node.inputs:
        _need(name in tensors, f'nothing before it gives {name!r:.60}')
    tensor = rule([tensors[name] for name in node.inputs], node.attributes)
    _need(all(side.number > 0 for side in tensor.shape), 'a side is empty')
    size = _elements(tensor.shape)
    grows = any(size.free.count(name) > most for name, most in _MOST.items())
    _need(not grows and size.number <= largest, 'it could need far more memory than the weights')
    results = [tensor, *(_Tensor(()) for _ in node.outputs[1:])]
    for name, result in zip(node.outputs, results):
        _need(bool(name) and name not in tensors, f'{name!r:.60} occurs twice')
        tensors[name] = result
