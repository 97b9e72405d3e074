"""Small files that stand for much more: each is refused before it takes time or memory."""

import json
import resource
import struct
import time
import zipfile

import numpy as np
import pytest
from helpers.tiny import network

from gluon_optbert.architecture.architecture import Architecture
from gluon_optbert.cutting.selection import read_alphas
from gluon_optbert.importing.torch_reader import read_torch
from gluon_optbert.runs.files import read_json
from gluon_optbert.runs.mxnet_arrays import read_arrays
from gluon_optbert.runs.recipe import read_yaml

SECONDS, MEGABYTES = 10, 400  # a busy machine's; without limits they are minutes, or gigabytes


def merges(path):
    """Each mapping merges the one before nine times."""
    more = [f'a{i}: &a{i} {{<<: [{", ".join([f"*a{i - 1}"] * 9)}]}}' for i in range(1, 10)]
    path.write_text('\n'.join(['a0: &a0 {x: 1}', *more]))


def aliases(path):
    more = [f'a{i}: &a{i} [{", ".join([f"*a{i - 1}"] * 9)}]' for i in range(1, 12)]
    path.write_text('\n'.join(['a0: &a0 [x]', *more]))


def alias_within_itself(path):
    path.write_text('a: &a [*a]')


def long_yaml(path):
    path.write_bytes(b'a: [' + b'[],' * 300_000 + b']')


def layers(path):
    values = network().to_dict()
    path.write_text(json.dumps({**values, 'layers': values['layers'][:1] * 20_000}))


def many_values(path):
    path.write_bytes(b'{"a": [' + b'[],' * 2_100_000 + b'[]]}')


def dictionaries(path):
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('archive/data.pkl', b'\x80\x02' + b'}' * 2_000_001 + b'.')


def empty_arrays(path):
    head = struct.pack('<Iii1qiii', 0xF993FAC9, 0, 1, 0, 1, 0, 0)
    path.write_bytes(struct.pack('<QQQ', 0x112, 0, 1_000_000) + head * 1_000)


def write_npz(path, count, *blocks, packing=zipfile.ZIP_DEFLATED):
    """An array that says it has `count` numbers, and the bytes that are there."""
    form = {'descr': '<f4', 'fortran_order': False, 'shape': (count,)}
    with zipfile.ZipFile(path, 'w', packing) as archive, archive.open('h.npy', 'w') as file:
        np.lib.format.write_array_header_1_0(file, form)
        for block in blocks:
            file.write(block)


def zeros(path):
    """Three hundred megabytes of them, packed into three hundred kilobytes."""
    write_npz(path, 9 << 23, *[bytes(1 << 25)] * 9)


def promised(path):
    write_npz(path, 1 << 50)


def understated(path):
    """Six hundred megabytes of zeros in a member that says it has four numbers."""
    write_npz(path, 4, *[bytes(1 << 25)] * 18, packing=zipfile.ZIP_BZIP2)
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo('h.npy').file_size
    told = path.read_bytes().replace(struct.pack('<I', size), struct.pack('<I', size - (18 << 25) + 16))
    path.write_bytes(told)


def sparse(path):
    """A file with a hole of four terabytes."""
    with open(path, 'wb') as file:
        file.truncate(1 << 42)


BOMBS = [
    (merges, read_yaml, 'values, aliases and merges written out'),
    (aliases, read_yaml, 'values, aliases and merges written out'),
    (alias_within_itself, read_yaml, 'inf values'),
    (long_yaml, read_yaml, 'bytes'),
    (layers, Architecture.read, '20,000 layers, wanted at most'),
    (many_values, read_json, 'values, wanted at most'),
    (dictionaries, read_torch, 'instructions, wanted at most'),
    (empty_arrays, read_arrays, '1,000,000 arrays, wanted at most'),
    (zeros, read_alphas, 'bytes unpacked, wanted at most'),
    (promised, read_alphas, 'not readable as arrays'),
    (understated, read_alphas, 'must be stored or deflated'),
    (sparse, read_torch, 'more than this machine has memory'),
    (sparse, read_arrays, 'more than this machine has memory'),
]


@pytest.mark.parametrize('make, read, said', BOMBS, ids=lambda value: getattr(value, '__name__', ''))
def test_small_file_that_stands_for_much_is_refused_at_once(tmp_path, make, read, said):
    path = tmp_path / 'file'
    make(path)
    peak, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError, match=f'file.*{said}'):
        read(path)
    assert time.process_time() - began < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < MEGABYTES << 10
