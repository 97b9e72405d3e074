"""Files of every form, each damaged in hundreds of ways: each time it is a clear error, or still a network;
none ends the process. Exports are damaged by the properties of hostile input.
"""

import random
import struct
import time

import numpy as np
import pytest
from helpers.checkpoints import write_gluonnlp, write_google, write_hugging_face
from helpers.examples import in_proportion

from gluon_optbert.architecture.parameters import check_parameters
from gluon_optbert.importing.convert import convert
from gluon_optbert.importing.sources import read_source

TIMES = in_proportion(80)  # damages of each file
SOURCES = {
    'safetensors': (write_hugging_face, {}, ('config.json', 'vocab.txt', 'model.safetensors')),
    'sharded safetensors': (
        write_hugging_face,
        {'files': 'model.safetensors.index.json'},
        ('model.safetensors.index.json', 'model-00001-of-00002.safetensors'),
    ),
    'bin': (write_hugging_face, {'files': 'pytorch_model.bin'}, ('pytorch_model.bin',)),
    'sharded bin': (
        write_hugging_face,
        {'files': 'pytorch_model.bin.index.json'},
        ('pytorch_model.bin.index.json', 'pytorch_model-00002-of-00002.bin'),
    ),
    'old bin': (write_hugging_face, {'files': 'old pytorch_model.bin'}, ('pytorch_model.bin',)),
    'TensorFlow': (
        write_google,
        {},
        ('bert_config.json', 'bert_model.ckpt.index', 'bert_model.ckpt.data-00000-of-00001'),
    ),
    'GluonNLP': (write_gluonnlp, {}, ('bert_2_8_2_tiny.params', 'tiny.vocab')),
}
FILES = [(source, name) for source, (_, _, names) in SOURCES.items() for name in names]
CHECKED = ('bert_model.ckpt.data-00000-of-00001',)  # every byte has a checksum elsewhere


def damaged(data, generator):
    """The bytes cut short, with some of them changed, moved, repeated or left out, or a length made large."""
    kind = generator.randrange(8)
    place, other = sorted(generator.randrange(len(data)) for _ in range(2))
    if generator.random() < 0.5:  # headers, pickles and indices lie near the ends
        place = generator.choice((place % 200, max(0, len(data) - 1 - place % 200)))
        other = max(place, other)
    changed = bytearray(data)
    if kind == 0:
        return data[:place]
    if kind == 1:
        changed[place] ^= 1 << generator.randrange(8)
    elif kind == 2:
        changed[place : place + 8] = struct.pack('<Q', generator.choice((2**64 - 1, 2**63, 2**40, 2**31, 0)))
    elif kind == 3:
        changed[place : place + 4] = bytes(generator.randrange(256) for _ in range(4))
    elif kind == 4:
        del changed[place : min(other, place + 64)]
    elif kind == 5:
        changed[place:place] = data[place : min(other, place + 64)]
    elif kind == 6:
        changed[place : min(other, place + 16)] = bytes(min(other, place + 16) - place)
    else:
        for _ in range(20):
            changed[generator.randrange(len(data))] = generator.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize('source, name', FILES, ids=[f'{source}: {name}' for source, name in FILES])
def test_damaged_file_is_an_error_or_a_network(tmp_path, source, name):
    write, options, _ = SOURCES[source]
    path = write(tmp_path / 'source', **options)
    file = tmp_path / 'source' / name
    whole, generator = file.read_bytes(), random.Random(f'{source} {name}')
    errors = 0
    for _ in range(TIMES):
        changed = damaged(whole, generator)
        file.write_bytes(changed)
        began = time.monotonic()
        try:
            model = convert(read_source(str(path))).model
        except (ValueError, FileNotFoundError) as error:
            assert str(error)
            errors += 1
        else:
            check_parameters(model.parameters, model.architecture, model.head)
            assert all(np.isfinite(value).all() for value in model.parameters.values())
            assert name not in CHECKED or changed == whole
        assert time.monotonic() - began < 10
    assert errors > TIMES // 4
    file.write_bytes(whole)
    convert(read_source(str(path)))
