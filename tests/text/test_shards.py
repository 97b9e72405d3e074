"""Shards on disk: what is refused, and how."""

from __future__ import annotations

import io
import json
import os
import zipfile

import numpy as np
import pytest
from helpers.tiny import (
    TOKENS,
    npy,
    random_records,
    seal,
    vocabulary,
    write_records,
    write_shards,
    write_signed_shard,
)

from gluon_optbert.text import shards as format_
from gluon_optbert.text.shards import Shards
from gluon_optbert.text.tokenizer import vocabulary_hash, vocabulary_of, write_vocabulary


@pytest.fixture
def directory(tmp_path):
    return write_shards(tmp_path / 'shards', train=(7, 5), heldout=())


def read_all(directory):
    shards = Shards.open(directory)
    return [shards.read(number) for number in range(len(shards.files))]


def test_records_read_back_with_gluonnlps_fields_and_without_pickle(tmp_path):
    records = random_records(12)
    write_records(tmp_path / 's', {'train': np.split(records, [7])}, vocabulary())
    np.testing.assert_array_equal(np.concatenate(read_all(tmp_path / 's')), records)
    assert Shards.open(tmp_path / 's').vocabulary() == vocabulary()
    with np.load(tmp_path / 's' / 'train-00000.npz', allow_pickle=False) as npz:
        masked = {f'masked_lm_{name}' for name in ('positions', 'ids', 'weights')}
        assert set(npz) == masked | {'input_ids', 'segment_ids', 'valid_lengths', 'next_sentence_labels'}
        assert all(npz[name].dtype.kind == 'u' for name in npz)


def test_what_is_missing_is_named(directory):
    with pytest.raises(ValueError, match='no heldout shards.*--held-out'):
        Shards.open(directory, split='heldout')
    for name, instead in (('train-00001.npz', os.mkfifo), (format_.MANIFEST, os.mkdir)):
        (directory / name).unlink()
        instead(directory / name)
        with pytest.raises(FileNotFoundError, match=f'{name}.*not there'):
            Shards.open(directory)


def test_shards_of_another_vocabulary_are_refused(directory):
    Shards.open(directory, vocabulary_hash=vocabulary_hash(vocabulary()))
    with pytest.raises(ValueError, match='made with another vocabulary'):
        Shards.open(directory, vocabulary_hash='0' * 64)
    write_vocabulary(vocabulary_of(TOKENS[::-1]), directory / format_.VOCABULARY)
    with pytest.raises(ValueError, match='is not the vocabulary of these shards'):
        Shards.open(directory).vocabulary()


def test_a_truncated_shard_is_found_when_opened_and_a_flipped_one_when_read(directory):
    path = directory / 'train-00001.npz'
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    shards = Shards.open(directory)
    shards.read(0)
    with pytest.raises(ValueError, match='train-00001.npz: corrupt'):
        shards.read(1)
    path.write_bytes(content[:-10])
    with pytest.raises(ValueError, match='truncated'):
        Shards.open(directory)


@pytest.mark.parametrize(
    'changes, of_shard, said',
    [
        ({'version': 2}, {}, 'version'),
        ({'max_predictions': 'x' * 30_000}, {}, 'max_predictions'),
        ({'vocabulary': {'size': 100}}, {}, 'vocabulary.sha256'),
        ({'splits': {'train': {'instances': 1, 'shards': []}}}, {}, 'splits.train.shards'),
        ({'splits': {'x' * 30_000: {}}}, {}, 'splits'),
        ({}, {'name': '../train-00000.npz'}, '.*shard'),
        ({}, {'name': 'heldout-00000.npz'}, '.*shard'),
        ({}, {'name': 'train-٠٠٠٠٠.npz'}, '.*shard'),
        ({}, {'name': 'train-00001.npz'}, '.*shard'),  # twice
        ({}, {'instances': 8}, '.*shard'),
        ({}, {'instances': 2**40}, '.*shard'),
        ({}, {'other': 1}, '.*shard'),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(directory, changes, of_shard, said):
    path = directory / format_.MANIFEST
    manifest = json.loads(path.read_text())
    manifest['splits']['train']['shards'][0].update(of_shard)
    seal(path, {**manifest, **changes})
    with pytest.raises(ValueError, match=f'manifest.json: {said}') as raised:
        Shards.open(directory)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    'field, value, said',
    [
        ('input_ids', len(TOKENS), 'input_ids'),
        ('valid_lengths', 0, 'valid_lengths'),
        ('masked_lm_positions', 15, 'beyond the valid length'),
        ('next_sentence_labels', 2, 'labels'),
    ],
)
def test_values_out_of_range_are_refused_though_the_checksum_fits(tmp_path, field, value, said):
    records = random_records(4)
    records['valid_lengths'] = 8
    records[field][2] = value
    write_records(tmp_path / 'shards', {'train': [records]}, vocabulary())
    with pytest.raises(ValueError, match=said):
        read_all(tmp_path / 'shards')


def npz_of(compress=zipfile.ZIP_STORED, **members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, 'w', compress) as npz:
        for name, content in members.items():
            npz.writestr(f'{name}.npy', content)
    return packed.getvalue()


def test_pickles_and_bombs_are_refused_unopened(directory):
    records = random_records(4)
    fields = {name: npy(records[name]) for name in records.dtype.names}
    write_signed_shard(directory, npz_of(**fields))
    read_all(directory)
    bomb = npz_of(zipfile.ZIP_DEFLATED, **{**fields, 'input_ids': bytes(50_000_000)})
    pickle = npz_of(**{**fields, 'next_sentence_labels': npy(np.array([0, 1, None, 'x'], object))})
    endless = fields['valid_lengths'].replace(b'(4,)', b'(4' + b'0' * 12 + b',)')
    huge, other = npz_of(**{**fields, 'valid_lengths': endless}), npz_of(**{**fields, 'extra': b''})
    for content in (bomb, pickle, huge, other, npz_of(zipfile.ZIP_LZMA, **fields), npz_of(), b' ', b'PK'):
        write_signed_shard(directory, content)
        with pytest.raises(ValueError, match='not a shard of this manifest'):
            read_all(directory)
