"""The tensors in a file that PyTorch's `torch.save` wrote, without PyTorch and without running anything that
the file names.

A pickle is a program. Here it is read by a machine that knows the few instructions of a dictionary of tensors
and calls nothing: a name in the file stays a name, that of a tensor's constructor makes a description of a
tensor, and every other name is refused. Both forms are read: the zip archive of PyTorch 1.6 and later, and
the stream of five pickles before it."""

from __future__ import annotations

import dataclasses
import io
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .foreign import MOST_SIDES, MOST_TEXT_BYTES, array_of, element_bytes, existing, size_of

# The classes of storages that may be named, and the elements they hold.
STORAGES = {
    'torch.DoubleStorage': 'F64',
    'torch.FloatStorage': 'F32',
    'torch.HalfStorage': 'F16',
    'torch.BFloat16Storage': 'BF16',
    'torch.LongStorage': 'I64',
    'torch.IntStorage': 'I32',
    'torch.ShortStorage': 'I16',
    'torch.CharStorage': 'I8',
    'torch.ByteStorage': 'U8',
    'torch.BoolStorage': 'BOOL',
}
_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the old form
_OLD_PROTOCOL = 1001
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    EOFError,
    RecursionError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
)


@dataclasses.dataclass(frozen=True)
class _Name:
    """A name in a pickle that would be imported; here it is a word."""

    text: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    """A stretch of elements kept beside the pickle."""

    key: str
    kind: str
    count: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A view of a storage: element offset, shape and strides."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = object()


class _Machine:
    """Runs the instructions that dictionaries of tensors are made of; ValueError at any other."""

    def __init__(self, file: BinaryIO):
        self._file, self._stack, self._memo = file, [], {}

    def run(self) -> Any:
        """What the pickle describes; the file is left behind its end."""
        for operation, argument, _ in pickletools.genops(self._file):
            if operation.name == 'STOP':
                return self._stack.pop()
            step = _STEPS.get(operation.name)
            if step is None:
                raise ValueError(f'the pickle has an instruction {operation.name}, which tensors do not need')
            step(self, argument)
        raise ValueError('the pickle has no end')

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def memoize(self, place: Any) -> None:
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def recall(self, place: int) -> None:
        self.push(self._memo[place])

    def since_mark(self) -> list[Any]:
        """The values above the last mark, which go."""
        values = []
        while self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        self._stack.pop()
        return values[::-1]

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count or _MARK in self._stack[-count:]:
            raise ValueError('the pickle takes more than it has')
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def set_items(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if (
            type(target) is not dict
            or len(values) % 2
            or not all(type(key) in (str, int) for key in values[::2])
        ):
            raise ValueError('the pickle fills something that is no dictionary with words for keys')
        target.update(zip(values[::2], values[1::2]))

    def append(self, values: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise ValueError('the pickle appends to something that is no list')
        self._stack[-1].extend(values)

    def global_name(self, name: Any) -> None:
        if name is None:  # the module and the name are on the stack
            word, module = self._stack.pop(), self._stack.pop()
            name = f'{module} {word}' if type(module) is type(word) is str else '? ?'
        self.push(_Name(name.replace(' ', '.', 1)))

    def reduce(self, _: None) -> None:
        """A call. Nothing is called: a few names are known here and make descriptions; others are refused."""
        arguments, name = self._stack.pop(), self._stack.pop()
        make = _CALLS.get(name.text) if type(name) is _Name else None
        if make is None:
            raise ValueError(
                f'the pickle would call {name.text if type(name) is _Name else "a value"}; only tensors are '
                'read'
            )
        self.push(make(*arguments))

    def persistent(self, _: None) -> None:
        """A reference to a storage: its class, its key, where it lived and its length."""
        kind, storage, key, _, count, *view = self._stack.pop()
        if (
            kind != 'storage'
            or type(storage) is not _Name
            or type(key) is not str
            or type(count) is not int
            or count < 0
            or (view not in ([], [None]))
        ):
            raise ValueError('the pickle refers to something that is no storage')
        if storage.text not in STORAGES:
            raise ValueError(
                f'the pickle has a storage of {storage.text}, wanted one of {", ".join(STORAGES)}'
            )
        self.push(_Storage(key, STORAGES[storage.text], count))

    def build(self, _: None) -> None:
        """The attributes of a state dictionary, versions of its modules, which are not kept."""
        state = self._stack.pop()
        if type(state) is not dict or type(self._stack[-1]) is not dict:
            raise ValueError('the pickle sets the state of something that is no dictionary')


def _constant(value: Any) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(value() if callable(value) else value)


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    'PROTO': lambda machine, _: None,
    'FRAME': lambda machine, _: None,
    'BUILD': _Machine.build,
    'MARK': _constant(_MARK),
    'NONE': _constant(None),
    'NEWTRUE': _constant(True),
    'NEWFALSE': _constant(False),
    'EMPTY_DICT': _constant(dict),
    'EMPTY_LIST': _constant(list),
    'EMPTY_TUPLE': _constant(tuple),
    **dict.fromkeys(
        ('BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT', 'BINUNICODE', 'SHORT_BINUNICODE'), _Machine.push
    ),
    **dict.fromkeys(('BINPUT', 'LONG_BINPUT', 'MEMOIZE'), _Machine.memoize),
    **dict.fromkeys(('BINGET', 'LONG_BINGET'), _Machine.recall),
    'TUPLE1': lambda machine, _: machine.tuple_of(1),
    'TUPLE2': lambda machine, _: machine.tuple_of(2),
    'TUPLE3': lambda machine, _: machine.tuple_of(3),
    'TUPLE': lambda machine, _: machine.push(tuple(machine.since_mark())),
    'SETITEMS': lambda machine, _: machine.set_items(machine.since_mark()),
    'SETITEM': lambda machine, _: machine.set_items(
        [*reversed((machine._stack.pop(), machine._stack.pop()))]
    ),
    'APPENDS': lambda machine, _: machine.append(machine.since_mark()),
    'APPEND': lambda machine, _: machine.append([machine._stack.pop()]),
    'GLOBAL': _Machine.global_name,
    'STACK_GLOBAL': _Machine.global_name,
    'REDUCE': _Machine.reduce,
    'BINPERSID': _Machine.persistent,
}


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    if (
        type(storage) is not _Storage
        or len(shape) != len(strides)
        or len(shape) > MOST_SIDES
        or not all(type(number) is int and number >= 0 for number in (offset, *shape, *strides))
    ):
        raise ValueError('the pickle describes a tensor that cannot be')
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides))
    if size_of(shape) > storage.count or (size_of(shape) and last >= storage.count):
        raise ValueError(
            f'a tensor of shape {shape} and strides {strides} reaches beyond its {storage.count} elements'
        )
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _dictionary(*arguments: Any) -> dict[str, Any]:
    if arguments:
        raise ValueError('the pickle makes an OrderedDict from something')
    return {}


def _parameter(tensor: Any, *_: Any) -> Any:
    return tensor


_CALLS: dict[str, Callable[..., Any]] = {
    'collections.OrderedDict': _dictionary,
    'torch._utils._rebuild_tensor_v2': _tensor,
    'torch._utils._rebuild_parameter': _parameter,
}


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dictionary by name.

    Raises
    ------
    FileNotFoundError, ValueError
        As `existing`, and if it is damaged, or holds anything but a dictionary of dense tensors.
    """
    path = existing(path)
    try:
        with open(path, 'rb') as file:
            return _from_zip(file) if zipfile.is_zipfile(file) else _from_stream(file)
    except _MALFORMED as error:
        raise ValueError(
            f'{path}: not read as PyTorch tensors ({str(error) or type(error).__name__})'
        ) from error


def _from_zip(file: BinaryIO) -> dict[str, np.ndarray]:
    """The tensors of the newer form: ``NAME/data.pkl``, and ``NAME/data/KEY`` for every storage."""
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        size = file.seek(0, io.SEEK_END)
        if sum(member.file_size for member in members.values()) > size or not all(
            member.compress_type == zipfile.ZIP_STORED and 0 <= member.header_offset < size
            for member in members.values()
        ):
            raise ValueError(
                'its members are compressed or reach beyond the file, which torch.save does not do'
            )
        pickles = [name for name in members if name.count('/') == 1 and name.endswith('/data.pkl')]
        if len(pickles) != 1 or members[pickles[0]].file_size > MOST_TEXT_BYTES:
            raise ValueError(
                f'{len(pickles)} members named NAME/data.pkl, wanted one of at most {MOST_TEXT_BYTES} bytes'
            )
        root = pickles[0][: -len('data.pkl')]
        if root + 'byteorder' in members and archive.read(root + 'byteorder') != b'little':
            raise ValueError('its numbers are big-endian; save it anew on another machine')
        tensors = _tensors(_Machine(io.BytesIO(archive.read(pickles[0]))).run())
        return _arrays(tensors, lambda storage: archive.read(f'{root}data/{storage.key}'))


def _from_stream(file: BinaryIO) -> dict[str, np.ndarray]:
    """The tensors of the older form: magic number, protocol, system, tensors and keys as pickles, then the
    storages.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        known = _Machine(file).run() == _MAGIC and _Machine(file).run() == _OLD_PROTOCOL
    except _MALFORMED:
        known = False
    if not known:
        raise ValueError("neither a zip archive nor a file with PyTorch's magic number")
    if not _Machine(file).run()['little_endian']:
        raise ValueError('its numbers are big-endian; save it anew on another machine')
    tensors = _tensors(_Machine(file).run())
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    data = {}
    for key in _Machine(file).run():
        (count,) = struct.unpack('<q', file.read(8))
        if key not in storages or count != storages[key].count or count > size:
            raise ValueError('its storages are not those of its tensors')
        data[key] = file.read(count * element_bytes(storages[key].kind))
    return _arrays(tensors, lambda storage: data[storage.key])


def _tensors(state: Any) -> dict[str, _Tensor]:
    """The state dictionary that a pickle described; ValueError if it is anything else."""
    if type(state) is not dict or not state or not all(type(name) is str for name in state):
        raise ValueError('wanted a dictionary of tensors by name')
    others = [name for name, value in state.items() if type(value) is not _Tensor]
    if others:
        raise ValueError(
            f'wanted a dictionary of tensors; {", ".join(map(repr, others))} hold something else'
        )
    return state


def _arrays(tensors: dict[str, _Tensor], read: Callable[[_Storage], bytes]) -> dict[str, np.ndarray]:
    """The arrays of tensors; a storage that several share is read once."""
    storages: dict[_Storage, np.ndarray] = {}
    arrays = {}
    for name, tensor in tensors.items():
        if tensor.storage not in storages:
            storages[tensor.storage] = array_of(
                read(tensor.storage), tensor.storage.kind, (tensor.storage.count,)
            )
        values = storages[tensor.storage]
        arrays[name] = np.lib.stride_tricks.as_strided(
            values[tensor.offset :],
            tensor.shape,
            [stride * values.itemsize for stride in tensor.strides],
            writeable=False,
        )
    return arrays
