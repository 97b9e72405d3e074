"""Tiny checkpoints in the forms of Hugging Face, PyTorch, TensorFlow and GluonNLP, written without their
libraries.
"""

import io
import json
import pickle
import struct
import zipfile

import mxnet as mx
import numpy as np
from gluonnlp.vocab import BERTVocab
from safetensors.numpy import save_file

from gluon_optbert.importing.name_maps import PREFIX, is_transposed, names_in
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


def named(form, parameters=None, *, without=(), prefix=True):
    """Parameters by the names of a form, tied ones once; names here that begin with a word of `without` are
    left away.
    """
    parameters = random_parameters(network()) if parameters is None else parameters
    names, arrays = names_in(form, 2), {}
    for here in (here for here in parameters if not here.startswith(tuple(without))):
        name, value = names[here], parameters[here]
        bare = not prefix or name.startswith(('cls', 'qa', 'classifier', 'output', 'span'))
        whole = name if bare else PREFIX[form] + name
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

    def save(name, part):
        path = directory / name.removeprefix('old ')
        if name.endswith('.safetensors'):
            save_file({key: np.ascontiguousarray(value) for key, value in part.items()}, str(path))
        else:
            (write_old_torch if name.startswith('old ') else write_torch)(path, part)

    if not files.endswith('.index.json'):
        save(files, arrays)
        return directory
    stem, ending = files.removesuffix('.index.json').split('.')
    places = {}
    for number, keys in enumerate((sorted(arrays)[::2], sorted(arrays)[1::2]), 1):
        file = f'{stem}-{number:05d}-of-00002.{ending}'
        save(file, {key: arrays[key] for key in keys})
        places.update(dict.fromkeys(keys, file))
    (directory / files).write_text(json.dumps({'metadata': {}, 'weight_map': places}))
    return directory


# PyTorch


class Global(str):
    """A name that a pickle imports."""


class Call(tuple):
    """A name and the arguments that a pickle calls it with."""


class Reference(tuple):
    """Stand-in for a storage in a pickle."""


class Pickler(pickle._Pickler):
    """Python's own, in Python, which knows the three above."""

    dispatch = {
        **pickle._Pickler.dispatch,
        Global: lambda self, name: self.write('c{}\n{}\n'.format(*name.rsplit('.', 1)).encode()),
        Call: lambda self, call: [self.save(call[0]), self.save(tuple(call[1:])), self.write(pickle.REDUCE)],
    }

    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Reference) else None


def pickled(value):
    """A pickle of protocol 2, as `torch.save` writes one."""
    file = io.BytesIO()
    Pickler(file, 2).dump(value)
    return file.getvalue()


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
