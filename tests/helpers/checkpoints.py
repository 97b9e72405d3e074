"""Tiny checkpoints in the forms of Hugging Face, PyTorch, TensorFlow and GluonNLP, written without their
libraries.
"""

import json
import struct
import zipfile

import mxnet as mx
import numpy as np
from gluonnlp.vocab import BERTVocab
from safetensors.numpy import save_file

from gluon_optbert.importing.name_maps import MAPS, PREFIX, is_transposed
from gluon_optbert.importing.tensorflow_reader import masked_checksum
from helpers.tiny import TOKENS, network, random_parameters

CONFIG = {
    'model_type': 'bert',
    'architectures': ['BertForPreTraining'],
    'hidden_act': 'gelu',
    'hidden_size': 8,
    'num_hidden_layers': 2,
    'num_attention_heads': 2,
    'intermediate_size': 16,
    'vocab_size': len(TOKENS),
    'max_position_embeddings': 16,
    'type_vocab_size': 2,
    'layer_norm_eps': 1e-12,
}
HEADS = ('pooler', 'cls', 'decoder', 'classifier')  # how the names of all heads begin, in one form or another


def named(form, parameters=None, *, without=(), prefix=True, spelling=0):
    """Parameters by the names of a form, tied ones once; `spelling` chooses among several names of one
    tensor.

    Names here that begin with a word of `without` are left away.
    """
    parameters = random_parameters(network()) if parameters is None else parameters
    arrays = {}
    for here, value in parameters.items():
        if here.startswith(tuple(without)):
            continue
        layer = here.split('.')[2] if here.startswith('encoder.transformer_cells.') else ''
        pattern = here.replace(f'transformer_cells.{layer}.', 'transformer_cells.{i}.')
        names = [
            name
            for name, target in MAPS[form].items()
            if target == pattern and 'decoder.weight' not in name and name != 'decoder.3.weight'
        ]
        name = names[min(spelling, len(names) - 1)].replace('{i}', layer)
        whole = (
            name
            if name.startswith(('cls', 'qa', 'classifier', 'output', 'span')) or not prefix
            else PREFIX[form] + name
        )
        arrays[whole] = value.T.copy() if is_transposed(form, name) else value
    return arrays


def write_config(directory, name='config.json', **changes):
    """The configuration of the tiny network and its vocabulary, with changes; None takes a field away."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (directory / name).write_text(json.dumps(config))
    (directory / 'vocab.txt').write_text(''.join(f'{token}\n' for token in TOKENS))
    return directory


def write_hugging_face(directory, arrays=None, *, files='model.safetensors', **changes):
    """A Hugging Face directory with one file of weights, or with two of them and the index `files`."""
    arrays = named('Hugging Face') if arrays is None else arrays
    write_config(directory, **changes)
    if files == 'pytorch_model.bin':
        write_torch(directory / files, arrays)
    elif files == 'old pytorch_model.bin':
        write_old_torch(directory / 'pytorch_model.bin', arrays)
    elif files == 'model.safetensors':
        save_file(
            {name: np.ascontiguousarray(value) for name, value in arrays.items()}, str(directory / files)
        )
    else:
        places = {}
        for number in range(2):
            part = {name: value for i, (name, value) in enumerate(sorted(arrays.items())) if i % 2 == number}
            stem, ending = files[: -len('.index.json')].split('.')
            file = f'{stem}-{number + 1:05d}-of-00002.{ending}'
            if ending == 'bin':
                write_torch(directory / file, part)
            else:
                save_file(part, str(directory / file))
            places.update(dict.fromkeys(part, file))
        (directory / files).write_text(json.dumps({'metadata': {}, 'weight_map': places}))
    return directory


# PyTorch


class Global(str):
    """A name that a pickle imports."""


class Call(tuple):
    """A name and the arguments that a pickle calls it with."""


class Reference(tuple):
    """What stands for a storage in a pickle."""


def pickled(value, *, end=b'.'):
    """A pickle of protocol 2, as `torch.save` writes one, of dictionaries, tuples, words, numbers and the
    three above.
    """

    def emit(item):
        if isinstance(item, Global):
            module, _, name = item.rpartition('.')
            return f'c{module}\n{name}\n'.encode()
        if isinstance(item, Call):
            return emit(item[0]) + emit(tuple(item[1:])) + b'R'
        if isinstance(item, Reference):
            return emit(tuple(item)) + b'Q'
        if isinstance(item, tuple):
            return b'(' + b''.join(map(emit, item)) + b't'
        if isinstance(item, list):
            return b'](' + b''.join(map(emit, item)) + b'e'
        if isinstance(item, dict):
            return b'}(' + b''.join(emit(key) + emit(part) for key, part in item.items()) + b'u'
        if isinstance(item, str):
            data = item.encode()
            return b'X' + struct.pack('<I', len(data)) + data
        if item is None or isinstance(item, bool):
            return {None: b'N', True: b'\x88', False: b'\x89'}[item]
        size = item.bit_length() // 8 + 1
        return b'\x8a' + bytes([size]) + item.to_bytes(size, 'little', signed=True)

    return b'\x80\x02' + emit(value) + end


STORAGE = {
    np.dtype('f4'): 'torch.FloatStorage',
    np.dtype('f2'): 'torch.HalfStorage',
    np.dtype('f8'): 'torch.DoubleStorage',
    np.dtype('i8'): 'torch.LongStorage',
}


def tensor(key, value, *, old=False, kind=None, shape=None, strides=None, offset=0):
    """A tensor of a pickle, over the whole of the storage `key`."""
    steps = tuple(stride // value.itemsize for stride in value.strides)
    reference = ('storage', Global(kind or STORAGE[value.dtype]), key, 'cpu', value.size)
    return Call(
        (
            Global('torch._utils._rebuild_tensor_v2'),
            Reference(reference + (None,) * old),
            offset,
            shape or value.shape,
            steps if strides is None else strides,
            False,
            Call((Global('collections.OrderedDict'),)),
        )
    )


def state(arrays, **more):
    """A state dictionary of tensors whose storages are numbered."""
    return {name: tensor(str(number), value, **more) for number, (name, value) in enumerate(arrays.items())}


def write_zip(path, pickle_bytes, storages=(), *, compression=zipfile.ZIP_STORED, more=()):
    """An archive as PyTorch 1.6 and later write it."""
    with zipfile.ZipFile(path, 'w', compression) as archive:
        archive.writestr('archive/data.pkl', pickle_bytes)
        for name, data in [(f'data/{number}', data) for number, data in enumerate(storages)] + [
            ('version', b'3\n'),
            *more,
        ]:
            archive.writestr('archive/' + name, data)
    return path


def write_torch(path, arrays):
    """Tensors as `torch.save` writes them now."""
    return write_zip(path, pickled(state(arrays)), [value.tobytes(order='A') for value in arrays.values()])


def write_old_torch(path, arrays):
    """Tensors as `torch.save` wrote them before PyTorch 1.6."""
    parts = [
        pickled(0x1950A86A20F9469CFC6C),
        pickled(1001),
        pickled({'protocol_version': 1001, 'little_endian': True}),
        pickled(state(arrays, old=True)),
        pickled([str(number) for number in range(len(arrays))]),
    ]
    parts += [struct.pack('<q', value.size) + value.tobytes(order='A') for value in arrays.values()]
    path.write_bytes(b''.join(parts))
    return path


# TensorFlow


def varint(number):
    """Seven bits a byte, lowest first."""
    data = b''
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def field(number, value):
    """One field of a Protocol Buffers message: a number, or bytes."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def block(entries, restart=4):
    """A block of a LevelDB table, without its trailer."""
    data, restarts, before = b'', [], b''
    for i, (key, value) in enumerate(entries):
        if i % restart == 0:
            restarts.append(len(data))
            before = b''
        shared = next((n for n, (a, b) in enumerate(zip(before, key)) if a != b), min(len(before), len(key)))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return data + struct.pack(f'<{len(restarts) + 1}I', *restarts, len(restarts))


def table(entries, *, per_block=7, kind=b'\0'):
    """A LevelDB table of sorted keys and values."""
    data, index = b'', []

    def add(content):
        nonlocal data
        handle = varint(len(data)) + varint(len(content))
        data += content + kind + struct.pack('<I', masked_checksum(content + kind))
        return handle

    for start in range(0, len(entries), per_block):
        part = entries[start : start + per_block]
        index.append((part[-1][0], add(block(part))))
    footer = add(block([])) + add(block(index, restart=1))
    return data + footer.ljust(40, b'\0') + struct.pack('<Q', 0xDB4775248B80FB57)


TYPES = {np.dtype('f4'): 1, np.dtype('f8'): 2, np.dtype('i4'): 3, np.dtype('i8'): 9, np.dtype('f2'): 19}


def entry(value, offset):
    """A BundleEntryProto."""
    shape = b''.join(field(2, field(1, side)) for side in value.shape)
    return (
        field(1, TYPES[value.dtype])
        + field(2, shape)
        + field(4, offset)
        + field(5, value.nbytes)
        + varint(6 << 3 | 5)
        + struct.pack('<I', masked_checksum(value.tobytes()))
    )


def write_checkpoint(prefix, arrays, **options):
    """``PREFIX.index`` and ``PREFIX.data-00000-of-00001``."""
    data, entries = b'', [(b'', field(1, 1))]
    for name, value in sorted(arrays.items()):
        entries.append((name.encode(), entry(value, len(data))))
        data += value.tobytes()
    prefix.with_name(prefix.name + '.index').write_bytes(table(entries, **options))
    prefix.with_name(prefix.name + '.data-00000-of-00001').write_bytes(data)
    return prefix


def write_google(directory, arrays=None, **changes):
    """A directory of Google's BERT."""
    arrays = named('TensorFlow') if arrays is None else arrays
    write_config(
        directory,
        'bert_config.json',
        **{'model_type': None, 'architectures': None, 'layer_norm_eps': None, **changes},
    )
    write_checkpoint(directory / 'bert_model.ckpt', arrays)
    return directory


# GluonNLP


def gluonnlp_vocabulary():
    """GluonNLP's vocabulary of the same tokens, as JSON."""
    numbers = {token: number for number, token in enumerate(TOKENS)}
    return BERTVocab(counter=dict.fromkeys(TOKENS, 1), token_to_idx=numbers).to_json()


def write_gluonnlp(directory, arrays=None, *, name='bert_2_8_2_tiny.params'):
    """A parameter file that MXNet wrote, and GluonNLP's vocabulary."""
    arrays = named('GluonNLP', prefix=False) if arrays is None else arrays
    directory.mkdir(parents=True, exist_ok=True)
    mx.nd.save(
        str(directory / name), {key: mx.nd.array(value, dtype=value.dtype) for key, value in arrays.items()}
    )
    (directory / 'tiny.vocab').write_text(gluonnlp_vocabulary())
    return directory / name
