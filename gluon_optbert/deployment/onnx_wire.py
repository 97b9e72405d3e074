"""Reading of ONNX files as data: nodes, and the forms of weights. The weights' bytes stay on the disk.

ONNX files are messages of Protocol Buffers. Only the fields that `onnx_export` writes are known. Every other
field is an error: external data, subgraphs, functions, training information, and a field that occurs twice
but may occur once. So a reader of the file cannot see a different graph than this module does. Neither MXNet
nor ONNX is imported."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

LARGEST_FILE = (1 << 31) - 1  # bytes that Protocol Buffers can hold
_MOST_FIELDS = 300_000  # BERT-large in eight bits has about 60,000
_LONGEST_TEXT = 1000  # bytes of a name
_VALUES = 16  # elements of an integer constant that is kept: an axis, or a shape
ITEM_BYTES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8}  # float32, uint8, int8, int32, int64
INT64 = 7

# Field numbers of onnx.proto. A star: the field may occur more than once. A mark: it must not occur.
_MODEL = {
    1: 'ir_version',
    2: 'producer_name',
    3: 'producer_version',
    7: 'graph',
    8: 'opset_import*',
    20: '!training information',
    25: '!functions',
}
_OPSET = {1: 'domain', 2: 'version'}
_GRAPH = {
    1: 'node*',
    2: 'name',
    5: 'initializer*',
    11: 'input*',
    12: 'output*',
    13: '!shapes of tensors inside',
    14: '!annotations of quantised tensors',
    15: '!sparse weights',
}
_NODE = {
    1: 'input*',
    2: 'output*',
    3: 'name',
    4: 'operator',
    5: 'attribute*',
    7: '!operators of another domain',
}
_ATTRIBUTE = {1: 'name', 2: 'f', 3: 'i', 5: '!tensors as attributes', 6: '!subgraphs', 8: 'ints*', 20: 'type'}
_TENSOR = {1: 'dims*', 2: 'data_type', 8: 'name', 9: 'raw_data', 13: '!external data', 14: '!external data'}
_VALUE = {1: 'name', 2: 'type'}
_TYPE = {1: 'tensor'}
_TENSOR_TYPE = {1: 'data_type', 2: 'shape'}
_SHAPE = {1: 'dim*'}
_DIMENSION = {1: 'size', 2: 'name'}
Value = Union[int, memoryview]


class Node(NamedTuple):
    """An operator with the names of its inputs and outputs; attributes are numbers or tuples of them."""

    operator: str
    inputs: Tuple[str, ...]
    outputs: Tuple[str, ...]
    attributes: Dict[str, Any]


class Weight(NamedTuple):
    """A constant tensor; `values` only for a short list of int64."""

    shape: Tuple[int, ...]
    values: Optional[Tuple[int, ...]]


class Port(NamedTuple):
    """An input or output of the graph; a side is a number, or the name of one that is free."""

    data_type: int
    shape: Tuple[Union[int, str], ...]


class Graph(NamedTuple):
    """What an ONNX file computes."""

    opsets: List[Tuple[str, int]]
    nodes: List[Node]
    weights: Dict[str, Weight]
    inputs: Dict[str, Port]
    outputs: Dict[str, Port]


class _Reader:
    """Counts the fields of one file, so that a file of millions of empty ones ends early."""

    def __init__(self) -> None:
        self._fields = 0

    def message(self, data: Value, schema: Mapping[int, str]) -> Dict[str, Any]:
        """The fields of a message by name; those with a star as lists."""
        fields: Dict[str, Any] = {}
        for number, value in self._scan(_bytes(data)):
            name = schema.get(number, f'!field {number}')
            if name.startswith('!'):
                raise ValueError(f'no export has {name[1:]}')
            if name.endswith('*'):
                fields.setdefault(name[:-1], []).append(value)
            elif name in fields:
                raise ValueError(f'{name} occurs twice')
            else:
                fields[name] = value
        return fields

    def _scan(self, data: memoryview) -> Iterator[Tuple[int, Value]]:
        place = 0
        while place < len(data):
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise ValueError(f'more than {_MOST_FIELDS} fields')
            key, place = _varint(data, place)
            value: Value
            if key & 7 == 0:
                value, place = _varint(data, place)
            elif key & 7 in (2, 5):
                size = 4
                if key & 7 == 2:
                    size, place = _varint(data, place)
                if size > len(data) - place:
                    raise ValueError('the file is cut short')
                value, place = data[place : place + size], place + size
            else:
                raise ValueError('not Protocol Buffers as ONNX has them')
            yield key >> 3, value

    def node(self, data: Value) -> Node:
        fields = self.message(data, _NODE)
        attributes: Dict[str, Any] = {}
        for one in fields.get('attribute', ()):
            name, value = self._attribute(one)
            if name in attributes:
                raise ValueError(f'attribute {name:.40} occurs twice')
            attributes[name] = value
        names = (tuple(map(_text, fields.get(side, ()))) for side in ('input', 'output'))
        return Node(_text(fields.get('operator', b'')), *names, attributes)

    def _attribute(self, data: Value) -> Tuple[str, Any]:
        fields = self.message(data, _ATTRIBUTE)
        name, kind = _text(fields.pop('name', b'')), fields.pop('type', None)
        wanted = {1: 'f', 2: 'i', 7: 'ints'}.get(kind)
        if wanted is None or set(fields) != {wanted}:
            raise ValueError(f'attribute {name:.40} is no number and no list of them')
        if wanted == 'f':
            data = _bytes(fields['f'])
            if len(data) != 4:
                raise ValueError(f'attribute {name:.40} is no number')
            return name, struct.unpack('<f', data)[0]
        return name, _signed(fields['i']) if wanted == 'i' else tuple(
            map(_signed, self.numbers(fields['ints']))
        )

    def numbers(self, values: List[Value]) -> Iterator[int]:
        """Numbers that are written one by one, or packed together."""
        for value in values:
            if isinstance(value, int):
                yield value
                continue
            place = 0
            while place < len(value):
                self._fields += 1
                if self._fields > _MOST_FIELDS:
                    raise ValueError(f'more than {_MOST_FIELDS} fields')
                number, place = _varint(value, place)
                yield number

    def weight(self, data: Value) -> Tuple[str, Weight]:
        fields = self.message(data, _TENSOR)
        name, shape = (
            _text(fields.get('name', b'')),
            tuple(map(_signed, self.numbers(fields.get('dims', [])))),
        )
        raw, kind = _bytes(fields.get('raw_data', b'')), fields.get('data_type')
        if kind not in ITEM_BYTES or len(shape) > 4:
            raise ValueError(f'weight {name:.60} is of data type {kind!r:.20} with {len(shape)} sides')
        size = ITEM_BYTES[kind]
        for side in shape:
            size *= side
            if side < 0 or size > LARGEST_FILE:
                raise ValueError(f'weight {name:.60} has a side of {side}')
        if size != len(raw):
            raise ValueError(f'weight {name:.60} has {len(raw)} bytes, wanted {size}')
        short = kind == INT64 and len(raw) <= 8 * _VALUES
        return name, Weight(shape, struct.unpack(f'<{len(raw) // 8}q', raw) if short else None)

    def port(self, data: Value) -> Tuple[str, Port]:
        fields = self.message(data, _VALUE)
        kind = self.message(fields.get('type', b''), _TYPE)
        tensor = self.message(kind.get('tensor', b''), _TENSOR_TYPE)
        shape: List[Union[int, str]] = []
        for side in self.message(tensor.get('shape', b''), _SHAPE).get('dim', ()):
            one = self.message(side, _DIMENSION)
            if len(one) != 1:
                raise ValueError('a side of an input or output is neither a number nor a name')
            shape.append(_signed(one['size']) if 'size' in one else _text(one['name']))
        return _text(fields.get('name', b'')), Port(int(tensor.get('data_type', 0)), tuple(shape))

    def graph(self, data: memoryview) -> Graph:
        model = self.message(data, _MODEL)
        graph = self.message(model.get('graph', b''), _GRAPH)
        opsets = [self.message(one, _OPSET) for one in model.get('opset_import', ())]
        return Graph(
            [(_text(one.get('domain', b'')), int(one.get('version', 0))) for one in opsets],
            [self.node(one) for one in graph.get('node', ())],
            _unique(self.weight(one) for one in graph.get('initializer', ())),
            _unique(self.port(one) for one in graph.get('input', ())),
            _unique(self.port(one) for one in graph.get('output', ())),
        )


def _unique(pairs: Iterator[Tuple[str, Any]]) -> Dict[str, Any]:
    named: Dict[str, Any] = {}
    for name, value in pairs:
        if name in named:
            raise ValueError(f'{name:.60} occurs twice')
        named[name] = value
    return named


def _varint(data: memoryview, place: int) -> Tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError('the file is cut short')
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & ((1 << 64) - 1), place
    raise ValueError('a number has more than ten bytes')


def _signed(number: Value) -> int:
    if not isinstance(number, int):
        raise ValueError('bytes where a number belongs')
    return number - (1 << 64) if number >> 63 else number


def _bytes(value: Union[Value, bytes]) -> memoryview:
    if isinstance(value, int):
        raise ValueError('a number where bytes belong')
    return memoryview(value)


def _text(value: Union[Value, bytes]) -> str:
    data = _bytes(value)
    if len(data) > _LONGEST_TEXT:
        raise ValueError(f'a name has {len(data)} bytes')
    text = bytes(data).decode('utf-8')
    if not text.isprintable():
        raise ValueError(f'{text!r:.80} is no name')
    return text


def read_graph(path: Path) -> Graph:
    """The graph of an ONNX file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it has something that `onnx_export` does not write, or is too large.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    size = path.stat().st_size
    if not 0 < size <= LARGEST_FILE:
        raise ValueError(f'{path}: {size} bytes, and an ONNX file has 1 to {LARGEST_FILE}')
    with open(path, 'rb') as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return _Reader().graph(data)
    except (ValueError, TypeError) as error:
        raise ValueError(f'{path}: not an ONNX file of this package ({error!s:.300})') from None
