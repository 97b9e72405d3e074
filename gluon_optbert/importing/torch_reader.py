"""The tensors in a file that PyTorch's `torch.save` wrote, without PyTorch and without running anything that
the file names.

A pickle is a program. Here it is read by a machine that knows the few instructions of a dictionary of tensors
and calls nothing: a name in the file stays a name, that of a tensor's constructor makes a description of a
tensor, and every other name is refused. Both forms are read: the zip archive of PyTorch 1.6 and later, and
the stream of five pickles before it."""

from __future__ import annotations

import dataclasses
import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..runs.files import existing
from ..runs.limits import MOST_ARRAYS, MOST_BYTES, MOST_INSTRUCTIONS, within
from .tensors import MOST_SIDES, array_of, element_bytes

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
_MARK = object()
# What instructions without an argument push; new lists and dictionaries are others each time.
_CONSTANTS = {'MARK': _MARK, 'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False, 'EMPTY_TUPLE': ()}


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


def _described(file: BinaryIO) -> Any:
    """The value that the next pickle of a file describes; the file is left behind its end; ValueError at any
    instruction that a dictionary of tensors does not need.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        """The values above the last mark; both leave the stack."""
        values = []
        while stack[-1] is not _MARK:
            values.append(stack.pop())
        stack.pop()
        return values[::-1]

    for number, (operation, argument, _) in enumerate(pickletools.genops(file)):
        within(number, MOST_INSTRUCTIONS, 'instructions', source='the pickle')
        match operation.name:
            case 'STOP':
                return stack.pop()
            case 'PROTO' | 'FRAME':
                pass
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case 'BININT' | 'BININT1' | 'BININT2' | 'LONG1' | 'BINFLOAT' | 'BINUNICODE' | 'SHORT_BINUNICODE':
                stack.append(argument)
            case 'BINPUT' | 'LONG_BINPUT':
                memo[argument] = stack[-1]
            case 'MEMOIZE':
                memo[len(memo)] = stack[-1]
            case 'BINGET' | 'LONG_BINGET':
                stack.append(memo[argument])
            case 'TUPLE1' | 'TUPLE2' | 'TUPLE3' as name:
                values = [stack.pop() for _ in range(int(name[-1]))]
                stack.append(tuple(values[::-1]))
            case 'TUPLE':
                stack.append(tuple(since_mark()))
            case 'EMPTY_LIST':
                stack.append([])
            case 'APPEND' | 'APPENDS' as name:
                values = [stack.pop()] if name == 'APPEND' else since_mark()
                if type(stack[-1]) is not list:
                    raise ValueError('the pickle appends to something that is no list')
                stack[-1].extend(values)
            case 'EMPTY_DICT':
                stack.append({})
            case 'SETITEM' | 'SETITEMS' as name:
                values = [stack.pop(), stack.pop()][::-1] if name == 'SETITEM' else since_mark()
                keys = values[::2]
                if type(stack[-1]) is not dict or not all(type(key) in (str, int) for key in keys):
                    raise ValueError('the pickle fills something that is no dictionary with words for keys')
                stack[-1].update(zip(keys, values[1::2], strict=True))
            case 'GLOBAL':
                stack.append(_Name(argument.replace(' ', '.', 1)))
            case 'STACK_GLOBAL':
                word, module = stack.pop(), stack.pop()
                stack.append(_Name(f'{module}.{word}' if type(module) is type(word) is str else '?'))
            case 'REDUCE':
                arguments, name = stack.pop(), stack.pop()
                stack.append(_called(name, arguments))
            case 'BINPERSID':
                stack.append(_storage(stack.pop()))
            case 'BUILD':  # the attributes of a state dictionary, versions of its modules, are not kept
                if type(stack.pop()) is not dict or type(stack[-1]) is not dict:
                    raise ValueError('the pickle sets the state of something that is no dictionary')
            case name:
                raise ValueError(f'the pickle has an instruction {name}, which tensors do not need')


def _called(name: Any, arguments: Any) -> Any:
    """The value of a call. Nothing is called: three names are known here, and all others are refused."""
    text = name.text if type(name) is _Name else 'a value'
    match text, arguments:
        case 'collections.OrderedDict', ():
            return {}
        case 'torch._utils._rebuild_parameter', (tensor, *_):
            return tensor
        case 'torch._utils._rebuild_tensor_v2', (storage, offset, shape, strides, *_):
            return _tensor(storage, offset, shape, strides)
    raise ValueError(f'the pickle would call {text:.200}; only tensors are read')


def _storage(reference: Any) -> _Storage:
    """The storage that a reference means: its class, its key, where it lived and its length."""
    match reference:
        case ('storage', _Name() as kind, str() as key, _, int() as count, *view) if count >= 0 and view in (
            [],
            [None],
        ):
            if kind.text not in STORAGES:
                raise ValueError(
                    f'the pickle has a storage of {kind.text:.200}, wanted one of {", ".join(STORAGES)}'
                )
            return _Storage(key, STORAGES[kind.text], count)
    raise ValueError('the pickle refers to something that is no storage')


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
    """A view of a storage, which has all of its elements."""
    if (
        type(storage) is not _Storage
        or len(shape) != len(strides)
        or len(shape) > MOST_SIDES
        or not all(type(number) is int and number >= 0 for number in (offset, *shape, *strides))
    ):
        raise ValueError('the pickle describes a tensor that cannot be')
    size = math.prod(shape)
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides))
    if size > storage.count or (size and last >= storage.count):
        raise ValueError(
            f'a tensor of shape {shape} and strides {strides} reaches beyond its {storage.count} elements'
        )
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dictionary by name; FileNotFoundError or ValueError as `existing`, and if it is
    damaged, or holds anything but a dictionary of dense tensors.
    """
    path = existing(path)
    try:
        with open(path, 'rb') as file:
            return _from_zip(file) if zipfile.is_zipfile(file) else _from_stream(file)
    except OSError:
        raise
    except Exception as error:  # whatever the parsers of zip and pickle raise on bytes that are neither
        raise ValueError(f'{path}: not read as PyTorch tensors ({error!s:.300})') from error


def _from_zip(file: BinaryIO) -> dict[str, np.ndarray]:
    """The tensors of the newer form: ``NAME/data.pkl``, and ``NAME/data/KEY`` for every storage."""
    with zipfile.ZipFile(file) as archive:
        within(len(archive.infolist()), MOST_ARRAYS, 'members', source='the archive')
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
        if len(pickles) != 1 or members[pickles[0]].file_size > MOST_BYTES:
            raise ValueError(
                f'{len(pickles)} members named NAME/data.pkl, wanted one of at most {MOST_BYTES} bytes'
            )
        root = pickles[0][: -len('data.pkl')]
        if root + 'byteorder' in members and archive.read(root + 'byteorder') != b'little':
            raise ValueError('its numbers are big-endian; save it anew on another machine')
        tensors = _tensors(_described(io.BytesIO(archive.read(pickles[0]))))
        return _arrays(tensors, lambda storage: archive.read(f'{root}data/{storage.key}'))


def _from_stream(file: BinaryIO) -> dict[str, np.ndarray]:
    """The tensors of the older form: magic number, protocol, system, tensors and keys as pickles, then the
    storages.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        known = _described(file) == _MAGIC and _described(file) == _OLD_PROTOCOL
    except Exception:
        known = False
    if not known:
        raise ValueError("neither a zip archive nor a file with PyTorch's magic number")
    if not _described(file)['little_endian']:
        raise ValueError('its numbers are big-endian; save it anew on another machine')
    tensors = _tensors(_described(file))
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    data = {}
    for key in _described(file):
        (count,) = struct.unpack('<q', file.read(8))
        if key not in storages or count != storages[key].count or count > size:
            raise ValueError('its storages are not those of its tensors')
        data[key] = file.read(count * element_bytes(storages[key].kind))
    return _arrays(tensors, lambda storage: data[storage.key])


def _tensors(state: Any) -> dict[str, _Tensor]:
    """The state dictionary that a pickle described, or the only one in a dictionary of other things, such as
    ``state_dict`` beside the epoch; ValueError if it is anything else.
    """
    if type(state) is dict and not any(type(value) is _Tensor for value in state.values()):
        inner = {
            name: value
            for name, value in state.items()
            if type(value) is dict and any(type(part) is _Tensor for part in value.values())
        }
        if len(inner) > 1:
            raise ValueError(
                f'wanted one dictionary of tensors, found {", ".join(map(repr, inner)):.200}; save one alone'
            )
        state = next(iter(inner.values()), state)
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
