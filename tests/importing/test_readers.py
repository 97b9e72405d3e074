"""The readers of foreign files: equal to what was written, and nothing believed or run that a file says."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from helpers.checkpoints import (
    Call,
    Global,
    Reference,
    block,
    entry,
    field,
    pickled,
    state,
    table,
    tensor,
    varint,
    write_checkpoint,
    write_old_torch,
    write_torch,
    write_zip,
)
from safetensors.numpy import save_file

from gluon_optbert.importing.tensorflow_reader import masked_checksum, read_index, read_tensorflow
from gluon_optbert.importing.tensors import array_of, read_safetensors, read_sharded
from gluon_optbert.importing.torch_reader import STORAGES, read_torch

OLD = (0x1950A86A20F9469CFC6C, 1001, {'little_endian': True})  # how a file of the old form begins
MANY = {f'name.{i:02d}': np.arange(i, i + 6, dtype='f4').reshape(2, 3) for i in range(40)}
ARRAYS = {
    'a': np.arange(6, dtype='f4').reshape(2, 3),
    'b.c': np.array([0.1, -2.0]),
    'half': np.arange(4, dtype='f2'),
    'ids': np.arange(5),
    'transposed': np.arange(12, dtype='f4').reshape(3, 4).T,
    'none': np.zeros((0, 3), 'f4'),
}


def assert_arrays(arrays, wanted):
    assert arrays.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (arrays[name].dtype, arrays[name].shape) == (value.dtype, value.shape), name
        assert np.array_equal(arrays[name], value), name


# CRC-32C


def test_masked_checksum_can_be_turned_back():
    """By LevelDB's own rule: minus the constant, rotated the other way."""
    turned = (masked_checksum(b'123456789') - 0xA282EAD8) & 0xFFFFFFFF
    assert ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF == 0xE3069283


# Arrays


def test_bfloat16_is_the_upper_half_of_float32():
    values = np.random.RandomState(0).standard_normal((9, 11)).astype('f4')
    upper = values.view('u4') & np.uint32(0xFFFF0000)
    array = array_of((upper >> 16).astype('<u2').tobytes(), 'BF16', values.shape)
    assert array.dtype == np.float32 and np.array_equal(array.view('u4'), upper)


# PyTorch


def write_safetensors(path, arrays):
    save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, str(path))


@pytest.mark.parametrize(
    'write, read',
    [(write_torch, read_torch), (write_old_torch, read_torch), (write_safetensors, read_safetensors)],
)
def test_tensors_are_read_as_written(tmp_path, write, read):
    write(tmp_path / 'file.bin', ARRAYS)
    assert_arrays(read(tmp_path / 'file.bin'), ARRAYS)


def test_tensors_may_share_a_storage_and_be_parameters(tmp_path):
    values = np.arange(10, dtype='f4')
    part = tensor('0', values, shape=(2, 3), strides=(1, 2), offset=1)
    hooks = Call((Global('collections.OrderedDict'),))
    parameter = Call((Global('torch._utils._rebuild_parameter'), tensor('0', values), True, hooks))
    write_zip(tmp_path / 'file.bin', pickled({'whole': parameter, 'part': part}), [values.tobytes()])
    assert_arrays(read_torch(tmp_path / 'file.bin'), {'whole': values, 'part': values[1:7].reshape(3, 2).T})


def test_state_dictionary_with_versions_is_read(tmp_path):
    """As torch.save writes one: an OrderedDict that is filled and then given its attribute _metadata."""
    value = OrderedDict(state({'a': ARRAYS['a']}))
    value._metadata = OrderedDict()
    write_zip(tmp_path / 'file.bin', pickled(value), [ARRAYS['a'].tobytes()])
    assert_arrays(read_torch(tmp_path / 'file.bin'), {'a': ARRAYS['a']})


def test_a_state_dictionary_among_other_things_is_found(tmp_path):
    inner = state({'a': ARRAYS['a']})
    stream = pickled({'epoch': 3, 'state_dict': inner, 'optimizer': {'state': {}, 'lr': [1]}})
    write_zip(tmp_path / 'one.bin', stream, [ARRAYS['a'].tobytes()])
    assert_arrays(read_torch(tmp_path / 'one.bin'), {'a': ARRAYS['a']})
    stream = pickled({'model': inner, 'ema': inner})
    write_zip(tmp_path / 'two.bin', stream, [ARRAYS['a'].tobytes()])
    with pytest.raises(ValueError, match="found 'model', 'ema'"):
        read_torch(tmp_path / 'two.bin')


class Hostile:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, canary):
        self._canary = canary

    def __reduce__(self):
        return os.mkdir, (self._canary,)


def in_both_forms(directory, stream):
    write_zip(directory / 'new.bin', stream)
    (directory / 'old.bin').write_bytes(b''.join([*map(pickled, OLD), stream, pickled([])]))
    (directory / 'bare.bin').write_bytes(stream)
    return [directory / name for name in ('new.bin', 'old.bin', 'bare.bin')]


@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_hostile_pickle_is_refused_and_not_run(tmp_path, protocol):
    canary = str(tmp_path / 'canary')
    evil = Hostile(canary)
    for value in (evil, {'a': evil}, {'a': [evil, (evil,)]}):
        stream = pickle.dumps(value, protocol)
        for path in in_both_forms(tmp_path, stream):
            with pytest.raises(ValueError, match=path.name):
                read_torch(path)
    assert not os.path.exists(canary)
    pickle.loads(pickle.dumps(evil, protocol))
    assert os.path.exists(canary)  # it would have


HOSTILE = {
    'inst': b'(S"x"\nios\nmkdir\n.',
    'obj': b'(cos\nmkdir\nS"x"\no.',
    'newobj': b'\x80\x02cbuiltins\nobject\n)\x81.',
    'extension': b'\x80\x02\x82\x01.',
    'persistent name': b'Pname\n.',
    'get': b'I1\np0\n0g0\n.',
    'state of a name': b'\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.',
    'state of a tensor': pickled(state({'a': ARRAYS['a']}))[:-2] + b'}b.',
    'a far place in the memo': b'\x80\x02Nr\xff\xff\xff\x7f.',
    'a long frame': b'\x80\x04\x95' + b'\xff' * 8 + b'N.',
    'a long word': b'\x80\x04\x8d' + b'\xff' * 8 + b'abc.',
    'no end': b'\x80\x02}',
    'nothing on the stack': b'\x80\x02.',
    'mark': b'\x80\x02(.',
    'call of a mark': b'\x80\x02ccollections\nOrderedDict\n(R.',
    'dictionary of itself': b'\x80\x02}q\x00(h\x00Nu.',
    'a number that is called': b'\x80\x02K\x01)R.',
    'keys that take for ever': b'\x80\x02)q\x00' + b'h\x00h\x00\x86q\x00' * 60 + b'}h\x00Ns.',
    'deep': b'\x80\x02' + b']' * 1500 + b'a' * 1499 + b'.',
    'tuple of more than there is': b'\x80\x02N\x87.',
}


@pytest.mark.parametrize('stream', HOSTILE.values(), ids=list(HOSTILE))
def test_pickles_of_more_than_tensors_are_refused(tmp_path, stream):
    tracemalloc.start()
    for path in in_both_forms(tmp_path, stream):
        with pytest.raises(ValueError, match=path.name):
            read_torch(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


VALUES = np.arange(4, dtype='f4')
BAD_TENSORS = {
    'shape beyond its storage': tensor('0', VALUES, shape=(5,)),
    'strides beyond it': tensor('0', VALUES, shape=(2, 2), strides=(3, 1)),
    'offset beyond it': tensor('0', VALUES, offset=1),
    'negative stride': tensor('0', VALUES, strides=(-1,)),
    'elements that repeat': tensor('0', VALUES, shape=(10**6, 10**6), strides=(0, 0)),
    'sides': tensor('0', VALUES, shape=(1,) * 9, strides=(1,) * 9),
    'unknown storage': tensor('0', VALUES, kind='torch.QInt8Storage'),
    'no storage': Call((Global('torch._utils._rebuild_tensor_v2'), None, 0, (1,), (1,))),
    'another module': Reference(('module', Global('torch.FloatStorage'), '0', 'cpu', 4)),
    'sparse': Call((Global('torch._utils._rebuild_sparse_tensor'), 1)),
    'too few arguments': Call((Global('torch._utils._rebuild_tensor_v2'),)),
}


def archive(value, storages=(VALUES.tobytes(),), **options):
    return write_zip(io.BytesIO(), pickled(value), storages, **options).getvalue()


BAD_ARCHIVES = {
    **{name: archive({'a': bad}) for name, bad in BAD_TENSORS.items()},
    'bomb': archive(state({'a': VALUES}), [bytes(1 << 20)], compression=zipfile.ZIP_DEFLATED),
    'big-endian': archive(state({'a': VALUES}), more=[('byteorder', b'big')]),
    'without its storage': archive(state({'a': VALUES}), ()),
    'another storage in the old form': b''.join(map(pickled, [*OLD, state({'a': VALUES}, old=True), ['1']]))
    + struct.pack('<q', 4),
}


@pytest.mark.parametrize('kind', sorted(STORAGES))
def test_every_kind_of_storage_is_read(tmp_path, kind):
    digits = ''.join(filter(str.isdigit, STORAGES[kind]))  # the bits of an element
    stream, zeros = pickled({'a': tensor('0', VALUES, kind=kind)}), bytes(4 * int(digits or 8) // 8)
    write_zip(tmp_path / 'file.bin', stream, [zeros])
    assert not read_torch(tmp_path / 'file.bin')['a'].any()


# TensorFlow


@pytest.mark.parametrize('per_block', [1, 3, 100])
def test_tensorflow_checkpoint_is_read_as_written(tmp_path, per_block):
    some = {name: np.ascontiguousarray(value) for name, value in ARRAYS.items() if value.size}
    arrays = {**MANY, **some, 'step': np.array(3)}
    write_checkpoint(tmp_path / 'ckpt', arrays, per_block=per_block)
    assert_arrays(read_tensorflow(tmp_path / 'ckpt'), arrays)
    kept = read_tensorflow(tmp_path / 'ckpt', skip=MANY)
    assert kept.keys() == arrays.keys() - MANY.keys()


def test_damaged_tensor_is_named(tmp_path):
    write_checkpoint(tmp_path / 'ckpt', MANY)
    path = tmp_path / 'ckpt.data-00000-of-00001'
    data = bytearray(path.read_bytes())
    data[30] ^= 1  # in the second tensor of 24 bytes
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="'name.01': its checksum is wrong"):
        read_tensorflow(tmp_path / 'ckpt')
    path.write_bytes(bytes(data)[:-1])
    with pytest.raises(ValueError, match='shorter than its tensors'):
        read_tensorflow(tmp_path / 'ckpt')


def sealed(content):
    """A block of a table with its trailer."""
    return content + b'\0' + struct.pack('<I', masked_checksum(content + b'\0'))


def ended(data, index):
    """A table of these bytes, with an index at their end."""
    footer = b'\0\0' + varint(len(data)) + varint(len(index))
    return data + sealed(index) + footer.ljust(40, b'\0') + struct.pack('<Q', 0xDB4775248B80FB57)


LONG = block([(b'k' * 1000, b'')])
# ten bytes of index for a whole block each would take for ever
OVER_EACH_OTHER = block([(b'%05d' % i, varint(0) + varint(len(LONG))) for i in range(2000)], restart=1)
BAD_TABLES = {
    'blocks that lie over each other': ended(sealed(LONG), OVER_EACH_OTHER),
    'an entry beyond its block': ended(b'', bytes([9, 0, 0]) + struct.pack('<2I', 0, 1)),
    'no header': table([(b'a', entry(VALUES, 0))]),
    'big-endian': table([(b'', field(1, 1) + field(2, 1))]),
    'slices': table([(b'', field(1, 1)), (b'a', entry(VALUES, 0) + field(7, b''))]),
    'a string': table([(b'', field(1, 1)), (b'a', field(1, 7))]),
    'no checksum': table([(b'', field(1, 1)), (b'a', field(1, 1))]),
    'compressed': table([(b'', field(1, 1))], kind=b'\1'),
    'a name that is no text': table([(b'', field(1, 1)), (b'\xff', entry(VALUES, 0))]),
    'short': b'short',
    'a field beyond its message': table([(b'', b'\x0a\x7f')]),
    'a long number': table([(b'', b'\x08' + b'\xff' * 40)]),
}


# safetensors


def with_entry(kind, shape):
    """A file with one array of 16 bytes."""
    header = b'{"a":{"dtype":"%s","shape":%s,"data_offsets":[0,16]}}' % (kind, shape)
    return struct.pack('<Q', len(header)) + header + bytes(16)


BAD_HEADERS = {
    'longer than the file': struct.pack('<Q', 1 << 40) + b'{}',  # which the library refuses
    'more bytes than there are': with_entry(b'F32', b'[8]'),  # as well
    'more sides than arrays have': with_entry(b'F32', b'[4,1,1,1,1,1,1,1,1]'),
    'type that is not read': with_entry(b'U32', b'[4]'),
}


def index_of_tensorflow(path):
    return read_index(path.with_suffix(''))


REFUSED = [
    pytest.param(read, name, data, id=f'{name}: {what}')
    for read, name, files in (
        (read_torch, 'file.bin', BAD_ARCHIVES),
        (index_of_tensorflow, 'ckpt.index', BAD_TABLES),
        (read_safetensors, 'file.safetensors', BAD_HEADERS),
    )
    for what, data in files.items()
]


@pytest.mark.parametrize('read, name, data', REFUSED)
def test_files_that_lie_are_refused(tmp_path, read, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=name):
        read(tmp_path / name)


def test_index_that_does_not_fit_its_files_is_refused(tmp_path):
    save_file({'a': ARRAYS['a']}, str(tmp_path / 'file.safetensors'))
    for places in (
        *(None, {}, {'a': '../file.safetensors'}, {'a': '/etc/passwd'}, {'b': 'file.safetensors'}),
        *({'a': 'file.safetensors', 'b': 'file.safetensors'}, {'a': 'nowhere.safetensors'}),
    ):
        (tmp_path / 'index.json').write_text(json.dumps({'weight_map': places}))
        with pytest.raises((ValueError, FileNotFoundError), match=str(tmp_path)):
            read_sharded(tmp_path / 'index.json', read_safetensors)
